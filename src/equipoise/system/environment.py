"""What a run was made with: versions, the state of the source, and the machine that computed it.

PyTorch is loaded only where it is asked, since reports read what runs have written and need none.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = ("equipoise", "torch", "numpy", "scikit-learn", "safetensors", "flwr")
DECISIVE = (  # packages with the code that results depend on
    "core", "data", "engines", "federation", "methods", "metrics", "records", "networks", "privacy", "scenarios",
    "submodels",
)  # fmt: skip
SWITCHES = (  # environment variables that make torch, oneDNN, MKL or OpenBLAS take other instructions
    "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
)  # fmt: skip
PORTABLE = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}


def versions() -> dict[str, str]:
    """Versions of what matters for results, of those that are installed."""
    by_package = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # running from a source tree that was never installed
            by_package[name] = version(name)
    return by_package


def environment() -> dict[str, Any]:
    """Versions of what matters for results, and the commit of the source."""
    commit = ""
    with suppress(OSError):  # no git here
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    return {"versions": versions(), "git": commit.strip() or None}


@cache
def source() -> str:
    """Hash of the code that results depend on, 16 digits: another one may give other results."""
    home, total = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(path for package in DECISIVE for path in (home / package).rglob("*.py")):
        total.update(f"{path.relative_to(home).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()[:16]


@cache
def installed() -> str:
    """The version of Equipoise, or that it was never installed, as where it runs from a source tree."""
    return versions().get("equipoise", "not installed")


def code() -> dict[str, str]:
    """The version of Equipoise, and its :func:`source`."""
    return {"equipoise": installed(), "source": source()}


def release(machine: Mapping[str, Any]) -> str:
    """In words, which Equipoise computed, from a machine of a manifest; empty if an earlier version recorded none."""
    return f"{machine['equipoise']}, source {machine['source']}" if "source" in machine else ""


def machine(device: str | torch.device = "cpu") -> dict[str, Any]:
    """What computes on ``device``: its name, its instructions, the libraries of matrix products, and the number of threads."""
    import torch

    where = torch.device(device)
    name = _processor() if where.type == "cpu" else where.type
    if where.type == "cuda" and torch.cuda.is_available():
        name = torch.cuda.get_device_name(where)
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": name,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "linear_algebra": _linear_algebra(),
        "switches": {name: os.environ[name] for name in SWITCHES if os.environ.get(name)},
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def kind(machine: Mapping[str, Any]) -> str:
    """In words, what the last bits of a result depend on, from :func:`machine`; empty if an earlier version recorded less."""
    if "instructions" not in machine:
        return ""
    switches = [f"{name}={value}" for name, value in machine["switches"].items()]
    named = (machine["processor"], machine["instructions"], f"torch {machine['torch']}", machine["linear_algebra"])
    return " · ".join((*named, *switches))


def portable() -> dict[str, str]:
    """The environment of a process that uses only instructions which processors of Intel and AMD have in common."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    masked = "ATEN_CPU_CAPABILITY" in os.environ  # then torch does not report what the processor has
    if not (masked or capability in ("AVX2", "AVX512")) or not torch.backends.mkl.is_available():
        has = "MKL" if torch.backends.mkl.is_available() else "no MKL"
        raise ValueError(
            f"--portable needs a processor with AVX2 and a PyTorch with MKL; found {capability} and {has}. Leave it out."
        )
    return {**os.environ, **PORTABLE}


@cache
def _processor() -> str:
    """The processor's name, as far as the system gives it."""
    with suppress(OSError):  # not Linux
        text = Path("/proc/cpuinfo").read_text()
        if named := re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, flags=re.M):
            return named[1].strip()
    return platform.processor() or platform.machine()


def _linear_algebra() -> str:
    """The library of matrix products that torch was built with."""
    import torch

    built = torch.__config__.show()
    if mkl := re.search(r"Math Kernel Library Version (\d[\d.]*)", built):
        return f"MKL {mkl[1]}"
    blas = re.search(r"BLAS_INFO=(\w+)", built)
    return blas[1] if blas else "unknown"
