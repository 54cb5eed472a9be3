"""What a user holds: a model, its clients, a method, and everything the run remembers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from equipoise.core.outputs import Outputs
from equipoise.core.rates import check_rounds, rate
from equipoise.core.rule import Rule
from equipoise.core.settings import Settings, changed
from equipoise.core.solver import Solver, checked as checked_solver
from equipoise.core.task import Regression, Task, task_of
from equipoise.data.batch import count
from equipoise.data.holdings import examples as example_images, holdings
from equipoise.data.samples import Samples, Transform, as_inputs, check, loaded, rounding
from equipoise.engines import distributed
from equipoise.federation import checkpoint, contribution as contributions, directory as files, evaluation
from equipoise.federation.evaluation import EvaluationSets
from equipoise.federation.fingerprint import contents, differences, fingerprint
from equipoise.federation.guard import QuorumError
from equipoise.federation.history import History
from equipoise.federation.inputs import Groups, frame, named, own_tests, repeated, require_people, taking
from equipoise.federation.method import Method, in_force, printed
from equipoise.federation.preparation import (
    Arrangement,
    Population,
    check_away,
    choose_engine,
    held_out,
    prepare,
    recorded_of,
    who_comes,
)
from equipoise.federation.round import blank_job, one_round, poisoned
from equipoise.federation.standing import ProgressLog, Standing, accuracies, progress_bar, shown_rate
from equipoise.federation.stopping import Stop, check_stop, reason
from equipoise.federation.trial import Progression, begin
from equipoise.metrics.classification import RATES, Measure, failures
from equipoise.metrics.failure import diverged
from equipoise.metrics.groups import positive_class
from equipoise.records.criteria import rungs
from equipoise.records.history import LEAST
from equipoise.records.identity import stated
from equipoise.records.meta import Content, Contribution, Meta
from equipoise.records.record import Record, large, without
from equipoise.records.validation import selected
from equipoise.report.holdings import example_images as draw_examples, sentence, who_has_what
from equipoise.report.html import block
from equipoise.system import own_code
from equipoise.system.ranges import check_whole
from equipoise.system.suggestions import some
from equipoise.system.text import key_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from equipoise.federation.thresholds import Threshold

log = logging.getLogger(__name__)
STATE = {"trial", "progress", "best", "records", "machines", "alone", "_solo"}  # what changes as a federation trains


class Federation(Arrangement):
    """A model, its clients, a method, and everything the run remembers.

    The class is long because it is all that a user holds: every argument of a run, and a method for every use of it.

    Parameters
    ----------
    net : any ``nn.Module`` from inputs to logits [B, C]. It is copied, never changed.
    clients : for each client ``(x, y)`` (arrays or tensors, y integer labels), or ``(x, y, s)`` with codes of A sensitive
        attributes s, [n] or [n, A], whole numbers >= -1 (-1: unknown), which the network never sees; x may be a
        dictionary of tensors, with which the network is called. Or a dictionary of x, y and s, a ``torch.utils.data.Dataset`` of such
        samples, or :class:`Lazy` for data that are loaded when the client takes part.
    method : text (``"fedproto+fedheal"``), a :class:`Method`, or your own :class:`Rule`.
    solver : the local optimiser; default ``SGD(lr=0.01)``.
    settings : what governs training; its ``engine`` may be an engine of your own.
    tests : named evaluation sets, ``{"hospital A": (x, y), ...}``; fairness is about these groups.
    transform : makes network inputs of a batch, ``transform(x, shift)``; its ``chances`` say which random numbers each sample gets in training,
        or its ``crop`` (pixels) that it gets those of a crop.
    names : names of the clients.
    groups : for each client the name of the test set it belongs to; None tests clients on all of them.
    client_tests : for each client a test set of its own, ``(x, y)`` or None, where ``tests`` divide the samples otherwise. Without
        ``tests`` up to 20 clients are the groups, and more are tested together, too.
    head : name of the classifier layer whose inputs are the features; default the last ``nn.Linear``.
    memory : bytes the clients' data sets may take together; larger ones are streamed. Default: half of what is free.
    task : what y means: ``"classification"``, ``"regression"`` (y are numbers, the network has one output), or a :class:`Regression`.
    measures : what is recorded of the global model on every test set, names of ``metrics.MEASURES``: accuracy always,
        in every round; ``"balanced"``, ``"auc"``, ``"auc_ovr"`` every fifth round and in each of the last five. So are, also
        of every client: ``"f1"``, ``"mcc"``, ``"kappa"``, ``"ece"``, ``"brier"``, ``"log_loss"``, functions of your own and
        :class:`equipoise.Measure`, also as text, ``"mine.py:cost"``.
    server_validation : ``(x, y)`` or a data set of the server's own, for methods that judge clients by it.
    contribution : what each client contributes, numbers in [0, 1]. Default: the accuracy it reaches alone, measured by
        training the clients on their own before the first round, if the method or ``collaborative`` asks for it.
    collaborative : record what each client reaches alone, so that rewards can be compared with contributions.
    neurons : the hidden units of your network for FedSAC, ``{name: (modules that make them, modules that read them)}``;
        default: they are found. See the page on hidden units.
    workers : clients visited at a time, each on one core; the result does not depend on it. Default: as many as
        ``torch.get_num_threads()``.
    population : who reaches the clients, where that is not this process (:class:`Population`); ``engine`` asks them then.
    classes : names of the classes, in the order of their numbers. Default: the numbers.
    attributes : by the name of each sensitive attribute, in the order of the columns of s, the names of its values in the order of their
        codes. Default: ``s``, of several ``s[0]``, ``s[1]``, ..., and the codes.
    positive : the name of the class that true-positive rates, equal opportunity and missed cases are about, against all others. By
        default that of two which names tell (1, yes, true, positive, case), else the second of two, which is then said.
    least_group : >= 1, fewest test samples of a group of which numbers are shown, and of a client whose number is shown; smaller groups are in no average.
    select : the model that ``network``, ``predict``, ``evaluate`` and ``state_dict`` use: that of the ``"last"`` round, or
        ``"best-validation"``, that of the round with the best accuracy on what clients hold out (of equal ones that with the
        lower loss, then the earlier).
    changes : single settings by name, such as ``epochs=2``, which win over ``settings``.

    Raises
    ------
    ValueError, TypeError : naming what was given, what was expected and what was found.
    """

    def __init__(
        self,
        net: nn.Module,
        clients: Iterable[object],
        method: str | Rule | Method | Iterable[Rule] = "fedavg",
        solver: Solver | None = None,
        *,
        settings: Settings | None = None,
        tests: Mapping[str, object] | None = None,
        transform: Transform | None = None,
        names: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        client_tests: Sequence[object] | None = None,
        head: str | None = None,
        memory: int | None = None,
        task: str | Task = "classification",
        measures: Iterable[str | Measure | Callable[..., object]] = ("accuracy",),
        server_validation: object = None,
        contribution: Sequence[float] | None = None,
        collaborative: bool = False,
        neurons: Groups | None = None,
        workers: int | None = None,
        population: Population | None = None,
        classes: Sequence[str] | None = None,
        attributes: Mapping[str, Sequence[str]] | None = None,
        positive: str | int | None = None,
        least_group: int = LEAST,
        select: str = "last",
        **changes: Any,
    ) -> None:
        settings = changed(settings, changes, Federation.__init__.__kwdefaults__)
        if workers is not None:
            check_whole("workers", workers, 1)
        if settings.engine == distributed.NAME:
            distributed.require(workers, settings.device)
        meaning = task_of(task)
        recorded, own = recorded_of(meaning, measures)
        rules, optimiser = Method.of(method), checked_solver(solver)
        rules.check(optimiser)
        mine, tests, groups = own_tests(client_tests, tests, groups, names)
        inputs = frame(
            net,
            clients,
            settings,
            names,
            lr=optimiser.lr,
            tests={} if tests is None else tests,
            client_tests=mine,
            server_validation=server_validation,
            transform=transform,
            head=head,
            memory=memory,
            task=meaning,
        )
        away = population is not None
        belongs = named("groups", groups, "clients, that of its test set")
        sets = EvaluationSets(inputs.tests, belongs, recorded, inputs.client_tests, len(inputs.data), own)
        sensitive = inputs.sensitive(attributes, away=away)
        # sites' attributes are known by name where no test set here has them
        people = sensitive or {name: (*values,) for name, values in (attributes or {}).items()}
        inputs.require_data_for(rules)
        require_people(rules, people, here=not away and all(isinstance(d, Samples) for d in inputs.data))
        check_whole("least_group", least_group, 1, meaning=" test samples")
        called = _classes(classes, inputs.n_classes)
        target = positive_class(positive, called)
        of_people = repeated(inputs.data, (*inputs.tests.values(), *(inputs.client_tests or ())))
        inputs, held = (inputs, None) if away else held_out(inputs, settings, sets.groups)  # sites hold out their own
        check_away(rules, select, away=away, held=held is not None)
        tested, judged = bool(inputs.tests or (population and population.tested)), inputs.server_validation is not None
        measured = contributions.to_measure(
            rules, settings, asked=collaborative, given=contribution is not None, validation=judged, tests=tested
        )
        presence, attackers = who_comes(inputs, rules, settings, sets.groups, here=not away)
        given, settings = (inputs, settings) if rules.sharing.clients else inputs.pooled(settings)
        choice = choose_engine(given, settings) if population is None else population.choice
        trial = prepare(
            given,
            rules,
            optimiser,
            settings,
            choice.engine,
            groups=neurons,
            workers=workers or torch.get_num_threads(),
            attributes=given.values(people),
            positive=None if target is None else target.number,
        )
        self.trial = replace(trial, away=away, presence=presence, attackers=attackers)
        super().__init__(
            inputs, sets, held, called, people, target, least_group, select, population, choice, measured, of_people
        )
        self.alone = None if contribution is None else contributions.given(contribution, len(self.names))
        self._join()
        self._solo: Progression | None = None  # how far the clients have trained alone
        self.progress = begin(self.trial)
        self.best: Progression | None = None  # after the round with the best validation, if that is to be kept
        self.records: list[Record] = []
        self.machines: list[Content] = []  # what computed the rounds, each with the first of its own

    def __setattr__(self, name: str, value: object) -> None:
        if name not in STATE:
            raise AttributeError(
                f"{name} cannot be set on a federation that is made: it would train as before. Make another federation with it."
            )
        super().__setattr__(name, value)

    def _join(self) -> None:
        """Meet other processes that train the same federation; in each but one this is the end."""
        if isinstance(self.trial.engine, distributed.Distributed):
            jobs = [blank_job(trial, poisoned(trial)) for trial in (self.trial, contributions.isolated(self.trial))]
            self.trial.engine.join(self.fingerprint, self._unlike, jobs)

    def _unlike(self, its: Content) -> str:
        """In what another process has another federation, in words; empty if it has the same."""
        ours = self.fingerprint
        if its["sizes"] != ours["sizes"]:  # of many clients a long list
            return "it has other data: clients with other numbers of samples"
        changes = differences(its, ours)
        return f"it has {stated(changes)}" if changes else ""

    def judged(self, record: Record) -> Record:
        """A record without scores about too few people, see `equipoise.records.record.large`."""
        return large(record, self.least_group, self.names if self.population is None else ())

    def standing(self, rounds: int) -> Standing:
        """How far the run is, of so many rounds."""
        return Standing.of([*map(self.judged, self.records)], rounds)

    def __repr__(self) -> str:
        records = [record for record in self.records if record.get("groups")][-1:]
        tested = [", ".join(accuracies(self.judged(record))) for record in records]
        net = f"{type(self.model.net).__name__} with {self.model.n_params:,} parameters"
        what = [str(self.method), net, f"{len(self.names)} clients", f"{self.progress.t} rounds", *tested]
        return f"Federation({', '.join(what)})"

    def _repr_html_(self) -> str:
        if any(record.get("groups") for record in self.records):
            return self.history._repr_html_()
        return block(
            f"{self!r}: {sentence(self.holdings, not isinstance(self.model.task, Regression))}", figure=self.show()
        )

    @property
    def header(self) -> list[str]:
        """What a reader of the results must know about how they were made."""
        held = [] if self.held is None else self.held.header(self.names, self.trial.settings.validation)
        about = [self.positive.sentence] if self.positive is not None and RATES in self.tests.measures else []
        return [*self.trial.header(self.engine_choice), *held, *about, *self.repeated]

    @property
    def personal(self) -> bool:
        """Whether clients predict with models of their own."""
        return evaluation.personal(self.trial, self.progress)

    @property
    def method(self) -> Method:
        """The rules that are trained by."""
        return self.trial.method

    @property
    def solver(self) -> Solver:
        """The local optimiser."""
        return self.trial.solver

    @property
    def workers(self) -> int:
        """How many clients are visited at a time, each on one core."""
        return self.trial.workers

    # training
    def fit(
        self,
        rounds: int,
        *,
        directory: str | Path | None = None,
        progress: bool = True,
        on_round: Callable[[Record], object] | None = None,
        stop: Stop | None = None,
        checkpoint_every: int = 1,
        keep_checkpoints: int = 1,
    ) -> History:
        """Train ``rounds`` more rounds.

        Rules with a schedule (FedProc, FedGA, a growing search distance) plan for all rounds known now, so ``fit(40)`` is not ``fit(20)`` twice.

        Parameters
        ----------
        rounds : >= 1. Those of a run that was begun with another kind of processor, or with other libraries, follow after a
            warning, as the last bits may differ.
        directory : where to append ``metrics.jsonl`` and keep a checkpoint; a run killed at any moment continues from
            there with :meth:`resume`.
        progress : show a progress bar on a terminal, and elsewhere write a line after the first round, and then about one a minute.
        on_round : called with the record of each round; if it returns True, training pauses after this round.
        stop : called with all records after each round, such as :class:`equipoise.EarlyStopping`; if it returns a reason (or
            True), training ends, and the last record has it as ``"stopped"``. With it every round has the full evaluation.
        checkpoint_every : rounds between checkpoints.
        keep_checkpoints : how many of the last checkpoints are kept, >= 1; see :meth:`resume`.

        Raises
        ------
        QuorumError : too few clients answered well; the last complete round is kept.
        ValueError : a directory that holds another run.
        RunError : another process trains there.
        """
        counts = {"rounds": rounds, "checkpoint_every": checkpoint_every, "keep_checkpoints": keep_checkpoints}
        for name, number in counts.items():
            check_whole(name, number, 1)
        if directory is None and max(checkpoint_every, keep_checkpoints) > 1:
            raise ValueError(
                "checkpoint_every and keep_checkpoints have no effect without a directory. Give one, or leave them out."
            )
        check_stop(stop, self.trial.settings)
        total = self.progress.t + rounds
        for doubt in self._doubts(total):
            log.warning("%s", doubt)
        path = Path(directory) if directory is not None else None
        self.machines = self.trial.machines(self.machines, self.progress.t)
        self.prepare(total, progress=progress)
        lines, method = ProgressLog(progress), own_code.short(str(self.method))
        called = f"{method}, seed {self.trial.settings.seed}"
        losing = distributed.naming_lost(self.trial.engine)
        with self._settled(path, total, keep_checkpoints), losing, progress_bar(progress) as bar:
            task = bar.add_task(method, total=total, completed=self.progress.t, accuracy="")
            if ended := reason(stop, self.records):
                log.warning("No round is trained: %s.", ended)
            pause = bool(ended)
            while self.progress.t < total and not pause:
                record = self._round(total, stop)
                ends = self.progress.t == total or "stopped" in record
                kept = ends or self.progress.t % checkpoint_every == 0
                if path is not None:
                    files.append(path, record)
                    if kept:
                        self.save(path, total, keep_checkpoints)
                bar.update(task, advance=1, accuracy=accuracies(self.judged(record)))
                if lines.due(called, ends=ends):
                    lines.say(called, self.standing(total), shown_rate(self.solver.lr, self.progress.t, total))
                pause = (on_round is not None and on_round(record) is True) or "stopped" in record
                if path is not None and pause and not kept:
                    self.save(path, total, keep_checkpoints)
        return self.history

    def _doubts(self, total: int) -> Iterator[str]:
        """What to know before rounds are trained, of which there are then ``total``."""
        presence = self.trial.presence
        never = [] if presence is None else [self.names[m] for m in (presence.joins >= total).nonzero()[0]]
        if never:
            yield f"The last round is {total - 1}, and joins lets {some(never)} begin later, so never."
        if self.positive is not None and self.positive.why == "assumed" and RATES in self.tests.measures:
            yield self.positive.sentence
        if self.progress.t:
            return
        for name, data in zip(self.names, self.inputs.data, strict=True):
            if why := rounding(data):
                yield f"{name}: {why} Subtract their mean, in double precision, before you give them."
                break
        yield from (f"{self.method}: {why}" for rule in self.method.rules if (why := rule.doubt(self.trial.setup)))

    def _round(self, rounds: int, stop: Stop | None = None) -> Record:
        began = time.perf_counter()
        trial, now, clients = self.trial, self.progress, self.population
        following, record = one_round(trial, now, rounds) if clients is None else clients.train(trial, now, rounds)
        any_counts = stop is not None or self.select != "last"  # any round may be the last that does
        if not self.method.sharing.clients:  # it has no clients that could weigh, send or lose anything
            record = without(record, ("ids", "weights", "losses", "bytes"))
        chooses = trial.settings.validation > 0  # by what clients hold out, and perhaps after fewer rounds
        judged = next(t for t in rungs(rounds) if t >= following.t) if chooses else rounds
        record |= self._scores(following, following.t if any_counts else judged)
        if why := self._diverged(record):
            record["diverged"] = why
            if not any(before.get("diverged") for before in self.records):
                advice = "Lower the learning rate, for instance."
                log.warning("%s has diverged in round %d: %s. %s", self.method, record["round"], why, advice)
        record["seconds"] = round(time.perf_counter() - began, 4)
        if ended := reason(stop, [*self.records, record]):
            record["stopped"] = ended
        if self.select != "last" and selected([*self.records, record]) == record["round"]:
            self.best = following
        for name, (where, why) in failures(record).items():
            if not any(name in failures(before) for before in self.records):
                log.warning("The measure %s cannot be computed for %s: %s. It is null there.", name, where, why)
        self.records.append(record)
        self.progress = following  # last, so that a stop at any moment leaves both as they were or both new
        return record

    def _scores(self, now: Progression, rounds: int) -> Record:
        """How the models do on test sets, and on what clients hold out."""
        scores: Record = {}
        if (clients := self.population) is not None:
            if self.trial.settings.validation:
                scores |= clients.validate(self.trial, self.tests, now, rounds)
            scores |= clients.test(self.trial, self.tests, now, rounds)
        elif self.tests.sets:
            scores |= self.tests.record(self.trial, now, rounds)
        return scores if self.held is None else scores | self.held.record(self.trial, now, rounds, self.tests.measures)

    def _diverged(self, record: Record) -> str:
        """Why the model has diverged, empty if it has not; without a global model, training shows it."""
        guess = self.model.task.guess(self.trial.setup.n_classes)
        if self.method.sharing.global_model:
            return diverged(record.get("groups", {}), guess=guess)
        losses = {str(m): {"loss": loss} for m, loss in enumerate(record.get("losses", ()))}
        return diverged(losses, which="training loss", guess=guess)

    def prepare(self, rounds: int, *, progress: bool = True) -> None:
        """Find out what each client reaches alone in ``rounds`` rounds, if the method or ``collaborative`` asks for it.

        ``fit`` calls it. What was found for as many rounds, or was given, is kept.
        """
        check_rounds(rate(self.solver.lr), rounds)
        self.trial = replace(self.trial, rounds=rounds)
        measured = self.alone is not None and self.alone.get("rounds") in (None, rounds)
        if self.collaborative and not measured:
            self.alone = self.standalone(rounds, progress=progress)
        used = contributions.contributions(self.method, self.alone, self.model.initial.device)
        self.trial = replace(self.trial, contribution=used)

    def standalone(self, rounds: int, *, progress: bool = True) -> Contribution:
        """What each client reaches when it trains on its own data alone, as the method ``standalone`` does.

        Every client starts from the first model and trains ``rounds`` times as long as in a round, alone. One that fails
        keeps the last model that it had. Called again for more rounds, the training continues.

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
            return self.population.standalone(self.trial, self.tests, rounds)
        alone, self._solo = contributions.standalone(self.trial, self.tests, rounds, self._solo, progress=progress)
        return alone

    @contextmanager
    def _settled(self, path: Path | None, rounds: int, keep: int) -> Iterator[None]:
        """Hold the directory, if there is one, and make sure that it holds this run and no other, with all its rounds so far."""
        if path is None:
            yield
            return
        with files.locking(path):
            files.claim(path, self.fingerprint, self.progress.t, self.records)
            self.save(path, rounds, keep)
            files.write_manifest(path, {**self.history.meta, "rounds": rounds}, self.machines)
            try:
                with files.noting_failure(path):
                    yield
            except QuorumError as error:
                error.args = (f"{error}{files.way_back(path, self.records)}",)
                raise

    @property
    def history(self) -> History:
        """The records of the run so far, and its description."""
        meta: Meta = {
            "method": own_code.short(str(self.method)),
            "in_force": in_force(self.method),
            "printed": printed(self.method),
            "seed": self.trial.settings.seed,
            "rounds": max(self.trial.rounds, self.progress.t),
            "select": self.select,
            "client_names": list(self.names),
            "client_groups": None if self.tests.groups is None else list(self.tests.groups),
            "measures": list(self.tests.measures),
            "classes": list(self.classes),
            "positive": None if self.positive is None or self.positive.why != "given" else self.positive.name,
            "least_group": self.least_group,
            "client_tests": self.tests.of_clients is not None,
            "bound": self.method.sharing,
            "personal": self.personal or bool(self.method.overriding("reward")),
            "header": (header := self.header),
            "header_keys": [*map(key_of, header)],
            "machines": self.machines,
            "holdings": self.holdings,
        }
        if isinstance(task := self.model.task, Regression):
            meta |= {"task": task.name, "unit": task.unit}
        if self.attributes:
            meta["attributes"] = {name: list(values) for name, values in self.attributes.items()}
        if self.alone is not None:
            meta["contribution"] = {**self.alone, "used": contributions.source(self.method, self.alone)}
        for k in self.method.overriding("decide"):
            rule = self.method.rules[k]
            by = getattr(rule, "attribute", "") or next(iter(self.trial.setup.attributes), "group")
            meta["decides"] = by if "sensitive" in rule.declared.needs else ""
        if (attackers := self.trial.attackers) is not None:
            meta["hostile"] = asdict(attackers)
        if (neurons := self.trial.neurons) is not None:
            meta["units"] = {"names": list(neurons.names), "sizes": list(neurons.sizes)}
        return History(tuple(self.records), meta)

    @cached_property
    def holdings(self) -> Content:
        """Samples, classes and groups of each client, without reading data: see :func:`equipoise.data.holdings.holdings`."""
        trial = self.trial
        return holdings(self.names, self.tests.groups, self.inputs.data, self.tests.sets, trial.setup.n_classes)

    def show(self, *, examples: bool = False) -> Figure:
        """Draw the data of each client, by classes, groups and sizes, or with ``examples`` a few of the clients' images.

        Raises
        ------
        ValueError : ``examples`` of data that are no images, or not in memory.
        """
        if not examples:
            return who_has_what(self.holdings)
        if strips := example_images(self.tests.groups, self.inputs.data):
            return draw_examples({"examples": strips})
        raise ValueError(
            "examples=True draws images [channels, height, width] in memory or on disk; these data are none."
        )

    # use
    @property
    def chosen(self) -> Progression:
        """The state after the round that ``select`` names, whose model is used."""
        return self.progress if self.best is None else self.best

    def evaluate(
        self, x: object = None, y: object = None, s: object = None, *, client: int | None = None
    ) -> dict[str, Any]:
        """Accuracy, loss and the other measures of the global model (or a client's) on data, or on every test set.

        Data are ``x, y``, or ``x, y, s`` with codes of sensitive attributes, or one argument that may be a client's data, such as a data
        set. With ``s``, ``by`` has the measures that are sums over samples for each attribute and value, by their names.
        """
        vector, called = self._vector(client), self.attributes
        states = evaluation.deciding(self.trial, self.chosen, client)
        if x is None:
            return {n: self.tests.score(self.trial, vector, d, called, states) for n, d in self.tests.sets.items()}
        given = x if y is None else (x, y) if s is None else (x, y, s)
        data = loaded(self.inputs.reading(given, "evaluation data"))
        check(data, "evaluation data", None, self.trial.setup.n_classes)
        with taking(data, "evaluation data"):
            return self.tests.score(self.trial, vector, data, called, states)

    def predict(self, x: object, s: object = None, *, client: int | None = None) -> Tensor:
        """Classes [n] of inputs ``x`` [n, *shape] by the global model, or by the model a client predicts with.

        ``s`` are codes of sensitive attributes, [n] or [n, A], for a method that decides by them; without ``s`` they are unknown.
        A class of -1 is none: the network's output is not finite.
        """
        return self._outputs(x, s, client).predicted

    def predict_proba(self, x: object, *, client: int | None = None) -> Tensor:
        """Probabilities [n, C] of the classes of inputs ``x`` [n, *shape], softmax of :meth:`logits`; NaN where these are not finite."""
        if isinstance(self.model.task, Regression):
            raise ValueError("A regression predicts numbers, which have no probabilities: use predict(x).")
        return self.logits(x, client=client).softmax(-1)

    def score(self, x: object, y: object = None, *, client: int | None = None) -> float:
        """Accuracy in [0, 1] of the global model, or of a client's, on ``(x, y)`` or a data set."""
        return float(self.evaluate(x, y, client=client)[self.model.task.main])

    def logits(self, x: object, *, client: int | None = None) -> Tensor:
        """Logits [n, C] of inputs ``x`` [n, *shape], which are given as the training data were."""
        return self._outputs(x, None, client).values

    def _outputs(self, x: object, s: object, client: int | None) -> Outputs:
        vector = self._vector(client)
        given = as_inputs(x, "prediction")
        blank = torch.zeros(count(given), dtype=self.model.task.dtype)
        data = loaded(self.inputs.reading((given, blank) if s is None else (given, blank, s), "prediction"))
        with taking(data, "prediction"):
            states = evaluation.deciding(self.trial, self.chosen, client)
            return evaluation.answers(self.trial, vector, [data], states)[0]

    def _vector(self, client: int | None) -> Tensor:
        if client is not None:
            check_whole("client", client, 0, len(self.names) - 1)
        if client is None and not self.method.sharing.global_model:
            raise ValueError(f"{self.method} has no global model: every client has its own. Name one: client=0.")
        if client is None or not self.method.sharing.clients:
            return evaluation.published(self.trial, self.chosen)
        deployed = evaluation.deployed if self.population is None else self.population.deployed
        return deployed(self.trial, self.chosen, client)

    def state_dict(self, *, client: int | None = None) -> dict[str, Tensor]:
        """State dictionary of the global model, or of a client's, for your own network's ``load_state_dict``."""
        return self.trial.model.state_dict(self._vector(client))

    def network(self, *, client: int | None = None, compact: bool = False) -> nn.Module:
        """A copy of your network with the trained values, in eval mode.

        ``compact`` gives a client of FedSAC the really smaller network, without the hidden units it does not hold.

        Raises
        ------
        ValueError : there is no such client, or ``compact`` where there is no submodel or none can be cut out.
        """
        vector = self._vector(client)
        if compact:
            return evaluation.compact(self.trial, self.chosen, client, vector)
        return self.model.network(vector)

    def save_bundle(
        self,
        directory: str | Path,
        *,
        client: int | None = None,
        data: Mapping[str, Any] | None = None,
        threshold: float | Threshold = 0.5,
        license: str = "",
        use: str = "",
        contact: str = "",
        onnx: bool = False,
        recalibrate: str | None = None,
        config: Content | None = None,
    ) -> None:
        """Write the global model, or a client's, as a bundle: all that predicting takes, its measures, and a model card.

        :func:`equipoise.load` reads it.

        Parameters
        ----------
        directory : a new folder.
        client : number of the client whose own model is taken.
        data : what is known of the data, ``manifest`` of a :class:`equipoise.Scenario`: by its schema the bundle takes tables as they come.
            Without it a bundle takes what this federation took.
        threshold : in [0, 1], the probability from which on the positive one of two classes is predicted; at 0.5 the more probable class is. Or
            what :func:`equipoise.choose_threshold` gave, for everyone or by group.
        license : of the data and this model, as the Hugging Face Hub calls it, such as ``"cc-by-4.0"``.
        use, contact : what the model is for, and whom to ask, for its card.
        onnx : also write the network as a graph of ONNX.
        recalibrate : ``"platt"`` or ``"isotonic"``: the bundle gives probabilities that are recalibrated on validation rows. A threshold stays
            one on the probabilities before that.
        config : of the run, ``History.meta["config"]``, where there is one: by it the card states what another seed changes.

        Raises
        ------
        ValueError : the folder holds something, or a network, task or transform of your own cannot be in a bundle.
        """
        from equipoise.bundle.saving import Trained, save
        from equipoise.federation.thresholds import measure_bundle, recalibrated

        if recalibrate is not None and client is not None:
            raise ValueError("recalibrate is for the global model, which validation rows judge. Leave it out.")
        draft = Trained(
            self.model,
            self._vector(client),
            self.inputs.first,
            History((), {**self.history.meta, "config": config or {}, "untrained": [*self.history.untrained]}),
            "" if client is None else self.names[client],
            data or {},
            threshold=threshold if isinstance(threshold, float | int) else threshold.value,
            chosen=None if isinstance(threshold, float | int) else threshold.document,
            recalibration=None if recalibrate is None else recalibrated(self, recalibrate),
        )
        server = evaluation.deciding(self.trial, self.chosen, client)
        made = measure_bundle(self.trial, self.tests, server, self.chosen.t, draft)
        save(Path(directory), made, license=license, use=use, contact=contact, onnx=onnx)

    # checkpoints
    @property
    def fingerprint(self) -> Content:
        """What must agree for a run to continue: method, settings, network, and hashes of all data."""
        return fingerprint(self.trial, self._contents)

    @cached_property
    def _contents(self) -> dict[str, str]:
        """Hashes of the data, which are made when they are first needed."""
        trial = self.trial
        held_out = trial.oracle.source if trial.oracle is not None and trial.method.needs_of_server else None
        # clients that are away have their data where they are
        held = () if self.held is None else self.held.sets
        own = {f"{m}, a client": d for m, d in enumerate(self.tests.of_clients or ()) if d is not None}
        return contents(
            () if trial.away else (*trial.data, *(d for d in held if d is not None)),
            {**self.tests.sets, **own},
            self.tests.groups,
            held_out if isinstance(held_out, Samples) else None,
        )

    def save(self, directory: str | Path, rounds: int | None = None, keep: int = 1) -> None:
        """Write a checkpoint into ``directory``/checkpoint, atomically; ``rounds`` are planned, the last ``keep`` are kept."""
        away = None if self.population is None else self.progress.clients[0]["round"].tolist()
        meta: checkpoint.Kept = {"rounds": rounds or self.progress.t, "keep": keep, "away": away}
        meta |= {"alone": self.alone, "machines": self.machines}
        files.save(Path(directory), self.fingerprint, self.progress, meta, self.best)
        if self.population is not None:
            self.population.saved(checkpoint.kept(Path(directory) / files.CHECKPOINT))

    def resume(self, directory: str | Path, from_round: int | None = None) -> int:
        """Go back to the last checkpoint in a directory; returns the rounds still planned.

        ``from_round``, counted from 0, is repeated, with all later rounds, if the state before it is kept (``keep_checkpoints``
        of :meth:`fit`). The records until now stay in a file, ``metrics.1.jsonl`` (or 2, ...).

        Raises
        ------
        CheckpointError : missing, damaged, not kept, or of a federation with other data or settings, naming what differs.
        """
        path = Path(directory)
        begun = self.progress
        restored, meta = files.restore(path, self.fingerprint, begun, from_round)
        self.best = files.restore_best(path, meta, begun) if self.select != "last" else None
        if from_round is not None:
            files.go_back(path, from_round)
        self.progress = restored
        self.alone = self.alone or meta.get("alone")
        self.records = files.trim(path / files.METRICS, self.progress.t, meta.get("records", ""))
        self.machines = list(meta.get("machines", []))
        self.trial = replace(self.trial, rounds=int(meta["rounds"]))
        if self.population is not None:
            self.population.saved(checkpoint.kept(path / files.CHECKPOINT))
        return int(meta["rounds"]) - self.progress.t


def _classes(given: Sequence[str] | None, n: int) -> tuple[str, ...]:
    """Names of the n classes; their numbers if they have none."""
    if given is None:
        return tuple(map(str, range(n)))
    names = named("classes", given, "classes, in the order of their numbers") or ()
    if len(names) != n or len(set(names)) != n:
        raise ValueError(
            f"classes must have {n} different names, as the network has so many outputs; found {', '.join(names) or 'none'}."
        )
    return names
