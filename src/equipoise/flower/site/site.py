"""The answers of a site to messages: the client side of every round, of its tests and of the end of a run."""

import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import gt, lt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.bundle import files, saving
from equipoise.core import copies, wire
from equipoise.core.outputs import Outputs
from equipoise.core.rates import LayerRates
from equipoise.core.rule import State, told
from equipoise.core.settings import Settings
from equipoise.core.solver import SGD, Adam
from equipoise.core.tally import together
from equipoise.core.task import Classification, Regression
from equipoise.data import batch, holdings
from equipoise.data.samples import Absent, LoadError, Samples, loaded
from equipoise.engines.job import Answer, Job
from equipoise.engines.sequential import visit
from equipoise.federation import diagnosis, guard, inputs, preparation, thresholds
from equipoise.federation.evaluation import EvaluationSets, Handed, measured, used
from equipoise.federation.method import Method
from equipoise.federation.round import plain
from equipoise.federation.trial import Trial
from equipoise.flower.codec import LOST, CodecError, Parcel, Submodel, change, changed, hiding, packed, sent, unpacked
from equipoise.flower.site.store import BUNDLE, NO_BUNDLE, Receipt, Store, require_apart
from equipoise.flower.site.task import Task
from equipoise.methods.dp import DP
from equipoise.metrics.classification import RATES
from equipoise.metrics.groups import people_of
from equipoise.privacy import accounting, suppression
from equipoise.records.history import LEAST, History
from equipoise.records.meta import Meta
from equipoise.records.record import Sums
from equipoise.system import own_code, text
from equipoise.system.errors import SiteError, refusal
from equipoise.system.files import write_atomically
from equipoise.system.tree import numbered, tree_map

log = logging.getLogger(__name__)

DIGITS = 3  # that a guarded site tells of a loss or another mean over samples

MOST_STEPS, MOST_DECAY = 10_000_000, 1.0  # of one message, unless the site's node config says otherwise
SENT = ("value", "unknown", "right", "true", "chosen")  # of groups of people
Memory = tuple[list[State], list[State]]  # a site's states, and the server's messages, one of each per rule
SOLVERS: dict[str, type[SGD] | type[Adam]] = {"SGD": SGD, "Adam": Adam}


class TrainingError(SiteError):
    """Training failed, in words that say something of the site's data."""


