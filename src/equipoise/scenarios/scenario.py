"""What a scenario is: the data of the clients, the named test groups, and how images reach the network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from equipoise.data.mapped import Data, Mapped, labels, shape
from equipoise.data.samples import Transform


@dataclass(frozen=True)
class Images:
    """Turn a batch of uint8 images into normalised floats, cropped at random in training.

    Pixel (i, j) of the result is ``(x[i', j'] / 255 - mean) / std`` with ``i' = clamp(i + dy - crop, 0, H - 1)`` and
    ``j'`` likewise from ``dx``: a window of the image padded by ``crop`` replicated pixels.

    Parameters
    ----------
    mean, std : one number per channel, or one for all, on the scale where white is 1; ``std`` > 0.
    crop : >= 0, padding in pixels; 0 means that images are never shifted.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: int = 0

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(
                "Images: mean and std must have one number per channel each; "
                f"found {len(self.mean)} and {len(self.std)}."
            )
        if min(self.std) <= 0:
            raise ValueError(f"Images: every std must be > 0; found {self.std}.")
        if self.crop < 0:
            raise ValueError(f"Images: crop must be >= 0 pixels; found {self.crop}.")

    def __call__(self, x: Tensor, shift: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalise ``x``, after shifting each image if ``shift`` is given.

        Parameters
        ----------
        x : uint8 [..., C, H, W], with any leading dimensions; never changed.
        shift : int64 [..., 2], one crop offset (dy, dx) per image, each in 0..2 * crop and drawn by the caller;
            ``None`` (evaluation) leaves the image where it is, as an offset of ``crop`` would.
        dtype : floating type of the result.

        Returns
        -------
        Tensor [..., C, H, W] in contiguous memory: on a CPU the crop and the normalisation run faster
        there than in channels-last order, and a convolution whose weights are channels-last converts on its own.

        Raises
        ------
        TypeError if ``x`` is not uint8. ValueError if the shapes do not fit.
        """
        if x.dtype != torch.uint8:
            raise TypeError(f"Images: expected uint8 pixels, found {x.dtype}; pass images before they are normalised.")
        if x.dim() < 3 or len(self.mean) not in (1, x.shape[-3]):
            raise ValueError(
                f"Images: expected [..., {len(self.mean)}, H, W], found {list(x.shape)}; "
                "give mean and std one number per channel."
            )
        if shift is None:
            pixels = x.contiguous()
        elif shift.shape == (*x.shape[:-3], 2):
            pixels = self._cropped(x, shift)
        else:
            raise ValueError(
                f"Images: shift must hold (dy, dx) per image: expected {[*x.shape[:-3], 2]}, found {list(shift.shape)}."
            )
        scale, offset = _affine(self.mean, self.std, dtype, x.device)
        # Two plain operations, not one fused: their rounding does not depend on the shape of the batch.
        return pixels.to(dtype).mul_(scale).sub_(offset)

    def _cropped(self, x: Tensor, shift: Tensor) -> Tensor:
        # One gather of bytes over flat pixel numbers: measured 1.4 to 5 times as fast as padding and slicing.
        channels, height, width = x.shape[-3:]
        dy, dx = (shift.reshape(-1, 2) - self.crop).unbind(1)  # [n] each
        rows = (torch.arange(height, device=x.device) + dy[:, None]).clamp_(0, height - 1) * width  # [n, H]
        columns = (torch.arange(width, device=x.device) + dx[:, None]).clamp_(0, width - 1)  # [n, W]
        index = (rows[:, :, None] + columns[:, None, :]).flatten(1)  # [n, HW]
        index = index[:, None, :].expand(-1, channels, -1)  # [n, C, HW]
        return x.reshape(-1, channels, height * width).gather(2, index).view(x.shape)


@lru_cache(maxsize=16)
def _affine(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Scale and offset [C, 1, 1] with ``(x / 255 - mean) / std = x * scale - offset``.

    Kept, so that a batch on an accelerator does not wait for two copies from the host.
    """
    with torch.inference_mode(False):  # a kept tensor must serve outside inference mode too
        m, s = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
        return (1 / (255 * s)).to(device, dtype), (m / s).to(device, dtype)


@dataclass(frozen=True)
class Protocol:
    """The recommended way to train on a scenario.

    Parameters
    ----------
    rounds : > 0, communication rounds.
    epochs : > 0, passes of a client over its data in one round.
    batch_size : > 0, images in a step.
    lr : > 0, learning rate of SGD.
    momentum : in [0, 1), of SGD.
    weight_decay : >= 0, of SGD.
    participation : in (0, 1], the share of the clients that train in a round.
    steps : >= 1, steps of SGD of a client in one round, whatever the size of its data: then ``epochs`` is not used;
        ``None`` for ``epochs``.

    Raises
    ------
    ValueError if ``steps`` is below one.
    """

    rounds: int
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    participation: float = 1.0
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"Protocol: steps must be >= 1, or None for epochs; found {self.steps}.")


