"""Adapters of the golden entries about what clients are worth; golden_coalitions.py has those of models that a rule makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from equipoise.contribution import checks, completion, directions, exact, rewards, sampled
from equipoise.contribution.game import Evaluator, Game, Values, coalition_of
from equipoise.contribution.rounds import Rounds, decay, halting, sum_of_rounds
from golden_coalitions import ADAPTERS as COALITIONS

Inputs = dict[str, Any]
Fields = dict[str, Any]
Adapter = Callable[[Inputs], Fields]


def phi(values: Values) -> list[float]:
    return values.values[:, 0].tolist()


def by(evaluator: Evaluator) -> Callable[[Any], list[float]]:
    """Values by an evaluator that draws nothing, of a table."""
    return lambda U: phi(evaluator(Game.table(U), np.random.default_rng(0)))


shapley, banzhaf, loo, alone = map(by, (exact.Exact(), exact.Banzhaf(), exact.LeaveOneOut(), exact.Alone()))


def valued(values: Callable[[Any], list[float]]) -> Adapter:
    return lambda i: {"phi": values(i["U"])}


def twins_and_null(i: Inputs) -> Fields:
    values = shapley(i["U"])
    report = checks.axioms(i["U"], values)
    return {"phi": values, "null_players": report.null_players, "twins": report.twins}


def several(i: Inputs) -> Fields:
    U = np.transpose(i["U"])
    values = exact.Exact()(Game.table(U)).values
    return {"phi": values.T, "of_sum": shapley(U @ i["weights"])}


def exact_banzhaf(i: Inputs) -> Fields:
    values = exact.Banzhaf()(Game.table(i["U"]))
    return {"phi": phi(values), "efficiency_gap": values.gap[0]}


def msr(i: Inputs) -> Fields:
    sets = [coalition_of(players) for players in i["sets"]]
    return {"phi": phi(sampled.SampledBanzhaf().of_sets(Game.table(i["U"]), sets))}


def axioms(i: Inputs) -> Fields:
    report = checks.axioms(i["U"], i["phi"], i["tol"])
    return {**report._asdict(), "efficiency_gap": report.efficiency_gap[0]}


def sybil(i: Inputs) -> Fields:
    def gain(values: Callable[[Any], list[float]]) -> float:
        before, after = values(i["before"]), values(i["after"])
        return after[0] + after[2] - before[0]

    return {
        "shapley_before": shapley(i["before"]),
        "shapley_after": shapley(i["after"]),
        "gain_shapley": gain(shapley),
        "gain_banzhaf": gain(banzhaf),
        "gain_loo": gain(loo),
    }


def over_rounds(i: Inputs, evaluator: Evaluator) -> Rounds:
    generator = np.random.default_rng(0)
    return sum_of_rounds(i["N"], [(each["ids"], evaluator(Game.table(each["U"]), generator)) for each in i["rounds"]])


def summed(evaluator: Evaluator) -> Adapter:
    def adapter(i: Inputs) -> Fields:
        rounds = over_rounds(i, evaluator)
        return {"by_round": rounds.by_round[..., 0], "total": phi(rounds.total)}

    return adapter


def tmr(i: Inputs) -> Fields:
    return summed(exact.Exact(between=i["threshold"]))(i)


def normalised(i: Inputs) -> Fields:
    by_round = over_rounds(i, exact.Exact()).normalised()[..., 0]
    return {"by_round": by_round, "total": by_round.sum(axis=0)}


def decayed(i: Inputs) -> Fields:
    rounds = over_rounds(i, exact.Exact())
    weights = decay(len(i["rounds"]), i["lambda"], i["threshold"])
    weighted = rounds.by_round[..., 0] * weights[:, None]
    return {"by_round": weighted, "total": rounds.weighted(weights)[:, 0]}


def halted(i: Inputs) -> Fields:
    total = over_rounds(i, exact.Exact()).weighted(halting(len(i["rounds"]), i["R"]))[:, 0]
    return {"total": total, "share": rewards.shares(total)}


def orders(i: Inputs) -> Fields:
    return {"phi": phi(sampled.Permutations().of_orders(Game.table(i["U"]), i["perms"]))}


def antithetic(i: Inputs) -> Fields:
    drawn = sampled.with_reverses(i["perms"])
    return {"phi": phi(sampled.Permutations(antithetic=True).of_orders(Game.table(i["U"]), drawn, 2))}


def truncated(i: Inputs) -> Fields:
    game = Game.table(i["U"])
    values = sampled.Permutations(within=i["eps"]).of_orders(game, i["perms"])
    records = sampled.marginals(game, i["perms"], i["eps"])[..., 0]
    return {"records": records, "phi": phi(values), "evaluations": values.evaluations}


def gtg(i: Inputs) -> Fields:
    options = {"between": i["eps_b"], "within": i["eps_i"], "tolerance": i["tol"], "least": i["min_permutations"]}
    values = sampled.GTG(**options, floor=0.0).of_orders(Game.table(i["U"]), iter(i["perms"]))
    used = values.notes.get("permutations", 0)
    return {
        "phi": phi(values),
        "used": used,
        "converged": values.converged,
        "evaluations": values.evaluations,
    }


def guided(i: Inputs) -> Fields:
    return {"perms": [*sampled.guided(i["n"], i["tails"], i["m"])]}


def stop(i: Inputs) -> Fields:
    means = np.array(i["means"])[..., None]
    released = np.abs(means[-10:] / means[-1] - 1).mean(axis=(1, 2)).max()  # with the newest itself; not offered
    return {"paper": sampled.change(means), "released": released}


def matrix(i: Inputs) -> tuple[np.ndarray, np.ndarray]:
    U = np.array(i["U"], dtype=float)
    return np.nan_to_num(U), np.isfinite(U)


def completed(i: Inputs) -> Fields:
    U, seen = matrix(i)
    W = completion.cosines(len(U), i.get("r", min(U.shape)))
    X, objective = completion.factorise(U, seen, W, i["lambda"])
    sums = X.sum(axis=0)
    if "perms" in i:
        place = {S: k for k, S in enumerate(i["columns"])}
        game = Game(i["n"], lambda masks: [[sums[place[S]]] for S in masks])
        values = phi(sampled.Permutations().of_orders(game, i["perms"]))
    else:
        values = shapley(sums)
    return {
        "X": X,
        "phi": values,
        "objective": objective,
        "unique": completion.certified(U, seen, X, i["lambda"]),
        "fitted": [[x if s else None for x, s in zip(*rows, strict=True)] for rows in zip(X, seen, strict=True)],
    }


def completed_rounds(i: Inputs) -> Fields:
    """With the federated Shapley value, of games of the rounds' own players."""
    U = matrix(i)[0]
    rounds = []
    for row, ids in zip(U, i["cohorts"], strict=True):
        masks = [sum(1 << ids[k] for k in range(len(ids)) if S >> k & 1) for S in range(1 << len(ids))]
        rounds.append((ids, exact.Exact()(Game.table(row[masks]))))
    values = phi(sum_of_rounds(i["n"], rounds).total)
    return {**completed(i), "mr": values, "fedsv": values}


