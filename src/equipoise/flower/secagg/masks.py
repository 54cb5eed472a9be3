"""Masks of a sum: the keys of sites, the streams of numbers that hide what they send, and the hashes of messages."""

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from equipoise.federation.fingerprint import digest
from equipoise.system.errors import SiteError
from equipoise.system.version import __version__


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
