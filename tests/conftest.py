"""One thread for every test, so that times and the order of sums are the same everywhere."""

import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
os.fsync = lambda descriptor: (
    None
)  # waiting for the disk after every small file takes minutes, and no test pulls the plug
settings.register_profile("fast", deadline=None, max_examples=15)
settings.register_profile("all", deadline=None, max_examples=40)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` draws fewer examples than `make test-all`."""
    settings.load_profile("fast" if config.getoption("markexpr") == "not slow" else "all")
