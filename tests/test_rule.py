"""What the contract offers to rules: parts that are trained, directions, and what a client predicts with."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

import equipoise as eq
from equipoise.core.rule import Cohort, Columns, Combine, Given, Out, Rule, Setup, State, Visit
from equipoise.federation import evaluation
from equipoise.federation.method import Method, MethodError, parse
from helpers import (
    KeepHead,
    KeepNorm,
    difference,
    federation,
    fitted,
    in_one,
    network,
    normal,
    oracle_of,
    others_slow,
    samples,
)


def cohort(updates: Tensor, **more: object) -> Cohort:
    M, P = updates.shape
    weights = torch.full((M,), 1 / M, dtype=torch.float64)
    given = {
        "t": 0,
        "rounds": 1,
        "n_clients": M,
        "theta": torch.zeros(P, dtype=torch.float64),
        "updates": updates,
        "ids": torch.arange(M),
        "sizes": weights,
        "weights": weights,
        "layout": (P,),
        "buffer_updates": updates[:, :0],
        "received": torch.zeros_like(updates),
        "kept": torch.zeros_like(updates),
    }
    return Cohort(**{**given, **more})


def test_coefficients_may_differ_between_tensors() -> None:
    u, c = normal(3, 10), normal(3, 2, seed=1)
    found = cohort(u, layout=(4, 6), coefficients=c, scale=2.0, shift=torch.ones(10, dtype=torch.float64))
    expected = [2 * sum(float(c[m, int(j >= 4)] * u[m, j]) for m in range(3)) + 1 for j in range(10)]
    assert found.step().tolist() == pytest.approx(expected)


def test_a_step_is_made_in_one_way() -> None:
    u, c, w = normal(3, 10), normal(3, 2, seed=1), torch.full((3,), 1 / 3, dtype=torch.float64)
    mask = normal(3, 10, seed=2) > 0
    plain = cohort(u).direction
    assert isinstance(plain, Combine)
    assert torch.equal(plain.weights, w)
    assert plain.mask is None
    masked = cohort(u, mask=mask).direction
    assert isinstance(masked, Combine)
    assert masked.mask is mask
    columns = cohort(u, layout=(4, 6), coefficients=c).direction
    assert isinstance(columns, Columns)
    assert columns.weights is c
    given = cohort(u, layout=(4, 6), coefficients=c, mask=mask, moved=u[0])
    assert isinstance(given.direction, Given)
    assert torch.equal(given.step(), u[0])
    with pytest.raises(ValueError, match="would ignore the mask"):
        cohort(u, layout=(4, 6), coefficients=c, mask=mask).step()


def test_how_much_a_client_counted() -> None:
    u = normal(2, 10)
    assert cohort(u).counted.tolist() == [0.5, 0.5]
    assert cohort(u, coefficients=torch.tensor([1.0, 3.0])).counted.tolist() == [0.25, 0.75]
    c = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert cohort(u, layout=(4, 6), coefficients=c).counted.tolist() == pytest.approx([0.4, 0.6])


@dataclass(frozen=True)
class HeadOnly(Rule):
    """Train the classifier alone."""

    def trains(self, visit: Visit) -> Tensor:
        return visit.oracle.head


@dataclass(frozen=True)
class NotHead(Rule):
    """Train everything but the classifier."""

    def trains(self, visit: Visit) -> Tensor:
        return ~visit.oracle.head


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_rule_may_train_a_part(engine: str) -> None:
    fed = fitted(HeadOnly(), 2, engine=engine)
    head = fed.model.head
    assert torch.equal(fed.progress.vector[~head], fed.model.initial[~head])
    assert not torch.equal(fed.progress.vector[head], fed.model.initial[head])


def test_two_rules_that_train_parts_train_what_both_allow() -> None:
    fed = fitted((HeadOnly(), NotHead()), 2)
    assert torch.equal(fed.progress.vector, fed.model.initial)


@dataclass(frozen=True)
class Turn(Rule):
    """Set the direction of the step from the weights it finds."""

    owns = frozenset({"direction"})

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        return state, replace(cohort, coefficients=-cohort.weights)


def test_a_direction_comes_after_the_weights_and_only_once() -> None:
    method = Method((Turn(), *parse("afl").rules))
    assert [type(rule).__name__ for rule in method.rules] == ["AFL", "Turn"]
    with pytest.raises(MethodError, match="each set the direction of the step"):
        Method((Turn(), *parse("fedfv").rules))
    with pytest.raises(MethodError, match="each set the direction of the step"):
        Method((Turn(), *parse("qffl:full").rules))
    Method((Turn(), *parse("qffl").rules))
    forth, back = (fitted(m, 1, participation=1.0) for m in ("fedavg", (Turn(),)))
    start = forth.model.initial
    assert torch.allclose(back.progress.vector - start, start - forth.progress.vector, rtol=0, atol=1e-14)


@dataclass(frozen=True)
class Badge(Rule):
    """A client predicts with what it is told."""

    def server_state(self, setup: Setup) -> State:
        return {"told": setup.initial + torch.arange(setup.n_clients)[:, None]}

    def message(self, state: State, m: int) -> State:
        return {"told": state["told"][m]}

    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        return visit.message["told"]


def test_a_client_predicts_with_what_it_would_be_told() -> None:
    fed = fitted(Badge(), 1)
    for m in range(5):
        assert torch.equal(evaluation.deployed(fed.trial, fed.progress, m), fed.model.initial + m)


@pytest.mark.parametrize(("rule", "kind"), [(KeepHead(), "mlp"), (KeepNorm(), "batchnorm")])
def test_the_global_model_shows_the_mean_of_what_is_private(rule: Rule, kind: str) -> None:
    fed = fitted(rule, 2, kind=kind, participation=1.0)
    private = rule.private(fed.model)
    own, sizes = fed.progress.own, fed.trial.setup.sizes
    shown = evaluation.published(fed.trial, fed.progress)
    expected = (sizes[:, None] * own).sum(0) / sizes.sum()
    assert torch.allclose(shown[private], expected[private], rtol=0, atol=1e-14)
    assert torch.equal(shown[~private], fed.progress.vector[~private])


def test_owns_of_a_rule_without_any() -> None:
    assert Rule().declared.owns == frozenset()
    assert federation(eq.Method((HeadOnly(),))).method.rules == (HeadOnly(),)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"owns": "weights"}, "Mine: owns must be a frozenset; found 'weights'"),
        ({"owns": {"wieghts"}}, "Mine: Unknown word in owns 'wieghts'. Did you mean 'weights'"),
        ({"needs": ["validatoin"]}, "Did you mean 'validation'"),
        ({"sees": "scalar"}, "Mine: Unknown word in sees 'scalar'.*scalars[+]sum"),
        ({"reports": 3}, "reports must be a str; found 3. If it is a hyper-parameter, rename it"),
        ({"seals": 0.5}, "seals must be a bool"),
    ],
)
def test_a_declaration_that_nothing_reads_is_an_error(attributes: dict[str, object], text: str) -> None:
    mine = dataclass(frozen=True)(type("Mine", (Rule,), attributes))
    with pytest.raises(ValueError, match=text):
        Method((mine(),))


def test_declarations_may_be_any_collection_of_words() -> None:
    mine = dataclass(frozen=True)(type("Mine", (Rule,), {"owns": ["mask"], "needs": ("classes",)}))
    assert Method((mine(),)).needs == frozenset({"classes"})
    assert mine().declared.owns == frozenset({"mask"})


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("local", others_slow(["scaffold", "feddyn", "fedprox(mu=5)"], fast=(0, 1)))
def test_what_stays_at_home_is_not_corrected(local: str, engine: str) -> None:
    """One client: its BatchNorm trains as FedBN's does, where control variates would otherwise hold it in place."""
    settings = {"kind": "batchnorm", "sizes": (24, 24), "participation": 1.0, "solver": eq.SGD(0.05), "engine": engine}
    plain, fed = fitted("fedbn", 12, **settings), fitted(f"{local}+fedbn", 12, **settings)
    affine = parse("fedbn").rules[0].private(plain.model)[: plain.model.n_params].nonzero().flatten()
    far, ours = (float((f.progress.own[:, affine] - f.model.initial[affine]).norm()) for f in (plain, fed))
    assert ours > 0.5 * far
    assert far > 0.05


