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
are worth one with noise z / sqrt(T), exactly, and for answers with several noises mu^2 adds up (Dong, Roth, Su, JRSS B 2022,
Corollary 3.3):

.. math:: \delta(\epsilon) = \Phi\Big(-\frac{\epsilon}{\mu} + \frac{\mu}{2}\Big)
    - e^\epsilon\, \Phi\Big(-\frac{\epsilon}{\mu} - \frac{\mu}{2}\Big)

Nothing is gained here from clients being drawn at random, as the server knows whom it asked. The numbers are those of
Google's ``dp-accounting``, which the extra ``privacy`` installs.
"""

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from equipoise.system.errors import ABSENT, REFUSED, refusal
from equipoise.system.files import locked, make_private, read_regular, write_atomically
from equipoise.system.ranges import check_number
from equipoise.system.seals import open_json, sealed_json

Relation = Literal["replace", "zero-out"]
SENSITIVITY: Mapping[Relation, float] = {"replace": 2.0, "zero-out": 1.0}  # how far one answer moves, in lengths C
SILENT = (ABSENT, REFUSED)  # keys of the reasons of clients that have certainly sent nothing
_WORDS = ("is not connected", "refuses")  # begin them in records of versions without keys
ACCOUNT = "account.json"  # in a site's state directory


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
    loss = _accountant("privacy_loss_mechanism").GaussianPrivacyLoss.from_privacy_guarantee(wanted)
    return float(loss.standard_deviation) * SENSITIVITY[relation] * math.sqrt(answers)


def answers(records: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """How often each client may have answered, by number, from the records of a run.

    An answer counts that was not used, or of which is not known whether it was sent; not that of a client that was not there or refused.
    """
    counts: Counter[int] = Counter()
    for record in records:
        left_out = [q for q in record.get("quarantined", []) if not _silent(q)]
        counts.update({*record["ids"], *(q["client"] for q in left_out)})
    return counts


def _silent(lost: Mapping[str, Any]) -> bool:
    """Whether a client that was left out has certainly sent nothing."""
    return lost["key"] in SILENT if "key" in lost else lost["reason"].startswith(_WORDS)


def together(answers: Mapping[float, int], delta: float, relation: Relation = "replace") -> float:
    """The epsilon of answers with several noises: ``answers`` has how many, by their noise z > 0; see :func:`spent`."""
    inverse = math.hypot(*(math.sqrt(n) / z for z, n in answers.items()))  # of the noise of one answer worth as much
    return spent(1 / inverse, 1, delta, relation) if inverse else 0.0


def account(path: Path) -> dict[float, int]:
    """How many answers a site has given with each noise z, in whatever run, by its account in a file; none where there is no file.

    Raises
    ------
    ValueError : the file is damaged.
    """
    try:
        text = read_regular(path).decode()
        fields = open_json(text) if text.startswith('{\n "seal"') else {}
        return {float(z): int(n) for z, n in fields["answers"]}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"The account of privacy, {path.name} in state-dir, is damaged. Put a copy back.") from None


def spend(node_config: Mapping[str, Any], noise: float, new: int = 1) -> bool:
    """Add ``new`` answers with noise z to a site's account, on the disk before this returns; False if the site has no budget.

    Its node config has the budget, ``max-epsilon`` > 0 for "replace" with ``delta`` in (0, 1), and the directory, ``state-dir``.

    Raises
    ------
    SiteError : they would cost more than the budget, or it cannot be told what they cost. Nothing is added.
    OSError : the account cannot be written.
    """
    most, delta, place = node_config.get("max-epsilon"), node_config.get("delta", 1e-5), node_config.get("state-dir")
    if most is None:
        return False
    try:
        check_number("max-epsilon", most, 0, above=True, below=True)
        check_number("delta", delta, 0, 1, above=True, below=True)
    except ValueError as error:
        raise refusal(str(error), "its privacy budget cannot be used; its own log says more") from None
    try:
        if math.isinf(spent(noise, 1, delta)) or not place:
            raise ValueError("max-epsilon needs noise of its own (dp, with noise > 0) and state-dir in its node-config")
        path = Path(str(place)).expanduser() / ACCOUNT
        make_private(path.parent)
        with locked(path.with_suffix(".lock"), wait=True, private=True):
            answers = account(path)
            answers[float(noise)] = answers.get(noise, 0) + new
            if new and together(answers, delta) > most * (1 + 1e-9):  # the last digits are those of rounding
                raise ValueError("its privacy budget is spent")
            if new:
                write_atomically(path, sealed_json({"answers": list(answers.items())}), private=True)
    except ValueError as error:
        raise refusal(str(error).removesuffix(".")) from None
    return True


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
