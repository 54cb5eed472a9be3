"""Methods whose server needs only a sum of the updates: each is weighed by the client's own samples, or all alike."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from equipoise.core.rule import Cohort, Rule, overrides
from equipoise.federation.method import Method, MethodError
from equipoise.federation.trial import Trial
from equipoise.methods import METHODS


def require_own_weights(method: Method) -> None:
    """Require that the server of a method needs only a sum, in which each site's weight follows from its own samples.

    Raises
    ------
    MethodError : it does not.
    """
    for rule, part in zip(method.rules, method.parts, strict=True):
        if why := problem(rule):
            can = [name for name in METHODS if not any(problem(r()) for r in METHODS[name].rules)]
            raise MethodError(
                f"secure=true: {part} cannot be used, because {why}, and the server sees sums only. Usable methods, "
                f"also in sums: {', '.join(can)}. Choose among them, or set secure=false."
            )


def problem(rule: Rule) -> str:
    """Why a rule cannot be used if the server sees sums only; empty if it can."""
    if rule.declared.sees == "nothing":
        return "nothing is summed in it"
    if rule.declared.sees == "scalars+sum":
        return (
            "it weighs a site by the reports of others, and a server that sends a site such a weight learns its update"
        )
    if rule.declared.sees != "sum":
        return "the server must see what each site sends"
    if rule.declared.reports and not overrides(rule, "no_report"):
        return f"every site reports {rule.declared.reports.removeprefix('its ')} to the server, and no_report does not define its form"
    return ""


def own_weights(trial: Trial, sizes: Mapping[str, int]) -> dict[str, float]:
    """The factor of each site's update: its samples, or one; no number of a different site or of the server.

    Raises
    ------
    MethodError : the rules weigh differently, or do more than weigh.
    """
    require_own_weights(trial.method)
    n, P, vector = len(sizes), trial.model.n_params, trial.setup.initial
    samples = torch.tensor([float(size) for size in sizes.values()], dtype=torch.float64)
    # which class is positive is the server's choice, on which no weight of a site depends
    setup, ids = replace(trial.setup, sizes=samples, positive=0), torch.arange(n)
    zero = torch.zeros_like(vector).expand(n, -1)
    cohort = Cohort(
        t=0,
        rounds=1,
        n_clients=n,
        theta=vector[:P],
        updates=zero[:, :P],
        ids=ids,
        sizes=samples,
        weights=samples / samples.sum(),
        layout=trial.model.layout,
        buffer_updates=zero[:, P:],
        received=vector.expand(n, -1),
        kept=vector.expand(n, -1),
        seed=trial.settings.seed,
    )
    for rule in trial.method.rules:
        reports = {key: x.expand(n, *x.shape) for key, x in rule.no_report(setup).items()}
        _, cohort = rule.aggregate(rule.server_state(setup), replace(cohort, reports=reports))
    if any(x is not None for x in (cohort.coefficients, cohort.mask, cohort.buffer_mask)):
        raise MethodError("secure=true: a rule of the method does more than weigh the updates. Set secure=false.")
    for own in (samples, torch.ones_like(samples)):
        if torch.allclose(cohort.weights.double(), own / own.sum(), rtol=1e-6, atol=0):
            return dict(zip(sizes, own.tolist(), strict=True))
    raise MethodError("secure=true: the method weighs a site by more than its own samples. Set secure=false.")
