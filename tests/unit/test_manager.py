"""The block manager by hand: a request's blocks from its admission to its end."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixkv import (
    BlockManager,
    BlockOwnershipError,
    BlockTable,
    BlockTableError,
    HashCache,
    InvariantError,
    LockError,
    ManagerStats,
    NamespaceError,
    OutOfBlocksError,
    PrefixStats,
    RadixCache,
    SizeError,
    TokenError,
    UnknownNameError,
)

CACHING = ["radix", "hash"]
with_cache = pytest.mark.parametrize("prefix_cache", CACHING)
with_any = pytest.mark.parametrize("prefix_cache", [*CACHING, "none"])


def manager(num_blocks: int, block_size: int, prefix_cache: str = "radix", **options: Any) -> BlockManager:
    return BlockManager(num_blocks, block_size, prefix_cache=prefix_cache, **options)


def facts(manager: BlockManager, *tables: BlockTable) -> tuple[object, ...]:
    """All that shows; a refused call leaves every one of these as it was."""
    manager.check_invariants()
    cache = manager.cache
    return (
        manager.stats,
        manager.running,
        [manager.pool.owner(block) for block in range(manager.pool.num_blocks)],
        sorted(cache.block_ids()) if cache else [],
        cache.evictable_blocks if cache else 0,
        str(cache.tree) if isinstance(cache, RadixCache) else "",
        [
            (t.state, t.blocks.tolist(), t.num_tokens, t.computed_tokens, t.matched_tokens, t.cached_blocks)
            for t in tables
        ],
    )


def owners(manager: BlockManager) -> dict[str, int]:
    """How many blocks each owner has."""
    manager.check_invariants()
    found = [manager.pool.owner(block) for block in range(manager.pool.num_blocks)]
    return {owner: found.count(owner) for owner in ("free", "request", "cache")}


def serve(manager: BlockManager, tokens: Any, namespace: str | None = None, **options: Any) -> BlockTable:
    """A request that is prefilled and finished."""
    table = manager.admit(tokens, namespace, **options)
    manager.commit(table, table.num_tokens)
    manager.finish(table)
    return table


# --- the drawing of the design ---------------------------------------------------------------------------------------


@with_cache
def test_a_request_from_admission_to_finish(prefix_cache: str) -> None:
    """The design's drawing, step by step: matched, prefilled, decoded; cache's, own full, own tail."""
    made = manager(10, 2, prefix_cache)
    serve(made, [1, 2, 3, 4])
    assert {"free": 8, "request": 0, "cache": 2} == owners(made)

    table = made.admit([1, 2, 3, 4, 5, 6, 7])  # two cached blocks, one full, one tail
    assert ("running", 7, 4, 4, 2) == (
        table.state,
        table.num_tokens,
        table.matched_tokens,
        table.computed_tokens,
        table.cached_blocks,
    )
    assert 4 == len(table.blocks)
    assert {"free": 6, "request": 2, "cache": 2} == owners(made)

    own = table.blocks[2:]
    made.commit(table, 7)  # prefilled: the full block is the cache's now, the tail is not
    assert (7, 3) == (table.computed_tokens, table.cached_blocks)
    assert own == table.blocks[2:]
    assert {"free": 6, "request": 1, "cache": 3} == owners(made)

    made.grow(table, [8])  # the tail fills without a new block
    assert (4, 8, 7) == (len(table.blocks), table.num_tokens, table.computed_tokens)
    made.commit(table, 8)
    made.grow(table, [9])
    assert (5, 9, 8, 4) == (len(table.blocks), table.num_tokens, table.computed_tokens, table.cached_blocks)
    assert {"free": 5, "request": 1, "cache": 4} == owners(made)

    made.finish(table)  # token 9 was sampled last: it has no K and V, and its block is free again
    assert ("finished", array("I"), 0) == (table.state, table.blocks, table.cached_blocks)
    assert {"free": 6, "request": 0, "cache": 4} == owners(made)
    assert 8 == made.admit([1, 2, 3, 4, 5, 6, 7, 8, 9, 9]).matched_tokens


@with_cache
def test_outputs_are_cached_for_the_next_turn(prefix_cache: str) -> None:
    """A conversation's next prompt finds prompt and outputs of the last, but for the token sampled last."""
    made = manager(8, 1, prefix_cache)
    table = made.admit([1, 2])
    for token in (3, 4, 5):
        made.commit(table, table.num_tokens)
        made.grow(table, [token])
    made.finish(table)

    assert 4 == made.admit([1, 2, 3, 4, 5, 6]).matched_tokens


