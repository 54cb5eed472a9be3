"""One thread for every test, so that times and the order of sums are the same everywhere."""

import gc
import os
from collections.abc import Iterator
from functools import cache

import pytest
import torch
import typer
from hypothesis import settings

from run_helpers import UNDRAWN, without_figures

gc.disable()  # until all is collected, of which nothing is garbage
torch.set_num_threads(1)
os.fsync = lambda descriptor: (
    None
)  # waiting for the disk after every small file takes minutes, and no test pulls the plug
settings.register_profile("fast", deadline=None, max_examples=15)
settings.register_profile("all", deadline=None, max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` draws fewer examples than `make test-all`, and fewer figures."""
    fast = config.getoption("markexpr") == "not slow"
    settings.load_profile("fast" if fast else "all")
    if fast:
        os.environ[UNDRAWN] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that train for minutes come first: the last of them would leave all workers but one idle."""
    items.sort(key=lambda item: item.path.name != "test_results.py")


def pytest_collection_finish() -> None:
    """What was imported and collected is not searched for garbage again and again while the tests run."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def commands() -> Iterator[None]:
    """The command line is built of its functions once, not at every call of it: that takes longer than most commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Which runs were begun here is noted in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        patch.delenv("EQUIPOISE_TRUST", raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the figures of reports empty where tests are not about them (`drawn`), as they take most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        if UNDRAWN in os.environ and not request.node.get_closest_marker("drawn"):
            without_figures(patch)
        yield
