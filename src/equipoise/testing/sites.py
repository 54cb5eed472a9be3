"""A run between sites, compared with the same run in the simulator: models, server's state, clients' states, records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from equipoise.federation.federation import Federation
from equipoise.testing.federations import differing, told


def server_side(fed: Federation) -> dict[str, Tensor]:
    """All that a run remembers but what is the clients' own."""
    return {
        name: x
        for name, x in fed.progress.tensors().items()
        if not name.startswith("clients/") and name != "own"  # of sites there are receipts
    }


def at_home(fed: Federation, states: Path, m: int) -> dict[str, Tensor] | None:
    """What client ``m`` keeps in its files; None where it never took part, or keeps nothing."""
    from equipoise.flower.site.store import Receipt, Store  # where Flower is installed

    receipt = Receipt.of({key: x[m] for key, x in fed.progress.clients[0].items()})
    return Store.at(states, "run", fed.trial.names[m]).recall(receipt)


def remembered(fed: Federation, m: int) -> dict[str, Tensor]:
    """What client ``m`` of the simulator keeps, by the names of the files."""
    trial, p = fed.trial, fed.progress
    kept = {f"states/{k}/{key}": x[m] for k, state in enumerate(p.clients) for key, x in state.items()}
    return kept if p.own is None or trial.private is None else {**kept, "own": p.own[m][trial.private]}


def records(fed: Federation) -> list[dict[str, Any]]:
    """What was recorded, less what only one of the two records: sites keep their losses in training, and what stays with them."""
    private = fed.trial.private
    left_out = {"sent", "losses"} | ({"groups"} if private is not None and bool(private.any()) else set())
    stays = {"perturbed_loss"}  # where the sharpness is sent
    shared = [
        {key: x for key, x in record.items() if key not in left_out | (stays if "sharpness" in record else set())}
        for record in told(fed)
    ]
    for (
        record
    ) in shared:  # a site's test samples are its own, where clients of the simulator share those of their group
        record["clients"] = {key: x for key, x in record.get("clients", {}).items() if key != "n"}
    return shared


def differences(simulated: Federation, sites: Federation, states: Path) -> list[str]:
    """What is not the same, bit for bit: tensors by their paths, and ``records``."""
    names = differing(server_side(simulated), server_side(sites))
    for m in range(len(simulated.trial.data)):
        kept = at_home(sites, states, m)
        if kept is not None:
            names += [f"clients/{name.removeprefix('states/')}" for name in differing(remembered(simulated, m), kept)]
    return list(dict.fromkeys(names)) + ["records"] * (records(simulated) != records(sites))
