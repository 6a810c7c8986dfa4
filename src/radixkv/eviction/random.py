"""Any leaf, by a seeded choice."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random as Generator
from typing import Any


class Random:
    """Evict a leaf drawn at random, each as likely as any other: what a policy has to beat.

    Draws from a generator of its own, seeded alike in every cache: the same calls give the same victims.

    Cost: O(1) a call.
    """

    def __init__(self) -> None:
        self._generator = Generator(0)
        self._leaves: list[Any] = []
        self._places: dict[Any, int] = {}
        self._drawn: Any = None  # until leaves come or go

    def inserted(self, node: Any, priority: int) -> None:
        """See `EvictionPolicy`. Nothing to note."""

    def used(self, path: Sequence[Any], priority: int | None) -> None:
        """See `EvictionPolicy`. Nothing to note."""

    def split(self, upper: Any, lower: Any) -> None:
        """See `EvictionPolicy`. Nothing to note."""

    def removed(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        self.protected(node)

    def evictable(self, node: Any) -> None:
        """See `EvictionPolicy`."""
        self._drawn = None
        self._places[node] = len(self._leaves)
        self._leaves.append(node)

    def protected(self, node: Any) -> None:
        """See `EvictionPolicy`. The last leaf takes the place of the one that goes."""
        self._drawn = None
        place, last = self._places.pop(node), self._leaves.pop()
        if last is not node:
            self._leaves[place] = last
            self._places[last] = place

    def victim(self) -> Any | None:
        """See `EvictionPolicy`."""
        if self._drawn is None and self._leaves:
            self._drawn = self._generator.choice(self._leaves)
        return self._drawn
