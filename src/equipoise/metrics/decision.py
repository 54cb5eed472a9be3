"""How probabilities of the positive one of two classes become decisions: recalibrated, and by an edge for all or for each group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.metrics.calibration import Recalibration
from equipoise.metrics.thresholds import decided


@dataclass(frozen=True)
class Decision:
    """What is shown and what is decided of probabilities.

    Parameters
    ----------
    attribute : whose value chooses the edge; empty where one edge is for all.
    groups : its values, in the order of their codes.
    edges : in [0, 1], the probabilities before recalibration from which on the positive class is predicted: of every group, then of people
        of whom the group is not known; shape [G + 1]. Empty: the more probable class, after recalibration.
    calibration : of the probabilities that are shown; None leaves them as they are.
    """

    attribute: str = ""
    groups: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    calibration: Recalibration | None = None

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.groups) + 1 and (self.edges or self.groups):
            raise ValueError(
                f"expected {len(self.groups) + 1} edges, one for each group and one for others; found {len(self.edges)}."
            )

    @classmethod
    def at(
        cls, threshold: float, by_group: Mapping[str, Any] | None = None, calibration: Recalibration | None = None
    ) -> Self:
        """By a threshold, or by those of groups, an ``attribute`` and its ``thresholds``, and one for people of whom the group is not known."""
        groups = by_group["thresholds"] if by_group else {}
        edges = (*groups.values(), float(threshold))
        return cls(by_group["attribute"] if by_group else "", tuple(groups), edges, calibration)

    def __call__(self, scores: ArrayLike, codes: ArrayLike | None = None) -> NDArray[np.bool_]:
        """Which samples are taken for positive [n], of their probabilities [n] and codes of their groups [n], -1 where one is not known."""
        if not self.edges:
            return decided(self.shown(scores), 0.5)
        return decided(scores, np.array(self.edges)[-1 if codes is None else np.asarray(codes)])

    def shown(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Probabilities [n] after recalibration."""
        return np.asarray(scores, np.float64) if self.calibration is None else self.calibration(scores)
