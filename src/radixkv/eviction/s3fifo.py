"""S3-FIFO: a small queue filters what is seen once from what goes to the main one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any, Final

from radixkv.eviction.base import LeafHeap

SMALL_SHARE: Final = (1, 10)
"""The part of the evictable blocks at which the small queue gives up one, as a fraction."""
GHOST_SHARE: Final = (9, 10)
"""Evicted nodes remembered, for every node that is cached, as a fraction: the published size of the main queue."""
MOST_HITS: Final = 3
"""Hits are counted up to these, in two bits."""


class _Entry:
    """What is kept of a cached node."""

    __slots__ = ("blocks", "hits", "main", "name", "place")

    def __init__(self, name: Hashable, main: bool, place: int) -> None:
        self.name = name
        self.main = main
        self.place = place  # in its queue
        self.hits = 0
        self.blocks = 0  # while it is evictable


class S3Fifo:
    """Evict first in first out from a small queue of the new, and from a main one of what proved itself.

    After Yang et al., "FIFO queues are all you need for cache eviction" (2023). A node starts in the small queue, or in
    the main one if it is still remembered as a ghost. When the small queue has `SMALL_SHARE` or more, its first goes:
    out and among the ghosts, or to the main queue with its hits cleared if it was hit more than once. Otherwise the
    main queue's first goes, out for good, or to its end with a hit less if it has one. A match is a hit, the insert
    that follows is not.

    What cannot be evicted stands beside the queues and counts in neither; once it can, it is where it was in the order,
    or first if all before it have gone. The share is one of evictable blocks, since nobody tells a policy the size of
    the cache. A split leaves both halves the queue, the place and the hits.

    Cost: O(path) a match, O(log leaves) an eviction, and as much for every hit that it uses up. Memory: about 0.4 KB a
    cached node, 0.1 KB a ghost, of which there are at most 9 for 10 cached nodes.
    """

    def __init__(self) -> None:
        self._entries: dict[Any, _Entry] = {}
        self._small, self._main = LeafHeap(), LeafHeap()
        self._small_blocks = self._leaf_blocks = 0
        self._ghosts: OrderedDict[Hashable, None] = OrderedDict()
        self._places = count()
        self._victim: Any = None  # until something happens

    def inserted(self, node: Any, priority: int) -> None:
        """O(1), and what a content's name costs."""
        name = node.content_name
        remembered = name in self._ghosts
        if remembered:
            del self._ghosts[name]
        self._entries[node] = _Entry(name, remembered, next(self._places))

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path) for a match, O(1) for an insert."""
        if priority is None:
            self._victim = None
            for node in path:
                entry = self._entries[node]
                if entry.hits < MOST_HITS:
                    entry.hits += 1

    def split(self, upper: Any, lower: Any) -> None:
        """O(1), and what a content's name costs."""
        entry = self._entries[lower]
        half = self._entries[upper] = _Entry(entry.name, entry.main, entry.place)
        half.hits = entry.hits
        entry.name = lower.content_name
        if entry.blocks:
            self._count(entry, lower.num_blocks)

    def removed(self, node: Any) -> None:
        """O(log leaves), amortized."""
        self.protected(node)
        entry = self._entries.pop(node)
        if not entry.main:
            self._ghosts[entry.name] = None
            self._ghosts.move_to_end(entry.name)
        part, whole = GHOST_SHARE
        while whole * len(self._ghosts) > part * len(self._entries):
            self._ghosts.popitem(last=False)

    def evictable(self, node: Any) -> None:
        """O(log leaves)."""
        self._victim = None
        entry = self._entries[node]
        self._queue(entry).push(node, entry.place)
        self._count(entry, node.num_blocks)

    def protected(self, node: Any) -> None:
        """O(1), amortized."""
        self._victim = None
        entry = self._entries[node]
        self._queue(entry).discard(node)
        self._count(entry, 0)

    def victim(self) -> Any | None:
        """O(log leaves) a step; every step but the last uses up a hit."""
        part, whole = SMALL_SHARE
        while self._victim is None:
            is_small_full = whole * self._small_blocks >= part * self._leaf_blocks
            first = (self._small if is_small_full else self._main).lowest()
            if first is None:
                return None
            node = first[1]
            entry = self._entries[node]
            if entry.main and entry.hits:
                self._requeue(node, entry, entry.hits - 1)
            elif entry.hits > 1:
                self._requeue(node, entry, 0)
            else:
                self._victim = node
        return self._victim

    def _requeue(self, node: Any, entry: _Entry, hits: int) -> None:
        """To the end of the main queue."""
        self._queue(entry).discard(node)
        blocks = entry.blocks
        self._count(entry, 0)
        entry.main, entry.hits, entry.place = True, hits, next(self._places)
        self._main.push(node, entry.place)
        self._count(entry, blocks)

    def _queue(self, entry: _Entry) -> LeafHeap:
        return self._main if entry.main else self._small

    def _count(self, entry: _Entry, blocks: int) -> None:
        """Let the entry count as so many evictable blocks."""
        more = blocks - entry.blocks
        entry.blocks = blocks
        self._leaf_blocks += more
        if not entry.main:
            self._small_blocks += more
