"""CFFL: clients download the more of the common step, the better their own model is."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from equipoise.core.maths import cut, simplex, square_norms
from equipoise.core.rule import Bounds, CatalogueEntry, Cohort, Rule, Setup, State, Visit, needed
from equipoise.methods.cgsv import unit
from equipoise.methods.fedave import accuracies
from equipoise.system.ranges import among, choice, log_uniform, number


def largest(size: Tensor, share: Tensor, layout: tuple[int, ...], *, up: bool) -> Tensor:
    """True on the ``share`` of largest entries of each part of ``size``, and on all that tie with the last of them.

    ``size`` [..., P] is not negative, ``layout`` are the lengths of its parts, and ``share`` [..., 1], in [0, 1], broadcasts: one
    vector [1, P] and shares [M, 1] give [M, P]. ``up`` rounds a part's number of entries up, else down.
    """
    masks = []
    for part in size.split(layout, -1):
        exact = share * part.shape[-1]
        k = ((exact - 1e-9).ceil() if up else (exact + 1e-9).floor()).long()
        ranked = part.sort(-1, descending=True).values
        edge = torch.take_along_dim(ranked, (k - 1).clamp(min=0), -1)
        # Clipped entries are all of one size, except for the rounding of what was sent and added up: those are ties.
        masks.append((part >= edge - 256 * torch.finfo(part.dtype).eps * ranked[..., :1]) & (k > 0))
    return torch.cat(masks, -1)


def judged(
    before: State, here: Tensor, accuracy: Tensor, alpha: float, old: float, coef: float, *, port: bool = False
) -> State:
    r"""Reputations after a round, and who is still reputable: the ``reputation``, ``reputable`` and ``seen`` [N] of a state.

    .. math:: x_i = \frac{\text{vacc}_i}{\sum_{j \in R} \text{vacc}_j}, \qquad
        r_i \propto \sinh\bigl(\alpha (o\, r_i + (1 - o)\, x_i)\bigr), \qquad R \gets \{i \in R : r_i \ge \text{coef} / |R|\}

    Validation accuracies ``accuracy`` [N] are read where ``here`` [N] (boolean) is true; ``old`` is o. Those present share out what
    they held together, 1 / |R| each for who was never seen before, so that the reputations of absent clients, who keep theirs,
    stay comparable; only those present can be sent away, and if R were empty it stays. Accuracies all 0 count as equal.
    ``port``: :math:`r_i \propto (\sinh(\alpha x_i) + x_i) / 2`, and the threshold stays coef / N.
    """
    r, R, seen = before["reputation"], before["reputable"], before["seen"]
    on = R & here
    if not on.any():
        return before
    mass = torch.where(seen, r, 1 / int(R.sum()))[on].sum()
    x = simplex(accuracy[on]) * mass
    curve = (torch.sinh(alpha * x) + x) / 2 if port else torch.sinh(alpha * (old * r[on] + (1 - old) * x))
    r, seen = r.masked_scatter(on, simplex(curve) * mass), seen | on
    stays = R & ~(on & (r < coef / (len(r) if port else int(R.sum()))))
    if not stays.any():
        stays = R
    reached = int((seen & stays).sum()) / int(stays.sum())
    return {"reputation": simplex(r * stays) * reached, "reputable": stays, "seen": seen}


@dataclass(frozen=True)
class CFFL(Rule):
    r"""Every client keeps a model of its own; the server gives it the largest entries of the sum of the clipped updates.

    .. math:: w_i \gets w_i + \operatorname{clip}(\Delta_i) + \operatorname{top}_{q_i}(u) - o_i u_i, \qquad
        u = \sum_{j \in R} a_j u_j, \qquad q_i = \frac{r_i}{\max r} \frac{n_i}{\max n}

    with :math:`u_i` the largest entries of the clipped update and :math:`r` the reputations of :func:`judged`. Clients outside R train
    on, but get nothing for ever. Lyu, Xu, Wang, Yu, Collaborative Fairness in Federated Learning, 2020, in the form of the
    released code.

    Parameters
    ----------
    theta_u : share of the entries that a client uploads, in (0, 1]. Below 1 the upload is judged on top of the global model, and
        the client keeps the rest of its own work to itself.
    clip : entries of an update are cut to [-clip, clip], > 0.
    alpha : punishment, in (0, 300]; released 5.
    decay : let alpha grow over the rounds, :math:`\alpha (1 + t/T)`.
    fade : keep 0.8 of the old reputation; else 0.5.
    coef : who falls below coef / |R| is isolated, >= 0. Released: 1/3, 1/6 for class imbalance, 2/3 against free riders.
    aggregation : a is :math:`n / \sum n` (``"mean"``, with o = n / max n; else o = 1), 1 (``"sum"``), or r (``"reputation"``).
    download : ``"largest"`` entries, or those that come first in a ``"random"`` order, the same for all clients of a round.
    criterion : the largest of ``"all"`` entries, or of each ``"layer"``, where :math:`q_i = r_i`.
    by : n counts ``"samples"``, or the ``"classes"`` that a client reports to have.
    reputation : the rule's ``"own"``, or each client's ``"contribution"`` (standalone accuracy, as shares), which isolates no client.
    port : the FedSAC authors' version: updates scaled to length ``gamma`` instead of clipped, though clients keep their whole
        work; reputations without history; the share q in every layer; who falls out of R also loses its own work. Preset
        ``group-port``.
    gamma : length of every update with ``port``, > 0: it must be shorter than what clients train, see below.

    Client state: with ``theta_u`` below 1 ``residual`` [P], what it has not sent; with ``by=classes`` ``classes`` [C],
    zeros. Server state: ``reputation``, ``reputable``, ``seen``, ``size`` (n / max n, or classes / C), ``share`` (q):
    each [N].
    Model sent: clipped, except running statistics; with ``theta_u`` below 1 only its largest entries.
    Reports: none; with ``by=classes`` ``classes``, share of all classes that it has.
    Server sees: each trained model, evaluated on the server's data.
    Traffic: up, the sent part of the update; down, only the entries for the client. One pass over the validation data
    per client.
    Presets: ``mnist``, ``cifar10`` and ``cla`` (for clients with more and fewer classes) as released; ``released`` has
    the released defaults; ``contribution`` is one reading of FedSAC's remark that all its baselines reward by
    contribution; ``group-port`` is our reading of how FedSAC's authors ran CFFL.
    Differs: a client that should receive no entry receives none (released: all of them); a layer gives all entries of its share q, where
    released code keeps back one. The aggregation is ``mean`` (released: ``sum``, and ``mean`` for one of three data sets): the step of
    ``sum`` grows with the number of clients, and the released runs let the learning rate fall by 2.3 % a round. On
    ``digits-pow`` with its 10 clients the best client has 60.8 % after 12 rounds with ``mean``, and 20.3 % after 20 with
    ``sum`` (one seed; 36.5 % after 12 with ``clip=0.001``). Accuracies that are all
    0 count as equal, and if all clients fell out of R, R would stay. Running statistics of BatchNorm stay the client's
    own. Absent clients (the paper has none) keep r and their model and cannot fall out; those present share out the r
    they had together, 1 / |R| for each who is new. The paper's text, as far as we know, mixes old and new reputations
    equally (``fade=False``).

    With ``port`` a client keeps :math:`\Delta_i - o_i \Gamma \Delta_i / \lVert \Delta_i \rVert` of its own work. Where updates are
    shorter than :math:`\Gamma`, as with a few local steps, that is a step back, the longest for the client with most data.

    The class is long because its published forms differ in eight hooks.
    """

    reports = "its number of classes"
    theta_u: float = number(1.0, low=0, high=1, above=True, search=among(0.1, 1.0))
    clip: float = number(0.01, low=0, above=True, infinite=True, search=log_uniform(1e-3, 0.1))
    alpha: float = number(5.0, low=0, high=300, above=True, search=log_uniform(1, 20))
    decay: bool = False
    fade: bool = True
    coef: float = number(1 / 3, low=0)
    aggregation: str = choice("mean", "sum", "reputation")
    download: str = choice("largest", "random")
    criterion: str = choice("all", "layer")
    by: str = choice("samples", "classes")
    reputation: str = choice("own", "contribution")
    port: bool = False
    gamma: float = number(0.5, low=0, above=True)

    @property
    def owns(self) -> frozenset[str]:
        return frozenset({"weights", "direction", "upload", "reward"} | ({"start"} if self.partial else set()))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"classes", "validation" if self.reputation == "own" else "contribution"})

    @property
    def partial(self) -> bool:
        """Whether clients keep work that they do not upload."""
        return self.theta_u < 1 and not self.port

    @property
    def old(self) -> float:
        """How much of the last reputation stays."""
        return 0.8 if self.fade else 0.5

    def _strength(self, t: int, rounds: int) -> float:
        """The punishment alpha in round ``t``."""
        return self.alpha * (1 + t / rounds) if self.decay else self.alpha

    @property
    def ranges(self) -> dict[str, Bounds]:
        return {"classes": Bounds(0, 1)} if self.by == "classes" else {}

    # on the client
    def client_state(self, setup: Setup) -> State:
        state = {"residual": torch.zeros_like(setup.theta)} if self.partial else {}
        return {**state, "classes": setup.theta.new_zeros(setup.n_classes)} if self.by == "classes" else state

    def deploy(self, received: Tensor, visit: Visit) -> Tensor:
        if not self.partial:
            return received
        own = visit.state["residual"]
        return received + functional.pad(own, (0, received.shape[-1] - own.shape[-1]))

    def begin(self, start: Tensor, visit: Visit) -> Tensor:
        return self.deploy(start, visit)

    def _divided(self, update: Tensor, visit: Visit) -> tuple[Tensor, Tensor]:
        """Of the clipped update [..., P] what is uploaded, and what the client keeps for later."""
        clipped = cut(update - visit.state["residual"], self.clip)
        if visit.shared is not None:  # private coordinates are there already
            clipped = clipped * visit.shared
        layered = self.criterion == "layer"
        share = torch.tensor([self.theta_u], dtype=torch.float64, device=clipped.device)
        parts = visit.oracle.layout if layered else (clipped.shape[-1],)
        sent = clipped * largest(clipped.abs(), share.expand(*clipped.shape[:-1], 1), parts, up=layered)
        return sent, clipped - sent

    def upload(self, update: Tensor, visit: Visit) -> Tensor:
        if self.port:
            return update  # the server scales it, and needs to know the model that was trained
        return self._divided(update, visit)[0] if self.partial else cut(update, self.clip)

    def finish(self, theta: Tensor, visit: Visit) -> tuple[State, State]:
        report, state = {}, visit.state
        if self.partial:
            state = {**state, "residual": state["residual"] + self._divided(theta - visit.start, visit)[1]}
        if self.by == "classes":
            counts = visit.oracle.class_counts(state["classes"].shape[-1])
            report = {"classes": (counts > 0).to(theta.dtype).mean(-1)}
        return report, state

    # on the server
    def server_state(self, setup: Setup) -> State:
        sizes = setup.sizes.double()
        size = sizes / sizes.max() if self.by == "samples" else torch.zeros_like(sizes)
        every = torch.ones_like(size, dtype=torch.bool)
        zero = {name: torch.zeros_like(size) for name in ("reputation", "share")}
        return {**zero, "reputable": every, "seen": ~every, "size": size}

    def _rated(self, state: State, cohort: Cohort) -> State:
        """Reputations after this round."""
        if self.reputation == "contribution":
            return {"reputation": simplex(needed(cohort.contribution, "contributions"))}
        received = cohort.received
        if self.partial:  # the server knows no other model of the client
            P = len(cohort.theta)
            received = torch.cat([cohort.theta.expand_as(cohort.updates), received[:, P:]], 1)
        here = torch.zeros_like(state["reputable"]).index_fill(0, cohort.ids, True)
        measured = accuracies(replace(cohort, received=received))
        accuracy = torch.zeros_like(state["reputation"]).index_copy(0, cohort.ids, measured)
        alpha = self._strength(cohort.t, cohort.rounds)
        return judged(state, here, accuracy, alpha, self.old, self.coef, port=self.port)

    def _shares(self, r: Tensor, size: Tensor) -> Tensor:
        """The share q [N] of the entries of the step that each client gets."""
        return r.clone() if self.criterion == "layer" and not self.port else r / r.max() * size

    def aggregate(self, state: State, cohort: Cohort) -> tuple[State, Cohort]:
        i, size, mean = cohort.ids, state["size"], cohort.weights
        if self.by == "classes":
            size = size.index_copy(0, i, cohort.reports["classes"].double())
            mean = size[i]  # as released: it need not sum to one
        state = {**state, **self._rated(state, cohort), "size": size}
        sent = cohort.updates
        if self.port:
            sent = sent * unit(square_norms(sent).sqrt(), self.gamma)[:, None].to(sent)
        on = state["reputable"][i]
        choices = {"sum": torch.ones_like(mean), "reputation": state["reputation"][i], "mean": mean}
        weights = choices[self.aggregation] * on
        own = (size[i] / size.max() if self.aggregation == "mean" else torch.ones_like(size[i])) * on
        kept = cohort.updates * (on | (not self.port))[:, None] - own[:, None].to(sent) * sent
        kept = cohort.received + torch.cat([kept, cohort.buffer_updates], 1)
        state["share"] = self._shares(state["reputation"], size)
        notes = {**cohort.notes, "reputation": state["reputation"][i].tolist()}
        weighed = replace(cohort, updates=sent, coefficients=weights, weights=simplex(weights))
        return state, replace(weighed, kept=kept, notes=notes)

    def reward(self, state: State, cohort: Cohort, given: Tensor) -> tuple[State, Tensor]:
        step, share = cohort.step(), state["share"][cohort.ids]
        size, layered = step.abs(), self.port or self.criterion == "layer"
        if self.download == "random":
            drawn = torch.Generator().manual_seed((1_000_003 * cohort.seed + cohort.t) % 2**63)
            size = torch.randperm(len(step), generator=drawn).to(step.device).double()
        allocated = step * largest(size[None], share[:, None], cohort.layout if layered else (len(step),), up=layered)
        return state, cohort.kept + functional.pad(allocated, (0, given.shape[1] - len(step)))


CATALOGUE = CatalogueEntry(
    (CFFL,),
    "to each client the part of the summed updates that its accuracy and size earn",
    "Lyu, Xu, Wang, Yu: Collaborative Fairness in Federated Learning, 2020",
    {
        "released": {"aggregation": "sum"},
        "mnist": {"aggregation": "sum", "decay": True, "download": "random"},
        "cifar10": {"aggregation": "sum", "clip": 1e-3, "criterion": "layer"},
        "cla": {"aggregation": "sum", "coef": 1 / 6, "by": "classes"},
        "contribution": {"reputation": "contribution"},
        "group-port": {"port": True},
    },
)
