r"""Sums over sites that the server can read only whole.

Everything that a site's part of a sum depends on is in one message, the same to every site, whose hash is the **transcript**
(:func:`transcript`). Every pair of sites makes its mask from the secret of its keys and the transcript,
so masks of sites that received different messages do not cancel, and every site adds its own mask:

.. math:: y_k = \operatorname{round}(2^{bits} x_k) + \sum_{j < k} r_{jk} - \sum_{j > k} r_{jk} + b_k \pmod{2^{64}}, \qquad
    \sum_k x_k = 2^{-bits} \Big( \sum_k y_k - \sum_k b_k \Big)

1. The sites send their **masked vectors** y_k (:func:`masked_vector`), and with them shares of the seed of b_k, each encrypted
   for one site. If a vector is missing, the server asks the others for a new sum, without it.
2. Once all have arrived, the sites send the shares that they can read, and so **unmask** this sum (:func:`shares_of`). Those of
   :func:`threshold` sites give every seed, whether its site is still there or not (:func:`seed_of`).

A site helps to unmask one sum per round, takes part in no two sums of a round that others could both unmask, and never twice under one
number. So a late vector is of no use. After Bonawitz et al., CCS 2017, Section 4, with masks of pairs
that are never recovered. Keys are X25519, HKDF-SHA256 and ChaCha20 of the package ``cryptography``; shares and their encryption
are those of Flower's SecAgg+.

Nothing here uses a network: these are the functions of a site, whose memory is a file, and of the server, which has none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from equipoise.federation.fingerprint import digest
from equipoise.flower.internals import combine_shares, create_shares, decrypt, encrypt
from equipoise.system import files, seals
from equipoise.system.errors import SiteError
from equipoise.system.version import __version__

Result = TypeVar("Result")
LIMIT = 2.0**20  # numbers of a masked sum are in [-LIMIT, LIMIT]
SEED = 32  # bytes
ZEROS = 2  # at the end of every vector: masks that do not cancel leave something else there, except once in 2^128 times


# keys, streams of numbers that hide what sites send, and hashes of messages
class MaskError(SiteError):
    """A masked sum that a site refuses, or that cannot be read. The text contains no data of a site and may be sent."""


def transcript(fields: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> str:
    """SHA-256 of a whole message, with the version of the code: a masked answer depends on it."""
    contents = {name: [str(x.dtype), list(x.shape), digest(x)] for name, x in (tensors or {}).items()}
    return sha256(json.dumps([__version__, fields, contents], sort_keys=True).encode())


def model_digest(x: Tensor) -> str:
    """SHA-256 of a model, whatever the sign of its zeros."""
    return digest(x + 0.0)


def sha256(x: bytes) -> str:
    """The digest, hexadecimal."""
    return hashlib.sha256(x).hexdigest()


def public_key(private: str) -> str:
    """The public key of a private one, both hexadecimal."""
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(private)).public_key().public_bytes_raw().hex()


def pair_keys(private: str, other: str, hashed: str) -> tuple[bytes, bytes]:
    """The two keys that two sites share under a transcript: that of their mask, and that of their encrypted shares.

    Raises
    ------
    MaskError : ``other`` is not a public key.
    """
    try:
        secret = X25519PrivateKey.from_private_bytes(bytes.fromhex(private)).exchange(
            X25519PublicKey.from_public_bytes(bytes.fromhex(other))
        )
    except ValueError:
        raise MaskError(f"{other[:16]!r}... is not the public key of a site.") from None
    info = json.dumps(["equipoise masked sums", hashed, *sorted((public_key(private), other))]).encode()
    both = HKDF(algorithm=SHA256(), length=64, salt=None, info=info).derive(secret)
    return both[:32], base64.urlsafe_b64encode(both[32:])


def is_public_key(key: str) -> bool:
    """Whether a text can be used as a public key: with some, such as 0, every secret would be public."""
    try:
        pair_keys(secrets.token_bytes(32).hex(), key, "")
    except MaskError:
        return False
    return True


def keystream(key: bytes, n: int) -> Tensor:
    """ChaCha20 under a key that is used once, as ``n`` 64-bit integers."""
    out = bytearray(8 * n)
    Cipher(ChaCha20(key, bytes(16)), None).encryptor().update_into(bytes(8 * n), out)
    return torch.frombuffer(out, dtype=torch.int64) if n else torch.empty(0, dtype=torch.int64)


def comparison(keys: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """What the owners of the sites should compare: if the fingerprint is the same at all sites, no message was changed on the way."""
    hashed = sha256(json.dumps([dict(keys), dict(sizes)], sort_keys=True).encode())
    fingerprint = "-".join(hashed[k : k + 4] for k in range(0, 32, 4))
    return f"masked sums of {', '.join(sorted(keys))}, fingerprint {fingerprint}. It must be the same at all sites: compare it without the server."


# what a site stores, in a file that only its owner can read
class UnmaskedSum(NamedTuple):
    """A sum that a site helped to unmask: its round, the transcript of the training, and the sites that took part."""

    round: int
    training: str
    sites: tuple[str, ...]


@dataclass(frozen=True)
class SiteMemory:
    """What a site stores of an experiment's masks; the names of the fields are those in its file.

    ``key`` is its private key; ``keys`` and ``sizes`` are the others' public keys and samples, as they were at first sight, and ``run`` is the
    hash of the run's configuration then. ``number``, ``told`` (the transcript), ``used`` (the hash of what it trained by) and ``asked``
    are of the last sum that it took part in, ``sets`` has the sites of all sums of that round, ``opened`` is the last sum that it
    helped to unmask, and ``models`` has the round of every model and training of a sum. ``receipts`` are of its states after the last sum that it helped
    to unmask and after the last that it took part in.
    """

    key: str
    keys: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    number: int = 0
    told: str = ""
    used: str = ""
    asked: UnmaskedSum | None = None
    sets: Sequence[Sequence[str]] = ()
    opened: UnmaskedSum | None = None
    models: Mapping[str, int] = field(default_factory=dict)
    receipts: Sequence[Sequence[Any]] = ()


def change_memory(path: Path, change: Callable[[SiteMemory], tuple[SiteMemory, Result]]) -> Result:
    """Change a site's memory, which is created with a new key if it is missing.

    It is on disk before the result is returned, so no crash makes a site lose what it sent. Two must not change it at once.

    Raises
    ------
    MaskError : the file is damaged, or can be read by others.
    """
    files.make_private(path.parent)
    before = _read(path)
    after, result = change(before or SiteMemory(secrets.token_bytes(32).hex()))
    if after != before:
        files.write_atomically(path, seals.sealed_json(asdict(after)), private=True)
    return result


def read_memory(path: Path) -> SiteMemory:
    """A site's memory, unchanged."""
    return change_memory(path, lambda memory: (memory, memory))


