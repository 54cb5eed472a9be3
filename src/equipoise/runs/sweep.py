"""Several methods with several seeds from Python, on the user's network and data."""

import inspect
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import nn

from equipoise.core.draws import seeded
from equipoise.core.rule import Rule
from equipoise.core.settings import Settings
from equipoise.core.solver import Solver, checked
from equipoise.core.task import task_of
from equipoise.federation import checkpoint, fingerprint, guard, preparation, stopping
from equipoise.federation.directory import CHECKPOINT, MANIFEST, require_none, write_manifest
from equipoise.federation.federation import Federation
from equipoise.federation.history import History
from equipoise.federation.method import Method
from equipoise.federation.standing import ProgressLog, accuracies, progress_bar, shown_rate
from equipoise.metrics import collaborative
from equipoise.metrics.classification import RATES
from equipoise.records.criteria import COLLABORATION, LEAVE_OUT, ORACLE
from equipoise.records.directory import ORDER, manifest
from equipoise.records.identity import Identity
from equipoise.records.meta import Content, Contribution, Meta, Tuned
from equipoise.records.record import Record
from equipoise.report.comparisons import Comparison
from equipoise.runs import choosing
from equipoise.runs.choosing import BY_LAST, FOLDER, Budget, Configure, Subject, Trial, Tuning, tuned_method
from equipoise.runs.directory import distinct, slug, trained_alone
from equipoise.runs.plan import TURN, Cell, Here, run
from equipoise.system import claims, errors, files, own_code, ranges, seals, suggestions
from equipoise.system.search import Space, read

log = logging.getLogger(__name__)

UNTESTED = (
    "Nothing is tested: there are no test data. Give tests={...} or client_tests=[...]; what clients hold out, validation=0.2, only "
    "chooses and stops."
)
OF_TUNE = "it to eq.tune, and what that returns to compare(..., tune=tuning)"
OF_TESTS = ("tests", "client_tests")  # what runs that choose settings do not have
Methods = Sequence[str | Rule | Method] | Mapping[str, str | Rule | Method]
Network = nn.Module | Callable[..., nn.Module]
Alone = Callable[..., Contribution]  # of a federation, its rounds, and whether it shows progress


