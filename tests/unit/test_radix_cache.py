"""The radix cache by hand, and what only it does."""

import tracemalloc
from array import array
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from radixkv import POLICIES, BlockCountError, BlockIdError, LockError, PrefixStats, RadixCache, StaleNodeError


def ids(given: Any) -> list[int]:
    return list(given)


def test_hand_example_shared_system_prompt() -> None:
    """The design's example, call by call: what is shared is found, and the last token never."""
    cache = RadixCache(block_size=2)

    assert (2, array("I")) == cache.insert([1, 2, 3, 4, 5], [10, 11])[:2]
    assert 4 == cache.cached_tokens
    assert (4, array("I", [10, 11])) == cache.match_prefix([1, 2, 3, 4, 9, 9])[:2]
    assert (2, array("I", [10])) == cache.match_prefix([1, 2, 3, 4])[:2]
    root = cache.match_prefix([7, 7, 7])
    assert (0, array("I"), cache.tree.root) == root
    assert (13, 6) == (cache.stats.query_tokens, cache.stats.hit_tokens)
    assert 6 / 13 == cache.hit_rate


def test_the_last_prompt_token_is_never_covered() -> None:
    """Prompts of 0 to 7 tokens over 6 cached ones, two a block."""
    cache = RadixCache(block_size=2)
    cache.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])

    prompts = [[1, 2, 3, 4, 5, 6, 7][:length] for length in range(8)]
    assert [0, 0, 0, 2, 2, 4, 4, 6] == [cache.match_length(prompt) for prompt in prompts]
    assert [0, 0, 0, 2, 2, 4, 4, 6] == [cache.match_prefix(prompt).matched_tokens for prompt in prompts]


def test_insert_takes_exactly_the_full_blocks() -> None:
    """Neither more nor fewer ids than n//B, and the partial tail's tokens are not cached."""
    cache = RadixCache(block_size=3)
    for wrong in ([], [1], [1, 2, 3]):
        with pytest.raises(BlockCountError) as caught:
            cache.insert([1, 2, 3, 4, 5, 6, 7, 8], wrong)
        assert (2, len(wrong)) == (caught.value.expected, caught.value.given)
    assert (0, PrefixStats()) == (cache.cached_tokens, cache.stats)

    inserted = cache.insert([1, 2, 3, 4, 5, 6, 7, 8], [1, 2])
    assert (2, array("I"), 6) == (inserted.new_blocks, inserted.duplicates, cache.cached_tokens)
    assert (2, 2) == (cache.cached_blocks, cache.stats.inserted_blocks)
    assert 6 == cache.match_length([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert (0, array("I")) == cache.insert([1, 2, 3, 4, 5, 6, 9], [1, 2])[:2]


def test_a_prefix_computed_twice_is_kept_once() -> None:
    """Two requests computed the same prompt: the second one's ids come back, in path order, and the first's stay."""
    cache = RadixCache(block_size=2)
    cache.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])
    second = cache.insert([1, 2, 3, 4, 5, 6, 7, 8], [20, 11, 22, 13])

    assert (1, [20, 22]) == (second.new_blocks, ids(second.duplicates))
    assert 4 == cache.cached_blocks == cache.stats.inserted_blocks
    assert [10, 11, 12, 13] == ids(cache.match_prefix([1, 2, 3, 4, 5, 6, 7, 8, 9]).blocks)
    assert [] == ids(cache.insert([1, 2, 3, 4], [10, 11]).duplicates)


def test_a_locked_prefix_survives_eviction() -> None:
    """Whatever is asked for, what a running request reads stays; after its unlock it goes."""
    cache = RadixCache(block_size=2)
    cache.insert([1, 2, 3, 4, 5, 6], [10, 11, 12])
    cache.insert([7, 8], [13])
    node = cache.match_prefix([1, 2, 3, 4, 9]).node
    cache.lock(node)

    assert 2 == cache.evictable_blocks
    assert [12, 13] == sorted(cache.evict(100))
    assert (2, 0) == (cache.cached_blocks, cache.evictable_blocks)
    assert [10, 11] == ids(cache.match_prefix([1, 2, 3, 4, 9]).blocks)
    cache.unlock(node)
    assert 2 == cache.evictable_blocks
    assert [10, 11] == ids(cache.evict(1))
    assert 4 == cache.stats.evicted_blocks


