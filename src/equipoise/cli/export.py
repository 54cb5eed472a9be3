"""The command ``equipoise export``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.console import out
from equipoise.cli.options import Moved, Run
from equipoise.system.own_code import short

if TYPE_CHECKING:
    from equipoise.federation.federation import Federation


def export(
    directory: Run,
    client: Annotated[
        str | None,
        typer.Option(
            help="Name of a client, whose own model is written; `all` for every client [default: the global model]."
        ),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="A client of FedSAC: the really smaller network of what it holds.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the files [default: RUN/models].")
    ] = None,
    data: Moved = None,
) -> None:
    """Write trained models as safetensors: the global one, or what clients own."""
    if compact and client is None:
        raise ValueError("--compact makes the smaller network of one client: add --client NAME, or --client all.")
    from safetensors.torch import save

    from equipoise.runs import directory as runs
    from equipoise.system.files import write_atomically

    fed = runs.trained(directory, data)
    names = fed.names
    folder = output or directory / "models"
    for number in _numbers(client, names):
        path = folder / f"{'global' if number is None else runs.slug(names[number])}.safetensors"
        state = fed.network(client=number, compact=compact).state_dict()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save({name: tensor.contiguous().clone() for name, tensor in state.items()}, _about(fed)))
        size = sum(t.numel() for t in state.values())
        out.print(f"{path}: {size:,} numbers", soft_wrap=True, highlight=False)


def _about(fed: Federation) -> dict[str, str]:
    """What the file says of itself: what made the model, and what its outputs mean."""
    from equipoise.data.transforms import Images

    about = {"method": short(str(fed.method)), "classes": json.dumps(list(fed.classes), ensure_ascii=False)}
    if fed.positive is not None:
        about |= {"positive": fed.positive.name, "positive is": fed.positive.why}
    if isinstance(fed.transform, Images):
        shown = {"mean": fed.transform.mean, "std": fed.transform.std, "range": fed.transform.levels or (0, 255)}
        about["images"] = json.dumps(shown)
    return about


def _numbers(client: str | None, names: Sequence[str]) -> Sequence[int | None]:
    """The clients whose models are asked for; None is the global model."""
    if client is None:
        return [None]
    if client == "all":
        return range(len(names))
    if client in names:
        return [names.index(client)]
    raise ValueError(
        f"--client {client}: the run has no such client. Give a name ({', '.join(names[:4])}{', ...' * (len(names) > 4)}), or all."
    )
