"""What a process that runs a model sets up: how long OpenMP's idle threads spin, and that the heap is kept."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

SPINS: Final = "10000"
"""Spins for which a thread of GNU's OpenMP waits before it sleeps: some tens of microseconds."""
MILLISECONDS: Final = "1"
"""For which one of LLVM's or Intel's does: the least but for none at all."""

# of mallopt(3) in glibc's malloc.h
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_KEPT: Final = 1 << 30
"""Bytes of freed memory that stay the process's, and of the largest piece that does."""
_KEPT_BY_OLD: Final = 32 << 20
"""Bytes of the largest piece before glibc 2.35, which refuses more; what is larger goes back to the system there."""


def set_up_process() -> None:
    """Call it first of all: before torch is imported, and before there are threads. The environment has precedence."""
    _bound_spinning()
    _keep_memory()


def _bound_spinning() -> None:
    """Let threads that wait spin briefly.

    They wait between any two operations of a model's layer. Asleep, they cost a step half as much again or more; but
    if they spin as long as GNU's OpenMP lets them by default, a step takes several times as long as soon as anything
    else wants a processor. docs/engine.md has the figures.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS
        os.environ["KMP_BLOCKTIME"] = MILLISECONDS


def _keep_memory() -> None:
    """Let what a layer frees serve the next one.

    A layer takes tens of megabytes and frees them. glibc may give them back each time, by chance of what else is on
    the heap; the kernel then clears every page again for the next layer, and a step can take a quarter longer. Its
    heaps for threads end at 64 MiB and are given back whatever the thresholds say, so all threads share one.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # another C library
        return
    # the first that is set stops glibc from choosing the thresholds itself, so the rest only follows one that is high
    if mallopt(_M_MMAP_THRESHOLD, _KEPT) or mallopt(_M_MMAP_THRESHOLD, _KEPT_BY_OLD):
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_ARENA_MAX, 1)
