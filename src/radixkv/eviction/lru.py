"""Least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from radixkv.eviction.base import LeafHeap


class Lru:
    """Evict the leaf used longest ago.

    Nearly every leaf becomes evictable just after a use later than all others', or, a parent whose last child was
    evicted, with a use before all others': so the leaves stand in a list in the order of their last use, and a use
    moves one to its end. Only those that come out of order, say a prompt unlocked long after its use, need a heap.

    Cost: O(1) a call, but O(log leaves) for those out of order.
    """

    def __init__(self) -> None:
        self._in_order: OrderedDict[Any, None] = OrderedDict()
        self._late = LeafHeap()
        self._newest = 0  # no use of a leaf in order was later

    def inserted(self, node: Any, priority: int) -> None:
        """See `EvictionPolicy`. Nothing to note: the cache stamps the node."""

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """See `EvictionPolicy`. Only the last node of a path can be a leaf."""
        if path:
            leaf = path[-1]
            if leaf in self._in_order:
                self._in_order.move_to_end(leaf)
                self._newest = leaf.last_use
            elif leaf in self._late.live:
                self._late.discard(leaf)
                self.evictable(leaf)

    def split(self, upper: Any, lower: Any) -> None:
        """See `EvictionPolicy`. Nothing to note: the tree hands the last use down."""

    def evictable(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        in_order, last_use = self._in_order, node.last_use
        if last_use >= self._newest or not in_order:
            in_order[node] = None
            self._newest = last_use
        elif last_use <= next(iter(in_order)).last_use:
            in_order[node] = None
            in_order.move_to_end(node, last=False)
        else:
            self._late.push(node, last_use)

    def protected(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        if node in self._in_order:
            del self._in_order[node]
        else:
            self._late.discard(node)

    removed = protected
    """See `EvictionPolicy`."""

    def victim(self) -> Any | None:
        """See `EvictionPolicy`."""
        oldest = next(iter(self._in_order), None)
        late = self._late.lowest() if self._late.live else None
        if late is None or (oldest is not None and oldest.last_use < late[0]):
            return oldest
        return late[1]