def objective(i: Inputs) -> Fields:
    U, W, H = (np.array(i[key], dtype=float) for key in "UWH")
    games = [(ids, Game.table(row)) for ids, row in zip(i["cohorts"], U, strict=True)]
    seen = np.array([[not S & ~coalition_of(ids) for S in range(U.shape[1])] for ids, _ in games])
    return {
        "objective": completion.objective(U, seen, W, H, i["lambda"]),
        "phi": shapley((W @ H.T).sum(axis=0)),
    }


def owen_grid(i: Inputs) -> Fields:
    game, chances = Game.table(i["U"]), sampled.Owen(points=i["Q"], ends=True).chances
    return {"phi": phi(exact.semivalue(game, exact.owen_weights(game.n, chances)))}


def owen_ends(i: Inputs) -> Fields:
    return {"phi": by(sampled.Owen(points=2, ends=True, antithetic=False))(i["U"])}


def owen_sets(i: Inputs) -> Fields:
    sets = [[coalition_of(players) for players in own] for own in i["sets"]]
    values = {
        name: sampled.Owen(points=1, antithetic=name == "antithetic").of_sets(Game.table(i["U"]), sets)
        for name in ("plain", "antithetic")
    }
    return {name: phi(value) for name, value in values.items()}


def strata(i: Inputs) -> Fields:
    return {"phi": by(sampled.Strata())(i["U"]), "exact": shapley(i["U"])}


def products(u: Any) -> np.ndarray:
    return np.array(u) @ np.transpose(u)


def cosine(i: Inputs) -> Fields:
    return {"phi": directions.cosines_with_sum(products(i["u"]), i["sizes"])}


def cosine_game(i: Inputs) -> Fields:
    values = phi(exact.Exact()(directions.cosine_game(products(i["u"]))))
    return {"phi": values, "share": rewards.shares(values)}


def shapfed(i: Inputs) -> Fields:
    result = directions.shapfed(i["head"], i["weights"])
    return {"Gamma": result.cosines, "gamma": result.values, "share": result.shares}


