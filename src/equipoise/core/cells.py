r"""A weight for the samples of each cell, a class and a group of people, and the sums by cell from which rules compute it.

The client side of every rule that weighs cells. With w [R, A] from the server and the loss of a sample l_i, a client minimises

.. math:: \frac{1}{n_m} \sum_i w_{y_i, a_i} \ell_i

and clients count by their samples, so the sum of their gradients is that of the weighted loss of all samples. A batch is never divided by
the sum of its weights: that would undo the weight at a client with one group. A sample of an unknown group has weight 1, and is in no cell.

A :class:`WeighingRule` has the functions of this module as hooks, and computes the tables in ``aggregate``, from sums over the clients that were
measured on training samples with the model sent out: its weights act one round later.
"""

from typing import Any

import torch
from torch import Tensor

from equipoise.core.rule import Bounds, Cohort, Out, Rule, Setup, State, Visit
from equipoise.core.task import Task
from equipoise.data.batch import Batch
from equipoise.privacy.suppression import enough
from equipoise.system.ranges import number, text
from equipoise.system.suggestions import unknown

NEEDS = frozenset({"classes", "sensitive"})
SENT = ("w", "row", "factor", "values")
UNKNOWN = 2**40  # a code beyond every group, if its attribute counts
SUM, COUNT = Bounds(0), Bounds(0, samples=True)
RANGES = {"n": COUNT, "right": COUNT, "loss": SUM, "chance": COUNT, "loss_as_positive": SUM}


def reported(*names: str) -> dict[str, Bounds]:
    """The ``ranges`` of a rule that reports sums by cell [..., R, A]: ``n`` samples, and those that are named.

    ``right`` counts samples whose row is predicted, ``loss`` adds their losses, ``chance`` the probabilities of the last row, and
    ``loss_as_positive`` minus the logarithms of these.
    """
    return {name: RANGES[name] for name in ("n", *names)}


def attribute() -> Any:
    """The field ``attribute``: the name of a sensitive attribute, or several joined by ``*``, whose intersections are the groups. Empty: the first."""
    return text("")


def least_count() -> Any:
    """The field ``least_count``: a client with fewer samples in a cell reports zeros for it. 0 reports all; 30 is usual between sites."""
    return number(0, low=0, whole=True)


def factors(setup: Setup, names: str) -> tuple[Tensor, int]:
    """Factors [K] of the codes of K attributes whose sum is the code of a group, in mixed radix, and the number A of groups.

    Raises
    ------
    ValueError : there is no such attribute.
    """
    chosen = [name.strip() for name in names.split("*")] if names else list(setup.attributes)[:1]
    if strange := [name for name in chosen if name not in setup.attributes]:
        raise ValueError(f"attribute={names!r}: {unknown('attribute', strange[0], setup.attributes)}")
    if len({*chosen}) < len(chosen):
        raise ValueError(f"attribute={names!r} names an attribute twice. Leave one out.")
    factor, A = dict.fromkeys(setup.attributes, 0), 1
    for name in reversed(chosen):
        factor[name], A = A, A * setup.attributes[name]
    return torch.tensor([*factor.values()], dtype=torch.int64, device=setup.initial.device), A


def server_state(self: Any, setup: Setup) -> State:
    """Weights ``w`` [R, A] of 1, the row of each class [C], the ``factor`` [K] of each attribute, and the number of its ``values`` [K].

    R is the number of classes, or 2 for a rule of two: all others, and the positive class.
    """
    factor, A = factors(setup, self.attribute)
    row = torch.arange(setup.n_classes, device=factor.device)
    if self.binary:
        if setup.positive is None:
            raise ValueError(
                f"{type(self).__name__} compares one class with all others, and {setup.n_classes} classes have none that is positive. "
                "Name it: --positive CLASS (Python: positive=...)."
            )
        row = (row == setup.positive).long()
    w = torch.ones(int(row.max()) + 1, A, dtype=torch.float64, device=row.device)
    values = torch.tensor([*setup.attributes.values()], dtype=torch.int64, device=row.device)
    return {"w": w, "row": row, "factor": factor, "values": values}


