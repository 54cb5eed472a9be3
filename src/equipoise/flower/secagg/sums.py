r"""Sums over sites that the server can read only whole.

All that a site's part of a sum depends on stands in one message, the same to every site, whose hash is the **transcript**
(:func:`transcript`). Every pair of sites makes its mask from the secret of its keys and the transcript, so that masks of sites
that were told different things do not cancel, and every site adds a mask of its own:

.. math:: y_k = \operatorname{round}(2^{bits} x_k) + \sum_{j < k} r_{jk} - \sum_{j > k} r_{jk} + b_k \pmod{2^{64}}, \qquad
    \sum_k x_k = 2^{-bits} \Big( \sum_k y_k - \sum_k b_k \Big)

1. The sites send their **masked vectors** y_k (:func:`masked_vector`), and with them shares of the seed of b_k, each encrypted
   for another site. If a vector is missing, the others are asked for another sum, without it.
2. Once all are there, the sites send the seeds of their own masks b_k, and so **unmask** this sum (:func:`own_seed`). The seed
   of a site that has vanished is put together from the shares of :func:`threshold` others (:func:`shares_of`).

A site helps to unmask one sum per round, takes part in no two sums of a round that others could both unmask, and never twice under one number. So a
vector that comes late is of no use. After Bonawitz et al., CCS 2017, Section 4, with masks of pairs
that are never recovered. Keys are X25519, HKDF-SHA256 and ChaCha20 of the package ``cryptography``; shares and their encryption
are those of Flower's SecAgg+.

Nothing here asks a network: these are the functions of a site, whose memory is a file, and of the server, which has none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
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
from equipoise.system.files import make_private, write_atomically
from equipoise.system.seals import read_json
from equipoise.system.version import __version__

log = logging.getLogger(__name__)

Result = TypeVar("Result")
LIMIT = 2.0**20  # numbers of a masked sum lie in [-LIMIT, LIMIT]
SHARE = 4 + 48  # bytes of a share of a seed
ZEROS = 2  # at the end of every vector: masks that do not cancel leave something else there, but once in 2^128 times


class MaskError(RuntimeError):
    """A site refuses to take part in a sum. The text contains no data of the site and may be sent."""


def transcript(fields: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> str:
    """SHA-256 of a whole message, with the version of the code: what a masked answer depends on."""
    contents = {name: [str(x.dtype), list(x.shape), digest(x)] for name, x in (tensors or {}).items()}
    return sha256(json.dumps([__version__, fields, contents], sort_keys=True).encode())


def model_digest(x: Tensor) -> str:
    """SHA-256 of a model, whatever the sign of its zeros."""
    return digest(x + 0.0)


def sha256(x: bytes) -> str:
    """The digest, hexadecimal."""
    return hashlib.sha256(x).hexdigest()


def fractional_bits(n: int) -> int:
    """How many bits numbers of a sum over ``n`` sites have after the point: the most that 64 bits leave."""
    return 63 - math.frexp(LIMIT * n)[1]


def unit(weights: Mapping[str, float]) -> float:
    """The power of two that the weights of a sum are divided by, 1 for equal ones: its numbers are then about as large as those of updates."""
    return 2.0 ** (math.frexp(sum(weights.values()) / len(weights))[1] - 1)


# keys
def public_key(private: str) -> str:
    """The public key of a private one, both hexadecimal."""
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(private)).public_key().public_bytes_raw().hex()


def pair_keys(private: str, other: str, told: str) -> tuple[bytes, bytes]:
    """What two sites share under a transcript: the key of their mask, and that of their encrypted shares.

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
    info = json.dumps(["equipoise masked sums", told, *sorted((public_key(private), other))]).encode()
    both = HKDF(algorithm=SHA256(), length=64, salt=None, info=info).derive(secret)
    return both[:32], base64.urlsafe_b64encode(both[32:])


