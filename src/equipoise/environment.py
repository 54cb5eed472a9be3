"""What a run was made with: versions, machine, the state of the source."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("equipoise", "torch", "numpy", "scikit-learn", "safetensors", "flwr")


def environment() -> dict[str, Any]:
    """Versions of what matters for results, the kind of machine, and the commit of the source."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # running from a source tree that was never installed
            continue
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    except OSError:  # no git here
        commit = ""
    return {
        "versions": versions,
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
        "git": commit.strip() or None,
    }