def two_groups(self: Any, setup: Setup) -> State:
    """As :func:`server_state`, for a rule that compares two groups of people."""
    state = server_state(self, setup)
    if (A := state["w"].shape[1]) != 2:
        groups, name = self.attribute or next(iter(setup.attributes), ""), type(self).__name__
        raise ValueError(
            f"{name} compares two groups of people, and {groups!r} has {A}. "
            f"Choose another attribute, {name.lower()}(attribute=NAME), or a rule for any number of groups: fairgrad, reweighing, fedminmax."
        )
    return state


def message(self: Any, state: State, m: int) -> State:
    """The weights, and how a sample's cell is found."""
    return {key: state[key] for key in SENT}


def cell_of(message: State, y: Tensor, s: Tensor) -> Tensor:
    """The cell of each sample [..., B], row times A plus group; R A if its group is unknown.

    ``message`` has ``w`` [..., R, A], ``row`` [..., C] and ``factor`` [..., K]; labels ``y`` [..., B], codes ``s`` [..., B, K].
    """
    R, A = message["w"].shape[-2:]
    group = group_of(message, s)
    return torch.where(group < A, message["row"].take_along_dim(y, -1) * A + group, R * A)


def group_of(message: State, s: Tensor) -> Tensor:
    """The group of each sample [..., B], of its codes ``s`` [..., B, K]; A if it is unknown."""
    factor, values = (message[key].unsqueeze(-2) for key in ("factor", "values"))  # [..., 1, K]
    return (s.where((s >= 0) & (s < values), UNKNOWN) * factor).sum(-1).clamp(max=message["w"].shape[-1])


def cell_entries(table: Tensor, cell: Tensor, outside: float) -> Tensor:
    """The entry of a ``table`` [..., R, A] for each sample's ``cell`` [..., B]; ``outside`` for one in no cell."""
    flat = table.flatten(-2)
    return torch.take_along_dim(torch.cat([flat, flat.new_full((*flat.shape[:-1], 1), outside)], -1), cell, -1)


def loss(self: object, out: Out, visit: Visit) -> Tensor:
    """What makes the batch loss the mean of ``w l``: see :func:`weighted`."""
    return weighted(out, visit, visit.message["w"])


def weighted(out: Out, visit: Visit, w: Tensor) -> Tensor:
    """The mean of ``(w - 1) l`` [...] over a batch, for weights ``w`` [..., R, A]: what is added to the mean loss."""
    cell = cell_of(visit.message, out.y, sensitive(out.s))
    return out.mean((cell_entries(w.to(out.logits.dtype), cell, 1.0) - 1) * out.losses)


def own_counts(visit: Visit) -> Tensor:
    """The client's samples of each cell [..., R, A], in float64."""

    def count() -> Tensor:
        total = visit.message["w"].new_zeros(())
        for batch, ok in visit.oracle.samples():
            total = total + by_cell(visit.message, cell_of(visit.message, batch.y, sensitive(batch.s)), ok.double())
        return total

    return visit.oracle.once("cells", count)


def finish(self: Any, theta: Tensor, visit: Visit) -> tuple[State, State]:
    """Sums by cell of the received model on the client's samples: what the rule's ``ranges`` name."""
    sums: State = {}
    if not self.ranges:
        return sums, visit.state
    for logits, _, batch, ok in visit.oracle.passes(visit.received):
        for key, part in sums_by_cell(visit.message, logits, batch, ok, visit.oracle.task).items():
            sums[key] = sums[key] + part if key in sums else part
    large = enough(sums["n"], self.least_count)
    return {key: (sums[key] * large).to(theta.dtype) for key in self.ranges if key in sums}, visit.state


def sums_by_cell(message: State, logits: Tensor, batch: Batch, ok: Tensor, task: Task) -> State:
    """The sums that ``RANGES`` names over samples of which ``logits`` [..., B, C] were computed, without padding: each [..., R, A] in float64."""
    row, cell = message["row"], cell_of(message, batch.y, sensitive(batch.s))
    log_chance = log_chance_of_last(message, logits.double())
    predicted = task.predictions(logits)
    values = {
        "n": torch.ones_like(log_chance),
        "right": (row.take_along_dim(predicted.clamp(min=0), -1) == row.take_along_dim(batch.y, -1)) & (predicted >= 0),
        "loss": task.losses(logits, batch.y),
        "chance": log_chance.exp(),
        "loss_as_positive": -log_chance,
    }
    return {key: by_cell(message, cell, value.double().where(ok, 0)) for key, value in values.items()}


