"""Who did what in the rounds of a simulation in which clients come and go."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

ATTENDANCE = ("trained", "late", "dropped", "absent", "not selected")  # what a client can do in a round


def attendance(records: Sequence[Mapping[str, Any]], n: int) -> NDArray[np.int8] | None:
    """What each of ``n`` clients did in every round, `[rounds, n]`: its place in `ATTENDANCE`; None where all are always there.

    A client whose update was refused counts as not selected.
    """
    records = [record for record in records if "absent" in record]
    table = np.full((len(records), n), len(ATTENDANCE) - 1, np.int8)
    for row, record in zip(table, records, strict=True):
        for place, key in enumerate(("ids", "late", "dropped", "absent")):
            row[record[key]] = place
    return table if records else None
