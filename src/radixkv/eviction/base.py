"""What an eviction policy is, and the heap that most of them need.

A policy chooses, the cache removes. A policy hears of every node's insertion, use, split and removal, and of leaves
becoming evictable or not; it names the next victim among those. It never sees the tree and never touches a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Protocol, TypeAlias


class Evictable(Protocol):
    """What a policy sees of a node: an identity to remember it by, and when it was last used."""

    @property
    def last_use(self) -> int:
        """Logical time of the last use, one tick a match or insert. Nodes of one path share it; siblings never do."""

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


class RankedPolicy(ABC):
    """A policy that gives every node a rank and evicts the evictable one of the lowest.

    The evictable nodes sit in a heap by the rank they had when they were pushed. A use costs nothing here as long as
    ranks only rise: an entry then is a lower bound, and `victim` puts it right when it comes to the top. A node has
    one live entry, whatever happens to it; only a rank that falls replaces it, and once the entries left behind outnumber
    the live ones the heap is rebuilt. So the heap stays O(nodes).

    Cost: `evictable` O(log leaves), `protected` O(1), `victim` O(log leaves) amortized: one step for every entry whose
    rank rose since it was pushed.
    """

    _SLACK = 64

    def __init__(self) -> None:
        self._leaves: set[Any] = set()
        self._heap: list[tuple[Rank, int, Any]] = []  # the serial keeps nodes from being compared
        self._entry: dict[Any, tuple[Rank, int, Any]] = {}  # a node's one live entry of the heap
        self._serial = 0

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
        if self._entry.pop(node, None) is self._heap[0]:
            heappop(self._heap)

    def evictable(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        self._leaves.add(node)
        if node not in self._entry or self.rank(node) < self._entry[node][0]:
            self._push(node)

    def protected(self, node: Any) -> None:
        """See `EvictionPolicy`. The entry stays for the day the node is evictable again, or comes to the top."""
        self._leaves.discard(node)

    def fell(self, node: Any) -> None:
        """To be called when a node's rank may have fallen, since its entry must not be above its rank."""
        if node in self._entry and self.rank(node) < self._entry[node][0]:
            self._push(node)

    def victim(self) -> Any | None:
        """See `EvictionPolicy`."""
        heap, live = self._heap, self._entry
        while heap:
            entry = heap[0]
            rank, _, node = entry
            if live.get(node) is entry:
                if node in self._leaves:
                    if (today := self.rank(node)) == rank:
                        return node
                    live[node] = self._made(today, node)
                    heapreplace(heap, live[node])
                    continue
                del live[node]
            heappop(heap)
        return None

    def _push(self, node: Any) -> None:
        self._entry[node] = self._made(self.rank(node), node)
        heappush(self._heap, self._entry[node])
        if len(self._heap) > 2 * len(self._entry) + self._SLACK:
            self._heap = list(self._entry.values())
            heapify(self._heap)

    def _made(self, rank: Rank, node: Any) -> tuple[Rank, int, Any]:
        self._serial += 1
        return rank, self._serial, node
