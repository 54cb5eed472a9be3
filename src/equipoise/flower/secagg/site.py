"""What a site does in a masked round: it trains as usual, and only a masked vector leaves it.

The server sends the same to every site: a message to train by, and one for the sum. What differs from site to site (its data, state,
key and memory) is at the site.
"""

import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.core.rule import Cohort, Power, Rule, overrides
from equipoise.federation.method import Method, MethodError
from equipoise.federation.trial import Trial
from equipoise.flower.codec import Parcel, changed, hiding, packed
from equipoise.flower.secagg import sums
from equipoise.flower.secagg.masks import MaskError, comparison, model_digest, public_key, transcript
from equipoise.flower.secagg.memory import SiteMemory, change_memory, read_memory, read_peers
from equipoise.flower.secagg.sums import MaskedVector, SumRequest
from equipoise.flower.site import questions
from equipoise.flower.site.site import Site, SiteError
from equipoise.methods import METHODS
from equipoise.system import tensor_files
from equipoise.system.files import locked, make_private

log = logging.getLogger(__name__)

SCORES = 2.0**-20, 2.0**10  # the declared range of masked scores
LEAST_SITES, MOST_WEIGHT = 3, 0.75  # of a sum that a site takes part in, unless its node config says otherwise


def answer(site: Site, kind: str, asked: Parcel) -> Parcel:
    """What the site answers to a message, one of :data:`KINDS` or any other.

    The site's ``node_config`` may have ``peers``, a file ``{site: public key}`` that did not come from the server; ``least-sites``,
    how many sites a sum must have for this one to take part (3); ``most-weight``, how much of the sum's weight its update may have (0.75); and
    ``secure``, true if only masked vectors may be sent, and the few numbers of :mod:`equipoise.flower.site.questions`.

    Raises
    ------
    SiteError : the site refuses, in words that may leave it. Whatever :meth:`Site.answer` raises.
    """
    if (
        kind not in KINDS
        and site.node_config.get("secure")
        and (kind.startswith("train") or kind == "evaluate.validation")
    ):
        raise SiteError("refuses: it takes part in masked sums only")
    if kind not in KINDS and not site.guarded:
        return site.answer(kind, asked)
    make_private(site.store.directory)
    # two at once would both read the earlier memory
    with locked(site.store.directory / "answers.lock", wait=True, private=True):
        if kind not in KINDS:
            return questions.answer(site, kind, asked)
        try:
            return KINDS[kind](site, asked)
        except (MaskError, MethodError) as error:
            raise SiteError(f"refuses: {str(error).removesuffix('.')}") from None


def _introduce(site: Site, asked: Parcel) -> Parcel:
    memory = read_memory(_path(site))
    key = public_key(memory.key)
    if not memory.keys:
        log.warning("%s: its public key for masked sums is %s", site.trial.names[0], key)
    opened = None if memory.opened is None else list(memory.opened)
    return Parcel({"key": key, "number": memory.number, "opened": opened, "keys": dict(memory.keys)})


def _train(site: Site, asked: Parcel) -> Parcel:
    """Train, and keep the update at the site, under the transcript of the message."""
    name, fields = site.trial.names[0], asked.fields
    match fields:
        case {"t": int(t), "rounds": int(), "clients": dict(clients)} if isinstance(clients.get(name), list):
            (peers, least), (client, *receipt) = _limits(site), clients[name]
        case _:
            raise MaskError(f"{name} is not among the clients of this message, or its round is missing.")
    sums.check_least(len(clients), least, name)
    if strange := {*clients} - {name, *(clients if peers is None else peers)}:
        raise MaskError(f"The key of {min(strange)} is missing in the file of peers of {name}. Nothing was sent.")
    training = transcript({**fields, "experiment": dict(site.experiment)}, asked.tensors)
    memory = read_memory(_path(site))
    sums.check_round(memory, t, training, None, name)
    if (kept := _kept(site, training)) is not None:
        return Parcel({"receipt": kept.receipt})
    if memory.opened is not None and memory.opened.training == training:
        # noise would be drawn again, and cancel over many answers
        raise MaskError(f"{name} has unmasked round {t}, and no longer has its update.")
    sums.check_receipt(memory, receipt, name)
    public, asked = questions.read_once(site, asked)
    questions.bind(site, public, asked)
    sums.check_model(memory, model := model_digest(public), t, name)
    parcel = Parcel({**asked.fields, "client": client, "receipt": receipt}, asked.tensors)
    clear = site.answer("train", parcel, quiet=True)
    update = changed({key: x.cpu() for key, x in clear.part("model").items()}, public, public) - public
    setting, receipt = transcript(site.experiment), clear.fields["receipt"]
    about = [training, t, model, setting, receipt]
    facts = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    tensor_files.write(_cache(site), {"facts": facts, "update": update, **clear.part("reports")}, private=True)
    return Parcel({"receipt": receipt, "seconds": clear.fields["seconds"]})


