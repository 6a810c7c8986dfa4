"""The contract of a prefix cache, over both implementations.

They must differ in one thing only: the radix cache evicts whole leaves, so it may give up more than it was asked for,
and the hash cache single blocks, exactly as many as asked for, a prefix's tail before its head.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from radixkv import (
    POLICIES,
    BlockCountError,
    BlockIdError,
    HashCache,
    LockError,
    NamespaceError,
    NodeError,
    PrefixCache,
    PrefixStats,
    RadixCache,
    SizeError,
    StaleNodeError,
    TokenError,
    TokenKey,
    UnknownNameError,
)

CACHES: dict[str, type[RadixCache] | type[HashCache]] = {"radix": RadixCache, "hash": HashCache}
AnyCache: TypeAlias = PrefixCache[Any]
MakeCache: TypeAlias = Callable[..., AnyCache]


@pytest.fixture(params=sorted(CACHES))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str) -> MakeCache:
    return CACHES[kind]


@pytest.fixture
def cache(make: MakeCache) -> AnyCache:
    """Two-token blocks: 1 2 | 3 4 | 5 6 with the ids 10, 11, 12."""
    cache = make(2)
    cache.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])
    return cache


def ids(given: Iterable[int]) -> list[int]:
    return list(given)


def facts(cache: AnyCache) -> tuple[object, ...]:
    """All that a cache shows without being changed; a refused call leaves every one of these as it was."""
    cache.check_invariants()
    return cache.cached_tokens, cache.cached_blocks, cache.evictable_blocks, cache.stats, sorted(cache.block_ids())


# --- match_prefix ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "matched"), list(enumerate([0, 0, 0, 2, 2, 4, 4, 6, 6])))
def test_a_match_leaves_the_last_token_to_compute(make: MakeCache, length: int, matched: int) -> None:
    """Of n tokens the first (n-1)//B*B are searched."""
    cache = make(2)
    cache.insert([1, 2, 3, 4, 5, 6, 7, 8], [10, 11, 12, 13])

    match = cache.match_prefix([1, 2, 3, 4, 5, 6, 7, 8][:length])

    assert (matched, [10, 11, 12, 13][: matched // 2]) == (match.matched_tokens, ids(match.blocks))


def test_a_match_ends_where_the_prompts_part(cache: AnyCache) -> None:
    """Inside a run of blocks as well as behind it; a block that differs in one token is another block."""
    assert [10] == ids(cache.match_prefix([1, 2, 3, 9, 5, 6, 7]).blocks)
    assert [10, 11] == ids(cache.match_prefix([1, 2, 3, 4, 9, 6, 7]).blocks)
    assert [10, 11, 12] == ids(cache.match_prefix([1, 2, 3, 4, 5, 6, 9, 9, 9]).blocks)
    assert [] == ids(cache.match_prefix([9, 2, 3, 4]).blocks)


def test_a_match_answers_its_own_array(cache: AnyCache) -> None:
    """The blocks are a plain array('I') that the caller may change."""
    blocks = cache.match_prefix([1, 2, 3]).blocks
    blocks[0] = 99

    assert array("I", [99]) == blocks
    assert array("I", [10]) == cache.match_prefix([1, 2, 3]).blocks


def test_a_lookup_counts_its_prompt_and_what_it_found(cache: AnyCache) -> None:
    """One lookup, n query tokens, and `matched_tokens` hit tokens: neither what was searched nor what is cached."""
    cache.match_prefix([1, 2, 3, 9, 9, 9, 9])
    cache.match_prefix([8])
    cache.match_prefix([])

    stats = cache.stats
    assert (3, 8, 2) == (stats.lookups, stats.query_tokens, stats.hit_tokens)
    assert 2 / 8 == cache.hit_rate == stats.hit_rate


def test_the_hit_rate_is_zero_before_the_first_query(make: MakeCache) -> None:
    """Also after lookups of nothing."""
    cache = make(1)

    assert 0.0 == cache.hit_rate
    cache.match_prefix([])
    assert 0.0 == cache.hit_rate == cache.stats.hit_rate


def test_a_match_of_nothing_answers_the_root(cache: AnyCache) -> None:
    """The root's path is empty; locking and unlocking it does nothing, however often."""
    root = cache.match_prefix([7, 7, 7]).node
    before = facts(cache)

    cache.unlock(root)
    cache.lock(root)
    cache.lock(root)
    cache.unlock(root)
    with cache.pinned(root):
        assert [] == ids(cache.path_blocks(root))
        assert before == facts(cache)
    assert cache.reset()


def test_a_match_is_a_use_of_the_path_and_of_nothing_else(make: MakeCache) -> None:
    """After a partial hit on A the rest of A is older than B: it goes first, then B, then A's head."""
    cache = make(1)
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([5], [20])
    cache.match_prefix([1, 9])

    assert [11, 12] == sorted(cache.evict(2))
    assert [20] == ids(cache.evict(1))
    assert [10] == ids(cache.evict(1))


def test_an_insert_is_a_use_of_the_path(make: MakeCache) -> None:
    """Inserting a cached prefix again makes it the most recent."""
    cache = make(1)
    cache.insert([1], [10])
    cache.insert([2], [20])
    cache.insert([1], [10])

    assert [20, 10] == [*cache.evict(1), *cache.evict(1)]


@pytest.mark.parametrize("call", ["match_length", "probe", "lock", "path_blocks"])
def test_looking_and_locking_are_no_uses(make: MakeCache, call: str) -> None:
    """The order of eviction stays that of the inserts, and no counter moves."""
    cache = make(1)
    node = cache.insert([1, 2], [10, 11]).node
    cache.insert([5], [20])
    before = facts(cache)
    match call:
        case "match_length":
            assert 1 == cache.match_length([1, 9])
        case "probe":
            assert (1, 1) == cache.probe([1, 9])
        case "lock":
            cache.lock(node)
            cache.unlock(node)
        case _:
            assert [10, 11] == ids(cache.path_blocks(node))

    assert before == facts(cache)
    assert 20 not in cache.evict(1)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 9, 9], [9, 9, 9]])
