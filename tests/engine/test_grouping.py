"""What rows of a step are attended to together, and that each token still sees what it is to see, and nothing else."""

from __future__ import annotations

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

KV_HEADS, HEADS, DIM, SCALE = (2, 3, 6), 6, 4, 0.7
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


def row_of(start: int, blocks: list[int], tokens: int = 1) -> Row:
    """Some tokens of a request with these blocks."""
    return Row([7] * tokens, start, array("I", blocks), wants_logits=True)


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


def existing(rows: Sequence[Row], size: int) -> tuple[set[int], set[int]]:
    """Slots whose K and V exist before the step, and those that were cleared when the page of some was begun."""
    computed = {slot for row in rows for slot in slots_of(row, size)[row.start :]}
    before = {slot for row in rows for slot in slots_of(row, size)[: row.start]} - computed
    begun = {row.blocks[row.start // size] * size for row in rows if row.start % size}
    return before, {first + offset for first in begun for offset in range(size)} - before


def attended(
    rows: Sequence[Row], size: int, *, value_dim: int = DIM, pack: bool = True, spoiled: int | None = None
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each row with what its tokens attend to, `[tokens, heads, value_dim]`, and what they should: number by number.

    Nobody may see a slot that nobody wrote: they are all NaN. So is what the `spoiled` row computes.
    """
    generator = torch.Generator().manual_seed(1)
    slots = (max(block for row in rows for block in row.blocks) + 1) * size
    layers = [LayerShape(kv_heads, DIM, value_dim) for kv_heads in KV_HEADS]
    store = KVStore(layers, slots // size, size, torch.float32, torch.device("cpu"))
    _, positions, wanted, batch = ModelRunner(torch.nn.Identity(), store)._lay_out(rows, pack=pack)
    computed = {slot for row in rows for slot in slots_of(row, size)[row.start :]}
    assert computed == set(batch.slots.tolist())
    for layer, kv_heads in enumerate(KV_HEADS):
        keys, values = (torch.randn(slots, kv_heads, dim, generator=generator) for dim in (DIM, value_dim))
        queries = torch.randn(HEADS, len(positions), DIM, generator=generator)
        new_keys, new_values = keys[batch.slots].transpose(0, 1), values[batch.slots].transpose(0, 1)
        if spoiled is not None:
            end = int(wanted[spoiled]) + 1
            for tensor in (queries, new_keys, new_values):
                tensor[:, end - len(rows[spoiled].tokens) : end] = torch.nan
        before, cleared = existing(rows, size)
        for stored, every in ((store.flat_keys[layer], keys), (store.flat_values[layer], values)):
            stored.fill_(torch.nan)
            stored[[*cleared]] = 0.0
            stored[[*before]] = every[[*before]]
        with torch.inference_mode():
            found = batch.attend(layer, queries, new_keys, new_values, SCALE)
        for number, (row, last) in enumerate(zip(rows, wanted.tolist(), strict=True)):
            tokens = range(last + 1 - len(row.tokens), last + 1)
            assert [*range(row.start, row.end)] == positions[tokens].tolist()
            expected = torch.empty(len(tokens), HEADS, value_dim)
            for place, token in enumerate(tokens):
                seen = slots_of(row, size)[: row.start + place + 1]
                for head in range(HEADS):
                    of = head // (HEADS // kv_heads)
                    shares = (keys[seen, of] @ queries[head, token] * SCALE).softmax(0)
                    expected[place, head] = shares @ values[seen, of]
            yield number, found[tokens], expected


@pytest.mark.parametrize("costs", COSTS)
@given(
    st.sampled_from([1, 2, 3]).flatmap(lambda size: st.tuples(st.just(size), some_rows(size))),
    st.sampled_from([1, 64]),
    st.sampled_from([DIM, DIM + 2]),
    st.booleans(),
)
@example((2, [row_of(2, [1, 4]), row_of(3, [1, 4], 1), row_of(0, [1, 4], 4)]), 64, DIM, True)
def test_each_token_sees_its_own_positions(
    costs: str, made: tuple[int, list[Row]], few: int, value_dim: int, pack: bool
) -> None:
    """And no others, however rows are packed, padded and merged."""
    size, rows = made
    with pytest.MonkeyPatch.context() as patch:
        set_costs(patch, costs)
        patch.setattr(runner, "FEW_TOKENS", few)
        for _, found, expected in attended(rows, size, value_dim=value_dim, pack=pack):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_a_row_that_sees_nothing_of_what_the_kernel_takes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 512 slots at once; the second row's are all behind those."""
    set_costs(monkeypatch, "pack all")
    rows = [row_of(600, [*range(603)], 3), row_of(20, [*range(700, 722)], 2)]

    assert [2] == [len(problem.rows) for problem in group_rows(rows, 1).own]
    for _, found, expected in attended(rows, 1):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("costs", COSTS)
@given(st.sampled_from([1, 2, 3]).flatmap(lambda size: st.tuples(st.just(size), some_rows(size))), st.integers(0, 5))
@example((4, [row_of(2, [0]), row_of(1, [5]), row_of(9, [3, 9, 7])]), 0)
def test_what_is_no_number_stays_with_those_who_read_it(costs: str, made: tuple[int, list[Row]], which: int) -> None:
    """Where nothing is packed: rows that share no page with it are right."""
    size, rows = made
    bad = which % len(rows)
    computed = set(slots_of(rows[bad], size)[rows[bad].start :])
    with pytest.MonkeyPatch.context() as patch:
        set_costs(patch, costs)
        for number, found, expected in attended(rows, size, pack=False, spoiled=bad):
            if not computed & set(slots_of(rows[number], size)):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def pages_of(rows: Sequence[Row], problem: Problem) -> Iterator[tuple[int, list[int]]]:
    """Each row of a problem with its pages in it."""
    for i, stop in zip(problem.rows, problem.stops, strict=True):
        yield i, rows[i].blocks[problem.common[0] : stop].tolist()


@pytest.mark.parametrize("costs", COSTS)
@given(st.sampled_from([1, 2]).flatmap(lambda size: st.tuples(st.just(size), some_rows(size))))
def test_every_page_of_a_row_is_in_one_problem(costs: str, made: tuple[int, list[Row]]) -> None:
    """And pages that rows of a problem share are in it once."""
    size, rows = made
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
    return (last - first) * shared - sum(tokens[first : last + 1]) - grouping.PROBLEM_PAIRS - grouping.CALL_PAIRS


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
    st.integers(0, 5),
)
@example([(9, 0, 0), (9, 5, 0), (9, 3, 0), (9, 5, 0)], 1)
def test_no_runs_save_more(problems: list[tuple[int, int, int]], worth: int) -> None:
    """Against all runs of neighbours."""
    within, before, tokens = map(list, zip(*problems, strict=True))
    spent = [sum(tokens[:stop]) for stop in range(len(tokens) + 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "PROBLEM_PAIRS", worth)
        patch.setattr(grouping, "CALL_PAIRS", worth)
        runs = best_runs(within, before, spent)

        assert all(last < first for (_, last), (first, _) in pairwise(runs))
        each = [saved(within, before, tokens, first, last) for first, last in runs]
        assert all(pairs > 0 for pairs in each)
        assert most_saved(within, before, tokens) == sum(each)


def total_cost(found: tuple[list[Problem], list[Problem]], size: int) -> int:
    """Of all problems, of merging, and of the calls that it takes."""
    merged, own = found
    read = grouping.READ_PAIRS + grouping.GATHERED_PAIRS
    problems = sum((each.tokens + read) * each.pages * size + grouping.PROBLEM_PAIRS for each in [*merged, *own])
    merging = sum(each.tokens * grouping.MERGED_PAIRS + grouping.CALL_PAIRS for each in merged)
    return problems + merging


@given(
    st.sampled_from([1, 2, 16]).flatmap(lambda size: st.tuples(st.just(size), some_rows(size))),
    st.tuples(*[st.sampled_from([0, 3, 30])] * 4),
)
@example((16, [row_of(48, [1, 2, 3, 4 + i]) for i in range(6)]), (3, 0, 3, 3))
def test_merging_never_costs_more(made: tuple[int, list[Row]], costs: tuple[int, ...]) -> None:
    """Than the same rows cost without."""
    size, rows = made
    with pytest.MonkeyPatch.context() as patch:
        for name, pairs in zip(("PROBLEM_PAIRS", "TOKEN_PAIRS", "MERGED_PAIRS", "CALL_PAIRS"), costs, strict=True):
            patch.setattr(grouping, name, pairs)
        patch.setattr(grouping, "PACKED_ROWS", 2)

        assert total_cost(group_rows(rows, size), size) <= total_cost(group_rows(rows, size, merge=False), size)


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
    merged, own = shape(rows_behind(100, 1, 500))
    assert ([100], 33) == (merged, len(own))  # three of 31 slots each, where each read 500 more before
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
