"""What Prometheus reads: counters of the cache and the engine, gauges of the pool, and how long things took.

Rates are for Prometheus to make, of counters. Nothing here holds a word of a prompt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from radixkv.engine import Engine, EngineSnapshot
from radixkv.manager import BlockManager
from radixkv.types import PrefixStats

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 150.0, 300.0, 600.0)
TOKEN_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
CACHE_SECONDS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)

COUNTERS: Final = {
    "lookups": "Prompts looked up in the prefix cache.",
    "query_tokens": "Tokens of the prompts looked up; hit tokens over these is the hit rate.",
    "hit_tokens": "Tokens of the prompts looked up that were found cached.",
    "inserted_blocks": "Blocks the cache took, duplicates not counted.",
    "evicted_blocks": "Blocks the cache gave up to make room.",
    "resumed_lookups": "Lookups of preempted requests that came back; they are in no other counter of lookups.",
    "resumed_query_tokens": "Tokens of those.",
    "resumed_hit_tokens": "Tokens of those that were found cached.",
}
FAILED_STEPS: Final = "Steps that ended with an error, or without one number."
MANAGER_COUNTERS: Final = {
    "admitted": "Requests admitted for the first time.",
    "preempted": "Times that a running request lost its blocks and had to wait again.",
    "resumed": "Preempted requests admitted again.",
}
GAUGES: Final = {
    "blocks": ("num_blocks", "Blocks in the pool."),
    "block_size_tokens": ("block_size", "Tokens a block."),
    "used_blocks": ("used_blocks", "Blocks that are not free: cached, or a request's own."),
    "evictable_blocks": ("evictable_blocks", "Cached blocks that no request reads."),
    "locked_blocks": ("locked_blocks", "Cached blocks that requests read."),
    "waiting_requests": ("waiting", "Requests that wait for blocks."),
    "running_requests": ("running", "Requests that hold blocks."),
}
"""By the metric's name: the snapshot's field, and what it says."""
MISSES: Final = "Lookups that found less than they searched for."
MISS_CAUSES: Final = ("short", "cold", "diverged", "evicted")


class EngineCollector(Collector):
    """Reads the engine's snapshot when Prometheus asks. Counters go on over a reset of the cache. O(1).

    Args:
        snapshot: gives the engine's snapshot of now, from any thread; None while there is no engine yet.
    """

    def __init__(self, snapshot: Callable[[], EngineSnapshot | None]) -> None:
        self._snapshot = snapshot
        self._lock = threading.Lock()
        self._before = dict.fromkeys(PrefixStats.__slots__, 0)  # counted before the last reset
        self._last = PrefixStats()
        self._stale: EngineSnapshot | None = None  # the one that was published when the cache was reset

    @contextmanager
    def reset(self, manager: BlockManager) -> Iterator[None]:
        """Around a reset of the cache, in the engine's thread: what was counted until then stays counted.

        Nobody reads the counters meanwhile, so none ever goes down or counts anything twice. If the reset fails,
        nothing changed.
        """
        with self._lock:
            before = manager.stats.prefix
            yield
            self._keep(before)
            self._last, self._stale = PrefixStats(), self._snapshot()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not know the names before there is an engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Every counter and gauge as of now."""
        with self._lock:
            snapshot = self._snapshot()
            if snapshot is None:
                return
            # a snapshot from before the reset tells what is kept already
            stats = PrefixStats() if snapshot is self._stale else snapshot.stats.prefix
            if any(getattr(stats, name) < getattr(self._last, name) for name in self._before):
                self._keep(self._last)  # reset behind our back: what we saw last is the best we know
            self._last = stats
            totals = {name: count + getattr(stats, name) for name, count in self._before.items()}
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"radixkv_{name}", text, totals[name])
        misses = CounterMetricFamily("radixkv_misses", MISSES, None, ["cause"])
        for cause in MISS_CAUSES:
            misses.add_metric([cause], totals[f"missed_{cause}"])
        yield misses
        for name, text in MANAGER_COUNTERS.items():
            yield CounterMetricFamily(f"radixkv_{name}_requests", text, getattr(snapshot.stats, name))
        yield CounterMetricFamily("radixkv_failed_steps", FAILED_STEPS, snapshot.failed_steps)
        for name, (field, text) in GAUGES.items():
            yield GaugeMetricFamily(f"radixkv_{name}", text, getattr(snapshot, field))

    def _keep(self, stats: PrefixStats) -> None:
        for name in self._before:
            self._before[name] += getattr(stats, name)


