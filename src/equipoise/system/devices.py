"""The processor or GPU that computes, from the name that a user gives it."""

from contextlib import suppress

import torch

from equipoise.system.text import plural


def usable_device(name: str) -> torch.device:
    """The device of a name, ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, which is there and repeats its bits.

    On a GPU, cuDNN takes for the rest of the process only algorithms that sum in a fixed order.

    Raises
    ------
    ValueError : no such device, or none that this build of PyTorch can use.
    """
    device = None
    with suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"Unknown device {name!r}. Choose cpu or cuda.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device {name!r} needs a CUDA build of PyTorch and a GPU; found none. Use cpu.")
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:  # None, where PyTorch chooses
            raise ValueError(f"device {name!r} is not there; found {plural(count, 'GPU')}, the first is cuda:0.")
        torch.backends.cudnn.deterministic = True
    return device