class Kept(NamedTuple):
    """What the site keeps of its last training: its update and reports, the message, and the receipt of its state."""

    tensors: Mapping[str, Tensor]
    t: int
    model: str
    setting: str
    receipt: list[Any]


def _kept(site: Site, training: str) -> Kept | None:
    """What is kept of the training with a transcript; None if it is not the last one.

    Raises
    ------
    MaskError : it was a different experiment, by its description.
    """
    try:
        tensors = tensor_files.read(_cache(site))
    except (FileNotFoundError, tensor_files.DamagedError):
        return None
    trained, *facts = json.loads(tensors.pop("facts").numpy().tobytes())
    if trained != training:
        return None
    kept = Kept(tensors, *facts)
    if kept.setting != transcript(site.experiment):
        raise MaskError("The description of the experiment is not that of the training.")
    return kept


def _sum(site: Site, asked: Parcel) -> Parcel:
    """The site's masked vector: its update times its weight, and its reports."""
    request, name = SumRequest.read(asked.fields, site.experiment), site.trial.names[0]
    request = request._replace(transcript=_with_run(site, request.transcript))
    if (kept := _kept(site, request.training)) is None or kept.t != request.round:
        raise MaskError(f"{name} has no update of this training and round.")
    (peers, least), most = _limits(site), float(site.node_config.get("most-weight", MOST_WEIGHT))

    def made(memory: SiteMemory) -> tuple[SiteMemory, MaskedVector]:
        checked = sums.check_sum(memory, request, name, int(site.trial.setup.sizes[0]), peers, least)
        if (checked.keys, checked.sizes) != (memory.keys, memory.sizes):  # a warning is what Flower's processes show
            log.warning("%s: %s", name, comparison(checked.keys, checked.sizes))
        sums.check_model(checked, kept.model, request.round, name)
        if request.scores:
            return sums.masked_vector(
                checked, request, name, torch.tensor(_score(site, kept, memory)), kept.model, kept.receipt
            )
        require_own_weights(site.trial.method)
        w = own_weights(site.trial, request.members)
        if w[name] > most * sum(w.values()):
            raise MaskError(  # without the number, which would reveal it
                f"The update of {name} would be more than {most:.0%} of the sum, which would reveal it (most-weight in its node-config)."
            )
        update, counted = kept.tensors["update"].double(), torch.ones(1, dtype=torch.float64)
        reports = {key.removeprefix("reports/"): x for key, x in no_reports(site.trial)[0].items()}
        said = [kept.tensors.get(key, zero).flatten().double() for key, zero in reports.items()]
        values = torch.cat([w[name] / sums.unit(w) * update, *said, counted])
        return sums.masked_vector(checked, request, name, values, kept.model, kept.receipt)

    sent = change_memory(_path(site), made)
    questions.note_round(site, kept.t, kept.receipt)
    return Parcel({"shares": sent.shares, "hashes": sent.hashes}, {"masked": sent.vector})


def _limits(site: Site) -> tuple[dict[str, str] | None, int]:
    """The keys that may be in a sum, None for any, and its fewest sites.

    A report of the length of an update is a second sum of nearly the same numbers, of which one more site must be unknown.
    """
    own, reports = site.node_config, sum(x.numel() for x in no_reports(site.trial)[0].values())
    peers = read_peers(Path(str(own["peers"])).expanduser()) if "peers" in own else None
    return peers, int(own.get("least-sites", LEAST_SITES)) + reports // site.trial.model.n_params


def _score(site: Site, kept: Kept, memory: SiteMemory) -> list[float]:
    """The site's score a, clipped to the declared range, and its last weight u before this round, as :class:`Power` has them."""
    k, power = require_score(site.trial.method)
    if f"{k}/{power.report}" not in kept.tensors:
        raise MaskError(f"The training of {site.trial.names[0]} failed")
    exponent = power.q * math.log(max(float(kept.tensors[f"{k}/{power.report}"]), power.floor) / power.typical)
    a = math.exp(min(max(exponent, math.log(SCORES[0])), math.log(SCORES[1])))
    before = max((int(t) for t in memory.weights if int(t) < kept.t), default=None)
    return [a, 0.0 if before is None else memory.weights[str(before)][2]]


