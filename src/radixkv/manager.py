"""The block manager: a request's blocks from its admission to its end, over one pool that the cache shares.

```text
tokens   |<------- matched ------->|<--- prefilled now --->|<-- decoded -->|
blocks   [ cache's, locked ][ request's own, full ][ tail, partial ]
admit    match, lock, allocate the rest (evicting if the pool is short); too few: nothing changed
commit   insert the full computed blocks; duplicates go back to the pool, the table takes the cache's ids, the lock
         moves to the new node
grow     new blocks where the tail fills
finish   commit what is computed, free the rest, unlock
preempt  the same, and the request waits: resume admits it again with all its tokens
```

At every moment each id is in exactly one place: the free list, one running request, or the cache.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from operator import index
from typing import Any, Final, Literal

from radixkv.cache import PrefixCache
from radixkv.errors import BlockTableError, InvariantError, OutOfBlocksError, UnknownNameError
from radixkv.eviction import make_policy
from radixkv.hash_cache import HashCache
from radixkv.keys import TokenKey, Tokens, check_namespace, check_size
from radixkv.pool import BlockPool
from radixkv.radix_cache import RadixCache
from radixkv.types import ManagerStats, PrefixStats

CACHES: Final[Mapping[str, type[RadixCache | HashCache] | None]] = {
    "hash": HashCache,
    "none": None,
    "radix": RadixCache,
}
"""What `prefix_cache=` takes."""


class BlockTable:
    """A request's tokens and blocks, in order. `BlockManager.admit` makes it, and only the manager writes it."""

    __slots__ = (
        "_grown",
        "_key",
        "_manager",
        "_node",
        "blocks",
        "cached_blocks",
        "computed_tokens",
        "matched_tokens",
        "namespace",
        "num_tokens",
        "priority",
        "state",
    )

    def __init__(self, manager: BlockManager, key: TokenKey, namespace: str | None, priority: int) -> None:
        self._manager = manager
        self._key = key
        self._grown = array("I")  # tokens not yet joined to the key
        self._node: Any = None  # the handle whose lock is this table's
        self.namespace = namespace
        self.priority = priority
        self.num_tokens = len(key)
        """Prompt and outputs so far."""
        self.blocks = array("I")
        """One id for every `block_size` tokens, the last maybe filled in part; empty unless running."""
        self.matched_tokens = 0
        """Leading tokens that the last admission found cached: its prefill starts behind them."""
        self.computed_tokens = 0
        """Leading tokens whose K and V exist, or will before anybody reads them, while running."""
        self.cached_blocks = 0
        """Leading blocks that are the cache's, locked; the others are the request's own."""
        self.state: Literal["running", "preempted", "finished"] = "running"

    @property
    def key(self) -> TokenKey:
        """All tokens. O(tokens) after a growth, else O(1)."""
        if self._grown:
            self._key = self._key.extended(self._grown)
            self._grown = array("I")
        return self._key

    def __repr__(self) -> str:
        return (
            f"<BlockTable {self.state}: {self.num_tokens} tokens, {self.computed_tokens} computed, "
            f"{len(self.blocks)} blocks, {self.cached_blocks} of them cached>"
        )


