"""Free and used memory; and a setting that reuses freed memory in the next training step."""

import contextlib
import ctypes
import os
import platform
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # names of mallopt(3)
KEPT = 1 << 30  # bytes that may stay free
STEP = 64 << 20  # bytes requested at a time
LARGE = 32 << 20  # bytes; larger pieces are requested and freed one by one (the largest value that glibc accepts)
SWITCH = "EQUIPOISE_KEEP_MEMORY"
LIMIT = "EQUIPOISE_MEMORY"  # environment variable: the memory a run may take, where that is not what is free
UNITS = {"": 1, "B": 1, **{f"{p}{b}": f**k for b, f in (("iB", 1024), ("B", 1000)) for k, p in enumerate("KMGT", 1)}}


def keep() -> None:
    """Let glibc keep the memory that a step frees; without glibc, or with ``EQUIPOISE_KEEP_MEMORY=0``, do nothing.

    Otherwise it returns the activations of every step to the system, which must give and zero new pages in the next. Tensors
    above ``LARGE`` it always returns; that they come in pages of 2 MiB (PyTorch's ``THP_MEM_ALLOC_ENABLE``, set where the
    package is imported) saves a sixth to a quarter of a round of 10 to 50 million parameters. Threads share what is free: one heap for
    each core, not eight.
    """
    if os.environ.get(SWITCH) == "0" or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    heaps = (ARENA_MAX, os.cpu_count() or 1)
    for name, value in ((MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, KEPT), (TOP_PAD, STEP), heaps):
        mallopt(name, value)


def give_back() -> None:
    """Return to the system what the preparation of a run has freed: training requests its memory in other threads, which have other heaps."""
    if os.environ.get(SWITCH) != "0" and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def free(device: torch.device) -> int | None:
    """Bytes that may still be used on a device; None if unknown.

    The environment variable ``EQUIPOISE_MEMORY`` (such as ``8GiB``) replaces the measured value.
    """
    if limit := os.environ.get(LIMIT):
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d+)?)\s*(\w*)\s*", limit)
        if match is None or match[2] not in UNITS:
            raise ValueError(f"{LIMIT}={limit}: expected a number of bytes, or one with a unit, for example 8GiB.")
        return int(float(match[1]) * UNITS[match[2]])
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_kilobytes("/proc/meminfo", "MemAvailable"), *_container_free()]
    return min((n for n in limits if n is not None), default=None)


def _container_free() -> Iterator[int]:
    """Bytes that a container may still use, in either version of control groups."""
    for folder, limit, used in (
        ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, now = (int((Path(folder) / name).read_text()) for name in (limit, used))
            stat = dict(text.split() for text in (Path(folder) / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or "max": no limit
            continue
        yield most - now + int(stat.get("inactive_file", 0))  # a cache, which the system frees when needed


def taken(device: torch.device) -> int:
    """Bytes that this process uses, on a GPU in tensors; 0 if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return _kilobytes("/proc/self/status", "VmRSS") or 0


def most_taken(device: torch.device) -> int:
    """The most bytes that this process has used, since :func:`watch` if the system supports that; 0 if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _kilobytes("/proc/self/status", "VmHWM") or 0


@contextlib.contextmanager
def own_peak() -> Iterator[list[int]]:
    """A list with the most bytes that this process has had while the block runs, without files that are mapped, looked at 20 times a second."""
    peak, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            peak[0] = max(peak[0], _kilobytes("/proc/self/status", "RssAnon") or 0)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def holds(folder: str) -> bool:
    """Whether a folder is itself in memory, as ``/tmp`` of some systems is; False if unknown."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return False
    path = Path(folder).resolve()
    kinds = {place: kind for _, place, kind, *_ in map(str.split, lines) if path.is_relative_to(place)}
    return bool(kinds) and kinds[max(kinds, key=len)] in ("tmpfs", "ramfs")


def watch(device: torch.device) -> None:
    """Restart the measurement of :func:`most_taken`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # the system does not have it, or does not allow it
            Path("/proc/self/clear_refs").write_text("5")


def _kilobytes(path: str, key: str) -> int | None:
    """The value in bytes of a line such as ``VmRSS:  123 kB``."""
    with contextlib.suppress(OSError):
        if match := re.search(rf"^{key}:\s+(\d+) kB", Path(path).read_text(), flags=re.M):
            return int(match[1]) << 10
    return None
