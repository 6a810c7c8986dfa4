"""The model runner: one forward pass over tokens of many requests, each with its own pages."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from radixkv.engine.attention import FEW_TOKENS, Chunk, Group, Mask, PagedBatch, Pages, Run, merges
from radixkv.engine.kv_store import KVStore

VIEW_TOKENS: Final = 128
"""A row behind at least as many tokens whose blocks lie in one piece is attended to by itself: a call of its own costs
less than gathering its pages."""

SAVED_TOKENS: Final = 2048
"""Rows attend to the pages that they share together if that reads so many tokens' K and V less: below, merging costs
more than it saves."""

_HIDDEN, _SEEN = np.float32(-np.inf), np.float32(0)


class Row(NamedTuple):
    """Consecutive tokens of one request, to be computed behind those whose K and V exist."""

    tokens: Sequence[int]
    """At least one."""
    start: int
    """Position of the first: so many tokens' K and V are in the blocks already."""
    blocks: array[int]
    """The request's block ids, enough for all tokens; read during the call only."""
    wants_logits: bool
    """Whether the logits after its last token are wanted."""


class _Part(NamedTuple):
    """Rows that are computed next to each other."""

    indices: list[int]
    """Which of the rows, in their order."""
    pages: int
    """How many pages they begin with and attend to together."""
    own: list[Row]
    """The rows behind those pages."""
    kinds: list[tuple[int, int, int]]
    """Of `own`: see `ModelRunner._kind`."""


