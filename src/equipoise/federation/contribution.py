"""What each client contributes: the accuracy that it reaches when it trains alone, or what the user states."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Literal

import torch
from torch import Tensor

from equipoise.core.settings import Settings
from equipoise.federation.evaluation import EvaluationSets, deployed
from equipoise.federation.guard import QuorumError
from equipoise.federation.method import Method
from equipoise.federation.round import looking, one_round
from equipoise.federation.standing import ProgressLog, progress_bar
from equipoise.federation.trial import Progression, Trial, begin
from equipoise.records.meta import Contribution
from equipoise.records.record import shorten
from equipoise.system.grouping import by_name, grouped
from equipoise.system.suggestions import some

NEEDS = frozenset({"contribution", "contribution_on_test"})  # of a rule

log = logging.getLogger(__name__)


def to_measure(method: Method, settings: Settings, *, asked: bool, given: bool, validation: bool, tests: bool) -> bool:
    """Whether what each client reaches alone is measured: where a method needs it, or it is ``asked`` for, and there are clients.

    Raises
    ------
    ValueError : the data are lacking on which a need is measured, the server's own or test sets; or it is to be the mean over
        several rounds, and is ``given``, or not measured.
    """
    data = {"contribution": (validation, "server_validation=(x, y)"), "contribution_on_test": (tests, "tests={...}")}
    for need, (present, argument) in data.items():
        if need in method.needs and not present and not given:
            raise ValueError(
                f"{method} needs what each client contributes, measured on {argument}, which this federation lacks. "
                "Give it, or give contribution=[...] yourself."
            )
    measures = method.sharing.clients and (asked or bool(method.needs & NEEDS))
    if settings.contribution_rounds > 1 and (given or not measures):
        reason = "the contributions are given" if given else "nobody's contribution is measured"
        raise ValueError(f"contribution_rounds={settings.contribution_rounds}: {reason}. Leave it out.")
    return measures


def given(contribution: Sequence[float], n: int) -> Contribution:
    """The contribution of each of ``n`` clients, as the user states it."""
    try:
        values = None if isinstance(contribution, Mapping | str) else [float(c) for c in contribution]
    except (TypeError, ValueError):
        values = None
    if values is None:
        raise TypeError(
            f"contribution must be a list of numbers in [0, 1], one per client; found {shorten(contribution)}."
        )
    if len(values) != n:
        raise ValueError(f"contribution must hold one number per client: expected {n}, found {len(values)}.")
    if not all(0 <= c <= 1 for c in values):
        span = f"{min(values):g} to {max(values):g}"
        raise ValueError(f"contribution must hold fractions in [0, 1]; found {span}. Divide percentages by 100.")
    return {"standalone_test": values, "standalone_val": None, "given": values, "rounds": None}


def source(method: Method, alone: Contribution | None) -> Literal["given", "standalone_test", "standalone_val"] | None:
    """The entry of ``alone`` that a method takes for the contributions; None if it needs none."""
    if alone is None or not method.needs & NEEDS:
        return None
    if "given" in alone:
        return "given"
    return "standalone_test" if "contribution_on_test" in method.needs else "standalone_val"


def contributions(method: Method, alone: Contribution | None, device: torch.device) -> Tensor | None:
    """What a method takes for the clients' contributions [N]; None if it needs none, or they are not known yet."""
    name = source(method, alone)
    return None if alone is None or name is None else torch.tensor(alone[name], dtype=torch.float64, device=device)


def isolated(trial: Trial) -> Trial:
    """The same clients, all of them in every round, who train for themselves only."""
    method, settings = Method.of("standalone"), replace(trial.settings, participation=1.0, quorum=0.0)
    trial = replace(trial, presence=None, attackers=None, neurons=None, settings=settings)
    return replace(trial, method=method, private=method.private(trial.model))


def standalone(
    trial: Trial, tests: EvaluationSets, rounds: int, begun: Progression | None, *, progress: bool
) -> tuple[Contribution, Progression]:
    """What each client reaches in ``rounds`` rounds alone, see :meth:`equipoise.Federation.standalone`.

    Also how far that training has come; ``begun`` is where an earlier one stopped. An accuracy is the mean over the last
    ``contribution_rounds`` of the settings.
    """
    trial = isolated(trial)
    last = max(1, min(trial.settings.contribution_rounds, rounds))
    now = begun if begun is not None and begun.t <= rounds - last + 1 else begin(trial)
    measured: list[dict[str, list[float]]] = []  # after each of the last rounds
    failed: dict[str, dict[str, None]] = {}  # names of clients, each once, by the reason
    lines, called = ProgressLog(progress), "every client alone, before the first round"
    with progress_bar(progress) as bar:
        task = bar.add_task("every client alone", total=rounds, completed=now.t, accuracy="")
        while True:
            if now.t > rounds - last:
                measured.append(_measured(trial, tests, now))
            if now.t >= rounds:
                break
            try:
                now, record = one_round(trial, now, rounds)
                bad = [(q["name"], q["reason"]) for q in record.get("quarantined", [])]
            except QuorumError as error:  # no client could train
                bad = list(error.bad)
                now = replace(now, t=now.t + 1)
            for name, reason in bad:
                failed.setdefault(reason, {}).setdefault(name)
            bar.update(task, advance=1)
            if lines.due(called, ends=now.t == rounds):
                lines.say(called, f"round {now.t} of {rounds}")
    for reason, names in failed.items():
        log.warning("%s cannot train alone to the end (%s); the last good model counts", some(list(names)), reason)
    by_client = {key: list(zip(*rows, strict=True)) for key, rows in by_name(measured).items()}
    means = {key: [fmean(accuracies) for accuracies in clients] for key, clients in by_client.items()}
    on_tests, on_validation = means.get("standalone_test"), means.get("standalone_val")
    alone: Contribution = {"standalone_test": on_tests, "standalone_val": on_validation, "rounds": rounds}
    if last > 1:
        alone["averaged"] = last
        if "standalone_test" in by_client:
            alone["spread"] = [stdev(accuracies) for accuracies in by_client["standalone_test"]]
    return alone, now


def _measured(trial: Trial, tests: EvaluationSets, now: Progression) -> dict[str, list[float]]:
    """The accuracy of each client's own model on the test sets, and on the server's validation data, as far as there are such data."""
    measured: list[tuple[str, float]] = []
    with looking(trial, 0):
        for m in range(len(trial.data)):  # one model at a time
            vector = deployed(trial, now, m)
            if tests.sets:
                measured.append(("standalone_test", tests.accuracy(trial, vector, m)))
            if trial.oracle is not None:
                measured.append(("standalone_val", float(trial.oracle.tally(vector).goodness)))
    return grouped(measured)