@dataclass(frozen=True)
class Common:
    """What all runs share: the network, the clients, the methods, the given solver, the rounds, and all else that a federation takes.

    ``search`` are spaces of the user's own, by name.
    """

    net: Network
    clients: Iterable[Any]
    parsed: Mapping[str, Method]
    solver: Solver
    rounds: int
    given: Mapping[str, Any]
    search: Mapping[str, Space] = field(default_factory=dict)

    def federation(self, method: Method, seed: int) -> Federation:
        """The federation of a run."""
        return Federation(_network(self.net, seed), self.clients, method, self.solver, seed=seed, **self.given)

    def config(self, label: str, settings: Mapping[str, Any], *, seed: int) -> Callable[[], Federation]:
        """What makes the federation of a run of a method with settings by name."""
        method, solver = tuned_method(self.parsed[label], self.solver, settings)
        return partial(replace(self, solver=solver).federation, method, seed)

    def first(self, budget: Budget) -> Federation:
        """The federation of the first method with the first seed that chooses."""
        return self.federation(next(iter(self.parsed.values())), budget.seeds[0])

    def sealed(self, budget: Budget) -> Configure:
        """With the data that choose."""
        if self.given.get("select", "last") != "last":
            raise ValueError(f"select: {BY_LAST}. Leave it out.")
        task = task_of(self.given.get("task", "classification"))
        preparation.recorded_of(task, self.given.get("measures", ()))  # or what is wrong with them
        sealed = replace(self, given=self._held(budget))
        rewards = self.given.get("collaborative") and self.given.get("groups") is None

        present = {
            "eo": lambda: not task.dtype.is_floating_point and bool(sealed.first(budget).trial.setup.attributes),
            COLLABORATION: lambda: bool(rewards) and self.given.get("server_validation") is not None,
            LEAVE_OUT: lambda: len([*self.clients]) > 1,
            ORACLE: lambda: any(self.given.get(name) for name in OF_TESTS),
        }
        choosing.require(budget.by, present)
        return sealed.config

    def _held(self, budget: Budget) -> dict[str, Any]:
        """What federations that choose are given: held-out samples, and no test data unless these are asked for."""
        given, base = self.given, {**self.given, "validation": budget.validation}
        if not task_of(given.get("task", "classification")).dtype.is_floating_point:
            base["measures"] = tuple(dict.fromkeys((*given.get("measures", ("accuracy",)), RATES)))
        if budget.by != ORACLE:
            base = {name: value for name, value in base.items() if name not in OF_TESTS}
            base["collaborative"] = budget.by == COLLABORATION
            if budget.by == COLLABORATION and (held := given.get("server_validation")) is not None:
                base["tests"] = {collaborative.SERVER: held}
        return base

    def without(self, budget: Budget) -> dict[str, Configure]:
        """By the name of each client, on the data of the others, with its own as test data."""
        members, given = list(self.clients), self._held(budget)
        names = [str(name) for name in given.pop("names", None) or (f"client-{k}" for k in range(len(members)))]
        plain = {key: value for key, value in given.items() if key not in ("validation", "groups")}
        others = dict[str, Configure]()
        for k, name in enumerate(names):
            more = {"names": [*names[:k], *names[k + 1 :]], "tests": {name: members[k]}}
            rest = replace(self, clients=[*members[:k], *members[k + 1 :]], given={**plain, **more})
            others[name] = rest.config
            try:  # what names the client that is left out, or groups, is told before anything trains
                rest.first(budget)
            except ValueError as error:
                raise ValueError(f"by={LEAVE_OUT}, without {name}: {error}") from None
        return others

    def conditions(self, budget: Budget, _: Path | None = None) -> dict[str, Content]:
        """By label what the choice depends on beside its budget, by the names of the arguments that decide it."""
        plain = replace(self, given={**self._held(budget), "validation": 0.0})
        return {label: plain._depends(method, budget) for label, method in self.parsed.items()}

    def _depends(self, method: Method, budget: Budget) -> Content:
        fed = self.federation(method, budget.seeds[0])
        its = fed.fingerprint
        data, positive = its["data"], {"positive": self.given.get("positive")} if budget.by == "eo" else {}
        net = [repr(fed.model.net), fed.model.head_name, *(its[n] for n in ("parameters", "fixed", "hidden units"))]
        python = {
            "clients": [its["sizes"], its["labels"], data["inputs"]],
            "net": net,
            "values of net": fingerprint.digest(fed.model.initial),
            **{name: data[name] for name in ("groups", "attributes")},
            "server_validation": data["validation"],
            "task": str(fed.model.task),
            "transform": re.sub(r" at 0x\w+", "", repr(self.given.get("transform"))),
            **({"tests": data["tests"]} if budget.by == ORACLE else {}),
        }
        settings = choosing.conditional({**vars(fed.trial.settings), **positive, "rounds": self.rounds})
        return {"settings": settings, "python": {name: fingerprint.code(x) for name, x in python.items()}}


