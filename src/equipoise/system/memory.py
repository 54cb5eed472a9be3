"""How much memory is free and taken; and freed memory is kept for the next training step, instead of being asked for again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import torch

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # names of mallopt(3)
KEPT = 1 << 30  # bytes that may stay free
STEP = 64 << 20  # bytes asked for at a time
LARGE = (
    32 << 20
)  # bytes; larger pieces still come from the system one by one, and go back at once (the most glibc takes)
SWITCH = "EQUIPOISE_KEEP_MEMORY"
LIMIT = "EQUIPOISE_MEMORY"  # environment variable: the memory a run may take, where that is not what is free
UNITS = {"": 1, "B": 1, **{f"{p}{b}": f**k for b, f in (("iB", 1024), ("B", 1000)) for k, p in enumerate("KMGT", 1)}}


def keep() -> None:
    """Tell glibc to keep what a step frees; elsewhere, or with ``EQUIPOISE_KEEP_MEMORY=0``, nothing happens.

    Left to itself it gives the activations of every step back, so that the next one's pages are made, and zeroed, anew.
    """
    if os.environ.get(SWITCH) == "0" or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for name, value in ((MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, KEPT), (TOP_PAD, STEP)):
        mallopt(name, value)


def free(device: torch.device) -> int | None:
    """Bytes that may still be taken on a device; None where the system does not say.

    The environment variable ``EQUIPOISE_MEMORY`` (such as ``8GiB``) is what may be taken, whatever is free.

    Raises
    ------
    ValueError : it cannot be read.
    """
    if limit := os.environ.get(LIMIT):
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d+)?)\s*(\w*)\s*", limit)
        if match is None or match[2] not in UNITS:
            raise ValueError(f"{LIMIT}={limit}: expected a number of bytes, or one with a unit, for example 8GiB.")
        return int(float(match[1]) * UNITS[match[2]])
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [_kilobytes("/proc/meminfo", "MemAvailable"), *_of_the_container()]
    return min((n for n in known if n is not None), default=None)


def _of_the_container() -> Iterator[int]:
    """What a container may still take, in either version of control groups."""
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, now = (int((Path(folder) / name).read_text()) for name in (limit, used))
            stat = dict(text.split() for text in (Path(folder) / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or "max": no limit
            continue
        yield most - now + int(stat.get("inactive_file", 0))  # which the system gives back when asked


def taken(device: torch.device) -> int:
    """Bytes that this process has taken now, on a GPU in tensors; 0 where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _kilobytes("/proc/self/status", "VmRSS") or 0


def most_taken(device: torch.device) -> int:
    """Bytes that this process has taken at most, since :func:`watch` where the system can do that; 0 where it does not say."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _kilobytes("/proc/self/status", "VmHWM") or 0


def watch(device: torch.device) -> None:
    """Let :func:`most_taken` begin anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # of a system without it, or that does not allow it
            Path("/proc/self/clear_refs").write_text("5")


def _kilobytes(path: str, key: str) -> int | None:
    """Bytes that a line such as ``VmRSS:  123 kB`` says."""
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", Path(path).read_text(), flags=re.M)
    except OSError:
        return None
    return None if found is None else int(found[1]) << 10
