"""What a run was: the form of a history's meta data."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, TypedDict

from equipoise.records.threshold import Chosen
from equipoise.system.text import Said

Content = dict[str, Any]  # of a file of JSON or TOML, as it was read


class Sharing(StrEnum):
    """What the clients of a run share; records have the bound of federated learning that it makes the run, if it makes it one."""

    MODELS = ""
    NOTHING = "lower"
    DATA = "upper"

    @property
    def federated(self) -> bool:
        """Whether it is federated learning, and no bound of it."""
        return self is Sharing.MODELS

    @property
    def global_model(self) -> bool:
        """Whether there is one model of all."""
        return self is not Sharing.NOTHING

    @property
    def clients(self) -> bool:
        """Whether there are clients that could be away, weigh, send or lose something: data in one place have none."""
        return self is not Sharing.DATA


class About(TypedDict, total=False):
    """The table ``[report]`` of a run's settings: what the model is called, what it is for, who made it, and whom to ask."""

    title: str
    purpose: str
    author: str
    contact: str


class Contribution(TypedDict, total=False):
    """What each client reaches alone.

    Attributes
    ----------
    standalone_test, standalone_val : accuracy [N] on the test set, and on the server's validation data; null where not measured.
    given : each client's contribution as given by the user.
    used : what the method used: `"standalone_val"`, `"standalone_test"` or `"given"`.
    rounds : of the training alone; null of what was given.
    seconds : that it took.
    averaged : over how many of its last rounds the accuracies are the mean, where it is more than one.
    spread : [N], the standard deviation between these rounds.
    """

    standalone_test: Sequence[float | None] | None
    standalone_val: Sequence[float | None] | None
    given: Sequence[float]
    used: str | None
    rounds: int | None
    seconds: float
    averaged: int
    spread: Sequence[float]


class Tuned(TypedDict, total=False):
    """How the settings of a run were chosen, before any test data were built.

    Attributes
    ----------
    by : the criterion, see `equipoise.records.criteria`.
    draws : settings that were tried, the defaults with them; the same number for every method that was chosen with it.
    useless : how many of them diverged or guess.
    settings : those that were chosen, by name; empty if they are the defaults.
    defaults : the values of the defaults, by the names of all settings that were searched.
    score, default : the criterion of the chosen settings and of the defaults, as it is shown; missing if not defined.
    edges : settings whose chosen value is close to an end of the interval in which it was searched, and which end.
    seeds : of the runs that chose.
    validation : share of each client's training samples by which was chosen.
    rounds : of a whole run.
    runs, trained : runs that chose, and their rounds.
    seconds : of training, of all trial runs of this method together.
    chosen : hash of the file with the choices.
    code : what tells the user's code that was tuned from other code of that name; empty without any.
    changed : settings that the run has otherwise than those that were chosen, or that chose.
    """

    by: str
    draws: int
    useless: int
    settings: Content
    defaults: Content
    score: float
    default: float
    edges: dict[str, str]
    seeds: list[int]
    validation: float
    rounds: int
    runs: int
    trained: int
    seconds: float
    chosen: str
    code: str
    changed: list[str]


TOGETHER: Final = Said(
    "Some people have several rows. Every number n of test samples is of people, and intervals take the rows of a person together.",
    "rows of people together",
)
REPEATED: Final = Said(
    "Some people have several rows, and intervals take rows as independent: they are too narrow, and chance explains more.",
    "rows of people",
)
OF_DATA: Final = "data: "  # begins such a line about a note on the data
LEAK: Final = "leak"  # key of the note that columns give the label away


class Meta(TypedDict, total=False):
    """What a run was; only `method` is always there.

    Attributes
    ----------
    method, scenario, seed : what ran.
    label : what reports call the run; the method by default.
    first : hash of the first model.
    rounds : how many were planned.
    select : which round's model is exported, `"last"` or `"best-validation"`.
    client_names, client_groups : [N], a name of each client, and the group it belongs to.
    measures : what was to be recorded.
    classes : their names.
    in_force : the hyper-parameters of the method, in words, and whether that is not its published form; empty if it has none.
    printed : the method as tables of papers have it.
    decides : by which attribute the method decides, empty if by none; absent where the more probable class is predicted.
    positive : the name of the class that rates are about, where it was said.
    attributes : by the name of each sensitive attribute the names of its values, in the order of their codes; absent where samples have none.
    task, unit : `"regression"`, absent for classification; and the unit of its target, empty where not known.
    least_group : how many people a number must be about.
    client_tests, personal : whether clients have test sets of their own, and whether they predict with models of their own.
    bound : `"lower"` of clients that train alone, `"upper"` of data in one place; empty of a method of federated learning.
    contents : hashes of what was read from the user's files.
    contribution : `{"standalone_test": [N], "used": ...}`, what each client reaches alone, see `Contribution`.
    units : `{"names": [...], "sizes": [...]}`, the groups of hidden units.
    holdings : the data of each client, see `equipoise.data.holdings`.
    hostile : `{"attack", "scale", "clients": [ids]}`, who attacks in a simulation, how, and how strongly.
    header, header_keys : lines about the run, and by which key a report finds each; empty of most.
    versions, git : `{package: version}`, and the commit of the source.
    machines : what computed the rounds from `"round"` on.
    unfinished, without_model : how often a server stopped in a round; names of sites that were away at the end of their run.
    untrained : names of clients that were in no round, where not all records are there.
    data : about the samples, with their `"sha256"`, and `"rows"`, a hash of which went where.
    config : the run's configuration.
    threshold : that was chosen, if any, see `equipoise.records.threshold.Chosen`.
    tuned : how the settings were chosen, if they were, see `Tuned`.
    small_groups : of runs that are compared: test sets that are too small in one of them.
    """

    method: str
    label: str
    first: str
    scenario: str
    seed: int
    rounds: int
    select: str
    client_names: list[str]
    client_groups: list[str] | None
    measures: list[str]
    classes: list[str]
    in_force: str
    printed: str
    decides: str
    positive: str | None
    attributes: dict[str, list[str]]
    task: str
    unit: str
    tuned: Tuned
    least_group: int
    client_tests: bool
    personal: bool
    bound: str
    contents: Content
    contribution: Contribution
    units: Content
    holdings: Content
    hostile: Content
    header: list[str]
    header_keys: list[str]
    versions: dict[str, str]
    machines: list[Content]
    unfinished: int
    without_model: list[str]
    untrained: list[str]
    git: str | None
    data: Content
    config: Content
    threshold: Chosen
    small_groups: list[str]
