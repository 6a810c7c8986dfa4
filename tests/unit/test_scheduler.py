"""The waiting queue by hand: whom it admits, whom it passes over and how often, and who waits for whom."""

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from radixkv import (
    BlockManager,
    BlockTable,
    BlockTableError,
    NamespaceError,
    OutOfBlocksError,
    RadixKVError,
    SizeError,
    TokenError,
    TokenKey,
    UnknownNameError,
)
from radixkv.scheduler import ORDERS, QueuedError, WaitingQueue, queue

with_caches = pytest.mark.parametrize("prefix_cache", ["radix", "hash"])
with_every_order = pytest.mark.parametrize("order", sorted(ORDERS))


class Scene:
    """A manager, its queue, and the tables of those admitted, by name."""

    def __init__(self, num_blocks: int, block_size: int = 1, prefix_cache: str = "radix", **options: Any) -> None:
        self.manager = BlockManager(num_blocks, block_size, prefix_cache=prefix_cache)
        self.queue = WaitingQueue[str](self.manager, **options)
        self.tables: dict[str, BlockTable] = {}

    def cached(self, tokens: Sequence[int]) -> None:
        """Somebody was here before, and left this prompt in the cache."""
        table = self.manager.admit(tokens)
        self.manager.commit(table, table.num_tokens)
        self.manager.finish(table)

    def add(self, **prompts: Sequence[int]) -> None:
        for name, tokens in prompts.items():
            self.queue.add(name, TokenKey(tokens))

    def admit(self) -> str | None:
        admitted = self.queue.admit()
        self.manager.check_invariants()
        if admitted is None:
            return None
        self.tables[admitted[0]] = admitted[1]
        return admitted[0]

    def admit_all(self) -> list[str]:
        """All that can start now."""
        names = []
        while name := self.admit():
            names.append(name)
        return names

    def compute(self, name: str, tokens: int | None = None) -> None:
        """The first tokens of a running request are computed, or all."""
        table = self.tables[name]
        self.manager.commit(table, table.num_tokens if tokens is None else tokens)

    def finish(self, *names: str) -> None:
        for name in names:
            self.compute(name)
            self.manager.finish(self.tables[name])

    def preempt(self, name: str) -> None:
        self.manager.preempt(self.tables[name])
        self.queue.put_back(name, self.tables[name])

    def matched(self, name: str) -> int:
        return self.tables[name].matched_tokens


