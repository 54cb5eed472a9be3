"""Across machines, on Flower: the methods of the simulator between sites that keep their data.

``task(node_config, run_config) -> Task`` is the one function a site writes; :func:`make_client_app` and
:func:`make_server_app` make a Flower app of it, and :class:`InProcessGrid` runs any such app in this process. Flower is an
optional part, the extra ``flower``.

Imports ``federation`` and what is below it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise.flower.app import in_process, make_client_app, make_server_app
    from equipoise.flower.grid import InProcessGrid
    from equipoise.flower.site.store import take
    from equipoise.flower.site.task import Task

__all__ = ["InProcessGrid", "Task", "in_process", "make_client_app", "make_server_app", "take"]
OF_APP = ("in_process", "make_client_app", "make_server_app")
WHERE = {"InProcessGrid": "grid", "Task": "site.task", "take": "site.store", **dict.fromkeys(OF_APP, "app")}


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("flwr", "cryptography"):
            raise
        raise ModuleNotFoundError(
            f"equipoise.flower.{name} needs Flower, which is not installed: pip install 'equipoise[flower]'.",
            name="flwr",
        ) from None
