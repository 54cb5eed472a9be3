"""One thread for every test, so that times and the order of sums are the same everywhere."""

import gc
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest
import torch
import typer
from hypothesis import settings
from record_seconds import FILE, SHARE

from run_helpers import UNDRAWN, without_figures

# seconds of a case, on average, of every test whose cases take longer than SHARE together
SECONDS = json.loads(FILE.read_text())

gc.disable()  # until all is collected, of which nothing is garbage
torch.set_num_threads(1)
os.fsync = lambda descriptor: (
    None
)  # waiting for the disk after every small file takes minutes, and no test pulls the plug
settings.register_profile("fast", deadline=None, max_examples=15)
settings.register_profile("all", deadline=None, max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` draws fewer examples than `make test-all`, and fewer figures."""
    fast = config.getoption("markexpr").startswith("not slow")
    settings.load_profile("fast" if fast else "all")
    if fast:
        os.environ[UNDRAWN] = "1"


def affordable(cost: float, share: float, n: int) -> set[int]:
    """Which of `n` cases of a test `make test` runs, evenly spread: as many as fit the share, at `cost` seconds each."""
    fit = min(n, int(share / cost + 1e-9))
    return {i * n // fit for i in range(fit)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases beyond the share of their test are slow. Tests that train for minutes come first, or all workers would wait for one."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("slow"):
            cases[item.nodeid.split("[")[0]].append(item)
    for test, cost in SECONDS.items():
        mark = cases[test][0].get_closest_marker("share") if cases[test] else None
        chosen = affordable(cost, mark.args[0] if mark else SHARE, len(cases[test]))
        for i, item in enumerate(cases[test]):
            if i not in chosen:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.costly)
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
