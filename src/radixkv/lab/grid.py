"""Many settings at once: on all cores, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from radixkv.lab.replay import ReplayConfig, ReplayResult
from radixkv.traces import Request

Trace: TypeAlias = Callable[[], Iterable[Request]]
"""Reads a trace from its beginning, every time it is called; for workers it must pickle."""


def replay_grid(
    trace: Trace, configs: Sequence[ReplayConfig], *, workers: int | None = None, ray: str | None = None
) -> list[ReplayResult]:
    """`replay` on many workers: the settings are dealt out, and each worker reads the trace once.

    Args:
        trace: read once by every worker.
        configs: the settings; results come in the same order, the same to the digit whoever works.
        workers: processes; by default one a core. 1 works in this process.
        ray: address of a Ray cluster to work on instead ("local" starts one here); needs `radixkv[ray]`.
    """
    raise NotImplementedError
