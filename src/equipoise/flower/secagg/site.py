"""What a site does in a masked round: it trains as ever, and of that nothing leaves it but masked vectors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.core.rule import Cohort, State
from equipoise.federation.fingerprint import digest
from equipoise.federation.method import MethodError
from equipoise.federation.trial import Trial
from equipoise.flower.codec import Parcel, changed, hiding, packed
from equipoise.flower.secagg import masks as secure
from equipoise.flower.secagg import sums as masked
from equipoise.flower.secagg.sums import MODEL, VALUES, Masked, MaskError, Memory, Sum
from equipoise.flower.site.site import Site, SiteError
from equipoise.flower.site.store import Receipt
from equipoise.system import tensor_files

log = logging.getLogger(__name__)

LIMIT = 2.0**20  # of weighted updates


def answer(site: Site, kind: str, asked: Parcel) -> Parcel:
    """What the site answers to a message, one of :data:`KINDS` or any other.

    The site's ``node_config`` may have ``peers``, a file ``{site: public key}`` that did not come from the server; ``least-sites``,
    how many sites a sum must have for this one to take part (2); ``most-weight``, how much of the sum its update may be (0.95); and
    ``secure``, true where nothing but masked vectors may be sent.

    Raises
    ------
    SiteError : the site refuses, in words that may leave it. Whatever :meth:`Site.answer` raises.
    """
    if kind not in KINDS:
        if site.node_config.get("secure") and (kind.startswith("train") or kind == "evaluate.validation"):
            raise SiteError("refuses: it takes part in masked sums only")
        return site.answer(kind, asked)
    try:
        return KINDS[kind](site, asked)
    except MaskError as error:
        raise SiteError(f"refuses: {str(error).removesuffix('.')}") from None


def _introduce(site: Site, asked: Parcel) -> Parcel:
    memory = masked.remembered(_path(site))
    key = masked.public(memory.key)
    if not memory.pinned:
        log.warning("%s: its public key for masked sums is %s", site.trial.names[0], key)
    return Parcel({"key": key, "number": memory.number, "opened": dict(memory.opened), "pinned": dict(memory.pinned)})


def _train(site: Site, asked: Parcel) -> Parcel:
    """Train, store the update at the site, and send it masked."""
    public = site._public(site._received(asked)[0])
    model = digest(public)
    this, told = _sum(asked), setting(site.experiment, asked.fields["rounds"], asked.part("messages"))
    if this.model != model or this.setting != told:
        raise MaskError("A sum was asked for with the update of another model, or of other settings, than were sent.")
    if "initial" in asked.tensors and not torch.equal(asked.tensors["initial"], site.trial.setup.initial):
        raise MaskError("Another first model was sent than the network here begins with.")
    try:
        kept, back = _kept(site, asked)
    except SiteError:
        opened = masked.remembered(_path(site)).opened.values()
        if this.round in (one.round for one in opened):  # noise would be drawn anew, and cancel over many answers
            name = site.trial.names[0]
            raise MaskError(f"{name} has unmasked round {this.round}, and has not its update any more.") from None
        kept, back = _trained(site, asked, public)
    return _masked(site, asked, kept, back)


def _trained(site: Site, asked: Parcel, public: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train from the ``public`` part of a model: what is summed, and what is answered: the receipt of the state, the seconds it took."""
    rest = {name: x for name, x in asked.tensors.items() if not name.startswith("model/")}
    clear = site.answer("train", Parcel({**asked.fields, "model": {}}, rest | {"model/values": public}))
    update = changed({name: x.cpu() for name, x in clear.part("model").items()}, public, public) - public
    kept, back = {"update": update, **clear.part("reports")}, {key: clear.fields[key] for key in ("receipt", "seconds")}
    stored = kept | {"receipt": Receipt.read(back["receipt"]).tensors()["sha256"]}
    tensor_files.write(_cache(site), {_start(asked) + name: x for name, x in stored.items()}, private=True)
    return kept, back


def _again(site: Site, asked: Parcel) -> Parcel:
    """Send another masked vector of the update that is here."""
    return _masked(site, asked, *_kept(site, asked))