def _read(path: Path) -> SiteMemory | None:
    if not path.exists():
        return None
    if files.open_to_others(path):
        raise MaskError(f"Others can read {path.name} with this site's key. Let only its owner read it (chmod 600).")
    try:
        memory = seals.typed(SiteMemory, seals.open_json(files.read_regular(path).decode()))
        public_key(memory.key)
        return memory
    except ValueError:
        raise MaskError(
            f"The file {path.name} with this site's key is damaged. Put it back; without it all sites need a new experiment."
        ) from None


def read_peers(path: Path) -> dict[str, str]:
    """The public keys in a JSON file ``{site: public key}``.

    Raises
    ------
    MaskError : it is missing, or not such a file.
    """
    try:
        return seals.typed(dict[str, str], seals.open_json(path.read_bytes().decode()))
    except (OSError, ValueError):
        raise MaskError(
            f"The file of peers, {path.name}, is missing or not of the form {{site: public key}}."
        ) from None


# a sum
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
        match fields:
            case {"number": int(number), "t": int(t), "training": str(training), "sites": [_, _, *_] as sites} if (
                isinstance(sizes := fields.get("sizes"), dict)
                and isinstance(keys := fields.get("keys"), dict)
                and sites == sorted({*map(str, sites)} & keys.keys())
                and sizes.keys() == keys.keys()
                and len({key for key in keys.values() if isinstance(key, str)}) == len(keys)
                and {*map(type, (number, t, *sizes.values()))} == {int}
                and all(1 <= n < 2**53 for n in sizes.values())
            ):
                hashed = transcript({**fields, "experiment": dict(experiment)})
                return SumRequest(number, t, training, tuple(sites), sizes, keys, hashed)
        raise MaskError(
            "A masked sum needs its number, round and training, the samples and different public keys of all sites, and at least two sites, sorted."
        )