@with_cache
def test_what_is_not_committed_is_not_cached(prefix_cache: str) -> None:
    """A request cancelled in the middle of its prefill leaves the full blocks it computed, and no other."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3, 4, 5, 6, 7])
    made.commit(table, 5)
    made.finish(table)

    assert {"free": 6, "request": 0, "cache": 2} == owners(made)
    assert 4 == made.admit([1, 2, 3, 4, 5, 6, 7]).matched_tokens


def test_without_a_cache_everything_is_freed() -> None:
    """No match, no lookup counted, and every block comes back."""
    made = manager(8, 2, "none")
    serve(made, [1, 2, 3, 4, 5])
    table = made.admit([1, 2, 3, 4, 5])
    made.commit(table, 5)

    assert made.cache is None
    assert (0, 0, 5) == (table.matched_tokens, table.cached_blocks, table.computed_tokens)
    assert {"free": 5, "request": 3, "cache": 0} == owners(made)
    made.preempt(table)
    assert {"free": 8, "request": 0, "cache": 0} == owners(made)
    assert ManagerStats(prefix=PrefixStats(), admitted=2, preempted=1, finished=1) == made.stats


@pytest.mark.parametrize(("prefix_cache", "kind"), [("radix", RadixCache), ("hash", HashCache)])
def test_the_cache_is_of_the_named_kind(prefix_cache: str, kind: type[object]) -> None:
    """And has the manager's block size."""
    made = manager(8, 3, prefix_cache)

    assert kind is type(made.cache)
    assert made.cache is not None
    assert 3 == made.cache.block_size


# --- commit ----------------------------------------------------------------------------------------------------------


@with_cache
def test_two_requests_that_compute_the_same_share_one_copy(prefix_cache: str) -> None:
    """The second commit frees its duplicates, takes the cache's ids, and both requests hold the prefix."""
    made = manager(8, 2, prefix_cache)
    first, second = made.admit([1, 2, 3, 4, 5]), made.admit([1, 2, 3, 4, 6])
    assert {"free": 2, "request": 6, "cache": 0} == owners(made)
    made.commit(first, 5)
    made.commit(second, 5)

    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert {"free": 4, "request": 2, "cache": 2} == owners(made)
    made.finish(first)
    assert made.cache is not None
    assert (0, array("I")) == (made.cache.evictable_blocks, made.cache.evict(9))
    made.finish(second)
    assert 2 == made.cache.evictable_blocks


@with_cache
def test_a_running_request_keeps_its_prefix_whatever_others_need(prefix_cache: str) -> None:
    """The cache shrinks for others by what nobody reads; what a table holds stays its own."""
    made = manager(6, 1, prefix_cache)
    serve(made, [1, 2, 3])
    table = made.admit([1, 2, 9])
    made.commit(table, 3)
    held = table.blocks.tolist()
    assert {"free": 2, "request": 0, "cache": 4} == owners(made)

    other = made.admit([7, 7, 7])  # one more than is free: token 3's block goes
    assert held == table.blocks.tolist()
    assert not set(held) & set(other.blocks)
    assert {"free": 0, "request": 3, "cache": 3} == owners(made)
    assert 1 == made.stats.prefix.evicted_blocks


@with_cache
def test_chunked_prefill_caches_as_it_goes(prefix_cache: str) -> None:
    """Each commit caches the full blocks so far; the lock moves on and one unlock at the end is enough."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3, 4, 5, 6, 7])
    assert made.cache is not None
    for computed, cached in ((0, 0), (1, 0), (3, 1), (3, 1), (4, 2), (7, 3)):
        made.commit(table, computed)
        assert (computed, cached) == (table.computed_tokens, table.cached_blocks)
        assert (cached, 0) == (made.cache.cached_blocks, made.cache.evictable_blocks)
        made.check_invariants()
    made.finish(table)

    assert 3 == made.cache.evictable_blocks


@with_any
@pytest.mark.parametrize("computed", [-1, 2, 6, 100])
def test_a_commit_goes_forward_and_not_beyond_the_tokens(prefix_cache: str, computed: int) -> None:
    """Fewer computed tokens than before, or more than there are tokens, is refused and changes nothing."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3, 4, 5])
    made.commit(table, 3)
    before = facts(made, table)
    with pytest.raises(BlockTableError) as caught:
        made.commit(table, computed)

    assert isinstance(caught.value, ValueError)
    assert before == facts(made, table)


