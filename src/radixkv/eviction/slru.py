"""Segmented least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from radixkv.eviction.base import RankedPolicy

PROTECTED_SHARE: Final = (4, 5)
"""The part of all nodes that the protected segment may hold, as a fraction."""


class Slru(RankedPolicy):
    """Segmented LRU: what was used again is safe from what was seen once (Karedla, Love and Wherry, 1994).

    A node starts in probation; its second use moves it to the recent end of the protected segment, and so does every
    further one. That holds at most `PROTECTED_SHARE` of the nodes: beyond, the one used longest ago falls back to the
    recent end of probation. Victims come from probation first, each segment least recent first. Of a path the leaf
    moves first and the root last, so a trunk is never below its branches. A split leaves both halves in their segment.
    """

    def __init__(self) -> None:
        super().__init__()
        self._moved: dict[Any, int] = {}
        self._protected: OrderedDict[Any, None] = OrderedDict()  # least recent first
        self._moves = 0

    def rank(self, node: Any) -> tuple[bool, int]:
        """The segment, then the place in it."""
        return node in self._protected, self._moved[node]

    def inserted(self, node: Any, priority: int) -> None:
        """O(1)."""
        self._move(node)

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path), amortized: every use promotes each node once, and pays for one demotion."""
        for node in reversed(path):
            self._protected[node] = None
            self._protected.move_to_end(node)
            self._move(node)
        self._demote()

    def split(self, upper: Any, lower: Any) -> None:
        """O(1)."""
        self._moved[upper] = self._moved[lower]
        if lower in self._protected:
            self._protected[upper] = None

    def removed(self, node: Any) -> None:
        """O(log leaves)."""
        super().removed(node)
        del self._moved[node]
        self._protected.pop(node, None)
        self._demote()

    def _move(self, node: Any) -> None:
        self._moves += 1
        self._moved[node] = self._moves

    def _demote(self) -> None:
        part, whole = PROTECTED_SHARE
        while whole * len(self._protected) > part * len(self._moved):
            node, _ = self._protected.popitem(last=False)
            self._move(node)
            self.fell(node)
