"""Freed memory is kept for the next training step, instead of being handed back to the system and asked for again."""

from __future__ import annotations

import ctypes
import os
import platform

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # names of mallopt(3)
KEPT = 1 << 30  # bytes that may stay free
STEP = 64 << 20  # bytes asked for at a time
LARGE = (
    32 << 20
)  # bytes; larger pieces still come from the system one by one, and go back at once (the most glibc takes)
SWITCH = "EQUIPOISE_KEEP_MEMORY"


def keep() -> None:
    """Tell glibc to keep what a step frees; elsewhere, or with ``EQUIPOISE_KEEP_MEMORY=0``, nothing happens.

    Left to itself it gives the activations of every step back, so that the next one's pages are made, and zeroed, anew.
    """
    if os.environ.get(SWITCH) == "0" or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for name, value in ((MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, KEPT), (TOP_PAD, STEP)):
        mallopt(name, value)
