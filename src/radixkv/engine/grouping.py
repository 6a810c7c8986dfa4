"""Which rows of a few tokens are attended to together: what costs little, by a model of attention's cost on a CPU.

The kernel attends to *problems*: some tokens, some pages, and a mask that says which token sees what. A problem may
take several rows. Pages that they share stand in it once, and are read once:

```text
rows      A: 1 2 3 4    B: 1 2 3 5    C: 1 6        by their pages
problem   1 2 3 4 5 6                               A's tokens see 1 2 3 4, B's 1 2 3 and 5, C's 1 and 6
```

Where very many rows begin with the same pages, those are a problem of their own, for the tokens of all these rows, and
each row's results over these pages and over its others are *merged*. That is of Juravsky et al., "Hydragen:
High-Throughput LLM Inference with Shared Prefixes" (2024), and known as cascade inference from FlashInfer.

Costs are counted in pairs: what it takes to attend from one token to one other, in all heads. Their ratios were
measured on two cores of a Xeon in bfloat16 and are much alike for 9 heads on 3 of K and V, 14 on 2 and 32 on 8;
`python -m benchmarks.steps` tells what steps take with them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

GATHERED_PAIRS: Final = 16
"""What it costs a problem to gather a token's K and V."""
READ_PAIRS: Final = 8
"""What it costs besides to read them, whoever attends to them: the kernel brings them into its order."""
TOKEN_PAIRS: Final = 80
"""What a token costs a problem, whatever it attends to."""
PROBLEM_PAIRS: Final = 256
"""What a problem costs, whatever is in it."""
CALL_PAIRS: Final = 16_384
"""What one more call of the kernel costs."""
MERGED_PAIRS: Final = 80
"""What it costs that a token stands in a problem of merged pages, too: its two results are merged."""

CALL_TOKENS: Final = 65_536
"""Tokens that several problems of a call gather at most, padding included: they are copied."""
PACKED_ROWS: Final = 64
"""Of a problem at most, so that choosing takes no more than O(rows)."""


class Row(NamedTuple):
    """Consecutive tokens of one request, to be computed behind those whose K and V exist or other rows compute."""

    tokens: Sequence[int]
    """At least one."""
    start: int
    """Position of the first: so many tokens' K and V are in the blocks already, or will be by the same call."""
    blocks: array[int]
    """The request's block ids, enough for all tokens; read during the call only."""
    wants_logits: bool
    """Whether the logits after its last token are wanted."""

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)


class Problem(NamedTuple):
    """What the kernel attends to as one."""

    rows: tuple[int, ...]
    """Indices of the rows whose tokens it has."""
    common: tuple[int, ...]
    """How many of each one's pages precede those that it adds: for the first row, those in another problem; for any
    other, those that the row before it has, too."""
    stops: tuple[int, ...]
    """How many of each one's pages precede those behind the problem."""
    tokens: int
    """Of all rows."""

    @property
    def pages(self) -> int:
        """Of all rows, each page once."""
        return sum(self.stops) - sum(self.common)


class Grouping(NamedTuple):
    """What is attended to together."""

    merged: list[Problem]
    """Pages that some rows begin with, and all of their tokens see. A row is in one of them at most."""
    own: list[Problem]
    """The other pages. Each row is in one."""


def group_rows(rows: Sequence[Row], block_size: int, *, merge: bool = True, pack: bool = True) -> Grouping:
    """Choose what is attended to together.

    Of the rows in the order of their pages, neighbours share most, and only neighbours are grouped: packed so that it
    costs least if nothing is merged. Then runs of problems are chosen whose first pages could be merged, by what
    reading those takes, and each is merged and packed anew if that costs less.
    O(rows x pages x log rows + problems²).

    Args:
        rows: of different requests.
        block_size: tokens a page.
        merge: whether results over some pages and over others can be merged.
        pack: whether rows may be one problem.
    """
    if not rows:
        return Grouping([], [])
    order = _Order(rows, block_size, PACKED_ROWS if pack else 1)
    packs = order.packs(0, len(rows), 0)
    merged, own = [], [order.problem(*each, 0) for each in packs]
    for run in order.merged_runs(packs) if merge else ():
        merged.append(order.problem(packs[run.first][0], packs[run.last][1], 0, run.pages))
        own[run.first : run.last + 1] = [order.problem(*each, run.pages) for each in run.packs]
    return Grouping(merged, own)


