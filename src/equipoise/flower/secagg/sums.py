r"""Sums over sites that the server can read only whole.

Everything that a site's part of a sum depends on is in one message, the same to every site, whose hash is the **transcript**
(:func:`~equipoise.flower.secagg.masks.transcript`). Every pair of sites makes its mask from the secret of its keys and the transcript,
so masks of sites that received different messages do not cancel, and every site adds its own mask:

.. math:: y_k = \operatorname{round}(2^{bits} x_k) + \sum_{j < k} r_{jk} - \sum_{j > k} r_{jk} + b_k \pmod{2^{64}}, \qquad
    \sum_k x_k = 2^{-bits} \Big( \sum_k y_k - \sum_k b_k \Big)

1. The sites send their **masked vectors** y_k (:func:`masked_vector`), and with them shares of the seed of b_k, each encrypted
   for a different site. If a vector is missing, the server asks the others for a new sum, without it.
2. Once all have arrived, the sites send the seeds of their own masks b_k, and so **unmask** this sum (:func:`own_seed`). The seed
   of a site that dropped out is reconstructed from the shares of :func:`threshold` others (:func:`shares_of`).

A site helps to unmask one sum per round, takes part in no two sums of a round that others could both unmask, and never twice under one
number. So a late vector is of no use. After Bonawitz et al., CCS 2017, Section 4, with masks of pairs
that are never recovered. Keys are X25519, HKDF-SHA256 and ChaCha20 of the package ``cryptography``; shares and their encryption
are those of Flower's SecAgg+.

Nothing here uses a network: these are the functions of a site, whose memory is a file, and of the server, which has none.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from cryptography.fernet import InvalidToken
from torch import Tensor

from equipoise.flower.internals import combine_shares, create_shares, decrypt, encrypt
from equipoise.flower.secagg.masks import MaskError, keystream, pair_keys, public_key, sha256, transcript
from equipoise.flower.secagg.memory import SiteMemory, UnmaskedSum

LIMIT = 2.0**20  # numbers of a masked sum are in [-LIMIT, LIMIT]
SHARE = 4 + 48  # bytes of a share of a seed
ZEROS = 2  # at the end of every vector: masks that do not cancel leave something else there, except once in 2^128 times


def fractional_bits(n: int) -> int:
    """Bits after the point of numbers in a sum over ``n`` sites: the most that 64 bits leave."""
    return 63 - math.frexp(LIMIT * n)[1]


def unit(weights: Mapping[str, float]) -> float:
    """The power of two by which the weights of a sum are divided, 1 if they are equal: its numbers are then about as large as updates."""
    return 2.0 ** (math.frexp(sum(weights.values()) / len(weights))[1] - 1)


class SumRequest(NamedTuple):
    """A request for a sum: the fields of the message, which are the same to all sites, and its transcript.

    ``sites`` take part, sorted; ``sizes`` and ``keys`` are the samples and public keys of all in the experiment.
    """

    number: int
    round: int
    training: str
    sites: tuple[str, ...]
    sizes: Mapping[str, int]
    keys: Mapping[str, str]
    transcript: str

    @staticmethod
    def read(fields: Mapping[str, Any], experiment: Mapping[str, Any]) -> SumRequest:
        """From a message, of which every field enters the transcript.

        Raises
        ------
        MaskError : it does not describe a sum.
        """
        number, t, training = fields.get("number"), fields.get("t"), fields.get("training")
        sizes, keys, sites = fields.get("sizes"), fields.get("keys"), fields.get("sites")
        if type(number) is not int or type(t) is not int or not isinstance(training, str):
            raise MaskError("The number, the round or the training of a sum is missing or not of its type.")
        if not isinstance(sizes, dict) or not isinstance(keys, dict) or sizes.keys() != keys.keys():
            raise MaskError("A masked sum needs the samples and the public keys of all sites.")
        if not all(type(n) is int and 1 <= n < 2**53 for n in sizes.values()):
            raise MaskError("The samples of all sites must be whole numbers >= 1.")
        if not all(isinstance(key, str) for key in keys.values()):
            raise MaskError("The public keys of all sites must be text.")
        if not isinstance(sites, list) or len(sites) < 2 or sites != sorted(set(sites) & keys.keys()):
            raise MaskError("A masked sum needs at least two sites, sorted, each named once, with samples and key.")
        hashed = transcript({**fields, "experiment": dict(experiment)})
        return SumRequest(number, t, training, tuple(sites), sizes, keys, hashed)

    @property
    def members(self) -> dict[str, int]:
        """The samples of the sites that take part."""
        return {name: self.sizes[name] for name in self.sites}


class MaskedVector(NamedTuple):
    """What a site sends: its vector, and the shares of its seed.

    ``vector`` [n] are 64-bit integers, uniform for any numbers; ``shares`` are encrypted, by the names of the sites that can read them;
    ``seed`` is the SHA-256 of the seed.
    """

    vector: Tensor
    shares: Mapping[str, str]
    seed: str


# at a site
def check_sum(
    memory: SiteMemory, request: SumRequest, site: str, size: int, peers: Mapping[str, str] | None, least: int
) -> SiteMemory:
    """Require that a site may take part in a sum; returns its memory with the keys and samples of the others.

    Parameters
    ----------
    size : the site's own samples.
    peers : keys that did not come from the server; no other site is accepted. None accepts those that the server relays.
    least : the fewest sites in a sum that this site's owner accepts, >= 2.

    Raises
    ------
    MaskError : the number was used; the round lies before one that was unmasked, or is one that was unmasked for other sites or
        after other training; it and another sum of the round could both be unmasked; a key or a number of samples is not the one
        seen before, or not of ``peers``, or not this site's own; too few sites.
    """
    if request.keys.get(site) != public_key(memory.key):
        raise MaskError(
            f"The key that the others receive as {site}'s is not its own: the messages between the sites are intercepted."
        )
    if request.sizes[site] != size:
        raise MaskError(f"{site} has {size} samples, and the others receive {request.sizes[site]}. Nothing was sent.")
    for name in request.keys:
        if peers is not None and name != site and peers.get(name) != request.keys[name]:
            what = "is different" if name in peers else "is missing"
            raise MaskError(f"The key of {name} {what} in the file of peers of {site}. Nothing was sent.")
        if memory.keys.get(name, request.keys[name]) != request.keys[name]:
            raise MaskError(
                f"The key of {name} has changed since {site} first saw it. If {name} lost its state-dir, start a new experiment; "
                "if not, the messages between the sites are intercepted. Nothing was sent."
            )
        if memory.sizes.get(name, request.sizes[name]) != request.sizes[name]:
            raise MaskError(
                f"The samples of {name} have changed since {site} first received their number. Nothing was sent."
            )
    if site not in request.sites:
        raise MaskError(f"{site} was asked for its part of a sum without it.")
    check_least(len(request.sites), least, site)
    if request.number <= memory.number:
        raise MaskError(
            f"{site} was asked for sum number {request.number} and has taken part in number {memory.number}: masks are never used twice."
        )
    check_round(memory, request.round, request.training, request.sites, site)
    for sites in _sets(memory, request.round):
        if threshold(len(sites)) + threshold(len(request.sites)) <= len({*sites, *request.sites}):
            raise MaskError(
                f"{site} was asked for a sum over {len(request.sites)} sites after a sum over {len(sites)} in the same round: both could be "
                "unmasked. Run again when more of them are back."
            )
    return replace(memory, keys={**memory.keys, **request.keys}, sizes={**memory.sizes, **request.sizes})


def check_least(n: int, least: int, site: str) -> None:
    """Require that a sum is over enough sites for the owner of a site.

    Raises
    ------
    MaskError : it is not.
    """
    if n < least:
        raise MaskError(
            f"A sum over {n} sites was asked for, and {site} takes part in sums over at least {least} (least-sites in its node-config, and "
            "one more for each report of the length of an update)."
        )


def check_round(memory: SiteMemory, t: int, training: str, sites: tuple[str, ...] | None, site: str) -> None:
    """Require that a round follows those that were unmasked, or is the last of them: the same training and, if given, sites.

    Raises
    ------
    MaskError : it is not.
    """
    last = memory.opened
    if last is None or t > last.round or ((t, training) == last[:2] and sites in (None, last.sites)):
        return
    if (t, training) != last[:2]:
        raise MaskError(
            f"{site} was asked for round {t} and unmasked round {last.round}, after different training: several sums of one round could reveal one site."
        )
    raise MaskError(
        f"{site} was asked for round {t} over {', '.join(sites or ())}, and unmasked it over {', '.join(last.sites)}: the difference of two "
        "sums could reveal one site. Resume with the same sites."
    )


def check_receipt(memory: SiteMemory, receipt: Sequence[Any], site: str) -> None:
    """Require that a site continues from its own last state: by a choice of states a server could single a site out.

    Raises
    ------
    MaskError : it is a different one.
    """
    first = memory.opened is None and receipt[0] == -1
    if not first and list(receipt) not in [list(own) for own in memory.receipts]:
        raise MaskError(f"{site} was asked to continue from a state that is not its last one.")


def check_model(memory: SiteMemory, model: str, t: int, site: str) -> None:
    """Require that a model, by its digest, was in no sum of another round.

    Raises
    ------
    MaskError : it was.
    """
    if (before := memory.models.get(model, t)) != t:
        raise MaskError(
            f"{site} took part in round {before} with the same model as in round {t}: the difference of the two sums could reveal one site. "
            "If training no longer changes the model, it is complete."
        )


def _sets(memory: SiteMemory, t: int) -> list[list[str]]:
    """The sites of each sum of a round so far."""
    return [list(sites) for sites in memory.sets] if memory.asked is not None and memory.asked.round == t else []


def masked_vector(
    memory: SiteMemory,
    request: SumRequest,
    site: str,
    values: Tensor,
    model: str,
    used: str = "",
    receipt: Sequence[Any] = (),
) -> tuple[SiteMemory, MaskedVector]:
    """What a site sends of its ``values`` [n], and its memory after it; ``model`` is the digest of the model that it trained,
    and ``used`` the hash of all that it trained by.

    Raises
    ------
    MaskError : values that are not finite, or outside [-LIMIT, LIMIT]; the site is then in no sum of the round.
    """
    x = torch.cat([values.double(), torch.zeros(ZEROS, dtype=torch.float64)])
    if not bool((x.abs() <= LIMIT).all()):
        raise MaskError(f"The training of {site} gave numbers that no sum holds.")
    y = (x * 2.0 ** fractional_bits(len(request.sites))).round().long()
    memory = replace(memory, told=request.transcript, used=used)
    pairs = {name: pair_keys(memory.key, request.keys[name], bound(memory)) for name in request.sites if name != site}
    for name, (mask, _) in pairs.items():
        y.add_(keystream(mask, len(y)), alpha=1 if name < site else -1)
    seed = secrets.token_bytes(32)
    y += keystream(seed, len(y))
    shares = dict(
        zip(request.sites, create_shares(seed, threshold(len(request.sites)), len(request.sites)), strict=True)
    )
    hidden = {name: encrypt(lock, shares[name]).decode() for name, (_, lock) in pairs.items()}
    sets = _sets(memory, request.round)
    memory = replace(
        memory,
        number=request.number,
        asked=UnmaskedSum(request.round, request.training, request.sites),
        sets=[*(before for before in sets if before != list(request.sites)), list(request.sites)],
        models={**memory.models, model: request.round},
        seed=seed.hex(),
        receipts=[*(memory.receipts[:1] if memory.opened else ()), receipt],
    )
    return memory, MaskedVector(y, hidden, sha256(seed))


def bound(memory: SiteMemory) -> str:
    """What the masks of the last sum depend on: its transcript, and what the site trained by."""
    return transcript({"sum": memory.told, "used": memory.used})


def threshold(n: int) -> int:
    """The number of ``n`` sites that must help to unmask a sum: two thirds, rounded up. Two sums that differ by one site would need more than ``n``."""
    return max(2, n - n // 3)


def own_seed(memory: SiteMemory, hashed: str, site: str) -> tuple[SiteMemory, bytes]:
    """The seed of the site's own mask in the last sum that it took part in, by its transcript.

    From then on the site takes part in no other sum of this round.

    Raises
    ------
    MaskError : it is not the last sum, or a different sum of this round was unmasked.
    """
    if memory.asked is None or memory.told != hashed:
        raise MaskError(f"{site} unmasks only its last sum, number {memory.number}, and was asked for a different one.")
    check_round(memory, *memory.asked, site)
    return replace(memory, opened=memory.asked, receipts=memory.receipts[-1:]), bytes.fromhex(memory.seed)


def shares_of(
    memory: SiteMemory, hashed: str, site: str, hidden: Mapping[str, str]
) -> tuple[SiteMemory, dict[str, bytes]]:
    """The shares of the seeds of sites that dropped out, from what they encrypted for this one; it unmasks the sum, as :func:`own_seed` does.

    Raises
    ------
    MaskError : as :func:`own_seed`; or a named site is this one, or not in the sum. A share that was not encrypted for this site and this
        sum is left out.
    """
    memory, _ = own_seed(memory, hashed, site)
    shares = {}
    for name, text in hidden.items():
        if memory.asked is None or name not in memory.asked.sites or name == site:
            raise MaskError(f"A share of {name} was asked for, which is not one of the other sites of the sum.")
        try:
            shares[name] = decrypt(pair_keys(memory.key, memory.keys[name], bound(memory))[1], text.encode())
        except (InvalidToken, AttributeError, TypeError, ValueError):
            continue  # it was not made by that site, or not for this one and this sum
    return memory, shares


# on the server
def recovered(shares: Sequence[bytes], seed: str) -> bytes:
    """The seed of a site that dropped out, from :func:`threshold` shares; ``seed`` is its SHA-256.

    Raises
    ------
    MaskError : the site sent shares of something else.
    """
    try:
        if any(len(share) != SHARE for share in shares):
            raise ValueError("not shares of a seed")
        combined: bytes = combine_shares(list(shares))
    except Exception:  # shares of any form may have been made to break it
        combined = b""
    if sha256(combined) != seed:
        raise MaskError("sent shares that are not of its seed")
    return combined


def total(vectors: Mapping[str, Tensor], seeds: Mapping[str, bytes]) -> Tensor:
    """The sum [n], float64, from every site's masked vector and the seed of its own mask.

    Raises
    ------
    MaskError : masks are left in it, because the sites received different messages, or a site sent something else.
    """
    n = len(next(iter(vectors.values())))
    y = torch.zeros(n, dtype=torch.int64)
    for name, vector in vectors.items():
        y += vector
        y -= keystream(seeds[name], n)
    if bool(y[n - ZEROS :].any()):
        raise MaskError("the masks do not cancel")
    return y[: n - ZEROS].double() / 2.0 ** fractional_bits(len(vectors))
