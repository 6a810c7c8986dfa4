"""First come, first served."""

from __future__ import annotations

from radixkv.scheduler.base import RankedOrder, Waiting


class Fcfs(RankedOrder):
    """In the order of arrival."""

    def rank(self, waiting: Waiting) -> int:
        """The arrival."""
        return waiting.arrival
