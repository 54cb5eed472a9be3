r"""Sums over sites that the server can read only whole.

Every pair of sites agrees on a secret (X25519 and HKDF), of which :class:`equipoise.flower.secagg.masks.SecureSum` makes masks that
cancel in the sum, and every site adds a mask of its own. A sum takes two exchanges:

.. math:: y_k = \operatorname{round}(2^{bits} x_k) + \sum_{j < k} r_{jk} - \sum_{j > k} r_{jk} + b_k \pmod{2^{64}}, \qquad
    \sum_k x_k = 2^{-bits} \Big( \sum_k y_k - \sum_k b_k \Big)

1. The sites send their **masked vectors** y_k (:func:`masked_vector`), and with them shares of the seed of b_k, each encrypted for another
   site. If a vector is missing, the others are asked again for a sum without it.
2. Once all are there, the sites send the seeds of their own masks b_k, and so **unmask** this sum (:func:`own_seed`). The seed of a
   site that has vanished is put together from the shares of :func:`threshold` others (:func:`shares_of`).

Without the second step a masked vector that comes late, after the others were asked again, would give the server two sums whose
difference is that site. A site helps to unmask one sum per round and phase, the same sites, weights and model included, and never takes
part twice under one number. As two sums need more than all sites together can give, no server gets both. After Bonawitz et al., CCS
2017, Section 4, with masks of pairs that are never recovered; shares and their encryption are those of Flower's SecAgg+.

Nothing here asks a network: these are the functions of a site, whose memory is a file, and of the server, which has none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from cryptography.fernet import InvalidToken
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt
from torch import Tensor

from equipoise.flower.secagg.masks import WORD, SecureSum, added
from equipoise.system.files import locked, make_private, write_atomically

Result = TypeVar("Result")
SHARE = 4 + 48  # bytes of a share of a seed
VALUES, MODEL = "values", "model"  # what is summed: numbers that give the weights, and weighted updates


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
    model : SHA-256 of the model from which the sites train in this round.
    setting : SHA-256 of all else that they train with: the experiment, its rounds, what the server tells every client.
    sites : the names of those who take part, sorted; two at least.
    limit : numbers lie in [-limit, limit].
    inputs : what the sites must know to make their vectors, the same for all: a server that gave one of them something else,
        to have it alone in the sum, would find that the masks do not cancel.
    """

    experiment: str
    number: int
    round: int
    phase: str
    model: str
    setting: str
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
    def told(self) -> str:
        """SHA-256 of all but the number: what is summed, over whom, with which weights, from which model."""
        fields = {key: x for key, x in asdict(self).items() if key != "number"}
        return sha256(json.dumps(fields, sort_keys=True).encode())

    @property
    def wide(self) -> bool:
        """Whether it is of one integer in several words (:func:`equipoise.flower.secagg.masks.wide`), and not of numbers."""
        return self.phase == VALUES

    @property
    def secure(self) -> SecureSum:
        """The sum over positions in ``sites``, at the finest resolution that 64 bits allow."""
        bits = WORD - math.frexp(self.limit * len(self.sites))[1]
        return SecureSum(tuple(range(len(self.sites))), self.label, self.limit, bits)


class Opened(NamedTuple):
    """A sum that was unmasked."""

    round: int
    sites: tuple[str, ...]
    told: str

    @staticmethod
    def read(fields: Any) -> Opened:
        """From JSON.

        Raises
        ------
        ValueError, TypeError : the fields are of something else.
        """
        t, sites, told = fields
        named = all(isinstance(name, str) for name in sites) and list(sites) == sorted(set(sites)) and len(sites) > 1
        if not isinstance(t, int) or not isinstance(told, str) or not named:
            raise ValueError("not a sum that was unmasked")
        return Opened(t, tuple(sites), told)


# keys
@dataclass(frozen=True)
class Memory:
    """What a site remembers of an experiment's masks, in a file that only its owner can read.

    ``key`` is its private key and ``pinned`` the others' public ones, ``sizes`` the samples of all sites of the experiment, as they were
    at first sight. ``number``, ``label`` and ``seed`` are of the last sum it took part in, ``opened`` has for each phase the round, the
    sites and :attr:`Sum.told` of the last sum that it helped to unmask, and ``weights`` the weights by which the site has multiplied
    its updates, by round.
    """

    key: str
    pinned: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    number: int = 0
    label: str = ""
    seed: str = ""
    opened: Mapping[str, Opened] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, str]] = field(default_factory=dict)
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