@dataclass(frozen=True)
class Kept:
    """A run of :func:`compare` or of a choice: what makes its federation, where it is kept if it is, what may end it, how its settings were chosen."""

    make: Callable[[], Federation]
    label: str
    rounds: int
    path: Path | None
    seed: int | None = None
    stop: stopping.Stop | None = None
    tuned: Tuned | None = None

    def resumed(self, fed: Federation) -> int:
        """The rounds that are left after going back to the last complete one.

        The manifest has the label, the hash of the first model, what may stop the run, and how its settings were chosen.
        """
        if (path := self.path) is None:
            return self.rounds
        first = fingerprint.digest(fed.model.initial)
        plain = self.stop is None or is_dataclass(self.stop)
        ends = str(self.stop) if plain else getattr(self.stop, "__qualname__", type(self.stop).__qualname__)
        if not checkpoint.exists(path / CHECKPOINT):
            (path / MANIFEST).unlink(missing_ok=True)
            fed.prepare(self.rounds, progress=False)
            tuned = {} if self.tuned is None else {"tuned": self.tuned}
            about = {"rounds": self.rounds, "label": self.label, "first": first, "stop": ends, **tuned}
            write_manifest(path, {**fed.history.meta, **about}, fed.machines)
            return self.rounds
        left = fed.resume(path)
        noted = manifest(path)
        tune = "given" if noted.get("tuned") else None
        settings = {"rounds": fed.progress.t + left, "stop": noted.get("stop"), "tune": tune}
        then = Identity(settings, first_values={"the network": noted.get("first")})
        settings = {"rounds": self.rounds, "stop": ends, "tune": self.tuned and tune}
        require_none(path, then.differences(Identity(settings, first_values={"the network": first})))
        if noted.get("tuned") != self.tuned:  # the same settings may be chosen otherwise
            files.write_atomically(path / MANIFEST, seals.sealed_json({**noted, "tuned": self.tuned}))
        return left

    def completed(self, fed: Federation, left: int, on_round: Callable[[Record], object] | None = None) -> History:
        """The history after the rounds that are ``left``."""
        if left:
            try:
                fed.fit(left, directory=self.path, progress=False, on_round=on_round, stop=self.stop)
            except guard.QuorumError as error:
                error.args = (f"{self.label}, seed {self.seed}: {error}",)
                raise
        meta: Meta = {**fed.history.meta, "label": self.label, "first": fingerprint.digest(fed.model.initial)}
        if self.tuned is not None:
            meta["tuned"] = self.tuned
        return replace(fed.history, meta=meta)

    def trained(self) -> History:
        """The history after all rounds."""
        fed = self.make()
        return self.completed(fed, self.resumed(fed))

    def tried(self, until: int | None, alone: Alone = trained_alone, on_round: Callable[[], object] = int) -> History:
        """The history of a run that chooses, after ``until`` rounds in all, or all of them; ``alone`` measures what clients reach alone."""
        fed, last = self.make(), self.rounds if until is None else until
        if fed.collaborative and not checkpoint.exists((self.path or Path()) / CHECKPOINT):
            fed.alone = alone(fed, self.rounds, progress=False)

        def pause(_: Record) -> bool:
            on_round()
            return fed.progress.t >= last

        left = self.resumed(fed)
        if left and fed.progress.t < last:
            fed.fit(left, directory=self.path, progress=False, on_round=pause, checkpoint_every=self.rounds)
        return fed.history


