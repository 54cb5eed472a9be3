"""The round loop, all state of a run, and the objects a user holds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from equipoise import checkpoint, draws, guard
from equipoise.data.samples import Samples, Stream, Transform, read
from equipoise.engines import ENGINES, Choice, Engine, Job, choose
from equipoise.files import write_atomically
from equipoise.history import History, line
from equipoise.method import Method
from equipoise.model import Bound, Model
from equipoise.oracle import Oracle
from equipoise.rule import Cohort, Rule, Setup, State
from equipoise.solver import SGD, Solver
from equipoise.tree import flatten, tree_map, unflatten

PERSONAL_EVERY = 5  # rounds between evaluations of personal models, which cost one test pass per client
LAST = 5  # rounds that make the reported figures

Record = dict[str, Any]


@dataclass(frozen=True)
class Progression:
    """All that a run remembers after ``t`` rounds: a tree of tensors, which is the checkpoint.

    ``vector`` [G] is the global model; ``clients`` and ``server`` hold one dictionary per rule, client values [N, ...].
    ``given`` [N, G] is what each client was handed, if a rule rewards them differently; ``own`` [N, G] is what each
    trained, if a rule keeps coordinates private.
    """

    t: int
    vector: Tensor
    clients: list[State]
    server: list[State]
    given: Tensor | None = None
    own: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path."""
        tree = {
            "vector": self.vector,
            "clients": self.clients,
            "server": self.server,
            "given": self.given,
            "own": self.own,
        }
        return flatten({name: part for name, part in tree.items() if part is not None})

    def restored(self, tensors: Mapping[str, Tensor], t: int) -> Progression:
        """The same, with the values of a checkpoint."""
        leaves = {name: x.to(self.vector.device) for name, x in tensors.items()}
        tree = {"vector": self.vector, "clients": self.clients, "server": self.server}
        back = unflatten(tree, leaves)
        return Progression(t, back["vector"], back["clients"], back["server"], leaves.get("given"), leaves.get("own"))