class CacheTimes(Collector):
    """How long blocks live, lie idle and come back. Observes the cache; Prometheus may ask meanwhile.

    A block counts as one, so the histograms say what becomes of memory. What a reset forgets was not evicted, and a
    block's uses by the request that computes it are no reuse: a gap ends with a lookup.

    O(blocks) of the prompt an event, in numpy: some 20 µs, and about as much for every thousand blocks more. 16 bytes a
    block of the pool.

    Args:
        num_blocks: of the pool, ids from 0.
        clock: seconds.
    """

    def __init__(self, num_blocks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inserted = np.zeros(num_blocks)  # when, by block id
        self._used = np.zeros(num_blocks)
        self._lock = threading.Lock()  # guards those below
        self._lifetime = _Durations("block_lifetime", "From a block's insertion to its eviction.")
        self._idle = _Durations("block_idle_before_eviction", "From a block's last use to its eviction.")
        self._gap = _Durations("block_reuse_gap", "From a cached block's last use to the lookup that hits it.")

    def matched(self, blocks: Sequence[int]) -> None:
        """See `CacheObserver`."""
        if blocks:
            ids, now = np.asarray(blocks, np.intp), self._clock()
            with self._lock:
                self._gap.add(now - self._used[ids])
            self._used[ids] = now

    def inserted(self, blocks: Sequence[int], new_blocks: int, name: Hashable | None) -> None:
        """See `CacheObserver`."""
        ids, now = np.asarray(blocks, np.intp), self._clock()
        self._used[ids] = now
        self._inserted[ids[len(ids) - new_blocks :]] = now

    def evicted(self, nodes: Sequence[Any], blocks: Sequence[int]) -> None:
        """See `CacheObserver`."""
        ids, now = np.asarray(blocks, np.intp), self._clock()
        with self._lock:
            self._lifetime.add(now - self._inserted[ids])
            self._idle.add(now - self._used[ids])

    def cleared(self) -> None:
        """See `CacheObserver`."""

    def collect(self) -> Iterable[Metric]:
        """The histograms as of now."""
        with self._lock:
            return [durations.family() for durations in (self._lifetime, self._idle, self._gap)]


class _Durations:
    """A histogram that takes many observations in one call."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._ends = np.array(CACHE_SECONDS)
        self._counts = np.zeros(len(CACHE_SECONDS) + 1, np.int64)  # of each bucket by itself, the last without an end
        self._sum = 0.0

    def add(self, seconds: npt.NDArray[np.float64]) -> None:
        self._counts += np.bincount(np.searchsorted(self._ends, seconds), minlength=len(self._counts))
        self._sum += float(seconds.sum())

    def family(self) -> HistogramMetricFamily:
        ends = [*map(str, CACHE_SECONDS), "+Inf"]
        buckets = list(zip(ends, self._counts.cumsum().tolist(), strict=True))
        return HistogramMetricFamily(f"radixkv_{self._name}_seconds", self._text, buckets, self._sum)


class Metrics:
    """Every metric of one server, in a registry of its own."""

    def __init__(self, snapshot: Callable[[], EngineSnapshot | None]) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.engine = EngineCollector(snapshot)
        self.registry.register(self.engine)
        self.first_token = _histogram(
            self.registry, "time_to_first_token", "From a request's arrival to its first token.", SECONDS
        )
        self.per_token = _histogram(
            self.registry, "time_per_output_token", "A request's time per token after its first.", TOKEN_SECONDS
        )
        self.queue = _histogram(
            self.registry, "queue_time", "From a request's arrival to its first admission.", SECONDS
        )
        self.request = _histogram(self.registry, "request_time", "From a request's arrival to its end.", SECONDS)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of the prompts of requests that began.")
        self.cached_tokens = self._counter("cached_prompt_tokens", "Tokens of those that were found cached.")
        self.generated_tokens = self._counter("generated_tokens", "Tokens generated.")
        self.ends = Counter("radixkv_requests", "Requests that ended, by how.", ["reason"], registry=self.registry)
        self.responses = Counter(
            "radixkv_responses", "Responses, by endpoint and status.", ["endpoint", "status"], registry=self.registry
        )

    def observe(self, engine: Engine) -> None:
        """Keep the times of the cache's blocks from now on; without a cache there are none, and no empty histograms."""
        if engine.config.prefix_cache != "none":
            times = CacheTimes(engine.snapshot().num_blocks)
            engine.call(partial(_observe, times))
            self.registry.register(times)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"radixkv_{name}", text, registry=self.registry)


def _observe(times: CacheTimes, manager: BlockManager) -> None:
    if manager.cache:
        manager.cache.observe(times)


def _histogram(registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"radixkv_{name}_seconds", text, buckets=buckets, registry=registry)