def is_public_key(key: str) -> bool:
    """Whether a text can be used as a public key: with some, such as 0, every secret would be known."""
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
    """What the owners of the sites should compare: if the fingerprint is the same at all sites, nothing was replaced on the way."""
    hashed = sha256(json.dumps([dict(keys), dict(sizes)], sort_keys=True).encode())
    fingerprint = "-".join(hashed[k : k + 4] for k in range(0, 32, 4))
    return (
        f"masked sums of {', '.join(sorted(keys))}, fingerprint {fingerprint}. It must be the same everywhere: compare it "
        "with the other sites in a way that does not lead through the server."
    )


# what a site remembers
class Opened(NamedTuple):
    """A sum that a site helped to unmask: its round, the transcript of the training, and who took part."""

    round: int
    training: str
    sites: tuple[str, ...]

    @staticmethod
    def read(fields: Any) -> Opened | None:
        """From JSON.

        Raises
        ------
        ValueError, TypeError : the fields are of something else.
        """
        if fields is None:
            return None
        t, training, sites = fields
        named = all(isinstance(name, str) for name in sites) and list(sites) == sorted(set(sites)) and len(sites) > 1
        if type(t) is not int or not isinstance(training, str) or not named:
            raise ValueError("not a sum that was unmasked")
        return Opened(t, training, tuple(sites))


@dataclass(frozen=True)
class Memory:
    """What a site remembers of an experiment's masks, in a file that only its owner can read.

    ``key`` is its private key; ``keys`` and ``sizes`` are the others' public keys and samples, as they were at first sight.
    ``number``, ``told`` (the transcript), ``asked`` and ``seed`` are of the last sum that it took part in, ``sets`` has who took part in all sums
    of that round, ``opened`` is the last sum that it helped to unmask, and ``models`` has the round of every model of a sum. ``weights`` has,
    for the last rounds of masked scores, the two sums that the site was told and its weight. ``receipts`` are of its states after the last
    sum that it helped to unmask and after the last that it took part in.
    """

    key: str
    keys: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    number: int = 0
    told: str = ""
    asked: Opened | None = None
    sets: Sequence[Sequence[str]] = ()
    seed: str = ""
    opened: Opened | None = None
    models: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, Sequence[float]] = field(default_factory=dict)
    receipts: Sequence[Sequence[Any]] = ()


class Sum(NamedTuple):
    """A sum that a site is asked for: the fields of the message, which are the same to all sites, and its transcript.

    ``sites`` are those who take part, sorted; ``sizes`` and ``keys`` are the samples and public keys of all in the experiment. ``scores``
    are summed in place of updates where it is true.
    """

    number: int
    round: int
    training: str
    sites: tuple[str, ...]
    sizes: Mapping[str, int]
    keys: Mapping[str, str]
    told: str
    scores: bool

    @staticmethod
    def read(fields: Mapping[str, Any], experiment: Mapping[str, Any]) -> Sum:
        """From a message, of which every field enters the transcript.

        Raises
        ------
        MaskError : it does not describe a sum.
        """
        number, t, training = fields.get("number"), fields.get("t"), fields.get("training")
        sizes, keys, sites = fields.get("sizes"), fields.get("keys"), fields.get("sites")
        if type(number) is not int or type(t) is not int or not isinstance(training, str):
            raise MaskError("The number, the round or the training of a sum is not one.")
        if not isinstance(sizes, dict) or not isinstance(keys, dict) or sizes.keys() != keys.keys():
            raise MaskError("A masked sum needs the samples and the public keys of all sites.")
        if not all(type(n) is int and 1 <= n < 2**53 for n in sizes.values()):
            raise MaskError("The samples of all sites must be whole numbers >= 1.")
        if not all(isinstance(key, str) for key in keys.values()):
            raise MaskError("The public keys of all sites must be text.")
        if not isinstance(sites, list) or len(sites) < 2 or sites != sorted(set(sites) & keys.keys()):
            raise MaskError("A masked sum needs at least two sites, sorted, each named once, with samples and key.")
        told = transcript({**fields, "experiment": dict(experiment)})
        return Sum(number, t, training, tuple(sites), sizes, keys, told, fields.get("scores") is True)

    @property
    def members(self) -> dict[str, int]:
        """The samples of those who take part."""
        return {name: self.sizes[name] for name in self.sites}


