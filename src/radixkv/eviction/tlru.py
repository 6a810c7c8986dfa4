"""Tail-optimized least recently used: what a conversation can do without goes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from radixkv.eviction.base import RankedPolicy

SPARED: Final = 8
"""Blocks at the end of every conversation that it can do without."""


class Tlru(RankedPolicy):
    """Evict the tails of conversations first, then the leaf used longest ago.

    After Zhang et al., "Tail-Optimized Caching for LLM Inference" (2025). A conversation of L tokens whose next prompt
    brings about Q more, to be prefilled within a latency that allows x tokens, needs its first L + Q - x tokens cached.
    What lies behind can go without harm, and goes first, the least recent first; short conversations go as a whole. It
    serves tail latency, not the hit rate. A policy sees blocks and no latency: x - Q is `SPARED` blocks here, the last
    ones of every inserted prompt. A node in the way of several prompts counts for the longest.

    Cost: O(path) an insert, O(log leaves) an eviction. Memory: about 0.2 KB a cached node.
    """

    def __init__(self) -> None:
        super().__init__()
        self._behind: dict[Any, int] = {}  # blocks behind the node, of the longest prompt through it
        self._path: list[Any] = []  # of the insert that goes on

    def rank(self, node: Any) -> tuple[bool, int]:
        """Whether it is needed, then the last use."""
        return self._behind[node] + node.num_blocks > SPARED, node.last_use

    def inserted(self, node: Any, priority: int) -> None:
        """O(1)."""
        self._behind[node] = 0
        self._path.append(node)

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path) for an insert: what it adds stands behind all of it."""
        if priority is not None:
            self._path = list(path)

    def split(self, upper: Any, lower: Any) -> None:
        """O(log leaves): the lower half may be short enough to do without."""
        self._behind[upper] = self._behind[lower] + lower.num_blocks
        self.fell(lower)

    def removed(self, node: Any) -> None:
        """O(log leaves)."""
        super().removed(node)
        del self._behind[node]

    def evictable(self, node: Any) -> None:
        """O(log leaves), and O(path) after an insert."""
        if self._path and self._path[-1] is node:
            behind = 0
            for step in reversed(self._path):
                self._behind[step] = max(self._behind[step], behind)
                behind += step.num_blocks
            self._path = []
        super().evictable(node)
