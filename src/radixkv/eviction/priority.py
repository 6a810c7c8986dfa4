"""Lowest priority first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixkv.eviction.base import RankedPolicy


class Priority(RankedPolicy):
    """Evict the leaf of the lowest priority, of those the one used longest ago.

    A node has the highest priority of all inserts that ran through it: what an important prompt stands on is as
    important. A split leaves both halves the priority.
    """

    def __init__(self) -> None:
        super().__init__()
        self._priority: dict[Any, int] = {}

    def rank(self, node: Any) -> tuple[int, int]:
        """Priority, then the last use."""
        return self._priority[node], node.last_use

    def inserted(self, node: Any, priority: int) -> None:
        """O(1)."""
        self._priority[node] = priority

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """O(path) for an insert, O(1) for a match."""
        if priority is not None:
            for node in path:
                self._priority[node] = max(self._priority[node], priority)

    def split(self, upper: Any, lower: Any) -> None:
        """O(1)."""
        self._priority[upper] = self._priority[lower]

    def removed(self, node: Any) -> None:
        """O(log leaves)."""
        super().removed(node)
        del self._priority[node]
