"""Parts of the numbers that summarise a run: a number that is not defined is null."""

from typing import Any, TypedDict

Ends = list[float] | None  # of a 95 % interval over the test samples


class GroupRates(TypedDict):
    """How the global model treats one group, in percent.

    Attributes
    ----------
    n : test samples in the last of the rounds, null if fewer than so many people that a number must be about.
    accuracy : of the group.
    tpr, fpr, selection_rate, ppv, npv : of every class of `GroupFairness.classes`.
    of_class : how many samples are of each of these, null if too few.
    bias, calibration_error : of two classes, mean probability of the positive class less its share, in points; and the mean distance of both in
        ten bins of the probability.
    worst_recall, worst_class : the class that is recognised worst, and its recall.
    intervals : Wilson's, by the name of the rate, in percent; of rates by class a list.
    """

    n: int | None
    accuracy: float | None
    tpr: list[float | None]
    fpr: list[float | None]
    selection_rate: list[float | None]
    ppv: list[float | None]
    npv: list[float | None]
    of_class: list[int | None]
    bias: float | None
    calibration_error: float | None
    worst_recall: float | None
    worst_class: int | None
    intervals: dict[str, Ends | list[Ends]]


class GroupFairness(TypedDict):
    """How differently the global model treats the groups, in percent.

    Attributes
    ----------
    accuracy_gap, equal_opportunity, equalised_odds, demographic_parity, predictive_parity, worst_recall : see `equipoise.metrics.parity`.
    demographic_parity_ratio : the lowest selection rate in percent of the highest.
    negative_predictive_parity : as predictive parity, of those who are not chosen.
    calibration_gap, calibration_error_gap : of the bias and the calibration error of the groups.
    to_overall : of three rates the largest distance of a group to all groups together.
    of_class : in which class some of these are.
    classes : whose rates are given.
    groups : the rates of each.
    intervals : `[low, high]` of each difference, 95 % over the test samples.
    undefined : `[group, rate, class]` of rates about no sample, or too few.
    averaged : the rounds.
    """

    accuracy_gap: float | None
    equal_opportunity: float | None
    equalised_odds: float | None
    demographic_parity: float | None
    demographic_parity_ratio: float | None
    predictive_parity: float | None
    negative_predictive_parity: float | None
    calibration_gap: float | None
    calibration_error_gap: float | None
    worst_recall: float | None
    to_overall: dict[str, float | None]
    of_class: dict[str, int]
    classes: list[int]
    groups: dict[str, GroupRates]
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
    treated : `GroupFairness` by value; null where fewer than two values were tested. Of regression, in the unit of the target, `rmse_gap`,
        `mae_gap`, `error_gap` and `prediction_gap`, the largest less the smallest; their `intervals`, 95 % over the people who were tested; and
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

    Attributes
    ----------
    round : the last in which the clients were evaluated.
    clients : how many.
    tested : test samples of each, null if not known.
    range : `max` less `min`.
    noise : two standard errors of a difference of two clients, each tested on so many samples of its own; points.
    alone : what clients reach alone, in points: `noise`, the standard error of one client's; `range`, the best less the worst; of how many
        last `rounds` it is the mean, and `spread`, the mean standard deviation between these, null of one.
    fairness, spearman : 100 x the correlation of contribution and reward.
    fairness_mean, max_mean : over the last rounds.
    fairness_oracle, max_oracle : the best of all rounds, which picks the round by the test data.
    max, mean, min : over the clients.
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
    fairness: float | None
    spearman: float | None
    fairness_mean: float | None
    fairness_oracle: float | None
    max_mean: float | None
    max_oracle: float | None
    max: float | None
    mean: float | None
    min: float | None
    gain: dict[str, float | None]
    bcf: dict[str, Any]
    bytes: dict[str, float | None] | None
