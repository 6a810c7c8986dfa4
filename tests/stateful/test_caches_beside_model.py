"""Both prefix caches, with every policy, step by step beside the brute-force model."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from radixkv import HashCache, RadixCache, RadixKVError, TokenKey, counters
from radixkv.eviction import POLICIES, lru2, tlru
from tests import strategies
from tests.model import COUNTERS, LRU2_GHOSTS, MODELS, TLRU_SPARED, End, Refusal
from tests.strategies import Prompt

CACHES: dict[str, type[Any]] = {"radix": RadixCache, "hash": HashCache}
FORMS: list[Callable[[Sequence[int]], Any]] = [list, tuple, TokenKey, lambda tokens: array("q", tokens)]
Handle = tuple[Any, End]


def answer(call: Callable[[], object]) -> object:
    """What the call answers, or the name of the error it refuses with."""
    try:
        return call()
    except RadixKVError as error:
        return type(error).__name__
    except Refusal as refusal:
        return refusal.kind


class CacheMachine(RuleBasedStateMachine):
    """The cache and the model get the same calls; every answer and every counter has to agree."""

    kind: ClassVar[str]
    policy: ClassVar[str]
    handles: Bundle[Handle] = Bundle("handles")

    @initialize(block_size=strategies.block_sizes, ghosts=st.sampled_from([1, 3, 2048]))
    def start(self, block_size: int, ghosts: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(counters, "GHOST_PAGE", ghosts)
        self.patch.setattr(lru2, "GHOSTS", LRU2_GHOSTS)
        self.patch.setattr(tlru, "SPARED", TLRU_SPARED)
        self.cache: Any = CACHES[self.kind](block_size, eviction=self.policy)
        self.other: Any = CACHES[self.kind](block_size, eviction=self.policy)
        self.model = MODELS[self.kind](block_size, self.policy, ghosts)
        self.fresh = 0
        self.held: list[Handle] = []

    def keep(self, node: Any, end: End) -> Handle:
        self.held.append((node, end))
        return node, end

    def new_ids(self, count: int) -> list[int]:
        self.fresh += count
        return list(range(self.fresh - count, self.fresh))

    def do_match(self, tokens: Any, namespace: str | None, resumed: bool) -> Handle:
        asked = tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)
        found = self.model.match(asked, namespace, resumed)
        match = self.cache.match_prefix(tokens, namespace, resumed=resumed)
        assert (found.matched_tokens, found.blocks) == (match.matched_tokens, match.blocks.tolist())
        return self.keep(match.node, found.end)

    def do_insert(self, tokens: list[int], namespace: str | None, priority: int, given: Sequence[int]) -> Handle:
        added = self.model.insert(tokens, given, namespace, priority)
        inserted = self.cache.insert(tokens, given, namespace, priority=priority)
        assert (added.new_blocks, added.duplicates) == (inserted.new_blocks, inserted.duplicates.tolist())
        return self.keep(inserted.node, added.end)

    def do_evict(self, n: int) -> None:
        evicted = self.cache.evict(n).tolist()
        assert self.model.evict(n, evicted) == evicted

    @rule(
        target=handles,
        prompt=strategies.prompts,
        namespace=strategies.namespaces,
        resumed=st.booleans(),
        form=st.sampled_from(FORMS),
    )
    def match(
        self, prompt: Prompt, namespace: str | None, resumed: bool, form: Callable[[Sequence[int]], Any]
    ) -> Handle:
        return self.do_match(form(prompt.spelled(self.model.block_size)), namespace, resumed)

    @rule(
        target=handles,
        prompt=strategies.prompts,
        namespace=strategies.namespaces,
        priority=strategies.priorities,
        again=st.integers(0, 511),
    )
    def insert(self, prompt: Prompt, namespace: str | None, priority: int, again: int) -> Handle:
        """Each block that is cached already comes as the cache's own id or as a second copy."""
        tokens = prompt.spelled(self.model.block_size)
        path = self.model.prefixes(namespace, tokens, len(tokens) // self.model.block_size)
        ids = self.new_ids(len(path))
        given = [
            self.model.ids.get(prefix, new) if again >> i % 9 & 1 else new
            for i, (prefix, new) in enumerate(zip(path, ids, strict=True))
        ]
        return self.do_insert(tokens, namespace, priority, given)

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces, off=st.sampled_from([-1, 1]))
    def insert_wrong_count(self, prompt: Prompt, namespace: str | None, off: int) -> None:
        tokens = prompt.spelled(self.model.block_size)
        given = list(range(len(tokens) // self.model.block_size + off))
        assert (
            answer(lambda: self.model.insert(tokens, given, namespace))
            == answer(lambda: self.cache.insert(tokens, given, namespace))
            or len(tokens) < self.model.block_size
        )

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces)
    def look(self, prompt: Prompt, namespace: str | None) -> None:
        tokens = prompt.spelled(self.model.block_size)
        assert self.model.match_length(tokens, namespace) == self.cache.match_length(tokens, namespace)
        assert self.model.probe(tokens, namespace) == self.cache.probe(tokens, namespace)

    @rule(handle=handles)
    def lock(self, handle: Handle) -> None:
        node, end = handle
        assert answer(lambda: self.model.lock(end)) == answer(lambda: self.cache.lock(node))

    @rule(handle=handles)
    def unlock(self, handle: Handle) -> None:
        node, end = handle
        assert answer(lambda: self.model.unlock(end)) == answer(lambda: self.cache.unlock(node))

    @rule(handle=handles, n=st.integers(0, 4), fails=st.booleans())
    def pin(self, handle: Handle, n: int, fails: bool) -> None:
        """Evict under a pin; the pin ends with its block, also when that raises."""
        node, end = handle
        expected = answer(lambda: self.model.lock(end))
        try:
            with self.cache.pinned(node):
                self.do_evict(n)
                if fails:
                    raise KeyError(n)
        except KeyError:
            assert fails
        except RadixKVError as error:
            assert expected == type(error).__name__
        if expected is None:
            self.model.unlock(end)

    @rule(n=st.integers(0, 6))
    def evict(self, n: int) -> None:
        self.do_evict(n)

    @rule(n=st.integers(-3, -1))
    def evict_negative(self, n: int) -> None:
        assert answer(lambda: self.model.evict(n)) == answer(lambda: self.cache.evict(n))

    @rule(
        target=handles,
        prompt=strategies.prompts,
        more=strategies.short_prompts,
        namespace=strategies.namespaces,
        priority=strategies.priorities,
        room=st.integers(2, 12),
    )
    def serve(self, prompt: Prompt, more: Prompt, namespace: str | None, priority: int, room: int) -> Any:
        """What a request does: match, lock, evict for room, insert prompt and outputs, unlock."""
        tokens = prompt.spelled(self.model.block_size)
        node, end = self.do_match(tokens, namespace, False)
        self.model.lock(end)
        self.cache.lock(node)
        self.do_evict(max(0, self.model.cached_blocks - room))
        tokens += more.spelled(self.model.block_size)
        cached = self.model.path_blocks(end)
        given = cached + self.new_ids(len(tokens) // self.model.block_size - len(cached))
        longer = self.do_insert(tokens, namespace, priority, given)
        self.model.unlock(end)
        self.cache.unlock(node)
        return multiple((node, end), longer)

    @rule()
    def lock_foreign(self) -> None:
        block_size = self.model.block_size
        self.other.insert([0] * block_size, [0])
        node = self.other.match_prefix([0] * block_size + [0]).node
        assert "LockError" == answer(lambda: self.cache.lock(node))
        assert "LockError" == answer(lambda: self.cache.unlock(node))

    @rule(sure=st.integers(0, 4))
    def reset(self, sure: int) -> None:
        """Now and then, so that runs get somewhere."""
        if sure == 0:
            expected = answer(lambda: sorted(self.model.reset()))
            actual = answer(lambda: sorted(self.cache.reset()))
            assert expected == actual

    def teardown(self) -> None:
        """The constants are everybody's."""
        if hasattr(self, "patch"):
            self.patch.undo()

    @invariant()
    def agree(self) -> None:
        """Every property, counter, cached id and handle agrees, and the cache finds nothing wrong with itself."""
        cache, model = self.cache, self.model
        cache.check_invariants()
        assert (model.cached_tokens, model.cached_blocks, model.evictable_blocks, model.hit_rate) == (
            cache.cached_tokens,
            cache.cached_blocks,
            cache.evictable_blocks,
            cache.hit_rate,
        )
        assert model.counters == {name: getattr(cache.stats, name) for name in COUNTERS}
        assert sorted(model.ids.values()) == sorted(cache.block_ids())
        for node, end in self.held:
            assert answer(lambda: model.path_blocks(end)) == answer(lambda: list(cache.path_blocks(node)))


def run_machine(kind: str, policy: str, **limits: Any) -> None:
    """Run the machine for one cache and one policy; `limits` are Hypothesis settings."""
    machine = type(f"{kind}_{policy}", (CacheMachine,), {"kind": kind, "policy": policy})
    chosen = {
        "max_examples": settings().max_examples // 2,
        "stateful_step_count": 40,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    } | limits
    run_state_machine_as_test(machine, settings=settings(**chosen))


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_cache_answers_as_the_model(kind: str, policy: str) -> None:
    """Whatever is asked in whatever order, cache and model give the same answers, counters, errors and victims."""
    run_machine(kind, policy)
