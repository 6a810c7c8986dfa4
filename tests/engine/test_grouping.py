"""What rows of a step are attended to together, and that each token still sees what it is to see, and nothing else."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from radixkv.engine import grouping, runner
from radixkv.engine.grouping import Problem, Row, best_runs, common_blocks, group_rows, pad_problems
from radixkv.engine.kv_store import KVStore, LayerShape
from radixkv.engine.runner import ModelRunner

KV_HEADS, HEADS, DIM = 2, 6, 4
FREE = dict.fromkeys(("PROBLEM_PAIRS", "CALL_PAIRS", "MERGED_PAIRS", "TOKEN_PAIRS"), 0)
COSTS = {
    "as they are": {},
    "merge what is shared": {**FREE, "PACKED_ROWS": 1},
    "pack and merge": {**FREE, "READ_PAIRS": 50, "PACKED_ROWS": 2},
    "pack all": {"PROBLEM_PAIRS": 10**6},
    "pack nothing": {"PACKED_ROWS": 1, "MERGED_PAIRS": 10**6},
    "a call each": {"PACKED_ROWS": 1, "CALL_PAIRS": 0},
}
"""What may be done with rows, by what is said to cost."""


@st.composite
def some_rows(draw: st.DrawFn, size: int) -> list[Row]:
    """Up to six rows over a small tree of blocks: a block's id names all before it, as in a cache.

    Full ones alone are shared, as there.
    """
    rows = []
    for number in range(draw(st.integers(1, 6))):
        path = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
        end = draw(st.integers((len(path) - 1) * size + 1, len(path) * size))
        start = draw(st.integers(0, end - 1))
        blocks = array("I", (int("".join(map(str, path[: i + 1])), 3) for i in range(len(path))))
        if end % size:
            blocks[-1] = 3**4 + number
        rows.append(Row([7] * (end - start), start, blocks, wants_logits=True))
    return rows


def set_costs(patch: pytest.MonkeyPatch, costs: str) -> None:
    for name, pairs in COSTS[costs].items():
        patch.setattr(grouping, name, pairs)


def slots_of(row: Row, size: int) -> list[int]:
    """Of all its positions."""
    return [row.blocks[position // size] * size + position % size for position in range(row.end)]


@given(st.data(), st.sampled_from([1, 2, 3]), st.sampled_from([*COSTS]), st.sampled_from([1, 64]), st.booleans())
def test_each_token_sees_its_own_positions(data: st.DataObject, size: int, costs: str, few: int, pack: bool) -> None:
    """Against the softmax over them, number by number, however rows are packed, padded and merged."""
    rows = data.draw(some_rows(size))
    generator = torch.Generator().manual_seed(1)
    store = KVStore([LayerShape(KV_HEADS, DIM, DIM)], 3**4 + 6, size, torch.float32, torch.device("cpu"))
    keys, values = (torch.randn(store.num_blocks * size, KV_HEADS, DIM, generator=generator) for _ in range(2))
    store.flat_keys[0].copy_(keys)
    store.flat_values[0].copy_(values)
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        set_costs(patch, costs)
        patch.setattr(runner, "FEW_TOKENS", few)
        _, positions, wanted, batch = ModelRunner(torch.nn.Identity(), store)._lay_out(rows, pack=pack)
        queries = torch.randn(HEADS, len(positions), DIM, generator=generator)
        # a slot's K and V are the same whoever writes them; nobody may see what is in the others by then
        store.flat_keys[0].mul_(1e3)
        written = [slot for row in rows for slot in slots_of(row, size)[: row.start]]
        store.flat_keys[0][written] = keys[written]
        new = keys[batch.slots].transpose(0, 1), values[batch.slots].transpose(0, 1)
        found = batch.attend(0, queries, *new, None)

    assert sorted(batch.slots.tolist()) == sorted(slot for row in rows for slot in slots_of(row, size)[row.start :])
    for row, last in zip(rows, wanted.tolist(), strict=True):
        for token in range(len(row.tokens)):
            at = last + 1 - len(row.tokens) + token
            assert row.start + token == int(positions[at])
            seen = slots_of(row, size)[: row.start + token + 1]
            for head in range(HEADS):
                of = head // (HEADS // KV_HEADS)
                shares = (keys[seen, of] @ queries[head, at] / math.sqrt(DIM)).softmax(0)
                torch.testing.assert_close(found[at, head], shares @ values[seen, of], atol=1e-5, rtol=1e-4)


def pages_of(rows: Sequence[Row], problem: Problem) -> Iterator[tuple[int, list[int]]]:
    """Each row of a problem with its pages in it."""
    for i, stop in zip(problem.rows, problem.stops, strict=True):
        yield i, rows[i].blocks[problem.common[0] : stop].tolist()


@given(st.data(), st.sampled_from([1, 2]), st.sampled_from([*COSTS]))
def test_every_page_of_a_row_is_in_one_problem(data: st.DataObject, size: int, costs: str) -> None:
    """And pages that rows of a problem share are in it once."""
    rows = data.draw(some_rows(size))
    with pytest.MonkeyPatch.context() as patch:
        set_costs(patch, costs)
        merged, own = group_rows(rows, size)

    found: dict[int, list[int]] = {}
    for problem in [*merged, *own]:
        assert problem.tokens == sum(len(rows[i].tokens) for i in problem.rows)
        assert problem.pages == len({page for _, pages in pages_of(rows, problem) for page in pages})
        for i, pages in pages_of(rows, problem):
            found[i] = found.get(i, []) + pages
            assert problem not in merged or problem.stops[0] * size <= rows[i].start
    assert found == {i: row.blocks.tolist() for i, row in enumerate(rows)}
    assert sorted(i for problem in own for i in problem.rows) == [*range(len(rows))]
    assert len({i for problem in merged for i in problem.rows}) == sum(len(problem.rows) for problem in merged)


def test_rows_may_be_kept_apart() -> None:
    """Without merging or packing each is a problem."""
    rows = rows_behind(100, 1, 900)

    assert group_rows(rows, 1).merged
    assert not group_rows(rows, 1, merge=False).merged
    assert any(len(problem.rows) > 1 for problem in group_rows(rows, 1, merge=False).own)
    assert all(len(problem.rows) == 1 for problem in group_rows(rows, 1, merge=False, pack=False).own)
    assert group_rows(rows, 1, pack=False).merged  # pages that are all of theirs
    assert ([], []) == group_rows([], 1)


def cost_of(rows: Sequence[Row], size: int) -> int:
    """Of a problem of all of them."""
    pages = {page for row in rows for page in row.blocks}
    tokens = sum(len(row.tokens) for row in rows)
    read = grouping.READ_PAIRS + grouping.GATHERED_PAIRS
    return (tokens + read) * len(pages) * size + grouping.PROBLEM_PAIRS


def cuts(count: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut so many into parts."""
    if not count:
        yield []
    for first in range(count):
        for before in cuts(first):
            yield [*before, (first, count)]