def test_eviction_frees_the_least_recently_used_first() -> None:
    """Whole leaves, oldest use first, a trunk after its branches; a match makes a branch the newest."""
    cache = RadixCache(block_size=1)
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([1, 4, 5], [10, 13, 14])
    cache.insert([6, 7], [15, 16])
    cache.match_prefix([1, 2, 3, 0])

    assert [13, 14] == ids(cache.evict(1))
    assert [15, 16, 11, 12] == ids(cache.evict(3))
    assert [10] == ids(cache.evict(1))


def test_blocks_are_conserved_and_locked_prefixes_stay() -> None:
    """3,000 seeded serving steps over 64 ids: none is lost, locked ones stay, all come back at the end."""
    random, cache = Random(2024), RadixCache(block_size=2)
    free = list(range(64))
    running: list[tuple[list[int], Any, list[int], list[int]]] = []
    for _ in range(3000):
        tokens = [random.randrange(3) for _ in range(random.randrange(1, 16))]
        if len(running) < 4 and random.random() < 0.6:
            match = cache.match_prefix(tokens)
            cache.lock(match.node)
            need = len(tokens) // 2 - len(match.blocks)
            if need > len(free):
                free += cache.evict(need - len(free))
            if need > len(free):
                cache.unlock(match.node)
                continue
            own = [free.pop() for _ in range(need)]
            running.append((tokens, match.node, ids(match.blocks), own))
        elif running:
            tokens, node, cached, own = running.pop(random.randrange(len(running)))
            inserted = cache.insert(tokens, cached + own)
            assert inserted.new_blocks + len(inserted.duplicates) == len(own)
            assert set(inserted.duplicates) <= set(own)
            free += inserted.duplicates
            cache.unlock(node)
        if random.random() < 0.1:
            free += cache.evict(random.randrange(6))

        cache.check_invariants()
        held = [block for *_, own in running for block in own]
        assert list(range(64)) == sorted([*free, *held, *cache.block_ids()])
        for _, node, cached, _ in running:
            assert cached == ids(cache.path_blocks(node))

    assert cache.stats.evicted_blocks > 500
    assert cache.stats.hit_tokens > 500
    for _, node, _, own in running:
        cache.unlock(node)
        free += own
    free += cache.evict(64)
    assert list(range(64)) == sorted(free)
    assert (0, 0) == (cache.cached_blocks, len(cache.tree))


def test_an_evicted_leaf_comes_back_whole() -> None:
    """However few blocks were asked for: half a leaf would be lost to both sides."""
    cache = RadixCache(block_size=1)
    cache.insert(range(10), range(10))

    assert list(range(10)) == ids(cache.evict(3))
    assert 10 == cache.stats.evicted_blocks


def test_locked_blocks_are_not_evictable() -> None:
    """`evictable_blocks` is what an eviction of everything gives up."""
    cache = RadixCache(block_size=1)
    cache.insert([1, 2, 3], [10, 11, 12])
    node = cache.insert([1, 2, 4], [10, 11, 13]).node
    cache.lock(node)

    assert (4, 1) == (cache.cached_blocks, cache.evictable_blocks)
    assert 1 == len(cache.evict(99))
    assert (3, 0) == (cache.cached_blocks, cache.evictable_blocks)


def test_a_lock_on_an_evicted_node_is_refused() -> None:
    """The handle is stale, and what took its place is not pinned by it."""
    cache = RadixCache(block_size=1)
    node = cache.insert([1, 2], [10, 11]).node
    cache.evict(1)
    cache.insert([1, 2], [20, 21])
    with pytest.raises(StaleNodeError):
        cache.lock(node)

    assert (2, 2) == (cache.cached_blocks, cache.evictable_blocks)
    cache.check_invariants()


def test_the_tail_of_a_split_keeps_its_time() -> None:
    """A partial hit uses the matched half alone: the tail goes before a prefix inserted after it."""
    cache = RadixCache(block_size=1)
    cache.insert([1, 2, 3, 4], [10, 11, 12, 13])
    cache.insert([5], [20])
    cache.match_prefix([1, 2, 9])

    assert [12, 13] == ids(cache.evict(1))
    assert [20] == ids(cache.evict(1))


def test_cached_tokens_are_tokens() -> None:
    """Not blocks."""
    cache = RadixCache(block_size=4)
    cache.insert(range(13), range(3))

    assert (12, 3) == (cache.cached_tokens, cache.cached_blocks)