@dataclass(frozen=True)
class Site:
    """One site in one experiment: a trial with a single client, and its stored files."""

    trial: Trial
    task: Task
    tests: EvaluationSets
    store: Store
    held: Samples | Absent | None = None
    simulated: bool = False
    experiment: Mapping[str, Any] = field(default_factory=dict)  # as the server describes it
    node_config: Mapping[str, Any] = field(default_factory=dict)
    run_config: Mapping[str, Any] = field(default_factory=dict)  # of which the task may have made anything
    noise: float = 0.0  # z, that protects what it sends
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names of the values of each
    people: bool = False  # samples of one person are held out together
    doubts: tuple[str, ...] = ()  # about the samples

    def answer(self, kind: str, asked: Parcel) -> Parcel:
        """The site's answer to a message; of one that is refused nothing is stored.

        Raises
        ------
        SiteError, CodecError : their text may leave the site; that of other errors must not.
        """
        reply = KINDS[kind](self, self.here(asked))
        self.keep_base(asked)
        return reply

    def here(self, asked: Parcel) -> Parcel:
        """A message with its tensors on the site's device."""
        device = self.trial.setup.initial.device
        return replace(asked, tensors={name: x.to(device) for name, x in asked.tensors.items()})

    def keep_base(self, asked: Parcel) -> None:
        """Store the model of a message that was accepted, if the server asks for it: later ones are changes of it."""
        model = asked.fields.get("model")
        token = model.get("keep") if isinstance(model, Mapping) else None
        if isinstance(token, str) and self.store.base(token) is None:
            self.store.keep_base(token, self._public(self._received(self.here(asked))[0]))

    @property
    def guarded(self) -> bool:
        """Whether the site answers little, see :mod:`equipoise.flower.secagg.site`."""
        return bool(self.node_config.get("secure")) or "max-epsilon" in self.node_config

    @property
    def least(self) -> int:
        """The fewest people of whom numbers leave the site: ``least-group`` of its node config."""
        return 1 if self.simulated else int(self.node_config.get("least-group", LEAST))

    @property
    def least_count(self) -> int:
        """The fewest people of a class and group of whom counts leave the site: ``least-count`` of its node config; 0: none do."""
        return 1 if self.simulated else int(self.node_config.get("least-count", 0))

    @property
    def shown(self) -> EvaluationSets:
        """The test sets of which numbers leave the site."""
        return replace(self.tests, sets={name: d for name, d in self.tests.sets.items() if self.suffices(d)})

    def suffices(self, data: Samples) -> bool:
        """Whether numbers of a data set leave the site: of ``least`` people, and, if decisions depend on groups, ``least_count`` in each cell.

        A server that chooses the decisions reads from their numbers how many of each class and combination of attributes there are.
        """
        if self.simulated or not data.attributes or not self.trial.method.overriding("decide"):
            return bool(suppression.enough(data.persons, self.least))
        if not self.least_count or data.s is None or data.shape_and_labels is None:
            return False
        joint = torch.unique(data.s, dim=0, return_inverse=True)[1][:, None]
        person = None if data.people is None else torch.from_numpy(data.people)
        codes = without_small_cells(data.shape_and_labels[1], joint, self.least_count, person)
        return bool(suppression.enough(data.persons, self.least)) and bool((codes >= 0).all())

    def _used(self, asked: Parcel) -> Tensor:
        """The model that this site predicts with [G]."""
        fields = asked.fields
        trial = replace(self.trial, rounds=fields["rounds"])
        vector, units = self._received(asked)
        states, own = self._remembered(asked, vector)
        messages = unpacked(asked, "messages", len(trial.method.rules), self._hide) if fields["deploys"] else []
        handed = Handed(vector, units, messages)
        try:
            if messages:
                _allow(self, self._job(fields["t"], fields, vector, (states, messages)))
            return used(trial, fields["t"], fields["client"], trial.data[0], handed, own, states)
        except LoadError:
            log.exception("the model is tested without its own training")
            handed = replace(handed, messages=[])
            return used(trial, fields["t"], fields["client"], trial.data[0], handed, own, states)

    def _job(
        self, t: int, fields: Mapping[str, Any], received: Tensor, memory: Memory, submodel: Submodel = (None, None)
    ) -> Job:
        """The site's part of round ``t`` with its states and messages, and the units and coordinates of its submodel."""
        trial, (states, messages) = self.trial, memory
        units, held = (None if x is None else x[None] for x in submodel)
        return Job(
            model=trial.model,
            rules=trial.method.rules,
            solver=trial.solver,
            settings=trial.settings,
            t=t,
            rounds=fields["rounds"],
            chances=trial.chances,
            ids=(fields["client"],),
            received=received[None],
            states=tree_map(lambda x: x[None], states),
            messages=tree_map(lambda x: x[None], messages),
            data=[loaded(trial.data[0])],
            private=trial.private,
            units=units,
            held=held,
            neurons=trial.neurons if plain(trial) else None,
            secret=None if self.simulated else secrets.token_bytes(32),  # new noise for every message
        )

    # reading messages and stored state
    def _hide(self, shape: Any) -> Tensor | None:
        return hiding(self.trial.private, self.trial.model.n_params)(shape)

    def _public(self, vector: Tensor) -> Tensor:
        private = self.trial.private
        return vector if private is None else vector[~private]

    def _base(self, fields: Mapping[str, Any]) -> Tensor | None:
        """The stored vector that a change in a message refers to.

        Raises
        ------
        CodecError : the site does not have it, or it is of another network. The server then sends the whole model.
        """
        if fields.get("base") is None:
            return None
        base = self.store.base(fields["base"])
        if base is None or base.shape != self._public(self.trial.setup.initial).shape:
            raise CodecError("lacks the model that was sent last", LOST)
        return base.to(self.trial.setup.initial.device)

    def _received(self, asked: Parcel) -> tuple[Tensor, Tensor | None]:
        """The received model [G], and the hidden units of the site's submodel [K], if it has one."""
        trial, fields, parts = self.trial, asked.fields["model"], asked.part("model")
        if "units" in parts and trial.neurons is not None:
            units = wire.unpack_units(parts, trial.neurons.n)
            held = trial.neurons.held(units)
            visible = held if trial.private is None else held & ~trial.private
            if parts["values"].shape != (int(visible.sum()),):
                raise CodecError("the submodel does not have the size of its hidden units.")
            return wire.unpack_submodel(parts, visible), units
        initial, private = trial.setup.initial, trial.private
        public = changed(parts, self._base(fields), self._public(initial))
        return public if private is None else initial.masked_scatter(~private, public), None

    def _initial(self, asked: Parcel) -> Tensor:
        """The initial global model [G] of a message."""
        vector, own = asked.tensors.get("initial"), self.trial.setup.initial
        if vector is None:
            raise CodecError("the first model is missing.")
        if vector.shape != own.shape or vector.dtype != own.dtype:
            raise CodecError("the first model has another size than the network here.")
        return vector

    def _remembered(self, asked: Parcel, vector: Tensor) -> tuple[list[State], Tensor | None]:
        """The site's state per rule, and a vector [G] with its private coordinates; ``vector`` [G] is the received model."""
        trial, fields = self.trial, asked.fields
        stored = self.store.recall(Receipt.read(fields["receipt"]))
        if stored is None:
            setup = trial.setup
            if fields.get("first"):
                setup = replace(setup, initial=vector)
            elif "initial" in asked.tensors:
                setup = replace(setup, initial=self._initial(asked))
            states = [rule.client_state(setup) for rule in trial.method.rules]
            return states, None if trial.private is None else setup.initial
        states = tree_map(lambda x: x.to(vector.device), numbered(stored, "states", len(trial.method.rules)))
        own = None
        if trial.private is not None:
            own = trial.setup.initial.clone()
            own[trial.private] = stored["own"].to(own.device)
        return states, own


