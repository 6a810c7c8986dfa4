"""What an eviction policy is, and the heap that most of them need.

A policy chooses, the cache removes. A policy hears of every node's insertion, use, split and removal, and of leaves
becoming evictable or not; it names the next victim among those. It never sees the tree and never touches a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
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

_Entry: TypeAlias = tuple[Rank, int, Any]  # rank, serial, node; the serial keeps nodes from being compared


class RankedPolicy(ABC):
    """A policy that gives every node a rank and evicts the evictable one of the lowest.

    The evictable nodes sit in a heap, each by the rank it had when it was pushed. As long as ranks only rise, a use
    costs nothing here: the entry is a lower bound, and `victim` puts it right once it comes to the top. Entries of
    nodes that went or are protected are left behind, and the heap is rebuilt when they outnumber the live ones, so it
    stays O(evictable nodes) whatever happens between evictions.

    Cost: `evictable` O(log leaves), amortized; `protected` O(1); `victim` one O(log leaves) step, and one more for
    every entry that was left behind or rose since it was pushed, each paid once.
    """

    LEFT_BEHIND = 64
    """Dead entries that are not worth a rebuild."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._live: dict[Any, _Entry] = {}  # of every evictable node, its one entry that counts
        self._serial = count()

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
        del self._live[node]

    def evictable(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        entry = self._live[node] = (self.rank(node), next(self._serial), node)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + self.LEFT_BEHIND:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def protected(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        del self._live[node]

    def fell(self, node: Any) -> None:
        """To be called when a node's rank may have fallen: an entry must not be above its node's rank."""
        if node in self._live:
            self.evictable(node)

    def victim(self) -> Any | None:
        """See `EvictionPolicy`."""
        heap, live = self._heap, self._live
        while heap:
            entry = heap[0]
            node = entry[2]
            if live.get(node) is not entry:
                heappop(heap)
            elif (rank := self.rank(node)) == entry[0]:
                return node
            else:
                live[node] = risen = (rank, entry[1], node)
                heapreplace(heap, risen)
        return None
