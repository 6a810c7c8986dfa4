"""Many settings at once: on all cores, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import starmap
from multiprocessing import get_context
from typing import Any, TypeAlias

from radixkv.errors import MissingExtraError
from radixkv.lab.replay import ReplayConfig, ReplayResult, replay
from radixkv.traces import Request

TraceSource: TypeAlias = Callable[[], Iterable[Request]]
"""Reads a trace from its beginning whenever it is called. Workers get a pickled one."""

_Batch: TypeAlias = tuple[TraceSource, list[ReplayConfig]]


def replay_grid(
    trace: TraceSource, configs: Sequence[ReplayConfig], *, workers: int | None = None, ray: str | None = None
) -> list[ReplayResult]:
    """`replay` of many settings: they are dealt out, and each worker reads the trace once for all of its own.

    The answers are the same to the digit, whoever works, and in the order of `configs`.

    Args:
        trace: called once by every worker.
        configs: the settings.
        workers: processes; by default one a core. 1 works in this process, and so does any number for one setting.
        ray: address of a Ray cluster to work on instead, one worker a core there, each of which must be able to read
            the trace; "local" starts one here.

    Raises:
        MissingExtraError: a Ray address, and no Ray.
        SpanError, TraceError: as `replay` and the trace.
    """
    run, cores = _on_ray(ray) if ray else _on_cores(workers or len(os.sched_getaffinity(0)))
    # Equal settings but for the capacity, and so about equal work, stand next to each other: dealt out one by one.
    count = max(min(cores, len(configs)), 1)
    by_cost = sorted(range(len(configs)), key=lambda i: (configs[i].cache, configs[i].eviction, configs[i].order))
    hands = [sorted(by_cost[worker::count]) for worker in range(count)]
    batches = [(trace, [configs[i] for i in hand]) for hand in hands]
    answered = dict(zip((i for hand in hands for i in hand), (r for done in run(batches) for r in done), strict=True))
    return [answered[i] for i in range(len(configs))]


def _replay_batch(trace: TraceSource, configs: list[ReplayConfig]) -> list[ReplayResult]:
    return replay(trace(), configs)


def _on_cores(cores: int) -> tuple[Callable[[list[_Batch]], Iterable[list[ReplayResult]]], int]:
    def run(batches: list[_Batch]) -> Iterable[list[ReplayResult]]:
        if len(batches) == 1:
            return list(starmap(_replay_batch, batches))
        # A fresh interpreter: a fork of one that has threads (numpy's, a progress bar's) may hang.
        with ProcessPoolExecutor(len(batches), mp_context=get_context("spawn")) as pool:
            return list(pool.map(_replay_batch, *zip(*batches, strict=True)))

    return run, cores


def _on_ray(address: str) -> tuple[Callable[[list[_Batch]], Iterable[list[ReplayResult]]], int]:
    try:
        import ray  # noqa: PLC0415  # an extra of its own, and slow
    except ModuleNotFoundError:
        raise MissingExtraError(part="a grid on Ray", package="ray", extra="ray") from None
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False)
    remote: Any = ray.remote(_replay_batch)

    def run(batches: list[_Batch]) -> Iterable[list[ReplayResult]]:
        try:
            return list(ray.get([remote.remote(*batch) for batch in batches]))
        finally:
            if started:
                ray.shutdown()

    return run, max(int(ray.cluster_resources().get("CPU", 1)), 1)
