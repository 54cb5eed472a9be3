"""Small federations on artificial data, in float64, and comparisons of their results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.core.rule import Rule
from equipoise.core.solver import SGD, Solver
from equipoise.engines.job import Answer, Engine, Job
from equipoise.engines.sequential import sequential
from equipoise.federation.federation import Federation
from equipoise.federation.method import Method
from equipoise.federation.trial import Trial, begin
from equipoise.records.record import Record
from equipoise.system.tree import flatten

N_INPUTS, N_CLASSES = 6, 3
ROUNDS = 3
UNEQUAL = (7, 13, 9, 4, 18)  # samples of five clients: one to three batches of 8, each with another rest
SIZES = {"mlp": UNEQUAL, "batchnorm": (9, 13, 9, 13, 9)}  # BatchNorm forbids padding: equal sizes make its stacks
# Updates of the mlp have a norm of about 0.01, or 3; otherwise 0.3, with the rate 0.05.
RATES = {"small": 0.002, "large": 3.0}
Given = str | Rule | Method  # what a method may be written as


def generator(seed: int = 0) -> torch.Generator:
    """A generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers of a shape."""
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


class BatchNormNet(nn.Module):
    """A network with one hidden layer and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(N_INPUTS, 7, bias=False)  # before BatchNorm a bias has no gradient but rounding
        self.norm, self.head = nn.BatchNorm1d(7), nn.Linear(7, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, 3]."""
        logits: Tensor = self.head(torch.tanh(self.norm(self.a(x))))
        return logits


def network(kind: str = "mlp", outputs: int = N_CLASSES) -> nn.Module:
    """A float64 network whose first values are always the same; ``kind`` is mlp or batchnorm."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(7)
        if kind == "batchnorm":
            return BatchNormNet().double()
        return nn.Sequential(nn.Linear(N_INPUTS, 7), nn.Tanh(), nn.Linear(7, outputs)).double()


