"""The command ``equipoise track``."""

from typing import Annotated

from typer import Option

from equipoise.cli.console import print_json, say
from equipoise.cli.options import Json, Runs


def track(
    directories: Runs,
    to: Annotated[
        str, Option(help="mlflow, tensorboard, wandb or trackio; after a colon where: `mlflow:http://host:5000`.")
    ],
    json_: Json = False,
) -> None:
    """Send runs to an experiment tracker; what it has already is not sent twice."""
    from equipoise.runs.tracking import track as send

    rounds = {str(path): send(path, to) for path in directories}
    if json_:
        print_json({"to": to, "rounds": rounds})
        return
    for path, n in rounds.items():
        say(f"{path}: {n} round{'s' * (n != 1)} in {to}")
