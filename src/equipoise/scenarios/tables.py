"""Two real tables that come with the package: heart disease in four hospitals, and the incomes of adults.

Both are of the UCI Machine Learning Repository, CC BY 4.0: Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano 1988), and Adult
(Becker, Kohavi 1996). Their data cards are in docs/data-cards.md. They are coded as tables of your own are, by a schema.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from itertools import cycle
from typing import Any

import numpy as np

from equipoise.data.samples import NOTHING, Draw
from equipoise.data.tables.cells import RawTable, raw_of, read_cells, word_of
from equipoise.data.tables.columns import Column, UserData
from equipoise.data.tables.schema import CATEGORY, Feature, Schema
from equipoise.metrics.classification import RATES, chosen
from equipoise.scenarios import own, partition
from equipoise.scenarios.scenario import Described, Description, Protocol, Scenario, choose
from equipoise.system.ranges import check_number, check_whole
from equipoise.system.suggestions import require_known

VERSION = 1  # raise it whenever a byte or a part changes
LICENCE = "CC BY 4.0"
PEOPLE = 45_222  # in Adult
LEAST = 10  # people of a client of a Dirichlet draw
Given = Mapping[str, Any]  # options by name


@dataclass(frozen=True, eq=False)
class Table:
    """What a table of the package is.

    Parameters
    ----------
    file : in this package.
    source : who made it, and where it was published.
    label : of every row the class, of its cells; in the order of ``classes``.
    attributes : by the column of each sensitive attribute what its values are called, where that is not what the file has.
    width : inputs that a row becomes.
    """

    name: str
    summary: str
    file: str
    source: str
    schema: Schema
    label: Callable[[Any], Column]
    classes: tuple[str, str]
    predicts: str
    attributes: Mapping[str, Mapping[str, str]]
    network: Mapping[str, Any]
    protocol: Protocol
    width: int


def _coded(name: str, categories: str, missing: str = "own") -> Feature:
    return Feature(name, CATEGORY, missing=missing, categories=tuple(categories.split(" ")))


HEART = Table(
    name="heart",
    summary="Heart disease: four hospitals, which are the clients and the test sets; 920 people, sex an attribute.",
    file="heart.csv",
    source="UCI Heart Disease: A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano 1988, doi:10.24432/C52P4X",
    schema=Schema(
        (
            Feature("age"),
            _coded("sex", "0 1"),
            _coded("cp", "1 2 3 4"),
            Feature("trestbps", low=1),
            Feature("chol", low=1),
            _coded("fbs", "0 1"),
            _coded("restecg", "0 1 2", "most-frequent"),  # is missing in two rows
            Feature("thalach"),
            _coded("exang", "0 1"),
            Feature("oldpeak"),
            _coded("slope", "1 2 3"),
            Feature("ca"),
            _coded("thal", "3 6 7"),
        ),
        {"site": "the client"},
    ),
    label=lambda frame: tuple((frame["num"] > 0).astype(int).astype(str)),
    classes=("no disease", "disease"),
    predicts="whether a coronary artery is narrowed by more than half",
    attributes={"sex": {"0": "female", "1": "male"}},
    network={"hidden": [16]},
    protocol=Protocol(rounds=40, epochs=1, batch_size=16, lr=0.02, momentum=0.9, weight_decay=1e-3),
    width=33,
)
ADULT = Table(
    name="adult",
    summary="Incomes of 45,222 adults, above $50,000 or not: clients by work or any column; sex and race are attributes.",
    file="adult.csv.xz",
    source="UCI Adult: B. Becker, R. Kohavi 1996, doi:10.24432/C5XW20",
    schema=Schema(
        (
            Feature("age"),
            _coded("workclass", "Federal-gov Local-gov Private Self-emp-inc Self-emp-not-inc State-gov Without-pay"),
            _coded(
                "education",
                "Preschool 1st-4th 5th-6th 7th-8th 9th 10th 11th 12th HS-grad Some-college Assoc-voc Assoc-acdm Bachelors Masters "
                "Prof-school Doctorate",
            ),
            _coded(
                "marital-status",
                "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed",
            ),
            _coded(
                "occupation",
                "Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
                "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving",
            ),
            _coded("relationship", "Husband Not-in-family Other-relative Own-child Unmarried Wife"),
            _coded("race", "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White"),
            _coded("sex", "Female Male"),
            Feature("capital-gain"),
            Feature("capital-loss"),
            Feature("hours-per-week"),
            _coded(  # those of a hundred people or more
                "native-country",
                "Canada China Cuba El-Salvador England Germany India Italy Jamaica Mexico Philippines Puerto-Rico South United-States",
            ),
        ),
        {"fnlwgt": "a weight of the survey", "education-num": "the number of the education, which is an input"},
    ),
    label=lambda frame: tuple(frame["salary"]),
    classes=("<=50K", ">50K"),
    predicts="whether a person earned more than $50,000 in 1994",
    attributes={"sex": {}, "race": {}},
    network={"hidden": [32]},
    protocol=Protocol(rounds=30, epochs=1, batch_size=64, lr=0.02, momentum=0.9, weight_decay=1e-5),
    width=75,
)


# clients that are unfair to different people, as FeDa4Fair makes them: the positive rows of a group are dropped or flipped
STREAM = 44  # of the random numbers, other than those that divide the rows


@dataclass(frozen=True)
class Bias:
    """Drops and flips positive rows of a group at some clients, before the rows are divided into those for training and testing.

    Source: X. Heilmann, L. Corbucci, M. Cerrato, A. Monreale 2025, FeDa4Fair, arXiv:2506.21095, and their code (``drop_data``, then
    ``flip_data``). With values of one attribute this is their value bias, with values of several their attribute bias.

    Parameters
    ----------
    against : the values of attributes that clients are unfair to, in turn.
    biased : in (0, 1], share of the clients, the first ones in the order of their names, at least one.
    drop : in [0, 1], share of the positive rows of that value that a client loses, rounded down.
    flip : in [0, 1], share of the remaining ones whose label becomes the other one, rounded down.
    """

    against: tuple[str, ...]
    biased: float = 1.0
    drop: float = 0.5
    flip: float = 0.0

    @classmethod
    def of(
        cls, scenario: str, values: Collection[str], bias: str | Sequence[str] | None, **amounts: float
    ) -> "Bias | None":
        """The bias of a scenario's options, if there is any; ``amounts`` are ``biased``, ``drop`` and ``flip``.

        Raises
        ------
        ValueError : a value is unknown, an amount is out of its range or without effect.
        """
        for name, amount in amounts.items():
            check_number(f"{scenario}: {name}", amount, 0, 1, above=name == "biased")
        if bias is None:
            if unused := [f"{name}={amount}" for name, amount in amounts.items() if amount != getattr(cls, name)]:
                raise ValueError(
                    f"{scenario}: {', '.join(unused)} has no effect without bias, the people whom clients treat worse. Add "
                    f"bias={sorted(values)[0]}, or leave it out."
                )
            return None
        wanted = f"{scenario}: bias must be different values"
        against = choose(bias, sorted(values), f"bias of scenario {scenario}:", wanted)
        if not (amounts["drop"] or amounts["flip"]):
            raise ValueError(
                f"{scenario}: bias={'+'.join(against)} changes nothing with drop=0 and flip=0. Raise one, or leave bias out."
            )
        return cls(against, **amounts)

    def applied(self, rows: UserData, positive: str, seed: int) -> tuple[UserData, dict[str, Any]]:
        """The rows with this bias, and what was done at each client; a dropped row is no client's."""
        (other,) = {*rows.classes} - {positive}
        label, client = np.array(rows.label, object), np.array(rows.client, object)
        values = np.array([*rows.attributes.values()], object)  # [A, n]
        rng = np.random.default_rng([seed, STREAM])
        done = {}
        for name, value in zip(rows.clients[: max(1, round(self.biased * len(rows.clients)))], cycle(self.against)):
            which = np.flatnonzero((client == name) & (label == positive) & (values == value).any(0))
            which = rng.permutation(which)
            dropped, kept = np.split(which, [int(self.drop * len(which))])
            flipped = kept[: int(self.flip * len(kept))]
            client[dropped], label[flipped] = "", other
            done[name] = {"against": value, "positive": len(which), "dropped": len(dropped), "flipped": len(flipped)}
        return replace(rows, label=tuple(label), client=tuple(client)), done