def test_match_length_says_what_a_match_would(cache: AnyCache, tokens: list[int]) -> None:
    """The same number, before and after the match that splits."""
    expected = cache.match_length(tokens)

    assert expected == cache.probe(tokens).matched_tokens
    assert expected == cache.match_prefix(tokens).matched_tokens == cache.match_length(tokens)


def test_a_probe_tells_the_unlocked_blocks_of_a_match(cache: AnyCache) -> None:
    """Those that a lock of the match would take from the evictable ones, also where the match ends inside an edge."""
    head = cache.match_prefix([1, 2, 9]).node

    assert (4, 2) == cache.probe([1, 2, 3, 4, 9])
    with cache.pinned(head):
        assert (4, 1) == cache.probe([1, 2, 3, 4, 9])
        evictable = cache.evictable_blocks
        with cache.pinned(cache.match_prefix([1, 2, 3, 4, 9]).node):
            assert evictable - 1 == cache.evictable_blocks
            assert (6, 1) == cache.probe([1, 2, 3, 4, 5, 6, 7])
    assert (0, 0) == cache.probe([9, 9, 9])


# --- insert ----------------------------------------------------------------------------------------------------------


def test_an_insert_takes_the_full_blocks_and_no_tail(make: MakeCache) -> None:
    """n//B blocks are taken; the tokens behind the last full block are not cached."""
    cache = make(2)
    inserted = cache.insert([1, 2, 3, 4, 5], [10, 11])

    assert (2, []) == (inserted.new_blocks, ids(inserted.duplicates))
    assert [10, 11] == ids(cache.path_blocks(inserted.node))
    assert (4, 2, 2) == (cache.cached_tokens, cache.cached_blocks, cache.stats.inserted_blocks)
    assert 4 == cache.match_length([1, 2, 3, 4, 5, 5, 5])


def test_an_insert_of_no_full_block_is_the_root(cache: AnyCache) -> None:
    """Nothing new, nothing back."""
    before = facts(cache)
    inserted = cache.insert([9], [])

    assert (0, [], []) == (inserted.new_blocks, ids(inserted.duplicates), ids(cache.path_blocks(inserted.node)))
    assert before == facts(cache)


def test_duplicates_come_back_in_path_order(cache: AnyCache) -> None:
    """Ids that differ from the cache's come back, the cache's own never do, and the cache keeps its own."""
    inserted = cache.insert([1, 2, 3, 4, 5, 6, 7, 8], [99, 11, 98, 13])

    assert (1, [99, 98]) == (inserted.new_blocks, ids(inserted.duplicates))
    assert [10, 11, 12, 13] == ids(cache.path_blocks(inserted.node))
    assert 4 == cache.stats.inserted_blocks