@given(st.data(), st.sampled_from([0, 8, 60, 400]), st.sampled_from([1, 16]))
def test_no_packs_cost_less(data: st.DataObject, problem_pairs: int, size: int) -> None:
    """Against all ways to cut the rows in their order."""
    rows = data.draw(some_rows(size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "PROBLEM_PAIRS", problem_pairs)
        own = group_rows(rows, size, merge=False).own
        order = [rows[i] for problem in own for i in problem.rows]

        assert sum(cost_of([rows[i] for i in problem.rows], size) for problem in own) == min(
            sum(cost_of(order[first:stop], size) for first, stop in parts) for parts in cuts(len(rows))
        )


def saved(within: list[int], before: list[int], tokens: list[int], first: int, last: int) -> int:
    """By a run: what all but one of its problems are spared, less what its rows cost."""
    shared = min(*within[first : last + 1], *before[first + 1 : last + 1])
    return (last - first) * shared - sum(tokens[first : last + 1]) - grouping.PROBLEM_PAIRS


def most_saved(within: list[int], before: list[int], tokens: list[int]) -> int:
    """By trying every first run."""
    return max(
        (
            saved(within, before, tokens, first, last)
            + most_saved(within[last + 1 :], before[last + 1 :], tokens[last + 1 :])
            for first in range(len(within))
            for last in range(first + 1, len(within))
            if saved(within, before, tokens, first, last) > 0
        ),
        default=0,
    )


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=7),
    st.integers(0, 9),
)
@example([(9, 0, 0), (9, 5, 0), (9, 3, 0), (9, 5, 0)], 2)
def test_no_runs_save_more(problems: list[tuple[int, int, int]], worth: int) -> None:
    """Against all runs of neighbours."""
    within, before, tokens = map(list, zip(*problems, strict=True))
    spent = [sum(tokens[:stop]) for stop in range(len(tokens) + 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "PROBLEM_PAIRS", worth)
        runs = best_runs(within, before, spent)

        assert all(last < first for (_, last), (first, _) in pairwise(runs))
        each = [saved(within, before, tokens, first, last) for first, last in runs]
        assert all(pairs > 0 for pairs in each)
        assert most_saved(within, before, tokens) == sum(each)


def padded_cost(sizes: Sequence[tuple[int, int, int]]) -> int:
    """Of one call."""
    tokens, length = max(size[0] for size in sizes), max(size[1] for size in sizes)
    gathered = length if len(sizes) > 1 else sizes[0][2]
    each = tokens * (length + grouping.TOKEN_PAIRS) + length * grouping.READ_PAIRS + gathered * grouping.GATHERED_PAIRS
    too_many = len(sizes) > 1 and length * len(sizes) > grouping.CALL_TOKENS
    return 10**9 if too_many else each * len(sizes) + grouping.CALL_PAIRS


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 600), st.booleans()), max_size=7),
    st.sampled_from([0, 500, 8192]),
    st.sampled_from([600, 1800, 10**6]),
)
def test_no_padding_costs_less(problems: list[tuple[int, int, bool]], call_pairs: int, most: int) -> None:
    """Against all ways to cut the problems in the order of their sizes, with so many tokens to gather at most."""
    sizes = [(tokens, length, length * gathered) for tokens, length, gathered in problems]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "CALL_PAIRS", call_pairs)
        patch.setattr(grouping, "CALL_TOKENS", most)
        calls = pad_problems(sizes)

        assert sorted(i for call in calls for i in call) == [*range(len(sizes))]
        assert sum(padded_cost([sizes[i] for i in call]) for call in calls) == min(
            sum(padded_cost(sorted(sizes)[first:stop]) for first, stop in parts) for parts in cuts(len(sizes))
        )
        assert all(len(call) * max(sizes[i][1] for i in call) <= most for call in calls if len(call) > 1)


