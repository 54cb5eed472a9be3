"""Model, data, method and settings put together: the trial that a federation trains."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from equipoise.core.draws import Schedule, chances, cohort_size
from equipoise.core.model import Model
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Setup
from equipoise.core.settings import Settings
from equipoise.core.simulation import FLIPS, Attackers, Presence
from equipoise.core.solver import Solver
from equipoise.core.task import CLASSIFICATION, Task
from equipoise.data.samples import Absent, Transform
from equipoise.engines import ENGINES, EngineChoice, choose
from equipoise.federation.checkpoint import Kept
from equipoise.federation.evaluation import EvaluationSets, HeldOut
from equipoise.federation.inputs import Frame, Groups
from equipoise.federation.method import Method
from equipoise.federation.stopping import NONE
from equipoise.federation.trial import Progression, Trial
from equipoise.metrics.classification import KNOWN, Measure, chosen, divided
from equipoise.metrics.groups import Positive
from equipoise.records.meta import Contribution
from equipoise.records.record import Record
from equipoise.records.validation import BEST
from equipoise.system.ranges import check_option

VALIDATION_BATCH = 64  # samples in a batch of the server's validation data, for methods that look at losses of batches


class Population(Protocol):
    """The clients of a federation, which hold their data, states and test sets themselves."""

    @property
    def choice(self) -> EngineChoice:
        """The name of the engine and the reason for it, as results show them."""

    @property
    def tested(self) -> bool:
        """Whether every client has test sets."""

    def train(self, trial: Trial, now: Progression, rounds: int) -> tuple[Progression, Record]:
        """One round, as :func:`equipoise.federation.round.one_round` is."""

    def test(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """Scores of the models after a round; ``tests`` are the server's own test sets."""

    def validate(self, trial: Trial, tests: EvaluationSets, now: Progression, rounds: int) -> Record:
        """As :meth:`equipoise.federation.evaluation.HeldOut.record`, on what the clients hold out; ``tests`` know their groups."""

    def standalone(self, trial: Trial, tests: EvaluationSets, rounds: int) -> Contribution:
        """The accuracy of each client that trains alone, as :meth:`equipoise.Federation.standalone` gives it."""

    def deployed(self, trial: Trial, now: Progression, m: int) -> Tensor:
        """The model [G] that client ``m`` predicts with.

        Raises
        ------
        ValueError : the server does not have it.
        """

    def saved(self, kept: Sequence[Kept]) -> None:
        """Called when a checkpoint was written or read, with all that are kept: ``away`` has the round of each client's state."""


@dataclass(frozen=True, eq=False)
class Arrangement:
    """What of a federation stays as it was made: see :class:`equipoise.Federation` for the meaning of each.

    ``held`` is what the clients hold out, ``collaborative`` whether what each reaches alone is measured,
    ``repeated`` that several rows are of one person, in words.
    """

    inputs: Frame
    tests: EvaluationSets
    held: HeldOut | None
    classes: tuple[str, ...]
    attributes: Mapping[str, Sequence[str]]
    positive: Positive | None
    least_group: int
    select: str
    population: Population | None
    engine_choice: EngineChoice
    collaborative: bool
    repeated: list[str]

    @property
    def model(self) -> Model:
        """The network as a function of a vector."""
        return self.inputs.model

    @property
    def names(self) -> tuple[str, ...]:
        """The clients' names."""
        return self.inputs.names

    @property
    def transform(self) -> Transform | None:
        """What makes network inputs of a batch."""
        return self.inputs.transform