def test_an_insert_that_ends_inside_an_edge_answers_the_upper_part(make: MakeCache) -> None:
    """Its rest is not used: it goes before a prefix inserted in between."""
    cache = make(1)
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([5], [20])
    inserted = cache.insert([1, 2], [90, 11])

    assert (0, [90], [10, 11]) == (
        inserted.new_blocks,
        ids(inserted.duplicates),
        ids(cache.path_blocks(inserted.node)),
    )
    assert [12, 20] == [*cache.evict(1), *cache.evict(1)]


def test_a_longer_prompt_never_grows_a_leaf(make: MakeCache) -> None:
    """A handle goes on ending where it ended: locking it leaves what was added behind it evictable."""
    cache = make(1)
    short = cache.insert([1, 2], [10, 11]).node
    cache.insert([1, 2, 3], [10, 11, 12])

    assert [10, 11] == ids(cache.path_blocks(short))
    with cache.pinned(short):
        assert 1 == cache.evictable_blocks
        assert [12] == ids(cache.evict(9))


@pytest.mark.parametrize("blocks", [[], [10], [10, 11, 12], range(9)])
def test_an_insert_takes_exactly_one_block_for_every_full_one(cache: AnyCache, blocks: Any) -> None:
    """Another number of them is refused with both numbers, and nothing changed."""
    before = facts(cache)
    with pytest.raises(BlockCountError, match=rf"2.*{len(blocks)}") as caught:
        cache.insert([1, 2, 9, 9, 9], blocks)

    assert (2, len(blocks)) == (caught.value.expected, caught.value.given)
    assert isinstance(caught.value, ValueError)
    assert before == facts(cache)
    assert 2 == cache.match_length([1, 2, 9, 9, 9])


@pytest.mark.parametrize("value", [-1, 2**32, 1.5, "7", None])
def test_a_block_id_is_an_unsigned_32_bit_integer(cache: AnyCache, value: Any) -> None:
    """Anything else is refused with its place, and nothing changed."""
    before = facts(cache)
    with pytest.raises(BlockIdError) as caught:
        cache.insert([1, 2, 3, 9], [10, value])

    assert (1, value) == (caught.value.index, caught.value.value)
    assert before == facts(cache)


@pytest.mark.parametrize(
    "form",
    [list, tuple, iter, partial(array, "I"), partial(array, "q"), np.array, torch.tensor],
    ids=["list", "tuple", "iterator", "array I", "array q", "numpy", "torch"],
)
def test_block_ids_come_in_any_form(make: MakeCache, form: Callable[[list[int]], Any]) -> None:
    """And the largest id is one; the cache keeps a copy."""
    cache, given = make(1), form([2**32 - 1, 5])
    cache.insert([1, 2], given)
    if isinstance(given, array | np.ndarray):
        given[0] = 0

    assert [2**32 - 1, 5] == ids(cache.match_prefix([1, 2, 3]).blocks)


# --- namespaces ------------------------------------------------------------------------------------------------------


def test_namespaces_share_nothing(make: MakeCache) -> None:
    """The same tokens under None, "", "a" and "b" are four prefixes; each is found under its own name alone."""
    cache = make(1)
    names = [None, "", "a", "b"]
    for i, name in enumerate(names):
        inserted = cache.insert([1, 2], [10 * i, 10 * i + 1], name)
        assert (2, []) == (inserted.new_blocks, ids(inserted.duplicates))

    found = [ids(cache.match_prefix([1, 2, 3], name).blocks) for name in names]
    assert [[0, 1], [10, 11], [20, 21], [30, 31]] == found
    assert 0 == cache.match_length([1, 2, 3], "c")
    assert (2, 2) == cache.probe([1, 2, 3], "a")
    assert 8 == cache.cached_blocks
    assert sorted(cache.block_ids()) == sorted(cache.evict(99))


