"""Least recently used."""

from __future__ import annotations

from typing import Any

from radixkv.eviction.base import RankedPolicy


class Lru(RankedPolicy):
    """Evict the leaf used longest ago. A match costs this policy nothing but the stamp the cache makes anyway."""

    def rank(self, node: Any) -> int:
        """The last use."""
        last_use: int = node.last_use
        return last_use
