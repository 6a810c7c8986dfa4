"""Least frequently used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixkv.eviction.base import RankedPolicy


class Lfu(RankedPolicy):
    """Evict the leaf with the fewest uses, of those the one used longest ago.

    Being inserted is the first use; every match or insert through the node is another. Counts never age: what was hot
    once stays (the known weakness of plain LFU). A split leaves both halves the count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[Any, int] = {}

    def rank(self, node: Any) -> tuple[int, int]:
        """Uses, then the last use."""
        return self._uses[node], node.last_use

    def inserted(self, node: Any, priority: int) -> None:
        """O(1)."""
        self._uses[node] = 1

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path)."""
        for node in path:
            self._uses[node] += 1

    def split(self, upper: Any, lower: Any) -> None:
        """O(1)."""
        self._uses[upper] = self._uses[lower]

    def removed(self, node: Any) -> None:
        """O(log leaves)."""
        super().removed(node)
        del self._uses[node]