def prepare(
    inputs: Frame,
    method: Method,
    solver: Solver,
    settings: Settings,
    engine: str,
    *,
    groups: Groups | None,
    workers: int = 1,
    attributes: Mapping[str, int] | None = None,
    positive: int | None = None,
) -> Trial:
    """Everything about a run that does not change, of clients that are in this process, all available and none attacking.

    Parameters
    ----------
    inputs : model and data.
    method, solver, settings : as for :class:`equipoise.Federation`; so is ``workers``.
    engine : the name of the engine.
    groups : the hidden units, ``neurons`` of :class:`equipoise.Federation`.
    attributes, positive : see :class:`equipoise.core.rule.Setup`.

    Raises
    ------
    ValueError : the network does not suit the method or the batches.
    """
    inputs.suit(method, settings)
    model, held_out = inputs.model, inputs.server_validation
    if isinstance(settings.engine, str):
        call = ENGINES[engine](workers, settings.chunk)
    else:  # jobs carry the settings, also to other processes: they get the engine's name
        call, settings = settings.engine, replace(settings, engine=engine)
    neurons = inputs.neurons(groups) if "neurons" in method.needs else None
    setup = Setup(
        model.initial,
        model.layout,
        torch.tensor([d.size for d in inputs.data], dtype=torch.float64, device=model.initial.device),
        solver,
        inputs.n_classes,
        inputs.n_features,
        model.head[: model.n_params],
        neurons,
        0 if held_out is None else -(-held_out.size // VALIDATION_BATCH),
        cohort_size(len(inputs.data), settings.participation),
        attributes or {},
        positive,
    )
    return Trial(
        model=model,
        bound=inputs.bound,
        method=method,
        solver=solver,
        engine=call,
        setup=setup,
        data=inputs.data,
        names=inputs.names,
        private=method.private(model),
        settings=settings,
        chances=chances(inputs.transform),
        oracle=_oracle(inputs, solver),
        neurons=neurons,
        workers=workers,
    )


def recorded_of(task: Task, measures: Iterable[object]) -> tuple[tuple[str, ...], tuple[Measure, ...]]:
    """What is recorded: measures by name, all of a regression; and the user's own functions."""
    names, own = divided(measures)
    if task.name == CLASSIFICATION.name:
        return chosen(names), own
    classes = [name for name in names if name != "accuracy"] + [m.name for m in own if m.name in KNOWN]
    if classes:
        raise ValueError(
            f"{', '.join(classes)} {'need' if len(classes) > 1 else 'needs'} classes, and a regression has none: it has rmse, mae and r2."
        )
    return task.measures, own


def check_away(method: Method, select: str, *, away: bool, held: bool) -> None:
    """Refuse what clients that are away cannot give, and a choice of the model without validation."""
    if away and not method.sharing.clients:
        raise ValueError(f"{method} needs the data of all clients in one place, and sites keep theirs. Leave it out.")
    check_option("select", select, ("last", BEST))
    if select != "last" and away:
        raise ValueError(f"select={select!r}: sites keep no state of an earlier round. Leave it out.")
    if select != "last" and not held:
        raise ValueError(f"select={select!r} {NONE}: give validation=0.2.")


def held_out(inputs: Frame, settings: Settings, groups: tuple[str, ...] | None) -> tuple[Frame, HeldOut | None]:
    """The inputs without what every client holds out, and that; None without validation.

    Raises
    ------
    ValueError : that is nothing.
    """
    if not settings.validation:
        return inputs, None
    without, parts = inputs.divided(settings.validation, settings.seed)
    if not any(parts):
        most = max(d.size for d in inputs.data)
        raise ValueError(
            f"validation={settings.validation:g} holds nothing out, because no client has more than {most} samples. "
            f"{'Leave it out.' if most == 1 else f'Take a share of at least {1 / most:.2g}.'}"
        )
    return without, HeldOut(parts, groups)


def who_comes(
    inputs: Frame, method: Method, settings: Settings, groups: Sequence[str] | None, *, here: bool
) -> tuple[Presence | None, Attackers | None]:
    """The available clients of each round, and those that attack, in a simulation; None if all are available, and no client attacks."""
    sizes, task = [d.size for d in inputs.data], inputs.model.task
    presence = Presence.of(settings, inputs.names, groups, sizes) if method.sharing.clients else None
    if settings.attack in FLIPS and task.dtype.is_floating_point:
        raise ValueError(
            f"attack={settings.attack!r} changes classes, and a {task.name} has none. Take sign-flip, for example."
        )
    attackers = Attackers.of(settings, inputs.names, groups, here=here)
    return presence, attackers if method.sharing.federated else None


def choose_engine(inputs: Frame, settings: Settings) -> EngineChoice:
    """The engine that visits the clients, and why."""
    engine = settings.engine
    if not isinstance(engine, str):
        if not callable(engine):
            raise TypeError(f"engine must be the name of one, or a function from a Job to Answers; found {engine!r}.")
        return EngineChoice(getattr(engine, "__name__", type(engine).__name__), "asked for")
    if engine == "auto":
        here = [d for d in (inputs.first, *inputs.data) if not isinstance(d, Absent)]
        asked = cohort_size(len(inputs.data), settings.participation)
        return choose(inputs.model, here, asked, torch.get_num_threads(), inputs.stacks)
    if engine not in ENGINES:
        raise ValueError(f"Unknown engine {engine!r}. Choose one of: auto, {', '.join(ENGINES)}.")
    return EngineChoice(engine, "asked for")


def _oracle(inputs: Frame, solver: Solver) -> Oracle | None:
    """The server's validation data in order, in batches; None if there are none."""
    data = inputs.server_validation
    if data is None:
        return None
    drawn = torch.arange(-(-data.size // VALIDATION_BATCH) * VALIDATION_BATCH, device=data.sizes.device)
    index = torch.where(drawn < data.size, drawn, -1).view(-1, VALIDATION_BATCH)
    return Oracle(inputs.bound, data, solver, Schedule(index, None), inputs.model.n_params)
