"""Which rows of a step attend together to the pages that they share."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from radixkv.engine import runner
from radixkv.engine.runner import Row, _best_runs, common_blocks, shared_runs

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


def most_saved(common: list[int], worth: int) -> int:
    """By trying every first run."""
    return max(
        (
            (last - first) * min(common[first:last]) + most_saved(common[last + 1 :], worth)
            for first in range(len(common))
            for last in range(first + 1, len(common) + 1)
            if (last - first) * min(common[first:last]) >= worth
        ),
        default=0,
    )


@given(st.lists(st.integers(0, 9), max_size=7), st.integers(1, 12))
@example([4, 2, 1], 1)
@example([5, 3, 5], 6)
def test_no_runs_save_more(common: list[int], worth: int) -> None:
    """Against all runs of neighbours."""
    runs = _best_runs(common, worth)

    assert all(last < first for (_, last), (first, _) in pairwise(runs))
    saved = [(last - first) * min(common[first:last]) for first, last in runs]
    assert all(pages >= worth for pages in saved)
    assert most_saved(common, worth) == sum(saved)


@given(some_rows())
def test_runs_share_their_pages(rows: list[Row]) -> None:
    """No row is in two, and no page is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "SAVED_TOKENS", 1)
        runs = shared_runs(rows, SIZE)

    indices = [i for run, _ in runs for i in run]
    assert len(set(indices)) == len(indices)
    for run, pages in runs:
        assert 0 < pages == shared(rows, tuple(run))


def test_runs_that_save_little_are_left_out() -> None:
    """Two rows save as many tokens as they share, three twice as many."""
    pages = runner.SAVED_TOKENS // 2 // SIZE
    row = Row([7], pages * SIZE, array("I", range(pages + 1)), wants_logits=False)

    assert [] == shared_runs([row, row], SIZE)
    assert [([0, 1, 2], pages)] == shared_runs([row, row, row], SIZE)
    assert [] == shared_runs([], SIZE)


def test_common_blocks() -> None:
    """By hand."""
    assert 2 == common_blocks(array("I", [5, 6, 7]), array("I", [5, 6, 8, 9]))
    assert 1 == common_blocks(array("I", [5]), array("I", [5, 6]))
    assert 0 == common_blocks(array("I", [5]), array("I"))
