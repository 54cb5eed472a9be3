"""The states of convergence that FedISM+ compares: loss and sharpness of every client at growing search distances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.analysis.landscape import trained
from equipoise.core.oracle import Oracle
from equipoise.data.samples import loaded
from equipoise.federation.evaluation import oracle_of
from equipoise.federation.history import History
from equipoise.methods.sam import perturbation
from equipoise.runs.plan import Progress
from equipoise.system.ranges import check_number, check_whole

if TYPE_CHECKING:
    import pandas as pd


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
            oracle = oracle_of(trial, fed.progress.t, m, loaded(data))
            losses.append(perturbed_losses(oracle, vector, rho.tolist()))
            if on_client is not None:
                on_client(m + 1, len(trial.data))
        history = History.from_run(path)
        measured.append(States(history.label, history.seed, history.client_groups, rho, np.array(losses)))
    return measured