@with_any
@pytest.mark.parametrize("computed", [2.0, 1.5, "2", None])
def test_computed_tokens_are_an_integer(prefix_cache: str, computed: Any) -> None:
    """Anything else is refused before anything changed."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3])
    before = facts(made, table)
    with pytest.raises((BlockTableError, TypeError)):
        made.commit(table, computed)

    assert before == facts(made, table)
    assert isinstance(table.computed_tokens, int)


# --- too few blocks --------------------------------------------------------------------------------------------------


@with_any
def test_an_admission_that_cannot_succeed_changes_nothing(prefix_cache: str) -> None:
    """No counter, no recency, no split, no eviction; it says how many blocks are missing."""
    made = manager(6, 1, prefix_cache)
    serve(made, [1, 2, 3])
    running = made.admit([1, 2, 3, 4])
    made.commit(running, 4)
    before = facts(made, running)
    for tokens in ([1, 2, 8, 8, 8, 8, 8], [9] * 9):
        missing = made.missing_blocks(tokens)
        with pytest.raises(OutOfBlocksError, match=f"{missing} missing") as caught:
            made.admit(tokens)
        assert missing == caught.value.missing > 0
        assert caught.value.missing == caught.value.wanted - caught.value.available
        assert before == facts(made, running)


@with_any
@pytest.mark.parametrize(("length", "missing"), [(1, 0), (6, 0), (8, 0), (9, 1), (12, 2), (13, 3)])
def test_missing_blocks_is_what_an_admission_lacks(prefix_cache: str, length: int, missing: int) -> None:
    """Exactly: with so many the admission would succeed, and with none missing it does."""
    made = manager(4, 2, prefix_cache)
    serve(made, [5, 5, 5, 5])  # evictable: in nobody's way
    before = facts(made)

    assert missing == made.missing_blocks([9] * length)
    assert before == facts(made)
    if not missing:
        assert -(-length // 2) == len(made.admit([9] * length).blocks)


@with_cache
def test_a_matched_prefix_is_no_room(prefix_cache: str) -> None:
    """The blocks that the prompt itself has cached cannot be evicted for it."""
    made = manager(4, 1, prefix_cache)
    serve(made, [1, 2, 3, 4])

    assert 0 == made.missing_blocks([1, 2, 3, 9])
    assert 1 == made.missing_blocks([1, 2, 3, 9, 9])
    table = made.admit([1, 2, 3, 9])
    assert (3, 0) == (table.matched_tokens, made.pool.num_free)


@with_any
def test_growth_without_room_changes_nothing(prefix_cache: str) -> None:
    """It says what is missing; after a preemption elsewhere it succeeds."""
    made = manager(4, 2, prefix_cache)
    table, other = made.admit([1, 2, 3, 4]), made.admit([5, 6, 7])
    made.commit(table, 4)
    before = facts(made, table, other)
    with pytest.raises(OutOfBlocksError) as caught:
        made.grow(table, [8, 8, 8])
    assert (2, 0, 2) == (caught.value.wanted, caught.value.available, caught.value.missing)
    assert before == facts(made, table, other)

    made.preempt(other)
    made.grow(table, [8, 8, 8])
    assert (7, 4) == (table.num_tokens, len(table.blocks))


@with_any
def test_growth_takes_any_tokens_and_no_tokens(prefix_cache: str) -> None:
    """A block for every block_size tokens, as they fill."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1])
    sizes = []
    for tokens in ([], [2], np.array([3]), (4, 5), range(6, 9)):
        made.grow(table, tokens)
        sizes.append((table.num_tokens, len(table.blocks)))
        made.check_invariants()

    assert [(1, 1), (2, 1), (3, 2), (5, 3), (8, 4)] == sizes
    made.commit(table, 8)
    made.finish(table)
    if prefix_cache != "none":
        assert 8 == made.admit(range(1, 10)).matched_tokens


