"""What a user holds: a model, its clients, a method, and everything the run remembers."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from equipoise.core import task
from equipoise.core.draws import Schedule, chances, cohort_size
from equipoise.core.model import Bound, Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Rule, Setup
from equipoise.core.settings import Keywords, Settings, changed
from equipoise.core.solver import SGD, Solver
from equipoise.data.samples import Absent, Samples, Stream, Transform, loaded, read
from equipoise.engines import ENGINES, Engine, EngineChoice, choose
from equipoise.federation import checkpoint, evaluation
from equipoise.federation.evaluation import EvaluationSets
from equipoise.federation.guard import QuorumError
from equipoise.federation.history import History
from equipoise.federation.inputs import Groups, frame
from equipoise.federation.method import Method
from equipoise.federation.population import Population
from equipoise.federation.records import line
from equipoise.federation.round import Experiment, Progression, Record, begin, looking, one_round, submodels
from equipoise.metrics.classification import chosen
from equipoise.submodels.hidden_units import Neurons
from equipoise.system.environment import kind, machine
from equipoise.system.files import write_atomically
from equipoise.system.ranges import check_whole

VALIDATION_BATCH = 64  # samples in a batch of the server's validation data, for methods that look at losses of batches
CONTRIBUTIONS = frozenset({"contribution", "contribution_on_test"})  # what a rule may need

Alone = dict[str, Any]  # what each client reaches alone, by the data it was measured on, and in how many rounds

log = logging.getLogger(__name__)


class Federation:
    """A model, its clients, a method, and everything the run remembers.

    Parameters
    ----------
    net : any ``nn.Module`` from inputs to logits [B, C]. It is copied, never changed.
    clients : for each client ``(x, y)`` (arrays or tensors, y integer labels), a ``torch.utils.data.Dataset``, or
        :class:`Lazy` for data that are loaded when the client takes part.
    method : text (``"fedproto+fedheal"``), a :class:`Method`, or your own :class:`Rule`.
    solver : the local optimiser; default ``SGD(lr=0.01)``.
    settings : what governs training; its ``engine`` may be an engine of your own.
    tests : named evaluation sets, ``{"hospital A": (x, y), ...}``; fairness is about these groups.
    transform : makes network inputs of a batch, ``transform(x, shift)``; its ``chances`` tell which random numbers each sample gets in training,
        or its ``crop`` (pixels) that it gets those of a crop.
    names : names of the clients.
    groups : for each client the name of the test set it belongs to; None tests clients on all of them.
    head : name of the classifier layer whose inputs are the features; default the last ``nn.Linear``.
    memory : bytes the clients' data sets may take together; larger ones are streamed. Default: half of what is free.
    measures : what is recorded of the global model on every test set, names of ``metrics.MEASURES``: accuracy always,
        in every round; ``"balanced"``, ``"auc"``, ``"auc_ovr"`` every fifth round and in each of the last five.
    validation : ``(x, y)`` or a data set of the server's own, for methods that judge clients by it.
    contribution : what each client contributes, numbers in [0, 1]. Default: the accuracy it reaches alone, found out by
        training the clients on their own before the first round, if the method or ``collaborative`` asks for it.
    collaborative : record what each client reaches alone, so that rewards can be compared with contributions.
    neurons : the hidden units of your network for FedSAC, ``{name: (modules that make them, modules that read them)}``;
        default: they are found. See the page on hidden units.
    workers : clients visited at a time, each on one core; the result does not depend on it. Default: as many as
        ``torch.get_num_threads()``.
    population : who reaches the clients, where that is not this process (:class:`Population`); ``engine`` asks them then.
    changes : single settings by name, such as ``epochs=2``, which win over ``settings``.

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
        settings: Settings | None = None,
        tests: Mapping[str, Any] | None = None,
        transform: Transform | None = None,
        names: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        head: str | None = None,
        memory: int | None = None,
        measures: Iterable[str] = ("accuracy",),
        validation: Any = None,
        contribution: Sequence[float] | None = None,
        collaborative: bool = False,
        neurons: Groups | None = None,
        workers: int | None = None,
        population: Population | None = None,
        **changes: Unpack[Keywords],
    ) -> None:
        settings = changed(settings, changes, Federation.__init__.__kwdefaults__)
        if workers is not None:
            check_whole("workers", workers, 1)
        measured = chosen(measures)
        known = frame(
            net,
            clients,
            settings,
            names,
            tests=tests or {},
            validation=validation,
            transform=transform,
            head=head,
            memory=memory,
        )
        model, held_out, where = known.model, known.validation, known.model.initial.device
        data, sets, asked = known.data, known.tests, cohort_size(len(known.data), settings.participation)
        self.tests = EvaluationSets(sets, _groups(groups, len(data), sets), measured)
        self.model = model
        self._dtype = known.dtype
        self.method = Method.of(method)
        self.solver = solver or SGD()
        self.method.check(self.solver)
        needs = self.method.needs
        if "validation" in needs and held_out is None:
            raise ValueError(
                f"{self.method} measures on validation data of the server's own, and this federation has none. "
                "Give validation=(x, y), which no client trains on, or choose a scenario that holds some out, such as digits-pow."
            )
        if contribution is None and needs & CONTRIBUTIONS:
            lacking = held_out is None if "contribution" in needs else not (sets or (population and population.tested))
            if lacking:
                what = "validation=(x, y) of the server's own" if "contribution" in needs else "tests={...}"
                raise ValueError(
                    f"{self.method} needs what each client contributes, measured on {what}, which this federation lacks. "
                    "Give it, or give contribution=[...] yourself."
                )
        hidden = known.neurons(neurons) if "neurons" in needs else None
        self.transform = transform
        self.workers = workers or torch.get_num_threads()
        here = [d for d in (known.first, *data) if not isinstance(d, Absent)]
        self.population = population
        self.engine_choice = _engine(settings.engine, model, here, asked) if population is None else population.choice
        if isinstance(settings.engine, str):
            call = ENGINES[self.engine_choice.engine](self.workers, settings.chunk)
        else:  # jobs have the settings and go to other processes: they get its name
            call, settings = settings.engine, replace(settings, engine=self.engine_choice.engine)
        sizes = torch.tensor([d.size for d in data], dtype=torch.float64, device=where)
        self.experiment = Experiment(
            model=model,
            bound=known.bound,
            method=self.method,
            solver=self.solver,
            engine=call,
            setup=Setup(
                model.initial,
                model.layout,
                sizes,
                self.solver,
                known.n_classes,
                known.n_features,
                model.head[: model.n_params],
                hidden,
                0 if held_out is None else -(-held_out.size // VALIDATION_BATCH),
                asked,
            ),
            data=data,
            names=known.names,
            private=self.method.private(model),
            settings=settings,
            chances=chances(transform),
            oracle=None if held_out is None else _judge(known.bound, held_out, self.solver),
            neurons=hidden,
            workers=self.workers,
            away=population is not None,
        )
        self.collaborative = collaborative or bool(needs & CONTRIBUTIONS)
        self.alone = None if contribution is None else _told(contribution, len(data))
        self._solo: Progression | None = None
        self.progress = begin(self.experiment)
        self.records: list[Record] = []
        self.machines: list[dict[str, Any]] = []  # what computed the rounds, each with the first of its own

    @property
    def header(self) -> list[str]:
        """What a reader of the results must know about how they were made."""
        e, m = self.experiment, self.experiment.model
        s = e.settings
        asked = cohort_size(len(e.data), s.participation)
        norm = "none in this network"
        if m.batch_norm:
            hidden = e.private is not None and bool(e.private[m.n_params :].all())
            masked = any(rule.mask_buffers for rule in self.method.rules)
            how = "averaged by client weight and " + ("masked like parameters" if masked else "not masked")
            how = "kept by each client; the global model is tested with their mean" if hidden else how
            norm = f"{m.size - m.n_params:,} running statistics, {how}; a last batch of one sample is left out"
        local = f"{s.epochs} local epochs" if s.steps is None else f"{s.steps} local steps"
        local += f" of batch {s.batch_size}"
        lines = [
            f"method {self.method} · {len(e.data)} clients, {asked} a round · {local} · {self.solver}",
            f"network of {m.n_params:,} trainable parameters ({str(m.initial.dtype).removeprefix('torch.')}{', autocast to bf16' * m.bf16}); "
            + (f"features enter {m.head_name!r}" if m.head_name else "no linear layer, so the logits are its features"),
            f"engine {self.engine_choice.engine}: {self.engine_choice.why}",
            f"BatchNorm: {norm}",
        ]
        if e.neurons is not None:
            found = ", ".join(f"{name} {size}" for name, size in zip(e.neurons.names, e.neurons.sizes, strict=True))
            rest = "; ".join(f"{name} is everybody's ({why})" for name, why in e.neurons.left_out.items())
            lines.append(f"hidden units: {found}" + (f"; {rest}" if rest else ""))
        return lines

    @property
    def personal(self) -> bool:
        """Whether clients predict with models of their own."""
        return evaluation.personal(self.experiment, self.progress)

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

        Rules with a schedule (FedProc, FedGA, a growing search distance) plan for all rounds known now, so ``fit(40)`` is not ``fit(20)`` twice.

        Parameters
        ----------
        rounds : >= 1. Those of a run that was begun with another kind of processor, or with other libraries, follow after a
            warning, as the last bits may differ.
        directory : where to append ``metrics.jsonl`` and keep a checkpoint; a run killed at any moment goes on from
            there with :meth:`resume`.
        progress : show a progress bar on a terminal.
        on_round : called with the record of each round.
        checkpoint_every : rounds between checkpoints.

        Raises
        ------
        QuorumError : too few clients answered well; the last complete round is kept.
        ValueError : a directory that holds another run.
        """
        check_whole("rounds", rounds, 1)
        check_whole("checkpoint_every", checkpoint_every, 1)
        total = self.progress.t + rounds
        path = Path(directory) if directory is not None else None
        self._note_machine()
        self.prepare(total, progress=progress)
        if path is not None:
            self._settle(path, total)
        with _bar(progress) as bar:
            task = bar.add_task(str(self.method), total=total, completed=self.progress.t, accuracy="")
            while self.progress.t < total:
                record = self._round(total)
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

    def _note_machine(self) -> None:
        """Remember what computes the next rounds; a run that another kind of processor began goes on with a warning."""
        here = {"round": self.progress.t, **machine(self.model.initial.device)}
        if self.machines and kind(self.machines[-1]) == kind(here):
            return
        if self.machines:
            log.warning(
                "%s, seed %d: rounds before %d were computed with %s; here it is %s, so from here on the last bits may differ.",
                self.method, self.experiment.settings.seed, self.progress.t, kind(self.machines[-1]), kind(here),
            )  # fmt: skip
        self.machines = [*self.machines, here]

    def _round(self, rounds: int) -> Record:
        began = time.perf_counter()
        e, now, clients = self.experiment, self.progress, self.population
        following, record = one_round(e, now, rounds) if clients is None else clients.train(e, now, rounds)
        if clients is not None:
            record |= clients.test(e, self.tests, following, rounds)
        elif self.tests.sets:
            record |= self.tests.record(e, following, rounds)
        record["seconds"] = round(time.perf_counter() - began, 4)
        self.records.append(record)
        self.progress = following  # last, so that a stop at any moment leaves both as they were or both new
        return record

    def prepare(self, rounds: int, *, progress: bool = True) -> None:
        """Find out what each client reaches alone in ``rounds`` rounds, if the method or ``collaborative`` asks for it.

        ``fit`` calls it. What was found for as many rounds, or was given, is kept.
        """
        known = self.alone is not None and self.alone.get("rounds") in (None, rounds)
        if self.collaborative and not known:
            self.alone = self.standalone(rounds, progress=progress)
        self.experiment = replace(self.experiment, contribution=self._contribution())

    def standalone(self, rounds: int, *, progress: bool = True) -> Alone:
        """What each client reaches when it trains on its own data alone, as the method ``standalone`` does.

        Every client starts from the first model and trains ``rounds`` times as long as in a round, alone. One that fails
        keeps the last model that it had. Called again for more rounds, the training goes on.

        Parameters
        ----------
        rounds : >= 1.
        progress : show a progress bar on a terminal.

        Returns
        -------
        ``{"standalone_test": [N], "standalone_val": [N], "rounds": rounds}``, accuracies in [0, 1] on the test sets of each
        client and on the server's validation data; None where there are no such data.
        """
        if self.population is not None:
            return self.population.standalone(self.experiment, self.tests, rounds)
        e = alone(self.experiment)
        now = self._solo if self._solo is not None and self._solo.t <= rounds else begin(e)
        failed: dict[str, str] = {}
        with _bar(progress) as bar:
            task = bar.add_task("every client alone", total=rounds, completed=now.t, accuracy="")
            while now.t < rounds:
                try:
                    now, record = one_round(e, now, rounds)
                    failed |= {q["name"]: q["reason"] for q in record.get("quarantined", [])}
                except QuorumError as error:  # nobody could train
                    failed |= {"all clients": str(error)}
                    now = replace(now, t=now.t + 1)
                bar.update(task, advance=1)
        self._solo = now
        for name, reason in failed.items():
            log.warning("%s cannot train alone to the end (%s); its last good model counts", name, reason)
        tested: list[float] | None = [] if self.tests.sets else None
        judged: list[float] | None = None if e.oracle is None else []
        with looking(e, 0):
            for m in range(len(e.data)):  # one model at a time
                vector = evaluation.deployed(e, now, m)
                if tested is not None:
                    tested.append(self.tests.accuracy(e, vector, m))
                if judged is not None and e.oracle is not None:
                    judged.append(float(e.oracle.score(vector)[0]))
        return {"standalone_test": tested, "standalone_val": judged, "rounds": rounds}

    def _contribution(self) -> Tensor | None:
        """What the method takes for the clients' contributions [N]."""
        if self.alone is None or not self.method.needs & CONTRIBUTIONS:
            return None
        values = self.alone[self._source]
        return torch.tensor(values, dtype=torch.float64, device=self.model.initial.device)

    @property
    def _source(self) -> str:
        if self.alone is not None and "given" in self.alone:
            return "given"
        return "standalone_test" if "contribution_on_test" in self.method.needs else "standalone_val"

    def _settle(self, path: Path, rounds: int) -> None:
        """Make sure that the directory holds this run and no other, with all its rounds so far."""
        if checkpoint.exists(path / "checkpoint"):
            meta = checkpoint.about(path / "checkpoint")
            ours = fingerprint(self.experiment)
            if meta["t"] != self.progress.t or differing(meta.get("fingerprint", {}), ours):
                raise ValueError(
                    f"{path} holds another run, at round {meta['t']}, and this federation is at {self.progress.t}. "
                    "Call resume() to go on with a run, or choose another directory."
                )
        if self.records or (path / "metrics.jsonl").exists():
            write_atomically(path / "metrics.jsonl", "".join(map(line, self.records)))
        self.save(path, rounds)
        manifest = path / "manifest.json"
        known = json.loads(manifest.read_text()) if manifest.exists() else {**self.history.meta, "rounds": rounds}
        write_atomically(manifest, json.dumps({**known, "machines": self.machines}, indent=1))

    @property
    def history(self) -> History:
        """What happened so far."""
        meta = {
            "method": str(self.method),
            "seed": self.experiment.settings.seed,
            "rounds": self.progress.t,
            "client_names": list(self.experiment.names),
            "client_groups": None if self.tests.groups is None else list(self.tests.groups),
            "measures": list(self.tests.measures),
            "header": self.header,
            "machines": self.machines,
        }
        if self.alone is not None:
            used = self._source if self.method.needs & CONTRIBUTIONS else None
            meta["contribution"] = {**self.alone, "used": used}
        if (neurons := self.experiment.neurons) is not None:
            meta["units"] = {"names": list(neurons.names), "sizes": list(neurons.sizes)}
        return History(tuple(self.records), meta)

    # use
    def evaluate(self, x: Any = None, y: Any = None, *, client: int | None = None) -> dict[str, Any]:
        """Accuracy, loss and the other measures of the global model (or a client's) on ``(x, y)``, or every test set."""
        vector = self._vector(client)
        if x is None:
            return {n: self.tests.score(self.experiment, vector, d) for n, d in self.tests.sets.items()}
        data = read((x, y) if y is not None else x, "evaluation data", self._dtype, vector.device, self.transform)
        return self.tests.score(self.experiment, vector, loaded(data))

    def predict(self, x: Any, *, client: int | None = None) -> Tensor:
        """Classes [n] of inputs ``x`` [n, *shape] by the global model, or by the model a client predicts with."""
        return task.predictions(self.logits(x, client=client))

    def logits(self, x: Any, *, client: int | None = None) -> Tensor:
        """Logits [n, C] of inputs ``x`` [n, *shape], which are given as the training data were."""
        vector = self._vector(client)
        inputs = torch.as_tensor(x)
        blank = torch.zeros(len(inputs), dtype=torch.int64)
        data = loaded(read((inputs, blank), "x", self._dtype, vector.device, self.transform))
        ((logits, _),) = evaluation.answers(self.experiment, vector, [data])
        return logits

    def _vector(self, client: int | None) -> Tensor:
        if client is None:
            return evaluation.published(self.experiment, self.progress)
        if client not in range(len(self.experiment.data)):
            raise ValueError(f"client must be in 0..{len(self.experiment.data) - 1}; found {client!r}.")
        deployed = evaluation.deployed if self.population is None else self.population.deployed
        return deployed(self.experiment, self.progress, client)

    def state_dict(self, *, client: int | None = None) -> dict[str, Tensor]:
        """State dictionary of the global model, or of a client's, for your own network's ``load_state_dict``."""
        return self.experiment.model.state_dict(self._vector(client))

    def network(self, *, client: int | None = None, compact: bool = False) -> nn.Module:
        """A copy of your network with the trained values, in eval mode.

        ``compact`` gives a client of FedSAC the really smaller network, without the hidden units it does not hold.

        Raises
        ------
        ValueError : there is no such client, or ``compact`` where there is no submodel or none can be cut out.
        """
        e, vector = self.experiment, self._vector(client)
        if not compact:
            return e.model.network(vector)
        units = None if client is None else submodels(e, self.progress.server, [client])
        if units is None or e.neurons is None:
            why = "the global model is whole" if client is None else f"{self.method} gives clients the whole network"
            raise ValueError(f"compact: there is no submodel to cut out, because {why}. Leave compact out.")
        if not e.neurons.fits(units[0]):
            raise ValueError(
                "compact: this network cannot be made smaller (its code may name sizes, or a convolution would have no "
                "channel left). Leave compact out: what the client does not hold is zero."
            )
        model, index = e.neurons.extract(units[0])
        return model.network(vector[index])

    # checkpoints
    def save(self, directory: str | Path, rounds: int | None = None) -> None:
        """Write a checkpoint into ``directory``/checkpoint, atomically; ``rounds`` is how many are planned."""
        t = self.progress.t
        meta = {"t": t, "rounds": rounds or t, "fingerprint": fingerprint(self.experiment), "alone": self.alone}
        meta["machines"] = self.machines
        checkpoint.write(Path(directory) / "checkpoint", self.progress.tensors(), meta)
        if self.population is not None:
            self.population.saved(self.progress)

    def resume(self, directory: str | Path) -> int:
        """Go back to the checkpoint in a directory; returns the rounds still planned.

        Raises
        ------
        CheckpointError : missing, damaged, or of a federation with other settings, naming the first that differs.
        """
        path = Path(directory)
        tensors, meta = checkpoint.read(path / "checkpoint")
        ours, its = fingerprint(self.experiment), meta["fingerprint"]
        if key := differing(its, ours):
            raise checkpoint.CheckpointError(
                f"The checkpoint in {path} is of another experiment: "
                f"its {key} is {_short(its.get(key))}, here it is {_short(ours.get(key))}."
            )
        try:
            self.progress = self.progress.restored(tensors, int(meta["t"]))
        except KeyError as error:
            raise checkpoint.CheckpointError(
                f"The checkpoint in {path} lacks {error}. Delete it to start the run again."
            ) from None
        self.alone = self.alone or meta.get("alone")
        self.records = trim(path / "metrics.jsonl", self.progress.t)
        self.machines = list(meta.get("machines", []))
        if self.population is not None:
            self.population.saved(self.progress)
        return int(meta["rounds"]) - self.progress.t


def alone(e: Experiment) -> Experiment:
    """The same clients, all of them in every round, who train for themselves only."""
    method, everybody = Method.of("standalone"), replace(e.settings, participation=1.0, quorum=0.0)
    return replace(e, method=method, private=method.private(e.model), settings=everybody, neurons=None)


def structure(model: Model, neurons: Neurons | None) -> dict[str, Any]:
    """What of a network must agree wherever it is trained, beside its values."""
    units = None if neurons is None else [[g.name, list(g.rows), list(g.columns)] for g in neurons.groups]
    return {
        "parameters": {n: list(s) for n, s in zip(model.names, model.shapes, strict=True)},
        "fixed": hashlib.sha256(b"".join(_bytes(x) for x in model.fixed())).hexdigest(),
        "hidden units": units,
    }


def fingerprint(e: Experiment) -> dict[str, Any]:
    """What must agree for a checkpoint to be continued."""
    return {
        "method": str(e.method),
        "seed": e.settings.seed,
        "clients": len(e.data),
        "sizes": [d.size for d in e.data],
        "labels": e.labels,
        **structure(e.model, e.neurons),
        "validation": None if e.oracle is None or not e.method.needs else _validation(e.oracle),
        "solver": repr(e.solver),
        **e.settings.decisive,
    }


def differing(its: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """The first entry in which two fingerprints differ; a setting that is newer than a checkpoint had its default there."""
    its = {**Settings().decisive, **its}
    return next((key for key in {**ours, **its} if its.get(key) != ours.get(key)), None)


def _judge(bound: Bound, data: Samples | Stream, solver: Solver) -> Oracle:
    """The server's oracle: its data in order, in batches."""
    drawn = torch.arange(-(-data.size // VALIDATION_BATCH) * VALIDATION_BATCH, device=data.sizes.device)
    index = torch.where(drawn < data.size, drawn, -1).view(-1, VALIDATION_BATCH)
    return Oracle(bound, data, solver, Schedule(index, None), bound.model.n_params)


def _told(contribution: Sequence[float], n: int) -> Alone:
    try:
        values = [float(c) for c in contribution]
    except (TypeError, ValueError):
        values = []
    if isinstance(contribution, Mapping | str) or (len(contribution) and not values):
        raise TypeError(
            f"contribution must be a list of numbers in [0, 1], one per client; found {_short(contribution)}."
        )
    if len(values) != n:
        raise ValueError(f"contribution must hold one number per client: expected {n}, found {len(values)}.")
    if not all(0 <= c <= 1 for c in values):
        found = f"{min(values):g} to {max(values):g}"
        raise ValueError(f"contribution must hold fractions in [0, 1]; found {found}. Divide percentages by 100.")
    return {"standalone_test": values, "standalone_val": None, "given": values, "rounds": None}


def _validation(oracle: Oracle) -> str:
    source = oracle.source
    known = source.known if isinstance(source, Samples | Stream) else None
    return str(int(source.sizes)) if known is None else hashlib.sha256(_bytes(known[1])).hexdigest()


def _bytes(x: Tensor) -> bytes:
    return x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() if x.numel() else b""


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


def _engine(engine: str | Engine, model: Model, data: Sequence[Samples | Stream], asked: int) -> EngineChoice:
    if not isinstance(engine, str):
        return EngineChoice(getattr(engine, "__name__", type(engine).__name__), "asked for")
    if engine == "auto":
        return choose(model, data, asked, torch.get_num_threads())
    if engine not in ENGINES:
        raise ValueError(f"Unknown engine {engine!r}. Choose one of: auto, {', '.join(ENGINES)}.")
    return EngineChoice(engine, "asked for")


def _groups(groups: Sequence[str] | None, n: int, sets: Mapping[str, Any]) -> tuple[str, ...] | None:
    if groups is None:
        return None
    strange = sorted(set(groups) - set(sets))
    if len(groups) != n or strange:
        found = f"unknown {', '.join(strange)}" if strange else f"{len(groups)} entries"
        expected = f"{n} clients; test sets: {', '.join(sets) or 'none'}"
        raise ValueError(f"groups must name one test set per client ({expected}); found {found}.")
    return tuple(groups)


def _bar(wanted: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[accuracy]}"),
        console=console,
        disable=not (wanted and console.is_terminal),
    )


def _live(record: Record) -> str:
    groups = record.get("groups", {})
    return " ".join(f"{name} {100 * score['accuracy']:.0f}%" for name, score in list(groups.items())[:6])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
