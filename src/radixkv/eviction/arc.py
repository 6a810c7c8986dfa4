"""ARC: an adaptive share between what was seen once and what was seen again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from radixkv.eviction.base import LeafHeap


class _Ghosts:
    """Names of evicted nodes, the one evicted last at the end, and how many blocks they had."""

    def __init__(self) -> None:
        self._names: OrderedDict[Hashable, int] = OrderedDict()
        self.blocks = 0

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: Hashable, blocks: int) -> None:
        self._names[name] = blocks
        self.blocks += blocks

    def discard(self, name: Hashable) -> int:
        """How many blocks it had; 0 if it is not remembered."""
        blocks = self._names.pop(name, 0)
        self.blocks -= blocks
        return blocks

    def trim(self, blocks: int) -> None:
        """Forget the oldest until there are no more than so many blocks."""
        while self.blocks > blocks:
            self.blocks -= self._names.popitem(last=False)[1]


class _List:
    """The cached nodes of one list (T1 or T2), and its ghosts (B1 or B2)."""

    def __init__(self) -> None:
        self.leaves = LeafHeap()  # by their last use, or an earlier one
        self.ghosts = _Ghosts()
        self.blocks = 0

    def oldest(self) -> Any | None:
        """The leaf used longest ago."""
        while lowest := self.leaves.lowest():
            last_use, node = lowest
            if last_use == node.last_use:
                return node
            self.leaves.push(node, node.last_use)
        return None


class Arc:
    """Evict the least recent of what was seen once, or of what was seen again, as the ghosts of both advise.

    After Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (2003). A node is in the first list
    (T1) until a match makes it one of the second (T2). What is evicted is remembered with its list (B1, B2). Content
    that comes back as a ghost of the first list raises the target for the first list's size, one of the second lowers
    it, by more the fewer such ghosts there are; either starts in the second. The first list gives the victim while it
    is larger than the target.

    Sizes are of blocks, the cache's size is that of what is cached, and a step of the target is as large as the node
    that came back. The insert after a match is the same request's. Nobody tells a policy what a victim makes room for:
    the target counts from the next eviction on, and the published tie (a ghost of B2 that finds T1 exactly at its
    target takes from T1) is not told apart. A split leaves both halves in their list.

    Cost: O(path) a match, O(log leaves) an eviction. Memory: about 0.4 KB a cached node, 0.2 KB a ghost; ghosts had no
    more blocks than are cached when a node is inserted.
    """

    def __init__(self) -> None:
        self._once, self._again = _List(), _List()
        self._lists: dict[Any, _List] = {}
        self._names: dict[Any, Hashable] = {}
        self._target = 0.0  # blocks of the first list; "p" in the paper

    def inserted(self, node: Any, priority: int) -> None:
        """O(1), amortized, and what a content's name costs."""
        once, again = self._once, self._again
        name = self._names[node] = node.content_name
        first, second = once.ghosts.blocks, again.ghosts.blocks
        size = once.blocks + again.blocks + node.num_blocks
        if blocks := once.ghosts.discard(name):
            self._target = min(self._target + blocks * max(second / first, 1), size)
        elif blocks := again.ghosts.discard(name):
            self._target = max(self._target - blocks * max(first / second, 1), 0)
        home = self._lists[node] = again if blocks else once
        home.blocks += node.num_blocks
        once.ghosts.trim(again.blocks)
        again.ghosts.trim(size - once.ghosts.blocks)

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path) for a match, O(1) for an insert."""
        if priority is None:
            for node in path:
                if self._lists[node] is self._once:
                    self._promote(node)

    def split(self, upper: Any, lower: Any) -> None:
        """O(1), and what a content's name costs."""
        self._lists[upper] = self._lists[lower]
        self._names[upper], self._names[lower] = self._names[lower], lower.content_name

    def removed(self, node: Any) -> None:
        """O(log leaves), amortized."""
        self.protected(node)
        home, name = self._lists.pop(node), self._names.pop(node)
        home.blocks -= node.num_blocks
        for other in (self._once, self._again):
            other.ghosts.discard(name)
        home.ghosts.add(name, node.num_blocks)

    def evictable(self, node: Any) -> None:
        """O(log leaves)."""
        self._lists[node].leaves.push(node, node.last_use)

    def protected(self, node: Any) -> None:
        """O(1), amortized."""
        self._lists[node].leaves.discard(node)

    def victim(self) -> Any | None:
        """O(log leaves), amortized over uses."""
        first, second = self._once, self._again
        if first.blocks <= self._target:
            first, second = second, first
        oldest = first.oldest()
        return second.oldest() if oldest is None else oldest

    def _promote(self, node: Any) -> None:
        self._once.blocks -= node.num_blocks
        self._again.blocks += node.num_blocks
        self._lists[node] = self._again
        if node in self._once.leaves:
            self._once.leaves.discard(node)
            self._again.leaves.push(node, node.last_use)
