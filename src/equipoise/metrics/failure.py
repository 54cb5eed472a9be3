"""Whether a trained model has learned anything: runs that have not are shown, and are never called fair."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from equipoise.metrics.classification import pairs_in_order
from equipoise.metrics.groups import Counts
from equipoise.metrics.measures import REGRESSION

Scores = Mapping[str, Mapping[str, Any]]  # by test set
HUGE: Final = 10  # times the loss of guessing: so large a loss is no longer that of a model in training
LEVEL: Final = 1.959963984540054  # of the normal distribution, two-sided 95 %


def diverged(scores: Scores, n_classes: int = 0, which: str = "test loss", guess: float = 0.0) -> str:
    """Why a model's loss is that of a training that diverged; empty if it is not.

    A loss is taken for that of a diverged training if it is not finite, or more than 10 times `ln C`, the loss of a model
    that finds all C classes equally likely, as a new one about does.

    Parameters
    ----------
    scores : of one round, by test set: `"loss"`, and if known `"n"`, its samples, and `"rates"`, counts per class.
    n_classes : C; if it is 0 and there are no counts, a finite loss is not judged.
    which : what the loss is.
    guess : the loss of a model that guesses, where it is not that of C classes; 0: not known.
    """
    tested = [score for score in scores.values() if "loss" in score]
    if not tested:
        return ""
    losses = [math.nan if score["loss"] is None else float(score["loss"]) for score in tested]
    loss = float(np.average(losses, weights=[float(score.get("n") or 1) for score in tested]))
    if not math.isfinite(loss):
        return f"its {which} is not a finite number"
    C = n_classes or max((len(counts["true"]) for counts in _counts(scores)), default=0)
    guess = guess or (math.log(C) if C > 1 else 0.0)
    if guess and loss > HUGE * guess:
        return f"its {which} is {loss:.3g}, and a model that guesses has {guess:.3g}"
    return ""


def guesses(rounds: Sequence[Scores]) -> str:
    """Why the model is no better than the class frequencies; empty if it decides or ranks better.

    It does not decide better if its accuracy over all test samples is within the 95 % interval of the share m of the most frequent class,
    or below: `accuracy <= m + 1.96 sqrt(m (1 - m) / n)`; and its mean recall over the C classes that there are is as little
    above the `1 / C` of a guess, with the standard deviation `sqrt(sum_c (1 / C) (1 - 1 / C) / n_c) / C`. It ranks no better if its
    AUC is within the 95 % interval of a guess, or below, see :func:`ranks`.

    Parameters
    ----------
    rounds : the scores of some rounds, each by test set, with the counts per class under `"rates"`, and `"ranks"`, without which decisions
        alone are judged; rounds without counts are left out.
    """
    every = [counts for scores in rounds for counts in _counts(scores)]
    if not every:
        return ""
    right, true, chosen = (np.sum([counts[key] for counts in every], axis=0) for key in ("right", "true", "chosen"))
    present, total = true > 0, true.sum()
    n = total / sum(bool(_counts(scores)) for scores in rounds)  # the rounds repeat the same samples
    most, accuracy = float(true.max() / total), float(right.sum() / total)
    recall = float((right[present] / true[present]).mean())
    C = int(present.sum())
    # of the recall of guesses
    deviation = math.sqrt((1 / C) * (1 - 1 / C) * float((total / n / true[present]).sum())) / C
    if C < 2 or accuracy > most + LEVEL * math.sqrt(most * (1 - most) / n) or recall > 1 / C + LEVEL * deviation:
        return ""
    ranked = [each for scores in rounds if (each := usefulness([*scores.values()]).get("ranks"))]
    weight, excess = np.mean(ranked, axis=0).T if ranked else (np.zeros(1), np.zeros(1))
    if excess.sum() > LEVEL * np.sqrt(weight / 12).sum():
        return ""
    above = f", which {round(n):,} samples cannot distinguish (95\u00a0% interval)" * (accuracy > most)
    share = float(chosen.max() / max(1, chosen.sum()))
    beside = f"its accuracy is {100 * accuracy:.2f}\u00a0%, and always answering with the most frequent class gives {100 * most:.2f}\u00a0%{above}"
    if weight.any():
        more = excess.sum() / weight.sum()
        chance = "within the 95\u00a0% interval" if more > 0 else "no more than that"
        beside += f"; its AUC is {100 * max(0.0, 0.5 + more):.1f}\u00a0%, {chance} of a guess"
    if share == 1:
        return f"it predicts one class for every sample; {beside}"
    return f"it predicts one class for {100 * share:.1f}\u00a0% of the samples; {beside}" if share > 0.9 else beside


def ranks(p: ArrayLike, y: ArrayLike) -> list[list[float]]:
    r"""By class `w = m n / (m + n + 1)` of its m samples and the n others, and w (A - 1/2), A the area under the ROC curve of its probability.

    A guess has the mean 0 and the variance w / 12 of the second number (Mann and Whitney 1947), so A is beyond chance if 1/2 is not in
    its interval of Newcombe, method 5. The sums over data sets are those of van Elteren's test (1960). The areas of all classes together are
    beyond chance if :math:`\sum_c w_c (A_c - 1/2) > 1.96 \sum_c \sqrt{w_c / 12}`: they depend on each other.

    Parameters
    ----------
    p, y : probabilities [n, C], and classes [n].
    """
    scores, labels = np.asarray(p, dtype=np.float64), np.asarray(y)
    sums = []
    for c, column in enumerate(scores.T):
        m, n = int((labels == c).sum()), int((labels != c).sum())
        above = pairs_in_order(column, labels == c)  # m n A
        sums.append([round(m * n / (m + n + 1), 6), round((above - m * n / 2) / (m + n + 1), 6)])
    return sums


def usefulness(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the scores on several data sets hold together of whether a model is of use: `ranks` and `useless`, as far as any has them."""
    every, why = [score["ranks"] for score in scores if score.get("ranks")], useless([dict(enumerate(scores))])
    sums = {"ranks": np.sum(every, axis=0).tolist()} if every else {}
    return sums if why is None else {**sums, "useless": why}


