"""The block manager, with each cache and with none, step by step beside the brute-force model."""

from functools import partial
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

from radixkv import BlockManager, OutOfBlocksError
from tests import strategies
from tests.model import COUNTERS, MODELS, ModelManager, ModelTable, Refusal
from tests.stateful.test_caches_beside_model import answer
from tests.strategies import Prompt

Pair = tuple[Any, ModelTable]


class ManagerMachine(RuleBasedStateMachine):
    """Requests come, grow, finish and are preempted in a pool that is always too small."""

    prefix_cache: ClassVar[str]
    policy: ClassVar[str]
    pairs: Bundle[Pair] = Bundle("pairs")

    @initialize(block_size=strategies.block_sizes, num_blocks=st.integers(3, 10))
    def start(self, block_size: int, num_blocks: int) -> None:
        cache = MODELS[self.prefix_cache](block_size, self.policy) if self.prefix_cache in MODELS else None
        self.model = ModelManager(num_blocks, block_size, cache)
        self.manager: Any = BlockManager(num_blocks, block_size, prefix_cache=self.prefix_cache, eviction=self.policy)
        self.held: list[Pair] = []

    def refuse(self, refusal: Refusal, call: Any) -> None:
        """The code has to refuse as the model did, with the same numbers."""
        with pytest.raises(OutOfBlocksError) as caught:
            call()
        assert refusal.numbers["missing"] == caught.value.missing
        assert caught.value.wanted - caught.value.available == caught.value.missing

    def do_admit(self, tokens: list[int], namespace: str | None, priority: int) -> Pair | None:
        call = partial(self.manager.admit, tokens, namespace, priority=priority)
        try:
            expected, wanted = self.model.admit(tokens, namespace, priority)
        except Refusal as refusal:
            self.refuse(refusal, call)
            return None
        table: Any = call()
        self.model.give(expected, table.blocks.tolist()[-wanted:] if wanted else [])
        self.held.append((table, expected))
        return table, expected

    def do_grow(self, pair: Pair, tokens: list[int]) -> None:
        table, expected = pair
        try:
            wanted = self.model.grow(expected, tokens)
        except Refusal as refusal:
            self.refuse(refusal, lambda: self.manager.grow(table, tokens))
            return
        self.manager.grow(table, tokens)
        self.model.give(expected, table.blocks.tolist()[-wanted:] if wanted else [])

    @rule(
        target=pairs,
        prompt=strategies.short_prompts,
        namespace=strategies.namespaces,
        priority=strategies.priorities,
        prefilled=st.booleans(),
    )
    def admit(self, prompt: Prompt, namespace: str | None, priority: int, prefilled: bool) -> Any:
        """Most requests are prefilled at once, the others wait for a commit."""
        tokens = prompt.spelled(self.model.block_size)
        pair = self.do_admit(tokens, namespace, priority)
        if pair is None:
            return multiple()
        if prefilled:
            self.model.commit(pair[1], len(tokens))
            self.manager.commit(pair[0], len(tokens))
        return pair

    @rule(pair=pairs, part=st.integers(0, 4))
    def commit(self, pair: Pair, part: int) -> None:
        table, expected = pair
        todo = len(expected.tokens) - expected.computed
        computed = expected.computed + todo * part // 4
        assert answer(lambda: self.model.commit(expected, computed)) == answer(
            lambda: self.manager.commit(table, computed)
        )

    @rule(pair=pairs, off=st.sampled_from([-1, 1]))
    def commit_out_of_range(self, pair: Pair, off: int) -> None:
        table, expected = pair
        computed = len(expected.tokens) + 1 if off > 0 else -1
        assert answer(lambda: self.model.commit(expected, computed)) == answer(
            lambda: self.manager.commit(table, computed)
        )

    @rule(pair=pairs, tokens=st.lists(strategies.tokens, max_size=5))
    def grow(self, pair: Pair, tokens: list[int]) -> None:
        if pair[1].state == "running":
            self.do_grow(pair, tokens)
        else:
            assert "BlockTableError" == answer(lambda: self.manager.grow(pair[0], tokens))

    @rule(pair=pairs, tokens=st.lists(strategies.tokens, min_size=1, max_size=6))
    def decode(self, pair: Pair, tokens: list[int]) -> None:
        """Prefill what is left, then token by token: sample one, and compute it in the next step."""
        table, expected = pair
        for token in tokens if expected.state == "running" else []:
            self.model.commit(expected, len(expected.tokens))
            self.manager.commit(table, table.num_tokens)
            self.do_grow(pair, [token])

    @rule(pair=pairs)
    def finish(self, pair: Pair) -> None:
        table, expected = pair
        assert answer(lambda: self.model.finish(expected)) == answer(lambda: self.manager.finish(table))

    @rule(pair=pairs)
    def preempt(self, pair: Pair) -> None:
        table, expected = pair
        assert answer(lambda: self.model.preempt(expected)) == answer(lambda: self.manager.preempt(table))

    @rule(pair=pairs)
    def resume(self, pair: Pair) -> None:
        table, expected = pair
        try:
            wanted = self.model.resume(expected)
        except Refusal as refusal:
            if refusal.kind == "OutOfBlocksError":
                self.refuse(refusal, lambda: self.manager.resume(table))
            else:
                assert refusal.kind == answer(lambda: self.manager.resume(table))
            return
        self.manager.resume(table)
        self.model.give(expected, table.blocks.tolist()[-wanted:] if wanted else [])

    @rule(n=st.integers(-1, 4))
    def evict(self, n: int) -> None:
        assert answer(lambda: self.model.evict(n)) == answer(lambda: self.manager.evict(n))

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces)
    def ask(self, prompt: Prompt, namespace: str | None) -> None:
        tokens = prompt.spelled(self.model.block_size)
        assert self.model.missing_blocks(tokens, namespace) == self.manager.missing_blocks(tokens, namespace)

    @rule(pair=pairs)
    def hand_over_foreign(self, pair: Pair) -> None:
        """A table of another manager is refused."""
        other = BlockManager(4, self.model.block_size)
        for call in (other.finish, other.preempt, other.resume):
            assert "BlockTableError" == answer(lambda: call(pair[0]))

    @invariant()
    def agree(self) -> None:
        """Every id is where the model has it, every table and counter agrees, and nothing is wrong inside."""
        manager, model = self.manager, self.model
        manager.check_invariants()
        manager.pool.check_invariants()
        cached = set(model.cache.ids.values()) if model.cache else set()
        owners = dict.fromkeys(range(model.num_blocks), "request")
        owners |= dict.fromkeys(model.free, "free") | dict.fromkeys(cached, "cache")
        assert owners == {i: manager.pool.owner(i) for i in range(model.num_blocks)}
        assert len(model.free) == manager.pool.num_free
        for table, expected in self.held:
            assert (
                expected.state,
                expected.blocks,
                len(expected.tokens),
                expected.namespace,
                expected.computed,
                expected.matched,
                expected.cached,
            ) == (
                table.state,
                table.blocks.tolist(),
                table.num_tokens,
                table.namespace,
                table.computed_tokens,
                table.matched_tokens,
                table.cached_blocks,
            )
        assert len(model.running) == manager.running
        assert model.counters == {name: getattr(manager.stats, name) for name in model.counters}
        if model.cache is None:
            assert manager.cache is None
            return
        assert model.cache.counters == {name: getattr(manager.stats.prefix, name) for name in COUNTERS}
        assert (model.cache.cached_blocks, model.cache.evictable_blocks) == (
            manager.cache.cached_blocks,
            manager.cache.evictable_blocks,
        )

    def teardown(self) -> None:
        """All requests end, everything is evicted: each id is free again."""
        if not hasattr(self, "manager"):
            return
        for table, expected in self.held:
            if expected.state == "running":
                self.manager.finish(table)
        if self.manager.cache is not None:
            assert self.manager.cache.cached_blocks == self.manager.cache.evictable_blocks
            self.manager.pool.reclaim(self.manager.cache.evict(self.model.num_blocks))
        assert self.model.num_blocks == self.manager.pool.num_free


def run_machine(prefix_cache: str, policy: str, **limits: Any) -> None:
    """Run the machine for one kind of cache and one policy; `limits` are Hypothesis settings."""
    name = f"{prefix_cache}_{policy}"
    machine = type(name, (ManagerMachine,), {"prefix_cache": prefix_cache, "policy": policy})
    chosen = {
        "max_examples": settings().max_examples // 2,
        "stateful_step_count": 40,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    } | limits
    run_state_machine_as_test(machine, settings=settings(**chosen))


# How a policy ranks is for the caches' own machine to find out; here each cache sees some of them.
CASES = [("none", "lru"), ("radix", "lru"), ("radix", "slru"), ("radix", "mru"), ("hash", "lru"), ("hash", "priority")]


@pytest.mark.parametrize(("prefix_cache", "policy"), CASES)
def test_manager_answers_as_the_model(prefix_cache: str, policy: str) -> None:
    """Whatever requests do in whatever order, every id is where the model has it, and refusals say the same."""
    run_machine(prefix_cache, policy)