@with_cache
def test_eviction_for_room_takes_no_more_than_is_short(prefix_cache: str) -> None:
    """Here the caches differ: the radix cache gives up the whole leaf, the hash cache the one block that is short."""
    made = manager(5, 1, prefix_cache)
    serve(made, [1, 2, 3])
    made.admit([8, 8, 8])

    assert {"radix": 3, "hash": 1}[prefix_cache] == made.stats.prefix.evicted_blocks
    assert {"radix": 2, "hash": 0}[prefix_cache] == made.pool.num_free
    made.check_invariants()


# --- preempt and resume ----------------------------------------------------------------------------------------------


@with_cache
def test_a_resumed_request_is_counted_apart(prefix_cache: str) -> None:
    """It re-reads its own blocks: that is no hit of new requests, and no admission."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3, 4, 5])
    made.commit(table, 5)
    made.grow(table, [6, 7])
    made.preempt(table)
    assert ("preempted", array("I"), 7) == (table.state, table.blocks, table.num_tokens)
    assert {"free": 6, "request": 0, "cache": 2} == owners(made)

    made.resume(table)
    assert ("running", 4, 4, 2, 4) == (
        table.state,
        table.matched_tokens,
        table.computed_tokens,
        table.cached_blocks,
        len(table.blocks),
    )
    stats = made.stats
    assert (1, 1, 1, 0) == (stats.admitted, stats.preempted, stats.resumed, stats.finished)
    assert (1, 5, 0) == (stats.prefix.lookups, stats.prefix.query_tokens, stats.prefix.hit_tokens)
    assert (1, 7, 4) == (
        stats.prefix.resumed_lookups,
        stats.prefix.resumed_query_tokens,
        stats.prefix.resumed_hit_tokens,
    )
    made.commit(table, 7)
    made.finish(table)
    assert 6 == made.admit([1, 2, 3, 4, 5, 6, 7, 8]).matched_tokens


@with_any
def test_a_resume_without_room_changes_nothing(prefix_cache: str) -> None:
    """The request stays preempted and can be resumed later."""
    made = manager(4, 1, prefix_cache)
    table = made.admit([1, 2, 3])
    made.commit(table, 2)
    made.preempt(table)
    other = made.admit([8, 8, 8])
    before = facts(made, table, other)
    with pytest.raises(OutOfBlocksError) as caught:
        made.resume(table)
    assert caught.value.missing > 0
    assert before == facts(made, table, other)

    made.finish(other)
    made.resume(table)
    assert ("running", 3) == (table.state, len(table.blocks))


@with_cache
def test_a_resumed_request_finds_what_others_computed_meanwhile(prefix_cache: str) -> None:
    """Its match is made anew, with all its tokens and its namespace."""
    made = manager(12, 1, prefix_cache)
    table = made.admit([1, 2, 3, 4], "a")
    made.preempt(table)
    serve(made, [1, 2, 3, 4, 5])
    serve(made, [1, 2, 3], "a")
    made.resume(table)

    assert (3, "a") == (table.matched_tokens, table.namespace)


# --- whose table, in what state --------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[BlockManager, BlockTable], object]] = {
    "commit": lambda manager, table: manager.commit(table, table.num_tokens),
    "grow": lambda manager, table: manager.grow(table, [1]),
    "finish": lambda manager, table: manager.finish(table),
    "preempt": lambda manager, table: manager.preempt(table),
    "resume": lambda manager, table: manager.resume(table),
}


@with_any
@pytest.mark.parametrize(
    ("state", "call"),
    [
        ("running", "resume"),
        *(("preempted", call) for call in ("commit", "grow", "finish", "preempt")),
        *(("finished", call) for call in CALLS),
    ],
)
def test_a_call_out_of_turn_is_refused(prefix_cache: str, state: str, call: str) -> None:
    """Blocks that are given back are given back once; nothing changed."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3])
    made.commit(table, 3)
    if state != "running":
        (made.preempt if state == "preempted" else made.finish)(table)
    before = facts(made, table)
    with pytest.raises(BlockTableError, match=state):
        CALLS[call](made, table)

    assert state == table.state
    assert before == facts(made, table)


