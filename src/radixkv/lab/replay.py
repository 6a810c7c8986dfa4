"""A trace through the caches themselves: one request after the other, at chosen settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from radixkv.lab.histogram import Histogram
from radixkv.traces import Request
from radixkv.types import PrefixStats


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """One setting to replay a trace at; names are checked when a replay starts."""

    blocks: int
    """Capacity."""
    block_size: int
    """Tokens a block."""
    cache: Literal["radix", "hash"] = "radix"
    eviction: str = "lru"
    """A name of `radixkv.POLICIES`."""
    order: str = "fcfs"
    """A name of `radixkv.scheduler.ORDERS`."""
    window: int = 64
    """Requests of the trace that wait at a time, for the order to choose from; nothing to `fcfs`."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of one setting."""

    config: ReplayConfig
    requests: int
    input_tokens: int
    """Tokens of all prompts."""
    input_squares: int
    """The sum of their squares: what attention costs goes by it."""
    hit_tokens: int
    """Prompt tokens found cached: the tokens saved."""
    hit_squares: int
    """The sum of the squares of each request's hit tokens."""
    stats: PrefixStats
    """The cache's counters, in tokens of the trace: insertions, evictions, and why lookups missed."""
    lifetime: Histogram
    """Of evicted blocks: requests from insertion to eviction."""
    idle: Histogram
    """Of evicted blocks: requests from the last use to eviction."""
    reuse_gap: Histogram
    """Of hit blocks: requests since the use before."""
    lifetime_ms: Histogram | None
    """The same in milliseconds of the trace's clock; None where it has no timestamps."""
    idle_ms: Histogram | None
    reuse_gap_ms: Histogram | None

    @property
    def hit_rate(self) -> float:
        """Hit tokens over input tokens; 0.0 for an empty trace."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0


def replay(requests: Iterable[Request], configs: Sequence[ReplayConfig]) -> list[ReplayResult]:
    """Replay a trace at every setting, in one pass over it.

    A request at a time: match, lock, evict what is short, insert, unlock.

    Raises:
        SizeError, UnknownNameError: a setting that cannot be.
        SpanError: blocks that the trace cannot tell.
    """
    raise NotImplementedError
