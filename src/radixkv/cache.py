"""What a prefix cache is: the contract that the radix cache and the hash cache keep."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from radixkv.keys import Tokens
from radixkv.types import Inserted, PrefixLocation, PrefixMatch, PrefixProbe, PrefixStats

N = TypeVar("N")


class CacheObserver(Protocol):
    """Hears what becomes of a cache's blocks, call by call. It may look at the cache; it must not change it, nor raise.

    The block ids are those that the call works with: whoever wants to keep them copies them.
    """

    def matched(self, blocks: Sequence[int]) -> None:
        """A lookup hit these blocks, in path order, maybe none: a use of each."""

    def inserted(self, blocks: Sequence[int], new_blocks: int, name: Hashable | None) -> None:
        """These blocks of a prompt are cached, in path order, the last `new_blocks` since now: a use of each.

        `name` is that of the first new one, as in `PrefixLocation.missing`; None if none is new.
        """

    def evicted(self, nodes: Sequence[Any], blocks: Sequence[int]) -> None:
        """These nodes were evicted, in this order, with all their blocks; their handles are stale."""

    def cleared(self) -> None:
        """The cache was reset: every handle but the root's is stale."""


class PrefixCache(Protocol[N]):
    """A map from prompt prefixes to block ids that evicts, locks and counts.

    Both caches inherit from it what follows from the rest: `cached_tokens`, `hit_rate`, `pinned`.

    Who owns a block id: handed to `insert`, it is the cache's, unless it comes back as a duplicate. What `evict` and
    `reset` return is the caller's again. A match lends ids: they are safe to read while the node is locked.

    Not safe for concurrent use: one thread owns a cache.
    """

    @property
    def block_size(self) -> int:
        """Tokens a block."""

    @property
    def cached_tokens(self) -> int:
        """Tokens of all cached blocks. O(1)."""
        return self.cached_blocks * self.block_size

    @property
    def cached_blocks(self) -> int:
        """All cached blocks. O(1)."""

    @property
    def evictable_blocks(self) -> int:
        """Cached blocks that no lock holds: what `evict` can give up at most. O(1)."""

    @property
    def stats(self) -> PrefixStats:
        """A snapshot of the counters. O(1)."""

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens of every lookup but those of resumed requests; 0.0 before the first. O(1)."""
        return self.stats.hit_rate

    def match_prefix(self, tokens: Tokens, namespace: str | None = None, *, resumed: bool = False) -> PrefixMatch[N]:
        """Look a prompt up: the longest cached prefix, but never its last token, whose logits are still to compute.

        Counts one lookup, under the `resumed_*` counters if the request was preempted and comes back; a use of every
        matched node.

        Raises:
            TokenError, NamespaceError: nothing changed.
        """

    def match_length(self, tokens: Tokens, namespace: str | None = None) -> int:
        """The `matched_tokens` that `match_prefix` would answer, changing nothing: no counter, no recency, no split."""

    def probe(self, tokens: Tokens, namespace: str | None = None) -> PrefixProbe:
        """As `match_length`, with how many evictable blocks a lock of the match would take."""

    def locate(self, tokens: Tokens, namespace: str | None = None) -> PrefixLocation[N]:
        """As `match_length`, with what to watch for: for who keeps many prompts in order of their cached prefix."""

    def observe(self, observer: CacheObserver) -> None:
        """Tell `observer` from now on, until `unobserve`. A cache without observers pays nothing for them."""

    def unobserve(self, observer: CacheObserver) -> None:
        """Tell `observer` no more; nothing happens if nobody told it."""

    def insert(
        self, tokens: Tokens, blocks: Iterable[int], namespace: str | None = None, *, priority: int = 0
    ) -> Inserted[N]:
        """Cache the full blocks of `tokens`, one id each, but for those that are cached already. A use of the path.

        Raises:
            BlockCountError: not exactly `len(tokens) // block_size` ids; nothing changed.
            TokenError, NamespaceError, BlockIdError: nothing changed.
            TypeError: a priority that is no integer; nothing changed.

        The ids must be the caller's own and distinct; a cache alone does not know who owns a block, `BlockPool` does.
        """

    def lock(self, node: N) -> None:
        """Keep the prefix that ends with `node` from eviction, until as many `unlock`s; the root needs none.

        Raises:
            StaleNodeError: the node was evicted; nothing changed.
            LockError: the node is another cache's; nothing changed.
            NodeError: it is no node at all; nothing changed.
        """

    def unlock(self, node: N) -> None:
        """Take back one `lock` of this node.

        Raises:
            StaleNodeError: the node was reset away; nothing changed.
            LockError: no lock of this very node is left, or the node is another cache's; nothing changed.
            NodeError: it is no node at all; nothing changed.
        """

    @contextmanager
    def pinned(self, node: N) -> Iterator[None]:
        """`lock` now, and `unlock` at the end of the with block, however it ends.

        >>> from radixkv import RadixCache
        >>> cache = RadixCache(block_size=1)
        >>> node = cache.insert([1, 2], [0, 1]).node
        >>> with cache.pinned(node):
        ...     cache.evict(2)
        array('I')
        """
        self.lock(node)
        try:
            yield
        finally:
            self.unlock(node)

    def evict(self, n: int) -> array[int]:
        """Give up blocks in the policy's order until at least `n` are out or nothing is evictable; returns their ids.

        Raises:
            SizeError: a negative n; nothing changed.
        """

    def reset(self) -> array[int]:
        """Forget everything, counters too, and return every id. O(cached blocks).

        Raises:
            LockError: something is locked; nothing changed.
        """

    def path_blocks(self, node: N) -> array[int]:
        """The cache's ids from the prompt's start to the end of `node`.

        Raises:
            StaleNodeError, LockError, NodeError: as `lock`.
        """

    def block_ids(self) -> array[int]:
        """Every cached id, in no order. O(cached blocks)."""

    def check_invariants(self) -> None:
        """Recount everything. O(cached blocks).

        Raises:
            InvariantError: something does not add up.
        """