def open_site(
    name: str,
    task: Task,
    fields: Mapping[str, Any],
    store: Store,
    method: Method | None = None,
    *,
    simulated: bool = False,
    node_config: Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
    draws: Path | None = None,
) -> Site:
    """Read the site's data, and make its part of the experiment that the server describes.

    Parameters
    ----------
    name, task : of the site.
    fields : :func:`equipoise.flower.server.consortium.description` of the experiment.
    store : of its state.
    method : the method that the site accepts; None accepts the server's.
    simulated : draw the noise that protects clients from the seed, as the simulator does; it then protects no client.
    node_config : the site's own settings, of which :func:`equipoise.privacy.accounting.spend` reads its budget.
    run_config : Flower's, of the run.
    draws : the file of what the site has held out in all runs; None: neither read nor written.

    Raises
    ------
    SiteError : the server has another method than ``method``, a budget does not allow what it would have to send, or few people are between
        what it would hold out and what it held out before.
    ValueError, TypeError : the data do not fit the network.
    """
    described = {key: x for key, x in fields.items() if key != "device"}
    method, solver, settings = _described(fields, method, trains=task.train is not None)
    framed = inputs.frame(task.net, [task.train], settings, [name], lr=solver.lr, tests=task.tests(name), **task.common)
    sensitive = framed.sensitive(task.attributes, away=False)
    if task.schema is not None and (doubt := task.schema.doubt((settings.validation, settings.seed), name)):
        raise SiteError(doubt)
    inputs.require_people(method, sensitive, here=True)
    people, doubts = framed.data[0].people is not None, tuple(inputs.repeated(framed.data))
    own = node_config or {}
    if draws is not None and not simulated:
        try:
            least = int(own.get("least-group", LEAST))
            require_apart(draws, name, loaded(framed.data[0]), (settings.validation, settings.seed), least)
        except ValueError as error:
            raise refusal(str(error)) from None
    framed, (held,) = framed.divided(settings.validation, settings.seed)
    values = framed.values(sensitive)
    trial = preparation.prepare(framed, method, solver, settings, "sequential", groups=task.neurons, attributes=values)
    tests = EvaluationSets(framed.tests, None, preparation.recorded_of(trial.model.task, task.measures)[0])
    noise = 0.0 if simulated else next((r.noise for r in method.rules if type(r) is DP), 0.0)
    personal = bool(framed.tests) and (trial.private is not None or bool(method.overriding("deploy")))
    if accounting.spend(own, noise, 0) and (personal or settings.validation):
        scores = "on its test data of a model that is partly its own" if personal else "on training data (validation)"
        raise refusal(f"max-epsilon allows no scores {scores}, which no noise protects")
    return Site(
        trial, task, tests, store, held, simulated, described, own, run_config or {}, noise, sensitive, people, doubts
    )


