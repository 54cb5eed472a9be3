"""Adapters of the golden entries about the models of coalitions: rounds of the product, whose clients answer with the entry's updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise.contribution.exact import Exact
from equipoise.contribution.game import Values
from equipoise.contribution.rounds import sum_of_rounds
from equipoise.data.samples import Samples
from equipoise.engines.job import Answer, Job
from equipoise.federation.coalitions import RoundGame, RunGame
from equipoise.federation.round import Played, one_round
from helpers import tensor

Inputs = dict[str, Any]
Fields = dict[str, Any]
Adapter = Callable[[Inputs], Fields]


class Linear(nn.Linear):
    """A linear classifier [C, d] that begins at ``theta``."""

    def __init__(self, theta: Tensor, C: int) -> None:
        super().__init__(len(theta) // C - 1, C, dtype=torch.float64)
        self.weight.data, self.bias.data = theta[:-C].view(C, -1), theta[-C:]


def played(i: Inputs, method: str, updates: Sequence[Any]) -> tuple[eq.Federation, list[Played]]:
    """Rounds in which the clients ``ids`` send updates [T][M][D], and their losses F if there are any."""
    ids = i.get("ids", range(len(i["sizes"])))
    sizes = dict(zip(ids, i["sizes"], strict=True))
    d = len(i["X"][0])
    data = [(torch.zeros(sizes.get(m, 1), d, dtype=torch.float64), torch.zeros(sizes.get(m, 1)).long())
            for m in range(i.get("N", len(ids)))]  # fmt: skip

    def engine(job: Job) -> Iterator[Answer]:
        for row, m in enumerate(job.ids):
            if m not in sizes:
                yield Answer.failed(row, OSError("away"))
                continue
            k = [*ids].index(m)
            report = {"loss": tensor([i["F"][k]])} if "F" in i else {}
            trained = job.received[row] + tensor(updates[job.t][k])
            yield Answer((row,), trained[None], [report for _ in job.rules], [{} for _ in job.rules])

    net = Linear(tensor(i["theta"]), i["n_classes"])
    tests = {name: (tensor(i["X"])[rows], torch.tensor(i["y"])[rows]) for name, rows in groups(i).items()}
    fed = eq.Federation(net, data, method, eq.SGD(0.1), engine=engine, tests=tests, quorum=0.0)
    rounds: list[Played] = []
    now = fed.progress
    for _ in updates:
        now, _ = one_round(fed.trial, now, len(updates), rounds.append)
    return fed, rounds


def groups(i: Inputs) -> dict[str, Tensor]:
    """The rows of each group's test samples."""
    of = torch.tensor(i.get("group", [0] * len(i["y"])))
    return {str(g): (of == g).nonzero()[:, 0] for g in of.unique().tolist()}


def values_of(game: RunGame) -> tuple[Values, Fields]:
    """The Shapley values, and by the name of each utility those of all coalitions."""
    made = game.game()
    values = Exact()(made)
    table = made(range(made.everyone + 1))
    return values, {name: table[:, k] for k, name in enumerate(game.names)}


def models(game: RunGame) -> list[list[float]]:
    """Those of all coalitions, of which each has one."""
    parts = [
        (place, model)
        for places, some in game.models(range(1 << len(game.ids)))
        for place, model in zip(places, some[:], strict=True)
    ]
    assert [place for place, _ in sorted(parts, key=lambda part: part[0])] == [*range(1 << len(game.ids))]
    return [model.tolist() for _, model in sorted(parts, key=lambda part: part[0])]


def coalition(method: str) -> Adapter:
    """By a method, with fields of the entry in its text."""

    def adapter(i: Inputs) -> Fields:
        fed, rounds = played(i, method.format(**i), [i["updates"]])
        game = RoundGame(fed.trial, rounds[0], sets(fed), ("loss", "accuracy"))
        phi, table = values_of(game)
        return {
            "models": models(game),
            "loss": -table["loss"],
            "accuracy": table["accuracy"],
            "phi_loss": phi.values[:, 0],
            "phi_accuracy": phi.values[:, 1],
        }

    return adapter


def sets(fed: eq.Federation) -> dict[str, Samples]:
    return {name: d for name, d in fed.tests.sets.items() if isinstance(d, Samples)}


def of_groups(i: Inputs) -> Fields:
    fed, rounds = played(i, "fedavg", [i["updates"]])
    phi, table = values_of(RoundGame(fed.trial, rounds[0], sets(fed), ("worst", "std", "gap")))
    names = {"worst": "worst", "std": "minus_std", "gap": "minus_gap"}
    columns = {f"phi_{names[name]}": phi.values[:, k] for k, name in enumerate(phi.names)}
    return {**{names[name]: U for name, U in table.items()}, **columns}


def absent(i: Inputs) -> Fields:
    fed, rounds = played(i, "fedavg", [i["updates"]])
    game = RoundGame(fed.trial, rounds[0], sets(fed), ("accuracy",))
    return {"total": sum_of_rounds(i["N"], [(game.ids, values_of(game)[0])]).by_round[0, :, 0]}


def run(i: Inputs) -> Fields:
    fed, rounds = played(i, "fedavg", i["updates"])
    game = RunGame(fed.trial, tuple(rounds), sets(fed), ("loss",))
    phi, table = values_of(game)
    return {"models": models(game), "loss": -table["loss"], "phi_loss": phi.values[:, 0]}


ADAPTERS = {
    "coalition.fedavg": coalition("fedavg"),
    "coalition.uniform": coalition("fedavg(weights=uniform)"),
    "coalition.fixed_weights": coalition("fedavg(weights=population)"),
    "coalition.qffl": coalition("qffl(form=full, eps=0, q={q}, lipschitz={L})"),
    "coalition.qffl_weights": coalition("qffl(eps=0, q={q})"),
    "coalition.median": coalition("median"),
    "coalition.groups": of_groups,
    "coalition.absent": absent,
    "or.two_rounds": run,
}