def compare(
    net: Network,
    clients: Iterable[Any],
    methods: Methods,
    seeds: int | Iterable[int] = 3,
    *,
    rounds: int,
    directory: str | Path | None = None,
    last: int | None = None,
    stop: stopping.Stop | None = None,
    progress: bool = True,
    tune: int | Tuning | None = None,
    by: str = "mean",
    on: Any = None,
    **given: Any,
) -> Comparison:
    """Train every method with every seed, and compare them: table, paired tests, figures, report.

    Parameters
    ----------
    net : an ``nn.Module``, from whose values every run starts; or a function that makes one, without arguments or of the ``seed``,
        called once per seed with torch's generator seeded by it, so that seeds differ in the first model as well.
    clients : as for :class:`Federation`; the same for every run.
    methods : at least one; the others are compared with the first. A dictionary gives them labels: ``{"mine": MyRule()}``.
    seeds : how many, >= 1 (0, 1, ...), or which.
    rounds : of each run, >= 1.
    directory : where to keep each run, as ``METHOD-seedN``. The same call again continues after a stop, bit for bit; finished runs are
        taken as they are if they saw the same data and settings. More methods and seeds may be added.
    last : rounds that are averaged, >= 1. Default: 5.
    stop : ends a run early, such as ``eq.EarlyStopping(10)``; called with all records of the run after each of its rounds.
    progress : show a progress bar on a terminal, and elsewhere lines of how far each run is.
    tune : first choose the settings of each method among this number of draws, see :func:`tune`; or what that returned for the same clients;
        None: as given.
    by : the criterion of that choice.
    on : where the runs are trained: an executor, such as ``concurrent.futures.ProcessPoolExecutor(4)``, loky's, or Dask's
        ``client.get_executor()``, whose library sends network and data. No result depends on it. None: here, one after the other.
    given : all else that :class:`Federation` takes, such as ``tests`` and ``solver``.

    Raises
    ------
    ValueError, TypeError : as of :class:`Federation`; no method or seed, one given twice.
    RunError : a directory that holds something else, or in which another process is at work.
    CheckpointError : a directory whose runs saw other data, settings, first models or rounds, naming what differs.
    """
    if last is not None:
        ranges.check_whole("last", last, 1)
    ranges.check_whole("rounds", rounds, 1)
    of_choice = dict.fromkeys({"search", *Budget.__dataclass_fields__} - {*Settings.__dataclass_fields__}, OF_TUNE)
    _refuse("compare", given, of_choice | {"seed": "seeds=[...]", "method": "methods=[...]"})
    labelled, numbers, base = _methods(methods), _seeds(seeds), None if directory is None else Path(directory)
    common = _common(net, clients, labelled, rounds, given)
    _check_choice(tune, by, on)
    settings, chosen = {label: dict[str, Any]() for label in labelled}, dict[str, Tuned]()
    if tune is not None:
        if stop is not None or common.given.get("select", "last") != "last":
            raise ValueError(f"stop, select: {BY_LAST}. Leave them out.")
        settings, chosen = _chosen(common, tune, by, numbers, base, on, progress)
    for label, method in labelled.items():
        if "sensitive" in method.needs and len(labelled) > 1:  # groups that are not there are told before others train
            common.config(label, settings[label], seed=numbers[0])()

    def cells() -> Iterator[Cell]:
        for seed in numbers:
            begun = replace(common, net=_network(net, seed))
            for label in labelled:
                make, place = begun.config(label, settings[label], seed=seed), _place(base or Path(), label, seed)
                path = None if base is None else place
                kept = Kept(make, label, rounds, path, seed=seed, stop=stop, tuned=chosen.get(label))
                yield Cell((label, seed), kept, place)

    with nullcontext() if base is None else _settled(base, labelled, numbers):
        trained = _trained(cells(), len(labelled) * len(numbers), rounds, on, progress)
    return Comparison.of([trained[label, seed] for seed in numbers for label in labelled], last)


def _check_choice(tune: object, by: str, on: object) -> None:
    """Refuse an executor that is none, and a choice of settings that is none."""
    if isinstance(tune, bool) or not isinstance(tune, int | Tuning | None):
        raise TypeError(
            "tune must be how many settings to try for each method, such as 16, or the Tuning that eq.tune(...) returned, whole; "
            f"found {suggestions.shorten(repr(tune))}. A file of settings is for the command line: equipoise compare ... --config chosen.toml."
        )
    _check_executor(on)
    if not isinstance(tune, int) and by != "mean":
        advice = "Add tune=16, or leave it out" if tune is None else "They are chosen already: leave it out"
        raise ValueError(f"by={by!r} is what settings are chosen by. {advice}.")


def _check_executor(on: object) -> None:
    if on is not None and not hasattr(on, "submit"):
        raise TypeError(f"on must be an object with submit(function, *arguments), such as an executor; found {on!r}.")


def _chosen(
    common: Common, tune: int | Tuning, by: str, seeds: Sequence[int], base: Path | None, on: Any, progress: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, Tuned]]:
    """By label the chosen settings, and how they were chosen: before, or now."""
    labelled, share = common.parsed, _share(common.given) or Budget.validation
    budget = tune.budget if isinstance(tune, Tuning) else Budget(draws=tune, by=by, validation=share)
    if {*budget.seeds} & {*seeds}:
        raise ValueError(f"seeds: settings are chosen with {[*budget.seeds]}. Take others for the report.")
    folder = None if base is None else base / FOLDER
    tuning = tune if isinstance(tune, Tuning) else _tune(common, budget, folder, on, progress)
    before = {name: (m, m.typed) for name, m in tuning.methods.items()}
    lacking = [name for name, m in labelled.items() if before.get(name) != (m, m.typed)]
    if lacking or tuning.solver != common.solver:
        what = f"methods={lacking}" if lacking else f"solver={common.solver}"
        raise ValueError(
            f"tune: the settings of {', '.join(tuning.choices)} were chosen, with {tuning.solver}; found {what}. "
            "Give the same methods, or some of them, and the same solver."
        )
    chosen = {label: tuning.tuned(label) for label in labelled}
    for label, now in common.conditions(budget).items() if isinstance(tune, Tuning) else ():
        changes = choosing.identity(tuning.conditions[label]).differences(choosing.identity(now))
        chosen[label]["changed"] = [change.name for change in changes]
        chosen[label]["changed"] += ["validation"] * (_share(common.given) not in (None, budget.validation))
    return {label: {**tuning.choices[label].settings} for label in labelled}, chosen


