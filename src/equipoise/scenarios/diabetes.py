"""Progression of diabetes, a number to predict: clients are bands of age, and test sets the two sexes.

The data are those of Efron, Hastie, Johnstone and Tibshirani 2004 (Least Angle Regression, Annals of Statistics 32), which come with
scikit-learn: ten measurements of 442 people, and how far the disease had gone a year later.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from equipoise.data.memory_mapped import take
from equipoise.data.precision import standardised
from equipoise.scenarios import digits, partition
from equipoise.scenarios.scenario import REGRESSION, Described, Description, Protocol, Scenario
from equipoise.system.ranges import check_number, check_whole

VERSION = 1  # raise it whenever a byte or a part changes

PEOPLE = 442
FEATURES = 10
MOST = 20  # clients
AGES = 5  # bands of age that the clients of a Dirichlet draw share
LEVELS = 3  # bands of the target, each of which is in training and test data in the same share

NETWORK = {"hidden": [32]}
PROTOCOL = Protocol(rounds=30, epochs=2, batch_size=16, lr=0.02, momentum=0.0, weight_decay=1e-4)

SUMMARY = "Progression of diabetes, a number: clients by age, test sets by sex; 442 people, of scikit-learn."


def scenario(*, clients: int = 5, alpha: float | None = None, test: float = 0.25) -> Described:
    """People with diabetes, a band of ages for each client or shares of such bands; the target is the progression, 25 to 346.

    Measurements are standardised by the training data of all clients; the sex, 1 or 2 as the data have it, is one of them, and a sensitive attribute.

    Parameters
    ----------
    clients : in 1..20, bands of age with about as many people in each; with ``alpha``, how many clients share the bands.
    alpha : >= 0.01, for shares of five bands of age from a Dirichlet distribution: the lower, the more clients differ in age.
        ``None`` makes each client a band.
    test : in (0, 0.5], share of a client's people that is drawn for testing, as evenly over sexes and targets as possible.

    Raises
    ------
    ValueError if an option is out of its range, or leaves no partition.
    """
    check_whole("diabetes: clients", clients, 1, MOST)
    check_number("diabetes: test", test, 0, 0.5, ", the share of a client's people to test on", above=True)
    if alpha is not None:
        partition.check("diabetes", PEOPLE, clients, alpha)
    description = Description(
        name="diabetes",
        summary=SUMMARY,
        sample=(FEATURES,),
        transform=None,
        task=REGRESSION,
        n_classes=0,
        network="mlp",
        network_options=NETWORK,
        protocol=PROTOCOL,
        measures=(),
        predicts="how far the disease has gone after a year",
        remark="The sexes are 1 and 2, as in the source, which does not state which is which.",
    )

    def build(seed: int) -> Scenario:
        from sklearn.datasets import load_diabetes  # here, because it takes a second

        raw, y = load_diabetes(return_X_y=True, scaled=False)
        age, sex = raw[:, 0], raw[:, 1].astype(np.int64)
        parts = _divided(age, clients, alpha, seed)
        strata = LEVELS * sex + partition.bands(y, LEVELS)
        train, tested, every = dict[str, list[int]](), dict[str, list[int]](), list[int]()
        draws = np.random.default_rng(seed).integers(0, 2**32, clients).tolist()
        for draw, (name, rows) in zip(draws, parts.items(), strict=True):
            to_test, to_train = partition.holdout(strata[rows], draw, fraction=test)
            train[name], tested[name] = rows[to_train].tolist(), rows[to_test].tolist()
            every += tested[name]
        rest = np.setdiff1d(np.arange(PEOPLE), every).tolist()
        x, mean, std = standardised(raw, rest, lambda at: f"diabetes: x{at}")
        scaling = {"mean": mean.flatten().tolist(), "std": std.flatten().tolist()}
        values = np.unique(sex)
        data = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(np.searchsorted(values, sex))[:, None]
        drawn = {"scenario": "diabetes", "version": VERSION, "seed": seed, "alpha": alpha, "test": test}
        sha256 = digits.digest({"x": data[0], "y": data[1]})
        return Scenario(
            **vars(description),
            clients=tuple(take(data, rows) for rows in train.values()),
            client_names=tuple(train),
            client_groups=None,
            client_tests=tuple(take(data, rows) for rows in tested.values()),
            tests={f"sex-{s}": take(data, [row for row in sorted(every) if sex[row] == s]) for s in values},
            attributes={"sex": tuple(map(str, values))},
            manifest={**drawn, "standardised": scaling, "sha256": sha256, "clients": train, "tests": tested},
        )

    return description, build


def _divided(age: NDArray[np.float64], clients: int, alpha: float | None, seed: int) -> dict[str, NDArray[np.int64]]:
    """The people of each client, by its name."""
    if alpha is None:
        band = partition.bands(age, clients)
        rows = [np.flatnonzero(band == k) for k in range(clients)]
        return {f"age-{age[people].min():.0f}-{age[people].max():.0f}": people for people in rows}
    drawn = partition.dirichlet(partition.bands(age, AGES), clients, alpha, seed)
    return {f"client-{k}": np.array(sorted(people)) for k, people in enumerate(drawn, start=1)}