def samples(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs [n, 6] and labels [n] of one client, shifted by its seed so that clients differ."""
    x = normal(n, N_INPUTS, seed=seed) + 0.2 * seed
    y = (x[:, 0] + x[:, 1] > 0.3 * seed).long() + (x[:, 2] > 0.7).long()
    return x, y


def clients(sizes: Sequence[int] = UNEQUAL, *, people: bool = False) -> list[tuple[Tensor, ...]]:
    """The samples of clients with these sizes; of ``people`` also the codes of two sensitive attributes, some of them unknown."""
    data: list[tuple[Tensor, ...]] = [samples(n, seed) for seed, n in enumerate(sizes)]
    return [(x, y, torch.stack([(x[:, 3] > 0).long(), y - 1], 1)) for x, y in data] if people else data


def evaluation_sets() -> dict[str, tuple[Tensor, Tensor]]:
    """Two test sets."""
    return {"a": samples(40, 1), "b": samples(20, 3)}


def people_settings(method: Any) -> dict[str, Any]:
    """Settings of a federation whose method needs sensitive attributes: their names, and which class is positive."""
    if "sensitive" not in Method.of(method).needs:
        return {}
    return {"attributes": {"side": ["left", "right"], "less": ["0", "1"]}, "positive": 1}


def federation(
    method: Any = "fedavg",
    *,
    kind: str = "mlp",
    sizes: Sequence[int] = UNEQUAL,
    people: bool = False,
    net: nn.Module | None = None,
    solver: Solver | None = None,
    engine: Any = "sequential",
    make: Callable[..., Federation] = Federation,
    **settings: Any,
) -> Federation:
    """A federation of small clients, with validation data of the server."""
    epochs = 1 if kind == "large" else 2  # many large steps would make rounding visible
    usual = {"epochs": epochs, "batch_size": 8, "participation": 0.8, "seed": 3}
    values = {**usual, **people_settings(method), **settings}
    data, people = values.pop("data", None), people or "attributes" in values
    if data is None or (net is None and isinstance(data[0], tuple) and data[0][0].shape[1:] == (N_INPUTS,)):
        values = {"server_validation": samples(70, 2)} | values  # two batches
    data, solver = data or clients(sizes, people=people), solver or SGD(RATES.get(kind, 0.05), 0.9, 1e-4)
    return make(net or network(kind), data, method, solver, engine=engine, **values)


def consortium(method: Any = "fedavg", *, net: nn.Module | None = None, **settings: Any) -> Federation:
    """The same as :func:`federation`, with clients that are asked through Flower's messages in this process."""
    from equipoise.flower import in_process  # where Flower is installed

    def between(usual: nn.Module, *parts: Any, engine: str, **values: Any) -> Federation:
        return in_process(net or usual, *parts, **values)

    return federation(method, make=between, **settings)


class StoppedError(Exception):
    """A run is stopped here."""


def stopped_and_resumed(
    directory: Path, make: Callable[[], Federation], rounds: int, at: int, between: Callable[[], object] = lambda: None
) -> Federation:
    """A run that is stopped after ``at`` rounds and resumed in a new federation, with a call of ``between`` before."""

    def stop(record: Record) -> None:
        if record["round"] == at - 1:
            raise StoppedError

    with suppress(StoppedError):
        make().fit(rounds, directory=directory, progress=False, on_round=stop)
    between()
    fresh = make()
    rest, t = fresh.resume(directory), fresh.progress.t
    if (t, rest) != (at, rounds - at):
        raise AssertionError(f"stopped after {at} of {rounds} rounds, resumed after {t} with {rest} to go")
    fresh.fit(rest, directory=directory, progress=False)
    return fresh


def watched(seen: list[tuple[Job, Answer]], engine: Engine = sequential) -> Engine:
    """An engine that notes what it was asked and what it answered."""

    def spy(job: Job) -> Iterator[Answer]:
        for answer in engine(job):
            seen.append((job, answer))
            yield answer

    return spy


# comparisons
def widest(a: Federation, b: Federation) -> tuple[str, float]:
    """The tensor in which the states of two federations differ most, and by how much; they must have the same entries."""
    first, second = a.progress.tensors(), b.progress.tensors()
    if first.keys() != second.keys():
        raise AssertionError(f"only in one of two runs: {', '.join(sorted(first.keys() ^ second.keys()))}")
    for key, x in first.items():
        if x.shape != second[key].shape or x.dtype != second[key].dtype:
            raise AssertionError(f"{key} has another shape or dtype in one of two runs")
    gaps = {key: float((x.double() - second[key].double()).abs().max()) for key, x in first.items() if x.numel()}
    nan = [key for key, gap in gaps.items() if gap != gap]
    where = nan[0] if nan else max(gaps, key=lambda key: gaps[key])
    return where, gaps[where]


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """The tensors, by name, that are not the same bit for bit."""
    alike = {key for key in a.keys() & b.keys() if a[key].dtype == b[key].dtype and torch.equal(a[key], b[key])}
    return [key for key in {**a, **b} if key not in alike]


def identical(a: Federation, b: Federation) -> bool:
    """Whether two federations are in the same state, bit for bit."""
    return not differing(a.progress.tensors(), b.progress.tensors())


def told(fed: Federation) -> list[dict[str, Any]]:
    """The records of a run without their times."""
    return [{k: v for k, v in record.items() if k not in ("seconds", "times")} for record in fed.records]


# a run between sites, and the same run in the simulator
def server_side(fed: Federation) -> dict[str, Tensor]:
    """All that a run remembers but what is the clients' own."""
    tensors = fed.progress.tensors()  # of clients, sites have receipts
    return {name: x for name, x in tensors.items() if not name.startswith("clients/") and name != "own"}


def at_home(fed: Federation, states: Path, m: int) -> dict[str, Tensor] | None:
    """What client ``m`` keeps in its files; None where it never took part, or keeps nothing."""
    from equipoise.flower.site.store import Receipt, Store  # where Flower is installed

    receipt = Receipt.of({key: x[m] for key, x in fed.progress.clients[0].items()})
    return Store.at(states, "run", fed.trial.names[m]).recall(receipt)


def remembered(fed: Federation, m: int) -> dict[str, Tensor]:
    """What client ``m`` of the simulator keeps, by the names of the files."""
    trial, p = fed.trial, fed.progress
    rows = {f"states/{k}/{key}": x[m] for k, state in enumerate(p.clients) for key, x in state.items()}
    return rows if p.own is None or trial.private is None else {**rows, "own": p.own[m][trial.private]}


def shared_records(fed: Federation) -> list[dict[str, Any]]:
    """What was recorded, less what only one of the two records: sites keep their losses in training, and what stays with them."""
    private = fed.trial.private
    left_out = {"sent", "losses"} | ({"groups"} if private is not None and bool(private.any()) else set())
    stays = {"perturbed_loss"}  # where the sharpness is sent
    shared = [
        {key: x for key, x in record.items() if key not in left_out | (stays if "sharpness" in record else set())}
        for record in told(fed)
    ]
    # a site's test samples are its own, where clients of the simulator share those of their group
    for record in shared:
        record["clients"] = {key: x for key, x in record.get("clients", {}).items() if key != "n"}
    return shared


def site_differences(simulated: Federation, sites: Federation, states: Path) -> list[str]:
    """What is not the same, bit for bit: tensors by their paths, and ``records``."""
    names = differing(server_side(simulated), server_side(sites))
    for m in range(len(simulated.trial.data)):
        if (state := at_home(sites, states, m)) is not None:
            names += [f"clients/{name.removeprefix('states/')}" for name in differing(remembered(simulated, m), state)]
    return list(dict.fromkeys(names)) + ["records"] * (shared_records(simulated) != shared_records(sites))


# what was learned
def learned(fed: Federation) -> Tensor:
    """The global model [G], or those at home [N, G] where nothing leaves it."""
    private, own = fed.trial.private, fed.progress.own
    return own if own is not None and private is not None and bool(private.all()) else fed.progress.vector


def moved(fed: Federation) -> bool:
    """Whether training changed what is learned by more than rounding."""
    return float((learned(fed) - fed.model.initial).abs().max()) > 1e-4


def client_axes(trial: Trial) -> dict[str, list[int]]:
    """The axes along which clients are counted in each tensor of a run: lengths alone do not say, as others may be the same.

    Clients' own entries have one row each; of the server's, an axis counts clients if it is longer with one client more.
    """
    one_more = replace(trial.setup, sizes=torch.cat([trial.setup.sizes, trial.setup.sizes[:1]]))
    servers = ([rule.server_state(setup) for rule in trial.method.rules] for setup in (trial.setup, one_more))
    few, more = (flatten({"server": state}) for state in servers)
    server = {k: [axis for axis, n in enumerate(x.shape) if more[k].shape[axis] != n] for k, x in few.items()}
    return {k: [] if k == "vector" else [0] for k in begin(trial).tensors() if k not in server} | server


class Subject:
    """A method that is checked, on artificial data and one kind of network. Runs that several checks need are trained once.

    Parameters
    ----------
    method : text, a rule, or a method.
    kind : the network and its steps: ``"mlp"``, ``"batchnorm"``, or the mlp with ``"small"`` or ``"large"`` steps.
    """

    def __init__(self, method: Given, kind: str = "mlp") -> None:
        self.given, self.method, self.kind = method, Method.of(method), kind
        self._runs: dict[str, Federation] = {}
        self._others: dict[str, Subject] = {kind: self}

    def on(self, kind: str) -> "Subject":
        """The same on another kind of network."""
        if kind not in self._others:
            self._others[kind] = Subject(self.given, kind)
            self._others[kind]._others = self._others
        return self._others[kind]

    @cached_property
    def people(self) -> bool:
        """Whether its data have sensitive attributes: with large steps, and if it trains only with them."""
        if "sensitive" in self.method.needs:
            return True
        if self.kind != "mlp":
            return self.kind == "large" or self.on("mlp").people
        return bool(self.method.overriding("loss")) and not self._trains(people=False) and self._trains(people=True)

    def _trains(self, *, people: bool) -> bool:
        fed = federation(self.method, people=people, epochs=1)
        with suppress(Exception):
            fed.fit(1, progress=False)
        return bool(fed.records) and "quarantined" not in fed.records[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The samples of five clients."""
        return SIZES.get(self.kind, UNEQUAL)

    @property
    def setting(self) -> dict[str, Any]:
        """What all its runs have in common."""
        return {"kind": self.kind, "sizes": self.sizes, "tests": evaluation_sets(), "people": self.people}

    def federation(self, **settings: Any) -> Federation:
        """A federation with the method, which may be trained."""
        return federation(self.method, **{**self.setting, **settings})

    def fitted(self, rounds: int = ROUNDS, **settings: Any) -> Federation:
        """The same after some rounds."""
        fed = self.federation(**settings)
        fed.fit(rounds, progress=False)
        return fed

    def in_both_engines(self, rounds: int, **settings: Any) -> tuple[Federation, Federation]:
        """The same with single clients, and with clients in stacks."""
        return self.fitted(rounds, engine="sequential", **settings), self.fitted(rounds, engine="stacked", **settings)

    def run(self, engine: str = "sequential") -> Federation:
        """Three rounds with unequal clients, of which four of five take part. Not to be trained further."""
        if engine not in self._runs:
            self._runs[engine] = self.fitted(engine=engine)
        return self._runs[engine]