def heart(
    *, test: float = 0.2, server_validation: float = 0.0, tests: str = "clients", held: Draw = NOTHING
) -> Described:
    """Four hospitals, Cleveland, Budapest, Zürich and Basel, and Long Beach, whose rows are clients as they come.

    Sex is a sensitive attribute, and an input as in the literature. A cholesterol or blood pressure of zero is missing.

    Parameters
    ----------
    test : in (0, 0.5], share of a hospital's rows that is drawn for testing, as evenly over sex and disease as possible.
    server_validation : in [0, 0.5], share of its training rows that is drawn for the server, for methods that need such.
    tests : what a test set is: ``"clients"``, a hospital; ``"groups"``, a sex; ``"all"``, one for all.
    held : what clients hold out of their training rows in the run, see :func:`equipoise.scenarios.load`.

    Raises
    ------
    ValueError : an option is out of its range.
    """
    drawn = {"test": test, "server_validation": server_validation, "tests": tests}
    return _described(HEART, drawn, held, {}, lambda _: read(HEART)[1]["site"])


def adult(
    *,
    client: str = "workclass",
    clients: int | None = None,
    alpha: float | None = None,
    bias: str | Sequence[str] | None = None,
    biased: float = Bias.biased,
    drop: float = Bias.drop,
    flip: float = Bias.flip,
    test: float = 0.2,
    server_validation: float = 0.0,
    tests: str = "clients",
    held: Draw = NOTHING,
) -> Described:
    """Adults of the census of 1994, divided among clients by one column.

    Sex and race are sensitive attributes, and inputs as in the literature.

    Parameters
    ----------
    client : the column of categories whose values are the clients: ``"workclass"``, ``"education"``, ``"occupation"``,
        ``"marital-status"``, ``"relationship"``, ``"race"``, ``"sex"`` or ``"native-country"``.
    clients : >= 1, among so many the rows are divided instead, with shares of each value of that column from a Dirichlet distribution.
    alpha : >= 0.01, of these shares, 0.5 if None; the lower, the more clients differ. Only with ``clients``.
    bias : values of sex and race with "+" between, or a list of them: the clients are made unfair to these people in turn, as FeDa4Fair
        makes them (:class:`equipoise.scenarios.tables.Bias`), in their training and test rows. ``"Female+Male"``: clients differ in the
        value that is treated worse; ``"Female+Black"``: in the attribute.
    biased : in (0, 1], share of the clients that are made unfair, the first ones in the order of their names.
    drop : in [0, 1], share of these people's rows above $50,000 that such a client loses.
    flip : in [0, 1], share of the remaining ones whose label becomes the other one.
    test : in (0, 0.5], share of a client's rows that is drawn for testing, as evenly over sex, race and income as possible.
    server_validation : in [0, 0.5], share of its training rows that is drawn for the server, for methods that need such.
    tests : what a test set is: ``"clients"``; ``"groups"``, a sex and a race together; ``"all"``, one for all.
    held : what clients hold out of their training rows in the run, see :func:`equipoise.scenarios.load`.

    Raises
    ------
    ValueError : an option is out of its range.
    """
    names = [f.name for f in ADULT.schema.features if f.kind == CATEGORY]
    require_known("client of scenario adult:", names, client)
    if clients is None and alpha is not None:
        raise ValueError(f"adult: alpha={alpha} is of a division among clients. Add clients=10, or leave it out.")
    alpha = 0.5 if alpha is None else alpha
    if clients is not None:
        check_whole("adult: clients", clients, 1)
        partition.check("adult", PEOPLE, clients, alpha, min_size=LEAST)
    values = [word for f in ADULT.schema.features if f.name in ADULT.attributes for word in f.categories or ()]
    unfair = Bias.of("adult", values, bias, biased=biased, drop=drop, flip=flip)

    def whose(seed: int) -> Column:
        column = read(ADULT)[1][client]
        if clients is None:
            return column
        dealt = partition.dirichlet(np.unique(column, return_inverse=True)[1], clients, alpha, seed, min_size=LEAST)
        return partition.names_of(dealt, len(column))

    options = {"client": client, "clients": clients, "alpha": alpha}
    drawn = {"test": test, "server_validation": server_validation, "tests": tests}
    return _described(ADULT, drawn, held, options, whose, unfair)


