"""Policies beside the pseudo-code of their papers, on plain lists: prompts of one block each, where a cache is flat."""

from collections.abc import Callable, Iterable
from itertools import accumulate
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import HashCache, RadixCache
from radixkv.eviction import lru2, tlru


class PublishedS3Fifo:
    """Yang et al. 2023, algorithm 1, first in first; when the main queue overflows, that is the eviction."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small: list[int] = []
        self.main: list[int] = []
        self.ghosts: list[int] = []
        self.freq: dict[int, int] = {}

    def access(self, x: int) -> int | None:
        """Serve x; what was evicted for it."""
        if x in self.small or x in self.main:
            self.freq[x] = min(self.freq[x] + 1, 3)
            return None
        out = None
        if len(self.small) + len(self.main) == self.capacity:
            out = self.evict_small() if len(self.small) >= 0.1 * self.capacity else self.evict_main()
        (self.main if x in self.ghosts else self.small).append(x)
        self.ghosts = [ghost for ghost in self.ghosts if ghost != x]
        self.freq[x] = 0
        return out

    def evict_small(self) -> int:
        while True:
            if not self.small or len(self.small) < 0.1 * self.capacity:
                return self.evict_main()
            tail = self.small.pop(0)
            if self.freq[tail] > 1:
                self.main.append(tail)
                self.freq[tail] = 0
            else:
                self.ghosts.append(tail)
                return self.gone(tail)

    def evict_main(self) -> int:
        while True:
            tail = self.main.pop(0)
            if self.freq[tail] == 0:
                return self.gone(tail)
            self.main.append(tail)
            self.freq[tail] -= 1

    def gone(self, x: int) -> int:
        while 10 * len(self.ghosts) > 9 * (self.capacity - 1):
            self.ghosts.pop(0)
        return x


class PublishedArc:
    """Megiddo and Modha 2003, figure 4, least recent first; a ghost moves p after the eviction and breaks no tie."""

    def __init__(self, capacity: int) -> None:
        self.c, self.p = capacity, 0.0
        self.t1: list[int] = []
        self.t2: list[int] = []
        self.b1: list[int] = []
        self.b2: list[int] = []

    def access(self, x: int) -> int | None:
        """Serve x; what was evicted for it."""
        for top in (self.t1, self.t2):
            if x in top:  # case I
                top.remove(x)
                self.t2.append(x)
                return None
        if x in self.b1:  # case II
            instead = self.replace()
            self.p = min(self.p + max(len(self.b2) / len(self.b1), 1), self.c)
            self.b1.remove(x)
            self.t2.append(x)
            return instead
        if x in self.b2:  # case III
            instead = self.replace()
            self.p = max(self.p - max(len(self.b1) / len(self.b2), 1), 0)
            self.b2.remove(x)
            self.t2.append(x)
            return instead
        out: int | None = None  # case IV
        total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                out = self.replace()
            else:
                out = self.t1.pop(0)
        elif total >= self.c:
            if total == 2 * self.c:
                self.b2.pop(0)
            out = self.replace()
        self.t1.append(x)
        return out

    def replace(self) -> int:
        if self.t1 and (len(self.t1) > self.p or not self.t2):
            self.b1.append(self.t1.pop(0))
            return self.b1[-1]
        self.b2.append(self.t2.pop(0))
        return self.b2[-1]


class PublishedLru2:
    """O'Neil et al. 1993, section 2.1.3, K = 2 and no correlated period; histories of the last four a page are kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.now = capacity, 0
        self.pages: list[int] = []
        self.history: dict[int, tuple[int, int]] = {}
        self.gone: list[int] = []

    def access(self, x: int) -> int | None:
        """Serve x; what was evicted for it."""
        self.now += 1
        out = None
        if x not in self.pages:
            if len(self.pages) == self.capacity:
                out = min(self.pages, key=lambda page: (self.history[page][1], self.history[page][0]))
                self.pages.remove(out)
                self.gone.append(out)
                for forgotten in self.gone[: -4 * len(self.pages) or None]:
                    self.gone.remove(forgotten)
                    del self.history[forgotten]
            self.pages.append(x)
            self.gone = [page for page in self.gone if page != x]
        self.history[x] = (self.now, self.history.get(x, (0, 0))[0])
        return out


