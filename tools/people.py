"""Fill a table of docs/fair-to-people.md in: rules for groups of people, and bounds from pooled rows by scikit-learn and fairlearn.

equipoise compare fedavg fairgrad ... --scenario adult --seeds 5 --name workclass    # the page has the whole command
python tools/people.py runs/workclass                                                # 10 minutes

The directory is a comparison, whose first method is what the others are compared with, and its name that of the marks on the page.
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from claims import filled
from fairlearn.postprocessing import ThresholdOptimizer
from fairlearn.reductions import ExponentiatedGradient, TruePositiveRateParity
from scipy import stats
from sklearn.linear_model import LogisticRegression

import equipoise as eq
from equipoise.metrics.groups import class_counts, positive_class
from equipoise.records import treatment
from equipoise.records.directory import members
from equipoise.runs import directory, unchanged

PAGE = Path(__file__).parents[1] / "docs" / "fair-to-people.md"
model = partial(LogisticRegression, solver="newton-cholesky")
THRESHOLDS = {"EO": "true_positive_rate_parity", "EOdds": "equalized_odds", "DP": "demographic_parity"}
GAPS = ("equal_opportunity", "demographic_parity", "equalised_odds")
HEAD = ("method", "accuracy", "EO", "p", "worse for", "DP", "EOdds", "in a client EO/DP")


class Score(NamedTuple):
    """What one model does to the test people, in percent and points; a gap in a site is the largest of all sites that have one."""

    accuracy: float
    eo: float
    dp: float
    eodds: float
    site_eo: float
    site_dp: float
    worse_for: str

    @classmethod
    def of(cls, treated: Mapping[str, Any], sites: Mapping[str, Any]) -> "Score":
        """Of what a report has of one attribute."""
        groups = treated["groups"]
        rates = {name: rate for name, group in groups.items() if (rate := group["tpr"][0]) is not None}
        sizes = [group["n"] for group in groups.values()]
        largest = {
            key: max((site["gaps"][key] for site in sites.values() if site["gaps"][key] is not None), default=np.nan)
            for key in GAPS[:2]
        }
        return cls(  # type: ignore[call-arg]  # the starred ones are as many as fields
            float(np.average([group["accuracy"] for group in groups.values()], weights=sizes)),
            *(np.nan if (gap := treated[key]) is None else gap for key in GAPS),
            largest["equal_opportunity"],
            largest["demographic_parity"],
            min(rates, key=rates.__getitem__) if len(rates) > 1 else "–",
        )


def federated(base: Path, attribute: str) -> dict[str, dict[int, Score]]:
    """By method and seed the last model of every finished run of a comparison, in its order."""
    scores: dict[str, dict[int, Score]] = {}
    for path in filter(directory.finished, members(base)):
        history = eq.History.from_run(path)
        people = history.people(last=1)[attribute]
        scores.setdefault(f"`{history.label}`", {})[history.seed] = Score.of(people["treated"], people["sites"])
    return scores


def pooled(made: eq.Scenario, attribute: str, seed: int) -> Iterator[tuple[str, Any]]:
    """A name and the predicted classes of all test rows, for each bound: trained on the training rows of all clients."""
    column = [*made.attributes].index(attribute)
    x, y, s = (np.concatenate([data[k] for data in made.clients]) for k in range(3))
    x = x.astype(np.float64)  # fairlearn puts probabilities of float64 among those of the model
    held = np.concatenate([data[0] for data in made.tests.values()]).astype(np.float64)
    groups, held_groups = s[:, column], np.concatenate([data[2] for data in made.tests.values()])[:, column]
    plain = model().fit(x, y)
    yield "no rule", plain.predict(held)
    cells = 2 * groups + y
    shares = [np.mean(cells == cell) for cell in range(4)]
    expected = [np.mean(y == cell % 2) * np.mean(groups == cell // 2) for cell in range(4)]
    weights = np.divide(expected, shares)[cells]
    yield "reweighing", model().fit(x, y, sample_weight=weights).predict(held)
    for name, constraint in THRESHOLDS.items():
        thresholds = ThresholdOptimizer(
            estimator=plain, constraints=constraint, prefit=True, predict_method="predict_proba"
        ).fit(x, y, sensitive_features=groups)
        yield (
            f"ThresholdOptimizer, {name}",
            thresholds.predict(held, sensitive_features=held_groups, random_state=seed),
        )
    reduction = ExponentiatedGradient(model(), TruePositiveRateParity(difference_bound=0.01), max_iter=25).fit(
        x, y, sensitive_features=groups
    )
    yield "ExponentiatedGradient, EO", reduction.predict(held, random_state=seed)


def measured(made: eq.Scenario, attribute: str, predicted: Any) -> Score:
    """The score of the predicted classes of all test rows, one test set after the other."""
    column, values = [*made.attributes].index(attribute), made.attributes[attribute]
    ends = np.cumsum([len(data[1]) for data in made.tests.values()])[:-1]
    by_site = {
        site: {
            value: {key: np.array(counts) for key, counts in class_counts(data[1][mine], guesses[mine], 2).items()}
            for code, value in enumerate(values)
            if (mine := np.asarray(data[2][:, column] == code)).any()
        }
        for (site, data), guesses in zip(made.tests.items(), np.split(np.asarray(predicted), ends), strict=True)
    }
    groups = {
        value: {
            key: sum(by[value][key] for by in by_site.values() if value in by).tolist()
            for key in ("right", "true", "chosen")
        }
        for value in values
    }
    treated = treatment.rates([(0, groups)], 1)
    positive = positive_class(made.positive, made.classes)
    by_site = {site: [counts] for site, counts in by_site.items()}
    return Score.of(treated, treatment.sites(by_site, 1, positive and positive.number, treatment.Division(least=10)))


def row(name: str, mine: Mapping[int, Score], reference: Mapping[int, Score]) -> str:
    """The line of a method: means over seeds with their standard deviation, and whether the EO gap is below half of the reference's."""

    def shown(key: str, digits: int = 1, spread: bool = True) -> str:
        values = [getattr(score, key) for score in mine.values()]
        deviation = f" ±{np.std(values, ddof=1):.1f}" if len(values) > 1 and spread else ""
        return "–" if np.isnan(values).any() else f"{np.mean(values):.{digits}f}{deviation}"

    less = [mine[k].eo - reference[k].eo / 2 for k in mine]
    p = stats.ttest_1samp(less, 0, alternative="less").pvalue if len(less) > 1 and np.mean(less) < 0 else 1
    worse = {score.worse_for for score in mine.values()}
    cells = (
        name,
        shown("accuracy"),
        shown("eo"),
        "" if p > 0.5 else f"{p:.3f}" if p >= 0.001 else "< 0.001",
        worse.pop() if len(worse) == 1 else "varies",
        shown("dp"),
        shown("eodds", spread=False),
        f"{shown('site_eo', 0, spread=False)}/{shown('site_dp', 0, spread=False)}",
    )
    return f"| {' | '.join(cells)} |"


