"""Parts of the numbers that summarise a run: a number that is not defined is null."""

from typing import Any, TypedDict

Ends = list[float] | None  # of a 95 % interval over the test samples


class GroupFairness(TypedDict):
    """How differently the global model treats the groups, in percent: next to these the gaps of `equipoise.metrics.definitions.PARITY` by key.

    `negative_predictive_parity` is as predictive parity, of those who are not chosen.

    Attributes
    ----------
    to_overall : of three rates the largest distance of a group to all groups together.
    of_class : in which class some of these are.
    classes : whose rates are given.
    groups : of each, in percent:
        `n`, test samples in the last of the rounds, null if fewer than so many people that a number must be about;
        `of_class`, how many are of each class of `classes`, null if too few;
        `accuracy`; and lists by class, `tpr`, `fpr`, `selection_rate`, `ppv` and `npv`;
        of two classes `bias`, the mean probability of the positive class less its share, in points, and `calibration_error`, the mean
        distance of both in ten bins of the probability;
        `worst_recall` and `worst_class`, the class that is recognised worst, and its recall;
        `intervals`, Wilson's, by the name of the rate; of rates by class a list.
    intervals : `[low, high]` of each difference, 95 % over the test samples.
    undefined : `[group, rate, class]` of rates about no sample, or too few.
    averaged : the rounds.
    """

    to_overall: dict[str, float | None]
    of_class: dict[str, int]
    classes: list[int]
    groups: dict[str, dict[str, Any]]
    intervals: dict[str, Ends]
    undefined: list[list[str | int]]
    averaged: list[int]


class Site(TypedDict):
    """How people are treated inside one site, in percent; of regression in the unit of the target.

    Attributes
    ----------
    groups : by value `n`, test samples; `of_class`, those of the positive class; and the rates `selection_rate` and `tpr`, or of regression
        `mae` and `error`; null if too few.
    gaps : demographic parity and equal opportunity, or of MAE and mean error, between the values with 30 people or more; null of fewer than two.
    intervals : of these, 95 % for all sites together (Bonferroni).
    """

    groups: dict[str, dict[str, float | None]]
    gaps: dict[str, float | None]
    intervals: dict[str, Ends]


class People(TypedDict):
    """How a model treats people with each value of a sensitive attribute, all test sets together: a sample in several counts in each.

    Without a global model it is the mean over the models of the clients, each on its own test set or that of its group.

    Attributes
    ----------
    treated : `GroupFairness` by value; null where fewer than two values were tested. Of regression, in the unit of the target, the gaps of
        `equipoise.metrics.definitions.ERRORS`, the largest less the smallest; their `intervals`, 95 % over the people who were tested; and
        `groups`, of each `n`, test samples, `rmse`, `mae`, `error`, the mean of predicted less true, and `prediction`, null if too few.
    unknown : test samples of which the value is not known, as of all of a test set without attributes; they are in no value. Null if too few.
    as_groups : whether each test set has the people with one value, and all of these.
    clients : of the model that each client predicts with, by value `n`, test samples, and `main`, the main measure, null if too few; null of
        a client that was not tested, and empty where clients share test sets and a model.
    sites : by name, of every client with its own model or test set, else of every test set; empty without a positive class.
    averaged : the rounds.
    """

    treated: GroupFairness | dict[str, Any] | None
    unknown: int | None
    as_groups: bool
    clients: list[dict[str, dict[str, float | None]] | None]
    sites: dict[str, Site]
    averaged: list[int]


class Collaboration(TypedDict):
    """What clients get for what they contribute, in percent.

    Next to these are the numbers of `equipoise.metrics.definitions.COLLABORATION` by key, except those in `gain`, `bcf` and `bytes`.
    `fairness` and `spearman` are of the last round, `fairness_mean` is over the last rounds, and `fairness_oracle` the best of all rounds,
    which picks the round by the test data.

    Attributes
    ----------
    round : the last in which the clients were evaluated.
    clients : how many.
    tested : test samples of each, null if not known.
    range : `max` less `min`.
    noise : two standard errors of a difference of two clients, each tested on so many samples of its own; points.
    alone : what clients reach alone, in points: `noise`, the standard error of one client's; `range`, the best less the worst; of how many
        last `rounds` it is the mean, and `spread`, the mean standard deviation between these, null of one.
    max_mean, max_oracle : the highest reward over the last rounds, and the best of all rounds.
    gain : over what each reaches alone: `mean`, `std` (ddof 0), and how many are `worse_off`.
    bcf : bounded collaborative fairness: `rate`, percent of the clients within their bounds, whether it is `satisfied` by all, who violates a
        bound (`lower_violations`, `upper_violations`, `literal_upper_violations`), and the worst margins (`lower_margin`, `upper_margin`).
    bytes : `down` and `up`, the mean over clients and rounds, and `full`, of the whole model; null where not recorded.
    """

    round: int
    clients: int
    tested: int | None
    range: float | None
    noise: float | None
    alone: dict[str, float | None]
    max_mean: float | None
    max_oracle: float | None
    gain: dict[str, float | None]
    bcf: dict[str, Any]
    bytes: dict[str, float | None] | None