PUBLISHED: dict[str, Callable[[int], Any]] = {"arc": PublishedArc, "lru2": PublishedLru2, "s3fifo": PublishedS3Fifo}
with_caches = pytest.mark.parametrize("kind", [RadixCache, HashCache])
published = pytest.mark.parametrize("policy", sorted(PUBLISHED))


def serve(kind: type[Any], policy: str, order: Iterable[int], capacity: int) -> list[list[int]]:
    """Look each up in a cache with room for so many, evict and insert what is missing; what was evicted, each time."""
    cache = kind(1, eviction=policy)
    evicted = []
    for x in order:
        out: list[int] = []
        if not cache.match_prefix([x, 0]).matched_tokens:
            if cache.cached_blocks == capacity:
                out = cache.evict(1).tolist()
            cache.insert([x], [x])
        evicted.append(out)
    return evicted


def follow(policy: str, order: Iterable[int], capacity: int) -> list[list[int]]:
    """The same by the published algorithm."""
    model = PUBLISHED[policy](capacity)
    return [[] if (out := model.access(x)) is None else [out] for x in order]


@published
@with_caches
@given(order=st.lists(st.integers(0, 9), max_size=200), capacity=st.integers(1, 6))
def test_evicts_as_published(kind: type[Any], policy: str, order: list[int], capacity: int) -> None:
    """Page by page, whatever is asked for."""
    assert follow(policy, order, capacity) == serve(kind, policy, order, capacity)


