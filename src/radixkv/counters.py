"""What a prefix cache counts, and why a lookup missed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from radixkv.types import PrefixStats

GHOST_PAGE: Final = 2048
"""The last so many evicted blocks are remembered, and at most twice as many, to tell a miss that memory would have
saved. About 0.1 KB each."""


class CacheCounters:
    """The counters behind `PrefixStats`, and the ghosts: names of blocks evicted lately.

    A ghost names a block by its content and its whole prefix, so it is recognized whoever asks for it again. Ghosts
    are written on a page; when it is full a new one is begun, and the page before it is thrown away: an exact order of
    names would cost every eviction more, and tell nobody more.
    """

    __slots__ = (
        "evicted_blocks",
        "ghosts",
        "hit_tokens",
        "inserted_blocks",
        "lookups",
        "missed_cold",
        "missed_diverged",
        "missed_evicted",
        "missed_short",
        "older_ghosts",
        "query_tokens",
        "resumed_hit_tokens",
        "resumed_lookups",
        "resumed_query_tokens",
    )

    def __init__(self) -> None:
        self.ghosts: set[Hashable] = set()
        self.older_ghosts: set[Hashable] = set()
        self.lookups = self.query_tokens = self.hit_tokens = 0
        self.inserted_blocks = self.evicted_blocks = 0
        self.resumed_lookups = self.resumed_query_tokens = self.resumed_hit_tokens = 0
        self.missed_short = self.missed_cold = self.missed_diverged = self.missed_evicted = 0

    def found(self, query_tokens: int, hit_tokens: int) -> None:
        """Count a lookup of a new request."""
        self.lookups += 1
        self.query_tokens += query_tokens
        self.hit_tokens += hit_tokens

    def found_resumed(self, query_tokens: int, hit_tokens: int) -> None:
        """Count a lookup of a preempted request that comes back."""
        self.resumed_lookups += 1
        self.resumed_query_tokens += query_tokens
        self.resumed_hit_tokens += hit_tokens

    def missed(self, hit_tokens: int, missing: Hashable) -> None:
        """Count the cause of a lookup that found less than it searched for; `missing` names its first missing block."""
        if missing in self.ghosts or missing in self.older_ghosts:
            self.missed_evicted += 1
        elif hit_tokens:
            self.missed_diverged += 1
        else:
            self.missed_cold += 1

    def ghost(self, block: Hashable) -> None:
        """Remember a block that was evicted; asked for again, it was evicted too early. O(1)."""
        self.ghosts.add(block)
        if len(self.ghosts) >= GHOST_PAGE:
            self.older_ghosts, self.ghosts = self.ghosts, set()

    def snapshot(self) -> PrefixStats:
        """The counters as of now. O(1)."""
        return PrefixStats(**{name: getattr(self, name) for name in PrefixStats.__slots__})
