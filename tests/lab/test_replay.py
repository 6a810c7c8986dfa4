"""A replay is the cache itself: it agrees with the curve, and its figures with what is counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixkv import POLICIES, SizeError, TokenKey, UnknownNameError
from radixkv.lab import ReplayConfig, SpanError, lru_curve, replay
from radixkv.scheduler import ORDERS
from radixkv.traces import Request
from tests.lab.model import looked, lru_hit_blocks, traces


def request(*tokens: int, at: float | None = None) -> Request:
    return Request(TokenKey(tokens), len(tokens), timestamp=at)


@given(traces(), st.integers(1, 3))
def test_hash_and_lru_are_the_curve(trace: list[Request], block_size: int) -> None:
    """At every capacity, to the token: outputs, namespaces, prompts that do not fit and whole numbers of blocks too."""
    curve = lru_curve(trace, block_size)
    capacities = range(1, curve.unique_blocks + 2)
    results = replay(trace, [ReplayConfig(blocks, block_size, "hash") for blocks in capacities])

    assert [curve.hit_rate(blocks) for blocks in capacities] == [result.hit_rate for result in results]


@given(traces(), st.integers(1, 3), st.integers(1, 6))
def test_hash_and_lru_are_lru_by_simulation(trace: list[Request], block_size: int, blocks: int) -> None:
    """The same without the curve in between."""
    (result,) = replay(trace, [ReplayConfig(blocks, block_size, "hash")])

    assert lru_hit_blocks([looked(one, block_size) for one in trace], blocks) * block_size == result.hit_tokens


@settings(max_examples=20)
@given(
    traces(max_size=20),
    st.integers(1, 2),
    st.integers(1, 6),
    st.sampled_from(["hash", "radix"]),
    st.sampled_from(sorted(ORDERS)),
)
def test_counters_add_up(trace: list[Request], block_size: int, blocks: int, cache: str, order: str) -> None:
    """Every policy: each request served once, and every block evicted has a lifetime, every block hit a gap."""
    configs = [ReplayConfig(blocks, block_size, cache, policy, order, window=3) for policy in sorted(POLICIES)]
    for result in replay(trace, configs):
        stats = result.stats
        assert len(trace) == result.requests == stats.lookups
        assert sum(one.input_tokens for one in trace) == result.input_tokens == stats.query_tokens
        assert sum(one.input_tokens**2 for one in trace) == result.input_squares
        assert result.hit_tokens == stats.hit_tokens
        assert stats.evicted_blocks == len(result.lifetime) == len(result.idle)
        assert stats.hit_tokens // block_size <= len(result.reuse_gap)
        assert 0 <= stats.inserted_blocks - stats.evicted_blocks <= blocks
        assert 0 == len(result.lifetime_ms)


@given(traces(), st.integers(1, 2))
def test_with_room_for_all_every_cache_and_policy_is_the_ceiling(trace: list[Request], block_size: int) -> None:
    """Nothing is evicted, so nothing is chosen."""
    curve = lru_curve(trace, block_size)
    configs = [
        ReplayConfig(curve.unique_blocks + 1, block_size, cache, policy)
        for cache in ("hash", "radix")
        for policy in sorted(POLICIES)
    ]

    assert {curve.ceiling} == {result.hit_rate for result in replay(trace, configs)}


def test_nine_requests_over_three_prefixes() -> None:
    """In room for one prefix: as they come none hits; longest prefix first brings equal ones together, and six hit."""
    trace = [request(prefix, prefix, number) for number in range(3) for prefix in (1, 2, 3)]
    configs = [ReplayConfig(2, 2, order=order, window=9) for order in ("fcfs", "lpm", "dfs-weight")]

    assert [0, 12, 12] == [result.hit_tokens for result in replay(trace, configs)]


def test_ages() -> None:
    """Two prefixes in room for one, then one of them twice: lifetimes, idle times and gaps by hand."""
    trace = [request(1, 1, 0, at=0.0), request(2, 2, 0, at=0.5), request(2, 2, 0, at=2.0), request(1, 1, 0, at=9.0)]
    (result,) = replay(trace, [ReplayConfig(1, 2)])

    assert 2 == result.hit_tokens
    assert [1, 2] == [result.lifetime.percentile(percent) for percent in (50, 100)]
    assert [1, 1] == [result.idle.percentile(percent) for percent in (50, 100)]
    assert 1 == result.reuse_gap.percentile(50)
    assert [500, 8448] == [result.lifetime_ms.percentile(percent) for percent in (50, 100)]
    assert [500, 6976] == [result.idle_ms.percentile(percent) for percent in (50, 100)]
    assert 1488 == result.reuse_gap_ms.percentile(50)
    assert (1, 0, 2, 1) == (
        result.stats.missed_evicted,
        result.stats.missed_diverged,
        result.stats.missed_cold,
        result.stats.lookups - 3,
    )


def test_an_answer_is_cached_but_for_its_last_token() -> None:
    """The next turn finds the prompt and all of the answer that was computed."""
    first = Request(TokenKey([1, 2]), 2, 3, output=TokenKey([3, 4, 5]))
    (result,) = replay([first, request(1, 2, 3, 4, 5, 6)], [ReplayConfig(10, 1)])

    assert 4 == result.hit_tokens


def test_a_prompt_that_does_not_fit_keeps_its_head() -> None:
    """The first three of five blocks."""
    for cache in ("hash", "radix"):
        (result,) = replay([request(1, 2, 3, 4, 5)] * 2, [ReplayConfig(3, 1, cache)])
        assert 3 == result.hit_tokens
        assert 3 == result.stats.inserted_blocks


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"blocks": 0}, SizeError),
        ({"block_size": 0}, SizeError),
        ({"window": 0}, SizeError),
        ({"cache": "trie"}, UnknownNameError),
        ({"eviction": "best"}, UnknownNameError),
        ({"order": "random"}, UnknownNameError),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be(changes: dict[str, object], error: type[Exception]) -> None:
    """Refused before anything is read."""
    settings: dict[str, object] = {"blocks": 1, "block_size": 1}
    with pytest.raises(error):
        ReplayConfig(**{**settings, **changes})  # type: ignore[arg-type]  # that is the question


def test_blocks_that_the_trace_cannot_tell() -> None:
    """As for the curve."""
    with pytest.raises(SpanError):
        replay([Request(TokenKey([1]), 512, span=512)], [ReplayConfig(1, 256)])


def test_an_empty_trace() -> None:
    """Zeros."""
    (result,) = replay([], [ReplayConfig(1, 1, order="lpm")])

    assert (0, 0, 0.0) == (result.requests, result.hit_tokens, result.hit_rate)
    assert result.lifetime.percentile(50) is None