def _described(
    fields: Mapping[str, Any], method: Method | None, *, trains: bool
) -> tuple[Method, SGD | Adam, Settings]:
    """The method, solver and settings that a server describes to a site, which accepts its own ``method`` only if it has one."""
    theirs = str(fields["method"])
    if method is not None and str(method) != theirs:
        raise SiteError(
            f"takes part in runs of {method} only, and the server has method = {theirs}: change one of them (the sites' is what "
            "myapp.py gives to make_client_app)"
        )
    if not trains:
        raise SiteError("has no training data: its task gives train=None.")
    if method is None and any(own_code.references(theirs)):
        raise SiteError(
            "runs no code that a server names. It needs the rules itself: make_client_app(task, method=MyRule())."
        )
    method, about = method or Method.of(theirs), dict(fields["solver"])
    solver = SOLVERS[about.pop("kind")](**about)
    same = {key: fields[key] for key in Settings().decisive if key in fields}
    return method, solver, Settings(**same, device=fields.get("device", "cpu"))


def _allow(site: Site, job: Job, rounds: int = 1) -> None:
    """Raise SiteError if the owner's node config does not allow so many rounds of a job."""
    own, solver, width = site.node_config, job.local, job.settings.batch_size
    rates: Sequence[Any] = solver.lr.rates if isinstance(solver.lr, LayerRates) else [solver.lr]
    more = sum(getattr(rule, "steps", None) or 0 for rule in job.rules)  # such as those of finetune
    steps = float(rounds) * (job.settings.steps_of(int(site.trial.setup.sizes[0])) + more)
    decay = max(map(float, rates)) * float(getattr(solver, "weight_decay", 0.0))
    for key, words, size, usual, beyond, than in (
        ("max-steps", f"{steps:,g} gradient steps", steps, MOST_STEPS, gt, "more"),
        ("max-decay", f"{decay:,g} of lr x weight decay", decay, MOST_DECAY, gt, "more"),
        ("min-batch", f"batches of {width} samples", width, 1, lt, "fewer"),
    ):
        if beyond(size, bound := own.get(key, usual)):
            refused = f"one message asks for {words}"
            raise refusal(f"{refused}; {key} in its node-config is {bound:,}", f"{refused}, {than} than its {key}")


# answers
def _describe(site: Site, asked: Parcel) -> Parcel:
    """What the server must know before the first round: number, shape and type of the samples, test sets, agreement."""
    trial = site.trial
    data = loaded(trial.data[0])
    x = data.store.gather(torch.zeros(1, dtype=torch.int64, device=data.sizes.device)).x
    shape, kinds = batch.shape_of(x), tree_map(lambda leaf: str(leaf.dtype).removeprefix("torch."), x)
    about = {"size": data.size, "shape": batch.listed(shape), "dtype": kinds}
    about["test_sizes"] = {name: d.size if name in site.shown.sets else 0 for name, d in site.tests.sets.items()}
    about |= {"people": True} if site.people else {}
    return Parcel({**about, "tests": list(site.tests.sets), "agreement": site.task.agreement(trial, shape)})


def job_of(site: Site, asked: Parcel) -> tuple[Job, Tensor | None]:
    """The training that a message asks for, and a vector [G] with the private coordinates that the site has."""
    trial, fields = site.trial, asked.fields
    vector, units = site._received(asked)
    states, own = site._remembered(asked, vector)
    received = vector if own is None or trial.private is None else torch.where(trial.private, own, vector)
    held = None
    if units is not None and trial.neurons is not None:
        held = trial.neurons.held(units)
        received = received.where(held, 0)
    messages = unpacked(asked, "messages", len(trial.method.rules), site._hide)
    return site._job(fields["t"], fields, received, (states, messages), (units, held)), own