class ModelRunner:
    """Computes rows of tokens with a transformers model whose attention is the paged one.

    Args:
        model: a causal model loaded with `attn_implementation=PAGED`.
        store: where K and V are.
    """

    def __init__(self, model: torch.nn.Module, store: KVStore) -> None:
        self.model = model
        self.store = store
        self._device = store.keys[0].device
        self._dtype = store.keys[0].dtype
        self._merges = merges(store)
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        """Write K and V of all tokens of the rows; give the logits of those that want them.

        Args:
            rows: one or more, of different requests.

        Returns:
            `[wanting rows, vocabulary]`, in the order of `rows`, float32, on the model's device.
        """
        plan = self._plan(rows)
        order = [i for part in plan for i in part.indices]
        ordered = [rows[i] for i in order]
        ends = np.cumsum([len(row.tokens) for row in ordered])
        tokens, positions, slots = self._flatten(ordered)
        batch = PagedBatch(self.store, slots, self._begun(ordered), self._runs(ordered, plan))
        place = dict(zip(order, (ends - 1).tolist(), strict=True))
        wanted = self._tensor([place[i] for i, row in enumerate(rows) if row.wants_logits])
        arguments: dict[str, Any] = {"logits_to_keep": wanted} if self._selects else {}
        logits: torch.Tensor = self.model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            radixkv_batch=batch,
            **arguments,
        ).logits[0]
        return (logits if self._selects else logits.index_select(0, wanted)).float()

    def _plan(self, rows: Sequence[Row]) -> list[_Part]:
        """In which order rows are computed, and what they attend to together."""
        shared = shared_runs(rows, self.store.block_size) if self._merges and len(rows) > 1 else []
        rest = set(range(len(rows))).difference(*(indices for indices, _ in shared))
        parts = []
        for indices, pages in [*shared, (sorted(rest), 0)] if rest else shared:
            own = {i: self._behind(rows[i], pages) for i in indices}
            kinds = {i: self._kind(row) for i, row in own.items()}
            order = sorted(indices, key=kinds.__getitem__)
            parts.append(_Part(order, pages, [own[i] for i in order], [kinds[i] for i in order]))
        return parts

    def _behind(self, row: Row, pages: int) -> Row:
        """The row as it is to what it attends to apart: behind its first pages."""
        if not pages:
            return row
        return row._replace(start=row.start - pages * self.store.block_size, blocks=row.blocks[pages:])

    def _runs(self, ordered: Sequence[Row], plan: Sequence[_Part]) -> tuple[Run, ...]:
        runs, start, first = [], 0, 0
        for part in plan:
            stop = start + sum(len(row.tokens) for row in part.own)
            prefix = self._pages(ordered[first].blocks, part.pages * self.store.block_size) if part.pages else None
            runs.append(Run(start, stop, prefix, *self._spans(part, start)))
            start, first = stop, first + len(part.own)
        return tuple(runs)

    def _kind(self, row: Row) -> tuple[int, int, int]:
        """Where a row goes: in groups by tokens and pages, then those that are attended to by themselves."""
        tokens = len(row.tokens)
        pages = -(-(row.start + tokens) // self.store.block_size)
        if tokens > FEW_TOKENS or (row.start >= VIEW_TOKENS and in_one_piece(row.blocks, pages)):
            return (1, 0, 0)
        return (0, tokens, pages)

    def _flatten(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, positions and slots, `[tokens]` each."""
        size = self.store.block_size
        positions = [np.arange(row.start, row.start + len(row.tokens)) for row in rows]
        slots = [
            np.frombuffer(row.blocks, np.uint32)[place // size].astype(np.int64) * size + place % size
            for row, place in zip(rows, positions, strict=True)
        ]
        tokens = np.concatenate([np.asarray(row.tokens, np.int64) for row in rows])
        return self._tensor(tokens), self._tensor(np.concatenate(positions)), self._tensor(np.concatenate(slots))

    def _begun(self, rows: Sequence[Row]) -> torch.Tensor:
        """Slots behind the last tokens of rows that begin a block: what its last owner left is read with the page."""
        size = self.store.block_size
        rests = []
        for row in rows:
            end = row.start + len(row.tokens)
            page = (end - 1) // size
            if row.start <= page * size:
                rests.append(row.blocks[page] * size + np.arange((end - 1) % size + 1, size))
        return self._tensor(np.concatenate(rests) if rests else np.empty(0, np.int64))

    def _spans(self, part: _Part, start: int) -> tuple[tuple[Group, ...], tuple[Chunk, ...]]:
        """What the rows of a part are attended to with: in groups as long as padding at most doubles what there is."""
        groups: list[Group] = []
        chunks: list[Chunk] = []
        rows, kinds = part.own, part.kinds
        first = 0
        while first < len(rows) and kinds[first][0] == 0:
            stop, area, longest = first, 0, 0
            while stop < len(rows) and kinds[stop][0] == 0:
                _, tokens, pages = kinds[stop]  # no row before has more tokens
                more, most = area + tokens * pages, max(longest, pages)
                if (stop + 1 - first) * tokens * most > 2 * more + 8 * (stop + 1 - first):
                    break
                stop, area, longest = stop + 1, more, most
            groups.append(self._group(rows[first:stop], start))
            start, first = groups[-1].stop, stop
        for row in rows[first:]:
            chunks.append(self._chunk(row, start))
            start = chunks[-1].stop
        return tuple(groups), tuple(chunks)

    def _group(self, rows: Sequence[Row], start: int) -> Group:
        size = self.store.block_size
        counts = np.array([len(row.tokens) for row in rows])
        starts = np.array([row.start for row in rows])
        lengths = starts + counts
        pages = -(-int(lengths.max()) // size)
        blocks = np.empty((len(rows), pages), np.int64)
        for i, row in enumerate(rows):
            own = -(-int(lengths[i]) // size)
            blocks[i, :own] = np.frombuffer(row.blocks, np.uint32)[:own]
            blocks[i, own:] = row.blocks[0]
        tokens = np.arange(counts.max())
        seen = np.minimum(starts[:, None] + tokens, lengths[:, None] - 1)  # by each token; its own position the last
        mask = np.where(np.arange(pages * size) > seen[:, :, None], _HIDDEN, _SEEN)[:, None]
        spread, real = None, None
        if len(tokens) > 1:
            befores = counts.cumsum() - counts
            spread = self._tensor((befores[:, None] + np.minimum(tokens, counts[:, None] - 1)).reshape(-1))
            real = self._tensor(np.flatnonzero(tokens < counts[:, None]))
        stop = start + int(counts.sum())
        return Group(start, stop, self._tensor(blocks), self._mask(mask), spread, real)

    def _chunk(self, row: Row, start: int) -> Chunk:
        tokens = len(row.tokens)
        length, mask = row.start + tokens, None
        if tokens > 1 and row.start:
            later = np.arange(length) > np.arange(row.start, length)[:, None]
            mask = self._mask(np.where(later, _HIDDEN, _SEEN))
        return Chunk(start, start + tokens, self._pages(row.blocks, length), mask)

    def _pages(self, blocks: array[int], length: int) -> Pages:
        """Of the first `length` tokens of a request."""
        size = self.store.block_size
        pages = -(-length // size)
        if in_one_piece(blocks, pages):
            return Pages(length, blocks[0] * size, None)
        return Pages(length, None, self._tensor(np.frombuffer(blocks, np.uint32)[:pages].astype(np.int64)))

    def _mask(self, mask: Any) -> Mask:
        return Mask(self._tensor(mask).to(self._dtype))

    def _tensor(self, values: Any) -> torch.Tensor:
        if not isinstance(values, np.ndarray):
            values = np.array(values, np.int64)
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def in_one_piece(blocks: array[int], pages: int) -> bool:
    """Whether the first `pages` blocks have consecutive ids. O(pages)."""
    if blocks[pages - 1] - blocks[0] != pages - 1:
        return False
    return pages < 3 or bool((np.diff(np.frombuffer(blocks, np.uint32)[:pages]) == 1).all())


def shared_runs(rows: Sequence[Row], block_size: int) -> list[tuple[list[int], int]]:
    """Rows that begin with the same blocks, all of them before any new token, and how many: what saves most pages.

    Of the rows in the order of their block ids, neighbours share most: no other runs of neighbours that save
    `SAVED_TOKENS` each save more. O(rows x (rows + pages x log rows)).
    """
    before = {i: row.blocks[: row.start // block_size] for i, row in enumerate(rows) if row.start >= block_size}
    order = sorted(before, key=before.__getitem__)
    common = [common_blocks(before[one], before[other]) for one, other in pairwise(order)]
    runs = []
    for first, last in _best_runs(common, -(-SAVED_TOKENS // block_size)):
        runs.append((order[first : last + 1], min(common[first:last])))
    return runs


def _best_runs(common: Sequence[int], worth: int) -> list[tuple[int, int]]:
    """First and last rows of the runs that save most, each `worth` pages or more, where neighbours share so many.

    O(rows^2).
    """
    best: list[tuple[int, tuple[int, int] | None]] = [(0, None)]  # up to each row: saved, and the run that ends there
    for last in range(1, len(common) + 1):
        saved, run = best[-1][0], None
        least = common[last - 1]
        for first in range(last - 1, -1, -1):
            least = min(least, common[first])
            if not least:
                break
            together = (last - first) * least
            before = best[first - 1][0] if first else 0
            if together >= worth and before + together > saved:
                saved, run = before + together, (first, last)
        best.append((saved, run))
    runs, last = [], len(common)
    while last > 0:
        run = best[last][1]
        if run:
            runs.append(run)
        last = run[0] - 1 if run else last - 1
    return runs[::-1]


def common_blocks(one: array[int], other: array[int]) -> int:
    """How many leading ids are the same. O(ids)."""
    least = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint32)[:least] != np.frombuffer(other, np.uint32)[:least]
    return int(differ.argmax()) if differ.any() else least