def usable(key: str) -> bool:
    """Whether a public key can be used: with some, such as 0, every secret would be known."""
    try:
        shared_secret(secrets.token_bytes(32).hex(), key, "")
    except MaskError:
        return False
    return True


def fingerprint(keys: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """A short number of all sites' public keys and samples. If it is the same at all sites, nothing was replaced on the way."""
    found = sha256(json.dumps([dict(keys), dict(sizes)], sort_keys=True).encode())
    return "-".join(found[k : k + 4] for k in range(0, 32, 4))


def comparison(keys: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """What the owners of the sites should compare."""
    return (
        f"masked sums of {', '.join(sorted(keys))}, fingerprint {fingerprint(keys, sizes)}. It must be the same everywhere: compare it "
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


def registered(memory: Memory, sizes: Mapping[str, int], site: str, size: int) -> Memory:
    """With the samples of all sites, from which the weights follow.

    Raises
    ------
    MaskError : they are not those of before, or not this site's own.
    """
    if not all(type(n) is int and n >= 1 for n in sizes.values()):
        raise MaskError("The sizes of all sites must be whole numbers >= 1. Nothing was sent.")
    if sizes.get(site) != size:
        raise MaskError(f"{site} has {size} samples, and the others are told {sizes.get(site)}. Nothing was sent.")
    if memory.sizes and dict(memory.sizes) != dict(sizes):
        raise MaskError(
            f"The number of samples of a site has changed since {site} first heard of it, and with it the weights. Nothing was sent."
        )
    return replace(memory, sizes=dict(sizes))


def first_told(memory: Memory, asked: Sum) -> Memory:
    """With what the site is told for a sum. It is kept even if the site then refuses, so that refusals under other numbers tell nothing.

    Raises
    ------
    MaskError : it was told something else in this round.
    """
    found = sha256(json.dumps(dict(asked.inputs), sort_keys=True).encode())
    t, before = memory.inputs.get(asked.phase, (-1, ""))
    if asked.round < t or (asked.round == t and found != before):
        raise MaskError(f"Other weights were told in round {t}: several sums of one round could show one site.")
    return replace(memory, inputs={**memory.inputs, asked.phase: (asked.round, found)})


class Masked(NamedTuple):
    """What a site sends: its vector, and the shares of its seed.

    ``vector`` [n] are 64-bit integers, uniform whatever the numbers are; ``shares`` are encrypted, by the names of those for whom they
    are; ``hashes`` are the SHA-256 of the seed (by the site's own name) and of every share, by which the server knows a wrong one.
    """

    vector: Tensor
    shares: Mapping[str, str]
    hashes: Mapping[str, str]


def masked_vector(memory: Memory, asked: Sum, site: str, values: Tensor, least: int = 2) -> tuple[Memory, Masked]:
    """What a site sends of its ``values`` [n]: numbers, or, if the sum is :attr:`Sum.wide`, the words of one integer.

    ``least`` is how many sites the owner of this one wants in a sum, >= 2.

    Raises
    ------
    MaskError : the number of the sum was used; the round lies before one that was unmasked; it is one that was unmasked
        for other sites, with other weights or another model; a site whose key is not known; too few sites; numbers out of range.
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
    once(memory, asked, site)
    if not asked.wide and not bool((values.abs() <= asked.limit).all()):
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
    y = values if asked.wide else asked.secure.encoded(values)
    y = asked.secure.hidden(k, y, pairs, chacha, wide=asked.wide)
    y = added(y, chacha(seed, asked.label, len(y)), wide=asked.wide)
    shares = create_shares(seed, threshold(len(asked.sites)), len(asked.sites))
    hidden = {asked.sites[j]: encrypt(_lock(secret, asked), shares[j]).decode() for j, secret in pairs.items()}
    hashes = {site: sha256(seed), **{asked.sites[j]: sha256(shares[j]) for j in pairs}}
    return replace(memory, number=asked.number, label=asked.label, seed=seed.hex()), Masked(y, hidden, hashes)


def once(memory: Memory, asked: Sum, site: str) -> None:
    """Require that a sum is the one that was unmasked in its round and phase, if one was.

    Raises
    ------
    MaskError : it is not.
    """
    last = memory.opened.get(asked.phase)
    if last is None or asked.round > last.round or (asked.round, asked.told) == (last.round, last.told):
        return
    found = f"{site} was asked for round {asked.round} over {', '.join(asked.sites)}, and unmasked round {last.round}"
    if (asked.round, asked.sites) == (last.round, last.sites):
        raise MaskError(f"{found} with another model, or other weights: several sums of one round could show one site.")
    raise MaskError(
        f"{found} over {', '.join(last.sites)}: the difference of two sums could show one site. Resume with the same sites."
    )


def threshold(n: int) -> int:
    """How many of ``n`` sites must help to unmask a sum: all but a third. Two sums of a round would take more than ``n``."""
    return max(2, n - n // 3)


def sha256(x: bytes) -> str:
    """The digest, hexadecimal."""
    return hashlib.sha256(x).hexdigest()


def _lock(secret: bytes, asked: Sum) -> bytes:
    """The key of the shares that two sites exchange in a sum."""
    return base64.urlsafe_b64encode(hmac.digest(secret, f"share {asked.label}".encode(), "sha256"))


def own_seed(memory: Memory, asked: Sum, site: str) -> tuple[Memory, bytes]:
    """The seed of the site's own mask in the last sum that it took part in.

    From then on the site takes part in no other sum of this round and phase.

    Raises
    ------
    MaskError : it is not the last sum, or another one of this round was unmasked.
    """
    if memory.label != asked.label:
        raise MaskError(f"Sum number {asked.number} cannot be unmasked: the last one here is number {memory.number}.")
    once(memory, asked, site)
    this = Opened(asked.round, asked.sites, asked.told)
    return replace(memory, opened={**memory.opened, asked.phase: this}), bytes.fromhex(memory.seed)


def shares_of(memory: Memory, asked: Sum, site: str, hidden: Mapping[str, str]) -> tuple[Memory, dict[str, bytes]]:
    """The shares of the seeds of sites that have vanished, from what they encrypted for this one; it unmasks the sum, as :func:`own_seed` does.

    Raises
    ------
    MaskError : as :func:`own_seed`; or a site is named that is not another one of the sum. A share that was not encrypted for this site and
        this sum is left out.
    """
    memory, _ = own_seed(memory, asked, site)
    found = {}
    for name, text in hidden.items():
        if name not in asked.sites or name == site:
            raise MaskError(f"A share of {name} was asked for, which is no other site of the sum.")
        lock = _lock(shared_secret(memory.key, memory.pinned[name], asked.experiment), asked)
        try:
            found[name] = decrypt(lock, text.encode())
        except (InvalidToken, AttributeError, TypeError, ValueError):
            continue  # it was not made by that site, or not for this one and this sum
    return memory, found


# its files
def remembered(path: Path) -> Memory:
    """A site's memory, as :func:`change` finds it."""
    return change(path, lambda memory: (memory, memory))


def change(path: Path, what: Callable[[Memory], tuple[Memory, Result]]) -> Result:
    """Change a site's memory, which is made with a new key where there is none.

    It is on disk before the result is known, so no crash makes a site forget what it sent.

    Raises
    ------
    MaskError : the file is damaged, or can be read by others.
    """
    make_private(path.parent)
    with locked(path.with_suffix(".lock"), wait=True):
        path.with_suffix(".lock").chmod(0o600)
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
        opened = {phase: Opened.read(fields) for phase, fields in held.pop("opened").items()}
        held["inputs"] = {phase: (int(t), str(told)) for phase, (t, told) in held["inputs"].items()}
        return Memory(**held, opened=opened)
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
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict) or not all(isinstance(key, str) for key in known.values()):
        raise MaskError(f"The file of peers, {path.name}, is not there or not of the form {{site: public key}}.")
    return known


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
        found: bytes = combine_shares(list(shares))
    except Exception:  # shares of any form may have been made to break it
        found = b""
    if sha256(found) != seed:
        raise MaskError("has sent shares that are not of its seed")
    return found


def total(asked: Sum, vectors: Mapping[str, Tensor], seeds: Mapping[str, bytes]) -> Tensor:
    """The sum [n] from every site's masked vector and the seed of its own mask: float64, or, if it is :attr:`Sum.wide`, words.

    Raises
    ------
    DropOutError : a masked vector is missing.
    KeyError : a seed is missing.
    """
    y = {k: vectors[name] for k, name in enumerate(asked.sites) if name in vectors}
    for k in list(y)[:1]:
        y[k] = y[k].clone()
        for name in vectors:
            y[k] = added(y[k], chacha(seeds[name], asked.label, len(y[k])), -1, wide=asked.wide)
    return asked.secure.total(y, wide=asked.wide)
