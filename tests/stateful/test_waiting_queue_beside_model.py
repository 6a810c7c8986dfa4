"""The waiting queue, with every order and each cache, step by step beside the brute-force model.

What is compared at each step: who is admitted and with which blocks; whom the order offers, one by one; every skip,
counted one by one; where every block is; every counter and every node's last use, which looking must not touch.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

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

from radixkv import BlockManager, BlockTable, BlockTableError, HashCache, OutOfBlocksError, RadixCache, TokenKey
from radixkv.eviction import lru2, tlru
from radixkv.scheduler import ORDERS, QueuedError, WaitingQueue, queue
from radixkv.scheduler.base import QueueOrder, RankedOrder, Waiting
from radixkv.scheduler.dfs_weight import DepthFirst
from tests import strategies
from tests.model import COUNTERS, LRU2_GHOSTS, MODELS, RANKS, TLRU_SPARED, End, ModelManager, Refusal
from tests.queue_model import ModelQueue, ModelRequest
from tests.strategies import Prompt

WAITING_ORDER = st.integers(0, 50)


class Spy:
    """A queue order that notes whom it offers."""

    def __init__(self, order: QueueOrder) -> None:
        self.order = order
        self.offered: list[int] = []

    def pop(self) -> Waiting | None:
        waiting = self.order.pop()
        if waiting is not None:
            self.offered.append(waiting.request)
        return waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.order, name)


class QueueMachine(RuleBasedStateMachine):
    """Requests wait, run, grow, are preempted and cancelled in a pool that is always too small."""

    prefix_cache: ClassVar[str]
    order: ClassVar[str]

    @initialize(
        block_size=st.integers(1, 3),
        num_blocks=st.integers(3, 10),
        max_skips=st.sampled_from([0, 1, 2, 3, 1000]),
        look_past=st.sampled_from([1, 2, 3, 64]),
        share_tokens=st.sampled_from([1, 2, 3, 4, 32]),
        left_behind=st.sampled_from([0, 2, 64]),
        policy=st.sampled_from(["lru", "lru", *sorted(RANKS)]),  # the model admits by itself: it needs the rule
    )
    def begin(
        self,
        block_size: int,
        num_blocks: int,
        max_skips: int,
        look_past: int,
        share_tokens: int,
        left_behind: int,
        policy: str,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(queue, "LOOK_PAST", look_past)
        self.patch.setattr(queue, "SHARE_TOKENS", share_tokens)
        for heaps in (RankedOrder, DepthFirst):
            self.patch.setattr(heaps, "LEFT_BEHIND", left_behind)
        self.patch.setattr(lru2, "GHOSTS", LRU2_GHOSTS)
        self.patch.setattr(tlru, "SPARED", TLRU_SPARED)
        self.tables: dict[int, BlockTable] = {}
        cache = MODELS[self.prefix_cache](block_size, policy) if self.prefix_cache in MODELS else None
        self.blocks = ModelManager(num_blocks, block_size, cache)
        self.model = ModelQueue(self.blocks, self.order, max_skips, look_past, share_tokens)
        self.manager = BlockManager(num_blocks, block_size, prefix_cache=self.prefix_cache, eviction=policy)
        self.queue = WaitingQueue[int](self.manager, order=self.order, max_skips=max_skips)
        self.spy: Any = Spy(self.queue._order)
        self.queue._order = self.spy

    # --- the queue ---------------------------------------------------------------------------------------------------

    @rule(prompt=strategies.prompts, namespace=strategies.namespaces, priority=strategies.priorities)
    def add(self, prompt: Prompt, namespace: str | None, priority: int) -> None:
        """Any prompt; one that takes more blocks than the pool has is refused."""
        before = self.state()
        self.enqueue(prompt.spelled(self.blocks.block_size), namespace, priority)
        assert before == self.state()

    def enqueue(self, tokens: list[int], namespace: str | None, priority: int) -> None:
        name = len(self.model.requests)
        if self.blocks.blocks_for(len(tokens)) > self.blocks.num_blocks:
            with pytest.raises(OutOfBlocksError):
                self.queue.add(name, tokens, namespace, priority=priority)
            return
        request = self.model.add(name, tokens, namespace, priority)
        self.queue.add(name, TokenKey(request.tokens), namespace, priority=priority)

    @rule(
        words=st.lists(st.integers(0, 1), min_size=1, max_size=3),
        tails=st.lists(st.lists(strategies.tokens, max_size=2), max_size=4),
    )
    def add_group(self, words: list[int], tails: list[list[int]]) -> None:
        """A few requests that share a prefix come together."""
        for tail in tails:
            self.add(Prompt(words, tail), None, 0)

    @precondition(lambda self: self.blocks.cache and self.blocks.cache.ids)
    @rule(which=WAITING_ORDER, words=st.lists(strategies.tokens, min_size=1, max_size=2))
    def add_too_big(self, which: int, words: list[int]) -> None:
        """One with a cached prefix comes that lacks a single block, and a small one behind it that may fit."""
        cache = self.blocks.cache
        assert cache
        namespace, tokens = sorted(cache.ids, key=str)[which % len(cache.ids)]
        spare = len(self.blocks.free) + cache.evictable_blocks
        longer = [*tokens, *[2] * (self.blocks.block_size * spare)]
        while self.blocks.missing_blocks(longer, namespace) == 0:
            longer.append(2)
        for prompt, space in ((longer, namespace), (Prompt(words, [0]).spelled(self.blocks.block_size), "a")):
            self.enqueue(list(prompt), space, 0)
        self.do_admit()

    @precondition(lambda self: self.model.requests)
    @rule(which=WAITING_ORDER)
    def cancel(self, which: int) -> None:
        """Whoever waits, followers and those put back too, can be taken out; nobody else."""
        request = self.model.requests[-1 - which % len(self.model.requests)]
        before = self.state()
        assert self.model.cancel(request) == self.queue.cancel(request.name)
        assert before == self.state()

    @rule(times=st.integers(1, 3))
    def admit(self, times: int) -> None:
        for _ in range(times):
            self.do_admit()

    def do_admit(self) -> ModelRequest | None:
        before, kept = self.state(), self.lengths()
        self.spy.offered = []
        admitted = self.queue.admit()
        table = admitted[1] if admitted else None
        offered = {name: self.leader_of(name) for name in self.spy.offered}
        assert len(offered) == len(self.spy.offered), "somebody was offered twice"
        expected = self.model.admit(offered, lambda n: table.blocks.tolist()[-n:] if table and n else [])
        assert (expected.name if expected else None) == (admitted[0] if admitted else None)
        if table is None or expected is None:
            assert before == self.state(), "looking touched something"
            assert not self.queue._watch.changed
            assert not self.queue._leaders.changed
        else:
            self.tables[expected.name] = table
            if self.spy.offered:  # else it went before all others, and might take from them
                past = [name for name in self.spy.offered[:-1] if offered[name] is None]
                assert {name: kept[name] for name in past} == {name: self.lengths()[name] for name in past}
        return expected

    def leader_of(self, name: int) -> int | None:
        """The running request that this one waits for, if any."""
        waiting = self.queue._waiting.get(name)
        if waiting is None or waiting.leader is None:
            return None
        return next(other for other, table in self.tables.items() if table is waiting.leader.table)

    @precondition(lambda self: self.model.waiting or self.model.put_back)
    @rule(which=WAITING_ORDER)
    def add_again(self, which: int) -> None:
        """Who waits is not added twice, and not put back either."""
        waiting = [*self.model.waiting, *self.model.put_back]
        request, before = waiting[which % len(waiting)], len(self.queue)
        with pytest.raises(QueuedError):
            self.queue.add(request.name, TokenKey([1]))
        with pytest.raises(QueuedError):
            self.queue.put_back(request.name, self.manager.admit([]))
        assert before == len(self.queue)
        self.blocks.admit([])  # the model's counters take part, and its clock

    # --- running requests --------------------------------------------------------------------------------------------

    def pick(self, which: int) -> ModelRequest:
        running = [request for request in self.model.requests if request.state == "running"]
        return running[which % len(running)]

    def some_run(self) -> bool:
        return any(request.state == "running" for request in self.model.requests)

    @precondition(some_run)
    @rule(which=WAITING_ORDER, part=st.integers(1, 4))
    def commit(self, which: int, part: int) -> None:
        """A chunk of the prefill, or all that is left."""
        request = self.pick(which)
        table = self.tables[request.name]
        assert request.table
        computed = request.table.computed + (table.num_tokens - request.table.computed) * part // 4
        self.blocks.commit(request.table, computed)
        self.manager.commit(table, computed)

    @precondition(some_run)
    @rule(which=WAITING_ORDER, tokens=st.lists(strategies.tokens, min_size=1, max_size=4))
    def grow(self, which: int, tokens: list[int]) -> None:
        """All is prefilled, and tokens are sampled; whoever finds no block goes back to the queue."""
        request = self.pick(which)
        table = self.tables[request.name]
        assert request.table
        self.blocks.commit(request.table, table.num_tokens)
        self.manager.commit(table, table.num_tokens)
        try:
            wanted = self.blocks.grow(request.table, tokens)
        except Refusal:
            with pytest.raises(OutOfBlocksError):
                self.manager.grow(table, tokens)
            self.do_preempt(request)
            return
        self.manager.grow(table, tokens)
        self.blocks.give(request.table, table.blocks.tolist()[-wanted:] if wanted else [])

    @precondition(some_run)
    @rule(which=WAITING_ORDER, complete=st.booleans())
    def finish(self, which: int, complete: bool) -> None:
        """Done, or cancelled while it ran."""
        request = self.pick(which)
        if complete:
            self.commit(which, 4)
        self.do_finish(request)

    def do_finish(self, request: ModelRequest) -> None:
        self.model.finish(request)
        self.manager.finish(self.tables[request.name])

    @precondition(some_run)
    @rule(which=WAITING_ORDER)
    def preempt(self, which: int) -> None:
        self.do_preempt(self.pick(which))

    def do_preempt(self, request: ModelRequest) -> None:
        with pytest.raises(BlockTableError):
            self.queue.put_back(request.name, self.tables[request.name])
        self.model.preempt(request)
        self.manager.preempt(self.tables[request.name])
        self.queue.put_back(request.name, self.tables[request.name])

    @rule(n=st.integers(1, 4))
    def shrink(self, n: int) -> None:
        """Somebody evicts by hand."""
        if self.manager.cache and self.blocks.cache:
            evicted = self.blocks.cache.evict(n)
            self.blocks.free.update(evicted)
            ids = self.manager.cache.evict(n)
            self.manager.pool.reclaim(ids)
            assert evicted == ids.tolist()

    @rule()
    def reset(self) -> None:
        """The cache forgets everything, if nothing is locked."""
        cache = self.blocks.cache
        if self.manager.cache and cache and not any(end.locks for end in cache.ends):
            self.blocks.free.update(cache.reset())
            self.manager.pool.reclaim(self.manager.cache.reset())

    # --- what must hold ----------------------------------------------------------------------------------------------

    def state(self) -> tuple[object, ...]:
        """All that looking must not touch: counters, blocks, recency, locks."""
        cache = self.manager.cache
        owners = [self.manager.pool.owner(i) for i in range(self.blocks.num_blocks)]
        if cache is None:
            return owners, self.manager.stats
        nodes = sorted((last, node.last_use, node.locks, node.pins) for last, node in self.nodes())
        return owners, self.manager.stats, cache.stats, nodes, cache.evictable_blocks

    def nodes(self) -> Iterator[tuple[int, Any]]:
        """Every node, by the id of its last block."""
        cache = self.manager.cache
        if isinstance(cache, RadixCache):
            yield from ((node.blocks[-1], node) for node in cache.tree)
        if isinstance(cache, HashCache):
            yield from ((node.block, node) for node in cache._blocks.values())

    def lengths(self) -> dict[int, int]:
        """How much of every waiting request is cached, asked one by one."""
        cache = self.manager.cache
        if cache is None:
            return {request.name: 0 for request in self.model.waiting} | dict.fromkeys(self.spy.offered, 0)
        return {r.name: cache.match_length(r.tokens, r.namespace) for r in self.model.requests}

    @invariant()
    def nobody_is_lost(self) -> None:
        """Everybody waits once, and what it keeps of each is what the cache says, or it knows better."""
        assert len(self.model.waiting) + len(self.model.put_back) == len(self.queue)
        assert [r.name for r in self.model.waiting] == sorted(self.queue._waiting)
        assert [r.name for r in self.model.put_back] == list(self.queue._put_back)
        lengths = self.lengths()
        for name, waiting in self.queue._waiting.items():
            assert waiting.ordered == (waiting.leader is None)
            if waiting.ordered and self.queue._order.by_match and waiting not in self.queue._watch.changed:
                assert lengths[name] == waiting.matched_tokens == self.model.matched(self.model.requests[name])

    @invariant()
    def skips_are_counted(self) -> None:
        """The oldest has been passed over as often as one finds by counting, and nobody more often."""
        skips = [request.skips for request in self.model.waiting]
        assert (skips[0] if skips else 0) == self.queue.skips == max(skips, default=0)

    @invariant()
    def nothing_is_watched_in_vain(self) -> None:
        """Only those in the order hear of changes, each once, if it goes by matches; the linked list is whole."""
        queue = self.queue
        watched = self.manager.cache and queue._order.by_match
        ordered = {w for w in queue._waiting.values() if w.ordered} if watched else set()
        assert set(queue._watch.changed) <= ordered
        for watchers in (queue._watch.at_node, queue._watch.before_block):
            everyone = [waiting for group in watchers.values() for waiting in group]
            assert len(everyone) == len(set(everyone))
            assert set(everyone) <= ordered
            assert all(watchers.values())
        assert len(list(queue._watch)) == len(set(queue._watch)) == len(ordered)
        assert set(queue._watch) == ordered
        assert set(queue._watch.before_block) <= {w.missing for w in ordered}
        linked, waiting = [], queue._oldest
        while waiting:
            linked.append(waiting.request)
            assert (waiting.newer.older is waiting) if waiting.newer else (queue._newest is waiting)
            waiting = waiting.newer
        assert [r.name for r in self.model.waiting] == linked

    @invariant()
    def blocks_agree(self) -> None:
        """Every id is where the model has it, and every node was last used when the model says."""
        self.manager.check_invariants()
        cache = self.blocks.cache
        cached = set(cache.ids.values()) if cache else set()
        free = self.blocks.free
        owners = ["free" if i in free else "cache" if i in cached else "request" for i in range(self.blocks.num_blocks)]
        assert owners == [self.manager.pool.owner(i) for i in range(self.blocks.num_blocks)]
        for request in self.model.requests:
            if request.table:
                table, expected = self.tables[request.name], request.table
                assert (expected.state, expected.blocks, expected.matched, expected.namespace, expected.priority) == (
                    table.state,
                    table.blocks.tolist(),
                    table.matched_tokens,
                    table.namespace,
                    table.priority,
                )
        assert self.blocks.counters == {name: getattr(self.manager.stats, name) for name in self.blocks.counters}
        if cache:
            assert cache.counters == {name: getattr(self.manager.stats.prefix, name) for name in COUNTERS}
            assert {self.last_block(end): end.last_use for end in cache.ends} == {
                last: node.last_use for last, node in self.nodes()
            }

    def last_block(self, end: End) -> int:
        assert self.blocks.cache
        return self.blocks.cache.ids[end.prefix]

    def teardown(self) -> None:
        """All end: everyone who can fit is admitted, and nothing is left behind in the queue or in the pool."""
        if not hasattr(self, "queue"):
            return
        while self.model.waiting or self.model.put_back or self.some_run():
            while self.some_run():
                self.do_finish(self.pick(0))
            if self.do_admit() is None and (stuck := [*self.model.waiting, *self.model.put_back]):
                too_big = [r for r in stuck if self.blocks.blocks_for(len(r.tokens)) > self.blocks.num_blocks]
                assert too_big, "nothing runs, and yet somebody does not fit"
                assert self.model.cancel(too_big[0]) == self.queue.cancel(too_big[0].name)
            self.nobody_is_lost()
        assert self.queue.admit() is None
        assert (0, 0) == (len(self.queue), self.queue.skips)
        for watch in (self.queue._watch, self.queue._leaders):
            assert not watch.at_node
            assert not watch.before_block
            assert not watch.changed
        for request in self.model.requests:
            assert not self.queue.cancel(request.name)
        if self.manager.cache:
            self.manager.pool.reclaim(self.manager.cache.evict(self.blocks.num_blocks))
        assert self.blocks.num_blocks == self.manager.pool.num_free
        self.patch.undo()


def run_machine(prefix_cache: str, order: str, **limits: Any) -> None:
    """Run the machine for one kind of cache and one order; `limits` are Hypothesis settings."""
    machine = type(f"{prefix_cache}_{order}", (QueueMachine,), {"prefix_cache": prefix_cache, "order": order})
    chosen = {
        "max_examples": settings().max_examples,
        "stateful_step_count": 40,
        "deadline": None,
        "suppress_health_check": list(HealthCheck),
    } | limits
    run_state_machine_as_test(machine, settings=settings(**chosen))


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("prefix_cache", ["hash", "none", "radix"])
def test_the_queue_answers_as_the_model(prefix_cache: str, order: str) -> None:
    """Whatever waits, runs and ends in whatever order: the model admits the same requests with the same blocks."""
    run_machine(prefix_cache, order)
