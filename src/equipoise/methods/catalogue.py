"""Methods: sums of rules, their names, and what cannot be summed."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.core.model import Model
from equipoise.core.rule import SEES, Rule, Sees, overrides
from equipoise.core.solver import Solver
from equipoise.methods.afl import AFL
from equipoise.methods.cffl import CFFL
from equipoise.methods.cgsv import CGSV
from equipoise.methods.ditto import Ditto, DittoPersonal
from equipoise.methods.dp import DP
from equipoise.methods.fael import FAEL
from equipoise.methods.fael_exact import FAELExact
from equipoise.methods.fairfed import FairFed
from equipoise.methods.fedave import FedAVE
from equipoise.methods.fedavg import FedAvg
from equipoise.methods.fedbn import FedBN
from equipoise.methods.fedce import FedCE
from equipoise.methods.feddyn import FedDyn
from equipoise.methods.fedfv import FedFV
from equipoise.methods.fedga import FedGA
from equipoise.methods.fedgh import FedGH
from equipoise.methods.fedpac import FedPAC
from equipoise.methods.fedproc import FedProc
from equipoise.methods.fedproto import FedProto
from equipoise.methods.fedprox import FedProx
from equipoise.methods.fedsac import FedSAC
from equipoise.methods.finetune import FineTune
from equipoise.methods.fphl import FPHL
from equipoise.methods.gsam import GSAM
from equipoise.methods.logit_adjust import LogitAdjust
from equipoise.methods.margin import Margin
from equipoise.methods.moon import Moon
from equipoise.methods.principal import Principal
from equipoise.methods.qffl import QFFL
from equipoise.methods.saga import SAGA
from equipoise.methods.sam import SAM
from equipoise.methods.scaffold import Scaffold
from equipoise.methods.standalone import Standalone
from equipoise.system.suggestions import near


class MethodError(ValueError):
    """A method that does not exist, or rules that cannot be added."""


class Entry(NamedTuple):
    """One name of the catalogue: its rules, where they come from, named sets of hyper-parameters.

    ``summed`` is the preset used where the name is one part of a sum; ``values`` are the defaults of this name where they
    are not those of its rules (FedISM is FedISM+ with another radius).
    """

    rules: tuple[type[Rule], ...]
    summary: str
    citation: str
    presets: Mapping[str, Mapping[str, Any]] = {}
    summed: str | None = None
    values: Mapping[str, Any] = {}

    @property
    def defaults(self) -> dict[str, Any]:
        """Every hyper-parameter of this name with its default."""
        own = {f.name: f.default for rule in self.rules for f in fields(rule)}
        return {**own, **self.values}


HEAL = "Chen, Huang, Ye: Fair Federated Learning under Domain Skew, CVPR 2024"
RELEASED_FPHL = {"history": "exclusive", "strict": True, "zero": "down", "mask_buffers": True}
RELEASED_FAEL = {"distance": "norms", "init": "uniform", "carry": "raw"}
LD = "Zeng et al.: Tackling Data Heterogeneity in Federated Learning via Loss Decomposition, MICCAI 2024"
RELEASED_MARGIN = {"form": "released"}
RELEASED_PRINCIPAL = {"eigen": "l1_all", "scope": "tensor", "weights": "uniform", "warm_start": True}
ISM = "Wu, Kuang, Yan, Wang, Yu: Inter-Client Progressive State Matching, arXiv 2503.09587 (2025)"

SAC = "Wang et al.: FedSAC: Dynamic Submodel Allocation for Collaborative Fairness, KDD 2024"

METHODS: dict[str, Entry] = {
    "fedavg": Entry(
        (FedAvg,),
        "the mean of the clients' models, by samples",
        "McMahan et al., AISTATS 2017",
        {"uniform": {"weights": "uniform"}},
    ),
    "fedprox": Entry(
        (FedProx,),
        "stay near the model handed out",
        "Li et al., MLSys 2020",
        {"marsfl": {"mu": 1e-4}, "fedld": {"form": "norm"}},
    ),
    "scaffold": Entry(
        (Scaffold,),
        "control variates against client drift",
        "Karimireddy et al., ICML 2020",
        {"marsfl": {"eta": 0.25, "absent": False}},
    ),
    "moon": Entry(
        (Moon,),
        "contrast features with the global and the previous model",
        "Li, He, Song, CVPR 2021",
        {"cifar10": {"mu": 5.0}},
    ),
    "feddyn": Entry(
        (FedDyn,),
        "dynamic regularisation aligns stationary points",
        "Acar et al., ICLR 2021",
        {"no-server-state": {"server": False}},
    ),
    "fedproc": Entry(
        (FedProc,), "class prototypes as contrastive anchors", "Mu et al., FGCS 2023", {"released": {"strict": True}}
    ),
    "fedproto": Entry(
        (FedProto,),
        "pull features to shared class prototypes",
        "Tan et al., AAAI 2022",
        {"weighted": {"weighted": True}, "marsfl": {"lam": 2.0}},
    ),
    "ditto": Entry((Ditto,), "personal models, averaged into the global one", "Li et al., ICML 2021, as in " + HEAL),
    "ditto-personal": Entry((DittoPersonal,), "a personal model beside the global one", "Li et al., ICML 2021"),
    "afl": Entry(
        (AFL,),
        "weights that climb on the clients' losses (agnostic FL)",
        "Mohri et al., ICML 2019",
        {"marsfl": {"memory": False, "floor": 0.001}, "worst-client": {"worst": True}},
    ),
    "qffl": Entry(
        (QFFL,),
        "losses to the power q + 1 (q-FedAvg)",
        "Li et al., ICLR 2020",
        {"full": {"form": "full"}, "weights": {"form": "weights"}, "ffl4mia": {"form": "losses"}},
        "weights",
    ),
    "fairfed": Entry(
        (FairFed,),
        "less weight to clients whose accuracy is far from everybody's",
        "Ezzeldin et al., AAAI 2023",
        {"published": {"clip": False}, "ffl4mia": {"form": "released", "balanced": True}},
    ),
    "fedce": Entry(
        (FedCE,),
        "weights by what a client's update and data add to the others'",
        "Jiang et al., CVPR 2023",
        {
            "ffl4mia": {"first_zero": True, "floor": 0.0},
            "nvflare2026": {"mode": "plus", "coef_average": False, "first_zero": True},
            "nvflare2023": {
                "coef_average": False,
                "prior": "uniform",
                "first_zero": True,
                "floor": 0.001,
                "floors": "after",
            },
        },
    ),
    "fedga": Entry(
        (FedGA,),
        "more weight where averaging costs most (generalisation adjustment)",
        "Zhang et al., CVPR 2023",
        {
            "released": {"d": 0.05, "form": "released"},
            "official": {"form": "official"},
            "official-acc": {"metric": "accuracy", "form": "official"},
        },
    ),
    "fedfv": Entry(
        (FedFV,),
        "project conflicting updates on each other",
        "Wang et al., IJCAI 2021",
        {"released": {"lags": "released"}},
    ),
    "sam": Entry(
        (SAM,),
        "the gradient where the loss is highest nearby",
        "Foret et al., ICLR 2021",
        {"ffl4mia": {"added": True}},
    ),
    "gsam": Entry((GSAM,), "SAM that also closes the gap to the highest loss nearby", "Zhuang et al., ICLR 2022"),
    "logit-adjust": Entry((LogitAdjust,), "train against each client's class frequencies", "Menon et al., ICLR 2021"),
    "saga": Entry(
        (SAGA,),
        "weigh clients by the sharpness of their loss",
        ISM,
        {"L": {"variant": "L"}, "released": {"offset": 1e-10}},
    ),
    "fedism": Entry(
        (GSAM, SAGA),
        "GSAM and SAGA with one search distance: equal sharpness across clients",
        "Wu, Kuang, Yan, Yu: From Optimization to Generalization, IJCAI 2024",
        {"released": {"offset": 1e-10}},
        values={"rho": 0.05, "tau": 0.0},
    ),
    "fedism+": Entry(
        (GSAM, SAGA),
        "GSAM and SAGA with a growing search distance",
        ISM,
        {"S": {"variant": "S"}, "L": {"variant": "L"}, "released": {"offset": 1e-10}},
        values={"rho": 0.1, "tau": 0.5},
    ),
    "fphl": Entry((FPHL,), "drop updates whose direction is inconsistent", HEAL, {"released": RELEASED_FPHL}),
    "fael": Entry((FAEL,), "weigh clients by how far they moved", HEAL, {"released": RELEASED_FAEL}),
    "fael-exact": Entry((FAELExact,), "weights that make the clients equally far from the global model", HEAL),
    "fedheal": Entry(
        (FPHL, FAEL),
        "FPHL and FAEL: equal accuracy across domains",
        HEAL,
        {"released": {**RELEASED_FPHL, **RELEASED_FAEL}, "office": {"tau": 0.4}},
    ),
    "fedheal-exact": Entry((FPHL, FAELExact), "FPHL and the exact solution of FedHEAL's Eq. 10", HEAL),
    "margin": Entry((Margin,), "keep the logits of local training small", LD, {"released": RELEASED_MARGIN}),
    "principal": Entry(
        (Principal,), "move along the principal axes of the updates", LD, {"released": RELEASED_PRINCIPAL}
    ),
    "fedld": Entry(
        (Margin, Principal),
        "margin control and principal gradients: less loss to label skew",
        LD,
        {"released": {**RELEASED_MARGIN, **RELEASED_PRINCIPAL}},
    ),
    "fedgh": Entry(
        (FedGH,),
        "take the conflicts out of every pair of updates",
        "Zhang, Sun, Chen, IEEE Signal Processing Letters 2024",
        {"released": {"form": "hierarchical"}},
    ),
    "fedhgd": Entry(
        (FedGH,),
        "take the conflicts out of the updates, pair by pair and tensor by tensor (FedDM)",
        "Zhu et al., IEEE Transactions on Medical Imaging 2023",
        values={"form": "hierarchical"},
    ),
    "fedbn": Entry(
        (FedBN,), "every client keeps its BatchNorm layers", "Li et al., ICLR 2021", {"released": {"by": "name"}}
    ),
    "fedpac": Entry(
        (FedPAC,), "aligned features, and a mixture of classifiers for each client", "Xu, Tong, Huang, ICLR 2023"
    ),
    "fedsac": Entry(
        (FedSAC,),
        "submodels of one network, larger for those who contribute more",
        SAC,
        {
            "published": {"source": "standalone_test"},
            "cla": {"beta": 3.0},
            "dir2": {"beta": 5.0},
            "literal": {"scores": "paper", "min_per_layer": 0},
            "fedrac": {"count": "update_nonzero"},
        },
    ),
    "fedsac-no-allocation": Entry(
        (FedSAC,), "FedSAC's submodels drawn at random, of the same size", SAC, values={"allocation": "random"}
    ),
    "fedsac-no-aggregation": Entry(
        (FedSAC,), "FedSAC's submodels averaged as by FedAvg", SAC, values={"aggregation": "samples"}
    ),
    "cgsv": Entry(
        (CGSV,),
        "to each client the part of the aggregate that its cosine with it earns",
        "Xu, Lyu, Ma, Miao, Foo, Low, NeurIPS 2021",
        {
            "released": {"sparsify": "released_layer"},
            "paper-global": {"sparsify": "paper_global"},
            "contribution": {"reputation": "contribution"},
        },
    ),
    "fedave": Entry(
        (FedAVE,),
        "to each client the part of the aggregate that the value of its data earns",
        "Wang et al.: FedAVE, Neurocomputing 2024",
        {
            "exact": {"sparsify": "exact_layer"},
            "stable": {"sort_losses": True, "eps": 0.01},
            "contribution": {"reputation": "contribution"},
        },
    ),
    "cffl": Entry(
        (CFFL,),
        "to each client the part of the summed updates that its accuracy and size earn",
        "Lyu, Xu, Wang, Yu: Collaborative Fairness in Federated Learning, 2020",
        {
            "mnist": {"decay": True, "download": "random"},
            "cifar10": {"clip": 1e-3, "criterion": "layer"},
            "cla": {"coef": 1 / 6, "by": "classes"},
            "contribution": {"reputation": "contribution"},
            "group-port": {"port": True, "aggregation": "mean"},
        },
    ),
    "standalone": Entry(
        (Standalone,),
        "every client trains alone",
        "Lyu, Xu, Wang, Yu: Collaborative Fairness in Federated Learning, 2020",
    ),
    "finetune": Entry(
        (FineTune,),
        "one more epoch at home before a client predicts",
        SAC,
        {"every-round": {"form": "every_round"}},
    ),
    "fedavg-finetune": Entry(
        (FedAvg, FineTune),
        "FedAvg, and one more epoch at home before a client predicts",
        SAC,
        {"fedrac": {"form": "every_round", "weights": "uniform"}},
    ),
    "dp": Entry(
        (DP,),
        "clip every update and add noise to it: differential privacy of a client's data",
        "McMahan et al., ICLR 2018; Geyer, Klein, Nabi 2017",
        {"clip": {"noise": 0.0}},
    ),
}
ALIASES = {"fedismplus": "fedism+"}  # for shells and file names in which a plus sign is a nuisance
TRAVEL: frozenset[type[Rule]] = frozenset({Scaffold})  # rules that ask how far the solver's steps lead
ORDER = (
    "start",
    "mask",
    "weights",
    "direction",
    "use",
)  # rules that own nothing come first, what is done to a finished model last


@dataclass(frozen=True)
class Method:
    """An ordered tuple of rules.

    Rules that own nothing come first, then those that set the mask, then those that set the weights (which read the
    mask), then those that set the direction (which read the weights); otherwise the order is kept, so ``a + b`` and ``b + a`` differ only between rules of one kind.

    Parameters
    ----------
    rules : the rules. An empty tuple is FedAvg.
    text : the method as text; :func:`parse` gives it back.
    parts : for each rule the name of the part it came from, for errors.

    Raises
    ------
    MethodError : a rule that appears twice, or two rules that own the same thing.
    """

    rules: tuple[Rule, ...] = ()
    text: str = field(default="", compare=False)
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = self.parts or tuple(type(r).__name__ for r in self.rules)
        paired = sorted(zip(self.rules, parts, strict=True), key=lambda pair: _rank(pair[0]))
        object.__setattr__(self, "rules", tuple(rule for rule, _ in paired))
        object.__setattr__(self, "parts", tuple(part for _, part in paired))
        object.__setattr__(self, "text", self.text or _sum(self.rules) or "fedavg")
        for k, (rule, part) in enumerate(paired):
            if "__dataclass_params__" not in vars(type(rule)):
                raise MethodError(
                    f"{part}: a rule is a frozen dataclass, so that its hyper-parameters are seen. Decorate it with @dataclass(frozen=True)."
                )
            for other, elsewhere in paired[:k]:
                if type(rule) is type(other):
                    raise MethodError(
                        f"{part!r} appears twice in the method (as {type(rule).__name__}). Keep one of them."
                    )
                if both := rule.owns & other.owns:
                    what = {
                        "weights": "the weights of the clients",
                        "mask": "which parameters count",
                        "start": "where training starts",
                        "direction": "the direction of the step",
                        "gradient": "where the gradient is taken",
                        "submodel": "which part of the network a client gets",
                        "upload": "what a client sends",
                        "reward": "what each client gets back",
                        "use": "what a client does to its model before it predicts",
                    }
                    raise MethodError(f"{elsewhere!r} and {part!r} each set {what[min(both)]}. Keep one of them.")
        for rule, part in paired:
            if rule.seals:
                self._sealed(part)

    def _sealed(self, by: str) -> None:
        """Refuse a rule that lets something of the data past the rule ``by``, which protects nothing but the update."""
        for rule, part in zip(self.rules, self.parts, strict=True):
            told = rule.reports
            if any(need.startswith("contribution") for need in rule.needs):
                told = told or "what it reaches alone"
            if overrides(rule, "upload") and not rule.seals:
                told = told or "something in place of its update"
            if told:
                raise MethodError(
                    f"{part!r} has each client tell {told}, which {by!r} does not protect: it clips and hides the update only. "
                    f"Leave out {part!r}, or take {by!r} without noise, which promises nothing: {by}(noise=0)."
                )

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: Method) -> Method:
        texts = (_text(m.rules[0], summed=True) if len(m.rules) == 1 else m.text for m in (self, other))
        return Method(self.rules + other.rules, "+".join(texts), self.parts + other.parts)

    def private(self, model: Model) -> Tensor | None:
        """Coordinates [G] (boolean) that never leave a client, by any of the rules; None if there are none."""
        kept = [p for rule in self.rules if (p := rule.private(model)) is not None]
        return torch.stack(kept).any(0).to(model.initial.device) if kept else None

    @property
    def needs(self) -> frozenset[str]:
        """What the federation must have, by any of the rules."""
        return frozenset().union(*(rule.needs for rule in self.rules))

    @property
    def sees(self) -> Sees:
        """What the server must see of what single clients send: the most that any of the rules must."""
        return max((rule.sees for rule in self.rules), key=SEES.index, default="sum")

    def check(self, solver: Solver) -> None:
        """Refuse a solver that cannot answer what a rule asks.

        Raises
        ------
        TypeError : from the solver, saying which to use instead.
        """
        if any(type(rule) in TRAVEL for rule in self.rules):
            solver.travel(torch.ones(1))

    @staticmethod
    def of(method: str | Rule | Method | Iterable[Rule]) -> Method:
        """Take a method as the user has it: text, one rule, several rules, or a method."""
        if isinstance(method, Method):
            return method
        if isinstance(method, str):
            return parse(method)
        rules = (method,) if isinstance(method, Rule) else tuple(method)
        for rule in rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"A method is text, a Rule, or several Rules; found {type(rule).__name__}.")
        return Method(rules)

    def overriding(self, hook: str) -> list[int]:
        """Positions of the rules that define a hook."""
        return [k for k, rule in enumerate(self.rules) if overrides(rule, hook)]


def _rank(rule: Rule) -> int:
    return max((ORDER.index(what) + 1 for what in rule.owns if what in ORDER), default=0)


def _text(rule: Rule, *, summed: bool = False) -> str:
    """A rule as text, with what differs from its defaults, and where ``summed`` what a sum would set otherwise."""
    named = [(n, e) for n, e in METHODS.items() if e.rules == (type(rule),) and not e.values]
    also = [key for _, e in named if summed and e.summed for key in e.presets[e.summed]]
    values = {f.name: v for f in fields(rule) if (v := getattr(rule, f.name)) != f.default or f.name in also}
    inside = ", ".join(f"{k}={v}" for k, v in values.items())
    return (named[0][0] if named else type(rule).__name__) + (f"({inside})" if inside else "")


def _sum(rules: Sequence[Rule]) -> str:
    return "+".join(_text(rule, summed=len(rules) > 1) for rule in rules)


def parse(text: str, overrides: Mapping[str, Any] | None = None) -> Method:
    """Read a method: ``"fedproto(lam=2)+fedheal:released"``.

    Parameters
    ----------
    text : names joined by ``+``; each may take ``:preset`` and ``(name=value, ...)``.
    overrides : ``{"fedheal.tau": 0.4}``, the same said apart.

    Raises
    ------
    MethodError : an unknown name, preset or hyper-parameter (with a suggestion), or rules that cannot be added.
    ValueError : a hyper-parameter out of its range.
    """
    pieces = list(_pieces(text))
    rest = dict(overrides or {})
    rules: list[Rule] = []
    parts: list[str] = []
    texts: list[str] = []
    for name, preset, given in pieces:
        entry = METHODS[name]
        summed = entry.summed if len(pieces) > 1 and preset is None else None
        values = {**entry.values, **(entry.presets[summed] if summed else {}), **_preset(name, preset), **given}
        values |= {
            key.split(".", 1)[1]: rest.pop(key) for key in list(rest) if key.split(".", 1)[0] == name and "." in key
        }
        known = entry.defaults
        for key in values:
            if key not in known:
                raise MethodError(
                    f"{name} has no hyper-parameter {key!r}.{near(key, known)} It has: {', '.join(known) or 'none'}."
                )
        made = [rule(**{f.name: values[f.name] for f in fields(rule) if f.name in values}) for rule in entry.rules]
        rules += made
        parts += [name] * len(made)
        always = (
            entry.presets[entry.summed] if entry.summed and len(pieces) > 1 else {}
        )  # said even where it is the default
        shown = {k: values.get(k, known[k]) for k in (*always, *values) if k in always or values[k] != known[k]}
        inside = ", ".join(f"{k}={v}" for k, v in shown.items())
        texts.append(name + (f"({inside})" if inside else ""))
    if rest:
        key = next(iter(rest))
        names = [name for name, _, _ in pieces]
        example = f"{names[0]}.{next(iter(f.name for f in fields(METHODS[names[0]].rules[0])), 'x')}"
        raise MethodError(
            f"--set {key}={rest[key]}: {key.split('.', 1)[0]!r} is not part of {text!r}; "
            f"write PART.NAME=VALUE with a part out of {', '.join(names)}, for example {example}."
        )
    return Method(tuple(rules), "+".join(texts), tuple(parts))


def _preset(name: str, preset: str | None) -> Mapping[str, Any]:
    presets: dict[str, Mapping[str, Any]] = {"paper": {}, **METHODS[name].presets}
    if preset is None:
        return {}
    if preset not in presets:
        raise MethodError(f"{name} has no preset {preset!r}.{near(preset, presets)} It has: {', '.join(presets)}.")
    return presets[preset]


def _pieces(text: str) -> Iterable[tuple[str, str | None, dict[str, Any]]]:
    """Cut a method's text into (name, preset, values); the longest known name wins, because one may end in ``+``."""
    rest = text.strip()
    if not rest:
        raise MethodError("The method is empty. All names: equipoise methods.")
    names = sorted([*METHODS, *ALIASES], key=len, reverse=True)
    while True:
        name = next(
            (n for n in names if rest.startswith(n) and rest[len(n) : len(n) + 1] in ("", "+", ":", "(", " ")), None
        )
        if name is None:
            word = rest.split("+")[0].split(":")[0].split("(")[0].strip()
            raise MethodError(
                f"Unknown method {word!r} in {text!r}.{near(word, METHODS)} All names: equipoise methods."
            )
        rest = rest[len(name) :].lstrip()
        name = ALIASES.get(name, name)
        preset = None
        if rest.startswith(":"):
            end = min((k for k in (rest.find("+"), rest.find("(")) if k > 0), default=len(rest))
            preset, rest = rest[1:end].strip(), rest[end:]
        given: dict[str, Any] = {}
        if rest.startswith("("):
            if (end := rest.find(")")) < 0:
                raise MethodError(f"The bracket after {name!r} in {text!r} is not closed.")
            given, rest = _values(rest[1:end], name), rest[end + 1 :]
        yield name, preset, given
        rest = rest.strip()
        if not rest:
            return
        if not rest.startswith("+") or len(rest) == 1:
            raise MethodError(f"Expected '+' and a method after {name!r} in {text!r}; found {rest!r}.")
        rest = rest[1:].lstrip()


def _values(text: str, name: str) -> dict[str, Any]:
    given = {}
    for piece in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = piece.partition("=")
        if not equals:
            raise MethodError(f"{name}({piece}): write NAME=VALUE.")
        if key.strip() in given:
            raise MethodError(f"{name}: {key.strip()!r} is given twice. Keep one of them.")
        given[key.strip()] = read_value(value)
    return given


def read_value(text: str) -> Any:
    """Read a hyper-parameter's value: number, true or false, none, or a word."""
    word = text.strip()
    known = {"true": True, "false": False, "none": None, "inf": math.inf}
    if word.lower() in known:
        return known[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
