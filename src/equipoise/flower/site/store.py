"""What a site keeps between messages, in files of its own: the process that answers a message ends with it.

A message says which state it builds on, by the round that it is from and its hash (a receipt). The state before and the
state after the last visit are both kept until the server lets the site train again, and says which of them counts: it may
not have used the answer. The state of the server's last checkpoint is kept, too: it may go back to it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.system import tensor_files
from equipoise.system.files import PART

SALT = "salt"
NOTHING = bytes(32)  # the hash of a state in which there is nothing


class StoreError(RuntimeError):
    """A state that is needed and is not there."""


@dataclass(frozen=True)
class Receipt:
    """The state of a site after round ``t`` (-1: before its first), and the SHA-256 of the file that has it."""

    t: int = -1
    sha256: bytes = NOTHING

    def tensors(self) -> dict[str, Tensor]:
        """As the server keeps it."""
        return {
            "round": torch.tensor(self.t),
            "sha256": torch.frombuffer(bytearray(self.sha256), dtype=torch.uint8),
        }

    @staticmethod
    def of(state: Mapping[str, Tensor]) -> Receipt:
        """From what the server keeps."""
        return Receipt(int(state["round"]), state["sha256"].cpu().numpy().tobytes())

    @property
    def fields(self) -> list[Any]:
        """As messages say it."""
        return [self.t, self.sha256.hex()]

    @staticmethod
    def read(fields: Any) -> Receipt:
        """From a message.

        Raises
        ------
        ValueError : it is none.
        """
        match fields:
            case [int(t), str(digest)] if re.fullmatch("[0-9a-f]{64}", digest):
                return Receipt(t, bytes.fromhex(digest))
        raise ValueError("not a receipt")

    @staticmethod
    def after(t: int, fields: Mapping[str, Any]) -> Receipt | None:
        """Of a site's state after round ``t``, by its answer; None if that does not say."""
        try:
            receipt = Receipt.read(fields.get("receipt"))
        except ValueError:
            return None
        return receipt if receipt.t == t else None


@dataclass(frozen=True)
class Store:
    """The files of one site in one experiment, under ``directory``."""

    directory: Path

    @staticmethod
    def at(base: Path, experiment: str, site: str) -> Store:
        """The store of a site of an experiment under a site's directory for states."""
        return Store(base / _plain(experiment) / _plain(site))

    def recall(self, receipt: Receipt) -> dict[str, Tensor] | None:
        """The state a receipt is of; None where there is nothing in it.

        Raises
        ------
        StoreError : it is missing or damaged.
        """
        if receipt.sha256 == NOTHING:
            return None
        try:
            found = tensor_files.read(self._state(receipt.t), receipt.sha256.hex())
        except (FileNotFoundError, tensor_files.DamagedError) as error:
            what = "missing" if isinstance(error, FileNotFoundError) else "damaged"
            raise StoreError(
                f"its state of round {receipt.t} is {what}. Put the site's state directory back from a copy, "
                "or start a new run."
            ) from None
        return {name: x for name, x in found.items() if name != SALT}

    def settle(self, rounds: Collection[int]) -> None:
        """Remove all states but those of some rounds, and what a killed process left half written."""
        kept = {self._state(t) for t in rounds}
        for old in {*self.directory.glob("state-*.safetensors"), *self.directory.glob(f".state-*{PART}")} - kept:
            old.unlink(missing_ok=True)

    def _state(self, t: int) -> Path:
        return self.directory / f"state-{t:06d}.safetensors"

    def keep(self, t: int, state: Mapping[str, Tensor]) -> Receipt:
        """Write the state after round ``t`` beside the one before it."""
        if not state:
            return Receipt(t)
        salt = torch.frombuffer(
            bytearray(secrets.token_bytes(32)), dtype=torch.uint8
        )  # the hash tells nothing of the state
        return Receipt(t, bytes.fromhex(tensor_files.write(self._state(t), {SALT: salt, **_cloned(state)})))

    # the model that was received last, of which only changes need to be sent
    def base(self, token: str) -> Tensor | None:
        """The vector [n] that was kept under a token; None if it is not there."""
        try:
            return tensor_files.read(self.directory / "base.safetensors").get(token)
        except (FileNotFoundError, tensor_files.DamagedError):
            return None

    def keep_base(self, token: str, vector: Tensor) -> None:
        """Keep a vector [n] in place of the one before."""
        tensor_files.write(self.directory / "base.safetensors", {token: vector.clone()})

    def keep_model(self, state_dict: Mapping[str, Tensor]) -> None:
        """Write the network's state dictionary, for use."""
        tensor_files.write(self.directory / "model.safetensors", _cloned(state_dict))


def _cloned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, of which no two share memory."""
    return {name: x.clone() for name, x in tensors.items()}


def _plain(name: str) -> str:
    """A name as that of a folder; a hash keeps names apart that look the same so."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:80].strip("-")
    return plain if plain == name else f"{plain or 'x'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
