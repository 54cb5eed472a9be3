r"""Sums over sites that the server can read only whole.

Every pair of sites agrees on a secret (X25519 and HKDF), of which :class:`equipoise.flower.secagg.masks.SecureSum` makes masks that
cancel in the sum, and every site adds a mask of its own. A sum takes two exchanges:

.. math:: y_k = \operatorname{round}(2^{bits} x_k) + \sum_{j < k} r_{jk} - \sum_{j > k} r_{jk} + b_k \pmod{2^{64}}, \qquad
    \sum_k x_k = 2^{-bits} \Big( \sum_k y_k - \sum_k b_k \Big)

1. The sites send their **masked vectors** y_k (:func:`masked_vector`). If one is missing, the others are asked again for a sum without it.
2. Once all are there, the sites send the seeds of their own masks b_k, and so **unmask** this sum (:func:`own_seed`).

Without the second step a masked vector that comes late, after the others were asked again, would give the server two sums whose
difference is that site. A site unmasks one set of sites per round, and never twice the same number of a sum. After Bonawitz et
al., CCS 2017, Section 4, with seeds that are sent by their owners and not recovered from the others.

Nothing here asks a network: these are the functions of a site, whose memory is a file, and of the server, which has none.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from equipoise.flower.secagg.masks import WORD, SecureSum
from equipoise.system.files import locked, write_atomically

Result = TypeVar("Result")


class MaskError(RuntimeError):
    """A site refuses to take part in a sum. The text contains no data of the site and may be sent."""


@dataclass(frozen=True)
class Sum:
    """One sum, as the server describes it to every site.

    Parameters
    ----------
    experiment : id of the experiment, the same as long as its keys are.
    number : counts the sums of an experiment, >= 1; no site takes part twice under one number.
    round, phase : what is summed; see :func:`masked_vector` for what a site refuses.
    sites : the names of those who take part, sorted; two at least.
    limit : numbers lie in [-limit, limit].
    inputs : what the sites must know to make their vectors, the same for all: a server that gave one of them something else,
        to have it alone in the sum, would find that the masks do not cancel.
    """

    experiment: str
    number: int
    round: int
    phase: str
    sites: tuple[str, ...]
    limit: float = 2.0**20
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if list(self.sites) != sorted(set(self.sites)) or len(self.sites) < 2:
            raise MaskError(
                f"A masked sum needs at least two sites, sorted, each named once; found {list(self.sites)}."
            )

    @property
    def label(self) -> str:
        """All fields of the sum as bytes, so that masks cancel only between sites with the same description of it."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def secure(self) -> SecureSum:
        """The sum over positions in ``sites``, at the finest resolution that 64 bits allow."""
        bits = WORD - math.frexp(self.limit * len(self.sites))[1]
        return SecureSum(tuple(range(len(self.sites))), self.label, self.limit, bits)


# keys
@dataclass(frozen=True)
class Memory:
    """What a site remembers of an experiment's masks, in a file that only its owner can read.

    ``key`` is its private key and ``pinned`` the others' public ones, as they were at first sight. ``number``, ``label`` and
    ``seed`` are of the last sum it took part in, ``opened`` has for each phase the round and the sites of the last sum that it
    helped to unmask, and ``weights`` the weights by which the site has multiplied its updates, by round.
    """

    key: str
    pinned: Mapping[str, str] = field(default_factory=dict)
    number: int = 0
    label: str = ""
    seed: str = ""
    opened: Mapping[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


def chacha(secret: bytes, label: str, n: int) -> Tensor:
    """ChaCha20 under the key HMAC-SHA256(secret, label), as ``n`` 64-bit integers; five times as fast as SHAKE-256."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    out = bytearray(8 * n)
    key = hmac.digest(secret, label.encode(), "sha256")
    Cipher(ChaCha20(key, bytes(16)), None).encryptor().update_into(bytes(8 * n), out)
    return torch.frombuffer(out, dtype=torch.int64) if n else torch.empty(0, dtype=torch.int64)


def shared_secret(key: str, other: str, experiment: str) -> bytes:
    """The secret of two sites, from the private key of one and the public key of the other (hexadecimal).

    Raises
    ------
    MaskError : ``other`` is not a public key.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    mine = X25519PrivateKey.from_private_bytes(bytes.fromhex(key))
    try:
        agreed = mine.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(other)))
    except ValueError:
        raise MaskError(f"{other[:16]!r}... is not the public key of a site.") from None
    both = sorted((public(key), other))
    info = json.dumps(["equipoise masked sums", experiment, *both]).encode()
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(agreed)


def fingerprint(keys: Mapping[str, str]) -> str:
    """A short number of all sites' public keys. If it is the same at all sites, no key was replaced on the way."""
    digest = hashlib.sha256(json.dumps(dict(keys), sort_keys=True).encode()).hexdigest()
    return "-".join(digest[k : k + 4] for k in range(0, 32, 4))


def comparison(keys: Mapping[str, str]) -> str:
    """What the owners of the sites should compare."""
    return (
        f"masked sums of {', '.join(sorted(keys))}, fingerprint {fingerprint(keys)}. It must be the same everywhere: compare it "
        "with the other sites in a way that does not lead through the server."
    )


