"""The loss around trained models: along random, filter-normalised directions, and along the gradient of each client."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.core.oracle import Oracle
from equipoise.data.samples import Samples, loaded
from equipoise.federation import checkpoint, evaluation
from equipoise.federation.federation import Federation
from equipoise.federation.history import History
from equipoise.federation.method import parse
from equipoise.methods.sam import perturbation
from equipoise.runs import directory as runs
from equipoise.runs.plan import Progress
from equipoise.system.ranges import check_number, check_whole
from equipoise.system.suggestions import require_known

if TYPE_CHECKING:
    import pandas as pd


def filter_normalised(direction: Tensor, theta: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    r"""Scale each filter of a random direction to the length of the same filter of the model.

    .. math:: d_{i,j} \gets \frac{d_{i,j}}{\lVert d_{i,j} \rVert + 10^{-10}} \lVert \theta_{i,j} \rVert

    for filter j (a slice of the first axis) of tensor i; tensors of one axis (biases, BatchNorm) get direction 0.
    Li, Xu, Taylor, Studer, Goldstein, NeurIPS 2018, Section 4.

    Parameters
    ----------
    direction, theta : shape [P].
    shapes : of the tensors that make up ``theta``.

    Returns
    -------
    The direction [P].
    """
    sizes = [int(np.prod(shape)) for shape in shapes]
    if sum(sizes) != len(theta) or direction.shape != theta.shape:
        raise ValueError(
            f"filter_normalised: shapes of {sum(sizes)} values for theta {list(theta.shape)} and direction "
            f"{list(direction.shape)}. All must agree."
        )
    parts = []
    for d, w, shape in zip(direction.split(sizes), theta.split(sizes), shapes, strict=True):
        if len(shape) < 2:
            parts.append(torch.zeros_like(d))
            continue
        d, w = d.view(shape[0], -1), w.view(shape[0], -1)
        parts.append((d * (w.norm(dim=1) / (d.norm(dim=1) + 1e-10))[:, None]).flatten())
    return torch.cat(parts)


@dataclass(frozen=True)
class Landscape:
    """The loss of one trained model around it.

    ``at`` [n] are the steps along a direction, ``line`` [draws, n] the losses along each of several directions;
    ``grid_at`` [k] and ``grid`` [k, k] the losses over a plane (first direction downwards, second to the right), empty
    where none was asked for. ``group`` is the test set.
    """

    label: str
    seed: int
    group: str
    at: NDArray[np.float64]
    line: NDArray[np.float64]
    grid_at: NDArray[np.float64]
    grid: NDArray[np.float64]

    def frame(self) -> pd.DataFrame:
        """One row per point: columns ``method, seed, group, kind, draw, a, b, loss``."""
        import pandas as pd

        run = (self.label, self.seed, self.group)
        rows: list[tuple[object, ...]] = [
            (*run, "line", draw, a, 0.0, loss)
            for draw, losses in enumerate(self.line.tolist())
            for a, loss in zip(self.at.tolist(), losses, strict=True)
        ]
        rows += [
            (*run, "plane", 0, a, b, loss)
            for a, losses in zip(self.grid_at.tolist(), self.grid.tolist(), strict=True)
            for b, loss in zip(self.grid_at.tolist(), losses, strict=True)
        ]
        return pd.DataFrame(rows, columns=["method", "seed", "group", "kind", "draw", "a", "b", "loss"])


def landscape(
    directories: Sequence[str | Path],
    group: str | None = None,
    *,
    points: int = 51,
    grid: int = 21,
    draws: int = 3,
    span: float = 1.0,
    seed: int = 0,
    on_point: Progress | None = None,
) -> list[Landscape]:
    """Walk around the global models of several runs, along the same random directions for all of them.

    The raw directions are the same draws for every run, each normalised by that run's own filters; buffers stay. The loss
    is the plain mean cross-entropy on one test set, in eval mode.

    Parameters
    ----------
    directories : of runs with the same network, each with a checkpoint.
    group : the test set; by default the worst one of the first run.
    points : of a line, odd, >= 3. grid : points along each axis of the plane, odd, or 0 for no plane.
    draws : lines per run, >= 1. span : the steps reach from -span to span, > 0.
    seed : of the directions.
    on_point : called with the points done and to do.

    Raises
    ------
    ValueError : no run, nothing trained there, an unknown group, or networks that differ.
    """
    if points < 3 or points % 2 == 0 or (grid and (grid < 3 or grid % 2 == 0)):
        raise ValueError(
            f"points and grid must be odd and >= 3, so that the model itself is one; found {points} and {grid}."
        )
    check_whole("draws", draws, 1)
    check_number("span", span, 0, above=True)
    if not directories:
        raise ValueError("landscape: expected at least one run, found none.")
    paths = [*map(Path, directories)]
    at, plane = np.linspace(-span, span, points), np.linspace(-span, span, grid) if grid else np.empty(0)
    total, done = len(paths) * (draws * points + grid * grid), 0
    landscapes: list[Landscape] = []
    names: tuple[str, ...] = ()
    for path in paths:
        fed, vector = trained(path)
        names, group = _agree(path, fed, names, group)
        data, P = fed.tests.sets[group], fed.model.n_params
        directions = [filter_normalised(raw, vector[:P], fed.model.shapes) for raw in _drawn(draws, P, seed, vector)]

        def loss(step: Tensor, fed: Federation = fed, vector: Tensor = vector, data: Samples = data) -> float:
            nonlocal done
            moved = torch.cat([vector[: len(step)] + step, vector[len(step) :]])
            value = float(evaluation.answers(fed.trial, moved, [data], ())[0].tally.mean_loss)
            done += 1
            if on_point is not None:
                on_point(done, total)
            return value

        history = History.from_run(path)
        line = np.array([[loss(a * d) for a in at.tolist()] for d in directions[:draws]])
        first, second = directions[0], directions[-1]
        cells = np.array([[loss(a * first + b * second) for b in plane.tolist()] for a in plane.tolist()])
        surface = cells.reshape(grid, grid)
        landscapes.append(Landscape(history.label, history.seed, str(group), at, line, plane, surface))
    return landscapes


def trained(path: Path) -> tuple[Federation, Tensor]:
    """The federation of a run after its last complete round, and its global model [G].

    Raises
    ------
    ValueError : no run there, nothing trained yet, or clients that train alone.
    """
    config = runs.load(path)
    if not parse(config.method).sharing.global_model:
        raise ValueError(f"{path}: under {config.method} every client trains alone, and there is no global model.")
    torch.set_num_threads(config.threads)
    if not checkpoint.exists(path / "checkpoint"):
        command = f"equipoise resume {shlex.quote(str(path))}"
        raise ValueError(f"{path} holds no trained model yet. Train it first: {command}")
    fed, _ = runs.federation(config)
    fed.resume(path)
    return fed, evaluation.published(fed.trial, fed.progress)


def _drawn(draws: int, n: int, seed: int, like: Tensor) -> list[Tensor]:
    """Gaussian directions [P], drawn on the processor so that a device does not change them; one more for the plane."""
    sources = (torch.Generator().manual_seed(1_000_003 * seed + k) for k in range(draws + 1))
    return [torch.randn(n, generator=source, dtype=torch.float64).to(like.device, like.dtype) for source in sources]


def _agree(path: Path, fed: Federation, names: tuple[str, ...], group: str | None) -> tuple[tuple[str, ...], str]:
    """The network's tensors and the test set, if this run has those of the runs before it."""
    described = tuple(f"{n}{list(s)}" for n, s in zip(fed.model.names, fed.model.shapes, strict=True))
    if names and described != names:
        raise ValueError(f"{path} has another network than the first run; landscapes are compared for one network.")
    if group is None:
        group = History.from_run(path).summary()["worst_group"] or next(iter(fed.tests.sets))
    require_known(f"test set of {path}:", fed.tests.sets, group)
    return described, group


