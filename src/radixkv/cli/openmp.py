"""How long OpenMP's idle threads spin."""

import os

SPINS = "10000"
"""Spins for which a thread waits before it sleeps: some tens of microseconds."""


def bound_spinning() -> None:
    """Let threads that wait spin briefly, unless the environment says otherwise. Before torch is imported.

    They wait between any two operations of a model's layer. Asleep, they cost a step half as much again or more; but
    if they spin as long as GNU's OpenMP lets them by default, a step takes several times as long as soon as anything
    else wants a processor. docs/engine.md has the figures.
    """
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = SPINS