def shapfed_released(i: Inputs) -> Fields:
    head = np.concatenate([i["head"], np.array(i["bias"])[..., None]], axis=-1)
    result = directions.shapfed_released(head, i["weights"], i["previous"])
    return {"Gamma": result.cosines, "value": result.values, "share": result.shares}


def ends(result: checks.Interval) -> Fields:
    return {"se": result.error, "t": result.t, "low": result.low, "high": result.high, "phi": result.mean}


def interval_of_orders(i: Inputs) -> Fields:
    return ends(checks.interval(sampled.marginals(Game.table(i["U"]), i["perms"])[..., 0], i["level"]))


def interval_of_samples(i: Inputs) -> Fields:
    rows = checks.per_sample(i["right"])
    return {"per_sample": rows, **ends(checks.interval(rows, i["level"]))}


def pair(i: Inputs) -> Fields:
    return checks.pairs(i["per_sample"])[0]._asdict()


def reward(i: Inputs) -> Fields:
    result = rewards.reward(i["phi"], i["budget"], i.get("floor", 0.0), i.get("cap", float("inf")))
    return {"reward": result.amounts, "left": result.left}


def sites(i: Inputs) -> Fields:
    by_site = np.array(i["correct"]) / i["sizes"]
    pooled = np.sum(i["correct"], axis=1) / sum(i["sizes"])
    return {
        "pooled": pooled,
        "phi_pooled": shapley(pooled),
        "phi_mean": shapley(by_site.mean(axis=1)),
        "phi_worst": shapley(by_site.min(axis=1)),
    }


OWN = {
    **COALITIONS,
    "shapley.twins_and_null": twins_and_null,
    "shapley.additivity": several,
    "banzhaf.n3": exact_banzhaf,
    "banzhaf.n5": exact_banzhaf,
    "banzhaf.msr": msr,
    "loo.n5": valued(loo),
    "standalone.n5": valued(alone),
    "axioms.report": axioms,
    "gaming.sybil": sybil,
    "mr.full": summed(exact.Exact()),
    "mr.partial": summed(exact.Exact()),
    "loo.rounds": summed(exact.LeaveOneOut()),
    "mr.normalised": normalised,
    "mr.halting": halted,
    "tmr.released": tmr,
    "tmr.decay": decayed,
    "mc.plain": orders,
    "mc.antithetic": antithetic,
    "mc.truncated": truncated,
    "mc.boundary": truncated,
    "gtg.paper": gtg,
    "gtg.paper_truncating": gtg,
    "gtg.between_rounds": gtg,
    "gtg.guided": guided,
    "gtg.stop": stop,
    "comfedsv.observed": completed_rounds,
    "comfedsv.completed": completed,
    "comfedsv.twins": completed_rounds,
    "comfedsv.rank1": completed,
    "comfedsv.rank2": completed,
    "comfedsv.mc": completed,
    "comfedsv.not_unique": completed,
    "comfedsv.objective": objective,
    "owen.grid": owen_grid,
    "owen.ends": owen_ends,
    "owen.antithetic": owen_sets,
    "strata.ends": strata,
    "cgsv.cosine": cosine,
    "cgsv.exact": cosine_game,
    "shapfed.paper": shapfed,
    "shapfed.absent_class": shapfed,
    "shapfed.released": shapfed_released,
    "interval.permutations": interval_of_orders,
    "interval.samples": interval_of_samples,
    "interval.pair": pair,
    "ranks.stability": lambda i: checks.stability(i["values"])._asdict(),
    "detection.auc": lambda i: {"auc": checks.detection(i["value"], i["bad"])},
    "sites.scores": sites,
    **{f"shapley.{name}": valued(shapley) for name in ("n1", "n3", "n4", "n5", "nonzero_empty")},
    **{f"reward.{name}": reward for name in ("proportional", "floor", "cap", "cap_left", "nobody")},
}


def plain(tree: Any) -> Any:
    """Lists in place of arrays."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return tree.tolist() if isinstance(tree, np.ndarray | np.generic) else tree


def listed(adapter: Adapter) -> Adapter:
    return lambda i: plain(adapter(i))


ADAPTERS = {f"contribution.{name}": listed(adapter) for name, adapter in OWN.items()}
SKIPPED = {
    "contribution.mc.fedsv_as_printed": "a slip of the paper: U is never reset between orders",
    "contribution.gtg.released": "a fault of the code: values that were not evaluated are used as if they were",
    "contribution.gtg.cyyever_normalise": "breaks efficiency wherever signs are mixed",
    "contribution.mc.mplc_stop": "orders are of a stated number, or end by the rule of GTG-Shapley",
}