def rows_behind(count: int, tokens: int, behind: int, first: int = 0) -> list[Row]:
    """Requests behind the same `behind` tokens and 30 of their own, in blocks of one."""
    common, own = range(first, first + behind), 30 + tokens
    ends = range(first + behind, first + behind + count * own, own)
    return [Row([7] * tokens, behind + 30, array("I", [*common, *range(end, end + own)]), True) for end in ends]


def shape(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """How many rows each problem has."""
    merged, own = group_rows(rows, 1)
    return [len(problem.rows) for problem in merged], [len(problem.rows) for problem in own]


def test_what_is_merged() -> None:
    """Very many rows' pages; those of a few are one problem with their own."""
    assert [100] == shape(rows_behind(100, 1, 500))[0]
    assert [50, 100] == shape([*rows_behind(100, 1, 500), *rows_behind(50, 1, 500, first=9000)])[0]
    assert ([], [6]) == shape(rows_behind(6, 1, 300))
    assert ([], [6, 6]) == shape([*rows_behind(6, 1, 300), *rows_behind(6, 1, 300, first=9000)])
    assert [] == shape(rows_behind(8, 60, 300))[0]


def test_one_long_problem_is_not_padded_to() -> None:
    """Sixty of 100 tokens and one of 4,100."""
    assert [[*range(60)], [60]] == pad_problems([(1, 112, 112)] * 60 + [(1, 4112, 4112)])
    assert [] == pad_problems([])


def test_a_view_is_a_call_of_its_own_where_gathering_costs_more() -> None:
    """Three in one piece: long ones are not copied, short ones are."""
    assert [[0], [1], [2]] == pad_problems([(1, 2000, 0)] * 3)
    assert [[0, 1, 2]] == pad_problems([(1, 100, 0)] * 3)


def test_common_blocks() -> None:
    """By hand."""
    assert 2 == common_blocks(array("I", [5, 6, 7]), array("I", [5, 6, 8, 9]))
    assert 1 == common_blocks(array("I", [5]), array("I", [5, 6]))
    assert 0 == common_blocks(array("I", [5]), array("I"))