def public(key: str) -> str:
    """The public key of a private one, both hexadecimal."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(bytes.fromhex(key)).public_key().public_bytes_raw().hex()


# at a site
def pinned(memory: Memory, keys: Mapping[str, str], site: str, peers: Mapping[str, str] | None = None) -> Memory:
    """With the sites' public keys, as the server relays them.

    Parameters
    ----------
    keys : public keys by the names of the sites, ``site``'s own among them.
    peers : keys that did not come from the server; nobody else is let in.

    Raises
    ------
    MaskError : a key is not the one seen before, or not that of ``peers``, or not this site's own.
    """
    if keys.get(site) != public(memory.key):
        raise MaskError(
            f"The key that is shown to the others as {site}'s is not its own. Somebody stands between the sites."
        )
    for name, key in keys.items():
        if peers is not None and name != site and peers.get(name) != key:
            found = "is another one there" if name in peers else "is not there"
            raise MaskError(f"The key of {name} {found}, in the file of peers of {site}. Nothing was sent.")
        if memory.pinned.get(name, key) != key:
            raise MaskError(
                f"The key of {name} has changed since {site} first saw it. If {name} lost its state-dir, start a new experiment; "
                "if not, somebody stands between the sites. Nothing was sent."
            )
    return replace(memory, pinned={**memory.pinned, **keys})


def masked_vector(memory: Memory, asked: Sum, site: str, values: Tensor, least: int = 2) -> tuple[Memory, Tensor]:
    """What a site sends of its numbers ``values`` [n]: 64-bit integers [n], uniform whatever the numbers are.

    ``least`` is how many sites the owner of this one wants in a sum, >= 2.

    Raises
    ------
    MaskError : the number of the sum was used; the round lies before one that was unmasked; it is one that was unmasked
        for other sites; a site whose key is not known; too few sites; numbers out of range.
    """
    if len(asked.sites) < least:
        raise MaskError(
            f"A sum over {len(asked.sites)} sites was asked for, and {site} takes part in sums over {least} at least."
        )
    if asked.number <= memory.number:
        raise MaskError(
            f"{site} was asked for sum number {asked.number} and has taken part in number {memory.number}: masks are never used twice."
        )
    if strangers := [name for name in (*asked.sites, site) if name not in memory.pinned]:
        raise MaskError(f"{site} does not know the key of {strangers[0]}.")
    last, sites = memory.opened.get(asked.phase, (-1, asked.sites))
    if asked.round < last or (asked.round == last and asked.sites != sites):
        raise MaskError(
            f"{site} was asked for round {asked.round} over {', '.join(asked.sites)}, and unmasked round {last} over {', '.join(sites)}: "
            "the difference of two sums could show one site. Resume with the same sites."
        )
    if not bool((values.abs() <= asked.limit).all()):
        raise MaskError(
            f"{site} has numbers outside the range [-{asked.limit:g}, {asked.limit:g}] of a masked sum. Its training may have diverged."
        )
    k = asked.sites.index(site)
    pairs = {
        j: shared_secret(memory.key, memory.pinned[other], asked.experiment)
        for j, other in enumerate(asked.sites)
        if j != k
    }
    seed = secrets.token_bytes(32)
    y = asked.secure.masked(k, values, pairs, chacha)
    y.add_(chacha(seed, asked.label, len(y)))
    return replace(memory, number=asked.number, label=asked.label, seed=seed.hex()), y


def own_seed(memory: Memory, asked: Sum) -> tuple[Memory, bytes]:
    """The seed of the site's own mask in the last sum that it took part in.

    From then on the site gives no sum over other sites for this round and phase.

    Raises
    ------
    MaskError : it is not the last sum.
    """
    if memory.label != asked.label:
        raise MaskError(f"Sum number {asked.number} cannot be unmasked: the last one here is number {memory.number}.")
    after = replace(memory, opened={**memory.opened, asked.phase: (asked.round, asked.sites)})
    return after, bytes.fromhex(memory.seed)


# its files
def change(path: Path, what: Callable[[Memory], tuple[Memory, Result]]) -> Result:
    """Change a site's memory, which is made with a new key where there is none.

    It is on disk before the result is known, so no crash makes a site forget what it sent.

    Raises
    ------
    MaskError : the file is damaged, or can be read by others.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), wait=True):
        before = _read(path)
        after, result = what(before or Memory(secrets.token_bytes(32).hex()))
        if after != before:
            write_atomically(path, json.dumps(asdict(after), indent=1), private=True)
    return result


def _read(path: Path) -> Memory | None:
    if not path.exists():
        return None
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise MaskError(
            f"The file {path.name} with this site's key can be read by others. Let only its owner read it (chmod 600)."
        )
    try:
        held = json.loads(path.read_bytes())
        opened = {phase: (int(t), tuple(sites)) for phase, (t, sites) in held.pop("opened").items()}
        return Memory(**held, opened=opened)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise MaskError(
            f"The file {path.name} with this site's key is damaged. Put it back; without it the experiment has to start again, "
            "with new keys at every site."
        ) from None


def read_peers(path: Path) -> dict[str, str]:
    """The public keys in a JSON file ``{site: public key}``.

    Raises
    ------
    MaskError : it is not there, or not such a file.
    """
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(key, str) for key in known.values()):
        raise MaskError(f"The file of peers, {path.name}, is not there or not of the form {{site: public key}}.")
    return known


# on the server
def total(asked: Sum, vectors: Mapping[str, Tensor], seeds: Mapping[str, bytes]) -> Tensor:
    """The sum [n], float64, from every site's masked vector and the seed of its own mask.

    Raises
    ------
    DropOutError : a masked vector is missing.
    KeyError : a seed is missing.
    """
    y = {k: vectors[name] for k, name in enumerate(asked.sites) if name in vectors}
    for k in list(y)[:1]:
        y[k] = y[k] - reduce(add, (chacha(seeds[name], asked.label, len(y[k])) for name in vectors))
    return asked.secure.total(y)
