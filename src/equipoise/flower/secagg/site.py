"""What a site does in a masked round: it trains as ever, and of that nothing leaves it but masked vectors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.flower.codec import Parcel, changed
from equipoise.flower.secagg import masks as secure
from equipoise.flower.secagg import sums as masked
from equipoise.flower.secagg.sums import MaskError, Memory, Sum
from equipoise.flower.site.site import Site, SiteError
from equipoise.system import tensor_files

log = logging.getLogger(__name__)

VALUES, MODEL = "values", "model"  # what is summed: numbers that give the weights, and weighted updates
CEILING = 2.0**10  # of the numbers that give the weights, relative to their mean


def answer(site: Site, kind: str, asked: Parcel, node_config: Mapping[str, Any]) -> Parcel:
    """What the site answers to a message, one of :data:`KINDS` or any other.

    ``node_config`` may have ``peers``, a file ``{site: public key}`` that did not come from the server; ``least-sites``,
    how many sites a sum must have for this one to take part (2); ``most-weight``, how much of the sum its update may be (0.95); and
    ``secure``, true where nothing but masked vectors may be sent.

    Raises
    ------
    SiteError : the site refuses, in words that may leave it. Whatever :meth:`Site.answer` raises.
    """
    if kind not in KINDS:
        if node_config.get("secure") and kind.startswith("train"):
            raise SiteError("refuses: it takes part in masked sums only (secure=true in its node-config)")
        return site.answer(kind, asked)
    try:
        return KINDS[kind](site, asked, node_config)
    except MaskError as error:
        raise SiteError(f"refuses: {str(error).removesuffix('.')}") from None


def _introduce(site: Site, asked: Parcel, node_config: Mapping[str, Any]) -> Parcel:
    memory = masked.change(_path(site), lambda memory: (memory, memory))
    key = masked.public(memory.key)
    if not memory.pinned:
        log.warning("%s: its public key for masked sums is %s", site.trial.names[0], key)
    return Parcel({"key": key, "number": memory.number, "opened": dict(memory.opened)})


def _train(site: Site, asked: Parcel, node_config: Mapping[str, Any]) -> Parcel:
    """Train, store the update at the site, and send it masked."""
    public = site._public(site._received(asked)[0])
    rest = {name: x for name, x in asked.tensors.items() if not name.startswith("model/")}
    clear = site.answer("train", Parcel({**asked.fields, "model": {}}, rest | {"model/values": public}))
    update = changed({name: x.cpu() for name, x in clear.part("model").items()}, public, public) - public
    kept = {"update": update, **clear.part("reports")}
    of_this_round = {f"{asked.fields['t']}/{name}": x for name, x in kept.items()}
    tensor_files.write(_cache(site), of_this_round, private=True)
    return replace(_masked(site, asked, node_config, kept), fields={"receipt": clear.fields["receipt"]})


def _again(site: Site, asked: Parcel, node_config: Mapping[str, Any]) -> Parcel:
    """Send another masked vector of the update that is here."""
    try:
        kept = tensor_files.read(_cache(site))
    except FileNotFoundError:
        kept = {}
    start = f"{asked.fields['t']}/"
    found = {name.removeprefix(start): x for name, x in kept.items() if name.startswith(start)}
    if "update" not in found:
        raise SiteError("has no update of this round any more.")
    return _masked(site, asked, node_config, found)


def _unmask(site: Site, asked: Parcel, node_config: Mapping[str, Any]) -> Parcel:
    seed = masked.change(_path(site), lambda memory: masked.own_seed(memory, _sum(asked)))
    return Parcel({"seed": seed.hex()})


KINDS: dict[str, Callable[[Site, Parcel, Mapping[str, Any]], Parcel]] = {
    "query.keys": _introduce,
    "train.masked": _train,
    "train.again": _again,
    "query.unmask": _unmask,
}


def _masked(site: Site, asked: Parcel, node_config: Mapping[str, Any], kept: Mapping[str, Tensor]) -> Parcel:
    this, name = _sum(asked), site.trial.names[0]
    if this.round != asked.fields["t"]:
        raise MaskError(f"A sum of round {this.round} was asked for with the update of round {asked.fields['t']}.")
    keys, before = asked.fields["keys"], asked.fields["receipt"][0]  # the last round in which this site counted
    peers = masked.read_peers(Path(str(node_config["peers"])).expanduser()) if "peers" in node_config else None

    def made(memory: Memory) -> tuple[Memory, Tensor]:
        known, memory = memory.pinned, masked.pinned(memory, keys, name, peers)
        if memory.pinned != known:  # a warning is what Flower's processes show
            log.warning("%s: %s", name, masked.comparison(memory.pinned))
        w, values = _content(site, this, kept, memory.weights.get(str(before), 0.0))
        if w > (most := float(node_config.get("most-weight", 0.95))):
            raise MaskError(
                f"The update of {name} would be {w:.0%} of the sum, which would show it; {most:.0%} is the most it takes part with "
                "(most-weight in its node-config)."
            )
        old = {t: u for t, u in memory.weights.items() if int(t) == before}
        memory = replace(memory, weights={**old, str(this.round): w} if this.phase == MODEL else memory.weights)
        return masked.masked_vector(memory, this, name, values, int(node_config.get("least-sites", 2)))

    return Parcel({}, {"masked": masked.change(_path(site), made)})


def _content(site: Site, asked: Sum, kept: Mapping[str, Tensor], last: float) -> tuple[float, Tensor]:
    """The site's weight (0: not known yet), and the numbers that are added, float64.

    That is its weighted update, or what P2 of :mod:`equipoise.flower.secagg.masks` asks for; ``last`` is the weight it had last.
    """
    found = [(k, rule.power) for k, rule in enumerate(site.trial.method.rules) if rule.power is not None]
    if asked.phase not in (MODEL, VALUES)[: 1 + len(found)]:
        raise MaskError(f"Something is to be summed that is not part of the method: {asked.phase!r}.")
    inputs = asked.inputs
    if not found:
        weights = [float(inputs["weights"][name]) for name in asked.sites]
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-6:
            raise MaskError(f"The weights of the sites must be >= 0 and sum to 1; found {weights}.")
        w = weights[asked.sites.index(site.trial.names[0])]
        return w, w * kept["update"].double()
    ((k, power),) = found
    value = float(kept[f"{k}/{power.report}"])
    a = secure.scalar(value, power.q, inputs["reference"], power.floor, CEILING * len(asked.sites))
    if asked.phase == VALUES:
        return 0.0, torch.tensor([a, last], dtype=torch.float64)
    w = secure.weight(a, inputs["sum"], last, inputs["sum_last"], power.beta)
    return w, secure.weighted(w, kept["update"])


def _sum(asked: Parcel) -> Sum:
    fields = asked.fields["sum"]
    return Sum(**{**fields, "sites": tuple(fields["sites"])})


def _path(site: Site) -> Path:
    return site.store.directory / "masks.json"


def _cache(site: Site) -> Path:
    return site.store.directory / "update.safetensors"
