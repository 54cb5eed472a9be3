"""Residual networks: one block per stage for small images, ResNet-18 and ResNet-50, and values from a file."""

import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.data.contents import DataError, check_zip
from equipoise.system.ranges import check_option, check_whole

Stem = Literal["imagenet", "small"]


class ResNet10(nn.Module):
    """ResNet of four stages with one basic block each, behind a 3x3 stem that keeps the resolution of small images.

    The stages have ``width`` times 1, 2, 4 and 8 channels; every stage but the first halves the image.
    He et al., CVPR 2016, with the stem and the blocks [1, 1, 1, 1] used by FedHEAL (Chen, Huang, Ye, CVPR 2024).

    Parameters
    ----------
    in_shape : channels, height and width of an image.
    n_classes : >= 1, number of logits.
    width : >= 1, channels of the stem.

    Maps [B, C, H, W] to logits [B, n_classes].
    Differs: the paper has ``width=64`` (4.9 million parameters). The default is 16 (0.3 million), which a processor
    trains seven to ten times faster.

    Raises
    ------
    ValueError if the shape is not that of an image, or ``width`` is < 1.
    """

    def __init__(self, in_shape: Sequence[int] = (3, 32, 32), n_classes: int = 10, *, width: int = 16) -> None:
        super().__init__()
        if len(in_shape) != 3 or min(in_shape) < 1:
            raise ValueError(f"resnet10: in_shape must be (channels, height, width); found {tuple(in_shape)}.")
        check_whole("resnet10: width", width, 1)
        self.stem = nn.Conv2d(in_shape[0], width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        sizes = (1, 1, 1), (1, 2, 2), (2, 4, 2), (4, 8, 2)  # channels before and after, by the width, and stride
        self.stages = nn.Sequential(*(BasicBlock(a * width, b * width, stride) for a, b, stride in sizes))
        self.classifier = nn.Linear(8 * width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.norm(self.stem(x)).relu()
        out: Tensor = self.classifier(self.stages(x).mean((2, 3)))
        return out


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes.

    Parameters
    ----------
    channels : >= 1, channels before.
    width : >= 1, channels after.
    stride : 1, or 2 to halve the image.
    """

    expansion = 1
    names = ("conv1", "bn1", "conv2", "bn2", "downsample")  # of its layers, in order

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        layers = (conv1, nn.BatchNorm2d(width), conv2, nn.BatchNorm2d(width), _shortcut(channels, width, stride))
        for name, layer in zip(self.names, layers, strict=True):
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, H, W] to [B, width, H / stride, W / stride]."""
        conv1, norm1, conv2, norm2, shortcut = (getattr(self, name) for name in self.names)
        inner = norm2(conv2(norm1(conv1(x)).relu()))
        out: Tensor = (inner + shortcut(x)).relu()
        return out


class BasicBlock(Basic):
    """The block of :class:`ResNet10`: :class:`Basic`, with the names that its saved models have."""

    names = ("conv1", "norm1", "conv2", "norm2", "shortcut")


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution beside a shortcut; the 3x3 one has the stride.

    Parameters
    ----------
    channels : >= 1, channels before.
    width : >= 1, channels inside; four times as many come out.
    stride : 1, or 2 to halve the image.
    """

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, self.expansion * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(self.expansion * width)
        self.downsample = _shortcut(channels, self.expansion * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, H, W] to [B, 4 * width, H / stride, W / stride]."""
        inner = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        out: Tensor = (self.bn3(self.conv3(inner)) + self.downsample(x)).relu()
        return out


def _stage(block: type[Basic] | type[Bottleneck], channels: int, width: int, depth: int, stride: int) -> nn.Sequential:
    first = block(channels, width, stride)
    return nn.Sequential(first, *(block(block.expansion * width, width, 1) for _ in range(depth - 1)))


def _shortcut(channels: int, out: int, stride: int) -> nn.Sequential:
    if stride == 1 and channels == out:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """ResNet of four stages with 64, 128, 256 and 512 channels inside their blocks, named as in torchvision.

    ``resnet18`` has 11,689,512 parameters for 1,000 classes, ``resnet50`` 25,557,032.

    He, Zhang, Ren, Sun, CVPR 2016, Table 1; convolutions begin as in their "Delving Deep into Rectifiers", ICCV 2015.

    Parameters
    ----------
    name : of the network, for errors.
    block : of which the stages are made.
    depths : blocks of each stage.
    in_shape : channels, height and width of an image.
    n_classes : >= 1, number of logits.
    stem : ``"imagenet"`` makes the image four times smaller by a 7x7 convolution and pooling; ``"small"`` keeps its
        size by a 3x3 convolution, for images of some 32 pixels.
    weights : a file of values to begin with, in torchvision's names; see :func:`equipoise.networks.resnet.load_weights`.

    Maps [B, C, H, W] to logits [B, n_classes].
    Differs: the 3x3 convolution of a bottleneck has the stride, as in torchvision (the paper has it on the first 1x1).

    Raises
    ------
    ValueError if the shape is not that of an image, ``stem`` is unknown or the weights do not fit.
    """

    def __init__(
        self,
        name: str,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        in_shape: Sequence[int] = (3, 224, 224),
        n_classes: int = 10,
        *,
        stem: Stem = "imagenet",
        weights: str | Path | None = None,
    ) -> None:
        super().__init__()
        if len(in_shape) != 3 or min(in_shape) < 1:
            raise ValueError(f"{name}: in_shape must be (channels, height, width); found {tuple(in_shape)}.")
        check_option(f"{name}: stem", stem, get_args(Stem))
        large = stem == "imagenet"
        self.conv1 = nn.Conv2d(in_shape[0], 64, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if large else nn.Identity()
        e = block.expansion
        self.layer1 = _stage(block, 64, 64, depths[0], 1)
        self.layer2 = _stage(block, e * 64, 128, depths[1], 2)
        self.layer3 = _stage(block, e * 128, 256, depths[2], 2)
        self.layer4 = _stage(block, e * 256, 512, depths[3], 2)
        self.fc = nn.Linear(e * 512, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if weights is not None:
            load_weights(self, weights, name, head="fc")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


resnet18: Callable[..., ResNet] = partial(ResNet, "resnet18", Basic, (2, 2, 2, 2))
resnet50: Callable[..., ResNet] = partial(ResNet, "resnet50", Bottleneck, (3, 4, 6, 3))


# initial values from a file
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
    own = net.state_dict()
    values = _completed(read_tensors(path), own, head)
    reshaped = [key for key in own if key in values and values[key].shape != own[key].shape]
    faults = {
        "lacks": [key for key in own if key not in values],
        "has, and the network has not,": sorted(key for key in values if key not in own),
        "has in another shape": [f"{key} {list(values[key].shape)} for {list(own[key].shape)}" for key in reshaped],
    }
    if differences := [f"it {verb} {_some(keys)}" for verb, keys in faults.items() if keys]:
        raise ValueError(
            f"{name}: the weights in {path} are not of this network: {'; '.join(differences)}. Expected are torchvision's names, "
            "from state_dict(); images of three channels; and, for weights from ImageNet, stem=imagenet."
        )
    net.load_state_dict(values)


def _completed(values: dict[str, Tensor], own: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    """The values of a file, with the network's own for a classifier that the file lacks or has in another shape."""
    mine = [key for key in own if key.startswith(f"{head}.")]
    if any(key not in values or values[key].shape != own[key].shape for key in mine):
        values = values | {key: own[key] for key in mine}
    # counters of batches, which older files lack and no result depends on
    return {key: x for key, x in own.items() if key.endswith("num_batches_tracked")} | values


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
        values = tensors.values() if isinstance(tensors, Mapping) else [tensors]
        kinds = sorted({type(x).__name__ for x in values})
        raise ValueError(
            f"weights: {file} must hold a state dictionary, tensors by name; found {', '.join(kinds)}. "
            "Save the network's state_dict() alone."
        )
    return dict(tensors)


def _some(keys: list[str]) -> str:
    more = len(keys) - SHOWN
    return ", ".join(keys[:SHOWN]) + (f" and {more} more" if more > 0 else "")
