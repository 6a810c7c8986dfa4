"""The hit rate of an LRU prefix cache at every capacity, exactly, in one pass over a trace."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from radixkv.lab.reuse import Reuse, ReuseStack
from radixkv.lab.sizes import bytes_text
from radixkv.traces import Request

Observer: TypeAlias = Callable[[int, Request, list[Reuse]], None]
"""Hears of every request: its number from 0, itself, and what it reuses."""


@dataclass(frozen=True, slots=True, eq=False)
class LruCurve:
    """How many tokens an LRU cache that evicts single blocks saves, by its capacity in blocks."""

    block_size: int
    """Tokens a block."""
    requests: int
    input_tokens: int
    """Tokens of all prompts."""
    unique_blocks: int
    """Distinct blocks of the trace: a cache of so many evicts nothing."""
    hit_tokens: npt.NDArray[np.int64]
    """Prompt tokens found cached, at capacities of 0, 1, … `unique_blocks` blocks; of a sample, see `place`."""
    sample: float = 1.0
    """The share of the blocks that it was computed from."""
    error_tokens: npt.NDArray[np.int64] | None = None
    """The standard error of each of `hit_tokens`; None where it is exact."""

    def hit_rate(self, blocks: int) -> float:
        """Hit tokens over input tokens at that capacity; 0.0 for an empty trace. O(1)."""
        return int(self.hit_tokens[self.place(blocks)]) / max(self.input_tokens, 1)

    def error(self, blocks: int) -> float:
        """The standard error of the hit rate at that capacity; 0.0 of a curve that is exact. O(1)."""
        tokens = 0 if self.error_tokens is None else int(self.error_tokens[self.place(blocks)])
        return tokens / max(self.input_tokens, 1)

    def place(self, blocks: int) -> int:
        """Where in `hit_tokens` a capacity is: at itself, but of a sample at the blocks of it that would be cached."""
        inside = int((blocks - 1) * self.sample) + 1 if blocks > 0 else 0
        return min(inside, len(self.hit_tokens) - 1)

    def capacity(self, place: int) -> int:
        """The smallest capacity with that place."""
        return math.ceil((place - 1) / self.sample) + 1 if place else 0

    @property
    def ceiling(self) -> float:
        """The hit rate without evictions: no policy and no memory can give more."""
        return int(self.hit_tokens[-1]) / max(self.input_tokens, 1)

    def blocks_for(self, hit_rate: float) -> int | None:
        """The smallest capacity with at least that hit rate; None if it is above the ceiling. O(log blocks)."""
        wanted = int(np.searchsorted(self.hit_tokens, hit_rate * self.input_tokens))
        return self.capacity(wanted) if wanted < len(self.hit_tokens) else None

    def cliffs(self, *, more_memory: float = 0.1, gain: float = 0.1) -> list[Cliff]:
        """Where a little more memory gains much, in order of size: stretches that steep, however long. O(blocks).

        Steep is a gain of at least `gain` in hit rate by at most `more_memory` more, or one block. A stretch is cut
        to the shortest part of it with nine tenths of its gain, and what is about as steep beside that.
        """
        last = len(self.hit_tokens) - 1
        if last < 2 or not self.input_tokens:
            return []
        rates = self.hit_tokens / self.input_tokens
        below = np.arange(1, last)
        above = np.minimum(np.maximum(below + 1, (below * (1 + more_memory)).astype(np.int64)), last)
        steep = np.flatnonzero(rates[above] - rates[below] >= gain)
        stretches = np.split(steep, np.flatnonzero(below[steep[1:]] > above[steep[:-1]]) + 1)
        return [self._cliff(rates, below[part[0]], above[part[-1]]) for part in stretches if len(part)]

    def _cliff(self, rates: npt.NDArray[np.float64], low: int, high: int) -> Cliff:
        """The shortest part of a stretch with nine tenths of its gain, and what beside it is at least half as steep."""
        part = rates[low : high + 1]
        enough = np.searchsorted(part, part + 0.9 * (part[-1] - part[0]) - 1e-12)
        starts = np.flatnonzero(enough < len(part))
        start = int(starts[np.argmin(enough[starts] - starts)])
        stop = int(enough[start])
        steps = np.diff(part)
        steep = (part[stop] - part[start]) / (stop - start) / 2
        while stop < len(steps) and steps[stop] >= steep:
            stop += 1
        while start and steps[start - 1] >= steep:
            start -= 1
        blocks, more = self.capacity(int(low + start)), self.capacity(int(low + stop))
        return Cliff(blocks, more, self.hit_rate(blocks), self.hit_rate(more))


@dataclass(frozen=True, slots=True)
class Cliff:
    """Two capacities close to each other whose hit rates are far apart."""

    blocks: int
    """The capacity that is a little too small."""
    enough: int
    """The one that is not."""
    hit_rate: float
    """At `blocks`."""
    hit_rate_with_enough: float

    def text(self, block_bytes: float | None = None) -> str:
        """The cliff in a sentence, in memory where a block's bytes are known.

        >>> Cliff(4864, 5120, 0.001, 0.93).text(8 * 2**20)
        'one prefix too few costs everything: 38 GiB → 40 GiB takes the hit rate from 0.00 to 0.93'
        """
        if block_bytes is None:
            sizes = f"{self.blocks:,} → {self.enough:,} blocks"
        else:
            sizes = f"{bytes_text(self.blocks * block_bytes)} → {bytes_text(self.enough * block_bytes)}"
        everything = self.hit_rate < self.hit_rate_with_enough / 10
        lost = "one prefix too few costs everything" if everything else "a little memory makes a large difference"
        return f"{lost}: {sizes} takes the hit rate from {self.hit_rate:.2f} to {self.hit_rate_with_enough:.2f}"


def lru_curve(requests: Iterable[Request], block_size: int, *, observe: Observer | None = None) -> LruCurve:
    """The exact curve of a trace. O(tokens) at `memcmp` speed and O(log requests) a request; see `ReuseStack`.

    Args:
        requests: the trace, read once.
        block_size: tokens a block, a whole multiple of the trace's span.
        observe: hears of every request what it reuses, say `Optimum.add`.

    Raises:
        SizeError: a block size below 1.
        SpanError: blocks that the trace cannot tell.
    """
    stack = ReuseStack(block_size)
    # One more hit block at a capacity of `above + 1`, one more again at each of the next: +1 there, -1 behind the run.
    steps = array("q")
    input_tokens = 0
    for number, request in enumerate(requests):
        runs = stack.use(request)
        input_tokens += request.input_tokens
        if len(steps) < stack.unique_blocks + 2:
            steps.frombytes(bytes(8 * (2 * stack.unique_blocks + 2 - len(steps))))
        for start, stop, _, above in runs:
            steps[above + 1] += 1
            steps[above + 1 + stop - start] -= 1
        if observe:
            observe(number, request, runs)
    unique = stack.unique_blocks
    hit_blocks = np.cumsum(np.cumsum(np.frombuffer(steps, np.int64)[: unique + 1])) if steps else np.zeros(1, np.int64)
    return LruCurve(block_size, stack.requests, input_tokens, unique, hit_blocks * block_size)
