"""What an observer hears: where a cached prefix ends stays right until then, and the blocks are those of each call.

The machine keeps the locations of many prompts. After each step it asks again for all of them: those that nobody was
told about must be as they were. Both caches, with every kind of change.
"""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixkv import HashCache, RadixCache, TokenError
from radixkv.errors import NamespaceError
from radixkv.eviction import POLICIES
from radixkv.types import PrefixLocation
from tests import strategies
from tests.strategies import Prompt

CACHES: dict[str, type[Any]] = {"radix": RadixCache, "hash": HashCache}
with_caches = pytest.mark.parametrize("kind", sorted(CACHES))


class Asked(NamedTuple):
    """A prompt that somebody keeps the location of."""

    tokens: list[int]
    namespace: str | None


class Ear:
    """An observer that notes what it hears, and looks at the cache meanwhile, as it may."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.stored_blocks: list[Hashable] = []
        self.removed_nodes: list[Any] = []
        self.resets = 0
        self.hits: list[list[int]] = []
        self.inserts: list[tuple[list[int], int]] = []
        self.evictions: list[list[int]] = []

    def matched(self, blocks: Sequence[int]) -> None:
        self.look()
        self.hits.append(list(blocks))

    def inserted(self, blocks: Sequence[int], new_blocks: int, name: Hashable | None) -> None:
        self.look()
        self.inserts.append((list(blocks), new_blocks))
        assert (name is None) == (new_blocks == 0)
        if name is not None:
            self.stored_blocks.append(name)

    def evicted(self, nodes: Sequence[Any], blocks: Sequence[int]) -> None:
        self.look()
        for node in nodes:
            with pytest.raises(Exception, match="was evicted"):
                self.cache.lock(node)
        self.removed_nodes += nodes
        self.evictions.append(list(blocks))

    def cleared(self) -> None:
        self.look()
        assert 0 == self.cache.cached_blocks
        self.resets += 1

    def look(self) -> None:
        """The cache is whole whenever it tells something."""
        self.cache.check_invariants()
        self.cache.locate([0, 0, 0, 0, 0])

    def forget(self) -> None:
        self.stored_blocks, self.removed_nodes, self.resets = [], [], 0
        self.hits, self.inserts, self.evictions = [], [], []


class LocationMachine(RuleBasedStateMachine):
    """Inserts, matches that split, locks, evictions and resets, and everything asked for before asked again."""

    kind: ClassVar[str]

    @initialize(block_size=st.integers(1, 3), policy=st.sampled_from(sorted(POLICIES)))
    def begin(self, block_size: int, policy: str) -> None:
        self.cache = CACHES[self.kind](block_size, eviction=policy)
        self.ears = [Ear(self.cache), Ear(self.cache)]
        for ear in self.ears:
            self.cache.observe(ear)
        self.kept: list[tuple[Asked, PrefixLocation[Any]]] = []
        self.locked: list[Any] = []
        self.fresh = 0

    def spelled(self, prompt: Prompt) -> list[int]:
        return prompt.spelled(self.cache.block_size)

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces)
    def keep(self, prompt: Prompt, namespace: str | None) -> None:
        asked = Asked(self.spelled(prompt), namespace)
        self.kept.append((asked, self.cache.locate(*asked)))

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces)
    def insert(self, prompt: Prompt, namespace: str | None) -> None:
        tokens = self.spelled(prompt)
        count = len(tokens) // self.cache.block_size
        self.fresh += count
        inserted = self.cache.insert(tokens, range(self.fresh - count, self.fresh), namespace)
        path = self.cache.path_blocks(inserted.node).tolist()
        assert [(path, inserted.new_blocks)] == self.ears[0].inserts

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces, lock=st.booleans())
    def match(self, prompt: Prompt, namespace: str | None, lock: bool) -> None:
        """It splits an edge, which is nobody's business; the use is told."""
        match = self.cache.match_prefix(self.spelled(prompt), namespace)
        assert [match.blocks.tolist()] == self.ears[0].hits
        if lock:
            self.cache.lock(match.node)
            self.locked.append(match.node)

    @precondition(lambda self: self.locked)
    @rule()
    def unlock(self) -> None:
        self.cache.unlock(self.locked.pop())

    @rule(n=st.integers(0, 6))
    def evict(self, n: int) -> None:
        evicted = self.cache.evict(n)
        told = self.ears[0].removed_nodes
        assert ([evicted.tolist()] if evicted else []) == self.ears[0].evictions
        assert len(evicted) == (sum(len(node.blocks) for node in told) if self.kind == "radix" else len(told))

    @rule()
    def reset(self) -> None:
        if self.cache.evictable_blocks == self.cache.cached_blocks:
            self.cache.reset()
            self.locked = []  # the root alone
            assert [1, 1] == [ear.resets for ear in self.ears]

    @invariant()
    def whoever_heard_nothing_is_right(self) -> None:
        """The match, its end and the missing block: those kept are those one would get now."""
        first, second = self.ears
        assert vars(first) == vars(second)
        for i, (asked, location) in enumerate(self.kept):
            if first.resets or location.node in first.removed_nodes or location.missing in first.stored_blocks:
                self.kept[i] = asked, self.cache.locate(*asked)
            self.check(asked, self.kept[i][1])
        for ear in self.ears:
            ear.forget()

    def check(self, asked: Asked, kept: PrefixLocation[Any]) -> None:
        now = self.cache.locate(*asked)
        assert (now.matched_tokens, now.missing) == (kept.matched_tokens, kept.missing)
        assert now.matched_tokens == self.cache.match_length(*asked)
        size = self.cache.block_size
        everything = max(len(asked.tokens) - 1, 0) // size * size
        assert (kept.missing is None) == (kept.matched_tokens == everything)
        prefix = self.cache.path_blocks(kept.node).tolist()  # of a node that is still there
        held = now.matched_tokens // size
        assert self.cache.path_blocks(now.node).tolist()[:held] == prefix[:held]
        assert len(prefix) >= held
        self.cache.lock(kept.node)  # to lock it is to keep the match
        assert self.cache.probe(*asked).unlocked_blocks == 0
        self.cache.unlock(kept.node)