def _kept(site: Site, asked: Parcel) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What is stored of a round, of the model and state of a message: what is summed, and what is answered, as :func:`_trained` gives it.

    Raises
    ------
    SiteError : nothing is.
    """
    try:
        stored = tensor_files.read(_cache(site))
    except FileNotFoundError:
        stored = {}
    start = _start(asked)
    found = {name.removeprefix(start): x for name, x in stored.items() if name.startswith(start)}
    if "update" not in found:
        raise SiteError("has no update of this round any more.")
    return found, {"receipt": Receipt(asked.fields["t"], found.pop("receipt").numpy().tobytes()).fields}


def _start(asked: Parcel) -> str:
    """What the names begin with under which a round is stored: its number, its model and what else it was trained with."""
    this = _sum(asked)
    return f"{this.round}/{this.model[:16]}/{this.setting[:16]}/"


def setting(experiment: Mapping[str, Any], rounds: int, messages: Mapping[str, Tensor]) -> str:
    """SHA-256 of what sites train with beside the model: the description of the experiment, and what the server tells every client."""
    told = {name: digest(x) for name, x in messages.items()}
    return masked.sha256(json.dumps([dict(experiment), rounds, told], sort_keys=True).encode())


def _unmask(site: Site, asked: Parcel) -> Parcel:
    name = site.trial.names[0]
    seed = masked.change(_path(site), lambda memory: masked.own_seed(memory, _sum(asked), name))
    return Parcel({"seed": seed.hex()})


def _recover(site: Site, asked: Parcel) -> Parcel:
    """Help to unmask a sum of which sites have vanished."""
    name, hidden = site.trial.names[0], asked.fields["shares"]
    found = masked.change(_path(site), lambda memory: masked.shares_of(memory, _sum(asked), name, hidden))
    return Parcel({"shares": {other: share.hex() for other, share in found.items()}})


KINDS: dict[str, Callable[[Site, Parcel], Parcel]] = {
    "query.keys": _introduce,
    "train.masked": _train,
    "train.again": _again,
    "query.unmask": _unmask,
    "query.recover": _recover,
}


def _masked(site: Site, asked: Parcel, kept: Mapping[str, Tensor], back: Mapping[str, Any]) -> Parcel:
    this, name, own = _sum(asked), site.trial.names[0], site.node_config
    if type(this.round) is not int or type(this.number) is not int or this.limit != LIMIT:
        raise MaskError("The number, the round or the range of a sum is not one.")
    if this.round != asked.fields["t"] or type(asked.fields["t"]) is not int:
        raise MaskError(f"A sum of round {this.round} was asked for with the update of round {asked.fields['t']}.")
    keys, before = asked.fields["keys"], asked.fields["receipt"][0]  # the last round in which this site counted
    peers = masked.read_peers(Path(str(own["peers"])).expanduser()) if "peers" in own else None

    def made(memory: Memory) -> tuple[Memory, Masked]:
        masked.once(memory, this, name)
        known, memory = memory, masked.pinned(memory, keys, name, peers)
        if "sizes" in this.inputs:
            memory = masked.registered(memory, this.inputs["sizes"], name, int(site.trial.setup.sizes[0]))
        if (memory.pinned, memory.sizes) != (known.pinned, known.sizes):  # a warning is what Flower's processes show
            log.warning("%s: %s", name, masked.comparison(memory.pinned, memory.sizes))
        opened = memory.opened.get(MODEL)
        counted = opened.round if opened and opened.round < this.round else before
        last = max(before, counted)  # of the sums it counted in
        w, values = _content(site, this, kept, memory, last, asked.fields["rounds"])
        if w > (most := float(own.get("most-weight", 0.95))):
            raise MaskError(  # without the number, which would show it
                f"The update of {name} would be more than {most:.0%} of the sum, which would show it (most-weight in its node-config)."
            )
        old = {t: u for t, u in memory.weights.items() if last <= int(t) < this.round}
        memory = replace(memory, weights={**old, str(this.round): w} if this.phase == MODEL else memory.weights)
        least = int(own.get("least-sites", 2))
        return masked.masked_vector(memory, this, name, values, least)

    def told(memory: Memory) -> tuple[Memory, Masked | Exception]:
        memory = masked.first_told(memory, this)
        try:
            return made(memory)
        except Exception as error:  # whatever it is, what was told is remembered
            return memory, error

    sent = masked.change(_path(site), told)
    if isinstance(sent, Exception):
        raise sent
    return Parcel({**back, "shares": sent.shares, "hashes": sent.hashes}, {"masked": sent.vector})


def _content(
    site: Site, asked: Sum, kept: Mapping[str, Tensor], memory: Memory, before: int, rounds: int
) -> tuple[float, Tensor]:
    """The site's weight (0: not known yet), and the numbers that are added, float64.

    That is its weighted update and its part of the mean of the reports, or what P2 of :mod:`equipoise.flower.secagg.masks` asks for;
    ``before`` is the round in which it counted last.
    Nobody tells a site its weight: it follows from the method, the sites of the sum and the samples of all sites.
    """
    method, names = site.trial.method, list(asked.inputs.get("sizes", ()))
    own = [kept[name.removeprefix("reports/")].flatten().double() for name in no_reports(site.trial)[0]]
    told = torch.cat([*own, torch.empty(0, dtype=torch.float64)]) / len(asked.sites)  # their sum is the mean
    found = [(k, rule.power) for k, rule in enumerate(method.rules) if rule.power is not None]
    if asked.phase not in (MODEL, VALUES)[: 1 + len(found)]:
        raise MaskError(f"Something is to be summed that is not part of the method: {asked.phase!r}.")
    needed = ("sum", "sum_last") if asked.phase == MODEL and found else () if found else ("sizes",)
    if missing := [key for key in needed if key not in asked.inputs]:
        raise MaskError(f"A sum was asked for without its {missing[0]!r}, from which the weights follow.")
    if not found:
        setup = replace(
            site.trial.setup,
            sizes=torch.tensor([float(n) for n in asked.inputs["sizes"].values()], dtype=torch.float64),
        )
        state = [rule.server_state(setup) for rule in method.rules]
        ids = [names.index(name) for name in asked.sites]
        every = weights(replace(site.trial, setup=setup), state, ids, setup.initial, asked.round, rounds)
        w = float(every[asked.sites.index(site.trial.names[0])])
        return w, torch.cat([w * kept["update"].double(), told])
    ((k, power),) = found
    value = float(kept[f"{k}/{power.report}"])
    a = max(secure.scalar(value, power.q, power.typical, power.floor, secure.LARGEST), secure.SMALLEST)
    last = memory.weights.get(str(before), 0.0)
    if asked.phase == VALUES:
        return 0.0, secure.wide(a, last, f"{memory.key} {asked.experiment} {asked.round}".encode())
    A, U = (float(asked.inputs[key]) for key in ("sum", "sum_last"))
    if not (a * (1 - 1e-9) <= A <= len(asked.sites) * secure.LARGEST and last - 1e-9 <= U <= len(asked.sites)):
        raise MaskError("What is told of the sum of the sites' numbers is not that.")
    w = secure.weight(a, asked.inputs["sum"], last, asked.inputs["sum_last"], power.beta)
    return w, torch.cat([secure.weighted(w, kept["update"]), told])


def no_reports(trial: Trial) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Reports of zeros of what is summed besides the updates, and the whole length of those of which private coordinates are cut."""
    reports = [rule.no_report(trial.setup) for rule in trial.method.rules]
    return packed("reports", reports, hiding(trial.private, trial.model.n_params))


