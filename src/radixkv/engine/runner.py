"""The model runner: one forward pass over tokens of many requests, each with its own pages."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from radixkv.engine.attention import Chunk, DecodeGroup, PagedBatch
from radixkv.engine.kv_store import KVStore

VIEW_TOKENS: Final = 128
"""A decode row of at least as many tokens whose blocks lie in one piece is attended to by itself: a call of its own
costs less than gathering its pages."""


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
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row]) -> torch.Tensor:
        """Write K and V of all tokens of the rows; give the logits of those that want them.

        Args:
            rows: one or more, of different requests.

        Returns:
            `[wanting rows, vocabulary]`, in the order of `rows`, float32, on the model's device.
        """
        order = sorted(range(len(rows)), key=lambda i: self._kind(rows[i]))
        ordered = [rows[i] for i in order]
        ends = np.cumsum([len(row.tokens) for row in ordered])
        tokens, positions, slots = self._flatten(ordered)
        batch = PagedBatch(self.store, slots, *self._spans(ordered, ends))
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
        start = 0
        while start < len(rows) and self._kind(rows[start])[0] == 0:
            pages = self._kind(rows[start])[1]
            stop = start + 1
            while stop < len(rows) and self._kind(rows[stop]) <= (0, 2 * pages + 8):
                stop += 1
            groups.append(self._group(rows[start:stop], start))
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
        size, tokens = self.store.block_size, len(row.tokens)
        length = row.start + tokens
        pages = -(-length // size)
        first_slot, blocks, mask = None, None, None
        if in_one_piece(row.blocks, pages):
            first_slot = row.blocks[0] * size
        else:
            blocks = self._tensor(np.frombuffer(row.blocks, np.uint32)[:pages].astype(np.int64))
        if tokens > 1 and row.start:
            later = np.arange(length) > np.arange(row.start, length)[:, None]
            mask = self._mask(np.where(later, -np.inf, 0.0).astype(np.float32))
        return Chunk(end - tokens, end, length, first_slot, blocks, mask)

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