def useless(rounds: Sequence[Mapping[Any, Mapping[str, Any]]]) -> str | None:
    """Why a model is of no use on all test sets, by the test of its task, see `equipoise.core.task.Task.useless`; empty if it is of use, None if not tested."""
    reasons = [str(score["useless"]) for scores in rounds for score in scores.values() if "useless" in score]
    return None if not reasons else "" if "" in reasons else reasons[-1]


def no_better(rounds: Sequence[Scores], counted: Sequence[Scores]) -> str:
    """Why a model is no better than a guess: by the test of its task, else by :func:`guesses` or :func:`guesses_mean`; empty if it is better.

    Parameters
    ----------
    rounds : the scores of some rounds, each by test set.
    counted : those with the counts per class by which decisions are judged.
    """
    why = useless(rounds)
    return guesses(counted) or guesses_mean(rounds) if why is None else why


def guesses_mean(rounds: Sequence[Scores]) -> str:
    """Why a model that predicts numbers knows no more than the mean of each test set; empty if it knows more.

    It does not if its squared errors are not smaller than those of that mean: `1 - sum_d n_d RMSE_d^2 / sum_d n_d RMSE_d^2 / (1 - R2_d) <= 0`.

    Parameters
    ----------
    rounds : the scores of some rounds, each by test set, with `"rmse"`, `"r2"` and `"n"`; those without are left out.
    """
    scores = chain.from_iterable(groups.values() for groups in rounds)
    every = [score for score in scores if score.get("rmse") is not None and score.get("r2") is not None]
    if not every or any(score["r2"] >= 1 for score in every):
        return ""
    n = [float(score.get("n") or 1) for score in every]
    error, spread = (
        math.sqrt(np.average([score["rmse"] ** 2 / (1 - share * score["r2"]) for score in every], weights=n))
        for share in (0, 1)
    )
    if not error >= spread:
        return ""
    digits = REGRESSION[0].sized(error, spread).digits
    return (
        f"its RMSE is {error:.{digits}f}, and always answering with the mean of each test set gives {spread:.{digits}f}"
    )


def _counts(scores: Scores) -> list[Counts]:
    return [score["rates"] for score in scores.values() if isinstance(score.get("rates"), Mapping)]
