"""Hit density: the index against its definition, what the policy is for, and that what it remembers is bounded."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import HashCache, RadixCache, TokenKey
from radixkv.eviction import density
from radixkv.eviction.density import BINS, EXACT, HIT_STEP, OLDEST, STARTS, WIDTHS, Density, _densities, _Plan
from radixkv.lab import ReplayConfig, replay
from radixkv.traces.generate import make_workload

probabilities = st.floats(0.0, 0.5)  # above, the last bins are reached by so few that both lose digits


def promised(chances: array[float], start: int) -> float:
    """By definition: over every horizon, hits expected for time expected, of a node that came to bin `start`."""
    best, hits, time, alive = 0.0, 0.0, 0.0, 1.0
    for width, chance in zip(WIDTHS[start:], chances[start:], strict=True):
        used = alive * chance
        hits += used
        time += width * (alive - used / 2)
        alive -= used
        best = max(best, hits / time)
    return best


@given(st.lists(probabilities, min_size=len(WIDTHS), max_size=len(WIDTHS)).map(lambda values: array("d", values)))
def test_a_density_is_the_best_that_any_horizon_promises(chances: array[float]) -> None:
    """The hull finds what trying every horizon finds, at every age."""
    found = _densities(chances)

    assert len(WIDTHS) == len(found)
    for start, value in enumerate(found):
        assert promised(chances, start) == pytest.approx(value, rel=1e-4, abs=1e-12)


def test_the_bins_cover_every_age_once() -> None:
    """One request a bin at first, then two bins an octave, without a gap."""
    assert len(BINS) == OLDEST + 1 == sum(WIDTHS)
    assert list(range(EXACT)) == list(BINS[:EXACT])
    assert sorted(BINS) == list(BINS)
    assert [BINS.index(bin_) for bin_ in range(len(WIDTHS))] == list(STARTS)


class Replay:
    """A cache of `room` blocks that serves prompts of one-token blocks, and counts hits of the prompts of the cycle."""

    def __init__(self, cache: RadixCache | HashCache, room: int) -> None:
        self.cache, self.room, self.fresh = cache, room, 0
        self.asked = self.hit = 0

    def serve(self, prompt: list[int], *, counts: bool = True) -> None:
        key = TokenKey([*prompt, 0])
        match = self.cache.match_prefix(key)
        if counts:
            self.asked += len(prompt)
            self.hit += match.matched_tokens
        new = len(prompt) - len(match.blocks)
        self.cache.insert(prompt, match.blocks + array("I", range(self.fresh, self.fresh + new)))
        self.fresh += new
        self.cache.evict(max(self.cache.cached_blocks - self.room, 0))
        self.cache.check_invariants()


def cycle(prefixes: int, size: int) -> Iterator[list[int]]:
    """Endlessly: prefixes that share nothing, in turn."""
    while True:
        for prefix in range(prefixes):
            yield [1 + prefix * size + i for i in range(size)]


@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize("make", [RadixCache, HashCache])
def test_a_cycle_one_too_long_is_mostly_kept(make: type[RadixCache | HashCache], size: int) -> None:
    """Five prefixes and room for four: LRU gets nothing of it, the best that any policy can get is 4 in 5."""
    for eviction, least, most in (("density", 0.7, 0.8), ("lru", 0.0, 0.0)):
        replay = Replay(make(1, eviction=eviction), 4 * size)
        prompts = cycle(5, size)
        for _ in range(1000):
            replay.serve(next(prompts))

        assert least <= replay.hit / replay.asked <= most


@pytest.mark.parametrize("once", [0.1, 0.5])
def test_prompts_seen_once_do_not_displace_a_cycle(once: float) -> None:
    """However many of them lie between."""
    replay, prompts, rng = Replay(RadixCache(1, eviction="density"), 16), cycle(5, 4), Random(1)
    strangers = iter(range(1000, 10**9))
    for _ in range(2000):
        if rng.random() < once:
            replay.serve([next(strangers) for _ in range(4)], counts=False)
        else:
            replay.serve(next(prompts))

    assert replay.hit / replay.asked >= 0.7


@pytest.mark.parametrize("make", [RadixCache, HashCache])
def test_where_lru_is_right_it_does_as_well(make: type[RadixCache | HashCache]) -> None:
    """Chats that are continued within a few requests or never."""
    rates = {}
    for eviction in ("density", "lru"):
        replay, rng = Replay(make(1, eviction=eviction), 60), Random(2)
        chats: list[list[int]] = []
        tokens = iter(range(1, 10**9))
        for _ in range(2000):
            if len(chats) < 4 or rng.random() < 0.1:
                chats = [*chats[-3:], [next(tokens) for _ in range(4)]]
            chat = chats[rng.randrange(len(chats))]
            chat += [next(tokens), next(tokens)] if len(chat) < 12 else []
            replay.serve(list(chat))
        rates[eviction] = replay.hit / replay.asked

    assert rates["lru"] > 0.5
    assert rates["density"] > rates["lru"] - 0.01


@pytest.mark.parametrize(
    ("room", "kept"), [(0, 0.0), (1, 100.0), (2, 105.0), (3, 110.0), (5, 110.5), (7, 111.0), (8, 111.0)]
)
def test_a_plan_keeps_what_is_worth_most(room: float, kept: float) -> None:
    """The best first, and a share of the last that there is room for; the same share of all that is worth as much."""
    plan = _Plan([2.0, 1.0, 3.0, 2.0], [1.0, 4.0, 1.0, 1.0], room)

    assert kept == plan.kept([4.0, 1.0, 100.0, 6.0])


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_where_lru_is_right_it_evicts_as_lru_does(cache: str, share: float) -> None:
    """Chats of a few turns: what densities promise there is noise, and what follows noise is worse than LRU."""
    trace = list(make_workload("chat").requests(500, 1))
    blocks = int(13000 * share)
    lru, learned = replay(trace, [ReplayConfig(blocks, 16, cache, policy) for policy in ("lru", "density")])

    assert lru.stats.evicted_blocks > blocks
    assert (lru.hit_tokens, lru.stats) == (learned.hit_tokens, learned.stats)


def test_it_follows_the_traffic() -> None:
    """By density once a cycle too long went round a few times, and as LRU again when chats are all there is."""
    cache, room, sides = RadixCache(16, eviction="density"), 1200, []
    policy = cache._policy
    assert isinstance(policy, Density)
    chats = [request.prompt for request in make_workload("chat").requests(400, 1)]
    rounds = [TokenKey(prompt * 16) for prompt, _ in zip(cycle(5, room // 4), range(60), strict=False)]
    for prompts in (rounds[:5], rounds[5:], chats):
        for key in prompts:
            cache.match_prefix(key)
            cache.insert(key, range(len(key) // 16))
            cache.evict(max(cache.cached_blocks - room, 0))
        cache.check_invariants()
        sides.append(policy._by_density)

    assert [False, True, False] == sides


def test_a_node_keeps_its_greatest_distance() -> None:
    """Of a prompt's end: none, 1 to 3, 4 to 15 or more blocks. Shorter prompts change nothing, longer ones do."""
    cache = HashCache(1, eviction="density")
    policy = cache._policy
    assert isinstance(policy, Density)

    def distances() -> list[int]:
        policy.victim()
        return [entry.kind % HIT_STEP for entry in sorted(policy._entries.values(), key=lambda entry: entry.node.block)]

    whole = [3] * 4 + [2] * 12 + [1] * 3 + [0]
    for length, expected in ((20, whole), (10, whole), (20, whole), (26, whole[:4] + [3] * 6 + whole[4:])):
        cache.match_prefix(range(length))
        cache.insert(range(length), range(length))

        assert expected == distances()


