"""What could be done about missed tokens, each priced by running the trace again with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias

from radixkv.lab.causes import MissCauses, hit_blocks
from radixkv.lab.curve import LruCurve
from radixkv.lab.replay import ReplayConfig, ReplayResult
from radixkv.lab.reuse import ReuseStack
from radixkv.lab.routing import PrefixAffinity
from radixkv.traces import Request

Kind: TypeAlias = Literal["memory", "policy", "order", "block size", "replicas", "volatile text", "namespaces"]
MOST_OF_IT: Final = 0.95
"""Of the ceiling: what "enough memory" gives."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, and what the trace does with it."""

    kind: Kind
    what: str
    """In plain words."""
    hit_tokens: int
    """Prompt tokens found cached with it."""
    saved_tokens: int
    """How many more that is than now; negative where it makes things worse."""
    input_tokens: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens over input tokens, with the fix."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def gain(self) -> float:
        """By how much the hit rate rises."""
        return self.saved_tokens / self.input_tokens if self.input_tokens else 0.0


class WhatIf:
    """LRU caches that evict single blocks, told a changed trace: what `replay` with a hash cache finds, and faster.

    Args:
        blocks: capacity of each.
        block_size: tokens a block.
        change: makes another request of one, given its number; None leaves it.
        route: which of the `replicas` caches serves it, given its number.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        change: Callable[[int, Request], Request] | None = None,
        replicas: int = 1,
        route: Callable[[int, Request], int] | None = None,
    ) -> None:
        self.hit_tokens = 0
        self._blocks, self._block_size, self._change, self._route = blocks, block_size, change, route
        self._stacks = [ReuseStack(block_size) for _ in range(replicas)]

    def serve(self, number: int, request: Request) -> None:
        """The next request. O(tokens) at `memcmp` speed."""
        if self._change:
            request = self._change(number, request)
        stack = self._stacks[self._route(number, request) if self._route else 0]
        self.hit_tokens += hit_blocks(stack.use(request), self._blocks) * self._block_size


class Pricing:
    """Prices fixes against what an LRU cache of `blocks` blocks finds now.

    Args:
        curve: of the trace.
        blocks: the present capacity.
        size_of: says how much memory so many blocks are, in words.
    """

    def __init__(self, curve: LruCurve, blocks: int, size_of: Callable[[int], str]) -> None:
        self._curve, self._blocks, self._size_of = curve, blocks, size_of
        self._now = int(curve.hit_tokens[min(blocks, curve.unique_blocks)])

    def fix(self, kind: Kind, what: str, hit_tokens: int) -> Fix:
        """A fix with which so many tokens hit."""
        return Fix(kind, what, hit_tokens, hit_tokens - self._now, self._curve.input_tokens)

    def memory(self) -> list[Fix]:
        """Twice, four times, and as much as gives `MOST_OF_IT` of the ceiling. Read off the curve."""
        curve, blocks = self._curve, self._blocks
        wanted = {2 * blocks: "2x the memory", 4 * blocks: "4x the memory"}
        enough = curve.blocks_for(MOST_OF_IT * curve.ceiling)
        if enough is not None and enough > blocks:
            wanted.setdefault(enough, f"memory for {MOST_OF_IT:.0%} of the ceiling")
        return [
            self.fix("memory", f"{what}: {self._size_of(size)}", int(curve.hit_tokens[min(size, curve.unique_blocks)]))
            for size, what in wanted.items()
            if blocks < curve.unique_blocks
        ]

    def replayed(self, results: Iterable[ReplayResult]) -> list[Fix]:
        """Other policies and orders."""
        return [
            self.fix("order", "admit the longest cached prefix first", result.hit_tokens)
            if result.config.order == "lpm"
            else self.fix("policy", f"eviction policy {result.config.eviction}", result.hit_tokens)
            for result in results
        ]


def replays(blocks: int, block_size: int, policies: Sequence[str]) -> list[ReplayConfig]:
    """The settings to replay: the cache as it is, with other policies, and with longest-prefix-first order."""
    now = ReplayConfig(blocks, block_size, cache="hash")
    return [now, replace(now, order="lpm"), *(replace(now, eviction=policy) for policy in policies)]


def what_ifs(causes: MissCauses, blocks: int, block_size: int, replicas: int) -> list[tuple[Kind, str, WhatIf]]:
    """Fixes to run the trace through once more, as far as there is something for them to fix."""
    span = max(causes.spans, default=1)
    found: list[tuple[Kind, str, WhatIf]] = [
        ("block size", f"blocks of {size} token{'s' if size > 1 else ''}", WhatIf(blocks * block_size // size, size))
        for size in (16, 1)
        if size < block_size and size % span == 0 and block_size % size == 0
    ]
    if replicas > 1:
        in_turn = WhatIf(blocks, block_size, replicas=replicas, route=lambda number, _: number % replicas)
        affinity = PrefixAffinity(replicas)
        by_prefix = WhatIf(blocks, block_size, replicas=replicas, route=lambda _, request: affinity.route(request))
        found += [
            ("replicas", f"{replicas} replicas, each with this memory, requests in turn", in_turn),
            ("replicas", f"{replicas} replicas, each with this memory, by prefix affinity", by_prefix),
        ]
    if causes.total.parted_early:
        moved = WhatIf(blocks, block_size, change=partial(_stable_first, causes))
        found.append(("volatile text", "the text that changes moved behind the text that does not", moved))
    if causes.total.namespace:
        shared = WhatIf(blocks, block_size, change=lambda _, request: replace(request, namespace=None))
        found.append(("namespaces", "one namespace for all, where that is safe", shared))
    return found


def _stable_first(causes: MissCauses, number: int, request: Request) -> Request:
    return replace(request, prompt=causes.splits.stable_first(number, request.prompt))