def test_one_key_serves_several_namespaces_and_caches(make: MakeCache) -> None:
    """What a `TokenKey` remembers for one call never answers another."""
    key = TokenKey([1, 2, 3, 4, 5])
    caches = [make(1), make(2), make(1)]
    for i, cache in enumerate(caches):
        cache.insert(key, range(len(key) // cache.block_size), "a" if i == 2 else None)

    assert [4, 4, 0] == [cache.match_length(key) for cache in caches]
    assert [0, 0, 4] == [cache.match_length(key, "a") for cache in caches]


@pytest.mark.parametrize("namespace", [1, b"a", ("a",), 0, False])
def test_a_namespace_is_none_or_a_string(cache: AnyCache, namespace: Any) -> None:
    """Anything else is refused by every call that takes one, and nothing changed."""
    before = facts(cache)
    calls: list[Callable[[], object]] = [
        lambda: cache.match_prefix([1, 2, 3], namespace),
        lambda: cache.match_length([1, 2, 3], namespace),
        lambda: cache.probe([1, 2, 3], namespace),
        lambda: cache.insert([1, 2], [10], namespace),
        lambda: cache.insert([], [], namespace),
    ]
    for call in calls:
        with pytest.raises(NamespaceError) as caught:
            call()
        assert namespace is caught.value.value
        assert isinstance(caught.value, TypeError)
    assert before == facts(cache)


# --- lock and unlock -------------------------------------------------------------------------------------------------


def test_a_lock_holds_the_whole_prefix(cache: AnyCache) -> None:
    """Evicting everything leaves the locked blocks, and what was locked is evictable again after the unlock."""
    node = cache.match_prefix([1, 2, 3, 4, 9]).node
    cache.lock(node)

    assert 1 == cache.evictable_blocks
    assert [12] == ids(cache.evict(9))
    assert [] == ids(cache.evict(9))
    cache.unlock(node)
    assert 2 == cache.evictable_blocks
    assert [10, 11] == sorted(cache.evict(9))


def test_locks_count(cache: AnyCache) -> None:
    """Two locks need two unlocks; a third is refused and changes nothing."""
    node = cache.match_prefix([1, 2, 3, 4, 5, 6, 7]).node
    cache.lock(node)
    cache.lock(node)
    cache.unlock(node)
    assert (0, []) == (cache.evictable_blocks, ids(cache.evict(1)))
    cache.unlock(node)
    before = facts(cache)
    with pytest.raises(LockError) as caught:
        cache.unlock(node)

    assert 0 == caught.value.locked_blocks
    assert before == facts(cache)
    assert 3 == cache.evictable_blocks


def test_a_lock_below_does_not_lock_an_ancestor_for_unlock(cache: AnyCache) -> None:
    """An unlock takes a lock of that very node; one held through a longer prefix is not the caller's."""
    head = cache.match_prefix([1, 2, 9]).node
    whole = cache.match_prefix([1, 2, 3, 4, 5, 6, 7]).node
    cache.lock(whole)
    before = facts(cache)
    with pytest.raises(LockError) as caught:
        cache.unlock(head)

    assert 3 == caught.value.locked_blocks
    assert before == facts(cache)
    cache.unlock(whole)


def test_a_split_keeps_handles_and_locks_honest(cache: AnyCache) -> None:
    """A locked prefix that is split later stays locked as a whole, and one unlock releases it as a whole."""
    whole = cache.match_prefix([1, 2, 3, 4, 5, 6, 7]).node
    cache.lock(whole)
    head = cache.match_prefix([1, 2, 9]).node

    assert [10, 11, 12] == ids(cache.path_blocks(whole))
    assert [10] == ids(cache.path_blocks(head))
    assert 0 == cache.evictable_blocks
    cache.unlock(whole)
    assert 3 == cache.evictable_blocks
    with cache.pinned(head):
        assert [11, 12] == sorted(cache.evict(9))


def test_a_pin_ends_with_its_block(cache: AnyCache) -> None:
    """However the block ends."""
    node = cache.match_prefix([1, 2, 3]).node
    with pytest.raises(KeyError), cache.pinned(node):
        raise KeyError(cache.evictable_blocks)
    with cache.pinned(node):
        assert 2 == cache.evictable_blocks

    assert 3 == cache.evictable_blocks


def test_a_handle_of_an_evicted_node_is_stale(cache: AnyCache) -> None:
    """It never pins, frees or shows what took its place, though the same prompt is cached again."""
    node = cache.match_prefix([1, 2, 3, 4, 5, 6, 7]).node
    cache.evict(9)
    cache.insert([1, 2, 3, 4, 5, 6], [20, 21, 22])
    before = facts(cache)
    for call in (cache.lock, cache.unlock, cache.path_blocks):
        with pytest.raises(StaleNodeError):
            call(node)
    with pytest.raises(StaleNodeError):
        cache.pinned(node).__enter__()

    assert before == facts(cache)


def test_a_node_of_another_cache_is_refused(cache: AnyCache, make: MakeCache) -> None:
    """The root of another cache included."""
    other = make(2)
    foreign = other.insert([1, 2], [10]).node
    root = other.match_prefix([7]).node
    before = facts(cache), facts(other)
    for node in (foreign, root):
        for call in (cache.lock, cache.unlock, cache.path_blocks):
            with pytest.raises(LockError):
                call(node)

    assert before == (facts(cache), facts(other))


@pytest.mark.parametrize("node", [None, 3, "root", object()], ids=["none", "int", "str", "object"])
def test_what_is_no_node_is_refused(cache: AnyCache, kind: str, node: Any) -> None:
    """Neither is a node of the other kind of cache."""
    other = CACHES["hash" if kind == "radix" else "radix"](2).insert([1, 2], [10]).node
    before = facts(cache)
    for wrong in (node, other):
        for call in (cache.lock, cache.unlock, cache.path_blocks, lambda no: cache.pinned(no).__enter__()):
            with pytest.raises(NodeError, match=f"not {type(wrong).__name__}"):
                call(wrong)

    assert before == facts(cache)


# --- evict and reset -------------------------------------------------------------------------------------------------


def test_evicted_blocks_are_counted_and_gone(cache: AnyCache) -> None:
    """What evict returned is not cached, not matched, not evictable, and counted once."""
    out = cache.evict(3)

    assert [10, 11, 12] == sorted(out)
    assert (0, 0, 0) == (cache.cached_tokens, cache.cached_blocks, cache.evictable_blocks)
    assert 3 == cache.stats.evicted_blocks
    assert 0 == cache.match_length([1, 2, 3, 4, 5])


def test_what_an_eviction_of_part_of_a_leaf_gives_up(cache: AnyCache, kind: str) -> None:
    """Here the two must differ: a radix cache gives up the whole leaf in path order, a hash cache its last block."""
    assert {"radix": [10, 11, 12], "hash": [12]}[kind] == ids(cache.evict(1))
    assert {"radix": 0, "hash": 2}[kind] == cache.cached_blocks
    assert {"radix": 3, "hash": 1}[kind] == cache.stats.evicted_blocks


def test_in_what_order_a_prefix_goes(cache: AnyCache, kind: str) -> None:
    """Here the two must differ: leaf by leaf, each in path order, against block by block from the tail."""
    cache.match_prefix([1, 2, 3, 4, 9])

    assert {"radix": [12, 10, 11], "hash": [12, 11, 10]}[kind] == ids(cache.evict(3))


def test_a_parent_left_childless_is_a_leaf_like_any_other(make: MakeCache) -> None:
    """Both branches go, least recent first, then the trunk, all in one call."""
    cache = make(1)
    cache.insert([1, 2], [10, 11])
    cache.insert([1, 3], [10, 12])

    assert [11, 12, 10] == ids(cache.evict(3))


def test_an_eviction_of_more_than_there_is_gives_up_all(cache: AnyCache) -> None:
    """And one of nothing, or from an empty cache, gives up nothing."""
    assert [] == ids(cache.evict(0))
    assert 3 == len(cache.evict(2**40))
    assert [] == ids(cache.evict(1))


@pytest.mark.parametrize("n", [-1, -(2**40)])
def test_a_negative_eviction_is_refused(cache: AnyCache, n: int) -> None:
    """With its number, and nothing changed."""
    before = facts(cache)
    with pytest.raises(SizeError) as caught:
        cache.evict(n)

    assert (0, n) == (caught.value.minimum, caught.value.given)
    assert before == facts(cache)


def test_a_reset_forgets_everything(cache: AnyCache) -> None:
    """Every id comes back; counters, ghosts and handles are gone; the cache starts anew."""
    node = cache.match_prefix([1, 2, 3, 4, 5]).node
    cache.evict(1)
    left = sorted(cache.block_ids())

    assert left == sorted(cache.reset())
    assert (0, 0, 0, PrefixStats(), []) == facts(cache)
    with pytest.raises(StaleNodeError):
        cache.lock(node)
    cache.match_prefix([1, 2, 3, 4, 5, 6, 7])
    assert PrefixStats(lookups=1, query_tokens=7, missed_cold=1) == cache.stats
    cache.insert([1, 2], [30])
    assert [30] == ids(cache.evict(1))


def test_a_reset_is_refused_while_anything_is_locked(cache: AnyCache) -> None:
    """It says how many blocks are, and changes nothing."""
    with cache.pinned(cache.match_prefix([1, 2, 3, 4, 9]).node):
        before = facts(cache)
        with pytest.raises(LockError, match="2") as caught:
            cache.reset()
        assert 2 == caught.value.locked_blocks
        assert before == facts(cache)

    assert [10, 11, 12] == sorted(cache.reset())


# --- counters --------------------------------------------------------------------------------------------------------


def test_a_resumed_lookup_is_counted_apart(cache: AnyCache) -> None:
    """It is in no other counter, hit or miss, and else a lookup like any other."""
    match = cache.match_prefix([1, 2, 3, 4, 9], resumed=True)
    cache.match_prefix([7, 7, 7], resumed=True)
    cache.match_prefix([7], resumed=True)

    assert [10, 11] == ids(match.blocks)
    assert 0.0 == cache.hit_rate
    assert (
        PrefixStats(inserted_blocks=3, resumed_lookups=3, resumed_query_tokens=9, resumed_hit_tokens=4) == cache.stats
    )


@pytest.mark.parametrize(
    ("tokens", "cause"),
    [
        ([], "short"),
        ([1], "short"),
        ([1, 2], "short"),
        ([8, 8, 8], "cold"),
        ([1, 9, 3], "cold"),
        ([1, 2, 9, 9, 9], "diverged"),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9], "diverged"),
        ([1, 2, 3], None),
        ([1, 2, 3, 4, 5, 6, 7, 8], None),
        ([40, 41, 9], "evicted"),
        ([40, 41, 42, 43, 9], "evicted"),
        ([1, 2, 44, 45, 9], "evicted"),
    ],
)
def test_a_lookup_has_one_cause_of_missing_or_none(make: MakeCache, tokens: list[int], cause: str | None) -> None:
    """Too short, never seen, left a cached path, or evicted earlier; a lookup that found all it searched has none."""
    cache = make(2)
    cache.insert([1, 2, 44, 45], [1, 2])
    cache.insert([40, 41, 42, 43], [3, 4])
    cache.insert([1, 2, 3, 4, 5, 6], [1, 5, 6])
    cache.evict(3)
    assert [1, 5, 6] == sorted(cache.block_ids())

    cache.match_prefix(tokens)

    causes = ("short", "cold", "diverged", "evicted")
    assert {name: int(name == cause) for name in causes} == {
        name: getattr(cache.stats, f"missed_{name}") for name in causes
    }