def _trained(cells: Iterable[Cell], n: int, rounds: int, on: Any, progress: bool) -> dict[tuple[str, int], History]:
    """The histories of ``n`` runs, by label and seed."""
    trained, lines = dict[tuple[str, int], History](), ProgressLog(progress)
    with progress_bar(progress) as bar:
        task = bar.add_task("", total=rounds * n, accuracy="")

        def train(cell: Cell) -> History:
            kept: Kept = cell.config
            name = f"{kept.label}, seed {kept.seed}"
            bar.update(task, description=name)
            fed = kept.make()
            if not trained and not fed.tests.sets:
                log.warning(UNTESTED)
            left = kept.resumed(fed)
            later = n - len(trained) - 1
            named = f"run {n - later} of {n}, " * (n > 1) + name
            bar.update(task, advance=rounds - left)

            def shown(record: Record) -> None:
                bar.update(task, advance=1, accuracy=accuracies(fed.judged(record)))
                if lines.due(named, ends=fed.progress.t == rounds or "stopped" in record):
                    standing = fed.standing(rounds)
                    more = (rounds - standing.round + later * rounds) * (standing.seconds or 0)
                    end = datetime.fromtimestamp(time.time() + more) if later else None
                    lines.say(named, standing, shown_rate(fed.solver.lr, fed.progress.t, rounds), None, end)

            complete = kept.completed(fed, left, on_round=shown)
            bar.update(task, advance=rounds - fed.progress.t)
            return complete

        def submit(cell: Cell) -> Future[Any]:
            if on is None:
                return Here().submit(train, cell)
            return _submitted(on, cell.config.trained, lambda _: bar.update(task, advance=rounds))

        for outcome in run(cells, submit):
            outcome.require()
            trained[outcome.cell.key] = cast(History, outcome.history)
    return trained


def _submitted(on: Any, work: Callable[[], History], ended: Callable[[object], object]) -> Future[Any]:
    """The future of what an executor does; ``ended`` is called when it is done."""
    job: Future[Any] = on.submit(elsewhere, work, torch.get_num_threads(), token_hex(8))
    if not isinstance(job, Future):
        raise TypeError(f"on.submit must return a Future of Python; found {type(job).__name__}.")
    job.add_done_callback(ended)
    return job


def elsewhere(work: Callable[[], History], threads: int, _: str) -> History:
    """Do the ``work`` of a run in a process of an executor, with as many ``threads`` inside operations as its caller has.

    The last argument differs in every call: some executors do not call a function again with the same arguments.
    """
    with TURN:
        torch.set_num_threads(threads)
        return work()