class Masked(NamedTuple):
    """What a site sends: its vector, and the shares of its seed.

    ``vector`` [n] are 64-bit integers, uniform whatever the numbers are; ``shares`` are encrypted, by the names of those for whom they
    are; ``hashes`` are the SHA-256 of the seed (by the site's own name) and of every share, by which the server knows a wrong one.
    """

    vector: Tensor
    shares: Mapping[str, str]
    hashes: Mapping[str, str]


# at a site
def check_sum(memory: Memory, asked: Sum, site: str, size: int, peers: Mapping[str, str] | None, least: int) -> Memory:
    """Require that a site may take part in a sum; returns its memory with the keys and samples of the others.

    Parameters
    ----------
    size : the site's own samples.
    peers : keys that did not come from the server; nobody else is let in. None takes those that the server relays.
    least : how many sites the owner of this one wants in a sum, >= 2.

    Raises
    ------
    MaskError : the number was used; the round lies before one that was unmasked, or is one that was unmasked for other sites or
        after other training; it and another sum of the round could both be unmasked; a key or a number of samples is not the one
        seen before, or not of ``peers``, or not this site's own; too few sites.
    """
    if asked.keys.get(site) != public_key(memory.key):
        raise MaskError(
            f"The key that is shown to the others as {site}'s is not its own. Somebody stands between the sites."
        )
    if asked.sizes[site] != size:
        raise MaskError(f"{site} has {size} samples, and the others are told {asked.sizes[site]}. Nothing was sent.")
    for name in asked.keys:
        if peers is not None and name != site and peers.get(name) != asked.keys[name]:
            what = "is another one there" if name in peers else "is not there"
            raise MaskError(f"The key of {name} {what}, in the file of peers of {site}. Nothing was sent.")
        if memory.keys.get(name, asked.keys[name]) != asked.keys[name]:
            raise MaskError(
                f"The key of {name} has changed since {site} first saw it. If {name} lost its state-dir, start a new experiment; "
                "if not, somebody stands between the sites. Nothing was sent."
            )
        if memory.sizes.get(name, asked.sizes[name]) != asked.sizes[name]:
            raise MaskError(f"The samples of {name} have changed since {site} first heard of them. Nothing was sent.")
    if site not in asked.sites:
        raise MaskError(f"{site} was asked for its part of a sum that it is not in.")
    check_least(len(asked.sites), least, site)
    if asked.number <= memory.number:
        raise MaskError(
            f"{site} was asked for sum number {asked.number} and has taken part in number {memory.number}: masks are never used twice."
        )
    check_round(memory, asked.round, asked.training, asked.sites, site)
    for sites in _sets(memory, asked.round):
        if threshold(len(sites)) + threshold(len(asked.sites)) <= len({*sites, *asked.sites}):
            raise MaskError(
                f"{site} was asked for a sum over {len(asked.sites)} sites after one over {len(sites)} in the same round: both could be "
                "unmasked. Run again when more of them are back."
            )
    return replace(memory, keys={**memory.keys, **asked.keys}, sizes={**memory.sizes, **asked.sizes})


def check_least(n: int, least: int, site: str) -> None:
    """Require that a sum is over as many sites as a site wants in one.

    Raises
    ------
    MaskError : it is not.
    """
    if n < least:
        raise MaskError(
            f"A sum over {n} sites was asked for, and {site} takes part in sums over {least} at least (least-sites in its node-config, and "
            "one more for each report as long as an update)."
        )


def check_round(memory: Memory, t: int, training: str, sites: tuple[str, ...] | None, site: str) -> None:
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
            f"{site} was asked for round {t} and unmasked round {last.round}, after other training: several sums of one round could show one site."
        )
    raise MaskError(
        f"{site} was asked for round {t} over {', '.join(sites or ())}, and unmasked it over {', '.join(last.sites)}: the difference of two "
        "sums could show one site. Resume with the same sites."
    )


