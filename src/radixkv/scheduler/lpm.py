"""Longest cached prefix first."""

from __future__ import annotations

from radixkv.scheduler.base import RankedOrder, Waiting


class LongestPrefix(RankedOrder):
    """The request with the most cached tokens first; of those with as many, the shortest; then the earliest.

    That the shortest goes first makes a prompt that begins others run before them: its last block is never covered by
    its own match, so it gains nothing by coming later, and they gain that block.
    """

    def rank(self, waiting: Waiting) -> tuple[int, int, int]:
        """Cached tokens, most first; tokens; arrival."""
        return -waiting.matched_tokens, len(waiting.key), waiting.arrival