def _weigh(site: Site, asked: Parcel) -> Parcel:
    """The site's update times its weight, in the clear, once the sums of scores and last weights are known."""
    name, training = site.trial.names[0], str(asked.fields["training"])
    A, U = map(float, asked.fields["sums"])
    if (kept := _kept(site, training)) is None:
        raise MaskError(f"{name} has no update of this training.")
    if site.node_config.get("secure"):
        raise MaskError(f"{name} takes part in masked sums only")

    def weighed(memory: SiteMemory) -> tuple[SiteMemory, float | None]:
        if memory.opened is None or memory.opened.training != training:
            raise MaskError(f"{name} has unmasked no sum of scores of this training.")
        power, n = require_score(site.trial.method)[1], len(memory.opened.sites)
        a, last = _score(site, kept, memory)
        past = {t: memory.weights[t] for t in sorted(memory.weights, key=int)[-2:]}
        if list(past.get(str(kept.t), [A, U]))[:2] != [A, U]:
            return memory, None
        if not (a * (1 - 1e-6) <= A <= n * SCORES[1] and last - 1e-6 <= U <= n):
            return replace(memory, weights={**past, str(kept.t): [A, U, last]}), None  # no second attempt in this round
        w = a / A if U <= 0 else power.beta * a / A + (1 - power.beta) * last / U
        return replace(memory, weights={**past, str(kept.t): [A, U, w]}), w

    w = change_memory(_path(site), weighed)
    if w is None:
        raise MaskError("The received sums of scores are not those of this round.")
    return Parcel(tensors={"update": w * kept.tensors["update"].double()})


def _unmask(site: Site, asked: Parcel) -> Parcel:
    name, hashed = site.trial.names[0], _with_run(site, str(asked.fields["told"]))
    seed = change_memory(_path(site), lambda memory: sums.own_seed(memory, hashed, name))
    return Parcel({"seed": seed.hex()})


def _recover(site: Site, asked: Parcel) -> Parcel:
    """Help to unmask a sum of which sites dropped out."""
    name, hashed, hidden = site.trial.names[0], _with_run(site, str(asked.fields["told"])), asked.fields["shares"]
    shares = change_memory(_path(site), lambda memory: sums.shares_of(memory, hashed, name, hidden))
    return Parcel({"shares": {other: share.hex() for other, share in shares.items()}})


def _with_run(site: Site, hashed: str) -> str:
    """The transcript of a message with the run's configuration, which the site has from Flower, and from which its task may follow."""
    return transcript({"told": hashed, "run": dict(site.run_config)})


KINDS: dict[str, Callable[[Site, Parcel], Parcel]] = {
    "query.keys": _introduce,
    "train.masked": _train,
    "train.sum": _sum,
    "train.weighted": _weigh,
    "query.unmask": _unmask,
    "query.recover": _recover,
}


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


def require_score(method: Method) -> tuple[int, Power]:
    """The place of the only rule of a method that weighs by a score of each client, and how.

    Raises
    ------
    MethodError : there is no such rule, or a different rule needs more than the updates.
    """
    rules = [(k, rule.declared.power) for k, rule in enumerate(method.rules) if rule.declared.power is not None]
    others = [
        part
        for rule, part in zip(method.rules, method.parts, strict=True)
        if rule.declared.power is None and (problem(rule) or rule.declared.reports)
    ]
    if len(rules) != 1 or others:
        what = f"{others[0]} needs more than updates" if others else f"{method} weighs by no score of each client"
        raise MethodError(
            f"secure-scores=true: {what}. It is for saga, fedism and fedism+ without offset; set secure-scores=false."
        )
    return rules[0]


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


def no_reports(trial: Trial) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Reports of zeros that are summed in addition to the updates, and the whole length of those without private coordinates."""
    reports = [rule.no_report(trial.setup) for rule in trial.method.rules]
    return packed("reports", reports, hiding(trial.private, trial.model.n_params))


def own_weights(trial: Trial, sizes: Mapping[str, int]) -> dict[str, float]:
    """The factor of each site's update: its samples, or one; no number of a different site or of the server.

    Raises
    ------
    MethodError : the rules weigh differently, or do more than weigh.
    """
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


def _path(site: Site) -> Path:
    return site.store.directory / "masks.json"


def _cache(site: Site) -> Path:
    return site.store.directory / "update.safetensors"
