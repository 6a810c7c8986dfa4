"""How long OpenMP's idle threads spin."""

import os

SPINS = "10000"
"""Spins for which a thread of GNU's OpenMP waits before it sleeps: some tens of microseconds."""
MILLISECONDS = "1"
"""For which one of LLVM's or Intel's does: the least but for none at all."""


def bound_spinning() -> None:
    """Let threads that wait spin briefly, unless the environment says otherwise. Before torch is imported.

    They wait between any two operations of a model's layer. Asleep, they cost a step half as much again or more; but
    if they spin as long as GNU's OpenMP lets them by default, a step takes several times as long as soon as anything
    else wants a processor. docs/engine.md has the figures.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS
        os.environ["KMP_BLOCKTIME"] = MILLISECONDS