def test_the_same_calls_evict_the_same() -> None:
    """No clock, no dice: two caches told the same give up the same ids, in the same order."""

    def evicted() -> list[int]:
        cache, rng, out = RadixCache(1, eviction="density"), Random(3), []
        for fresh in range(0, 4000, 4):
            prompt = [rng.randrange(3) for _ in range(4)] + [rng.randrange(50)]
            cache.match_prefix([*prompt, 0])
            out += list(cache.insert(prompt, range(5 * fresh, 5 * fresh + 5)).duplicates)
            out += list(cache.evict(max(cache.cached_blocks - 100, 0)))
        return out

    assert evicted() == evicted()


def test_a_leaf_that_is_split_right_after_its_insert_has_its_own_name() -> None:
    """And its ghosts weigh what waits, however often that happens."""
    cache = RadixCache(1, eviction="density")
    policy = cache._policy
    assert isinstance(policy, Density)
    for _ in range(4):
        for prompt in ([1, 2, 3, 4], [1, 2, 9, 9]):
            cache.match_prefix(prompt)
            cache.insert(prompt, [10, 11, *prompt[2:]])
        assert [node.content_name for node in policy._entries] == [entry.name for entry in policy._entries.values()]
        cache.evict(100)
        cache.match_prefix([7, 7])

        assert sum(weight for _, _, weight in policy._ghosts.values()) == sum(map(sum, policy._waiting))


def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ghosts by the nodes there are; nodes that are gone leave nothing else; weights add up, periods folded or not."""
    monkeypatch.setattr(density, "LEAST_GHOSTS", 16)
    monkeypatch.setattr(density, "PERIOD", 8)
    monkeypatch.setattr(density, "STEP", 4)
    monkeypatch.setattr(density, "STEPS", 6)
    cache, rng = RadixCache(2, eviction="density"), Random(4)
    policy = cache._policy
    assert isinstance(policy, Density)
    for fresh in range(0, 12000, 4):
        prompt = [rng.randrange(40) for _ in range(8)]
        cache.match_prefix([*prompt, 0])
        cache.insert(prompt, range(fresh, fresh + 4))
        cache.evict(max(cache.cached_blocks - 20, 0))
        nodes = list(cache.tree)
        policy._end_evictions()

        assert set(nodes) - set(policy._path) <= policy._entries.keys() <= set(nodes)
        assert len(policy._ghosts) <= max(density.GHOSTS * len(nodes), 16)
        weight = sum(entry.weight for entry in policy._entries.values())
        assert weight == policy._cached_weight
        assert weight + sum(weight for _, _, weight in policy._ghosts.values()) == sum(map(sum, policy._waiting))
    assert [] == [weight for weights in policy._waiting for weight in weights if weight < 0]
