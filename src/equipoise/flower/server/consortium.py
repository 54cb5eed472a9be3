"""A federation whose clients are sites: how the server trains them, measures their models, and lets them keep those."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Tensor

from equipoise.core.rates import rate, text
from equipoise.core.settings import Settings
from equipoise.core.solver import SGD, Adam, Solver
from equipoise.engines import EngineChoice
from equipoise.federation import evaluation
from equipoise.federation.evaluation import EvaluationSets, Tallied, costly, personal, published
from equipoise.federation.federation import Federation
from equipoise.federation.method import Method
from equipoise.federation.round import looking, one_round
from equipoise.federation.trial import Progression, Trial
from equipoise.flower.codec import UNFIT, CodecError, Parcel, changed, hiding, packed
from equipoise.flower.secagg.server import MaskedSites
from equipoise.flower.server.scores import UNUSABLE, Tested, heard, held_out, judged, people_together, pooled, reached
from equipoise.flower.server.sites import Sites
from equipoise.flower.site.store import Receipt
from equipoise.flower.site.task import Blank, Task
from equipoise.metrics.classification import MEASURES, RATES
from equipoise.records.meta import Contribution
from equipoise.records.record import Clients, Record, Validation
from equipoise.system.errors import RunError

log = logging.getLogger(__name__)
Value = TypeVar("Value")
Fields = Mapping[str, Any]  # of an answer
Make = Callable[[int], Parcel]  # the message to a client


def description(
    method: Method, solver: Solver, settings: Settings, measures: Iterable[str], name: str
) -> dict[str, Any]:
    """The description of the experiment ``name`` in every message, so that any new process of a site can answer.

    Raises
    ------
    ValueError : a solver that a message cannot describe.
    """
    if not isinstance(solver, SGD | Adam):
        raise ValueError(f"Sites can train with SGD or Adam; found {type(solver).__name__}.")
    if strange := [measure for measure in measures if measure not in (*MEASURES, RATES)]:
        raise ValueError(
            f"Sites measure {', '.join(MEASURES)} and {RATES} only, as they run no code that a server names; found {strange[0]}. Leave it out."
        )
    lr = solver.lr if isinstance(solver.lr, float) else text(rate(solver.lr))
    solving = {"kind": type(solver).__name__, **asdict(solver), "lr": lr}
    same = {"name": name, "method": str(method), "solver": solving, **settings.decisive}
    return {**same, "measures": list(measures)}


def federation(
    task: Task,
    sites: Sites,
    method: Any,
    solver: Solver,
    *,
    settings: Settings,
    secure: bool = False,
    masks: Path | None = None,
    **more: Any,
) -> Federation:
    """A federation whose clients are sites, which keep their data, states, private coordinates and test sets.

    Parameters
    ----------
    task : the server's own.
    sites : the connected sites.
    secure : the server sees sums of updates only, see :class:`equipoise.flower.secagg.server.MaskedSites`.
    masks : the file in which a server that may start again stores what it must know of masked sums.
    settings : of training; their ``engine`` is replaced by the sites.
    more : ``contribution``, ``collaborative`` and ``workers``, as for :class:`equipoise.Federation`.

    Raises
    ------
    RunError : sites do not agree with the server, or with each other.
    ValueError, TypeError : as in a simulation; or the method needs more than sums.
    """
    own = task.tests("server")
    tested = [set(site.tests) for site in sites.members]
    one_each = all(len(names) == 1 and names <= own.keys() for names in tested)
    groups = [next(iter(names)) for names in tested] if own and one_each else None
    complete = bool(own) and (groups is not None or all(names == set(own) for names in tested))
    consortium = Consortium(sites, complete, MaskedSites(sites, masks) if secure else None)
    blank = [Blank(site.size, site.kind) for site in sites.members]
    fed = Federation(
        task.net,
        blank,
        method,
        solver,
        settings=replace(settings, engine=sites),
        tests=own,
        groups=groups,
        names=[site.name for site in sites.members],
        server_validation=task.server_validation,
        neurons=task.neurons,
        measures=task.measures,
        population=consortium,
        memory=0,  # none is read
        **task.common,
        **more,
    )
    if fed.tests.own and (fed.personal or not complete):
        raise ValueError(
            f"{fed.tests.own[0].name} cannot be measured here: sites keep their test sets, and the models that they predict with. Leave it "
            "out, or choose an engine whose clients are in this process."
        )
    sites.check(task.agreement(fed.trial, sites.members[0].shape))
    if consortium.masked is not None:
        consortium.masked.check(fed.trial, fed.collaborative)
    return fed


@dataclass(frozen=True)
class Consortium:
    """The sites as the clients of a federation, a :class:`equipoise.federation.preparation.Population`.

    Parameters
    ----------
    sites : the sites.
    complete : the server has all the test sets that the sites name.
    masked : by which only sums of the sites' updates reach the server; None where it sees each.
    """

    sites: Sites
    complete: bool
    masked: MaskedSites | None = None

    choice = EngineChoice("flower", "every client is a site that is asked by messages")

    @property
    def tested(self) -> bool:
        """Whether every site has test sets."""
        return all(site.tests for site in self.sites.members)

    def train(self, trial: Trial, now: Progression, rounds: int) -> tuple[Progression, Record]:
        """Let the sites of a round train, and the server aggregate; records the seconds of training and until a site answered."""
        masked, times = self.masked, self.sites.times
        times.clear()
        if masked is not None:
            trial = replace(trial, engine=masked.engine(trial), summed=True)
        following, record = one_round(trial, now, rounds)
        site, answered = ([times.get(m, (None, None))[k] for m in record["ids"]] for k in (0, 1))
        record |= {"times": {"site": site, "answered": answered}}
        return following, masked.recorded(record) if masked else record

    def saved(self, kept: Sequence[Mapping[str, Any]]) -> None:
        """Let the sites keep their states of these checkpoints, which the next message to each of them says."""
        away = [checkpoint["away"] for checkpoint in kept if checkpoint.get("away")]
        self.sites.saved = [sorted(set(rounds)) for rounds in zip(*away, strict=True)]

    def deployed(self, trial: Trial, now: Progression, m: int) -> Tensor:
        """The model that site ``m`` predicts with, if the server has it.

        Raises
        ------
        ValueError : the site makes and keeps it.
        """
        if personal(trial, now):
            raise ValueError(
                f"The model that {self.sites.members[m].name} predicts with is made at the site, and kept there as "
                "model.safetensors in its state directory. Leave client out for the global model."
            )
        return evaluation.deployed(trial, now, m)

    def test(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """Scores of the global model by test set, and the accuracy of the model of each site, measured by the sites.

        If nothing is private and the server has all test sets, it tests the global model itself. With private coordinates
        there is no global model to test, and the sites' own models are tested in its place. Test sets of one name are
        averaged over the sites by samples.
        """
        counts, hides, own_models = costly(now.t, rounds), _hides(trial), personal(trial, now)
        if self.complete and not own_models:
            return {**tests.record(trial, now, rounds), **_sent(self.sites)}
        testing = any(site.tests for site in self.sites.members)
        here = bool(tests.sets) and not (hides and testing) and trial.method.sharing.global_model
        vector = now.vector if self.masked else published(trial, now)  # a guarded site measures what it trains from
        record, own = Record(), own_models and (counts or hides)
        if here:
            record = tests.record_global(trial, tests.answered(trial, vector, now.server), now.t, rounds)
        if testing and (own or not here):
            record |= self._measured(trial, now, vector, [*tests.measures] if counts else None, own=own, here=here)
        return {**record, **_sent(self.sites)}

    def _measured(
        self, trial: Trial, now: Progression, vector: Tensor, measures: list[str] | None, *, own: bool, here: bool
    ) -> Record:
        """The scores that the sites measure: of the global ``vector`` [G] unless it is tested ``here``, and of their ``own`` models.

        ``measures`` are None in a round without costly evaluations.
        """
        sites, task, C = self.sites, trial.model.task, trial.setup.n_classes
        wanted, values = measures or [], [*trial.setup.attributes.values()]
        both = own and not here and not _hides(trial)

        def make(m: int) -> Parcel:
            used, t, rounds = None if own else vector, now.t, trial.rounds
            parcel = _model(sites, trial, now, m, used, measures=wanted, own=own, t=t, rounds=rounds)
            return replace(parcel, tensors=parcel.tensors | ({"global": vector} if both else {}))

        def read(m: int, fields: Fields) -> Tested | str:
            tested = Tested.of(fields, sites.members[m].test_sizes, wanted, C, task, both, values)
            if isinstance(tested, str) or not tested.classes:
                return tested
            same = tested.classes == sites.classes.setdefault(m, tested.classes)
            return tested if same else "sent other samples of the classes than before"

        testing = [m for m, site in enumerate(sites.members) if site.tests]
        results, away, lost = self._heard("evaluate", now.t, testing, make, read)
        broken = judged({m: tested.tallies.values() for m, tested in results.items()})
        results = {m: results[m] for m in sorted(results) if broken.get(m) != UNUSABLE}
        record = Record() if here else self._of_sets(trial, results, broken, wanted, both=both, own=own)
        if measures is not None or not personal(trial, now):
            own_scores = [results[m].own if m in results else None for m in range(len(sites.members))]
            main = [None if tally is None else tally.main for tally in own_scores]
            sizes = [0 if tally is None else int(tally.n) for tally in own_scores]
            record["clients"] = cast(Clients, {task.main: main, "n": sizes})
        if lost := lost | broken:
            record["unmeasured"] = {sites.members[m].name: lost[m] for m in sorted(lost)}
        self._tell("evaluated", now.t, away | lost)
        return record

    def _of_sets(
        self,
        trial: Trial,
        results: dict[int, Tested],
        broken: Collection[int],
        wanted: list[str],
        *,
        both: bool,
        own: bool,
    ) -> Record:
        """Scores by test set, and sums by sensitive attribute, by test set if all sites have the same model, and of that of each site."""
        values, C = [*trial.setup.attributes.values()], trial.setup.n_classes
        every, sound = [*results.values()], [tested for m, tested in results.items() if m not in broken]
        record: Record = {"groups": heard(pooled(every, wanted), pooled(sound, wanted))}
        if not (by := people_together(every, values, C)):
            return record
        record["by"] = {"groups": by} if both or not own else {}
        if not both:
            people = {m: [*people_together([tested], values, C).values()] for m, tested in results.items()}
            by_site = [people.get(m, []) for m in range(len(self.sites.members))]
            record["by"]["clients"] = [sums[0] if len(sums) == 1 else None for sums in by_site]
        return record

    def _heard(
        self, kind: str, t: int, clients: Iterable[int], make: Make, read: Callable[[int, Fields], Value | str]
    ) -> tuple[dict[int, Value], dict[int, str], dict[int, str]]:
        """What is read of the answers of sites, why some gave none, and why the answers of others cannot be used, by client."""
        results, away, lost = dict[int, Value](), dict[int, str](), dict[int, str]()
        for m, answer in self.sites.ask(kind, t, clients, make):
            if isinstance(answer, str):
                away[m] = answer
            elif isinstance(value := read(m, answer.fields), str):
                lost[m] = value
            else:
                results[m] = value
        return results, away, lost

    def _tell(self, verb: str, t: int, lost: Mapping[int, str]) -> None:
        """Write into the log whose scores do not count, or not all, and why."""
        for m, reason in sorted(lost.items()):
            log.warning("%s is not %s as others are after round %d: it %s", self.sites.members[m].name, verb, t, reason)

    def validate(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """How the model with which each site predicts does on what it holds out, measured by the sites."""
        sites, own = self.sites, personal(trial, now)
        if own and not costly(now.t, rounds):
            return {}
        vector = published(trial, now)

        def make(m: int) -> Parcel:
            return _model(sites, trial, now, m, None if own else vector, own=own)

        def read(m: int, fields: Fields) -> Tallied | str:
            return held_out(fields, sites.members[m].size, share, task, people=sites.members[m].people)

        task, share, every_site = trial.model.task, trial.settings.validation, range(len(sites.members))
        tallies, away, unusable = self._heard("evaluate.validation", now.t, every_site, make, read)
        lost = away | unusable
        if not any(tallies.values()) and not lost:
            raise RunError(
                f"validation={share:g}: no site holds any out, or not the least-group samples (in its node-config) of which it tells scores. "
                "Raise validation."
            )
        broken = judged({m: [tally] for m, tally in tallies.items() if tally})
        self._tell("validated", now.t, lost | broken)
        every = [None if broken.get(m) == UNUSABLE else tallies.get(m) for m in every_site]
        sound = [None if m in broken else tally for m, tally in enumerate(every)]
        record = evaluation.pooled(task, every, tests.groups)
        if broken:
            its, others = record["validation"], evaluation.pooled(task, sound, tests.groups)["validation"]
            its["groups"] = heard(its["groups"], others["groups"])
            record["validation"] = cast(Validation, heard({"": its}, {"": others})[""])
        return record

    def standalone(self, trial: Trial, tests: EvaluationSets, rounds: int) -> Contribution:
        """The accuracy of each site that trains on its own data alone, measured by the site.

        A server with validation data also receives the models and measures them.

        Raises
        ------
        RunError : a site does not answer; or part of its model is private, or there are several, so that the server cannot measure it.
        """
        sites, initial = self.sites, trial.setup.initial
        N = len(sites.members)
        last = min(trial.settings.contribution_rounds, rounds)
        judged = trial.oracle is not None and not _hides(trial) and last == 1  # sites send one model
        if last > 1 and "contribution" in trial.method.needs:
            raise RunError(
                f"contribution_rounds={last}: {trial.method} measures what each site reaches alone on the server's validation data, and "
                "a site sends the last of its models only. Leave contribution_rounds out."
            )
        if _hides(trial) and "contribution" in trial.method.needs:
            raise RunError(
                f"{trial.method} measures what each site reaches alone on the server's validation data, and keeps a part of "
                "every model at its site, so that the server has no model to measure. Leave one of the two out of method."
            )

        def make(m: int) -> Parcel:
            return Parcel({"client": m, "t": 0, "rounds": rounds, "model": judged}, {"initial": initial})

        tested: list[float | None] = [None] * N
        scores: list[float] = [0.0] * N
        for m, answer in sites.ask("train.alone", 0, range(N), make, sites.exchange.deadline * rounds):
            name = sites.members[m].name
            if isinstance(answer, str):
                raise RunError(f"What {name} reaches alone is not known: it {answer}.")
            if failed := answer.fields.get("failed"):
                log.warning("%s cannot train alone to the end (it %s); its last good model counts", name, failed)
            try:
                tested[m] = reached(answer.fields, sum(sites.members[m].test_sizes.values()), last, trial.model.task)
                vector = changed(answer.part("model"), None, initial.cpu()) if judged else initial
                if not vector.isfinite().all():
                    raise CodecError("its model is not finite.")
            except (CodecError, *UNFIT) as error:
                fault = str(error) if isinstance(error, CodecError) else "there are no scores of its tests that can be."
                raise RunError(f"What {name} reaches alone is not known: it sent an unusable answer: {fault}") from None
            if judged and trial.oracle is not None:
                vector = vector.to(initial.device)
                with looking(trial, 0):
                    scores[m] = float(trial.oracle.tally(vector).goodness)
        complete = tested if all(x is not None for x in tested) else None
        measured = scores if judged else None
        alone: Contribution = {"standalone_test": complete, "standalone_val": measured, "rounds": rounds}
        return {**alone, "averaged": last} if last > 1 else alone

    def finish(self, trial: Trial, now: Progression) -> list[str]:
        """Let every site store the model that it predicts with; returns the names of sites that did not answer."""
        sites, lost = self.sites, []

        def make(m: int) -> Parcel:
            return _model(sites, trial, now, m, None, saved=sites.saved[m] if sites.saved else [])

        for m, answer in sites.ask("query.finish", now.t, range(len(sites.members)), make):
            if isinstance(answer, str):
                log.warning("%s did not get its model: it %s", sites.members[m].name, answer)
                lost.append(sites.members[m].name)
        return lost


def _sent(sites: Sites) -> Record:
    """Bytes of the tensors that each site received and sent in this round, by kind of message, counted in the messages."""
    N = range(len(sites.members))
    ways = {kind: [[counts.get(m, [0, 0])[k] for m in N] for k in (0, 1)] for kind, counts in sites.traffic.items()}
    sites.traffic.clear()
    return {"sent": {kind: {"down": down, "up": up} for kind, (down, up) in ways.items()}}


def _model(sites: Sites, trial: Trial, now: Progression, m: int, vector: Tensor | None, **fields: Any) -> Parcel:
    """The message with the global ``vector`` [G], or, for None, what client ``m`` needs for the model it predicts with."""
    if vector is not None:
        return Parcel(fields, sites.model(m, vector, None, (None, None), fields) | _decisions(trial, now))
    handed = evaluation.handed(trial, now, m)
    receipt = Receipt.of({key: x[m] for key, x in now.clients[0].items()})
    fields |= {"client": m, "t": now.t, "rounds": trial.rounds, "receipt": receipt.fields}
    messages, fields["cut"] = packed("messages", handed.messages, hiding(trial.private, trial.model.n_params))
    fields["deploys"] = bool(handed.messages)
    held = None if handed.units is None or trial.neurons is None else trial.neurons.held(handed.units)
    model = sites.model(m, handed.vector, trial.private, (handed.units, held), fields)
    if receipt.t < 0:
        messages["initial"] = trial.setup.initial
    return Parcel(fields, model | messages | _decisions(trial, now))


def _decisions(trial: Trial, now: Progression) -> dict[str, Tensor]:
    """The states by which rules decide what is predicted."""
    deciding = trial.method.overriding("decide")
    states = [state if k in deciding else {} for k, state in enumerate(now.server)]
    return packed("decisions", states, lambda _: None)[0]


def _hides(trial: Trial) -> bool:
    """Whether models have private coordinates."""
    return trial.private is not None and bool(trial.private.any())