def log_chance_of_last(message: State, logits: Tensor) -> Tensor:
    """The logarithm of the probability of the last row [..., B], of ``logits`` [..., B, C]."""
    last = message["row"] == message["w"].shape[-2] - 1
    return logits.log_softmax(-1).where(last.unsqueeze(-2), -torch.inf).logsumexp(-1)


def by_cell(message: State, cell: Tensor, values: Tensor) -> Tensor:
    """The sum of ``values`` [..., B] over the samples of each cell [..., R, A]."""
    return by_part(message, cell, values, 1).squeeze(-1)


def by_part(message: State, part: Tensor, values: Tensor, parts: int) -> Tensor:
    """The same over each part of each cell [..., R, A, parts]; ``part`` [..., B] is a sample's cell times ``parts``, plus its part."""
    R, A = message["w"].shape[-2:]
    zeros = values.new_zeros(*part.shape[:-1], (R * A + 1) * parts)
    return zeros.scatter_add(-1, part, values)[..., :-parts].reshape(*part.shape[:-1], R, A, parts)


def chance_of_positive(outputs: Tensor, row: Tensor) -> Tensor:
    """The probability of the positive class [..., B], the row 1 of two, of ``outputs`` [..., B, C]."""
    return outputs.double().softmax(-1).where((row == 1).unsqueeze(-2), 0).sum(-1)


def bin_of(outputs: Tensor, row: Tensor, bins: int) -> Tensor:
    """The bin [..., B], of so many of equal width, of :func:`chance_of_positive`."""
    return (chance_of_positive(outputs, row) * bins).long().clamp(0, bins - 1)


def histogram(visit: Visit, bins: int) -> Tensor:
    """The client's samples of each cell and bin [..., R, A, bins] under the received model, in float64."""
    message = visit.message
    total = message["w"].new_zeros(())
    for logits, _, batch, ok in visit.oracle.passes(visit.received):
        part = cell_of(message, batch.y, sensitive(batch.s)) * bins + bin_of(logits, message["row"], bins)
        total = total + by_part(message, part, ok.double(), bins)
    return total


def decided(predicted: Tensor, outputs: Tensor, row: Tensor, taken: Tensor, counts: Tensor) -> Tensor:
    """The class [n] of samples: the positive one where ``taken``, else the best other; where ``counts`` is false, that ``predicted`` [n]."""
    classes = torch.where(taken, row.argmax(), outputs.masked_fill(row == 1, -torch.inf).argmax(-1))
    return torch.where(counts & (predicted >= 0), classes, predicted)


def no_report(self: Any, setup: Setup) -> State:
    """A report of zeros."""
    zeros = setup.initial.new_zeros(2 if self.binary else setup.n_classes, factors(setup, self.attribute)[1])
    return dict.fromkeys(self.ranges, zeros)


def total(cohort: Cohort) -> State:
    """The sums over the clients of the round, each [R, A] in float64."""
    return {key: part.double().sum(0) for key, part in cohort.reports.items()}


def sensitive(s: Tensor | None) -> Tensor:
    """The codes of the samples.

    Raises
    ------
    ValueError : there are none; a federation checks this before training.
    """
    if s is None:
        raise ValueError("The rule weighs groups of people, and these samples have no sensitive attributes s.")
    return s


class WeighingRule(Rule):
    """What all rules have that weigh the samples of cells at every client: their hooks there, and what they declare.

    The functions here read ``attribute``, ``least_count`` and ``ranges`` of a rule, see :func:`attribute`, :func:`least_count` and
    :func:`reported`, and ``binary``: whether its cells are of two rows, all other classes and the positive one; else each class has a row.
    """

    needs = NEEDS
    sees = "sum"
    message = message
    loss = loss
    finish = finish
    no_report = no_report
