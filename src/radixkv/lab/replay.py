"""A trace through the caches themselves, one request after the other, at chosen settings.

```text
trace ──> the order's choice of those that wait ──> match, insert, evict what is too much ──> counts
```

The rules, all of them:

- A request is served whole before the next one starts. The capacity is what the cache may hold between two requests:
  the blocks of running requests are beside it, as in a busy engine, where a request that ends leaves its room to the
  next. So a policy may choose the new blocks too, and a prompt seen once need not displace what is worth more.
- Nothing is warm at first, and every request counts.
- The blocks computed whole are cached: those of the prompt and then, where the trace has the answer's tokens, those of
  prompt and answer but for the token sampled last. A block that is not full takes no room.
- Of a prompt with more blocks than the capacity, the head that fits is cached.

With `cache="hash"` and `eviction="lru"` that is, to the token, what `radixkv.lab.curve` computes for every capacity.
The radix cache evicts whole leaves, so more than it must.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from radixkv.cache import PrefixCache
from radixkv.errors import UnknownNameError
from radixkv.eviction import make_policy
from radixkv.hash_cache import HashCache
from radixkv.keys import TokenKey, check_size
from radixkv.lab.ages import BlockAges
from radixkv.lab.blocks import BlockWords, finished_key, prompt_key
from radixkv.lab.histogram import Histogram
from radixkv.lab.waiting import RequestWindow
from radixkv.radix_cache import RadixCache
from radixkv.scheduler import ORDERS
from radixkv.traces import Request
from radixkv.types import PrefixStats


def _radix(block_size: int, eviction: str) -> PrefixCache[Any]:
    return RadixCache(block_size, eviction=eviction)


def _hash(block_size: int, eviction: str) -> PrefixCache[Any]:
    # No answer depends on the secret; with one for all, caches of one block size share the hashes kept with a key.
    return HashCache(block_size, eviction=eviction, secret=b"radixkv.lab")


CACHES: Final[Mapping[str, Callable[[int, str], PrefixCache[Any]]]] = {"hash": _hash, "radix": _radix}
"""Every cache by the name that `ReplayConfig.cache` takes; made of a block size and a policy's name."""


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """One setting to replay a trace at.

    Raises:
        SizeError: a number below 1.
        UnknownNameError: no such cache, policy or order.
    """

    blocks: int
    """Capacity."""
    block_size: int
    """Tokens a block."""
    cache: str = "radix"
    """A name of `CACHES`."""
    eviction: str = "lru"
    """A name of `radixkv.POLICIES`."""
    order: str = "fcfs"
    """A name of `radixkv.scheduler.ORDERS`."""
    window: int = 64
    """How many requests wait at a time for the order to choose from (`RequestWindow`); with `fcfs`, no matter."""

    def __post_init__(self) -> None:
        for name in ("blocks", "block_size", "window"):
            check_size(name, getattr(self, name), 1)
        make_policy(self.eviction)
        for kind, given, table in (("cache", self.cache, CACHES), ("queue order", self.order, ORDERS)):
            if given not in table:
                raise UnknownNameError(kind=kind, name=given, known=tuple(sorted(table)))


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of one setting."""

    config: ReplayConfig
    requests: int
    input_tokens: int
    """Tokens of all prompts."""
    input_squares: int
    """The sum of the squares of each prompt's tokens: what attention costs goes by it."""
    hit_tokens: int
    """Prompt tokens found cached, which need no prefill."""
    hit_squares: int
    """The sum of the squares of each prompt's hit tokens."""
    stats: PrefixStats
    """The cache's own counters: insertions, evictions, why lookups missed."""
    lifetime: Histogram
    """Of evicted blocks, the requests from insertion to eviction."""
    idle: Histogram
    """Of evicted blocks, the requests from last use to eviction."""
    reuse_gap: Histogram
    """Of hit blocks, the requests since the use before."""
    lifetime_ms: Histogram
    """The same three in milliseconds of the trace's clock; empty where it has none."""
    idle_ms: Histogram
    reuse_gap_ms: Histogram

    @property
    def hit_rate(self) -> float:
        """Hit tokens over input tokens; 0.0 for an empty trace."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0


def replay(requests: Iterable[Request], configs: Sequence[ReplayConfig]) -> list[ReplayResult]:
    """Replay a trace at every setting, in one pass over it. Memory grows with the capacities, not with the trace.

    Costs what the caches cost; the trace is decoded once for all.

    Raises:
        SpanError: blocks that the trace cannot tell.

    >>> cycle = [Request(TokenKey([prefix, 0]), 2) for prefix in (1, 2, 3) * 3]
    >>> [result.hit_tokens for result in replay(cycle, [ReplayConfig(blocks, block_size=1) for blocks in (3, 6)])]
    [0, 6]
    """
    replays = [_Replay(config) for config in configs]
    for request in requests:
        for one in replays:
            one.arrive(request)
    return [one.finish() for one in replays]


class _Replay:
    """One setting, told the requests of a trace one by one."""

    def __init__(self, config: ReplayConfig) -> None:
        self._config = config
        self._words = BlockWords(config.block_size)
        self._cache: PrefixCache[Any] | None = None  # its block size, in words, is known with the first request
        self._window: RequestWindow | None = None
        self._ages = BlockAges()
        self._requests = 0
        self._input_tokens = self._input_squares = self._hit_tokens = self._hit_squares = 0

    def arrive(self, request: Request) -> None:
        """Take the trace's next request in, and serve the one whose turn it is."""
        config = self._config
        words = self._words.of(request)
        if self._cache is None:
            self._cache = CACHES[config.cache](words, config.eviction)
            if config.order != "fcfs":
                self._window = RequestWindow(
                    self._cache, order=config.order, window=config.window, blocks=config.blocks
                )
        served = self._window.push(request) if self._window else request
        if served:
            self._serve(self._cache, served)

    def finish(self) -> ReplayResult:
        """Serve those that wait, and say what came of it all."""
        while self._cache and self._window and (request := self._window.pop()):
            self._serve(self._cache, request)
        ages = self._ages
        ages.settle()
        stats = self._cache.stats if self._cache else PrefixStats()
        return ReplayResult(
            config=self._config,
            requests=self._requests,
            input_tokens=self._input_tokens,
            input_squares=self._input_squares,
            hit_tokens=self._hit_tokens,
            hit_squares=self._hit_squares,
            # Of an id for many tokens the cache knows one word.
            stats=replace(stats, query_tokens=self._input_tokens, hit_tokens=self._hit_tokens),
            lifetime=ages.lifetime,
            idle=ages.idle,
            reuse_gap=ages.reuse_gap,
            lifetime_ms=ages.lifetime_ms,
            idle_ms=ages.idle_ms,
            reuse_gap_ms=ages.reuse_gap_ms,
        )

    def _serve(self, cache: PrefixCache[Any], request: Request) -> None:
        match = cache.match_prefix(request.prompt, request.namespace)
        input_tokens, hit_tokens = request.input_tokens, match.matched_tokens * request.span
        self._requests += 1
        self._input_tokens += input_tokens
        self._input_squares += input_tokens * input_tokens
        self._hit_tokens += hit_tokens
        self._hit_squares += hit_tokens * hit_tokens
        self._ages.tick(request.timestamp)
        self._ages.used(match.blocks)
        blocks = self._insert(cache, prompt_key(request), request.namespace, match.blocks)
        if finished := finished_key(request):
            self._insert(cache, finished, request.namespace, blocks)
        over = cache.cached_blocks - self._config.blocks
        if over > 0:
            self._ages.evicted(cache.evict(over))

    def _insert(self, cache: PrefixCache[Any], key: TokenKey, namespace: str | None, known: array[int]) -> array[int]:
        """Cache the full blocks of `key`, as many as fit, of which `known` are cached; returns the cache's ids."""
        count = min(len(key) // cache.block_size, self._config.blocks)
        inserted = cache.insert(
            key.prefix(count * cache.block_size), known + self._ages.allocate(count - len(known)), namespace
        )
        blocks = cache.path_blocks(inserted.node)
        if inserted.duplicates:  # cached, but not matched: the last token, or an answer that somebody else got too
            self._ages.free(inserted.duplicates)
            self._ages.used(blocks[len(known) : count - inserted.new_blocks])
        return blocks