def pad_problems(sizes: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Which problems are computed in one call, all padded to as many tokens and as long, so that it costs least.

    Of the problems in the order of their sizes, neighbours are, and no more than have `CALL_TOKENS`. O(problems²).

    Args:
        sizes: tokens and length of each problem, and what of its length is gathered if it is alone.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    tokens, lengths, gathered = np.array([sizes[i] for i in order], np.int64).reshape(-1, 3).T

    def costs(stop: int) -> Any:
        longest = np.maximum.accumulate(lengths[stop - 1 :: -1])[::-1]
        each = tokens[stop - 1] * (longest + TOKEN_PAIRS) + longest * (READ_PAIRS + GATHERED_PAIRS)
        each *= np.arange(stop, 0, -1)
        each[-1] -= (lengths[stop - 1] - gathered[stop - 1]) * GATHERED_PAIRS
        allowed = max(int(np.count_nonzero(longest * np.arange(stop, 0, -1) <= CALL_TOKENS)), 1)
        return each[-allowed:] + CALL_PAIRS

    return [order[first:stop] for first, stop in _cheapest_parts(len(order), costs)]


_Pack: TypeAlias = tuple[int, int]
"""Rows of a problem: the first one and the one behind the last."""


class _Run(NamedTuple):
    """Problems next to each other whose first pages are merged."""

    first: int
    last: int
    pages: int
    packs: list[_Pack]
    """What becomes of them, behind those pages."""


class _Order:
    """Rows in the order of their pages."""

    def __init__(self, rows: Sequence[Row], block_size: int, most: int) -> None:
        self._size = block_size
        self._most = most  # rows of a problem
        paths = [row.blocks[: -(-row.end // block_size)] for row in rows]
        self._rows = sorted(range(len(rows)), key=lambda i: paths[i].tobytes())  # equal beginnings are neighbours
        self._pages = [len(paths[i]) for i in self._rows]
        # pages that are shared with the row before, and of those the ones that all tokens of both see
        self._common = [0, *(common_blocks(paths[one], paths[other]) for one, other in pairwise(self._rows))]
        seen = [rows[i].start // block_size for i in self._rows]
        self._seen = [0, *map(min, self._common[1:], seen, seen[1:])]
        # of all rows before one
        self._tokens = np.cumsum([0, *(len(rows[i].tokens) for i in self._rows)])
        self._added = np.cumsum([0, *(pages - common for pages, common in zip(self._pages, self._common, strict=True))])
        # the same where a problem begins, whose first row has nobody before it that it shares pages with
        self._begun = self._added[:-1] - self._common

    def problem(self, first: int, stop: int, above: int, below: int | None = None) -> Problem:
        """Of these rows behind `above` pages, to the end of each or to `below`."""
        stops = tuple(self._pages[first:stop]) if below is None else (below,) * (stop - first)
        common = (above, *map(min, self._common[first + 1 : stop], stops[1:]))
        tokens = int(self._tokens[stop] - self._tokens[first])
        return Problem(tuple(self._rows[first:stop]), common, stops, tokens)

    def packs(self, first: int, stop: int, above: int) -> list[_Pack]:
        """The problems that these rows cost least in, behind `above` pages."""
        count = stop - first
        if count < 2 or self._most < 2:
            return [(row, row + 1) for row in range(first, stop)]
        # by where a problem ends and by its rows, most first; where there are not as many rows, nonsense
        ends = np.arange(first + 1, stop + 1)[:, None]
        begins = np.maximum(ends - np.arange(min(self._most, count), 0, -1), first)
        costs = self._costs(begins, ends, above)
        parts = _cheapest_parts(count, lambda end: costs[end - 1, -end:])
        return [(first + one, first + other) for one, other in parts]

    def merged_runs(self, packs: Sequence[_Pack]) -> list[_Run]:
        """What costs less if it is merged, the last first."""
        if not any(self._seen):
            return []
        within = [min(self._seen[first + 1 : stop], default=self._pages[first]) for first, stop in packs]
        before = [self._seen[first] for first, _ in packs]
        read = self._size * (READ_PAIRS + GATHERED_PAIRS)
        spent = self._tokens[[0, *(stop for _, stop in packs)]] * MERGED_PAIRS
        runs = []
        # merging may let them be packed better, so what it costs at least is counted, and only then all of it
        for first, last in best_runs([read * pages for pages in within], [read * pages for pages in before], spent):
            pages = min(*within[first : last + 1], *before[first + 1 : last + 1])
            begin, stop = packs[first][0], packs[last][1]
            run = _Run(first, last, pages, self.packs(begin, stop, pages))
            less = self._cost(packs[first : last + 1], 0) - self._cost(run.packs, pages)
            less -= self._merged_cost(begin, stop, pages)
            if less > 0:
                runs.append(run)
        return runs[::-1]

    def _merged_cost(self, first: int, stop: int, pages: int) -> int:
        """Of the problem that is these rows' first pages, a call of its own, and of merging."""
        tokens = int(self._tokens[stop] - self._tokens[first])
        return int(_problem_cost(tokens, pages * self._size)) + tokens * MERGED_PAIRS + CALL_PAIRS

    def _cost(self, packs: Sequence[_Pack], above: int) -> int:
        """Of all these problems, behind `above` pages."""
        firsts, stops = np.array(packs).T
        return int(self._costs(firsts, stops, above).sum())

    def _costs(self, firsts: Any, stops: Any, above: int) -> Any:
        pages = self._added[stops] - self._begun[firsts] - above
        return _problem_cost(self._tokens[stops] - self._tokens[firsts], pages * self._size)


def _problem_cost(tokens: Any, length: Any) -> Any:
    """But for `TOKEN_PAIRS`, which every token costs in any problem."""
    return (tokens + READ_PAIRS + GATHERED_PAIRS) * length + PROBLEM_PAIRS


def best_runs(within: Sequence[int], before: Sequence[int], costs: Any) -> list[tuple[int, int]]:
    """First and last problems of the runs that save most.

    All rows of a run share the least that any two next to each other share. All its problems but one are spared reading
    that. O(problems²).

    Args:
        within: what it costs to read what the rows of each problem share.
        before: of its first row, what it costs to read what it shares with the row before.
        costs: what it takes at least that the rows before each problem stand in two; the last one, of all.
    """
    count = len(within)
    shared, spent = np.minimum(within, before), np.array(costs)
    saved = np.zeros(count + 1, np.int64)  # at most, by runs of the problems before each; the last, of all
    ending: list[tuple[int, int] | None] = [None] * count  # the run that ends there, if one does
    for last in range(1, count):
        saved[last + 1] = saved[last]
        # for each first one, from the last but one back to 0
        least = np.minimum(np.minimum.accumulate(shared[last:0:-1]), within[last - 1 :: -1])
        together = (
            np.arange(1, last + 1) * least - (spent[last + 1] - spent[last - 1 :: -1]) - PROBLEM_PAIRS - CALL_PAIRS
        )
        in_all = saved[last - 1 :: -1] + np.maximum(together, 0)
        most = int(in_all.argmax())
        if in_all[most] > saved[last + 1]:
            saved[last + 1] = in_all[most]
            ending[last] = (last - 1 - most, last)
    runs, last = [], count - 1
    while last > 0:
        run = ending[last]
        if run:
            runs.append(run)
        last = run[0] - 1 if run else last - 1
    return runs[::-1]


def _cheapest_parts(count: int, costs: Callable[[int], Any]) -> list[tuple[int, int]]:
    """Cut a sequence into parts that cost least together: where each begins and where it ends.

    Args:
        count: how many there are.
        costs: of parts that end before one, by where they begin: those that may, the nearest last.
    """
    least, begins = np.zeros(count + 1), [0] * (count + 1)
    for stop in range(1, count + 1):
        each = costs(stop)
        each = each + least[stop - len(each) : stop]
        best = int(each.argmin())
        least[stop], begins[stop] = each[best], stop - len(each) + best
    parts, stop = [], count
    while stop:
        parts.append((begins[stop], stop))
        stop = begins[stop]
    return parts[::-1]


def common_blocks(one: array[int], other: array[int]) -> int:
    """How many leading ids are the same. O(ids)."""
    least = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint32)[:least] != np.frombuffer(other, np.uint32)[:least]
    return int(differ.argmax()) if differ.any() else least