def test_a_search_distance_belongs_to_what_is_trained() -> None:
    """SAM beside a rule that trains the body alone: the point it looks at differs in the body alone."""
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Look(Rule):
        def loss(self, out: eq.Out, visit: Visit) -> float:
            return 0.0

        def gradient(self, grad: object, theta: Tensor, visit: Visit) -> Tensor:
            g = grad(theta)  # type: ignore[operator]
            seen.append(g[..., visit.oracle.head])
            return g

    fitted((NotHead(), Look()), 1)
    assert seen
    assert not any(bool(g.any()) for g in seen)


def test_publish_does_not_touch_what_is_private() -> None:
    """AFL gives out a mean of global models, in which private coordinates never moved; their mean goes in after it."""
    fed = fitted("fedbn+afl(averaged=true)", 3, kind="batchnorm", participation=1.0)
    private = fed.trial.private
    shown = evaluation.published(fed.trial, fed.progress)
    sizes = fed.trial.setup.sizes
    expected = (sizes[:, None] * fed.progress.own).sum(0) / sizes.sum()
    assert torch.allclose(shown[private], expected[private], rtol=0, atol=1e-14)


@pytest.mark.parametrize("text", ["sam+gsam", "sam+fedism+"])
def test_the_gradient_is_taken_in_one_place(text: str) -> None:
    with pytest.raises(MethodError, match="each set where the gradient is taken"):
        parse(text)