class Federation:
    """A model, its clients, a method, and everything the run remembers.

    Parameters
    ----------
    net : any ``nn.Module`` from inputs to logits [B, C]. It is copied, never changed.
    clients : for each client ``(x, y)`` (arrays or tensors, y integer labels) or a ``torch.utils.data.Dataset``.
    method : text (``"fedproto+fedheal"``), a :class:`Method`, or your own :class:`Rule`.
    solver : the local optimiser; default ``SGD(lr=0.01)``.
    tests : named evaluation sets, ``{"hospital A": (x, y), ...}``; fairness is about these groups.
    epochs, batch_size : of local training.
    participation : share of the clients that train in a round, in (0, 1].
    seed : everything random follows from it, the round and the client.
    engine : ``"auto"``, ``"sequential"``, ``"stacked"``, or an engine of your own.
    transform : makes network inputs of a batch, ``transform(x, shift)``; its ``crop`` (pixels) turns random crops on.
    quorum : least share of the clients asked that must answer well for a round to count, in [0, 1].
    names : names of the clients.
    groups : for each client the name of the test set it belongs to; None tests clients on all of them.
    head : name of the classifier layer whose inputs are the features; default the last ``nn.Linear``.
    device : where to compute.

    Raises
    ------
    ValueError, TypeError : naming what was given, what was expected and what was found.
    """

    def __init__(
        self,
        net: nn.Module,
        clients: Iterable[Any],
        method: str | Rule | Method | Iterable[Rule] = "fedavg",
        solver: Solver | None = None,
        *,
        tests: Mapping[str, Any] | None = None,
        epochs: int = 1,
        batch_size: int = 32,
        participation: float = 1.0,
        seed: int = 0,
        engine: str | Engine = "auto",
        transform: Transform | None = None,
        quorum: float = 0.5,
        names: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        head: str | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        _whole("epochs", epochs, 1)
        _whole("batch_size", batch_size, 1)
        _whole("seed", seed, 0)
        if not 0 < participation <= 1:
            raise ValueError(
                f"participation must be in (0, 1], the share of clients that train in a round; found {participation:g}."
            )
        if not 0 <= quorum <= 1:
            raise ValueError(f"quorum must be in [0, 1], a share of the clients asked; found {quorum:g}.")
        self.method = Method.of(method)
        self.solver = solver or SGD()
        self.epochs, self.batch_size, self.participation, self.seed, self.quorum = (
            epochs,
            batch_size,
            participation,
            seed,
            quorum,
        )
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"device {str(device)!r} needs a CUDA build of PyTorch and a GPU; found none. Use device='cpu'."
            )
        self.model = Model(net, head)
        self.model.net.to(self.device)
        self.model.initial = self.model.initial.to(self.device)
        clients = list(clients)
        if not clients:
            raise ValueError("A federation needs at least one client; found none.")
        self.names = tuple(names) if names is not None else tuple(f"client-{k}" for k in range(len(clients)))
        if len(self.names) != len(clients):
            raise ValueError(f"names must hold one name per client: expected {len(clients)}, found {len(self.names)}.")
        self.transform = transform
        dtype = self.model.initial.dtype
        self.data = [read(c, name, dtype, self.device, transform) for c, name in zip(clients, self.names, strict=True)]
        self.tests = {
            name: read(t, f"test set {name!r}", dtype, self.device, transform) for name, t in (tests or {}).items()
        }
        self.groups = tuple(groups) if groups is not None else None
        if self.groups is not None and (len(self.groups) != len(self.data) or not set(self.groups) <= set(self.tests)):
            strange = sorted(set(self.groups) - set(self.tests))
            found = f"unknown {', '.join(strange)}" if strange else f"{len(self.groups)} entries"
            raise ValueError(
                f"groups must name one test set per client ({len(self.data)} clients; test sets: {', '.join(self.tests) or 'none'}); found {found}."
            )
        self._bound = Bound(self.model)
        n_classes, n_features = self._probe()
        asked = max(1, round(participation * len(self.data)))
        self.engine_choice = (
            choose(self.model, self.data, asked) if engine == "auto" else Choice(str(engine), "asked for")
        )
        if isinstance(engine, str) and self.engine_choice.engine not in ENGINES:
            raise ValueError(f"Unknown engine {engine!r}. Choose one of: auto, {', '.join(ENGINES)}.")
        self.engine: Engine = ENGINES[self.engine_choice.engine] if isinstance(engine, str) else engine
        sizes = torch.tensor([d.size for d in self.data], dtype=torch.float64, device=self.device)
        self.setup = Setup(self.model.initial, self.model.layout, sizes, self.solver, n_classes, n_features)
        private = [p for rule in self.method.rules if (p := rule.private(self.model)) is not None]
        self.private = torch.stack(private).any(0).to(self.device) if private else None
        self.progress = self._begin()
        self.records: list[Record] = []

    # setting up
    def _probe(self) -> tuple[int, int]:
        """Classes and features of the network on the first client's first sample; checks shapes and labels of all."""
        first = self.data[0]
        x, _ = first.batch(torch.zeros(1, dtype=torch.int64, device=self.device), None)
        P = self.model.n_params
        try:
            logits, features = self._bound.forward(self.model.initial[:P], self.model.initial[P:].clone(), x)
        except Exception as error:
            raise ValueError(
                f"The network does not take the data of {self.names[0]}: an input of shape {list(x.shape)} gives {type(error).__name__}: {error}"
            ) from error
        if logits.dim() != 2:
            raise ValueError(f"The network must give logits of shape [batch, classes]; found {list(logits.shape)}.")
        n_classes = logits.shape[1]
        named = [*zip(self.names, self.data, strict=True), *((f"test set {n!r}", d) for n, d in self.tests.items())]
        for name, d in named:
            if not isinstance(d, Samples):
                continue
            if isinstance(first, Samples) and d.x.shape[1:] != first.x.shape[1:]:
                raise ValueError(
                    f"{name}: samples have shape {list(d.x.shape[1:])}, those of {self.names[0]} have {list(first.x.shape[1:])}. All must agree."
                )
            low, high = int(d.y.min()), int(d.y.max())
            if low < 0 or high >= n_classes:
                raise ValueError(
                    f"{name}: labels must be in 0..{n_classes - 1}, because the network has {n_classes} outputs; found {low}..{high}."
                )
        return n_classes, features.shape[1]

    def _begin(self) -> Progression:
        N, rules = len(self.data), self.method.rules
        one = [rule.client_state(self.setup) for rule in rules]
        clients = tree_map(lambda leaf: leaf.expand(N, *leaf.shape), one)
        server = [rule.server_state(self.setup) for rule in rules]
        own = self.model.initial.expand(N, -1).clone() if self.private is not None else None
        return Progression(0, self.model.initial.clone(), clients, server, None, own)

    @property
    def header(self) -> list[str]:
        """What a reader of the results must know about how they were made."""
        m = self.model
        asked = max(1, round(self.participation * len(self.data)))
        local = f"{self.epochs} local epochs of batch {self.batch_size}"
        norm = "none in this network"
        if m.batch_norm:
            norm = f"{m.size - m.n_params:,} running statistics, averaged by client weight and not masked; a last batch of one sample is left out"
        return [
            f"method {self.method} · {len(self.data)} clients, {asked} a round · {local} · {self.solver}",
            f"network of {m.n_params:,} trainable parameters ({str(m.initial.dtype).removeprefix('torch.')})",
            f"engine {self.engine_choice.engine}: {self.engine_choice.why}",
            f"BatchNorm: {norm}",
        ]

    # training
    def fit(
        self,
        rounds: int,
        *,
        directory: str | Path | None = None,
        progress: bool = True,
        on_round: Callable[[Record], None] | None = None,
        checkpoint_every: int = 1,
    ) -> History:
        """Train ``rounds`` more rounds.

        Parameters
        ----------
        rounds : >= 1.
        directory : where to append ``metrics.jsonl`` and keep a checkpoint; a run killed at any moment goes on from there
            with :meth:`resume`.
        progress : show a progress bar on a terminal.
        on_round : called with the record of each round.
        checkpoint_every : rounds between checkpoints.

        Raises
        ------
        QuorumError : too few clients answered well; the last complete round is kept.
        """
        _whole("rounds", rounds, 1)
        _whole("checkpoint_every", checkpoint_every, 1)
        total = self.progress.t + rounds
        path = Path(directory) if directory is not None else None
        if path is not None:
            self._settle(path, total)
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[accuracy]}"),
        )
        with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bar:
            task = bar.add_task(str(self.method), total=total, completed=self.progress.t, accuracy="")
            while self.progress.t < total:
                self.progress, record = self._round(total)
                self.records.append(record)
                if path is not None:
                    with (path / "metrics.jsonl").open("ab") as file:
                        file.write(line(record).encode())
                        file.flush()
                        os.fsync(file.fileno())  # before the checkpoint that counts on it
                    if self.progress.t % checkpoint_every == 0 or self.progress.t == total:
                        self.save(path, total)
                bar.update(task, advance=1, accuracy=_live(record))
                if on_round is not None:
                    on_round(record)
        return self.history

    def _settle(self, path: Path, rounds: int) -> None:
        """Make sure that the directory holds this run and no other."""
        if checkpoint.exists(path / "checkpoint"):
            _, meta = checkpoint.read(path / "checkpoint")
            if meta["t"] != self.progress.t:
                raise ValueError(
                    f"{path} holds a run after {meta['t']} rounds, and this federation is at {self.progress.t}. "
                    "Call resume() to go on with it, or choose another directory."
                )
        trim(path / "metrics.jsonl", self.progress.t)
        self.save(path, rounds)

    def _round(self, rounds: int) -> tuple[Progression, Record]:
        began = time.perf_counter()
        now, rules, t = self.progress, self.method.rules, self.progress.t
        asked = draws.participants(self.seed, t, len(self.data), self.participation).to(self.device)
        ids = asked.tolist()
        received = now.vector.expand(len(ids), -1) if now.given is None else now.given[asked]
        if self.private is not None and now.own is not None:
            received = torch.where(self.private, now.own[asked], received)
        states = tree_map(lambda leaf: leaf[asked], now.clients)
        job = Job(
            self.model, rules, self.solver, self.seed, t, rounds, self.epochs, self.batch_size, getattr(self.transform, "crop", 0),
            tuple(ids), received, states, [_messages(r, s, ids) for r, s in zip(rules, now.server, strict=True)], [self.data[k] for k in ids],
        )  # fmt: skip

        updates = torch.empty(len(ids), self.model.size, dtype=now.vector.dtype, device=self.device)
        own = None if now.own is None else now.own.clone()
        blank = tree_map(lambda leaf: leaf[0], now.clients)
        rows: list[int] = []
        answers: list[tuple[list[State], list[State]]] = []
        bad: list[guard.Quarantined] = []
        for answer in self.engine(job):
            problems = guard.inspect(answer, now.vector, blank)
            bad += [guard.Quarantined(ids[row], reason) for row, reason in problems.items()]
            good = [k for k, row in enumerate(answer.rows) if row not in problems]
            if good:
                at = [answer.rows[k] for k in good]
                updates[at] = (answer.trained if len(good) == len(answer.rows) else answer.trained[good]) - received[at]
                if own is not None:
                    own[asked[at]] = answer.trained[good]
                rows += at
                answers.append(tree_map(lambda leaf, good=good: leaf[good], (answer.reports, answer.states)))
        guard.quorum(len(rows), len(ids), self.quorum, [(self.names[q.client], q.reason) for q in bad])

        place = torch.tensor(rows, device=self.device).argsort()  # answers may come in any order
        kept = torch.tensor(sorted(rows), device=self.device)
        reports, states = tree_map(lambda *leaves: torch.cat(leaves)[place], *answers)
        cohort = self._cohort(t, rounds, asked[kept], updates if len(rows) == len(ids) else updates[kept])
        server = []
        for rule, state, report in zip(rules, now.server, reports, strict=True):
            after, cohort = rule.aggregate(state, replace(cohort, reports=report))
            server.append(after)
        vector = now.vector + torch.cat([cohort.step(), cohort.buffer_step()])

        following = self._following(now, cohort, vector, server, states, own)
        counted = cohort.weights if cohort.coefficients is None else cohort.coefficients / cohort.coefficients.sum()
        record: Record = {
            "round": t,
            "ids": cohort.ids.tolist(),
            "weights": [float(w) for w in counted],
            **cohort.notes,
        }
        if bad:
            record["quarantined"] = [
                {"client": q.client, "name": self.names[q.client], "reason": q.reason} for q in sorted(bad)
            ]
        if self.tests:
            record |= self._evaluate(following, rounds)
        record["seconds"] = round(time.perf_counter() - began, 4)
        return following, record

    def _cohort(self, t: int, rounds: int, ids: Tensor, updates: Tensor) -> Cohort:
        P = self.model.n_params
        if self.private is not None:
            updates = updates.masked_fill(self.private, 0)
        sizes = self.setup.sizes[ids]
        theta = self.progress.vector[:P]
        return Cohort(
            t,
            rounds,
            len(self.data),
            theta,
            updates[:, :P],
            ids,
            sizes,
            sizes / sizes.sum(),
            self.model.layout,
            updates[:, P:],
        )

    def _following(
        self,
        now: Progression,
        cohort: Cohort,
        vector: Tensor,
        server: list[State],
        states: list[State],
        own: Tensor | None,
    ) -> Progression:
        """What is remembered after the round: rewards and client states."""
        shared = vector.expand(len(cohort.ids), -1)
        given, after = shared, []
        done = replace(cohort, theta=vector[: self.model.n_params])
        for rule, state in zip(self.method.rules, server, strict=True):
            state, given = rule.reward(state, done, given)
            after.append(state)
        clients = tree_map(lambda old, new: old.index_copy(0, cohort.ids, new), now.clients, states)
        handed = now.given
        if given is not shared:
            before = now.given if now.given is not None else now.vector.expand(len(self.data), -1)
            handed = before.index_copy(0, cohort.ids, given)
        return Progression(now.t + 1, vector, clients, after, handed, own)

    # evaluation and use
    def _published(self, p: Progression) -> Tensor:
        theta = p.vector[: self.model.n_params]
        for rule, state in zip(self.method.rules, p.server, strict=True):
            theta = rule.publish(theta, state)
        return torch.cat([theta, p.vector[self.model.n_params :]])

    def _deployed(self, p: Progression, m: int) -> Tensor:
        vector = self._published(p) if p.given is None else p.given[m]
        if self.private is not None and p.own is not None:
            vector = torch.where(self.private, p.own[m], vector)
        for rule, state in zip(self.method.rules, p.clients, strict=True):
            vector = rule.deploy(vector, {k: v[m] for k, v in state.items()})
        return vector

    @property
    def personal(self) -> bool:
        """Whether clients predict with models of their own."""
        return self.private is not None or bool(self.method.overriding("deploy")) or self.progress.given is not None

    def _score(self, vector: Tensor, data: Samples | Stream) -> dict[str, float]:
        empty = draws.Plan(torch.empty(0, 0, dtype=torch.int64, device=self.device), None)
        accuracy, loss = Oracle(self._bound, data, self.solver, empty, self.model.n_params).score(vector)
        return {"accuracy": float(accuracy), "loss": float(loss)}

    def _evaluate(self, p: Progression, rounds: int) -> Record:
        vector = self._published(p)
        groups = {name: self._score(vector, data) for name, data in self.tests.items()}
        record: Record = {"groups": groups}
        if self.personal:
            if p.t % PERSONAL_EVERY and p.t <= rounds - LAST:
                return record
            scores = [self._client_accuracy(self._deployed(p, m), m) for m in range(len(self.data))]
        else:
            sizes = {name: data.size for name, data in self.tests.items()}
            everywhere = sum(groups[n]["accuracy"] * sizes[n] for n in sizes) / sum(sizes.values())
            scores = [
                everywhere if self.groups is None else groups[self.groups[m]]["accuracy"] for m in range(len(self.data))
            ]
        record["clients"] = {"accuracy": scores}
        return record

    def _client_accuracy(self, vector: Tensor, m: int) -> float:
        own = list(self.tests) if self.groups is None else [self.groups[m]]
        total = sum(self.tests[n].size for n in own)
        return sum(self._score(vector, self.tests[n])["accuracy"] * self.tests[n].size for n in own) / total

    def evaluate(self, x: Any = None, y: Any = None, *, client: int | None = None) -> dict[str, Any]:
        """Accuracy and loss of the global model (or of a client's) on ``(x, y)``, or on every test set."""
        vector = self._vector(client)
        if x is None:
            return {name: self._score(vector, data) for name, data in self.tests.items()}
        return self._score(
            vector,
            read(
                (x, y) if y is not None else x, "evaluation data", self.model.initial.dtype, self.device, self.transform
            ),
        )

    def predict(self, x: Any, *, client: int | None = None) -> Tensor:
        """Classes [n] of inputs ``x`` [n, *shape] by the global model, or by the model a client predicts with."""
        return self.logits(x, client=client).argmax(-1)

    def logits(self, x: Any, *, client: int | None = None) -> Tensor:
        """Logits [n, C] of inputs ``x`` [n, *shape]."""
        inputs = torch.as_tensor(x)
        data = read(
            (inputs, torch.zeros(len(inputs), dtype=torch.int64)),
            "x",
            self.model.initial.dtype,
            self.device,
            self.transform,
        )
        vector, P = self._vector(client), self.model.n_params
        parts = torch.arange(len(inputs), device=self.device).split(512)
        return torch.cat(
            [self._bound.forward(vector[:P], vector[P:].clone(), data.batch(rows, None)[0])[0] for rows in parts]
        )

    def _vector(self, client: int | None) -> Tensor:
        if client is None:
            return self._published(self.progress)
        if not 0 <= client < len(self.data):
            raise ValueError(f"client must be in 0..{len(self.data) - 1}; found {client}.")
        return self._deployed(self.progress, client)

    def state_dict(self, *, client: int | None = None) -> dict[str, Tensor]:
        """State dictionary of the global model, or of a client's, for your own network's ``load_state_dict``."""
        return self.model.state_dict(self._vector(client))

    def network(self, *, client: int | None = None) -> nn.Module:
        """A copy of your network with the trained values, in eval mode."""
        return self.model.network(self._vector(client))

    @property
    def history(self) -> History:
        """What happened so far."""
        meta = {
            "method": str(self.method),
            "seed": self.seed,
            "rounds": self.progress.t,
            "client_names": list(self.names),
            "client_groups": None if self.groups is None else list(self.groups),
            "header": self.header,
        }
        return History(tuple(self.records), meta)

    # checkpoints
    def _fingerprint(self) -> dict[str, Any]:
        return {
            "method": str(self.method),
            "seed": self.seed,
            "clients": len(self.data),
            "sizes": [d.size for d in self.data],
            "parameters": {n: list(s) for n, s in zip(self.model.names, self.model.shapes, strict=True)},
            "solver": repr(self.solver),
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "participation": self.participation,
        }

    def save(self, directory: str | Path, rounds: int | None = None) -> None:
        """Write a checkpoint into ``directory``/checkpoint, atomically."""
        meta = {"t": self.progress.t, "rounds": rounds or self.progress.t, "fingerprint": self._fingerprint()}
        checkpoint.write(Path(directory) / "checkpoint", self.progress.tensors(), meta)

    def resume(self, directory: str | Path) -> int:
        """Go back to the checkpoint in a directory; returns the rounds still planned.

        Raises
        ------
        CheckpointError : missing, damaged, or of a federation with other settings, naming the first that differs.
        """
        path = Path(directory)
        tensors, meta = checkpoint.read(path / "checkpoint")
        for key, now in self._fingerprint().items():
            then = meta.get("fingerprint", {}).get(key)
            if then != now:
                raise checkpoint.CheckpointError(
                    f"The checkpoint in {path} is of another experiment: its {key} is {_short(then)}, here it is {_short(now)}."
                )
        try:
            self.progress = self.progress.restored(tensors, int(meta["t"]))
        except KeyError as error:
            raise checkpoint.CheckpointError(
                f"The checkpoint in {path} lacks {error}. Delete it to start the run again."
            ) from None
        self.records = trim(path / "metrics.jsonl", self.progress.t)
        return int(meta["rounds"]) - self.progress.t