@pytest.fixture(autouse=True)
def share_two_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tokens are worth waiting for here."""
    monkeypatch.setattr(queue, "SHARE_TOKENS", 2)


# --- the bound on waiting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_skips", [0, 1, 5, 64])
@pytest.mark.parametrize("order", ["lpm", "dfs-weight"])
def test_a_cold_request_under_a_stream_of_cached_ones(order: str, max_skips: int) -> None:
    """There is always one with a cached prefix, and it always goes before; but no more than `max_skips` times."""
    scene = Scene(200, order=order, max_skips=max_skips)
    scene.cached([1, 1, 1, 1])
    scene.queue.add("first", TokenKey([1, 1, 1, 1, 9, 9]))
    if max_skips:
        assert "first" == scene.admit()
        scene.finish("first")
    scene.add(cold=[7, 7, 7])
    passed_over = 0
    for number in range(200):
        for letter in "ab":
            scene.queue.add(f"{number}{letter}", TokenKey([1, 1, 1, 1, number]))
        name = scene.admit()
        assert name
        scene.finish(name)
        if name == "cold":
            break
        passed_over += name != "first"

    assert max_skips == passed_over


def test_without_a_bound_the_stream_starves_it() -> None:
    """So the test above can fail: with a bound out of reach the cold request never goes."""
    scene = Scene(200, max_skips=10**9)
    scene.cached([1, 1, 1, 1])
    scene.add(cold=[7, 7, 7])
    for number in range(200):
        scene.queue.add(str(number), TokenKey([1, 1, 1, 1, number]))
        name = scene.admit()
        assert str(number) == name
        scene.finish(name)

    assert 200 == scene.queue.skips


def test_one_whose_time_has_come_waits_for_room_and_nobody_passes_it() -> None:
    """It was passed over as often as may be and does not fit now: the others wait, though they would fit."""
    scene = Scene(6, max_skips=2)
    scene.add(runs=[1, 1])
    assert "runs" == scene.admit()
    scene.add(big=[5] * 5, a=[2], b=[3], c=[4])

    assert ["a", "b"] == scene.admit_all()
    assert 2 == scene.queue.skips
    scene.finish("a", "b")
    assert scene.admit() is None
    scene.finish("runs")
    assert "big" == scene.admit()
    assert "c" == scene.admit()


def test_skips_are_those_of_later_requests_only() -> None:
    """Whoever came before, was cancelled, or comes back after a preemption passes nobody over."""
    scene = Scene(20, max_skips=3)
    scene.cached([1, 1, 1])
    scene.add(earlier=[1, 1, 1, 2], cold=[9], later=[1, 1, 3], gone=[1, 1, 1, 4], last=[1, 1, 1, 5])
    assert ("earlier", 0) == (scene.admit(), scene.queue.skips)
    scene.queue.cancel("gone")
    assert ("last", 1) == (scene.admit(), scene.queue.skips)
    scene.preempt("last")
    assert ("last", 1) == (scene.admit(), scene.queue.skips)
    assert ("later", 2) == (scene.admit(), scene.queue.skips)
    assert ("cold", 0) == (scene.admit(), scene.queue.skips)


def test_the_next_oldest_keeps_its_own_count() -> None:
    """When the oldest goes, the one after it was passed over by those that came after itself."""
    scene = Scene(30)
    scene.cached([1, 1, 1])
    scene.add(a=[7], hot1=[1, 1, 1, 2], b=[8], hot2=[1, 1, 1, 3], c=[9], hot3=[1, 1, 1, 4])
    assert ["hot1", "hot2", "hot3"] == [scene.admit() for _ in range(3)]
    counts = [scene.queue.skips]
    for name in "abc":
        assert name == scene.admit()
        counts.append(scene.queue.skips)

    assert [3, 2, 1, 0] == counts


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_without_skips_any_order_is_first_come_first_served(order: str) -> None:
    """`max_skips=0`, whatever is cached or shared."""
    scene = Scene(50, order=order, max_skips=0)
    scene.cached([1, 1, 1])
    scene.add(a=[2, 2], b=[1, 1, 1, 1], c=[3], d=[1, 1, 1], e=[1, 1, 1, 1, 1])

    assert [*"abcde"] == scene.admit_all()


# --- admission --------------------------------------------------------------------------------------------------------


@with_every_order
def test_a_big_one_at_the_head_does_not_block_a_small_one_behind(order: str) -> None:
    """What fits is admitted, the big one once there is room."""
    scene = Scene(8, order=order)
    scene.add(runs=[1, 1, 1, 1])
    assert "runs" == scene.admit()
    scene.add(big=[2] * 6, small=[3, 3])

    assert ["small"] == scene.admit_all()
    scene.finish("runs")
    assert "big" == scene.admit()


def test_only_so_many_are_looked_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's cost is bounded: behind `LOOK_PAST` that do not fit nobody is tried."""
    monkeypatch.setattr(queue, "LOOK_PAST", 2)
    scene = Scene(4, order="fcfs")
    scene.add(runs=[1, 1])
    assert "runs" == scene.admit()
    scene.add(a=[2] * 3, b=[3] * 3, small=[4])
    assert scene.admit() is None

    scene.queue.cancel("a")
    assert "small" == scene.admit()


@with_caches
def test_the_prefix_of_one_that_does_not_fit_is_not_evicted_for_those_behind(prefix_cache: str) -> None:
    """Those behind get what is free and what no head of the queue will need; not one block more."""
    scene = Scene(6, prefix_cache=prefix_cache)
    scene.cached([1, 2, 3])
    scene.add(runs=[7, 7])
    assert "runs" == scene.admit()
    scene.add(head=[1, 2, 3, 4, 5, 6], two=[9, 9], one=[8])

    assert ["one"] == scene.admit_all()  # two blocks would take one of the head's
    scene.finish("runs", "one")
    assert "head" == scene.admit()
    assert 3 == scene.matched("head")