@published
@with_caches
@pytest.mark.parametrize("capacity", [3, 20, 100])
def test_evicts_as_published_for_long(kind: type[Any], policy: str, capacity: int) -> None:
    """A skewed popularity whose favourites change, and a scan now and then."""
    random = Random(capacity)
    weights = list(accumulate(1 / rank for rank in range(1, 301)))
    order = []
    for step in range(6000):
        favourite = random.choices(range(300), cum_weights=weights)[0]
        order.append(1000 + step if step % 1000 < 150 else (favourite + step // 1500 * 7) % 300)
    expected = follow(policy, order, capacity)

    assert expected == serve(kind, policy, order, capacity)
    assert sum(map(len, expected)) > 1000


# --- what prompts of more blocks add ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "kept"), [("lru2", 1), ("arc", 1), ("s3fifo", 1), ("lru", 2)])
def test_an_insert_after_a_match_is_the_same_request(policy: str, kept: int) -> None:
    """A prompt seen twice in two requests is worth more than one of a single request that was inserted three times."""
    cache = HashCache(1, eviction=policy)
    cache.insert([1], [1])
    cache.match_prefix([1, 0])
    cache.match_prefix([1, 0])
    cache.insert([1], [1])
    for _ in range(3):
        cache.insert([2], [2])
    cache.evict(1)

    assert [kept] == cache.block_ids().tolist()


def test_lru2_remembers_what_went() -> None:
    """Content that comes back has its second reference, content that is new does not, however recent."""
    cache = RadixCache(1, eviction="lru2")
    for x in (1, 2, 3):
        cache.insert([x], [x])
    assert [1] == cache.evict(1).tolist()
    cache.insert([1, 1], [1, 11])
    cache.insert([4], [4])

    assert [2, 3, 4, 1, 11] == cache.evict(5).tolist()


@pytest.mark.parametrize(("policy", "most"), [("lru2", lru2.GHOSTS * 10), ("s3fifo", 9), ("arc", 10)])
@with_caches
def test_ghosts_are_bounded_by_what_is_cached(kind: type[Any], policy: str, most: int) -> None:
    """Thousands pass through room for ten."""
    cache = kind(1, eviction=policy)
    for x in range(3000):
        cache.evict(max(0, cache.cached_blocks - 9))
        cache.insert([x], [x])
        cache.match_prefix([x - x % 3, 0])
    state = vars(cache._policy)
    ghosts = [state["_ghosts"]] if policy != "arc" else [state["_once"].ghosts, state["_again"].ghosts]

    assert 0 < sum(map(len, ghosts)) <= most


def test_s3fifo_counts_blocks() -> None:
    """Of 20 blocks, 2 in the small queue are its share and 1 is not, also when a split made it so."""
    cache = RadixCache(1, eviction="s3fifo")
    cache.insert(range(100, 118), range(18))
    cache.match_prefix([*range(100, 118), 0])
    cache.match_prefix([*range(100, 118), 0])
    cache.insert([1, 2], [20, 21])
    assert [20, 21] == cache.evict(1).tolist()  # the long one goes to the main queue
    cache.insert([3, 4], [22, 23])
    cache.match_prefix([3, 0])  # which leaves one evictable block of 19

    assert list(range(18)) == cache.evict(1).tolist()


def test_s3fifo_gives_the_main_queue_another_round_for_every_hit() -> None:
    """Nothing is in the small queue: of the two in the main one that without hits goes, though it came last."""
    cache = RadixCache(1, eviction="s3fifo")
    for x in (1, 2, 3):
        cache.insert([x], [x])
        if x != 3:
            cache.match_prefix([x, 0])
            cache.match_prefix([x, 0])
    assert [3] == cache.evict(1).tolist()
    cache.match_prefix([1, 0])

    assert [2, 1] == cache.evict(2).tolist()


def test_arc_counts_the_blocks_of_a_ghost() -> None:
    """Three blocks that come back raise the target for what was seen once by three."""
    cache = RadixCache(1, eviction="arc")
    cache.insert([9], [9])
    cache.match_prefix([9, 0])
    cache.insert([1, 2, 3], [1, 2, 3])
    assert [1, 2, 3] == cache.evict(1).tolist()
    cache.insert([1, 2, 3], [1, 2, 3])
    cache.insert([5, 6], [5, 6])
    assert [9] == cache.evict(1).tolist()  # two blocks seen once are below the target
    cache.insert([7, 8], [7, 8])

    assert [5, 6, 1, 2, 3] == cache.evict(4).tolist()  # four are not, and the next two are


def test_tlru_takes_tails_before_older_prompts() -> None:
    """Of two long prompts the last blocks, the older one's first; then least recently used."""
    spared = tlru.SPARED
    cache = HashCache(1, eviction="tlru")
    long = spared + 2
    cache.insert(range(100, 100 + long), range(100, 100 + long))
    cache.insert(range(200, 200 + long), range(200, 200 + long))
    tails = [block for first in (100, 200) for block in range(first + long - 1, first + 1, -1)]

    assert tails == cache.evict(2 * spared).tolist()
    assert [101, 100, 201, 200] == cache.evict(4).tolist()


def test_tlru_takes_short_prompts_whole() -> None:
    """A prompt that can be done without goes before an older one that cannot."""
    cache = RadixCache(1, eviction="tlru")
    cache.insert(range(100), range(100))
    cache.insert([500, 501], [500, 501])

    assert [500, 501] == cache.evict(1).tolist()


def test_tlru_spares_a_tail_no_more_once_the_conversation_went_on() -> None:
    """What was the tail stands in the way of the next turn."""
    spared = tlru.SPARED
    cache = RadixCache(1, eviction="tlru")
    cache.insert(range(spared), range(spared))
    cache.insert(range(2 * spared), range(2 * spared))
    cache.insert([500], [500])

    assert list(range(spared, 2 * spared)) == cache.evict(1).tolist()
    assert [500] == cache.evict(1).tolist()


def test_tlru_takes_the_tail_that_a_split_cut_off() -> None:
    """A leaf too long to go early is cut in two, and its lower half is not too long."""
    spared = tlru.SPARED
    cache = RadixCache(1, eviction="tlru")
    cache.insert(range(100, 100 + 2 * spared), range(100, 100 + 2 * spared))
    cache.insert(range(200, 200 + 2 * spared), range(200, 200 + 2 * spared))
    cache.match_prefix([*range(200, 200 + spared), 0])

    assert list(range(200 + spared, 200 + 2 * spared)) == cache.evict(1).tolist()


@with_caches
def test_random_draws_every_leaf_alike_and_the_same_in_every_cache(kind: type[Any]) -> None:
    """Ten leaves, one evicted and put back 5,000 times: each goes about 500 times (five sigmas are 106)."""
    runs = []
    for _ in range(2):
        cache = kind(1, eviction="random")
        cache.insert([0], [0])
        for x in range(1, 10):
            cache.insert([x], [x])
        out = []
        for _ in range(5000):
            [x] = cache.evict(1)
            cache.insert([x], [x])
            out.append(x)
        runs.append(out)

    assert runs[0] == runs[1]
    assert all(abs(runs[0].count(x) - 500) < 106 for x in range(10))
