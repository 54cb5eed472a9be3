"""Model, data, method and settings put together: the trial that a federation trains."""

from __future__ import annotations

from dataclasses import replace

import torch

from equipoise.core.draws import Schedule, chances, cohort_size
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Setup
from equipoise.core.settings import Settings
from equipoise.core.solver import Solver
from equipoise.data.samples import Absent, Transform
from equipoise.engines import ENGINES, EngineChoice, choose
from equipoise.federation.inputs import Frame, Groups
from equipoise.federation.method import Method
from equipoise.federation.trial import Trial

VALIDATION_BATCH = 64  # samples in a batch of the server's validation data, for methods that look at losses of batches


def assemble(
    known: Frame,
    method: Method,
    solver: Solver,
    settings: Settings,
    engine: str,
    *,
    transform: Transform | None,
    groups: Groups | None,
    workers: int,
    away: bool,
) -> Trial:
    """Everything about a run that does not change.

    Parameters
    ----------
    known : model and data.
    method, solver, settings : as for :class:`equipoise.Federation`; so are ``transform`` and ``workers``.
    engine : the name of the engine.
    groups : the hidden units, ``neurons`` of :class:`equipoise.Federation`.
    away : the clients are not in this process.

    Raises
    ------
    ValueError : the network does not suit the method or the batches.
    """
    known.suit(method, settings)
    model, held_out = known.model, known.server_validation
    if isinstance(settings.engine, str):
        call = ENGINES[engine](workers, settings.chunk)
    else:  # jobs carry the settings, also to other processes: they get the engine's name
        call, settings = settings.engine, replace(settings, engine=engine)
    neurons = known.neurons(groups) if "neurons" in method.needs else None
    setup = Setup(
        model.initial,
        model.layout,
        torch.tensor([d.size for d in known.data], dtype=torch.float64, device=model.initial.device),
        solver,
        known.n_classes,
        known.n_features,
        model.head[: model.n_params],
        neurons,
        0 if held_out is None else -(-held_out.size // VALIDATION_BATCH),
        cohort_size(len(known.data), settings.participation),
    )
    return Trial(
        model=model,
        bound=known.bound,
        method=method,
        solver=solver,
        engine=call,
        setup=setup,
        data=known.data,
        names=known.names,
        private=method.private(model),
        settings=settings,
        chances=chances(transform),
        oracle=_oracle(known, solver),
        neurons=neurons,
        workers=workers,
        away=away,
    )


def choose_engine(known: Frame, settings: Settings) -> EngineChoice:
    """The engine that visits the clients, and why."""
    engine = settings.engine
    if not isinstance(engine, str):
        if not callable(engine):
            raise TypeError(f"engine must be the name of one, or a function from a Job to Answers; found {engine!r}.")
        return EngineChoice(getattr(engine, "__name__", type(engine).__name__), "asked for")
    if engine == "auto":
        here = [d for d in (known.first, *known.data) if not isinstance(d, Absent)]
        asked = cohort_size(len(known.data), settings.participation)
        return choose(known.model, here, asked, torch.get_num_threads(), known.stacks)
    if engine not in ENGINES:
        raise ValueError(f"Unknown engine {engine!r}. Choose one of: auto, {', '.join(ENGINES)}.")
    return EngineChoice(engine, "asked for")


def _oracle(known: Frame, solver: Solver) -> Oracle | None:
    """The server's validation data in order, in batches; None if there are none."""
    data = known.server_validation
    if data is None:
        return None
    drawn = torch.arange(-(-data.size // VALIDATION_BATCH) * VALIDATION_BATCH, device=data.sizes.device)
    index = torch.where(drawn < data.size, drawn, -1).view(-1, VALIDATION_BATCH)
    return Oracle(known.bound, data, solver, Schedule(index, None), known.model.n_params)