def test_a_ghost_belongs_to_its_namespace(make: MakeCache) -> None:
    """The same tokens in another namespace were never evicted."""
    cache = make(1)
    cache.insert([1, 2], [1, 2], "a")
    cache.evict(2)
    for namespace, cause in (("b", "cold"), (None, "cold"), ("a", "evicted")):
        before = getattr(cache.stats, f"missed_{cause}")
        cache.match_prefix([1, 2, 3], namespace)
        assert before + 1 == getattr(cache.stats, f"missed_{cause}")


def test_the_ghosts_are_bounded(make: MakeCache) -> None:
    """The 2,048 blocks evicted last are remembered, at most twice as many, and none before those."""
    cache = make(1)

    def evict(tokens: Iterable[int]) -> None:
        for token in tokens:
            cache.insert([token], [0])
            cache.evict(1)

    def remembered(tokens: Iterable[int]) -> list[int]:
        known = []
        for token in tokens:
            before = cache.stats.missed_evicted
            cache.match_prefix([token, 0])
            known += [token] if cache.stats.missed_evicted > before else []
        return known

    evict(range(4095))  # a full page and all but one of the next
    assert [0, 2047, 2048, 4094] == remembered([0, 2047, 2048, 4094])
    evict([2048])  # it stands on the page already
    assert [0] == remembered([0])
    evict([4095])
    assert [2048, 4095] == remembered([0, 2047, 2048, 4095])
    evict([2048])  # now it is on the new page, too
    evict(range(5000, 7047))
    assert [2048, 5000, 7046] == remembered([2048, 2049, 4095, 5000, 7046])
    evict(range(8000, 10048))
    assert [8000, 10047] == remembered([2048, 7046, 8000, 10047])


