r"""What the noise of :class:`~equipoise.methods.dp.DP` is worth: epsilon and delta.

What is protected is **all data of one client**, from a server that sees every single answer and from whoever sees less. The
answers of a client are (epsilon, delta)-indistinguishable from those it would give if

===========  ========================================================================  ==========================
relation     its data were                                                             one answer changes by
===========  ========================================================================  ==========================
"replace"    any other data of as many samples                                         2 C, so mu = 2 sqrt(T) / z
"zero-out"   such that its update is zero before the noise (as if they were none)      C, so mu = sqrt(T) / z
===========  ========================================================================  ==========================

T is the number of rounds in which that client answered; who does not answer spends nothing. T answers with Gaussian noise
are worth one with noise z / sqrt(T), exactly (Dong, Roth, Su, JRSS B 2022, Corollary 3.3):

.. math:: \delta(\epsilon) = \Phi\Big(-\frac{\epsilon}{\mu} + \frac{\mu}{2}\Big)
    - e^\epsilon\, \Phi\Big(-\frac{\epsilon}{\mu} - \frac{\mu}{2}\Big)

Nothing is gained here from clients being drawn at random, as the server knows whom it asked. The numbers are those of
Google's ``dp-accounting``, which the extra ``privacy`` installs.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from equipoise.system.ranges import check_number

Relation = Literal["replace", "zero-out"]
SENSITIVITY: Mapping[Relation, float] = {"replace": 2.0, "zero-out": 1.0}  # how far one answer moves, in lengths C


def spent(noise: float, answers: int, delta: float, relation: Relation = "replace") -> float:
    """The epsilon that a client has spent, inf without noise.

    Parameters
    ----------
    noise : z >= 0 of the rule.
    answers : rounds T in which the client answered, >= 0.
    delta : in (0, 1); well below one over the number of clients.
    relation : what the client's data are compared with, see above.

    Raises
    ------
    ValueError : a value out of its range, or dp-accounting is not installed.
    """
    check_number("noise", noise, 0)
    check_number("answers", answers, 0)
    check_number("delta", delta, 0, 1, above=True, below=True)
    if noise == 0 or answers == 0:
        return math.inf if answers else 0.0
    mu = SENSITIVITY[relation] * math.sqrt(answers) / noise
    loss = _accountant("privacy_loss_mechanism").GaussianPrivacyLoss(1 / mu)
    if loss.get_delta_for_epsilon(0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq

    most = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))  # the tail of the privacy loss, N(mu^2 / 2, mu^2)
    return float(brentq(lambda e: loss.get_delta_for_epsilon(e) - delta, 0.0, most, xtol=1e-12 * most))


def noise_for(epsilon: float, answers: int, delta: float, relation: Relation = "replace") -> float:
    """The least noise z, to six digits, with which ``answers`` answers spend no more than ``epsilon`` > 0; see :func:`spent`.

    Raises
    ------
    ValueError : as :func:`spent`.
    """
    check_number("epsilon", epsilon, 0, above=True, below=True)
    check_number("answers", answers, 0)
    check_number("delta", delta, 0, 1, above=True, below=True)
    if answers == 0:
        return 0.0
    wanted = _accountant("common").DifferentialPrivacyParameters(epsilon, delta)
    one = _accountant("privacy_loss_mechanism").GaussianPrivacyLoss.from_privacy_guarantee(wanted)
    return float(one.standard_deviation) * SENSITIVITY[relation] * math.sqrt(answers)


def answers(records: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """How often each client answered, by number, from the records of a run; quarantined answers count."""
    counts: Counter[int] = Counter()
    for record in records:
        counts.update({*record["ids"], *(q["client"] for q in record.get("quarantined", []))})
    return counts


def _accountant(module: str) -> Any:
    """A module of dp-accounting, which is large and without types: imported when needed."""
    try:
        return importlib.import_module(f"dp_accounting.pld.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "dp_accounting":
            raise
        raise ValueError(
            "The privacy accountant is not installed. Install it: pip install 'equipoise[privacy]'."
        ) from None