def train(site: Site, fields: Mapping[str, Any], job: Job, own: Tensor | None) -> Parcel:
    """Train, store the new state, and answer with the model and the reports; ``fields`` are those of the message."""
    trial, received, held = site.trial, job.received[0], None if job.held is None else job.held[0]
    _allow(site, job)
    accounting.spend(site.node_config, site.noise)
    began = time.monotonic()
    answer = _visited(site, job)
    seconds = time.monotonic() - began
    trained = answer.trained[0]
    mask, uploads = sent(trial.method.rules, trial.private, held)
    new, before = (x if mask is None else x[mask] for x in (trained, received))
    update = change(new, before if uploads else None)
    reports = told(trial.method.rules, tree_map(lambda x: x[0], answer.reports))
    tensors, cut = packed("reports", reports, site._hide)
    kept = {f"states/{rule}/{key}": x[0] for rule, state in enumerate(answer.states) for key, x in state.items()}
    if trial.private is not None and own is not None:
        kept["own"] = (trained if held is None else torch.where(held, trained, own))[trial.private]
    site.store.settle({fields["receipt"][0], *fields["saved"]})  # not before: a message that is refused removes nothing
    receipt = site.store.keep(fields["t"], kept)
    back = {"receipt": receipt.fields, "cut": cut, "seconds": seconds}
    return Parcel(back, {f"model/{name}": x for name, x in update.items()} | tensors)


def _alone(site: Site, asked: Parcel) -> Parcel:
    """Train on the site's own data alone, for as many rounds; a round that fails is left out."""
    if any(rule.declared.seals for rule in site.trial.method.rules):
        raise SiteError("does not send a model that nothing protects")
    if asked.fields["model"] and site.trial.private is not None and site.trial.private.any():
        raise SiteError("does not send a whole model, of which a part must not leave it")
    method = Method.of("standalone")
    trial = replace(site.trial, method=method, private=method.private(site.trial.model), neurons=None)
    alone = replace(site, trial=trial)
    vector, failed, tallies = site._initial(asked), "", list[list[float]]()
    for t in range(asked.fields["rounds"]):
        job = alone._job(t, asked.fields, vector, ([{}], [{}]))
        _allow(alone, job, asked.fields["rounds"])
        try:
            vector = _visited(alone, job).trained[0]
        except TrainingError as error:
            log.error("round %d of training alone failed: %s", t, error)
            failed = sendable(error)
        if site.shown.sets and t >= asked.fields["rounds"] - trial.settings.contribution_rounds:
            tallies.append(_sums(site, site.shown.answered(trial, vector, ()).values()))
    return Parcel({"failed": failed, "tallies": tallies}, {"model/values": vector} if asked.fields["model"] else {})


def _evaluate(site: Site, asked: Parcel) -> Parcel:
    """Scores of a model on the site's own test sets, and of the one it predicts with, where that is another, over all samples of these."""
    trial, fields = site.trial, asked.fields
    if not {*fields["measures"]} <= {*site.tests.measures}:
        raise SiteError(f"measures {', '.join(site.tests.measures)} only, as its own task states: Task(measures=...).")
    shown, own = site.shown, {}
    answered = shown.answered(trial, *_measured(site, asked))
    if "global" in asked.tensors and answered:
        own = {"own": _sums(site, answered.values())}
        shared = changed({"values": asked.tensors["global"]}, None, trial.setup.initial)
        answered = shown.answered(trial, shared, _decisions(site, asked))
    scores = {name: _told(site, outputs, fields["measures"]) for name, outputs in answered.items()}
    return Parcel({"scores": scores, **own})


def _measured(site: Site, asked: Parcel) -> tuple[Tensor, Sequence[State]]:
    """The model [G] of a message, or with ``own`` in it the one that this site predicts with, and the states by which its rules decide."""
    own = asked.fields["own"]
    vector = site._used(asked) if own else site._received(asked)[0]
    return vector, _decisions(site, asked, vector if own else None)


