"""Compare FedAvg on Adult with a logistic regression of scikit-learn on the pooled rows, and write the table in docs/data-cards.md.

python tools/pooled.py    # 15 minutes on one core
"""

import argparse
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
from claims import filled
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import equipoise as eq

PAGE = Path(__file__).parents[1] / "docs" / "data-cards.md"
NUMBERS = ["age", "capital-gain", "capital-loss", "hours-per-week"]
LEAST = 100  # people of a category of its own
NETWORKS: Mapping[str, Mapping[str, Any]] = {  # and how they are trained
    "mlp(hidden=[32])": {"hidden": [32], "lr": 0.02, "batch_size": 64, "rounds": 30},
    "mlp(hidden=[])": {"hidden": [], "lr": "cosine(0.1)", "batch_size": 256, "rounds": 60},
}
Score = tuple[float, float]  # accuracy in percent, AUC


def pooled(made: eq.Scenario) -> Score:
    """A logistic regression on the training rows of all clients together, tested on the same rows as the federation."""
    with resources.as_file(resources.files("equipoise.scenarios") / "adult.csv.xz") as path:
        table = pd.read_csv(path)
    rows = [row for mine in made.manifest["clients"].values() for row in mine]
    held = [row for those in made.manifest["tests"].values() for row in those]
    left_out = ["fnlwgt", "education-num", "salary"]
    words = [name for name in table if name not in (*NUMBERS, *left_out)]
    coder = make_column_transformer(
        (StandardScaler(), NUMBERS),
        (OneHotEncoder(handle_unknown="ignore"), [name for name in words if name != "native-country"]),
        (OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=LEAST), ["native-country"]),
    )
    y = table["salary"] == ">50K"
    model = make_pipeline(coder, LogisticRegression(max_iter=1000)).fit(table.iloc[rows], y.iloc[rows])
    chance = model.predict_proba(table.iloc[held])[:, 1]
    return 100 * accuracy_score(y.iloc[held], chance > 0.5), roc_auc_score(y.iloc[held], chance)


def federated(made: eq.Scenario, seed: int, name: str, rounds: int | None = None) -> Score:
    """FedAvg with the network of this name, after its last round."""
    how = NETWORKS[name]
    rounds = rounds or how["rounds"]
    federation = eq.Federation(
        eq.network("mlp", in_shape=made.shape, n_classes=2, hidden=how["hidden"]),
        made.clients,
        tests=made.tests,
        measures=("accuracy", "auc"),
        solver=eq.SGD(how["lr"], momentum=0.9),
        batch_size=how["batch_size"],
        seed=seed,
    )
    last = federation.fit(rounds, progress=False).records[-1]["groups"]["all"]
    return 100 * last["accuracy"], last["auc"]


def table(seeds: int) -> Iterator[str]:
    """A line for every seed, which also divides the rows."""
    yield f"| seed | pooled logistic regression | {' | '.join(f'FedAvg, `{name}`' for name in NETWORKS)} |"
    yield "|---|---:|" + "---:|" * len(NETWORKS)
    for seed in range(seeds):
        made = eq.scenario("adult", seed, tests="all")
        scores = [pooled(made), *(federated(made, seed, name) for name in NETWORKS)]
        yield f"| {seed} | {' | '.join(f'{accuracy:.2f} %, {auc:.4f}' for accuracy, auc in scores)} |"


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="how many divisions of the rows")
    lines = [*table(parser.parse_args().seeds)]
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), "adult-pooled", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
