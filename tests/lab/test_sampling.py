"""The sampled curve: exact at a rate of one, near it at less, the same under a seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import TokenKey
from radixkv.lab import LruCurve, SampleError, ShareError, lru_curve, sampled_curve
from radixkv.traces import Request
from tests.lab.model import traces


def chats(requests: int, seed: int) -> list[Request]:
    """Conversations that grow, a few hundred at a time, some more often than others."""
    rng = random.Random(seed)
    prompts: dict[int, list[int]] = {}
    trace = []
    for _ in range(requests):
        user = int(rng.paretovariate(0.7)) % 300
        prompt = prompts.setdefault(user, [0, 0, user])
        prompt.extend(rng.randrange(2**20) for _ in range(4))
        trace.append(Request(TokenKey(prompt), len(prompt)))
        if len(prompt) > 60:
            del prompts[user]
    return trace


@given(traces(max_size=20), st.integers(1, 2), st.integers(0, 3))
def test_a_sample_of_everything_is_the_curve(trace: list[Request], block_size: int, seed: int) -> None:
    """Whatever the seed, namespaces and answers too; without an error."""
    exact, sampled = lru_curve(trace, block_size), sampled_curve(trace, block_size, 1.0, seed=seed)

    assert exact.hit_tokens.tolist() == sampled.hit_tokens.tolist()
    assert (exact.unique_blocks, exact.input_tokens) == (sampled.unique_blocks, sampled.input_tokens)
    assert sampled.error_tokens is not None
    assert not sampled.error_tokens.any()


def test_a_tenth_is_near_and_says_how_near() -> None:
    """Twenty samples of one trace: nine in ten points within two of their own standard errors, and close by."""
    trace = chats(3000, seed=1)
    exact = lru_curve(trace, 1)
    sizes = [exact.unique_blocks * percent // 100 for percent in (1, 3, 10, 30, 100)]
    within = 0
    for seed in range(20):
        sampled = sampled_curve(trace, 1, 0.1, seed=seed)
        offs = [(abs(sampled.hit_rate(size) - exact.hit_rate(size)), sampled.error(size)) for size in sizes]
        assert max(off for off, _ in offs) < 0.1
        within += sum(off <= 2 * error for off, error in offs)
        assert exact.unique_blocks == pytest.approx(sampled.unique_blocks, rel=0.1)

    assert within >= 90


def test_the_same_under_a_seed() -> None:
    """And another sample under another."""
    trace = chats(500, seed=2)
    one, same, other = (sampled_curve(trace, 1, 0.2, seed=seed).hit_tokens.tolist() for seed in (5, 5, 6))

    assert one == same != other


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1])
def test_a_rate_that_is_no_share(rate: float) -> None:
    """Said before the trace is read."""
    with pytest.raises(ShareError):
        sampled_curve([], 1, rate)


def test_a_sample_that_holds_nothing() -> None:
    """Is no hit rate of 0, unless no block is ever looked for."""
    short = [Request(TokenKey([1]), 1)] * 2
    with pytest.raises(SampleError, match=r"a sample of 0\.01 % holds none") as caught:
        sampled_curve([*short, Request(TokenKey([1, 2]), 2)], 1, 0.0001)

    assert 0.0001 == caught.value.rate
    assert [0] == sampled_curve(short, 1, 0.0001).hit_tokens.tolist()


@given(st.integers(0, 500), st.sampled_from([1.0, 0.5, 0.1, 0.03]))
def test_places_and_capacities(blocks: int, sample: float) -> None:
    """A capacity is the smallest of its place."""
    curve = LruCurve(1, 1, 1, 500, lru_curve([], 1).hit_tokens.repeat(501), sample)

    smallest = curve.capacity(curve.place(blocks))
    assert smallest <= blocks
    assert curve.place(blocks) == curve.place(smallest)
    assert not smallest or curve.place(smallest - 1) < curve.place(smallest)