def _decisions(site: Site, asked: Parcel, used: Tensor | None = None) -> Sequence[State]:
    """The states by which rules decide what is predicted, () if none does: the server's, with the site's own for the model ``used`` [G] there."""
    method = site.trial.method
    if not method.overriding("decide"):
        return ()
    states = unpacked(asked, "decisions", len(method.rules), lambda _: None)
    if used is None or not method.own_decisions:
        return states
    return [{**server, **own} for server, own in zip(states, site._remembered(asked, used)[0], strict=True)]


def _told(site: Site, outputs: Outputs, measures: Sequence[str]) -> dict[str, Any]:
    """The tally of a test set, by class and groups of people if rates are asked for, and the measures that do not follow from it."""
    follow = (*outputs.tally.score(), RATES, "persons")
    more: dict[str, Any] = {name: x for name, x in outputs.score(measures).items() if name not in follow}
    if "useless" in more:
        more["useless"] = int(bool(more["useless"]))  # the words stay here
    if "ranks" in more:
        people = people_of(outputs.counts)
        few = [not suppression.enough(min(n), site.least) for n in zip(people["tpr"], people["fpr"], strict=True)]
        more["ranks"] = [[0.0 if few[c] else round(x, DIGITS) for x in sums] for c, sums in enumerate(more["ranks"])]
    short = {name: round(x, DIGITS) if site.guarded and isinstance(x, float) else x for name, x in more.items()}
    report = {"sums": _sums(site, [outputs], classes=RATES in measures), **short}
    wanted = RATES in measures and site.least_count and site.attributes
    by_group = people_sums(outputs, site.least_count) if wanted else None
    return report if by_group is None else {**report, "people": by_group}


def people_sums(outputs: Outputs, least: int) -> list[Sums] | None:
    """Sums by each sensitive attribute, where people in cells of fewer than ``least`` count as unknown; None of numbers, or without attributes."""
    if outputs.s is None or not isinstance(outputs.task, Classification):
        return None
    s = without_small_cells(outputs.y, outputs.s, least, outputs.person)
    every = outputs.task.people(outputs.predicted, outputs.y, s, outputs.values.shape[-1])
    return [{key: sums[key] for key in SENT if key in sums} for sums in every]  # type: ignore[misc, literal-required]


def without_small_cells(y: Tensor, s: Tensor, least: int, person: Tensor | None = None) -> Tensor:
    """Codes [n, A] in which whoever is in a small cell of a class is unknown, -1, in all; ``person`` [n] is whom each is about.

    The server has the samples of each class, so that nothing that it adds and subtracts is about fewer than ``least`` people, see
    :func:`equipoise.privacy.suppression.shown`.
    """
    who = torch.arange(len(y)) if person is None else person
    labels, codes, people = (x.cpu().numpy() for x in (y, s, who))
    seen = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        seen[labels == c] = suppression.shown(codes[labels == c], people[labels == c], least)
    return s.masked_fill(torch.from_numpy(~seen[:, None]).to(s.device), -1)


def _sums(site: Site, parts: Iterable[Outputs], *, classes: bool = False) -> list[float]:
    """The tally of data sets together, in a message; of a guarded site with means of few digits."""
    tally = together(outputs.tally for outputs in parts)
    sums: list[float] = (tally.rounded(DIGITS) if site.guarded else tally).vector(classes=classes).tolist()
    return sums


def _validate(site: Site, asked: Parcel) -> Parcel:
    """How the model this site predicts with does on what it holds out, if that is enough: sums over the samples."""
    (vector, decisions), outputs = _measured(site, asked), None
    if site.held is not None and site.suffices(held := loaded(site.held)):
        outputs = measured(site.trial, vector, held, "this site", decisions)
    return Parcel({"found": None if outputs is None else _sums(site, [outputs])})


def _finish(site: Site, asked: Parcel) -> Parcel:
    """Store the model that this site predicts with, also as a bundle; a simulation can make one of any client."""
    vector, fields = site._used(asked), asked.fields
    model, rounds = site.trial.model.state_dict(vector), (fields["t"], fields["rounds"])
    server = [] if site.simulated else _decisions(site, asked, vector)
    site.store.settle({fields["receipt"][0], *fields["saved"]})
    site.store.keep_model(model)
    if not site.simulated:
        _keep_bundle(site, vector, *rounds, server)
    return Parcel()