def check_receipt(memory: Memory, receipt: Sequence[Any], site: str) -> None:
    """Require that a site goes on from its own last state: as in a server's choice of states each could single a site out.

    Raises
    ------
    MaskError : it is another one.
    """
    first = memory.opened is None and receipt[0] == -1
    if not first and list(receipt) not in [list(own) for own in memory.receipts]:
        raise MaskError(f"{site} was told to go on from another state than its last one.")


def check_model(memory: Memory, model: str, t: int, site: str) -> None:
    """Require that a model, by its digest, was in no sum of another round.

    Raises
    ------
    MaskError : it was.
    """
    if (before := memory.models.get(model, t)) != t:
        raise MaskError(
            f"{site} took part in round {before} with the very model of round {t}: the difference of the two sums could show one site. "
            "If training changes the model no more, it is complete."
        )


def _sets(memory: Memory, t: int) -> list[list[str]]:
    """Who took part in each sum of a round so far."""
    return [list(sites) for sites in memory.sets] if memory.asked is not None and memory.asked.round == t else []


def masked_vector(
    memory: Memory, asked: Sum, site: str, values: Tensor, model: str, receipt: Sequence[Any] = ()
) -> tuple[Memory, Masked]:
    """What a site sends of its ``values`` [n], and its memory with it; ``model`` is the digest of what the round trained from.

    In place of values that are not finite, or outside [-LIMIT, LIMIT], it sends zeros: a refusal would tell the server so of a single site.
    """
    x = torch.cat([values.double(), torch.zeros(ZEROS, dtype=torch.float64)])
    if not bool((x.abs() <= LIMIT).all()):
        log.error(
            "%s sends zeros in round %d: of its training there are no numbers within %g", site, asked.round, LIMIT
        )
        x.zero_()
    y = (x * 2.0 ** fractional_bits(len(asked.sites))).round().long()
    pairs = {name: pair_keys(memory.key, asked.keys[name], asked.told) for name in asked.sites if name != site}
    for name, (mask, _) in pairs.items():
        y.add_(keystream(mask, len(y)), alpha=1 if name < site else -1)
    seed = secrets.token_bytes(32)
    y += keystream(seed, len(y))
    shares = dict(zip(asked.sites, create_shares(seed, threshold(len(asked.sites)), len(asked.sites)), strict=True))
    hidden = {name: encrypt(lock, shares[name]).decode() for name, (_, lock) in pairs.items()}
    hashes = {site: sha256(seed), **{name: sha256(shares[name]) for name in pairs}}
    sets = _sets(memory, asked.round)
    memory = replace(
        memory,
        number=asked.number,
        told=asked.told,
        asked=Opened(asked.round, asked.training, asked.sites),
        sets=[*(before for before in sets if before != list(asked.sites)), list(asked.sites)],
        models={**memory.models, model: asked.round},
        seed=seed.hex(),
        receipts=[*(memory.receipts[:1] if memory.opened else ()), receipt],
    )
    return memory, Masked(y, hidden, hashes)


