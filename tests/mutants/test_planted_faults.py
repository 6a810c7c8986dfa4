"""Planted faults: the suite has to catch every one, by the test named beside it and by the state machine.

A fault is a few lines of patching over the classes of `radixkv`. Without it the same test passes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase

from radixkv import Inserted, PrefixMatch, RadixCache, RadixKVError, RadixTree, TokenKey
from radixkv.eviction.base import LeafHeap
from tests.contract import test_prefix_cache as contract
from tests.stateful import test_caches_beside_model as beside_model
from tests.unit import test_radix_cache as unit

Patch = Callable[[pytest.MonkeyPatch], None]
CAUGHT = (AssertionError, pytest.fail.Exception, RadixKVError)

match_prefix, insert, evict = RadixCache.match_prefix, RadixCache.insert, RadixCache.evict
split, lock = RadixCache._split, RadixTree.lock


def on_cache(name: str, fault: Any) -> Patch:
    """A patch that puts the fault in the place of an attribute of RadixCache."""
    return lambda patch: patch.setattr(RadixCache, name, fault)


def search_everything(self: RadixCache, data: bytes) -> int:
    return len(data) // self.tree.stride * self.tree.stride


def answer_last_node(self: RadixCache, *args: Any, **options: Any) -> PrefixMatch[Any]:
    match = match_prefix(self, *args, **options)
    return match._replace(blocks=array("I", match.node.blocks))


def count_searched(self: RadixCache, tokens: Any, *args: Any, **options: Any) -> PrefixMatch[Any]:
    match = match_prefix(self, tokens, *args, **options)
    self._counters.hit_tokens += max(len(tokens) - 1, 0) // self.block_size * self.block_size - match.matched_tokens
    return match


def take_block_for_tail(self: RadixCache, tokens: Any, blocks: Any, *args: Any, **options: Any) -> Inserted[Any]:
    key, given = TokenKey.of(tokens), array("I", blocks)
    short = -len(key) % self.block_size
    if short and len(given) == len(key) // self.block_size + 1:
        key = key.extended([0] * short)
    return insert(self, key, given, *args, **options)


def hand_back_cached(self: RadixCache, tokens: Any, blocks: Any, *args: Any, **options: Any) -> Inserted[Any]:
    given = array("I", blocks)
    inserted = insert(self, tokens, given, *args, **options)
    cached = self.path_blocks(inserted.node)
    wrong = array("I", [ours for ours, theirs in zip(cached, given, strict=True) if ours != theirs])
    return inserted._replace(duplicates=wrong)


def insert_tail(self: RadixCache, tokens: Any, *args: Any, **options: Any) -> Inserted[Any]:
    inserted = insert(self, tokens, *args, **options)
    data = TokenKey.of(tokens).data
    if inserted.new_blocks:
        inserted.node.label += data[len(data) // self.tree.stride * self.tree.stride :]
    return inserted


def pin_nothing(self: RadixCache, node: Any) -> None:
    self.tree.check_node(node)


def cut_to_request(self: RadixCache, n: int) -> array[int]:
    return evict(self, n)[:n]


def evict_uncounted(self: RadixCache, n: int) -> array[int]:
    before = self._counters.evicted_blocks
    out = evict(self, n)
    self._counters.evicted_blocks = before
    return out


def tell_given(self: RadixCache, tokens: Any, blocks: Any, *args: Any, **options: Any) -> Inserted[Any]:
    key, given = TokenKey.of(tokens), array("I", blocks)
    name = self.locate(key.extended([0])).missing
    observers, self._observers = self._observers, []
    inserted = insert(self, key, given, *args, **options)
    self._observers = observers
    for observer in observers:
        observer.inserted(given, inserted.new_blocks, name if inserted.new_blocks else None)
    return inserted


def promote_tail(self: RadixCache, node: Any, at: int) -> Any:
    upper = split(self, node, at)
    node.last_use = self._clock + 1  # the tick of the use that follows
    self._policy.used([node], None)
    return upper


def lock_stale(self: RadixTree[Any], node: Any) -> None:
    if node.tree is not None:
        lock(self, node)


def compact_never(self: LeafHeap) -> None:
    pass


class Fault(NamedTuple):
    """What is broken, and the test that has to notice."""

    patch: Patch
    caught_by: Callable[[], None]
    in_state_machine: bool = True


FAULTS: dict[str, Fault] = {
    "a fully cached prompt matched whole": Fault(
        on_cache("_searched", search_everything), unit.test_the_last_prompt_token_is_never_covered
    ),
    "only the last node's blocks returned": Fault(
        on_cache("match_prefix", answer_last_node), unit.test_a_prefix_computed_twice_is_kept_once
    ),
    "the searched length counted as a hit": Fault(
        on_cache("match_prefix", count_searched), unit.test_hand_example_shared_system_prompt
    ),
    "a block taken for the partial tail": Fault(
        on_cache("insert", take_block_for_tail), unit.test_insert_takes_exactly_the_full_blocks
    ),
    "cached ids handed back as duplicates": Fault(
        on_cache("insert", hand_back_cached), unit.test_a_prefix_computed_twice_is_kept_once
    ),
    "the partial tail's tokens inserted": Fault(
        on_cache("insert", insert_tail), unit.test_insert_takes_exactly_the_full_blocks
    ),
    "a lock that pins nothing": Fault(on_cache("lock", pin_nothing), unit.test_a_locked_prefix_survives_eviction),
    "an unlock that releases nothing": Fault(
        on_cache("unlock", pin_nothing), unit.test_a_locked_prefix_survives_eviction
    ),
    "an evicted leaf's ids cut to the request": Fault(
        on_cache("evict", cut_to_request), unit.test_an_evicted_leaf_comes_back_whole
    ),
    "locked blocks counted as evictable": Fault(
        on_cache("evictable_blocks", RadixCache.cached_blocks), unit.test_locked_blocks_are_not_evictable
    ),
    "evictions not counted": Fault(on_cache("evict", evict_uncounted), unit.test_a_locked_prefix_survives_eviction),
    "cached tokens reported in blocks": Fault(
        on_cache("cached_tokens", RadixCache.cached_blocks), unit.test_hand_example_shared_system_prompt
    ),
    "an observer told a duplicate for the cached block": Fault(
        on_cache("insert", tell_given),
        lambda: contract.test_an_observer_hears_of_every_use(RadixCache),
        in_state_machine=False,  # its answers stay right
    ),
    "the tail of a split promoted by a partial hit": Fault(
        on_cache("_split", promote_tail), unit.test_the_tail_of_a_split_keeps_its_time
    ),
    "a lock on an evicted node accepted": Fault(
        lambda patch: patch.setattr(RadixTree, "lock", lock_stale), unit.test_a_lock_on_an_evicted_node_is_refused
    ),
    "evictable heap never compacted": Fault(
        lambda patch: patch.setattr(LeafHeap, "_compact", compact_never),
        lambda: unit.test_memory_does_not_grow_without_evictions("lru"),
        in_state_machine=False,  # its answers stay right
    ),
}


def test_the_list_is_complete() -> None:
    """Sixteen faults."""
    assert 16 == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_named_test_catches_the_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test passes as things are, and fails with the fault."""
    patch, caught_by, _ = FAULTS[fault]
    caught_by()
    patch(monkeypatch)

    with pytest.raises(CAUGHT):
        caught_by()


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.in_state_machine])
def test_the_state_machine_catches_the_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code beside model: the first example that shows the fault fails. Without the fault tests/stateful has it pass."""
    FAULTS[fault].patch(monkeypatch)

    with pytest.raises(CAUGHT):
        beside_model.run_machine("radix", "lru", phases=[Phase.generate], max_examples=200, database=None)