def _keep_bundle(site: Site, vector: Tensor, t: int, rounds: int, server: Sequence[State]) -> None:
    """Store the model ``vector`` [G] after ``t`` of ``rounds`` rounds as a bundle, with what it does on the site's own test rows.

    ``server`` are the states by which rules decide.

    Why it cannot be a bundle, if it cannot, is kept in its place.
    """
    folder, reason = site.store.directory / BUNDLE, ""
    shutil.rmtree(folder, ignore_errors=True)  # of a run that went on
    try:
        trial, tests, task = site.trial, site.shown, site.trial.model.task
        meta: Meta = {
            "method": own_code.short(str(trial.method)),
            "seed": trial.settings.seed,
            "rounds": rounds,
            "client_names": list(trial.names),
            "measures": list(tests.measures),
            "classes": list(site.task.classes or map(str, range(trial.setup.n_classes))),
            "least_group": site.least,
            "positive": str(site.run_config.get("positive") or "") or None,
            "header": list(site.doubts),
            "holdings": holdings.holdings(trial.names, None, trial.data, tests.sets, trial.setup.n_classes),
        }
        if isinstance(task, Regression):
            meta |= {"task": task.name, "unit": task.unit}
        if site.attributes:
            meta["attributes"] = {name: list(values) for name, values in site.attributes.items()}
        rows, name, data = loaded(trial.data[0]), trial.names[0], site.task.about
        draft = saving.Trained(trial.model, vector, rows, History((), meta), name, data)
        saving.save(folder, thresholds.measure_bundle(trial, tests, server, t, draft), name=files.KEPT)
        for path in (folder, *folder.rglob("*")):  # they have numbers about the site's own people
            path.chmod(0o700 if path.is_dir() else 0o600)
    except (OSError, ValueError) as error:
        reason = str(error)
    except Exception as error:  # of the user's network: the model itself is stored
        log.exception("no bundle could be made of the model of this site")
        reason = f"{type(error).__name__}; the site's log has more."
    write_atomically(site.store.directory / NO_BUNDLE, reason, private=True)


def _visited(site: Site, job: Job) -> Answer:
    """The checked answer of a visit.

    Where noise protects what is sent, what stays here is put back if it cannot be used: a refusal would say so without noise.

    Raises
    ------
    TrainingError : it failed, the answer is not finite, or has another shape.
    """
    try:
        answer = visit(job, site.trial.bound, 0)
    except Exception as error:  # of a user's data or network
        log.exception("training failed")
        raise TrainingError(f"failed with {harmless(error)}; its own log says more") from error
    before, received = tree_map(lambda x: x[0], job.states), job.received[0]
    if reason := guard.misfit(answer, received, before):
        raise TrainingError(reason)
    if not (problems := guard.inspect(answer, received, before)):
        return answer
    cause = diagnosis.explained(job, problems)[0]
    if site.noise and job.private is not None:
        log.error("the part of the model that stays here is put back, because of it: %s", cause)
        return replace(answer, trained=torch.where(job.private, received, answer.trained), states=job.states)
    raise TrainingError(cause, text.Said(guard.DATA, guard.DATA) if text.key_of(cause) == guard.DATA else "")


KINDS: dict[str, Callable[[Site, Parcel], Parcel]] = {
    "query.describe": _describe,
    "train": lambda site, asked: train(site, asked.fields, *job_of(site, asked)),
    "train.alone": _alone,
    "evaluate": _evaluate,
    "evaluate.validation": _validate,
    "query.finish": _finish,
}


def sendable(error: Exception) -> str:
    """What may be sent of an error of which the site's own log has the whole text."""
    words = getattr(error, "sent", "") or (error.args or ("",))[0]
    return words if isinstance(words, str) else str(error)


def harmless(error: Exception) -> str:
    """The part of an error that may be sent: its kind, if from Python or PyTorch; its text may hold data or paths.

    Of a network that cannot be trained, where in it: the server's has the same names.
    """
    if isinstance(error, copies.NetworkError):
        return ": ".join(filter(None, ("NetworkError", error.fields.get("harmless"))))
    return type(error).__name__ if type(error).__module__ in ("builtins", "torch") else "an error"