# FedISM+ compares states of convergence by loss and sharpness at growing search distances
def perturbed_losses(oracle: Oracle, vector: Tensor, distances: Sequence[float]) -> list[float]:
    r"""One client's loss along its own gradient, in eval mode and without crops.

    .. math:: L_k(\rho) = F_k\Big(\theta + \rho \frac{\nabla F_k(\theta)}{\lVert \nabla F_k(\theta) \rVert}\Big)

    Wu et al., arXiv 2503.09587, Section III-C, Eqs. 10 and 11; the sharpness is :math:`S_k(\rho) = L_k(\rho) - F_k(\theta)`.

    Parameters
    ----------
    oracle : the client's data.
    vector : the whole model [G]; buffers stay.
    distances : the search distances rho [n], >= 0, in the unit of the parameters.

    Returns
    -------
    The losses [n] in nats.
    """
    theta, buffers = vector[: oracle.n_params], vector[oracle.n_params :]
    g = oracle.gradient(vector)
    return [float(oracle.tally(torch.cat([theta + perturbation(g, rho), buffers])).mean_loss) for rho in distances]


@dataclass(frozen=True)
class States:
    """Loss of one trained model at growing search distances ``rho`` [n], from 0, on the training data of each client: [N, n]."""

    label: str
    seed: int
    groups: tuple[str, ...]
    rho: NDArray[np.float64]
    loss: NDArray[np.float64]

    @property
    def sharpness(self) -> NDArray[np.float64]:
        """By how much the loss is higher than where the search begins [N, n]."""
        return self.loss - self.loss[:, :1]

    def frame(self) -> pd.DataFrame:
        """One row per client and distance: columns ``method, seed, client, group, rho, loss, sharpness``."""
        import pandas as pd

        N, n = self.loss.shape
        columns = {"method": self.label, "seed": self.seed, "client": np.repeat(np.arange(N), n)}
        columns |= {"group": np.repeat(self.groups, n), "rho": np.tile(self.rho, N)}
        return pd.DataFrame({**columns, "loss": self.loss.ravel(), "sharpness": self.sharpness.ravel()})


def states(
    directories: Sequence[str | Path], *, rho_max: float = 0.2, points: int = 21, on_client: Progress | None = None
) -> list[States]:
    """Loss and sharpness of the global models of several runs, for every client on its own training data.

    Parameters
    ----------
    directories : of runs, each with a checkpoint.
    rho_max : the largest search distance, > 0, in the unit of the parameters.
    points : distances from 0 to it, evenly spaced, >= 2.
    on_client : called with the clients of a run done and to do.

    Raises
    ------
    ValueError : no run, nothing trained there, or numbers out of their range.
    """
    check_number("rho_max", rho_max, 0, above=True)
    check_whole("points", points, 2)
    if not directories:
        raise ValueError("states: expected at least one run, found none.")
    rho, measured = np.linspace(0, rho_max, points), []
    for path in map(Path, directories):
        fed, vector = trained(path)
        trial, losses = fed.trial, []
        for m, data in enumerate(trial.data):
            oracle = evaluation.oracle_of(trial, fed.progress.t, m, loaded(data))
            losses.append(perturbed_losses(oracle, vector, rho.tolist()))
            if on_client is not None:
                on_client(m + 1, len(trial.data))
        history = History.from_run(path)
        measured.append(States(history.label, history.seed, history.client_groups, rho, np.array(losses)))
    return measured
