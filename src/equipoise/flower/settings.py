"""What a run across sites is told: the flat table of an app's ``pyproject.toml``, which ``flwr run -c`` overrides."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from equipoise.core.solver import SGD, Adam, Solver


class Settings(BaseModel):
    """Settings of a run across sites; in ``pyproject.toml`` with hyphens: ``batch-size = 32``.

    ``method`` to ``precision`` mean what they mean in a simulation; ``steps`` and ``clip`` are off at 0. ``sites`` names the sites
    in their order, separated by commas (empty: those that are there when at least ``min_sites`` are, in the natural order of
    their names). ``wait`` is how long to wait for them, ``deadline`` how long a site may take for an answer, ``poll`` the time
    between looks, all in seconds. ``run_dir`` is where the run is kept, on the server; a run that is there is gone on with.
    ``secure`` lets the server see sums of the sites' updates only.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    method: str = "fedavg"
    rounds: int = Field(ge=1, default=20)
    seed: int = Field(ge=0, lt=2**63, default=0)
    epochs: int = Field(ge=1, default=1)
    steps: int = Field(ge=0, default=0)
    batch_size: int = Field(ge=1, default=32)
    participation: float = Field(gt=0, le=1, default=1.0)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(gt=0, default=0.01)
    momentum: float = Field(ge=0, lt=1, default=0.0)
    weight_decay: float = Field(ge=0, default=0.0)
    clip: float = Field(ge=0, default=0.0)
    precision: Literal["full", "bf16"] = "full"
    secure: bool = False
    quorum: float = Field(ge=0, le=1, default=0.5)
    min_sites: int = Field(ge=1, default=2)
    sites: str = ""
    wait: float = Field(gt=0, default=600.0)
    deadline: float = Field(gt=0, default=600.0)
    poll: float = Field(gt=0, default=0.3)
    run_dir: str = Field(min_length=1, default="runs/flower")
    threads: int = Field(ge=1, le=1024, default=1)

    @staticmethod
    def of(config: Mapping[str, Any]) -> Settings:
        """From a run's configuration, which may hold keys of the app's own.

        Raises
        ------
        ValueError : naming the key, what was expected and what was found; or a key that looks like a slip.
        """
        own = {name.replace("_", "-") for name in Settings.model_fields}
        for key in config:
            if key not in own and (meant := difflib.get_close_matches(key, own, n=1, cutoff=0.85)):
                raise ValueError(
                    f"Unknown setting {key!r}. Did you mean {meant[0]!r}? A key of your own needs a name less like it."
                )
        known = {key.replace("-", "_"): value for key, value in config.items() if key in own}
        try:
            return Settings(**known)
        except ValidationError as error:
            told = "; ".join(
                f"{str(e['loc'][0]).replace('_', '-')}: {e['msg']}; found {e['input']!r}" for e in error.errors()
            )
            raise ValueError(f"The run's configuration cannot be used: {told}.") from None

    @property
    def names(self) -> list[str]:
        """The sites that are named."""
        return [name.strip() for name in self.sites.split(",") if name.strip()]

    @property
    def solver(self) -> Solver:
        """The local optimiser."""
        if self.optimizer == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay, self.clip or None)
        return Adam(
            self.lr, weight_decay=self.weight_decay, decoupled=self.optimizer == "adamw", clip=self.clip or None
        )

    def federation(self) -> dict[str, Any]:
        """The settings that a simulation has, too."""
        same = ("epochs", "batch_size", "participation", "seed", "quorum", "precision")
        return {name: getattr(self, name) for name in same} | {"steps": self.steps or None}

    def config(self) -> dict[str, Any]:
        """All that decides the result, for ``config.toml``."""
        how = {"sites", "min_sites", "wait", "deadline", "poll", "run_dir"}
        told = self.model_dump(exclude=how)
        return {**told, "scenario": "sites", "engine": "flower"}
