"""What a site sends of groups of people in its test sets: counts by class and value of a sensitive attribute, of cells that are large enough."""

from torch import Tensor

from equipoise.core.outputs import Outputs
from equipoise.core.task import Classification
from equipoise.records.record import Sums

SENT = ("value", "unknown", "right", "true", "chosen")


def of_people(outputs: Outputs, least: int) -> list[Sums] | None:
    """Sums by each sensitive attribute, where people in cells of fewer than ``least`` count as unknown; None of numbers, or without attributes."""
    if outputs.s is None or not isinstance(outputs.task, Classification):
        return None
    s = without_small_cells(outputs.y, outputs.s, least)
    every = outputs.task.people(outputs.predicted, outputs.y, s, outputs.values.shape[-1])
    return [{key: sums[key] for key in SENT if key in sums} for sums in every]  # type: ignore[misc, literal-required]


def without_small_cells(y: Tensor, s: Tensor, least: int) -> Tensor:
    """Codes [n, A] in which those of a class and value with fewer than ``least`` samples are unknown, -1.

    The server has the samples of each class. If fewer than ``least`` of one would be left over, its next smallest cell is hidden, too, so the
    difference between the class and its cells is never about so few.
    """
    s = s.clone()
    for codes in s.unbind(-1):
        for c in y.unique():
            of_class = y == c
            values, sizes = codes[of_class & (codes >= 0)].unique(return_counts=True)
            left_over = int((of_class & (codes < 0)).sum())
            for size, value in sorted(zip(sizes.tolist(), values.tolist(), strict=True)):
                if size < least or 0 < left_over < least:
                    codes[of_class & (codes == value)] = -1
                    left_over += size
    return s