def run_machine(kind: str, **limits: Any) -> None:
    machine = type(f"{kind}_locations", (LocationMachine,), {"kind": kind})
    chosen = {
        "max_examples": settings().max_examples * 2,
        "stateful_step_count": 30,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    } | limits
    run_state_machine_as_test(machine, settings=settings(**chosen))


@with_caches
def test_a_location_is_right_until_somebody_is_told(kind: str) -> None:
    """Whatever is inserted, split, locked, evicted or reset."""
    run_machine(kind)


# --- by hand ----------------------------------------------------------------------------------------------------------


@with_caches
def test_the_missing_block_is_named_alike_before_and_after_a_split(kind: str) -> None:
    """A match that ends inside an edge names what is missing without a split; who inserts it says the same name."""
    cache = CACHES[kind](2)
    cache.insert([1, 1, 2, 2, 3, 3, 4, 4], [0, 1, 2, 3])
    inside = cache.locate([1, 1, 2, 2, 9, 9, 9])
    cache.match_prefix([1, 1, 2, 2, 7])
    ear = Ear(cache)
    cache.observe(ear)
    assert inside.missing == cache.locate([1, 1, 2, 2, 9, 9, 9]).missing
    cache.insert([1, 1, 2, 2, 9, 9], [4, 5, 6])

    assert [inside.missing] == ear.stored_blocks


@with_caches
def test_a_node_that_goes_on_behind_the_match_tells_when_it_goes(kind: str) -> None:
    """Split in the meantime, its lower part goes first; then the location moves up, and the match is the same."""
    cache = CACHES[kind](1)
    cache.insert([1, 2, 3, 4], [0, 1, 2, 3])
    before = cache.locate([1, 2, 9])
    cache.match_prefix([1, 2, 8])
    ear = Ear(cache)
    cache.observe(ear)
    cache.evict(2)

    assert (before.node in ear.removed_nodes) == (kind == "radix")
    assert 2 == cache.locate([1, 2, 9]).matched_tokens


@with_caches
def test_only_the_first_of_the_new_blocks_is_told(kind: str) -> None:
    """Those behind it cannot be what anybody's match lacks first."""
    cache = CACHES[kind](1)
    ear = Ear(cache)
    cache.observe(ear)
    name = cache.locate([1, 2, 3, 4]).missing
    cache.insert([1, 2, 3], [0, 1, 2])
    cache.insert([1, 2, 3], [0, 1, 2])

    assert [name] == ear.stored_blocks


@with_caches
def test_namespaces_name_their_blocks_apart(kind: str) -> None:
    """The same tokens miss another block in each."""
    cache = CACHES[kind](1)
    names = {cache.locate([1, 2, 3], namespace).missing for namespace in (None, "", "a", "b")}
    cache.insert([1, 2], [0, 1], "a")

    assert 4 == len(names)
    assert [0, 2] == [cache.locate([1, 2, 3], namespace).matched_tokens for namespace in (None, "a")]


@with_caches
def test_locate_changes_nothing(kind: str) -> None:
    """No counter, no recency, no split."""
    cache = CACHES[kind](1)
    cache.insert([1, 1, 1, 1], [0, 1, 2, 3])
    cache.insert([2, 2], [4, 5])
    nodes = len(cache.tree) if kind == "radix" else 0
    before = cache.stats
    for _ in range(3):
        cache.locate([1, 1, 5])

    assert before == cache.stats
    assert nodes == (len(cache.tree) if kind == "radix" else 0)
    assert 3 in cache.evict(1).tolist()


@with_caches
def test_locate_refuses_what_every_call_refuses(kind: str) -> None:
    """Bad tokens, bad namespaces."""
    cache = CACHES[kind](1)
    with pytest.raises(TokenError):
        cache.locate([-1])
    with pytest.raises(NamespaceError):
        cache.locate([1], 7)