@dataclass(frozen=True)
class Scenario:
    """Federated data with its named test groups and the protocol it is meant to be trained with.

    Parameters
    ----------
    name, summary : the scenario's name, and one line about it.
    clients : per client its samples: uint8 images [n, C, H, W] or numbers [n, ...] with labels int64 [n], or ``Mapped``.
    client_names : one per client, such as ``"photo-2"``.
    client_groups : per client the key of ``tests`` that its own data resemble; ``None`` if the clients are alike, and
        the union of all tests is right for each of them.
    tests : named evaluation sets in the order of reports, of the same kind.
    transform : turns the samples into what the network takes; ``None`` leaves them as they are.
    n_classes : labels lie in 0..n_classes - 1.
    network : name of the default network.
    protocol : recommended training.
    manifest : JSON-able record of what the data are and where each client's part came from.
    measures : what is recorded of the global model on every test group, names of ``metrics.MEASURES``.
    network_options : options of the default network.
    validation : samples that the server holds, for methods that judge models by them; no client trains on
        them. ``None`` if it holds none.
    collaborative : whether what a client gets is to be compared with what it would reach alone.

    Raises
    ------
    ValueError if the parts contradict each other.
    """

    name: str
    summary: str
    clients: tuple[Data, ...]
    client_names: tuple[str, ...]
    client_groups: tuple[str, ...] | None
    tests: Mapping[str, Data]
    transform: Transform | None
    n_classes: int
    network: str
    protocol: Protocol
    manifest: dict[str, Any]
    measures: tuple[str, ...] = ("accuracy",)
    network_options: Mapping[str, Any] = field(default_factory=dict)
    validation: Data | None = None
    collaborative: bool = False

    def __post_init__(self) -> None:
        for what, values in (("client_names", self.client_names), ("client_groups", self.client_groups)):
            if values is not None and len(values) != len(self.clients):
                raise ValueError(
                    f"Scenario {self.name}: {what} must have one entry per client: "
                    f"expected {len(self.clients)}, found {len(values)}."
                )
        if strangers := sorted(set(self.client_groups or ()) - set(self.tests)):
            raise ValueError(
                f"Scenario {self.name}: client groups must be test groups ({', '.join(self.tests)}); found {strangers}."
            )
        named = [*zip(self.client_names, self.clients, strict=True), *self.tests.items()]
        if self.validation is not None:
            named.append(("validation", self.validation))
        for who, data in named:
            y = labels(data)
            if not isinstance(data, Mapped):
                x = data[0]
                images = x.dtype == torch.uint8 and x.dim() == 4
                if not (images or x.is_floating_point()) or y.dtype != torch.int64 or y.shape != x.shape[:1]:
                    raise ValueError(
                        f"Scenario {self.name}: '{who}' must have uint8 images [n, C, H, W], or numbers [n, ...], and int64 "
                        f"labels [n]; found {x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)}."
                    )
            if y.numel() == 0 or y.min() < 0 or y.max() >= self.n_classes:
                raise ValueError(
                    f"Scenario {self.name}: '{who}' must have at least one label, all in 0..{self.n_classes - 1}."
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return shape(self.clients[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many samples each client has."""
        return tuple(len(labels(data)) for data in self.clients)