def trim(path: Path, t: int) -> list[Record]:
    """Drop what a killed run wrote to ``metrics.jsonl`` after its last checkpoint, and return the rest.

    Raises
    ------
    CheckpointError : a damaged line before that, which no kill explains; the file stays as it is.
    """
    if not path.exists():
        return []
    records: list[Record] = []
    lines = path.read_bytes().decode(errors="replace").split("\n")  # what follows the last newline is empty, or torn
    for number, text in enumerate(lines[:-1], start=1):
        if len(records) == t or (records and records[-1]["round"] >= t - 1):
            break
        try:
            record = json.loads(text)
            if record["round"] >= t:
                break
        except (ValueError, KeyError, TypeError):
            raise checkpoint.CheckpointError(
                f"{path}: line {number} is damaged. Put the file back, or delete {path.parent / 'checkpoint'} to start the run again."
            ) from None
        records.append(record)
    write_atomically(path, "".join(map(line, records)))
    return records


def _messages(rule: Rule, state: State, ids: Sequence[int]) -> State:
    """What each client is told, [M, ...]; a view where all are told the same."""
    if type(rule).message is Rule.message:
        return {}
    told = [rule.message(state, m) for m in ids]
    first = told[0]
    if all(other[k] is first[k] for other in told[1:] for k in first):
        return {k: v.expand(len(ids), *v.shape) for k, v in first.items()}
    stacked: State = tree_map(lambda *leaves: torch.stack(leaves), *told)
    return stacked


def _live(record: Record) -> str:
    groups = record.get("groups", {})
    return " ".join(f"{name} {100 * score['accuracy']:.0f}%" for name, score in list(groups.items())[:6])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _whole(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name} must be a whole number >= {low}; found {value!r}.")
