"""Initial values of a network from a file."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.data.contents import DataError
from equipoise.data.declared import check_zip

SHOWN = 3  # names in an error


def load_weights(net: nn.Module, path: str | Path, name: str, head: str) -> None:
    """Give a network the values in a file, which must have every name of its state dictionary and no other.

    The classifier ``head`` keeps its values if the file has none, or one for another number of classes.

    Parameters
    ----------
    net : the network, which is changed.
    path : a state dictionary: ``.safetensors``, or ``.pth`` or ``.pt``, of which only tensors are read; "~" is expanded.
    name : of the network, for errors.
    head : name of the classifier's module.

    Raises
    ------
    ValueError : no such file, another kind of file, or values that do not fit, naming some.
    """
    if not isinstance(path, str | Path):
        raise ValueError(f"{name}: weights must be the path of a file; found {path!r}.")
    values, own = read_tensors(path), net.state_dict()
    mine = [key for key in own if key.startswith(f"{head}.")]
    if any(key not in values or values[key].shape != own[key].shape for key in mine):
        values = {key: x for key, x in values.items() if key not in mine} | {key: own[key] for key in mine}
    # counters of batches, which older files lack and no result depends on
    values = {key: x for key, x in own.items() if key.endswith("num_batches_tracked")} | values
    faults = {
        "lacks": [key for key in own if key not in values],
        "has, and the network has not,": sorted(key for key in values if key not in own),
        "has in another shape": [
            f"{key} {list(values[key].shape)} for {list(own[key].shape)}"
            for key in own
            if key in values and values[key].shape != own[key].shape
        ],
    }
    if differences := [f"it {what} {_some(keys)}" for what, keys in faults.items() if keys]:
        raise ValueError(
            f"{name}: the weights in {path} are not of this network: {'; '.join(differences)}. Expected are torchvision's names, "
            "from state_dict(); images of three channels; and, for weights from ImageNet, stem=imagenet."
        )
    net.load_state_dict(values)


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a file of weights, by name.

    Raises
    ------
    ValueError : no such file, or one that holds something else.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"weights: there is no file {file}. Give the path of a .safetensors, .pth or .pt file.")
    try:
        if zipfile.is_zipfile(file):  # as PyTorch writes them
            with zipfile.ZipFile(file) as archive:
                check_zip(archive)
        tensors = load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    except DataError:
        raise
    except Exception as error:  # both readers raise many kinds of errors
        raise ValueError(
            f"weights: {file} cannot be read ({type(error).__name__}): it is damaged, or holds more than tensors by name. "
            "Save the network's state_dict() alone, for example as .safetensors."
        ) from None
    if not isinstance(tensors, Mapping) or not all(isinstance(x, Tensor) for x in tensors.values()):
        kinds = sorted(
            {type(x).__name__ for x in tensors.values()} if isinstance(tensors, Mapping) else {type(tensors).__name__}
        )
        raise ValueError(
            f"weights: {file} must hold a state dictionary, tensors by name; found {', '.join(kinds)}. "
            "Save the network's state_dict() alone."
        )
    return dict(tensors)


def _some(keys: list[str]) -> str:
    more = len(keys) - SHOWN
    return ", ".join(keys[:SHOWN]) + (f" and {more} more" if more > 0 else "")