def table(scores: Mapping[str, Mapping[int, Score]]) -> Iterator[str]:
    """The table, of the seeds that all have; the first method is the reference."""
    seeds = sorted(set.intersection(*({*mine} for mine in scores.values())))
    common = {name: {seed: mine[seed] for seed in seeds} for name, mine in scores.items()}
    yield f"| {' | '.join(HEAD)} |"
    yield "|---|---:|---:|---:|---|---:|---:|---:|"
    reference = next(iter(common.values()))
    yield from (row(name, mine, reference) for name, mine in common.items())
    yield from ("", f"Seeds: {', '.join(map(str, seeds))}.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="the directory of a comparison")
    parser.add_argument("--attribute", default="sex", help="the sensitive attribute; two values for the bounds")
    parser.add_argument("--no-bounds", dest="bounds", action="store_false", help="without the bounds from pooled rows")
    parser.add_argument("--page", type=Path, default=PAGE, help="a page with marks of the directory's name")
    given = parser.parse_args(arguments)
    scores = federated(given.runs, given.attribute)
    reference = next(iter(scores))
    for path in filter(directory.finished, members(given.runs)) if given.bounds else ():
        if f"`{(config := directory.load(path)).label}`" == reference:
            with warnings.catch_warnings():  # fairlearn's, of pandas
                warnings.simplefilter("ignore")
                made = unchanged.data_of(config)
                for name, predicted in pooled(made, given.attribute, config.seed):
                    bound = measured(made, given.attribute, predicted)
                    scores.setdefault(f"pooled: {name}", {})[config.seed] = bound
    text = given.page.read_text(encoding="utf-8")
    given.page.write_text(filled(text, given.runs.name, [*table(scores)]), encoding="utf-8")


if __name__ == "__main__":
    main()
