"""All that a client does in a round, as one pure function; an engine is a way to call it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import add, and_

import torch
from torch import Tensor

from equipoise.core import draws
from equipoise.core.oracle import Oracle
from equipoise.core.rule import Gradient, Out, Rule, State, Trained, Visit, overrides
from equipoise.system.tree import aligned

Keys = Callable[[], Sequence[bytes]]


def visit_client(
    rules: Sequence[Rule],
    oracle: Oracle,
    t: int,
    rounds: int,
    received: Tensor,
    states: Sequence[State],
    messages: Sequence[State],
    private: Tensor | None = None,
    held: Tensor | None = None,
    keys: Keys | None = None,
) -> tuple[Tensor, list[State], list[State], Tensor]:
    """Train from the received model and report: the client side of every method.

    Parameters
    ----------
    rules : the rules of the method, each with its own entry in ``states`` and ``messages``.
    oracle : the client's data; for a stack of clients, theirs.
    t, rounds : this round and the planned number of rounds.
    received : the model that the server sent, parameters and buffers [..., G].
    private : coordinates [G] that never leave the client, or None.
    held : coordinates [..., G] of the client's submodel, or None; the others do not train.
    keys : makes the key from which each client draws its noise, where a rule adds any; without them such a rule raises ``ValueError``.

    Returns
    -------
    What is sent as the trained whole model [..., G]; for each rule its report and its new state; and the mean cross-entropy
    [...] of the batches in training, which stays with the client.
    """
    received, states, messages = aligned((received, states, messages))
    P = oracle.n_params
    theta = received[..., :P]
    own = None if held is None else held[..., :P]
    shared = None if private is None else ~private[:P]
    visits = [Visit(received, P, s, m, oracle, t, rounds, own, shared) for s, m in zip(states, messages, strict=True)]
    if keys is not None:
        visits = [replace(v, normal=partial(_normal, keys, r, theta)) for r, v in zip(rules, visits, strict=True)]
    paired = list(zip(rules, visits, strict=True))
    start = _start(paired, received, held)
    trained, loss = _train(oracle, paired, start, own, shared)
    paired = [(r, replace(v, done=Trained(start[..., :P], trained))) for r, v in paired]
    done = [r.finish(trained[..., :P], v) for r, v in paired]
    for rule, (report, _) in zip(rules, done, strict=True):
        # the protection of clients relies on it; read alone, as all that a rule declares would cost every visit
        if report and not getattr(rule, "reports", True):
            raise ValueError(f"{type(rule).__name__} declares no reports, and reports {', '.join(report)}.")
    return _sent(paired, trained, theta, shared), [report for report, _ in done], [state for _, state in done], loss


def _start(paired: Sequence[tuple[Rule, Visit]], received: Tensor, held: Tensor | None) -> Tensor:
    """The model from which training starts [..., G]; zero outside the client's submodel."""
    start = received
    for rule, visit in paired:
        if overrides(rule, "begin"):
            start = rule.begin(start.clone(), visit)
    return start if held is None else start.where(held, 0)


def _train(
    oracle: Oracle, paired: Sequence[tuple[Rule, Visit]], start: Tensor, own: Tensor | None, shared: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The trained model [..., G], with what the rules change of a step, and the mean loss of the batches [...]."""
    with_loss = [(r, v) for r, v in paired if overrides(r, "loss")]
    with_correction = [(r, v) for r, v in paired if overrides(r, "correction")]
    with_gradient = [(r, v) for r, v in paired if overrides(r, "gradient")]

    def terms(out: Out) -> Tensor:
        total = out.cross_entropy
        for r, v in with_loss:
            term = r.loss(out, v)
            if isinstance(term, Tensor) and term.shape != total.shape:
                raise ValueError(
                    f"{type(r).__name__}.loss must give one number per client: expected shape {list(total.shape)}, "
                    f"found {list(term.shape)}. Reduce over the last dimensions only, for example with out.mean()."
                )
            total = total + term
        return total

    def correction(theta: Tensor) -> Tensor | float:
        total = reduce(add, (r.correction(theta, v) for r, v in with_correction))
        # It ties a client to the others, which never see its private coordinates.
        return total if shared is None else total * shared

    def wrap(grad: Gradient, theta: Tensor) -> Tensor:
        for r, v in with_gradient:
            grad = _wrapped(r, v, grad)
        return grad(theta)

    masks = [] if own is None else [own]
    masks += [mask for r, v in paired if overrides(r, "trains") and (mask := r.trains(v)) is not None]
    changes = terms if with_loss else None, correction if with_correction else None, wrap if with_gradient else None
    return oracle.train(start, *changes, reduce(and_, masks) if masks else None)


def _sent(paired: Sequence[tuple[Rule, Visit]], trained: Tensor, start: Tensor, shared: Tensor | None) -> Tensor:
    """The trained model as the server will see it: a rule may replace the update that is sent."""
    sending = [(r, v) for r, v in paired if overrides(r, "upload")]
    if not sending:
        return trained
    P = start.shape[-1]
    update = trained[..., :P] - start
    for r, v in sending:
        update = r.upload(update, v)
    sent = (start + update).to(start.dtype)  # rounded once, where a rule's update is float64
    sent = sent if shared is None else torch.where(shared, sent, trained[..., :P])
    return torch.cat([sent, trained[..., P:]], -1)


def _normal(keys: Keys, rule: Rule, like: Tensor) -> Tensor:
    """Standard normal numbers [..., P] of each client in float64, drawn on the CPU whatever the device."""
    drawn = [draws.normal(key, type(rule).__name__, like.shape[-1]) for key in keys()]
    return torch.stack(drawn).view(like.shape).to(like.device)


def _wrapped(rule: Rule, visit: Visit, grad: Gradient) -> Gradient:
    return lambda theta: rule.gradient(grad, theta, visit)