def test_a_ghost_is_the_first_block_of_what_was_evicted() -> None:
    """A lookup that stops right there misses for the eviction; one that stops behind what is cached does not."""
    cache = RadixCache(block_size=1)
    cache.insert([1, 2, 3, 4], [10, 11, 12, 13])
    cache.match_prefix([1, 2, 9])
    cache.evict(1)
    assert PrefixStats(lookups=1, query_tokens=3, hit_tokens=2, inserted_blocks=4, evicted_blocks=2) == cache.stats
    cache.match_prefix([1, 2, 3, 4, 5])
    cache.match_prefix([1, 2, 5, 5])
    cache.match_prefix([3, 5])

    stats = cache.stats
    assert (0, 1, 1, 1) == (stats.missed_short, stats.missed_evicted, stats.missed_diverged, stats.missed_cold)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_memory_does_not_grow_without_evictions(policy: str) -> None:
    """After thousands of matches, locks and unlocks nothing is larger than after the first."""
    cache = RadixCache(block_size=1, eviction=policy)
    prompts = [[branch, leaf, 0] for branch in range(4) for leaf in range(8)]
    nodes = [cache.insert(prompt[:2], [1000 + prompt[0], number]).node for number, prompt in enumerate(prompts)]

    def serve(rounds: int) -> None:
        for _ in range(rounds):
            for prompt in prompts:
                with cache.pinned(cache.match_prefix(prompt).node):
                    pass
            for node in nodes:  # long after their use
                with cache.pinned(node):
                    pass

    serve(30)
    tracemalloc.start()
    try:
        serve(10)  # 320 lookups: what a policy works out anew now and then is traced from here on
        before = tracemalloc.get_traced_memory()[0]
        serve(100)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < 8_000
    cache.check_invariants()
    assert 36 == len(cache.evict(99))


def test_a_million_byte_label_is_split_anywhere() -> None:
    """The bisection finds the block where two long prompts part, at both ends and between."""
    cache = RadixCache(block_size=16)
    tokens = list(range(16 * 100))
    cache.insert(tokens, range(100))
    for block in [99, 1, 50, 63, 64, 65, 2, 98]:
        for offset in (0, 7, 15):
            other = tokens.copy()
            other[16 * block + offset] = 2**32 - 1
            assert 16 * block == cache.match_length([*other, 0])
            assert list(range(block)) == ids(cache.match_prefix([*other, 0]).blocks)
    cache.check_invariants()


def test_the_tree_shows_what_is_cached() -> None:
    """`cache.tree` is a RadixTree, drawn as text; an edge was split where two prompts part."""
    cache = RadixCache(block_size=1)
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([1, 2, 4], [10, 11, 13])

    assert 3 == len(cache.tree)
    assert all(text in str(cache.tree) for text in ("[1 2]", "[3]", "[4]"))


def test_locks_of_one_node_do_not_leak_to_its_sibling() -> None:
    """Unlocking one branch leaves the trunk locked for the other."""
    cache = RadixCache(block_size=1)
    left = cache.insert([1, 2, 3], [10, 11, 12]).node
    right = cache.insert([1, 2, 4], [10, 11, 13]).node
    cache.lock(left)
    cache.lock(right)
    cache.unlock(left)

    assert [12] == ids(cache.evict(99))
    cache.unlock(right)
    with pytest.raises(LockError):
        cache.unlock(right)
    assert [13, 10, 11] == ids(cache.evict(99))


@pytest.mark.parametrize(
    ("blocks", "index", "value"),
    [
        ([0, True], 1, True),
        ([0, 1.0], 1, 1.0),
        ([-1, 0], 0, -1),
        ([0, 2**32], 1, 2**32),
        (None, None, None),
        (7, None, 7),
    ],
)
def test_what_is_no_run_of_block_ids_is_refused(blocks: Any, index: int | None, value: object) -> None:
    """A bool, a float, an id out of range and what is no run at all; nothing changed."""
    cache = RadixCache(1)
    with pytest.raises(BlockIdError) as caught:
        cache.insert([1, 2], blocks)

    assert (index, value) == (caught.value.index, caught.value.value)
    assert 0 == cache.cached_blocks


def test_a_block_id_in_an_array_without_dimensions_is_refused() -> None:
    """numpy's scalar array has a list form that is none."""
    scalar: Any = np.array(7)
    with pytest.raises(BlockIdError) as caught:
        RadixCache(1).insert([1], scalar)

    assert caught.value.index is None
    assert scalar is caught.value.value


@pytest.mark.parametrize("ids", [np.array([5, 6], dtype=np.int64), torch.tensor([5, 6]), (5, 6), range(5, 7)])
def test_block_ids_come_in_any_integer_form(ids: Any) -> None:
    """numpy and torch too."""
    cache = RadixCache(1)
    cache.insert([1, 2], ids)

    assert [5, 6] == list(cache.match_prefix([1, 2, 3]).blocks)