def tune(
    net: Network,
    clients: Iterable[Any],
    methods: Methods,
    *,
    rounds: int,
    draws: int = 16,
    by: str = "mean",
    trials: int = 1,
    validation: float | None = None,
    halving: bool = True,
    sampler: str = "random",
    seed: int = 0,
    search: Mapping[str, str | Space | Sequence[Any]] | None = None,
    directory: str | Path | None = None,
    progress: bool = True,
    on: Any = None,
    **given: Any,
) -> Tuning:
    """Choose the learning rate and the hyper-parameters of every method on what clients hold out of their training samples.

    Every method has the same number of draws, of which the first are its defaults. Federations that choose are built without ``tests``.

    Parameters
    ----------
    net, clients, methods, rounds : as for `equipoise.compare`.
    draws : settings to try per method, >= 1.
    by : the criterion: ``"mean"``, ``"samples"``, ``"worst"``, ``"mean-std"``, ``"worst10"``, ``"eo"``, ``"collaboration"``, ``"leave-one-client-out"``, or
        ``"oracle"``, which looks at the test data.
    trials : runs of each draw, >= 1; their seeds are 10,000 and above.
    validation : share of each client's samples that is held out, in (0, 1). Default: that of ``settings``, or 0.2.
    halving : only the better half continues after an eighth, a quarter and half of the rounds.
    sampler : ``"random"`` or ``"optuna"``, which needs the extra of that name.
    seed : decides the draws, >= 0.
    search : by name where a setting is searched, ``{"lr": "log(0.001, 1)", "fedprox.mu": [0.01, 0.1]}``; otherwise as the rules declare it.
    directory : where to keep the runs and the choice, ``chosen.toml``; the same call again continues after a stop, bit for bit.
    progress : show a progress bar on a terminal, and elsewhere lines of how far the choice is.
    on : an executor that trains the runs, as for `equipoise.compare`; with a ``directory`` that its processes share.
    given : all else that :class:`Federation` takes; only ``by="oracle"`` looks at ``tests`` and ``client_tests``.

    Returns
    -------
    A :class:`Tuning`: print it; ``tuning.chosen`` has by label the method and the solver that :class:`Federation` takes.

    Raises
    ------
    ValueError, TypeError : as of `equipoise.compare`; a criterion or space that does not exist.
    MethodError : a method that looks at test data before it trains, or at clients that take no part.
    """
    ranges.check_whole("rounds", rounds, 1)
    _check_executor(on)
    instead = dict.fromkeys(("last", "seeds"), "them to eq.compare(..., tune=tuning)")
    _refuse("tune", given, {"method": "methods=[...]", "stop": f"none, as {BY_LAST}", **instead})
    share = _share(given) or Budget.validation if validation is None else validation
    budget = Budget(draws=draws, by=by, trials=trials, validation=share, halving=halving, sampler=sampler, seed=seed)
    if not isinstance(search, Mapping | None):
        raise TypeError(
            f"search must be a dictionary such as {{'lr': 'log(0.001, 1)', 'fedprox.mu': [0.1, 1]}}; found {search!r}."
        )
    spaces = {name: read(name, space) for name, space in (search or {}).items()}
    common = replace(_common(net, clients, _methods(methods), rounds, given), search=spaces)
    return _tune(common, budget, None if directory is None else Path(directory), on, progress)


def _common(net: Network, clients: Iterable[Any], methods: Mapping[str, Method], rounds: int, given: Content) -> Common:
    """What all runs share; of iterators, which can be gone through once, what they give."""
    every = {**given, "clients": clients}
    again = {name: [*value] if isinstance(value, Iterator) else value for name, value in every.items()}
    each, solver = again.pop("clients"), checked(again.pop("solver", None))
    return Common(net, each, methods, solver, rounds, again)


