"""First in, first out."""

from __future__ import annotations

from typing import Any

from radixkv.eviction.base import RankedPolicy


class Fifo(RankedPolicy):
    """Evict the leaf inserted longest ago, however much it is used. A split leaves both halves their age."""

    def __init__(self) -> None:
        super().__init__()
        self._born: dict[Any, int] = {}
        self._births = 0

    def rank(self, node: Any) -> int:
        """The place in the order of insertion."""
        return self._born[node]

    def inserted(self, node: Any, priority: int) -> None:
        """O(1)."""
        self._births += 1
        self._born[node] = self._births

    def split(self, upper: Any, lower: Any) -> None:
        """O(1)."""
        self._born[upper] = self._born[lower]

    def removed(self, node: Any) -> None:
        """O(log leaves)."""
        super().removed(node)
        del self._born[node]
