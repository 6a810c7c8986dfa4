"""LRU-2: least recent second to last use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Final

from radixkv.eviction.base import RankedPolicy

GHOSTS: Final = 4
"""Evicted nodes remembered, for every node that is cached."""


class _History:
    """What is kept of a cached node."""

    __slots__ = ("before", "last", "name")

    def __init__(self, name: Hashable, before: int, last: int) -> None:
        self.name = name
        self.before = before  # the last reference but one; 0 for none
        self.last = last


class Lru2(RankedPolicy):
    """Evict the leaf whose last reference but one is longest ago; of those seen once, the one used longest ago.

    After O'Neil, O'Neil and Weikum, "The LRU-K Page Replacement Algorithm for Database Disk Buffering" (1993), K = 2.
    Being inserted is a reference, and so is every match. The insert after a match is of the same request: in the
    paper's terms a correlated reference, which renews the last one and is none of its own; there is no other correlated
    period. Their retained information is bounded here by number: a ghost keeps the time of the last reference, so that
    content which comes back has its second one. The ghost of what was evicted first is forgotten first. A split leaves
    both halves their history.

    Cost: O(path) a match, O(log leaves) an eviction. Memory: about 0.3 KB a cached node, 0.2 KB a ghost, of which there
    are at most `GHOSTS` for every cached node.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cached: dict[Any, _History] = {}
        self._ghosts: OrderedDict[Hashable, int] = OrderedDict()

    def rank(self, node: Any) -> tuple[int, int]:
        """The last two references, the older one first."""
        history = self._cached[node]
        return history.before, history.last

    def inserted(self, node: Any, priority: int) -> None:
        """O(1), and what a content's name costs."""
        name = node.content_name
        self._cached[node] = _History(name, self._ghosts.pop(name, 0), node.last_use)

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path)."""
        for node in path:
            history = self._cached[node]
            if priority is None:
                history.before = history.last
            history.last = node.last_use

    def split(self, upper: Any, lower: Any) -> None:
        """O(1), and what a content's name costs."""
        history = self._cached[lower]
        self._cached[upper] = _History(history.name, history.before, history.last)
        history.name = lower.content_name

    def removed(self, node: Any) -> None:
        """O(log leaves), amortized."""
        super().removed(node)
        history = self._cached.pop(node)
        self._ghosts[history.name] = history.last
        self._ghosts.move_to_end(history.name)
        while len(self._ghosts) > GHOSTS * len(self._cached):
            self._ghosts.popitem(last=False)