class BlockManager:
    """Admits requests into a fixed number of blocks and keeps what they compute for the next ones.

    The cache fills what running requests leave, and shrinks when they need room. Not safe for concurrent use: one
    thread owns a manager.

    Args:
        num_blocks: blocks in the pool, ids 0 to `num_blocks - 1`.
        block_size: tokens a block.
        prefix_cache: "radix", "hash" or "none".
        eviction: a name of `radixkv.POLICIES`.

    Raises:
        SizeError: a number below 1.
        UnknownNameError: no such cache or policy.

    >>> manager = BlockManager(num_blocks=4, block_size=2)
    >>> table = manager.admit([1, 2, 3])
    >>> manager.commit(table, 3)                 # the prompt is prefilled
    >>> manager.grow(table, [4])                 # a token was sampled: its K and V come with the next step
    >>> manager.finish(table)
    >>> manager.admit([1, 2, 3, 4, 5]).matched_tokens
    2
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_cache: str = "radix", eviction: str = "lru") -> None:
        self.block_size = check_size("block_size", block_size, 1)
        self.pool = BlockPool(num_blocks)
        make_policy(eviction)  # a wrong name is wrong without a cache, too
        try:
            make_cache = CACHES[prefix_cache]
        except (KeyError, TypeError):
            raise UnknownNameError(kind="prefix cache", name=prefix_cache, known=tuple(sorted(CACHES))) from None
        self.cache: PrefixCache[Any] | None = make_cache(block_size, eviction=eviction) if make_cache else None
        """The prefix cache, to read; None for "none". What it gives up is the pool's: use `evict` and `reset` here."""
        self._running: set[BlockTable] = set()
        self._admitted = self._resumed = self._preempted = self._finished = 0

    @property
    def running(self) -> int:
        """Requests that hold blocks now. O(1)."""
        return len(self._running)

    @property
    def available_blocks(self) -> int:
        """Blocks that are free or that the cache can give up. O(1)."""
        return self.pool.num_free + (self.cache.evictable_blocks if self.cache else 0)

    @property
    def stats(self) -> ManagerStats:
        """A snapshot of the counters. O(1)."""
        return ManagerStats(
            prefix=self.cache.stats if self.cache else PrefixStats(),
            admitted=self._admitted,
            resumed=self._resumed,
            preempted=self._preempted,
            finished=self._finished,
        )

    def missing_blocks(self, tokens: Tokens, namespace: str | None = None) -> int:
        """How many blocks are too few to admit this prompt now; 0 if `admit` would succeed. Changes nothing.

        Costs a `probe` of the cache.
        """
        wanted, available = self._room(TokenKey.of(tokens), namespace)
        return max(wanted - available, 0)

    def admit(self, tokens: Tokens, namespace: str | None = None, *, priority: int = 0) -> BlockTable:
        """Start a request: lock what is cached of its prompt and allocate blocks for the rest.

        `priority` goes with the blocks into the cache, for the `priority` policy. Evicts no more than the pool is
        short of, but for whole leaves. Costs a match and an allocation.

        Raises:
            OutOfBlocksError: too few blocks, and how many; nothing changed, no counter and no recency either.
            TokenError, NamespaceError: nothing changed.
            TypeError: a priority that is no integer; nothing changed.
        """
        key = TokenKey.of(tokens)
        table = BlockTable(self, key, namespace, index(priority))
        self._start(table, resumed=False)
        self._admitted += 1
        return table

    def resume(self, table: BlockTable) -> None:
        """Start a preempted request again, with all its tokens. Its lookup is counted apart, as `resumed_*`.

        Raises:
            OutOfBlocksError: as `admit`.
            BlockTableError: the table is not preempted, or another manager's; nothing changed.
        """
        self.check_table(table, "preempted")
        self._start(table, resumed=True)
        table.state = "running"
        self._resumed += 1

    def commit(self, table: BlockTable, computed_tokens: int) -> None:
        """Note that K and V of the first `computed_tokens` exist, and cache the full blocks among them.

        Or will exist before anybody reads them: an engine may commit what it is about to compute, so that others of the
        same step hit it. If it then cannot compute it, it has to finish all tables that hold such blocks, and `evict`
        all that is evictable.

        Where the cache had a block already, the table takes that one and its own goes back to the pool: `table.blocks`
        may change. O(1) while no block fills, else an insert.

        Raises:
            BlockTableError: fewer tokens than before or more than there are, or the table is not running here;
                nothing changed.
            TypeError: no integer; nothing changed.
        """
        self.check_table(table, "running")
        computed_tokens = index(computed_tokens)
        if not table.computed_tokens <= computed_tokens <= table.num_tokens:
            raise BlockTableError(
                f"computed tokens must go from {table.computed_tokens} up to at most {table.num_tokens}, "
                f"got {computed_tokens}"
            )
        table.computed_tokens = computed_tokens
        self._cache_computed(table)

    def grow(self, table: BlockTable, tokens: Tokens) -> None:
        """Append sampled tokens, whose K and V are still to compute, and allocate the blocks they need. O(new tokens).

        Raises:
            OutOfBlocksError: too few blocks, and how many; nothing changed. Preempt somebody, or this request.
            TokenError: nothing changed.
            BlockTableError: the table is not running here; nothing changed.
        """
        self.check_table(table, "running")
        more = TokenKey.of(tokens)
        wanted = self.blocks_for(table.num_tokens + len(more)) - len(table.blocks)
        if wanted > self.available_blocks:
            raise OutOfBlocksError(wanted=wanted, available=self.available_blocks)
        table.blocks.extend(self._allocate(wanted))
        table._grown.frombytes(more.data)
        table.num_tokens += len(more)

    def finish(self, table: BlockTable) -> None:
        """End a request, done or cancelled: what is computed, outputs too, stays cached for the next turn.

        The token sampled last has no K and V and is not cached. Costs a `commit` and O(its own blocks).

        Raises:
            BlockTableError: the table is not running here; nothing changed.
        """
        self._stop(table)
        table.state = "finished"
        self._finished += 1

    def preempt(self, table: BlockTable) -> None:
        """Take a request's blocks away until `resume`: what is computed is cached and may be evicted meanwhile.

        Costs what `finish` does.

        Raises:
            BlockTableError: the table is not running here; nothing changed.
        """
        self._stop(table)
        table.state = "preempted"
        self._preempted += 1

    def evict(self, n: int) -> int:
        """Let the cache give up `n` blocks to the pool; more where leaves are larger, fewer where too many are locked.

        Nobody has to call it before an admission, which evicts what it needs. Costs as the cache's `evict`.

        Returns how many blocks that freed.

        Raises:
            SizeError: a negative number; nothing changed.
        """
        wanted = check_size("n", n, 0)
        given_up = self.cache.evict(wanted) if self.cache else array("I")
        self.pool.reclaim(given_up)
        return len(given_up)

    def reset(self) -> int:
        """Forget everything cached, counters too, say because the model's weights changed. O(cached blocks).

        Returns how many blocks that freed.

        Raises:
            LockError: a running request reads cached blocks; nothing changed.
        """
        given_up = self.cache.reset() if self.cache else array("I")
        self.pool.reclaim(given_up)
        return len(given_up)

    def check_table(self, table: BlockTable, state: str) -> None:
        """Raise `BlockTableError` unless the table is this manager's and in this state."""
        if table._manager is not self:
            raise BlockTableError("the table is another manager's")
        if table.state != state:
            raise BlockTableError(f"the table is {table.state}, not {state}")

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens take, the last one maybe filled in part."""
        return -(-tokens // self.block_size)

    def check_invariants(self) -> None:
        """Prove that every block is in exactly one place. O(num_blocks).

        Raises:
            InvariantError: it is not.
        """
        self.pool.check_invariants()
        places = {"free": Counter[int](), "request": Counter[int](), "cache": Counter[int]()}
        if self.cache:
            self.cache.check_invariants()
            places["cache"].update(self.cache.block_ids())
        for table in self._running:
            places["request"].update(table.blocks[table.cached_blocks :])
            lent = self.cache.path_blocks(table._node) if self.cache else array("I")
            if table.blocks[: table.cached_blocks] != lent or len(table.blocks) != self.blocks_for(table.num_tokens):
                raise InvariantError(f"{table!r} holds {table.blocks}; the cache lends it {lent}")
        for block in range(self.pool.num_blocks):
            held = {place: blocks[block] for place, blocks in places.items() if blocks[block]}
            owner = self.pool.owner(block)
            if held != ({} if owner == "free" else {owner: 1}):
                raise InvariantError(f"block {block} is owned by {owner!r}, but held {held}")

    def _room(self, key: TokenKey, namespace: str | None) -> tuple[int, int]:
        """Blocks that an admission has to allocate, and those it could."""
        check_namespace(namespace)
        wanted, available = self.blocks_for(len(key)), self.available_blocks
        if self.cache:
            matched_tokens, unlocked_blocks = self.cache.probe(key, namespace)
            wanted -= matched_tokens // self.block_size
            available -= unlocked_blocks
        return wanted, available

    def _start(self, table: BlockTable, *, resumed: bool) -> None:
        key, namespace = table.key, table.namespace
        wanted, available = self._room(key, namespace)
        if wanted > available:
            raise OutOfBlocksError(wanted=wanted, available=available)
        if self.cache:
            match = self.cache.match_prefix(key, namespace, resumed=resumed)
            self.cache.lock(match.node)  # before the eviction below, which would take it
            table._node, table.blocks = match.node, match.blocks
            table.matched_tokens = table.computed_tokens = match.matched_tokens
            table.cached_blocks = len(match.blocks)
        table.blocks.extend(self._allocate(wanted))
        self._running.add(table)

    def _stop(self, table: BlockTable) -> None:
        self.check_table(table, "running")
        self._cache_computed(table)
        self.pool.free(table.blocks[table.cached_blocks :])
        if self.cache:
            self.cache.unlock(table._node)
        table._node, table.blocks = None, array("I")
        table.cached_blocks = table.computed_tokens = 0
        self._running.remove(table)

    def _cache_computed(self, table: BlockTable) -> None:
        full = table.computed_tokens // self.block_size
        if self.cache is None or full == table.cached_blocks:
            return
        # blocks   [ cache's, locked ][ duplicates ][ new ][ tail ]      full = all but the tail
        #                               -> pool      -> cache
        key = table.key.prefix(full * self.block_size)
        inserted = self.cache.insert(key, table.blocks[:full], table.namespace, priority=table.priority)
        self.pool.adopt(table.blocks[full - inserted.new_blocks : full])
        if inserted.duplicates:
            self.pool.free(inserted.duplicates)
            table.blocks[:full] = self.cache.path_blocks(inserted.node)
        self.cache.lock(inserted.node)
        self.cache.unlock(table._node)
        table._node, table.cached_blocks = inserted.node, full

    def _allocate(self, n: int) -> array[int]:
        """`n` blocks, evicting what the pool is short of; the caller has seen that there are enough."""
        short = n - self.pool.num_free
        if short > 0 and self.cache:
            self.pool.reclaim(self.cache.evict(short))
        return self.pool.allocate(n)
