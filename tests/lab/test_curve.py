"""The curve is LRU by simulation at every capacity, and its stack adds up after each request."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import TokenKey
from radixkv.lab import Cliff, LruCurve, Reuse, ReuseStack, SpanError, lru_curve
from radixkv.lab.slots import Slots
from radixkv.traces import Request
from tests.lab.model import looked, lru_hit_blocks, traces


def request(*tokens: int) -> Request:
    return Request(TokenKey(tokens), len(tokens))


@given(traces(), st.integers(1, 3))
def test_every_capacity_is_lru_by_simulation(trace: list[Request], block_size: int) -> None:
    """One pass gives what plain lists give at each capacity, up to one where nothing is evicted."""
    curve = lru_curve(trace, block_size)
    model = [looked(one, block_size) for one in trace]
    distinct = {block for one in model for block in one.stored}

    assert len(distinct) == curve.unique_blocks
    expected = [lru_hit_blocks(model, capacity) * block_size for capacity in range(len(distinct) + 1)]
    assert expected == curve.hit_tokens.tolist()
    assert sum(one.input_tokens for one in trace) == curve.input_tokens


@given(traces(max_size=30), st.integers(1, 2))
def test_the_stack_adds_up(trace: list[Request], block_size: int) -> None:
    """After each request, also when slots run out all the time."""
    with patch("radixkv.lab.reuse.Slots", lambda: Slots(2)):
        stack = ReuseStack(block_size)
        runs = []
        for one in trace:
            runs.append(stack.use(one))
            stack.check_invariants()
    roomy = ReuseStack(block_size)

    assert [roomy.use(one) for one in trace] == runs


@given(traces(), st.integers(2, 4), st.integers(0, 3), st.integers(1, 2))
def test_a_trace_of_ids_is_the_same(trace: list[Request], span: int, spare: int, words: int) -> None:
    """An id for every few tokens: the curve is that of a trace which spells each id out as so many tokens."""
    coarse, fine = [], []
    for one in trace:
        ids = one.prompt.tolist()
        tokens = [token for i in ids for token in [i] * span]
        cut = min(spare, span - 1)
        tokens = tokens[: len(tokens) - cut]
        coarse.append(Request(one.prompt, len(tokens), span=span))
        fine.append(Request(TokenKey(tokens), len(tokens)))

    expected = lru_curve(fine, span * words)
    found = lru_curve(coarse, span * words)
    assert expected.hit_tokens.tolist() == found.hit_tokens.tolist()
    assert expected.input_tokens == found.input_tokens


def test_reuses_say_who_and_how_far() -> None:
    """Two runs of a path, by different requests; the stack's order is root first."""
    stack = ReuseStack(block_size=1)
    stack.use(request(1, 2, 3, 4, 0))
    stack.use(request(1, 2, 9, 0))

    assert [Reuse(0, 2, previous=1, above=0), Reuse(2, 5, previous=0, above=4)] == stack.use(request(1, 2, 3, 4, 0, 0))
    assert 8 == stack.unique_blocks
    assert 3 == stack.requests


def test_a_cycle_is_flat_and_then_a_cliff() -> None:
    """Five prefixes of four blocks in turn, and a last block that is never searched: nothing until nearly all fit."""
    curve = lru_curve([request(*[prefix] * 4, 9) for prefix in (1, 2, 3, 4, 5) * 20], 1)

    assert 25 == curve.unique_blocks
    assert [0] * 4 == curve.hit_tokens[[0, 5, 15, 20]].tolist()
    assert [95 * 4] * 2 == curve.hit_tokens[[24, 25]].tolist()
    (cliff,) = curve.cliffs()
    assert (20, 24) == (cliff.blocks, cliff.enough)
    assert "one prefix too few costs everything: 20 → 24 blocks takes the hit rate from 0.00 to 0.76" == cliff.text()


def test_no_cliff_on_a_slope() -> None:
    """What grows evenly has none; a step of a tenth of the hit rate in its middle is one."""
    slope = np.linspace(0, 500_000, 1001).astype(np.int64)
    step = slope + np.where(np.arange(1001) >= 600, 200_000, 0)

    def curve(hit_tokens: np.ndarray[tuple[int], np.dtype[np.int64]]) -> LruCurve:
        return LruCurve(1, 10, 1_000_000, 1000, hit_tokens)

    assert [] == curve(slope).cliffs()
    (cliff,) = curve(step).cliffs()
    assert cliff.blocks < 600 <= cliff.enough
    assert cliff.enough - cliff.blocks < 80


def test_a_cliff_that_is_not_everything() -> None:
    """Said in other words, and in memory where a block's size is known."""
    cliff = Cliff(100, 104, 0.4, 0.7)

    assert (
        "a little memory makes a large difference: 100 KiB → 104 KiB takes the hit rate from 0.40 to 0.70"
        == cliff.text(1024)
    )


def test_rates_and_sizes() -> None:
    """Beyond the last block the rate stays; the smallest size for a rate is found, or there is none."""
    curve = lru_curve([request(1, 2), request(1, 3)] * 2, 1)

    assert 3 / 8 == curve.ceiling == curve.hit_rate(10**9) == curve.hit_rate(2)
    assert (0, 1, None) == (curve.blocks_for(0), curve.blocks_for(0.3), curve.blocks_for(0.5))


@pytest.mark.parametrize("trace", [[], [Request(TokenKey(()), 0)]])
def test_nothing_to_find(trace: list[Request]) -> None:
    """No requests, or none with a token: zeros, not an error."""
    curve = lru_curve(trace, 4)

    assert (0, 0.0, 0, []) == (curve.unique_blocks, curve.ceiling, curve.input_tokens, curve.cliffs())
    assert [0] == curve.hit_tokens.tolist()


def test_blocks_that_the_trace_cannot_tell() -> None:
    """Smaller than the span, no multiple of it, or two spans in one trace."""
    ids = Request(TokenKey([1, 2]), 1000, span=512)
    for block_size in (256, 768):
        with pytest.raises(SpanError, match="whole multiple of 512") as caught:
            lru_curve([ids], block_size)
        assert (block_size, 512) == (caught.value.block_size, caught.value.span)
    with pytest.raises(SpanError, match="one span"):
        lru_curve([ids, request(1, 2)], 512)