def _refuse(function: str, given: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    """Refuse keywords that a function does not take, and name what to give instead."""
    if wrong := next((name for name in given if name in instead), None):
        raise TypeError(f"{function}() takes no {wrong}: give {instead[wrong]}.")


def _tune(common: Common, budget: Budget, directory: Path | None, on: Any, progress: bool) -> Tuning:
    """Choose the settings of all methods, in a directory or a temporary one."""
    if on is not None and directory is None:
        raise ValueError(
            "on: give a directory that all processes share. In it runs that choose go on from their last round."
        )
    spaces = choosing.check(common.parsed, budget, common.search)
    choosing.require_models(budget.by, common.parsed)
    rounds, reached, until = common.rounds, dict[tuple[int, str], Contribution](), dict[Path, int]()
    total, done, begun, lines = budget.planned(rounds) * len(common.parsed), 0, time.time(), ProgressLog(progress)

    def alone(fed: Federation, rounds: int, *, progress: bool) -> Contribution:
        """What clients reach alone, once for all methods."""
        key = fed.trial.settings.seed, str(fed.solver.lr)
        reached[key] = reached.get(key) or trained_alone(fed, rounds, progress=progress)
        return reached[key]

    with ExitStack() as stack:
        place = directory or Path(stack.enter_context(TemporaryDirectory()))
        bar = stack.enter_context(progress_bar(progress))
        task = bar.add_task("choosing", total=total, accuracy="")

        def submit(cell: Cell) -> Future[Any]:
            trial: Trial = cell.key
            kept = Kept(cell.config, trial.label, rounds, cell.folder)

            def advance(n: int = 1) -> None:
                nonlocal done
                bar.update(task, advance=n)
                done += n
                if lines.due("choosing"):
                    end = datetime.fromtimestamp(time.time() + (time.time() - begun) * (total / max(1, done) - 1))
                    lines.say("choosing", f"{done:,} of {total:,} rounds, {trial}", all_end=end)

            if on is None:
                bar.update(task, description=str(trial))
                return Here().submit(kept.tried, cell.until, alone, advance)
            last = cell.until or rounds
            new, until[cell.folder] = last - until.get(cell.folder, 0), last
            return _submitted(on, partial(kept.tried, cell.until), lambda _: advance(new))

        rates = dict.fromkeys(common.parsed, common.solver.lr)
        subject = Subject(common.parsed, spaces, rates, rounds, common.sealed, common.without, common.conditions)
        chosen = choosing.choose(subject, budget, place, partial(run, submit=submit), page=directory is not None)
        return replace(chosen, solver=common.solver)


def _share(given: Mapping[str, Any]) -> float | None:
    """The share that clients hold out, as a keyword or in the settings; None without either."""
    settings = given.get("settings")
    return given.get("validation") or (settings.validation if isinstance(settings, Settings) else None) or None


def _methods(methods: Methods) -> dict[str, Method]:
    """The methods by their labels."""
    if isinstance(methods, str | Rule | Method) or not isinstance(methods, Iterable):
        raise TypeError(f"methods must be a list, such as ['fedavg', 'fedheal']; found {methods!r}.")
    methods = methods if isinstance(methods, Mapping) else list(methods)
    pairs = methods.items() if isinstance(methods, Mapping) else zip(methods, methods, strict=True)
    texts = [(label if isinstance(label, str) else str(Method.of(m)), Method.of(m)) for label, m in pairs]
    labelled = {own_code.short(text): method for text, method in texts}
    if not 0 < len(labelled) == len(methods):
        raise ValueError(f"methods must hold at least one, and each once; found {', '.join(labelled) or 'none'}.")
    distinct([*labelled])
    return labelled


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if not isinstance(seeds, Iterable):
        ranges.check_whole("seeds", seeds, 1)
        return [*range(seeds)]
    numbers = list(seeds)
    for seed in numbers:
        ranges.check_whole("seeds", seed, 0)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds must be how many, or a list of different seeds; found {numbers}.")
    return numbers


def _network(net: Network, seed: int) -> nn.Module:
    """The network a seed starts from."""
    if isinstance(net, nn.Module) or not callable(net):
        return net
    takes = [p for p in inspect.signature(net).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in takes if p.default is p.empty or p.name == "seed"]
    if len(needed) > 1:
        raise TypeError(
            f"net must be an nn.Module, or a function that makes one of the seed; this needs {', '.join(needed)}."
        )
    with seeded(seed):
        return net(**dict.fromkeys(needed, seed))


def _place(base: Path, label: str, seed: int) -> Path:
    return base / f"{slug(label)}-seed{seed}"


@contextmanager
def _settled(base: Path, methods: Iterable[str], seeds: Sequence[int]) -> Iterator[None]:
    """Hold a directory that is new or of a comparison, and note its runs, the reference first."""
    paths = [_place(base, label, seed) for label in methods for seed in seeds]
    for path in paths:
        if (path / "config.toml").exists():
            raise errors.RunError(f"{path} is a run of the command line: continue it there. Choose another directory.")
    with claims.claimed(base, "comparison", ORDER, FOLDER):
        files.write_atomically(base / ORDER, seals.sealed_json({"runs": [path.name for path in paths]}))
        yield