class MaskedVector(NamedTuple):
    """What a site sends: its vector, and the shares of its seed.

    ``vector`` [n] are 64-bit integers, uniform for any numbers; ``shares`` are encrypted, by the names of the sites that can read them, and
    ``hashes`` are the SHA-256 of each.
    """

    vector: Tensor
    shares: Mapping[str, str]
    hashes: Mapping[str, str]


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
        raise MaskError(f"The others receive a key of {site} that is not its own: messages are intercepted.")
    if request.sizes[site] != size:
        raise MaskError(f"{site} has {size} samples, and the others receive {request.sizes[site]}. Nothing was sent.")
    for name in request.keys:
        if peers is not None and name != site and peers.get(name) != request.keys[name]:
            raise MaskError(f"The key of {name} is not that in the file of peers of {site}. Nothing was sent.")
        if memory.keys.get(name, request.keys[name]) != request.keys[name]:
            raise MaskError(
                f"The key of {name} changed since {site} first saw it; after a loss, start a new experiment."
            )
        if memory.sizes.get(name, request.sizes[name]) != request.sizes[name]:
            raise MaskError(f"The samples of {name} changed since {site} first saw their number. Nothing was sent.")
    if site not in request.sites:
        raise MaskError(f"{site} was asked for its part of a sum without it.")
    check_least(len(request.sites), least, site)
    if request.number <= memory.number:
        raise MaskError(f"{site} was asked for sum {request.number} after {memory.number}: masks are never used twice.")
    check_round(memory, request.round, request.training, request.sites, site)
    for sites in _sets(memory, request.round):
        if threshold(len(sites)) + threshold(len(request.sites)) <= len({*sites, *request.sites}):
            raise MaskError("Another sum of this round could be unmasked, too. Run again when more sites are back.")
    return replace(memory, keys={**memory.keys, **request.keys}, sizes={**memory.sizes, **request.sizes})


def check_least(n: int, least: int, site: str) -> None:
    """Require that a sum is over enough sites for the owner of a site.

    Raises
    ------
    MaskError : it is not.
    """
    if n < least:
        raise MaskError(f"{site} takes part in sums over at least {least} sites (its least-sites); found {n}.")


def check_round(memory: SiteMemory, t: int, training: str, sites: tuple[str, ...] | None, site: str) -> None:
    """Require that a round follows those of sums, or is the last of them; if it was unmasked, with the same training and, if given, sites.

    Raises
    ------
    MaskError : it is not.
    """
    last, asked = memory.opened, memory.asked
    if last is not None and t <= last.round and ((t, training) != last[:2] or sites not in (None, last.sites)):
        raise MaskError(
            f"{site} unmasked round {last.round} over {', '.join(last.sites)}: another sum of round {t} could reveal one site. Resume with these."
        )
    if asked is not None and t < asked.round:  # its sums are forgotten
        raise MaskError(f"{site} took part in a sum of round {asked.round}, and now in none of round {t}.")


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
            f"The model of round {t} is that of round {before}: two sums of it could reveal one site. If training no longer changes it, it is complete."
        )


def _sets(memory: SiteMemory, t: int) -> list[list[str]]:
    """The sites of each sum of a round so far."""
    return [list(sites) for sites in memory.sets] if memory.asked is not None and memory.asked.round == t else []