def weights(
    trial: Trial, server: Sequence[State], ids: Sequence[int], vector: Tensor, t: int = 0, rounds: int = 1
) -> Tensor:
    """The weights [M] that the rules will give the clients ``ids`` in round ``t``, known before there are updates.

    ``server`` is the server's state, ``vector`` [G] the global model.

    Raises
    ------
    MethodError : the rules do more than to weigh the updates.
    """
    n, at = len(ids), torch.tensor(ids, device=vector.device)
    P = trial.model.n_params
    zero, sizes = torch.zeros_like(vector).expand(n, -1), trial.setup.sizes[at]
    cohort = Cohort(
        t=t,
        rounds=rounds,
        n_clients=trial.setup.n_clients,
        theta=vector[:P],
        updates=zero[:, :P],
        ids=at,
        sizes=sizes,
        weights=sizes / sizes.sum(),
        layout=trial.model.layout,
        buffer_updates=zero[:, P:],
        received=vector.expand(n, -1),
        kept=vector.expand(n, -1),
        seed=trial.settings.seed,
    )
    for rule, state in zip(trial.method.rules, server, strict=True):
        reports = {key: x.expand(n, *x.shape) for key, x in rule.no_report(trial.setup).items()}
        _, cohort = rule.aggregate(state, replace(cohort, reports=reports))
    if any(x is not None for x in (cohort.coefficients, cohort.mask, cohort.buffer_mask)):
        raise MethodError("secure=true: a rule of the method does more than to weigh the updates. Set secure=false.")
    return cohort.weights


def _sum(asked: Parcel) -> Sum:
    fields = asked.fields["sum"]
    return Sum(**{**fields, "sites": tuple(fields["sites"])})


def _path(site: Site) -> Path:
    return site.store.directory / "masks.json"


def _cache(site: Site) -> Path:
    return site.store.directory / "update.safetensors"