@pytest.mark.parametrize("text", ["fedce+principal", "fedce+fphl", "fedce+fedgh"])
def test_fedce_allows_the_mean_only(text: str) -> None:
    with pytest.raises(MethodError, match=r"Keep one of them\."):
        parse(text)


def test_directions_are_recorded_as_they_are() -> None:
    fed = fitted("principal", 4, participation=1.0)
    for record in fed.records:
        assert sum(map(abs, record["weights"])) == pytest.approx(1)


@in_one(
    ("name", "kind", "words"),
    [
        ("fedbn", "batchnorm", "kept by each client"),
        ("fedheal:released", "batchnorm", "masked like parameters"),
        ("fedavg", "batchnorm", "averaged by client weight and not masked"),
        ("fedavg", "mlp", "none in this network"),
    ],
)
def test_the_header_says_what_happens_to_batchnorm(name: str, kind: str, words: str) -> None:
    assert words in federation(name, kind=kind).header[-1]


@dataclass(frozen=True)
class Distil(Rule):
    """Stay near what the received model says of the batch: the mean of KL(received || trained)."""

    def loss(self, out: Out, visit: Visit) -> Tensor:
        logits, features = out.ask(visit.received)
        assert not logits.requires_grad
        assert features.shape[:-1] == logits.shape[:-1]
        p = logits.softmax(-1)
        return out.mean((p * (p.log() - out.logits.log_softmax(-1))).sum(-1))


def test_a_rule_may_ask_what_another_model_says_of_the_batch() -> None:
    """Distillation is a rule like any other: one step on a full batch, against autograd on the plain network."""
    x, y = samples(12, 1)
    net = network()
    oracle = oracle_of(net, x, y, eq.SGD(0.5))
    received = oracle.evaluator.model.initial + 0.1 * normal(oracle.n_params)
    start = oracle.evaluator.model.initial.clone()
    visit = Visit(received, oracle.n_params, {}, {}, oracle, 0, 1)
    with pytest.raises(ValueError, match="needs a model that is trained, which upload and finish have"):
        _ = visit.trained
    trained = oracle.solve(start, lambda out: out.cross_entropy + Distil().loss(out, visit))

    torch.nn.utils.vector_to_parameters(received, net.parameters())
    told = net(x).detach().softmax(-1)
    torch.nn.utils.vector_to_parameters(start, net.parameters())
    said = net(x).log_softmax(-1)
    loss = torch.nn.functional.nll_loss(said, y) + torch.nn.functional.kl_div(said, told, reduction="batchmean")
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    assert torch.allclose(trained, start - 0.5 * gradient, rtol=0, atol=1e-12)


def test_distillation_agrees_between_the_engines() -> None:
    one, two = (fitted(Distil(), 2, engine=engine) for engine in ("sequential", "stacked"))
    assert difference(one, two) < 1e-10
    assert float((one.progress.vector - fitted("fedavg", 2).progress.vector).abs().max()) > 1e-6


# names of a rule
def rule_with(name: str, value: object, *bases: type) -> eq.Rule:
    """A rule that has one more attribute."""
    return dataclass(frozen=True)(type("Mine", (*bases, Rule), {name: value}))()


@in_one(
    ("name", "value", "advice"),
    [
        ("agregate", lambda self, state, cohort: (state, cohort), "Did you mean 'aggregate'?"),
        ("corection", staticmethod(lambda theta, visit: 0.0), "Did you mean 'correction'?"),
        ("on_upload", classmethod(lambda cls, update, visit: update), "Did you mean 'upload'?"),
        ("no_reports", lambda self, setup: {}, "Did you mean 'no_report'?"),
        ("distance", lambda self: 0.0, "A function of your own begins with an underscore: _distance."),
        ("need", {"classes"}, "Did you mean 'needs'?"),
        ("own", property(lambda self: {"weights"}), "Did you mean 'owns'?"),
    ],
)
def test_a_public_name_that_nothing_reads_is_refused(name: str, value: object, advice: str) -> None:
    data = [samples(6, k) for k in range(2)]
    with pytest.raises(MethodError, match=f"Mine: {name} is no ") as error:
        eq.Federation(torch.nn.Linear(4, 2), data, rule_with(name, value))
    assert advice in str(error.value)


def test_a_name_of_a_base_class_is_refused_too() -> None:
    mixin = type("Mixin", (), {"los": lambda self, out, visit: 0.0})
    with pytest.raises(MethodError, match="Did you mean 'loss'"):
        Method.of(rule_with("LIMIT", 3, mixin))


def test_own_names_of_a_rule_are_taken() -> None:
    for name, value in {
        "_agregate": lambda self: 0,
        "binary": True,
        "LIMIT": 3,
        "half": property(lambda self: 1),
    }.items():
        assert len(Method.of(rule_with(name, value)).rules) == 1
    assert len(Method.of(rule_with("cached", functools.cached_property(lambda self: 1))).rules) == 1