def test_a_snapshot_of_the_counters_does_not_move(cache: AnyCache) -> None:
    """`stats` is frozen."""
    before = cache.stats
    cache.match_prefix([1, 2, 3])

    assert 0 == before.lookups
    with pytest.raises(AttributeError):
        before.lookups = 5  # type: ignore[misc]


# --- observers -------------------------------------------------------------------------------------------------------


class Diary:
    """An observer that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def matched(self, blocks: Sequence[int]) -> None:
        self.heard.append(("matched", ids(blocks)))

    def inserted(self, blocks: Sequence[int], new_blocks: int, name: Hashable | None) -> None:
        self.heard.append(("inserted", ids(blocks), new_blocks, name))

    def evicted(self, nodes: Sequence[Any], blocks: Sequence[int]) -> None:
        self.heard.append(("evicted", len(nodes), ids(blocks)))

    def cleared(self) -> None:
        self.heard.append(("cleared",))


def test_an_observer_hears_of_every_use(make: MakeCache) -> None:
    """Call by call: the cache's ids of the whole path, how many of them are new, and what the first of those is called.

    A lookup that hits nothing is told as well, and an insert of nothing new. Looking, locking and an eviction of
    nothing are no news.
    """
    cache, diary = make(1), Diary()
    cache.observe(diary)
    names = [cache.locate(tokens).missing for tokens in ([1, 2, 0], [1, 2, 3, 0])]
    node = cache.insert([1, 2], [10, 11]).node
    names[1] = cache.locate([1, 2, 3, 0]).missing
    cache.insert([1, 2, 3], [20, 21, 12])
    cache.insert([1], [30])
    cache.match_prefix([1, 2, 9], resumed=True)
    cache.match_prefix([9])
    cache.match_length([1, 2])
    cache.lock(node)
    cache.unlock(node)
    cache.evict(0)
    cache.evict(2)
    cache.reset()
    cache.evict(1)

    assert [
        ("inserted", [10, 11], 2, names[0]),
        ("inserted", [10, 11, 12], 1, names[1]),
        ("inserted", [10], 0, None),
        ("matched", [10, 11]),
        ("matched", []),
        ("evicted", 2, [12, 11]),
        ("cleared",),
    ] == diary.heard


def test_whole_leaves_are_told_with_their_blocks(cache: AnyCache, kind: str) -> None:
    """The ids that the call returns, in that order, and the nodes that held them."""
    diary = Diary()
    cache.observe(diary)
    evicted = ids(cache.evict(2))

    assert [("evicted", 1 if kind == "radix" else 2, evicted)] == diary.heard


def test_whoever_observes_no_more_hears_nothing(cache: AnyCache) -> None:
    """The others go on hearing, the one that stops in the middle of an event included; to stop twice does no harm."""

    class Once(Diary):
        def matched(self, blocks: Sequence[int]) -> None:
            super().matched(blocks)
            cache.unobserve(self)

    first, once, last = Diary(), Once(), Diary()
    for observer in (first, once, last):
        cache.observe(observer)
    cache.match_prefix([1, 2, 9])
    cache.unobserve(first)
    cache.unobserve(first)
    cache.match_prefix([9])

    assert [("matched", [10])] == first.heard == once.heard
    assert [("matched", [10]), ("matched", [])] == last.heard


# --- construction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [0, -1, 1.5, "2", None, True])
def test_a_block_has_at_least_one_token(make: MakeCache, block_size: Any) -> None:
    """Any other size is refused."""
    with pytest.raises(SizeError) as caught:
        make(block_size)

    assert ("block_size", 1, block_size) == (caught.value.name, caught.value.minimum, caught.value.given)


@pytest.mark.parametrize("block_size", [1, 2, 16, 1000])
def test_any_block_size_works(make: MakeCache, block_size: int) -> None:
    """From token by token upwards; block_size is a property."""
    cache = make(block_size)
    tokens = range(3 * block_size)
    cache.insert(tokens, [1, 2, 3])

    assert block_size == cache.block_size
    assert 3 * block_size == cache.cached_tokens
    assert [1, 2] == ids(cache.match_prefix(tokens).blocks)


@pytest.mark.parametrize("name", ["LRU", "", "clock", None, ["lru"]])
def test_an_unknown_policy_is_refused_with_the_known_ones(make: MakeCache, name: Any) -> None:
    """The error lists every name there is."""
    with pytest.raises(UnknownNameError, match=", ".join(sorted(POLICIES))) as caught:
        make(1, eviction=name)

    assert (name, tuple(sorted(POLICIES))) == (caught.value.name, caught.value.known)


def test_long_prompts_cost_no_recursion(make: MakeCache) -> None:
    """A chain of 3,000 nodes is matched, locked, shown and evicted."""
    cache = make(1)
    node = cache.insert(range(3000), range(3000)).node
    for length in range(2999, 0, -1 if isinstance(cache, RadixCache) else -300):
        cache.insert(range(length), range(length))
    with cache.pinned(node):
        assert [] == ids(cache.evict(1))
    cache.check_invariants()

    assert cache.cached_blocks == len(cache.evict(3000))


@pytest.mark.parametrize("tokens", [[2**32], "ab", [1.0]])
def test_bad_tokens_change_nothing(cache: AnyCache, tokens: Any) -> None:
    """Every call that takes tokens refuses them first."""
    before = facts(cache)
    calls: list[Callable[[], object]] = [
        lambda: cache.match_prefix(tokens),
        lambda: cache.match_length(tokens),
        lambda: cache.probe(tokens),
        lambda: cache.insert(tokens, [1]),
    ]
    for call in calls:
        with pytest.raises(TokenError):
            call()

    assert before == facts(cache)


def test_the_highest_priority_of_a_path_counts(make: MakeCache) -> None:
    """An important prompt makes what it stands on important, though that was cached before; a match does not."""
    cache = make(1, eviction="priority")
    cache.insert([1], [10], priority=1)
    cache.insert([2], [20], priority=2)
    cache.insert([1], [99], priority=3)
    cache.match_prefix([2, 0])

    assert [20] == list(cache.evict(1))


def test_a_prompt_is_of_priority_0_unless_told(make: MakeCache) -> None:
    """Beside one of priority 0, last use decides."""
    cache = make(1, eviction="priority")
    cache.insert([1], [10])
    cache.insert([2], [20], priority=0)

    assert [10] == list(cache.evict(1))


def test_blocks_come_as_arrays_of_32_bits_even_if_there_are_none(make: MakeCache) -> None:
    """What is extended by them later may hold any id."""
    cache = make(1)
    root = cache.match_prefix([1]).node
    nothing = [
        cache.match_prefix([1, 2]).blocks,
        cache.insert([1], [10]).duplicates,
        cache.insert([1], [10]).duplicates,
        cache.path_blocks(root),
        cache.evict(0),
        cache.evict(1)[1:],
        cache.block_ids(),
        cache.reset(),
    ]

    assert ["array('I')"] * 8 == list(map(repr, nothing))


def test_what_is_counted_is_a_plain_int(cache: AnyCache) -> None:
    """No float gets in where bytes are divided into tokens and blocks: a log shows 4, not 4.0."""
    prompt = [1, 2, 3, 4, 9]
    looked = [*cache.probe(prompt), cache.match_length(prompt), cache.locate(prompt).matched_tokens]
    numbers = [*looked, *(cache.match_prefix(prompt, resumed=again).matched_tokens for again in (False, True))]
    stats = cache.stats

    assert [4, 2, 4, 4, 4, 4] == numbers
    assert {int} == {type(number) for number in [*numbers, *(getattr(stats, name) for name in stats.__slots__)]}


def test_a_namespace_may_be_any_string(make: MakeCache) -> None:
    """A lone surrogate too: found, evicted, and missed for the eviction."""
    cache = make(1)
    cache.insert([1, 2], [10, 11], "\ud800")
    assert 2 == cache.match_length([1, 2, 3], "\ud800")
    cache.evict(2)
    for namespace in (None, "", "?", "\udc80", "\ud800"):
        cache.match_prefix([1, 2, 3], namespace)

    assert (4, 1) == (cache.stats.missed_cold, cache.stats.missed_evicted)


def test_any_32_bit_id_goes_in_and_out(make: MakeCache) -> None:
    """The largest too, by every way out."""
    top = 2**32 - 1
    cache = make(1)
    node = cache.insert([1, 2], [top, top - 1]).node

    assert [top, top - 1] == list(cache.match_prefix([1, 2, 3]).blocks) == list(cache.path_blocks(node))
    assert [top - 2] == list(cache.insert([1], [top - 2]).duplicates)
    assert [top - 1, top] == sorted(cache.block_ids())
    assert [top - 1] == list(cache.evict(1))[-1:]
    cache.insert([5], [top - 3])
    assert top - 3 in cache.reset()


def test_refusals_say_what_is_wrong(make: MakeCache) -> None:
    """In words, with their numbers."""
    cache, other = make(1), make(1)
    node = cache.insert([1, 2], [0, 1]).node
    stranger = other.insert([1], [0]).node
    thing = "node" if isinstance(cache, RadixCache) else "block"
    below = "nodes below it" if isinstance(cache, RadixCache) else "blocks after it"
    head = cache.match_prefix([1, 5]).node
    cache.lock(node)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: cache.unlock(head), f"the {thing} is not locked, only {below} are; 2 blocks are"),
        (lambda: cache.lock(stranger), "the node belongs to another cache"),
        (cache.reset, "2 blocks are locked: unlock before a reset"),
    ]
    for call, words in refused:
        with pytest.raises(LockError) as caught:
            call()
        assert (words, 2) == (str(caught.value), caught.value.locked_blocks)
    cache.unlock(node)
    with pytest.raises(LockError, match=f"^the {thing} is not locked; 0 blocks are$"):
        cache.unlock(node)
    cache.reset()
    with pytest.raises(StaleNodeError, match=f"^the {thing} was evicted: match its prompt again$"):
        cache.lock(node)
