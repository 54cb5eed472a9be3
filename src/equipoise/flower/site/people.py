"""What a site sends of groups of people in its test sets: counts by class and value of a sensitive attribute, of cells that are large enough."""

import torch
from torch import Tensor

from equipoise.core.outputs import Outputs
from equipoise.core.task import Classification
from equipoise.records.record import Sums

SENT = ("value", "unknown", "right", "true", "chosen")


def of_people(outputs: Outputs, least: int) -> list[Sums] | None:
    """Sums by each sensitive attribute, where people in cells of fewer than ``least`` count as unknown; None of numbers, or without attributes."""
    if outputs.s is None or not isinstance(outputs.task, Classification):
        return None
    s = without_small_cells(outputs.y, outputs.s, least, outputs.person)
    every = outputs.task.people(outputs.predicted, outputs.y, s, outputs.values.shape[-1])
    return [{key: sums[key] for key in SENT if key in sums} for sums in every]  # type: ignore[misc, literal-required]


def without_small_cells(y: Tensor, s: Tensor, least: int, person: Tensor | None = None) -> Tensor:
    """Codes [n, A] in which those of a class and value with fewer than ``least`` people are unknown, -1; ``person`` [n] is whom each is about.

    The server has the samples of each class. If fewer than ``least`` of one would be left over, its next smallest cell is hidden, too, so the
    difference between the class and its cells is never about so few.
    """
    s, who = s.clone(), torch.arange(len(y), device=y.device) if person is None else person
    for codes in s.unbind(-1):
        for c in y.unique():
            of_class = y == c
            cells = [of_class & (codes == value) for value in codes[of_class & (codes >= 0)].unique()]
            for size, _, cell in sorted((len(who[cell].unique()), k, cell) for k, cell in enumerate(cells)):
                if size < least or 0 < len(who[of_class & (codes < 0)].unique()) < least:
                    codes[cell] = -1
    return s