def threshold(n: int) -> int:
    """How many of ``n`` sites must help to unmask a sum: all but a third. Two sums that differ by one site would take more than ``n``."""
    return max(2, n - n // 3)


def own_seed(memory: Memory, told: str, site: str) -> tuple[Memory, bytes]:
    """The seed of the site's own mask in the last sum that it took part in, by its transcript.

    From then on the site takes part in no other sum of this round.

    Raises
    ------
    MaskError : it is not the last sum, or another one of this round was unmasked.
    """
    if memory.asked is None or memory.told != told:
        raise MaskError(
            f"A sum that is not the last one of {site} cannot be unmasked: the last is number {memory.number}."
        )
    check_round(memory, *memory.asked, site)
    return replace(memory, opened=memory.asked, receipts=memory.receipts[-1:]), bytes.fromhex(memory.seed)


def shares_of(memory: Memory, told: str, site: str, hidden: Mapping[str, str]) -> tuple[Memory, dict[str, bytes]]:
    """The shares of the seeds of sites that have vanished, from what they encrypted for this one; it unmasks the sum, as :func:`own_seed` does.

    Raises
    ------
    MaskError : as :func:`own_seed`; or a site is named that is not another one of the sum. A share that was not encrypted for this site and
        this sum is left out.
    """
    memory, _ = own_seed(memory, told, site)
    shares = {}
    for name, text in hidden.items():
        if memory.asked is None or name not in memory.asked.sites or name == site:
            raise MaskError(f"A share of {name} was asked for, which is no other site of the sum.")
        try:
            shares[name] = decrypt(pair_keys(memory.key, memory.keys[name], told)[1], text.encode())
        except (InvalidToken, AttributeError, TypeError, ValueError):
            continue  # it was not made by that site, or not for this one and this sum
    return memory, shares


# its files
def change_memory(path: Path, what: Callable[[Memory], tuple[Memory, Result]]) -> Result:
    """Change a site's memory, which is made with a new key where there is none.

    It is on disk before the result is known, so no crash makes a site forget what it sent. Two must not change it at once.

    Raises
    ------
    MaskError : the file is damaged, or can be read by others.
    """
    make_private(path.parent)
    before = _read(path)
    after, result = what(before or Memory(secrets.token_bytes(32).hex()))
    if after != before:
        write_atomically(path, json.dumps(asdict(after), indent=1), private=True)
    return result


def read_memory(path: Path) -> Memory:
    """A site's memory, as :func:`change_memory` passes it."""
    return change_memory(path, lambda memory: (memory, memory))


def _read(path: Path) -> Memory | None:
    if not path.exists():
        return None
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise MaskError(
            f"The file {path.name} with this site's key can be read by others. Let only its owner read it (chmod 600)."
        )
    try:
        fields = read_json(path.read_bytes().decode())
        memory = Memory(**{**fields, "asked": Opened.read(fields["asked"]), "opened": Opened.read(fields["opened"])})
        empty = asdict(Memory(public_key(memory.key), sets=[], receipts=[]))
        if any(type(fields.get(name, x)) is not type(x) for name, x in empty.items() if x is not None):
            raise ValueError("not what was written")
        return memory
    except (ValueError, TypeError, KeyError, AttributeError):
        raise MaskError(
            f"The file {path.name} with this site's key is damaged, or of another version. Put it back; without it the experiment has to "
            "start again, with new keys at every site."
        ) from None


def read_peers(path: Path) -> dict[str, str]:
    """The public keys in a JSON file ``{site: public key}``.

    Raises
    ------
    MaskError : it is not there, or not such a file.
    """
    try:
        peers = read_json(path.read_bytes().decode())
    except (OSError, ValueError):
        peers = None
    if not isinstance(peers, dict) or not all(isinstance(key, str) for key in peers.values()):
        raise MaskError(f"The file of peers, {path.name}, is not there or not of the form {{site: public key}}.")
    return peers


# on the server
def recovered(shares: Sequence[bytes], seed: str) -> bytes:
    """The seed of a site that has vanished, from :func:`threshold` shares; ``seed`` is its SHA-256.

    Raises
    ------
    MaskError : the site has sent shares of something else.
    """
    try:
        if any(len(share) != SHARE for share in shares):
            raise ValueError("not shares of a seed")
        combined: bytes = combine_shares(list(shares))
    except Exception:  # shares of any form may have been made to break it
        combined = b""
    if sha256(combined) != seed:
        raise MaskError("has sent shares that are not of its seed")
    return combined


def total(vectors: Mapping[str, Tensor], seeds: Mapping[str, bytes]) -> Tensor:
    """The sum [n], float64, from every site's masked vector and the seed of its own mask.

    Raises
    ------
    MaskError : masks are left in it, because the sites were told different things, or one has sent something else.
    """
    n = len(next(iter(vectors.values())))
    y = torch.zeros(n, dtype=torch.int64)
    for name, vector in vectors.items():
        y += vector
        y -= keystream(seeds[name], n)
    if bool(y[n - ZEROS :].any()):
        raise MaskError("masks do not fit each other")
    return y[: n - ZEROS].double() / 2.0 ** fractional_bits(len(vectors))
