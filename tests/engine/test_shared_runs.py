"""Which rows of a step attend together to the pages that they share."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixkv.engine import runner
from radixkv.engine.runner import Row, _best_runs, common_blocks, packed, padded, shared_runs

SIZE = 2


@st.composite
def some_rows(draw: st.DrawFn) -> list[Row]:
    """Up to five rows over a small tree of blocks: a block's id names all before it, as in a cache."""
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        path = draw(st.lists(st.integers(0, 1), max_size=4))
        blocks = array("I", (int("1" + "".join(map(str, path[: i + 1])), 3) for i in range(len(path))))
        start = draw(st.integers(0, len(path) * SIZE))
        rows.append(Row([7], start, blocks + array("I", [1000]), wants_logits=True))
    return rows


def shared(rows: list[Row], indices: tuple[int, ...]) -> int:
    """Pages that rows begin with, by looking at each."""
    pages = 0
    while all(pages < rows[i].start // SIZE for i in indices) and len({rows[i].blocks[pages] for i in indices}) == 1:
        pages += 1
    return pages


def saved(common: list[int], costs: list[int], first: int, last: int) -> int:
    """By a run: what all but one of its rows are spared, less what the rows cost."""
    return (last - first) * min(common[first:last]) - sum(costs[first : last + 1])


def most_saved(common: list[int], costs: list[int], worth: int) -> int:
    """By trying every first run."""
    return max(
        (
            saved(common, costs, first, last) + most_saved(common[last + 1 :], costs[last + 1 :], worth)
            for first in range(len(common))
            for last in range(first + 1, len(common) + 1)
            if saved(common, costs, first, last) >= worth
        ),
        default=0,
    )


@given(
    st.lists(st.integers(0, 9), max_size=7),
    st.lists(st.integers(0, 4), min_size=8, max_size=8),
    st.integers(1, 12),
)
@example([4, 2, 1], [0] * 8, 1)
@example([5, 3, 5], [0] * 8, 6)
def test_no_runs_save_more(common: list[int], costs: list[int], worth: int) -> None:
    """Against all runs of neighbours."""
    costs = costs[: len(common) + 1]
    runs = _best_runs(common, costs, worth)

    assert all(last < first for (_, last), (first, _) in pairwise(runs))
    each = [saved(common, costs, first, last) for first, last in runs]
    assert all(tokens >= worth for tokens in each)
    assert most_saved(common, costs, worth) == sum(each)


@given(some_rows())
def test_runs_share_their_pages(rows: list[Row]) -> None:
    """No row is in two, and no page is left out."""
    with pytest.MonkeyPatch.context() as patch:
        for name, few in (("SAVED_TOKENS", 1), ("PREFIX_TOKENS", 1), ("MERGED_TOKENS", 0)):
            patch.setattr(runner, name, few)
        runs = shared_runs(rows, SIZE)

    indices = [i for run, _ in runs for i in run]
    assert len(set(indices)) == len(indices)
    for run, pages in runs:
        assert 0 < pages == shared(rows, tuple(run))


def test_runs_that_save_little_are_left_out() -> None:
    """Two rows save as many tokens as they share, three twice as many, less what merging costs."""
    pages = runner.SAVED_TOKENS // SIZE
    row = Row([7], pages * SIZE, array("I", range(pages + 1)), wants_logits=False)
    long = row._replace(tokens=[7] * (pages * SIZE // runner.MERGED_TOKENS))

    assert [] == shared_runs([row, row], SIZE)
    assert [([0, 1, 2], pages)] == shared_runs([row, row, row], SIZE)
    assert [] == shared_runs([row, row, long], SIZE)
    assert [] == shared_runs([], SIZE)


def test_a_prefix_that_saves_little_is_left_out() -> None:
    """Another one that saves much does not take it along."""
    much, little = runner.SAVED_TOKENS // SIZE, runner.PREFIX_TOKENS // SIZE
    rows = [Row([7], much * SIZE, array("I", range(much + 1)), wants_logits=False)] * 3
    others = [Row([7], little * SIZE, array("I", range(9000, 9001 + little)), wants_logits=False)] * 2

    assert [([0, 1, 2], much)] == shared_runs([*rows, *others], SIZE)
    assert [([0, 1, 2], much), ([3, 4, 5], little)] == shared_runs([*rows, *others, others[0]], SIZE)
    assert [] == shared_runs([*others, others[0]], SIZE)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 600)), max_size=12))
def test_padding_at_most_doubles(sizes: list[tuple[int, int]]) -> None:
    """Or adds 128 tokens a request; nobody is left out, and no batch could have taken the next one along."""
    batches = list(padded(sizes))

    assert [i for first, stop in batches for i in range(first, stop)] == list(range(len(sizes)))
    for first, stop in batches:
        assert is_small(sizes[first:stop])
        assert stop == len(sizes) or not is_small(sizes[first : stop + 1])


def is_small(sizes: list[tuple[int, int]]) -> bool:
    tokens, length = max(tokens for tokens, _ in sizes), max(length for _, length in sizes)
    return len(sizes) * tokens * length <= 2 * sum(one * other for one, other in sizes) + 128 * len(sizes)


def test_one_long_row_is_not_padded_to() -> None:
    """Sixty rows behind 100 tokens and one behind 4,100: two calls, also where both are few blocks."""
    assert [(0, 60), (60, 61)] == list(padded([(1, 112)] * 60 + [(1, 4112)]))
    assert [(0, 60), (60, 61)] == list(padded([(1, 512)] * 60 + [(1, 4608)]))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 600)), max_size=40))
def test_packs_lower_what_a_request_costs(sizes: list[tuple[int, int]]) -> None:
    """Nobody is left out, each one that a pack takes makes it cheaper a request, and the next one would not."""
    packs = list(packed(sizes))

    assert [i for first, stop in packs for i in range(first, stop)] == list(range(len(sizes)))
    for first, stop in packs:
        each = [cost_of_each(sizes[first:end]) for end in range(first + 1, min(stop + 1, len(sizes)) + 1)]
        cheaper = [after < before for before, after in pairwise(each)]
        assert all(cheaper[: stop - first - 1])
        assert not any(cheaper[stop - first - 1 :])


def cost_of_each(sizes: list[tuple[int, int]]) -> float:
    pairs = sum(tokens for tokens, _ in sizes) * sum(length for _, length in sizes)
    return (runner.PACKED_PAIRS + pairs) / len(sizes)


def test_what_is_small_is_packed() -> None:
    """Requests behind ten tokens of their own are, those behind a thousand are not."""
    assert [(0, 12), (12, 20)] == list(packed([(1, 10)] * 20))
    assert [(i, i + 1) for i in range(4)] == list(packed([(2, 1000)] * 4))


def test_common_blocks() -> None:
    """By hand."""
    assert 2 == common_blocks(array("I", [5, 6, 7]), array("I", [5, 6, 8, 9]))
    assert 1 == common_blocks(array("I", [5]), array("I", [5, 6]))
    assert 0 == common_blocks(array("I", [5]), array("I"))
