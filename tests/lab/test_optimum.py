"""The optimum is what trying everything finds, and no policy does better."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixkv import POLICIES, SizeError, TokenKey
from radixkv.lab import Optimum, ReplayConfig, lru_curve, replay
from radixkv.traces import Request
from tests.lab.model import Block, Looked, best_hit_blocks, looked, traces


def optimum_of(trace: list[Request], block_size: int) -> Optimum:
    optimum = Optimum(block_size)
    lru_curve(trace, block_size, observe=optimum.add)
    return optimum


def small_trace(seed: int) -> list[Request]:
    """At most six requests over at most nine blocks."""
    rng = random.Random(seed)
    paths = [[rng.randrange(2) for _ in range(rng.randint(1, 4))] for _ in range(3)]
    trace = []
    for _ in range(rng.randint(3, 7)):
        prompt = TokenKey(rng.choice(paths) + [rng.randrange(2) for _ in range(rng.randrange(2))])
        trace.append(Request(prompt, len(prompt)))
    return trace


def model_of(trace: list[Request]) -> list[Looked]:
    return [looked(one, 1) for one in trace]


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 400, 50)], ids=str)
def test_trying_everything_finds_no_more_and_no_less(seeds: range) -> None:
    """Blocks of one token, so that every prompt ends with a block that is computed anyway: any set may be held."""
    for seed in seeds:
        trace = small_trace(seed)
        optimum = optimum_of(trace, 1)
        for capacity in (1, 2, 3):
            expected = best_hit_blocks(model_of(trace), capacity, prefix_of=None)
            assert expected == optimum.hit_tokens(capacity), (seed, capacity)


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 400, 50)], ids=str)
def test_a_prefix_cache_can_do_it(seeds: range) -> None:
    """Where no prompt is a whole number of blocks, the best of the sets that a prefix cache can hold is as good."""
    for seed in seeds:
        trace = small_trace(seed)
        # A token of its own behind each prompt: its blocks are all searched, and it is in none.
        halves = [Request(one.prompt, 2 * one.input_tokens - 1, span=2) for one in trace]
        paths: list[list[Block]] = [
            [(None, *one.prompt.tolist()[:end]) for end in range(1, len(one.prompt))] for one in trace
        ]
        model = [Looked(path, path) for path in paths]
        optimum = optimum_of(halves, 2)
        for capacity in (1, 2, 3):
            expected = best_hit_blocks(model, capacity, prefix_of=lambda block: block[:-1])
            assert 2 * expected == optimum.hit_tokens(capacity), (seed, capacity)


@settings(max_examples=25)
@given(traces(max_size=20), st.integers(1, 2), st.integers(1, 8))
def test_no_policy_does_better(trace: list[Request], block_size: int, blocks: int) -> None:
    """Neither cache, whatever it evicts."""
    best = optimum_of(trace, block_size).hit_tokens(blocks)
    configs = [ReplayConfig(blocks, block_size, cache, policy) for cache in ("hash", "radix") for policy in POLICIES]

    for result in replay(trace, configs):
        assert result.hit_tokens <= best, result.config


@given(traces(max_size=20), st.integers(1, 2))
def test_with_room_for_all_it_is_the_ceiling(trace: list[Request], block_size: int) -> None:
    """And it never falls with more room."""
    optimum = Optimum(block_size)
    curve = lru_curve(trace, block_size, observe=optimum.add)
    found = [optimum.hit_tokens(blocks) for blocks in range(curve.unique_blocks + 1)]

    assert sorted(found) == found
    assert int(curve.hit_tokens[-1]) == found[-1]
    assert 0 == found[0]


def test_the_cycle() -> None:
    """Five prefixes in room for four: 4 in 5, since nothing has to be kept that was just computed."""
    cycle = [Request(TokenKey([prefix, 0, 0]), 3) for prefix in (1, 2, 3, 4, 5) * 200]
    optimum = Optimum(2)
    curve = lru_curve(cycle, 2, observe=optimum.add)

    assert 0 == curve.hit_tokens[4]
    assert 0.8 == pytest.approx(optimum.hit_tokens(4) / (2 * 1000), abs=0.005)


def test_a_capacity_below_nothing() -> None:
    """Said, not guessed."""
    with pytest.raises(SizeError):
        Optimum(1).hit_tokens(-1)
