"""What an eviction policy is, and the heap that most of them need.

A policy chooses, the cache removes. A policy hears of every node's insertion, use, split and removal, and of leaves
becoming evictable or not; it names the next victim among those. It never sees the tree and never touches a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeAlias


class Evictable(Protocol):
    """What a policy sees of a node: an identity, when it was last used, its size, and a name that outlives it."""

    @property
    def last_use(self) -> int:
        """Logical time of the last use, one tick a match or insert. Nodes of one path share it; siblings never do."""

    @property
    def num_blocks(self) -> int:
        """How many blocks go with it."""

    @property
    def content_name(self) -> Hashable:
        """Stands for the prefix up to the end of the node's first block: what a policy remembers an evicted node by.

        Whatever begins there later has the same name, so a prompt that comes back is recognized however its node was
        cut. To be asked for while the node is cached. O(tokens) the first time a path is asked for, then O(block).
        """

    def __hash__(self) -> int: ...


class EvictionPolicy(Protocol):
    """Ranks the nodes of one cache. A cache calls the hooks in the order things happen and passes its own nodes.

    A node is first inserted, or split off; then used, made evictable or protected any number of times; then removed,
    which it may be only while evictable. The root is never passed.
    """

    def inserted(self, node: Any, priority: int) -> None:
        """A new node, which counts as its first use. `priority` is what the caller of `insert` gave."""

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """A match or insert ran through these nodes, in order from the root; `last_use` is stamped already.

        `priority` is that of the insert, None for a match.
        """

    def split(self, upper: Any, lower: Any) -> None:
        """The beginning of `lower`, which goes on, became the new node `upper`. A use of `upper` alone may follow."""

    def removed(self, node: Any) -> None:
        """The node is gone; forget it."""

    def evictable(self, node: Any) -> None:
        """The node became an unlocked leaf."""

    def protected(self, node: Any) -> None:
        """The node is no unlocked leaf any more: it got a child or a lock."""

    def victim(self) -> Any | None:
        """The evictable node that should go next, or None if there is none. The cache removes it right away."""


Rank: TypeAlias = Any
"""Whatever compares: the lowest goes first."""


class LeafHeap:
    """Evictable nodes by the rank they were pushed with.

    Entries of nodes that were taken out are left behind in the heap, and it is rebuilt when they outnumber the others:
    so it stays O(nodes in it), whatever comes and goes between two evictions.

    Cost: `push` O(log nodes), `discard` O(1), `lowest` O(log nodes) for every entry left behind that it meets, each met
    once; all amortized.
    """

    LEFT_BEHIND = 64
    """Dead entries that are not worth a rebuild."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Any]] = []  # rank, serial, node; the serial keeps nodes from being compared
        self.live: dict[Any, tuple[Rank, int, Any]] = {}
        """The nodes that are in, each with the one entry that counts. To read, where a call would be too much."""
        self._serial = count()

    def __len__(self) -> int:
        return len(self.live)

    def __contains__(self, node: object) -> bool:
        return node in self.live

    def push(self, node: Any, rank: Rank) -> None:
        """Put a node in, or give the one that is in another rank."""
        entry = self.live[node] = (rank, next(self._serial), node)
        heappush(self._heap, entry)
        self._compact()

    def discard(self, node: Any) -> None:
        """Take a node out; it is in."""
        del self.live[node]
        self._compact()

    def lowest(self) -> tuple[Rank, Any] | None:
        """The lowest rank, and its node; None if there is none."""
        while self._heap:
            entry = self._heap[0]
            if self.live.get(entry[2]) is entry:
                return entry[0], entry[2]
            heappop(self._heap)
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self.live) + self.LEFT_BEHIND:
            self._heap = list(self.live.values())
            heapify(self._heap)


class RankedPolicy(ABC):
    """A policy that gives every node a rank and evicts the evictable one of the lowest.

    As long as ranks only rise, a use costs nothing here: the rank in the heap is a lower bound, and `victim` puts it
    right once it comes to the top, one O(log leaves) step for every leaf whose rank rose since.
    """

    def __init__(self) -> None:
        self._leaves = LeafHeap()

    @abstractmethod
    def rank(self, node: Any) -> Rank:
        """The node's rank now. Two nodes that are evictable at once never have the same."""

    def inserted(self, node: Any, priority: int) -> None:
        """See `EvictionPolicy`."""

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """See `EvictionPolicy`."""

    def split(self, upper: Any, lower: Any) -> None:
        """See `EvictionPolicy`."""

    def removed(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        self._leaves.discard(node)

    def evictable(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        self._leaves.push(node, self.rank(node))

    def protected(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        self._leaves.discard(node)

    def fell(self, node: Any) -> None:
        """To be called when a node's rank may have fallen: in the heap it must not be above that."""
        if node in self._leaves:
            self._leaves.push(node, self.rank(node))

    def victim(self) -> Any | None:
        """See `EvictionPolicy`."""
        while lowest := self._leaves.lowest():
            rank, node = lowest
            today = self.rank(node)
            if today == rank:
                return node
            self._leaves.push(node, today)
        return None