@with_any
@pytest.mark.parametrize("call", CALLS)
def test_a_table_of_another_manager_is_refused(prefix_cache: str, call: str) -> None:
    """Both managers stay as they were."""
    made, other = manager(8, 2, prefix_cache), manager(8, 2, prefix_cache)
    table = other.admit([1, 2, 3])
    if call == "resume":
        other.preempt(table)
    before = facts(made), facts(other, table)
    with pytest.raises(BlockTableError):
        CALLS[call](made, table)

    assert before == (facts(made), facts(other, table))


@with_cache
def test_blocks_cannot_be_freed_behind_the_managers_back(prefix_cache: str) -> None:
    """Freeing a free block, or a cached one, is a BlockOwnershipError."""
    made = manager(4, 2, prefix_cache)
    table = made.admit([1, 2, 3])
    made.commit(table, 3)
    free = next(block for block in range(4) if made.pool.owner(block) == "free")
    for block, owner in ((table.blocks[0], "cache"), (free, "free")):
        with pytest.raises(BlockOwnershipError) as caught:
            made.pool.free([block])
        assert (block, owner, "request") == (caught.value.block, caught.value.owner, caught.value.expected)
    made.check_invariants()


@with_any
def test_invariants_name_a_block_in_the_wrong_place(prefix_cache: str) -> None:
    """A block freed behind the manager's back while a request holds it is found out."""
    made = manager(4, 2, prefix_cache)
    table = made.admit([1, 2, 3])
    made.pool.free(table.blocks[:1])

    with pytest.raises(InvariantError) as caught:
        made.check_invariants()
    assert f"block {table.blocks[0]} is owned by 'free', but held {{'request': 1}}" == str(caught.value)


def test_invariants_find_a_table_that_disagrees_with_the_cache() -> None:
    """A table whose leading blocks are not those its lock holds is found out."""
    made = manager(4, 1)
    table = made.admit([1, 2])
    made.commit(table, 2)
    table.blocks.reverse()

    with pytest.raises(InvariantError) as caught:
        made.check_invariants()
    words = "running: 2 tokens, 2 computed, 2 blocks, 2 of them cached"
    assert f"<BlockTable {words}> holds array('I', [1, 0]); the cache lends it array('I', [0, 1])" == str(caught.value)


# --- what goes in ----------------------------------------------------------------------------------------------------


@with_any
@pytest.mark.parametrize("tokens", [[1, -1], "abc", [True], np.array([[1]])])
def test_bad_tokens_are_refused(prefix_cache: str, tokens: Any) -> None:
    """By every call that takes tokens; nothing changed."""
    made = manager(4, 2, prefix_cache)
    table = made.admit([1])
    before = facts(made, table)
    calls: list[Callable[[], object]] = [
        lambda: made.admit(tokens),
        lambda: made.missing_blocks(tokens),
        lambda: made.grow(table, tokens),
    ]
    for call in calls:
        with pytest.raises(TokenError):
            call()

    assert before == facts(made, table)


@with_any
def test_a_bad_namespace_is_refused(prefix_cache: str) -> None:
    """Also where no cache would look at it; nothing changed."""
    made = manager(4, 2, prefix_cache)
    before = facts(made)
    for call in (made.admit, made.missing_blocks):
        with pytest.raises(NamespaceError):
            call([1], 5)  # type: ignore[arg-type]

    assert before == facts(made)


@with_cache
def test_namespaces_share_nothing(prefix_cache: str) -> None:
    """A tenant's blocks are found by that tenant alone."""
    made = manager(16, 1, prefix_cache)
    serve(made, [1, 2, 3], "a")

    assert [0, 0, 2] == [made.admit([1, 2, 9], namespace).matched_tokens for namespace in (None, "b", "a")]


@with_cache
def test_a_priority_goes_with_the_blocks(prefix_cache: str) -> None:
    """Under the `priority` policy an important prompt outlives a newer one."""
    made = manager(4, 1, prefix_cache, eviction="priority")
    serve(made, [1, 2], priority=5)
    serve(made, [3, 4])
    made.finish(made.admit([9, 9]))

    assert (0, 1) == (made.admit([3, 9]).matched_tokens, made.admit([1, 9]).matched_tokens)


