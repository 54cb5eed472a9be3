"""Games of rounds: the models of coalitions against rounds in which only those were heard, and what must hold of any values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.contribution import checks
from equipoise.contribution.exact import Banzhaf, Exact, LeaveOneOut
from equipoise.contribution.game import UNDEFINED, Values, members
from equipoise.contribution.rounds import sum_of_rounds
from equipoise.core.rule import Cohort, Rule, State
from equipoise.data.samples import Samples
from equipoise.engines.job import Answer, Job
from equipoise.federation import coalitions
from equipoise.federation.coalitions import RoundGame, RunGame
from equipoise.federation.evaluation import published
from equipoise.federation.method import Method
from equipoise.federation.round import Played, one_round
from equipoise.federation.trial import Progression, Trial
from equipoise.methods import METHODS
from equipoise.system.errors import InputError, RunError
from equipoise.testing.federations import SIZES, differing, evaluation_sets
from helpers import REPRESENTATIVE, fast_first, federation, in_one, samples, scripted

ROUNDS = 3
WITHOUT = [name for name in METHODS if not Method.of(name).sharing.federated]
SUMS = [
    "afl(averaged=true)",  # whose model is known after the rewards only
    "fedheal+clipping",
    "scaffold+median",
    "fedprox+cgsv:released",
    "moon+multi-krum",
    "qffl:full+fedavgm",
]
NAMES = [name for name in METHODS if name not in WITHOUT] + SUMS
FAST = {
    *REPRESENTATIVE,
    "afl(averaged=true)",
    "feddyn",
    "fedavg",
    "qffl",
    "clipping",
    "fedheal+clipping",
    "median",
    "fedadam",
    "afl",
    "fedave",
    "fedbn",
}
CLOSE = 1e-12


def sets(fed: eq.Federation) -> dict[str, Samples]:
    return {name: d for name, d in fed.tests.sets.items() if isinstance(d, Samples)}


@dataclass
class Recorded:
    """A round: what was remembered before and after it, with what the clients answered, by their numbers."""

    trial: Trial
    before: Progression
    played: Played
    after: Progression
    answers: dict[int, Answer]

    def alone(self, coalition: int) -> Progression:
        """The same round, in which only a coalition answers what it answered."""
        heard = {int(self.played.cohort.ids[k]) for k in members(coalition)}

        def engine(job: Job) -> Iterator[Answer]:
            for row, m in enumerate(job.ids):
                yield replace(self.answers[m], rows=(row,)) if m in heard else Answer.failed(row, OSError("away"))

        trial = replace(self.trial, engine=engine, settings=replace(self.trial.settings, quorum=0.0))
        return one_round(trial, self.before, ROUNDS)[0]


def recorded(fed: eq.Federation, rounds: int = 2) -> list[Recorded]:
    """Rounds with what their clients answered."""
    fed.prepare(ROUNDS, progress=False)
    now, found = fed.progress, list[Recorded]()
    for _ in range(rounds):
        answers, played = dict[int, Answer](), list[Played]()

        def engine(job: Job, answers: dict[int, Answer] = answers) -> Iterator[Answer]:
            for answer in fed.trial.engine(job):
                answers |= {job.ids[row]: answer for row in answer.rows}
                yield answer

        after, _ = one_round(replace(fed.trial, engine=engine), now, ROUNDS, played.append)
        found.append(Recorded(fed.trial, now, played[0], after, answers))
        now = after
    return found


def game_of(fed: eq.Federation, played: Played, *names: str) -> RoundGame:
    return RoundGame(fed.trial, played, sets(fed), names or ("loss", "accuracy"))


def models(game: RunGame, *asked: int) -> list[Tensor]:
    """The models of coalitions, which all have one."""
    found = {place: model for places, some in game.models(asked) for place, model in zip(places, some[:], strict=True)}
    return [found[k] for k in range(len(asked))]


def several(n: int) -> list[int]:
    everyone = (1 << n) - 1
    return sorted({1, 2, 3, 5 & everyone, 1 << n - 1, everyone ^ 1, everyone})


def made(name: str, kind: str = "mlp", **settings: Any) -> eq.Federation:
    usual = {"sizes": SIZES.get(kind, SIZES["mlp"]), "tests": evaluation_sets()}
    return federation(name, kind=kind, **{**usual, **settings})


# the models of coalitions
@pytest.mark.parametrize("name", fast_first(NAMES, FAST))
@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
def test_the_model_of_a_coalition_is_that_of_a_round_in_which_only_it_answers(name: str, kind: str) -> None:
    fed = made(name, kind)
    shared = torch.ones_like(fed.progress.vector, dtype=torch.bool) if fed.trial.private is None else ~fed.trial.private
    for each in recorded(fed):
        game = game_of(fed, each.played)
        n = len(game.ids)
        assert n == 4
        asked = several(n)
        nobody, *found = models(game, 0, *asked)
        assert torch.equal(nobody[shared], published(fed.trial, each.before)[shared])
        assert torch.equal(found[-1][shared], published(fed.trial, each.after)[shared])  # the run's own bits
        for coalition, model in zip(asked, found, strict=True):
            oracle = published(fed.trial, each.alone(coalition))
            torch.testing.assert_close(model[shared], oracle[shared], rtol=0, atol=CLOSE)
        hidden = torch.stack([nobody, *found])[:, ~shared]
        assert torch.equal(hidden, each.before.vector[~shared].expand_as(hidden))  # the server's own


@pytest.mark.parametrize("name", fast_first(NAMES, ("fedavg", "fedadam", "cffl")))
def test_measuring_changes_no_bit_of_a_run(name: str) -> None:
    fed = made(name)
    fed.prepare(2, progress=False)
    runs = []
    for measured in (False, True):
        now = fed.progress
        for _ in range(2):
            now, _ = one_round(fed.trial, now, 2, (lambda played: game_of(fed, played).game()) if measured else None)
        runs.append(now.tensors())
    assert differing(*runs) == []


def test_few_models_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fedavg", "median"):
        fed = made(name)
        game = game_of(fed, recorded(fed, 1)[0].played)
        whole = torch.stack(models(game, *range(16)))
        monkeypatch.setattr(coalitions, "CHUNK", 3 * fed.progress.vector.nbytes)
        torch.testing.assert_close(torch.stack(models(game, *range(16))), whole, rtol=0, atol=CLOSE)
        monkeypatch.undo()


@in_one("name", WITHOUT)
def test_without_a_shared_model_there_is_no_game(name: str) -> None:
    fed = made(name)
    with pytest.raises(InputError, match=f"{name}: its clients .*, so a coalition of them has no model"):
        coalitions.check_game(fed.trial)


def test_of_sums_there_is_no_game() -> None:
    fed = made("fedavg")
    with pytest.raises(InputError, match="secure=true"):
        RoundGame(replace(fed.trial, summed=True), recorded(fed, 1)[0].played, sets(fed), ("loss",))


@in_one(
    "names, groups, message",
    [
        (("los",), 2, "Did you mean 'loss'"),
        ((), 2, "Give one utility or more"),
        (("loss", "loss"), 2, "each once; found loss, loss"),
        (("loss", "gap"), 1, "gap compares groups"),
    ],
)
def test_utilities_that_cannot_be_had(names: tuple[str, ...], groups: int, message: str) -> None:
    fed = made("fedavg")
    some = dict([*sets(fed).items()][:groups])
    with pytest.raises(ValueError, match=message):
        RoundGame(fed.trial, recorded(fed, 1)[0].played, some, names)


def test_utilities_are_those_of_the_evaluation() -> None:
    fed = made("fedavg")
    each = recorded(fed, 1)[0]
    game = game_of(fed, each.played, "loss", "accuracy", "worst", "std", "gap")
    model = models(game, 5)[0]
    scores = {name: fed.tests.score(fed.trial, model, d, {}, fed.progress.server) for name, d in sets(fed).items()}
    sizes = [d.size for d in sets(fed).values()]
    each_accuracy = np.array([score["accuracy"] for score in scores.values()])
    loss = np.average([score["loss"] for score in scores.values()], weights=sizes)
    expected = [
        -loss,
        np.average(each_accuracy, weights=sizes),
        each_accuracy.min(),
        -each_accuracy.std(),
        -np.ptp(each_accuracy),
    ]
    assert game.game()([5])[0] == pytest.approx(expected, abs=1e-6)
    made_game = game.game()
    assert made_game.scale == pytest.approx([-made_game([0])[0, 0], 1, 1, 1, 1])


def test_running_variances_stay_above_zero() -> None:
    fed = made("fedavg", "batchnorm", participation=1.0)
    played = recorded(fed, 1)[0].played
    P, at = fed.model.n_params, fed.model.variances
    vector, changes = played.before.vector.clone(), played.cohort.buffer_updates.clone()
    vector[at] = 1e3 / 3
    changes[:, [k - P for k in at]] = -1e3 / 3
    gone = Played(replace(played.before, vector=vector), replace(played.cohort, buffer_updates=changes), played.reports)
    found = torch.stack(models(game_of(fed, gone), *range(1, 32)))[:, at]
    assert float(found.min()) == 0
    assert float(found.max()) < 1e-12 * 1e3


# who is a player
def valued(fed: eq.Federation, played: Played, *names: str) -> Values:
    return Exact()(game_of(fed, played, *names).game())


def test_players_are_those_who_count() -> None:
    def engine(job: Job) -> Iterator[Answer]:
        for row, m in enumerate(job.ids):
            if m == 1:
                yield Answer.failed(row, ValueError("broken"))
            else:
                step = torch.full_like(job.received[:1], math.inf if m == 3 else 0.01 * m)
                yield Answer((row,), job.received[:1] + step, [{}], [{}])

    fed = made("fedavg", engine=engine, participation=1.0, quorum=0.0)
    played: list[Played] = []
    _, record = one_round(fed.trial, fed.progress, 1, played.append)
    game = game_of(fed, played[0])
    assert [q["client"] for q in record["quarantined"]] == [1, 3]
    assert game.ids == [0, 2, 4]
    total = sum_of_rounds(5, [(game.ids, Exact()(game.game()))]).total.values
    assert np.isnan(total[:, 0]).tolist() == [False, True, False, True, False]  # in no round: no value


def test_cohorts_differ_from_round_to_round() -> None:
    fed = made("fedavg", participation=0.4)
    rounds = recorded(fed, ROUNDS)
    games = [game_of(fed, each.played) for each in rounds]
    assert len({tuple(game.ids) for game in games}) > 1
    over = sum_of_rounds(5, [(game.ids, Exact()(game.game())) for game in games])
    for t, game in enumerate(games):
        assert {*np.flatnonzero(over.attended[t])} == {*game.ids}
    final, first = (game([S])[0] for game, S in ((games[-1].game(), 3), (games[0].game(), 0)))
    assert np.nansum(over.total.values, axis=0) == pytest.approx(final - first, abs=CLOSE)


def test_one_client_has_the_whole_gain_and_none_has_no_value() -> None:
    fed = made("fedavg", participation=0.2)
    played = recorded(fed, 1)[0].played
    values = valued(fed, played)
    assert values.values.shape == (1, 2)
    assert (values.values[0] == values.gain).all()


class Nobody:
    """No client comes."""

    def round(self, t: int, share: float) -> tuple[Tensor, dict[str, Any]]:
        return torch.tensor([], dtype=torch.int64), {}


def test_a_round_without_clients_has_no_game() -> None:
    fed, played = made("fedavg"), list[Played]()
    trial: Any = replace(fed.trial, presence=Nobody())  # type: ignore[arg-type]
    now, _ = one_round(trial, fed.progress, 1, played.append)
    assert played == []
    assert torch.equal(now.vector, fed.progress.vector)


def test_without_rounds_there_is_no_game() -> None:
    fed = made("fedavg")
    with pytest.raises(InputError, match="No client took part"):
        RunGame(fed.trial, (), sets(fed), ("loss",))


def test_there_may_be_more_than_64_clients() -> None:
    updates = 0.3 * torch.randn(70, 73, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed = made("fedavg", engine=scripted([updates]), participation=1.0, sizes=(5,) * 70)
    played: list[Played] = []
    one_round(fed.trial, fed.progress, 1, played.append)
    game = game_of(fed, played[0])
    values = LeaveOneOut()(game.game())
    without = fed.progress.vector + updates[:69].mean(0)
    U = coalitions.utilities(fed.trial, without[None], sets(fed), game.names)[0]
    assert values.values[69] == pytest.approx(game.game()([game.game().everyone])[0] - U, abs=1e-9)


# axioms
def sent(updates: Tensor, method: str = "fedavg", **settings: Any) -> tuple[eq.Federation, Played]:
    """A round of all clients, with given updates [5, G]."""
    fed = made(method, engine=scripted([updates]), participation=1.0, **settings)
    played: list[Played] = []
    one_round(fed.trial, fed.progress, 1, played.append)
    return fed, played[0]


def drawn(scale: float = 0.3, seed: int = 0) -> Tensor:
    return scale * torch.randn(5, 73, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


UTILITIES = (*coalitions.UTILITIES,)


@pytest.mark.parametrize("name", ["fedavg", "median", "fedadam"])
def test_equal_updates_have_equal_values(name: str) -> None:
    fed, played = sent(drawn()[:1].expand(5, -1), name, sizes=(9,) * 5)
    values = valued(fed, played, *UTILITIES)
    assert np.ptp(values.values, axis=0) == pytest.approx(0, abs=CLOSE)
    assert values.values[0] == pytest.approx(values.gain / 5, abs=CLOSE)


def test_of_zero_updates_nobody_is_worth_anything() -> None:
    fed, played = sent(0 * drawn())
    for evaluator in (Exact(), Banzhaf(), LeaveOneOut()):
        assert (evaluator(game_of(fed, played, *UTILITIES).game()).values == 0).all()


@pytest.mark.parametrize("name", ["fedavg", "fedavg:uniform", "median", "clipping", "fedheal", "fedadam", "krum"])
def test_twins_have_equal_values_and_all_are_the_gain(name: str) -> None:
    updates = drawn()
    updates[3] = updates[1]
    fed, played = sent(updates, name, sizes=(7, 9, 13, 9, 4))
    game = game_of(fed, played, *UTILITIES).game()
    values = Exact()(game)
    if name != "krum":  # of equal scores it takes the first
        assert values.values[1] == pytest.approx(values.values[3], abs=CLOSE)
        table = game(range(32))
        assert (1, 3) in checks.axioms(table, values.values, 1e-9).twins
    assert values.gap == pytest.approx(0, abs=CLOSE)


def test_a_client_without_weight_is_a_null_player() -> None:
    fed, played = sent(drawn())
    sizes = played.cohort.sizes.clone()
    sizes[2] = 0
    planted = replace(played, cohort=replace(played.cohort, sizes=sizes, weights=sizes / sizes.sum()))
    values = valued(fed, planted, *UTILITIES)
    assert values.values[2] == pytest.approx(0, abs=CLOSE)
    assert values.gap == pytest.approx(0, abs=CLOSE)
    assert abs(values.values[[0, 1, 3, 4], 0]).min() > 1e-3


def test_a_zero_update_is_no_null_player_unless_weights_are_of_the_population() -> None:
    updates = drawn(0.05)
    updates[2] = 0
    for method, null in (("fedavg", False), ("fedavg(weights=population)", True)):
        fed, played = sent(updates, method)
        assert (abs(valued(fed, played, "loss").values[2, 0]) < CLOSE) == null


def test_a_round_that_does_harm_has_values_with_a_negative_sum() -> None:
    fed = made("fedavg")
    good = recorded(fed, 1)[0]
    worse = replace(good.played.cohort, updates=-good.played.cohort.updates)
    values = valued(fed, replace(good.played, cohort=worse), "loss")
    assert values.gain[0] < 0
    assert values.values.sum() == pytest.approx(values.gain[0], abs=CLOSE)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedsac", "cgsv", "afl", "median"])
def test_values_over_rounds_sum_to_what_the_run_gained(name: str) -> None:
    fed = made(name, participation=1.0)
    rounds = recorded(fed, 2)
    over = sum_of_rounds(5, [(range(5), valued(fed, each.played)) for each in rounds])
    ends = [published(fed.trial, p) for p in (rounds[0].before, rounds[-1].after)]
    first, last = coalitions.utilities(fed.trial, torch.stack(ends), sets(fed), ("loss", "accuracy"))
    assert over.total.values.sum(axis=0) == pytest.approx(last - first, abs=1e-6 if name == "afl" else CLOSE)


# what leaves the range of numbers, and what a rule refuses
def test_a_client_that_diverges_alone_is_clipped_and_counted() -> None:
    fed, played = sent(drawn(), sizes=(8,) * 5)
    updates = played.cohort.updates.clone()
    updates[0], updates[1] = 2.0**1023, -(2.0**1023)
    game = game_of(fed, replace(played, cohort=replace(played.cohort, updates=updates)), "loss").game()
    values = Exact()(game)
    assert values.notes["clipped"] == len(game.clipped)
    assert {1, 2} <= {*game.clipped}
    assert all((S & 1) != (S >> 1 & 1) for S in game.clipped)  # one of the two without the other
    assert np.isfinite(values.values).all()
    worst = game([0, *range(4, 32, 4), game.everyone])[:, 0].min()
    assert game([1])[0, 0] <= worst


@dataclass(frozen=True)
class Alone(Rule):
    """Multiply the step of a client that is alone beyond the range of numbers, or to NaN."""

    owns = frozenset({"direction"})
    to: float = math.inf

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, replace(cohort, coefficients=cohort.weights * (self.to if len(cohort.ids) == 1 else 1))


@in_one("to", [math.inf, math.nan])
def test_models_that_are_no_numbers_have_no_place(to: float) -> None:
    fed = made(Alone(to))
    game = game_of(fed, recorded(fed, 1)[0].played)
    places = sorted(place for some, _ in game.models(range(16)) for place in some)
    assert [place for place in range(16) if place.bit_count() != 1] == places
    assert {*Exact()(made_game := game.game()).notes.items()} == {("clipped", 4)}
    assert made_game.clipped == (1, 2, 4, 8)


def test_utilities_that_are_not_numbers_are_refused() -> None:
    x, y = samples(20, 1)
    fed = made("fedavg", tests={"a": (x, y)})
    played = recorded(fed, 1)[0].played
    hole = replace(
        sets(fed)["a"],
        store=sets(fed)["a"].content.map(lambda leaf: leaf * math.nan if leaf.is_floating_point() else leaf),
    )
    with pytest.raises(InputError, match="no finite numbers") as error:
        RoundGame(fed.trial, played, {"a": hole}, ("loss",)).game()
    assert error.value.kind == UNDEFINED


def test_a_rule_that_needs_more_clients_is_refused_in_words() -> None:
    fed = made("krum(f=1)", participation=1.0)
    played = recorded(fed, 1)[0].played
    game = game_of(fed, played)
    whole = models(game, 31)[0]
    assert torch.isfinite(whole).all()
    with pytest.raises(
        RunError, match=r"A coalition of 1 of 5 clients has no model: krum with f=1 .* Or take the evaluator loo"
    ):
        Exact()(game.game())
    with pytest.raises(RunError, match=r"A coalition of 4 of 5 clients has no model: krum with f=1 [^:]*take part\.$"):
        LeaveOneOut()(game.game())


# the game of a run
def run_game(fed: eq.Federation, rounds: list[Recorded], *names: str) -> RunGame:
    return RunGame(fed.trial, tuple(each.played for each in rounds), sets(fed), names or ("loss", "accuracy"))


@pytest.mark.parametrize("name", fast_first(NAMES, FAST - {"fedheal+clipping"}))
def test_all_clients_of_a_run_have_its_last_model(name: str) -> None:
    fed = made(name, "batchnorm")
    rounds = recorded(fed, ROUNDS)
    game = run_game(fed, rounds)
    shared = slice(None) if fed.trial.private is None else ~fed.trial.private
    nobody, everybody = models(game, 0, (1 << len(game.ids)) - 1)
    assert torch.equal(nobody[shared], published(fed.trial, rounds[0].before)[shared])
    torch.testing.assert_close(everybody[shared], published(fed.trial, rounds[-1].after)[shared], rtol=0, atol=CLOSE)


@in_one("name", ["fedavg", "median", "fedavgm", "clipping"])
def test_a_run_of_a_coalition_adds_its_rounds(name: str) -> None:
    """Without momentum they do not depend on each other, so they add up; a round without it adds nothing."""
    fed = made(name, participation=0.4)
    rounds = recorded(fed, ROUNDS)
    game = run_game(fed, rounds)
    assert game.ids == sorted({m for each in rounds for m in each.played.cohort.ids.tolist()})
    for coalition, model in enumerate(models(game, *range(1 << len(game.ids)))):
        chosen = {game.ids[k] for k in members(coalition)}
        theta, velocity = rounds[0].before.vector.clone(), 0.0
        for each in rounds:
            part = sum(1 << k for k, m in enumerate(each.played.cohort.ids.tolist()) if m in chosen)
            if part and name == "fedavgm":
                w = each.played.cohort.sizes[[*members(part)]]
                velocity = 0.9 * velocity + (w / w.sum()) @ each.played.cohort.updates[[*members(part)]]
                theta += velocity
            elif part:
                theta += models(game_of(fed, each.played), part)[0] - each.before.vector
        torch.testing.assert_close(model, theta, rtol=0, atol=CLOSE)
    values = Exact()(game.game())
    assert values.gap == pytest.approx(0, abs=CLOSE)


def test_a_run_that_was_resumed_has_the_same_games(tmp_path: Path) -> None:
    def game(fed: eq.Federation) -> Values:
        played: list[Played] = []
        one_round(fed.trial, fed.progress, ROUNDS, played.append)
        return valued(fed, played[0], *UTILITIES)

    first = made("scaffold+fedavgm")
    first.fit(2, directory=tmp_path, progress=False)
    fresh = made("scaffold+fedavgm")
    fresh.resume(tmp_path)
    assert (game(fresh).values == game(first).values).all()


@dataclass(frozen=True)
class Buffers(Rule):
    """Average the buffers of the first client only."""

    owns = frozenset({"mask"})

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        first = torch.arange(len(cohort.ids)) == 0
        return state, replace(cohort, buffer_mask=first[:, None].expand_as(cohort.buffer_updates))


def test_a_mask_of_the_buffers_alone_is_kept() -> None:
    fed = made(Buffers(), "batchnorm")
    each = recorded(fed, 1)[0]
    P = fed.model.n_params
    model, cohort = models(game_of(fed, each.played), 6)[0], each.played.cohort
    torch.testing.assert_close(model[P:], each.before.vector[P:] + cohort.buffer_updates[1], rtol=0, atol=CLOSE)


YES = ("fedavg", "fedavg(weights=uniform)", "fedprox", "moon")
NO = ("fedavg(weights=population)", "qffl", "fedadam", "median")


@pytest.mark.parametrize(("name", "by_factors"), [*((name, True) for name in YES), *((name, False) for name in NO)])
def test_weights_that_follow_from_factors_are_those_of_the_rules(
    name: str, by_factors: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = made(name)
    played = recorded(fed, 1)[0].played
    quick = game_of(fed, played)
    every = range(1 << len(quick.ids))
    assert bool(quick._by_factors(every)) == by_factors
    whole = models(quick, *every)
    monkeypatch.setattr(coalitions, "FEW", len(every) + 1)
    one_by_one = game_of(fed, played)
    assert not one_by_one._by_factors(every)
    torch.testing.assert_close(torch.stack(whole), torch.stack(models(one_by_one, *every)), rtol=0, atol=CLOSE)