def masked_vector(
    memory: SiteMemory, request: SumRequest, site: str, values: Tensor, noted: Mapping[str, Any]
) -> tuple[SiteMemory, MaskedVector]:
    """What a site sends of its ``values`` [n], and its memory after it.

    Parameters
    ----------
    noted : of the training: the digest of its ``model``, the hash of all that it ``used``, and the ``receipt`` of the state after it.

    Raises
    ------
    MaskError : values that are not finite, or outside [-LIMIT, LIMIT]; the site is then in no sum of the round.
    """
    x = torch.cat([values.double(), torch.zeros(ZEROS, dtype=torch.float64)])
    if not bool((x.abs() <= LIMIT).all()):
        raise MaskError(f"The training of {site} gave numbers that no sum holds.")
    y = (x * 2.0 ** fractional_bits(len(request.sites))).round().long()
    memory = replace(memory, told=request.transcript, used=noted["used"])
    pairs = {name: pair_keys(memory.key, request.keys[name], bound(memory))[0] for name in request.sites}
    for name in {*pairs} - {site}:
        y.add_(keystream(pairs[name], len(y)), alpha=1 if name < site else -1)
    seed, n = secrets.token_bytes(SEED), len(pairs)
    y += keystream(seed, len(y))
    shares = dict(zip(pairs, create_shares(seed, threshold(n), n), strict=True))
    hidden = {name: encrypt(_lock(memory, name, site), shares[name]).decode() for name in pairs}
    sets = _sets(memory, request.round)
    memory = replace(
        memory,
        number=request.number,
        asked=UnmaskedSum(request.round, request.training, request.sites),
        sets=[*(before for before in sets if before != list(request.sites)), list(request.sites)],
        models={**memory.models, noted["model"]: request.round, request.training: request.round},
        receipts=[*(memory.receipts[:1] if memory.opened else ()), noted["receipt"]],
    )
    return memory, MaskedVector(y, hidden, {name: sha256(share) for name, share in shares.items()})


def bound(memory: SiteMemory) -> str:
    """What the masks of the last sum depend on: its transcript, and what the site trained by."""
    return transcript({"sum": memory.told, "used": memory.used})


def _lock(memory: SiteMemory, other: str, maker: str) -> bytes:
    """The key of shares between this site and another: one of two, so that no site can be given its own to read."""
    return pair_keys(memory.key, memory.keys[other], bound(memory) + maker)[1]


def threshold(n: int) -> int:
    """The number of ``n`` sites that must help to unmask a sum: two thirds, rounded up. Two sums that differ by one site would need more than ``n``."""
    return max(2, n - n // 3)


def shares_of(
    memory: SiteMemory, hashed: str, site: str, hidden: Mapping[str, str]
) -> tuple[SiteMemory, dict[str, bytes]]:
    """The shares of seeds that the sites of the last sum encrypted for this one; the sum is named by its transcript.

    From then on the site takes part in no other sum of this round.

    Raises
    ------
    MaskError : it is not the last sum, or a different sum of this round was unmasked; or a share of a site that is not in it.
    """
    if memory.asked is None or memory.told != hashed:
        raise MaskError(f"{site} unmasks only its last sum, number {memory.number}, and was asked for a different one.")
    check_round(memory, *memory.asked, site)
    if strange := {*hidden} - {*memory.asked.sites}:
        raise MaskError(f"A share of {min(strange)} was asked for, which is not one of the sites of the sum.")
    shares = {}
    for name, text in hidden.items():
        with suppress(InvalidToken, AttributeError, TypeError, ValueError):  # it was made for another site or sum
            shares[name] = decrypt(_lock(memory, name, name), text.encode())
    return replace(memory, opened=memory.asked, receipts=memory.receipts[-1:]), shares


# on the server
def seed_of(shares: Sequence[bytes]) -> bytes:
    """The seed of a site from :func:`threshold` shares; zeros, which unmask nothing, if they are not shares of one."""
    try:
        seed = bytes(combine_shares(list(shares)))
    except Exception:  # shares of any form may have been made to break it
        seed = b""
    return seed if len(seed) == SEED else bytes(SEED)


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
