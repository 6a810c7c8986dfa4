"""The model runner: one forward pass over tokens of many requests, each with its own pages."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from radixkv.engine.attention import Chunk, DecodeGroup, PagedBatch, Pages, Run, merges
from radixkv.engine.kv_store import KVStore

VIEW_TOKENS: Final = 128
"""A decode row of at least as many tokens whose blocks lie in one piece is attended to by itself: a call of its own
costs less than gathering its pages."""

SAVED_TOKENS: Final = 512
"""Rows attend to the pages that they share together if that reads so many tokens' K and V less: below, merging costs
more than it saves."""


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
        order = [i for indices, _ in plan for i in indices]
        ordered = [rows[i] for i in order]
        ends = np.cumsum([len(row.tokens) for row in ordered])
        tokens, positions, slots = self._flatten(ordered)
        batch = PagedBatch(self.store, slots, self._runs(rows, plan))
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

    def _plan(self, rows: Sequence[Row]) -> list[tuple[list[int], int]]:
        """In which order rows are computed: runs of them, each with the number of pages that it attends to together."""
        shared = shared_runs(rows, self.store.block_size) if self._merges and len(rows) > 1 else []
        rest = set(range(len(rows))).difference(*(indices for indices, _ in shared))
        runs = [*shared, (sorted(rest), 0)] if rest else shared
        return [
            (sorted(indices, key=lambda i: self._kind(self._behind(rows[i], pages))), pages) for indices, pages in runs
        ]

    def _behind(self, row: Row, pages: int) -> Row:
        """The row as it is to what it attends to apart: behind its first pages."""
        return (
            row._replace(start=row.start - pages * self.store.block_size, blocks=row.blocks[pages:]) if pages else row
        )

    def _runs(self, rows: Sequence[Row], plan: Sequence[tuple[list[int], int]]) -> tuple[Run, ...]:
        runs, start = [], 0
        for indices, pages in plan:
            own = [self._behind(rows[i], pages) for i in indices]
            ends = start + np.cumsum([len(row.tokens) for row in own])
            prefix = self._pages(rows[indices[0]].blocks, pages * self.store.block_size) if pages else None
            runs.append(Run(start, int(ends[-1]), prefix, *self._spans(own, ends)))
            start = int(ends[-1])
        return tuple(runs)

    def _kind(self, row: Row) -> tuple[int, int]:
        """Where a row goes: grouped decode rows by their length, then those with a view of their own, then chunks."""
        if len(row.tokens) > 1:
            return (2, 0)
        pages = row.start // self.store.block_size + 1
        return (1, 0) if row.start >= VIEW_TOKENS and in_one_piece(row.blocks, pages) else (0, pages)

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

    def _spans(self, rows: Sequence[Row], ends: Any) -> tuple[tuple[DecodeGroup, ...], tuple[Chunk, ...]]:
        groups: list[DecodeGroup] = []
        chunks: list[Chunk] = []
        first, start = int(ends[0]) - len(rows[0].tokens), 0
        while start < len(rows) and self._kind(rows[start])[0] == 0:
            pages = self._kind(rows[start])[1]
            stop = start + 1
            while stop < len(rows) and self._kind(rows[stop]) <= (0, 2 * pages + 8):
                stop += 1
            groups.append(self._group(rows[start:stop], first + start))
            start = stop
        for row, end in zip(rows[start:], ends[start:].tolist(), strict=True):
            chunks.append(self._chunk(row, end))
        return tuple(groups), tuple(chunks)

    def _group(self, rows: Sequence[Row], start: int) -> DecodeGroup:
        size = self.store.block_size
        lengths = np.array([row.start + 1 for row in rows])
        pages = -(-int(lengths.max()) // size)
        blocks = np.empty((len(rows), pages), np.int64)
        for i, row in enumerate(rows):
            own = -(-int(lengths[i]) // size)
            blocks[i, :own] = np.frombuffer(row.blocks, np.uint32)[:own]
            blocks[i, own:] = row.blocks[0]
        beyond = np.arange(pages * size) >= lengths[:, None]
        mask = np.where(beyond, -np.inf, 0.0).astype(np.float32)[:, None, None, :]
        return DecodeGroup(start, start + len(rows), self._tensor(blocks.reshape(-1)), self._mask(mask))

    def _chunk(self, row: Row, end: int) -> Chunk:
        tokens = len(row.tokens)
        length, mask = row.start + tokens, None
        if tokens > 1 and row.start:
            later = np.arange(length) > np.arange(row.start, length)[:, None]
            mask = self._mask(np.where(later, -np.inf, 0.0).astype(np.float32))
        return Chunk(end - tokens, end, self._pages(row.blocks, length), mask)

    def _pages(self, blocks: array[int], length: int) -> Pages:
        """Of the first `length` tokens of a request."""
        size = self.store.block_size
        pages = -(-length // size)
        if in_one_piece(blocks, pages):
            return Pages(length, blocks[0] * size, None)
        return Pages(length, None, self._tensor(np.frombuffer(blocks, np.uint32)[:pages].astype(np.int64)))

    def _mask(self, mask: Any) -> torch.Tensor:
        return self._tensor(mask).to(self._dtype)

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

    Of the rows in the order of their block ids, neighbours share most. All of them go together, or those before and
    those behind the two that share least, whichever saves more; only runs that save `SAVED_TOKENS` are worth it.
    O(rows x (pages + log rows)), rows squared at worst.
    """
    before = {i: row.blocks[: row.start // block_size] for i, row in enumerate(rows) if row.start >= block_size}
    order = sorted(before, key=before.__getitem__)
    common = [common_blocks(before[one], before[other]) for one, other in pairwise(order)]

    def best(first: int, last: int) -> tuple[int, list[tuple[int, int]]]:
        """Of the rows `order[first:last + 1]`: the pages saved, and the runs."""
        if first == last:
            return 0, []
        least = min(range(first, last), key=common.__getitem__)
        together = (last - first) * common[least]
        (left, left_runs), (right, right_runs) = best(first, least), best(least + 1, last)
        if together >= left + right:
            return together, [(first, last)]
        return left + right, left_runs + right_runs

    runs = []
    for first, last in best(0, len(order) - 1)[1] if order else ():
        pages = min(common[first:last])
        if (last - first) * pages * block_size >= SAVED_TOKENS:
            runs.append((order[first : last + 1], pages))
    return runs


def common_blocks(one: array[int], other: array[int]) -> int:
    """How many leading ids are the same. O(ids)."""
    least = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint32)[:least] != np.frombuffer(other, np.uint32)[:least]
    return int(differ.argmax()) if differ.any() else least