@lru_cache(maxsize=2)
def read(table: Table) -> tuple[UserData, Mapping[str, Column]]:
    """The rows of a table, whose clients are not named yet, and its cells as text by column."""
    import pandas as pd  # here, because it takes a second

    with resources.as_file(resources.files(__package__).joinpath(table.file)) as path:
        frame = pd.read_csv(path)
    for feature in table.schema.features:
        if feature.low is not None:  # a zero that stands for a missing number
            frame[feature.name] = frame[feature.name].where(frame[feature.name] >= feature.low)
    cells = {str(name): tuple(map(word_of, frame[name].tolist())) for name in frame}
    columns = {}
    for feature in table.schema.features:
        columns[feature.name], wrong = read_cells(feature, raw_of(frame[feature.name]), lambda k: f"row {k + 1}")
        assert not wrong, wrong
    for name, shown in table.attributes.items():
        cells[name] = tuple(shown.get(word, word) for word in cells[name])
    rows = UserData(
        source=table.file,
        layout=f"a table of {len(columns)} columns",
        label=table.label(frame),
        inputs=RawTable(table.schema, columns),
        attributes={name: cells[name] for name in table.attributes},
        features=table.schema.names,
    )
    return rows, cells


def _described(
    table: Table, drawn: Given, held: Draw, options: Given, whose: Callable[[int], Column], bias: Bias | None = None
) -> Described:
    """The scenario of a table; ``drawn`` is what is for testing and for the server, and ``whose(seed)`` the client of every row, before any bias."""
    name, (test, server_validation, tests) = table.name, drawn.values()
    own.check_drawn(name, "rows", test, server_validation, tests)
    description = Description(
        name=name, summary=table.summary, sample=(table.width,), transform=None, n_classes=len(table.classes),
        network="mlp", network_options=table.network, protocol=table.protocol, measures=chosen(["auc", RATES]),
        has_server_validation=server_validation > 0, classes=table.classes, positive=table.classes[1],
        predicts=table.predicts, remark=f"What these data can show, and what not: docs/data-cards.md#{name}.",
    )  # fmt: skip

    groups = {name: {"column": name, "names": {**shown}} for name, shown in table.attributes.items()}

    def build(seed: int) -> Scenario:
        rows, biased = replace(read(table)[0], client=whose(seed)), {}
        if bias is not None:
            rows, done = bias.applied(rows, table.classes[1], seed)
            biased = {"bias": {**vars(bias), "against": [*bias.against], "clients": done}}
        parts = own.divided(rows, seed, test=test, server_validation=server_validation)
        about = {
            "scenario": name,
            "seed": seed,
            "recipe": {"version": VERSION, **options, **biased, **drawn},
            "source": table.source,
            "read": {"groups": groups},
            "licence": LICENCE,
            "classes": list(table.classes),
            "positive": table.classes[1],
        }
        return own.federate(description, about, rows, parts, tests, held=held)

    return description, build
