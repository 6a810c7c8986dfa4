"""Most recently used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radixkv.eviction.base import RankedPolicy


class Mru(RankedPolicy):
    """Evict the leaf used last: for loops over more prefixes than fit, which starve LRU.

    A use makes a leaf the next victim, so it costs O(log leaves) here.
    """

    def rank(self, node: Any) -> int:
        """The last use, newest first."""
        last_use: int = node.last_use
        return -last_use

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """Only the last node can be a leaf; the others' ranks are looked at when they become one."""
        if path:
            self.fell(path[-1])
