"""Why the numbers of a client left the range: its data, the model that it was handed, its learning rate, or the term of a rule."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from equipoise.core.draws import noise, seeded
from equipoise.core.model import Bound
from equipoise.core.oracle import Oracle
from equipoise.core.rates import LayerRates
from equipoise.core.rule import Rule, overrides
from equipoise.data.batch import finite
from equipoise.data.samples import loaded
from equipoise.engines.job import Job
from equipoise.engines.sequential import visit
from equipoise.federation import guard
from equipoise.federation.method import text_of
from equipoise.metrics.failure import diverged
from equipoise.system.text import Said
from equipoise.system.tree import tree_map

TERMS = ("begin", "loss", "correction", "gradient", "trains", "upload")  # hooks that change what a client sends


def explained(job: Job, problems: Mapping[int, str]) -> dict[int, str]:
    """The same rows, with the cause instead of what the guard saw, where training again shows one.

    Every client's data and first loss are looked at; the first client whose are finite trains again, as it did and without
    the rules, and what that shows counts for all of them.

    Parameters
    ----------
    job : of the round, with the clients' data.
    problems : what the guard saw, by row.
    """
    bound, causes, why = Bound(job.model), dict[int, str](), None
    for row, reason in sorted(problems.items()):
        try:
            its = replace(job.part([row]), data=[loaded(job.data[row])])
            cause = _before(its, bound, 0)
            if not cause:
                why = _during(its, bound, 0) if why is None else why
                cause = why
        except Exception:  # of a user's data or network: what the guard saw is all that is known
            cause = ""
        causes[row] = cause or reason
    return causes


def rate(job: Job) -> str:
    """The learning rate of the round, as text; of several the least and the largest."""
    lr = job.local.lr
    if not isinstance(lr, LayerRates):
        return f"{lr:g}"
    return " to ".join(f"{x:g}" for x in (min(x for x in lr.rates if x), max(lr.rates)))


def _before(job: Job, bound: Bound, row: int) -> str:
    """What is wrong before a client takes a step; empty if nothing is."""
    oracle = Oracle(bound, job.data[row], job.local, job.schedules.of(row), job.model.n_params)
    random = job.model.random or job.data[row].content is None
    with seeded(noise(job.settings.seed, job.t, job.ids[row]) if random else None):
        vector, spoilt, width = job.received[row], 0, 0
        theta, buffers = vector.tensor_split([oracle.n_params])
        for x, _ in oracle.batches():
            spoilt += int((~finite(x)).sum())
            width = width or bound.forward(theta, buffers.clone(), x)[0].shape[-1]
        if spoilt:
            return _diagnosed(guard.DATA, f"correct {spoilt} of {job.data[row].size} samples, or leave them out")
        loss = oracle.loss(vector)
    if job.t == 0:
        network = _diagnosed(guard.NETWORK, "look at its layers, and at the scale of the inputs")
        return "" if loss.isfinite() else network
    if not diverged({"": {"loss": float(loss)}}, guess=job.model.task.guess(width)):
        return ""
    advice = f"lower the learning rate ({rate(job)}), or look for what spoilt the model before round {job.t}"
    return _diagnosed(guard.DIVERGED, advice)


def _during(job: Job, bound: Bound, row: int) -> str:
    """What makes a client's training leave the range; empty if it does not when it trains again."""
    if _finite(job, bound, row, job.rules):
        return ""
    changing = [rule for rule in job.rules if any(overrides(rule, hook) for hook in TERMS)]
    lower = f"lower the learning rate ({rate(job)})"
    if not changing or not _finite(job, bound, row, ()):
        return _diagnosed(guard.DIVERGED, lower)
    guilty = [
        r for r in changing if _finite(job, bound, row, [other for other in job.rules if other is not r])
    ] or changing
    numbers = (f.name for r in guilty for f in fields(r) if type(getattr(r, f.name)) in (int, float))
    named = dict.fromkeys(numbers)
    change = f"change {' or '.join(named)}, or " if named else ""
    without = f"it does not without {' and '.join(map(text_of, guilty))}; {change}{lower}"
    return _diagnosed(guard.DIVERGED, without)


def _diagnosed(key: str, advice: str) -> Said:
    """A reason that begins with its key; what to do follows a colon."""
    return Said(f"{key}: {advice}", key)


def _finite(job: Job, bound: Bound, row: int, rules: Sequence[Rule]) -> bool:
    """Whether a client's update is in the range when it trains with some of the rules."""
    keep = [k for k, rule in enumerate(job.rules) if any(rule is other for other in rules)]
    part = job.part([row])
    states, messages = ([values[k] for k in keep] for values in (part.states, part.messages))
    part = replace(part, rules=tuple(job.rules[k] for k in keep), states=states, messages=messages)
    answer = visit(part, bound, 0)
    return not guard.inspect(answer, part.received[0], tree_map(lambda x: x[0], states))