def test_no_more_is_protected_than_the_node_that_holds_the_prefix() -> None:
    """An edge that was split since a request came: what lies behind the split may be evicted for others."""
    scene = Scene(6)
    scene.cached([1, 2, 3, 4])
    scene.add(runs=[5])
    assert "runs" == scene.admit()
    scene.add(head=[1, 9, 9, 9, 9, 9])  # its one cached token is in the node of four
    scene.cached([1, 2, 7])  # now in a node of two
    scene.add(small=[8, 8])

    assert "small" == scene.admit()


def test_a_failed_admission_touches_nothing() -> None:
    """No counter, no lock, no place in the order of eviction."""
    scene = Scene(6)
    for tokens in ([1, 1], [2, 2]):
        scene.cached(tokens)
    scene.add(runs=[5, 5])
    assert "runs" == scene.admit()
    scene.add(a=[1, 1, 3, 3, 3, 3], b=[2, 2, 3, 3, 3, 3])
    cache = scene.manager.cache
    assert cache
    before = cache.stats, str(cache), cache.evictable_blocks
    assert scene.admit() is None

    assert before == (cache.stats, str(cache), cache.evictable_blocks)
    scene.add(c=[9, 9])
    scene.queue.cancel("a")
    scene.queue.cancel("b")
    assert "c" == scene.admit()
    assert (0, 1) == (cache.match_length([1, 1, 0]), cache.match_length([2, 2, 0]) // 2)  # the older one went


@with_every_order
def test_the_empty_prompt_waits_too(order: str) -> None:
    """It needs no block and is admitted like any other."""
    scene = Scene(1, order=order)
    scene.add(empty=[], one=[1])

    assert {"empty", "one"} == set(scene.admit_all())


# --- those put back ---------------------------------------------------------------------------------------------------


def test_those_put_back_go_before_all_others_the_last_first() -> None:
    """An engine preempts the youngest first, so the last put back is the oldest of them."""
    scene = Scene(6)
    scene.add(a=[1, 1], b=[2, 2], c=[3, 3])
    assert ["a", "b", "c"] == scene.admit_all()
    scene.add(d=[4])
    scene.preempt("c")
    scene.preempt("b")
    assert 3 == len(scene.queue)

    assert ["b", "c"] == scene.admit_all()
    assert 1 == len(scene.queue)


def test_while_one_put_back_does_not_fit_nobody_is_admitted() -> None:
    """It was running before, so it goes first, and who comes after may not take its room."""
    scene = Scene(6)
    scene.add(a=[1, 1, 1, 1], b=[2, 2])
    assert ["b", "a"] == scene.admit_all()
    scene.preempt("a")
    scene.add(c=[3, 3, 3])
    scene.manager.grow(scene.tables["b"], [2])
    assert scene.admit() is None
    assert scene.queue.cancel("a")
    assert not scene.queue.cancel("a")
    assert "c" == scene.admit()


# --- in-batch sharing -------------------------------------------------------------------------------------------------


@with_caches
@with_every_order
def test_of_many_with_the_same_long_prefix_one_goes_first(prefix_cache: str, order: str) -> None:
    """The others wait until it is computed, and then find it; those that share nothing do not wait."""
    scene = Scene(100, 2, prefix_cache, order=order)
    document = [1, 2, 3, 4, 5, 6]
    scene.add(**{name: [*document, number, 0] for number, name in enumerate("abcde")}, other=[9, 9, 9])

    started = scene.admit_all()
    assert {"a", "other"} == set(started)
    scene.compute("a")
    assert {*"bcde"} == set(scene.admit_all())
    assert [6] * 4 == [scene.matched(name) for name in "bcde"]


def test_followers_go_on_as_soon_as_too_little_is_left_for_them() -> None:
    """Chunk by chunk: who shares less of the running prompt does not wait for the rest of it."""
    scene = Scene(100)
    scene.add(a=[1, 2, 3, 4, 5, 6, 7, 8])
    assert ["a"] == scene.admit_all()
    scene.add(b=[1, 2, 3, 0], c=[1, 2, 3, 4, 5, 6, 0])
    scene.compute("a", 1)
    assert [] == scene.admit_all()
    scene.compute("a", 2)  # one token is left for b: not worth a step
    assert ["b"] == scene.admit_all()
    scene.compute("a", 4)
    assert [] == scene.admit_all()
    scene.compute("a", 6)
    assert ["c"] == scene.admit_all()
    assert (2, 6) == (scene.matched("b"), scene.matched("c"))


@with_caches
def test_a_short_common_beginning_hides_no_long_one(prefix_cache: str) -> None:
    """Prompts of two documents behind one chat template: one of each document goes first.

    The template is too short to wait for; so at once two requests compute it, each the leader of its own document.
    """
    scene = Scene(100, prefix_cache=prefix_cache)
    one, two = [0, 1, 1, 1, 1], [0, 2, 2, 2, 2]
    scene.add(a=[*one, 5], b=[*two, 5], c=[*one, 6], d=[*two, 6], e=[*one, 7], f=[*two, 7])
    assert ["a", "b"] == scene.admit_all()
    scene.compute("a", 1)
    scene.compute("b", 1)
    assert [] == scene.admit_all()
    scene.compute("b")
    assert ["d", "f"] == scene.admit_all()
    scene.compute("a")
    assert ["c", "e"] == scene.admit_all()


def test_a_prompt_of_whole_blocks_leads_to_its_end() -> None:
    """A match leaves out its last block, but its extensions will find that cached."""
    scene = Scene(20, block_size=4)
    scene.add(a=[1, 1, 1, 1], b=[1, 1, 1, 1, 2])
    assert ["a"] == scene.admit_all()
    scene.compute("a")
    assert ["b"] == scene.admit_all()
    assert 4 == scene.matched("b")


def test_a_partial_block_is_nothing_to_wait_for() -> None:
    """Only full blocks are cached: the two share seven tokens, and one block of four."""
    scene = Scene(20, block_size=4)
    scene.add(a=[1] * 7, b=[1] * 7)
    scene.cached([1] * 5)
    assert ["a", "b"] == scene.admit_all()


def test_what_follows_the_running_prompt_is_not_taken_for_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It will cache its own two tokens for [1 2 0 7], not three; and three would be needed."""
    monkeypatch.setattr(queue, "SHARE_TOKENS", 3)
    scene = Scene(20)
    scene.add(a=[1, 2], b=[1, 2, 0, 7])
    assert ["a", "b"] == scene.admit_all()


@with_caches
def test_the_same_prompt_in_another_namespace_does_not_wait(prefix_cache: str) -> None:
    """Namespaces share nothing, so there is nothing to wait for, and nothing to find."""
    scene = Scene(40, prefix_cache=prefix_cache)
    for name, namespace in (("a", None), ("b", "x"), ("c", "y"), ("d", "x"), ("e", None)):
        scene.queue.add(name, TokenKey([1, 2, 3, 4]), namespace)
    assert {"a", "b", "c"} == set(scene.admit_all())
    for name in "abc":
        scene.compute(name)
    assert {"d", "e"} == set(scene.admit_all())
    assert [0, 0, 0, 3, 3] == [scene.matched(name) for name in "abcde"]


@pytest.mark.parametrize("end", ["finish", "preempt"])
def test_when_the_one_they_follow_ends_early_the_next_goes_first(end: str) -> None:
    """A client hangs up, or blocks run out: of the followers one starts, and the others follow that one."""
    scene = Scene(40)
    scene.add(a=[1, 2, 3, 4, 5], b=[1, 2, 3, 4, 6], c=[1, 2, 3, 4, 7])
    assert ["a"] == scene.admit_all()
    assert 2 == len(scene.queue)
    getattr(scene.manager, end)(scene.tables["a"])

    assert ["b"] == scene.admit_all()
    scene.compute("b")
    assert ["c"] == scene.admit_all()


def test_one_that_resumes_leads_again() -> None:
    """Its blocks were taken meanwhile, so it computes all of it anew, and the others wait again."""
    scene = Scene(20)
    scene.add(a=[1, 2, 3, 4, 5], b=[1, 2, 3, 4, 6])
    assert ["a"] == scene.admit_all()
    scene.preempt("a")
    assert ["a"] == scene.admit_all()
    scene.compute("a")
    assert ["b"] == scene.admit_all()
    assert 4 == scene.matched("b")


@with_caches
def test_blocks_that_go_again_before_the_leader_needs_them(prefix_cache: str) -> None:
    """Somebody else cached what the leader computes, and it was evicted: the leader will bring it after all."""
    scene = Scene(40, prefix_cache=prefix_cache)
    scene.add(a=[1, 2, 3, 4, 5])
    assert ["a"] == scene.admit_all()
    scene.cached([1, 2, 9])
    assert scene.admit() is None  # the queue has seen it
    cache = scene.manager.cache
    assert cache
    scene.manager.pool.reclaim(cache.evict(3))
    scene.add(b=[1, 2, 3, 4, 6])
    assert [] == scene.admit_all()
    scene.compute("a")
    assert ["b"] == scene.admit_all()
    assert 4 == scene.matched("b")


def test_a_reset_moves_leaders_and_those_who_wait() -> None:
    """All matches are gone at once; who runs computes its prompt from the start."""
    scene = Scene(40)
    scene.add(a=[1, 2, 3, 4, 5])
    assert ["a"] == scene.admit_all()
    scene.cached([1, 2, 9])
    assert scene.admit() is None  # the queue has seen it
    scene.add(b=[1, 2, 3, 4, 6], c=[7, 1], d=[1, 2, 9, 9])
    cache = scene.manager.cache
    assert cache
    scene.manager.pool.reclaim(cache.reset())
    assert ["c"] == scene.admit_all()
    scene.compute("a")
    assert ["b", "d"] == scene.admit_all()
    assert (4, 2) == (scene.matched("b"), scene.matched("d"))


def test_a_follower_whose_time_has_come_does_not_wait_any_more() -> None:
    """The bound holds for those too who wait for their own good."""
    scene = Scene(40, max_skips=1)
    scene.add(a=[1, 2, 3, 4, 5])
    assert "a" == scene.admit()
    scene.add(b=[1, 2, 3, 4, 6], c=[8], d=[9])

    assert ["c", "b", "d"] == scene.admit_all()


def test_a_follower_can_be_cancelled() -> None:
    """It is gone, and the running one leads the others on."""
    scene = Scene(40)
    scene.add(a=[1, 2, 3, 4], b=[1, 2, 3, 5], c=[1, 2, 3, 6])
    assert ["a"] == scene.admit_all()
    assert scene.queue.cancel("b")
    assert not scene.queue.cancel("b")
    scene.compute("a")
    assert ["c"] == scene.admit_all()


@with_every_order
def test_nothing_is_shared_without_a_cache(order: str) -> None:
    """All start at once."""
    scene = Scene(40, prefix_cache="none", order=order)
    scene.add(a=[1, 2, 3, 4], b=[1, 2, 3, 4], c=[1, 2, 3, 4])

    assert ["a", "b", "c"] == scene.admit_all()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["LPM", "", "lifo", None, ["lpm"]])
def test_an_unknown_order_is_refused_with_the_known_ones(order: Any) -> None:
    """The error lists every name there is."""
    with pytest.raises(UnknownNameError, match=r"unknown queue order .*; known: dfs-weight, fcfs, lpm") as caught:
        WaitingQueue[str](BlockManager(4, 1), order=order)

    assert (order, ("dfs-weight", "fcfs", "lpm")) == (caught.value.name, caught.value.known)


@pytest.mark.parametrize("max_skips", [-1, 1.5, "3", None, True])
def test_a_bound_is_a_count(max_skips: Any) -> None:
    """Not below 0."""
    with pytest.raises(SizeError) as caught:
        WaitingQueue[str](BlockManager(4, 1), max_skips=max_skips)

    assert ("max_skips", 0, max_skips) == (caught.value.name, caught.value.minimum, caught.value.given)


@pytest.mark.parametrize(
    ("tokens", "namespace", "priority", "error"),
    [
        ([-1], None, 0, TokenError),
        ([1.5], None, 0, TokenError),
        ([1], 5, 0, NamespaceError),
        ([1], b"a", 0, NamespaceError),
        ([1], None, "high", TypeError),
    ],
)
def test_a_bad_request_is_refused_when_it_is_added(tokens: Any, namespace: Any, priority: Any, error: Any) -> None:
    """Not when it would be admitted, where nobody could say whose fault it is; nothing changed."""
    scene = Scene(4)
    with pytest.raises(error):
        scene.queue.add("a", tokens, namespace, priority=priority)

    assert 0 == len(scene.queue)
    assert scene.admit() is None
    scene.add(a=[1])
    assert "a" == scene.admit()


def test_nobody_waits_twice() -> None:
    """Neither added again nor put back; but once it is admitted or cancelled it may come again."""
    scene = Scene(4)
    scene.add(a=[1], b=[2])
    with pytest.raises(QueuedError, match="in the queue already") as caught:
        scene.add(a=[1])
    assert isinstance(caught.value, RadixKVError)
    assert isinstance(caught.value, ValueError)
    scene.queue.cancel("a")
    scene.add(a=[3])
    assert ["b", "a"] == scene.admit_all()
    scene.preempt("a")
    with pytest.raises(QueuedError):
        scene.add(a=[1])
    with pytest.raises(QueuedError):
        scene.queue.put_back("a", scene.tables["a"])

    assert 1 == len(scene.queue)


@pytest.mark.parametrize("state", ["running", "finished"])
def test_only_a_preempted_request_is_put_back(state: str) -> None:
    """Refused at once, not when it would be resumed."""
    scene = Scene(4)
    scene.add(a=[1])
    assert "a" == scene.admit()
    if state == "finished":
        scene.finish("a")
    with pytest.raises(BlockTableError, match=f"the table is {state}, not preempted"):
        scene.queue.put_back("a", scene.tables["a"])

    assert 0 == len(scene.queue)


def test_who_never_waited_cannot_be_cancelled() -> None:
    """The answer is False."""
    assert not Scene(4).queue.cancel("nobody")


def test_a_request_keeps_its_priority() -> None:
    """It goes with the blocks into the cache."""
    scene = Scene(4)
    scene.queue.add("a", [1], priority=3)
    assert "a" == scene.admit()

    assert 3 == scene.tables["a"].priority


def test_queues_leave_nothing_behind_whatever_the_bound() -> None:
    """Thousands that are admitted and cancelled in the middle of their prefill: nothing of them is kept."""
    scene = Scene(10, max_skips=0)
    for number in range(200):
        scene.queue.add("a", [number, 1, 2, 3])
        assert "a" == scene.admit()
        scene.compute("a", 2)
        scene.manager.finish(scene.tables["a"])
    assert scene.admit() is None

    for watch in (scene.queue._watch, scene.queue._leaders):
        assert not watch.at_node
        assert not watch.before_block
        assert not watch.changed


def test_a_prompt_that_can_never_fit_is_refused() -> None:
    """Waiting would not help it, and would stop everybody behind it."""
    queue = WaitingQueue[str](BlockManager(4, 1))
    with pytest.raises(OutOfBlocksError) as caught:
        queue.add("huge", range(5))

    assert (5, 4) == (caught.value.wanted, caught.value.available)
    assert 0 == len(queue)


def test_a_table_is_put_back_once_and_at_its_own_manager() -> None:
    """Anything else would make every later admission fail."""
    manager, other = BlockManager(4, 1), BlockManager(4, 1)
    queue = WaitingQueue[str](manager)
    table, foreign = manager.admit([1]), other.admit([1])
    manager.preempt(table)
    other.preempt(foreign)
    queue.put_back("a", table)
    with pytest.raises(QueuedError):
        queue.put_back("b", table)
    with pytest.raises(BlockTableError):
        queue.put_back("c", foreign)

    assert ("a", table) == queue.admit()


def test_namespaces_whose_names_collide_do_not_wait_for_each_other() -> None:
    """The radix cache's block names are checksums; these two namespaces have the same."""
    manager = BlockManager(200, 1)
    queue = WaitingQueue[str](manager)
    queue.add("one", range(40), "670009b22c087272")
    queue.add("other", range(40), "a02552f76dbdf5fd")

    admitted = [queue.admit(), queue.admit()]
    assert ["one", "other"] == [each[0] for each in admitted if each]


@pytest.mark.parametrize("kind", ["hash", "none", "radix"])
def test_a_closed_queue_hears_nothing(kind: str) -> None:
    """Nothing keeps it alive, and the cache goes on without it."""
    manager = BlockManager(8, 1, prefix_cache=kind)
    queue = WaitingQueue[str](manager)
    queue.add("a", [1, 2, 3])
    queue.close()
    gone = weakref.ref(queue)
    del queue
    gc.collect()

    assert gone() is None
    table = manager.admit([1, 2, 3])
    manager.commit(table, 3)
    manager.finish(table)