@with_cache
def test_a_request_is_of_priority_0_unless_told(prefix_cache: str) -> None:
    """Beside one of priority 0, last use decides."""
    made = manager(4, 1, prefix_cache, eviction="priority")
    serve(made, [1, 2])
    serve(made, [3, 4], priority=0)
    made.finish(made.admit([9, 9]))

    assert (0, 1) == (made.admit([1, 9]).matched_tokens, made.admit([3, 9]).matched_tokens)


@with_any
def test_any_32_bit_token_may_be_sampled(prefix_cache: str) -> None:
    """The largest too, and it is found again."""
    top = 2**32 - 1
    made = manager(8, 1, prefix_cache)
    table = made.admit([1])
    made.grow(table, [top])
    made.grow(table, [top - 1])
    made.commit(table, 3)
    made.finish(table)

    assert [1, top, top - 1] == table.key.tolist()
    if prefix_cache != "none":
        assert 3 == made.admit([1, top, top - 1, 2]).matched_tokens


@pytest.mark.parametrize("name", ["tree", "", None, "Radix"])
def test_an_unknown_cache_is_refused_with_the_known_ones(name: Any) -> None:
    """The error lists them."""
    with pytest.raises(UnknownNameError, match="hash, none, radix") as caught:
        BlockManager(4, 2, prefix_cache=name)

    assert (name, ("hash", "none", "radix")) == (caught.value.name, caught.value.known)


@with_any
def test_an_unknown_policy_is_refused(prefix_cache: str) -> None:
    """Also where there is no cache to evict from."""
    with pytest.raises(UnknownNameError, match="slru"):
        manager(4, 2, prefix_cache, eviction="clock")


@pytest.mark.parametrize(
    ("num_blocks", "block_size"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1.5, 1), (1, 1.5), (None, 1)]
)
def test_sizes_are_positive(num_blocks: Any, block_size: Any) -> None:
    """Blocks and tokens a block."""
    with pytest.raises(SizeError):
        BlockManager(num_blocks, block_size)


@with_any
def test_the_counters_tell_what_happened(prefix_cache: str) -> None:
    """Admissions, resumptions, preemptions, ends, and how many run."""
    made = manager(8, 2, prefix_cache)
    one, two = made.admit([1]), made.admit([2])
    made.preempt(one)
    assert 1 == made.running
    made.resume(one)
    made.finish(two)
    stats = made.stats

    assert (2, 1, 1, 1, 1) == (stats.admitted, stats.resumed, stats.preempted, stats.finished, made.running)
    made.finish(one)
    assert (1, 0) == (stats.finished, made.running)
    assert 8 == made.pool.num_free


# --- evict -----------------------------------------------------------------------------------------------------------


@with_any
def test_the_cache_shrinks_on_demand(prefix_cache: str) -> None:
    """By what no running request reads; the counters go on."""
    made = manager(8, 2, prefix_cache)
    one, two = made.admit([1, 2, 3]), made.admit([5, 6, 7, 8, 9])
    made.commit(one, 3)
    made.commit(two, 5)
    made.finish(two)
    cached = 2 if made.cache else 0

    assert 0 == made.evict(0)
    assert cached == made.evict(100)
    assert 6 == made.pool.num_free
    assert 2 == made.stats.admitted
    assert cached == made.stats.prefix.evicted_blocks
    made.check_invariants()
    with pytest.raises(SizeError):
        made.evict(-1)


# --- reset -----------------------------------------------------------------------------------------------------------


@with_any
def test_a_reset_gives_every_cached_block_back_to_the_pool(prefix_cache: str) -> None:
    """The manager's own call: a reset of its cache alone would leave the blocks with nobody."""
    made = manager(8, 2, prefix_cache)
    table = made.admit([1, 2, 3, 4, 5])
    made.commit(table, 5)
    made.finish(table)
    cached = made.cache.cached_blocks if made.cache else 0

    assert cached == made.reset()
    assert 8 == made.pool.num_free
    made.check_invariants()


def test_a_reset_is_refused_while_a_request_reads_cached_blocks() -> None:
    """Nothing changed then."""
    made = manager(8, 2, "radix")
    table = made.admit([1, 2, 3])
    made.commit(table, 3)
    with pytest.raises(LockError):
        made.reset()

    made.check_invariants()
    made.finish(table)
