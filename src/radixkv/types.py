"""The vocabulary of a prefix cache: what its calls answer with.

Block ids travel as `array('I')`: appended with one `memcpy`, and read by numpy and torch without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

N = TypeVar("N")
"""The handle type of a cache: `Node` of the radix cache, `HashBlock` of the hash cache."""


class PrefixMatch(NamedTuple, Generic[N]):
    """The longest cached prefix of a prompt, as of this call.

    The block ids stay valid only while `node` is locked; an eviction may hand them to somebody else.
    """

    matched_tokens: int
    """Tokens covered, a whole number of blocks."""
    blocks: array[int]
    """One block id for every `block_size` of them, from the prompt's start. The caller's own copy."""
    node: N
    """Handle of the prefix: what `lock` takes. The root where nothing matched."""


class Inserted(NamedTuple, Generic[N]):
    """What became of the blocks handed to `insert`."""

    new_blocks: int
    """How many the cache took: the last ones of those handed in."""
    duplicates: array[int]
    """Ids that the cache did not take since it has a block of its own there, in path order: the caller's to free."""
    node: N
    """Handle of the prefix, ending at the last full block."""


class PrefixProbe(NamedTuple):
    """What a match would find, without making it."""

    matched_tokens: int
    """The same as `PrefixMatch.matched_tokens`."""
    unlocked_blocks: int
    """How many of the matched blocks no lock holds now: those that a lock would take from the evictable ones."""


class PrefixLocation(NamedTuple, Generic[N]):
    """Where the cached prefix of a prompt ends, and what would have to change for it to be longer or shorter.

    It stays right until a `CacheObserver` hears that `node` was removed, `missing` was stored or the cache was cleared.
    """

    matched_tokens: int
    """The same as `PrefixMatch.matched_tokens`."""
    node: N
    """The node that holds the last matched block; in the radix cache it may go on behind the match. Else the root."""
    missing: Hashable
    """The name of the first block that is not cached; None where all that a match may cover is. Equal prefixes agree on
    it; in the radix cache it is a 32-bit checksum, so different ones may, too."""


@dataclass(frozen=True, slots=True)
class PrefixStats:
    """Counters of a prefix cache since it was made or reset; a snapshot that does not move.

    Lookups of requests that were preempted and come back are counted apart (`resumed_*`), so that re-reading one's
    own blocks does not pass for a hit rate. A lookup that found all it searched for has no miss cause; any other
    has exactly one: `lookups` minus the four `missed_*` is the number of full hits.

    >>> PrefixStats(lookups=2, query_tokens=8, hit_tokens=6).hit_rate
    0.75
    """

    lookups: int = 0
    """Calls of `match_prefix`, but for those of resumed requests."""
    query_tokens: int = 0
    """Tokens of the prompts looked up."""
    hit_tokens: int = 0
    """Tokens found cached."""
    inserted_blocks: int = 0
    """Blocks the cache took, duplicates not counted."""
    evicted_blocks: int = 0
    """Blocks `evict` gave up."""
    resumed_lookups: int = 0
    """Lookups of preempted requests that came back; they are in no other counter of lookups, tokens or misses."""
    resumed_query_tokens: int = 0
    """Tokens of those."""
    resumed_hit_tokens: int = 0
    """Tokens they found cached: mostly their own."""
    missed_short: int = 0
    """Lookups with nothing to search: the prompt has no full block before its last token."""
    missed_cold: int = 0
    """Lookups that found nothing under the prompt's first block, and no trace that it was ever evicted."""
    missed_diverged: int = 0
    """Lookups that matched some blocks and then left what is cached for tokens that were never seen there."""
    missed_evicted: int = 0
    """Lookups whose first missing block was evicted lately: more memory would have helped."""

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens; 0.0 before the first query."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else 0.0


@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counters of a block manager; a snapshot that does not move."""

    prefix: PrefixStats
    """Those of its cache; all zero without one."""
    admitted: int = 0
    """Requests admitted for the first time."""
    resumed: int = 0
    """Preempted requests admitted again."""
    preempted: int = 0
    finished: int = 0
