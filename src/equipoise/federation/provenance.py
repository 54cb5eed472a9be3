"""What a reader of the results must know about how they were made."""

import logging
from collections.abc import Sequence

from equipoise.core.draws import cohort_size
from equipoise.core.settings import COMING, SIMULATED, simulated
from equipoise.engines import EngineChoice
from equipoise.federation.trial import Trial
from equipoise.records.meta import Content
from equipoise.system import own_code
from equipoise.system.environment import code, kind, machine, release
from equipoise.system.suggestions import some
from equipoise.system.text import plural

log = logging.getLogger(__name__)


def header(trial: Trial, choice: EngineChoice) -> list[str]:
    """Method, training, network, engine, BatchNorm and hidden units, a line each."""
    model, s = trial.model, trial.settings
    asked = cohort_size(len(trial.data), s.participation)
    local = f"{s.epochs} local epochs" if s.steps is None else f"{s.steps} local steps"
    dtype = str(model.initial.dtype).removeprefix("torch.")
    features = (
        f"features enter {model.head_name!r}" if model.head_name else "no classifier, so the logits are its features"
    )
    method = own_code.short(str(trial.method))
    lines = [
        f"method {method} · {plural(len(trial.data), 'client')}, {asked} a round · {local} of batch {s.batch_size} · {trial.solver}",
        f"network of {model.n_params:,} trainable parameters ({dtype}{', autocast to bf16' if model.bf16 else ''}); {features}",
        f"engine {choice.engine}: {choice.why}",
        f"BatchNorm: {_batch_norm(trial)}",
    ]
    if model.whole:
        how = "kept by each client" if _kept(trial) else "averaged by client weight and rounded"
        lines.append(f"whole numbers of the network: {some(model.whole)}, {how}")
    if trial.presence is not None:
        lines.append(
            f"clients come and go, drawn from the seed: {', '.join(f'{k} {v}' for k, v in simulated(s, COMING).items())}"
        )
    if (attackers := trial.attackers) is not None:
        what = f"attack {attackers.attack}{f' of scale {attackers.scale:g}' if attackers.scale else ''}"
        lines.append(
            f"{what} by {len(attackers.clients)} of {len(trial.data)}: {some([trial.names[m] for m in attackers.clients])}"
        )
    here = [name for name in SIMULATED if trial.presence is None or name not in COMING]
    if not trial.method.sharing.federated and (idle := simulated(s, here)):
        lines.append(
            f"without effect here, as it is no federated learning: {', '.join(f'{k} {v}' for k, v in idle.items())}"
        )
    if trial.neurons is not None:
        sizes = ", ".join(f"{name} {n}" for name, n in zip(trial.neurons.names, trial.neurons.sizes, strict=True))
        shared = [f"{name} is everybody's ({why})" for name, why in trial.neurons.left_out.items()]
        lines.append("; ".join([f"hidden units: {sizes}", *shared]))
    return lines


def _batch_norm(trial: Trial) -> str:
    """What happens to the running statistics."""
    model = trial.model
    if not model.batch_norm:
        return "none in this network"
    if _kept(trial):
        how = "kept by each client; the global model is tested with their mean"
    else:
        masked = any(rule.declared.mask_buffers for rule in trial.method.rules)
        how = f"averaged by client weight and {'masked like parameters' if masked else 'not masked'}"
    n = model.size - model.n_params - model.n_whole
    return f"{n:,} running statistics, {how}; a last batch of one sample is left out"


def _kept(trial: Trial) -> bool:
    """Whether all buffers stay with each client."""
    return trial.private is not None and bool(trial.private[trial.model.n_params :].all())


def machines(earlier: Sequence[Content], trial: Trial, t: int) -> list[Content]:
    """What computed the rounds, each machine with the first of its own, where this one computes those from ``t`` on.

    A run that another kind of processor, or another version of Equipoise, began continues with a warning.
    """
    here = {"round": t, **machine(trial.model.initial.device), **code()}
    if not earlier:
        return [here]
    before, name = earlier[-1], f"{trial.method}, seed {trial.settings.seed}"
    if kind(before) != kind(here):
        log.warning(
            "%s: rounds before %d were computed with %s; here it is %s, so from here on the last bits may differ.",
            name,
            t,
            kind(before),
            kind(here),
        )
    if release(before) != release(here):
        log.warning(
            "%s: rounds before %d were computed by Equipoise %s, and those from here on by %s: results may differ. "
            "Start another run for results of one version.",
            name,
            t,
            release(before) or "of an earlier version",
            release(here),
        )
    same = kind(before) == kind(here) and release(before) == release(here)
    return list(earlier) if same else [*earlier, here]
