"""The model runner: one forward pass over tokens of many requests, each with its own pages."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch

from radixkv.engine.attention import Chunk, Group, Mask, Merged, PagedBatch, Pages, Places, merges
from radixkv.engine.grouping import Problem, Row, group_rows, pad_problems
from radixkv.engine.kv_store import KVStore

FEW_TOKENS: Final = 128
"""Rows of more tokens are attended to by themselves: the kernel leaves out what no token of such a row sees, which
saves more than a call costs."""

KERNEL_TOKENS: Final = 16
"""What problems attend to is filled up to a multiple of these, masked: over other lengths torch's kernel for the CPU
takes half as long again in bfloat16, and longer over odd ones in float32."""

_NEVER: Final = np.iinfo(np.int32).max
"""Position of what a row does not see."""


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
        self._multiple = KERNEL_TOKENS if self._device.type == "cpu" else 1
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row], *, pack: bool = True) -> torch.Tensor:
        """Write K and V of all tokens of the rows; give the logits of those that want them.

        Args:
            rows: one or more, of different requests.
            pack: attend to small rows several as one problem. That is faster, but a mask hides no NaN or infinity:
                those of one row may become those of others that share no page with it. Without, only pages that all
                tokens of some rows see are still read together.

        Returns:
            `[wanting rows, vocabulary]`, in the order of `rows`, float32, on the model's device.
        """
        tokens, positions, wanted, batch = self._lay_out(rows, pack=pack)
        arguments: dict[str, Any] = {"logits_to_keep": wanted} if self._selects else {}
        logits: torch.Tensor = self.model(
            input_ids=tokens.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            radixkv_batch=batch,
            **arguments,
        ).logits[0]
        return (logits if self._selects else logits.index_select(0, wanted)).float()

    def _lay_out(
        self, rows: Sequence[Row], *, pack: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, PagedBatch]:
        """Tokens, their positions, which of them have logits that are wanted, and what they attend to."""
        few = [i for i, row in enumerate(rows) if len(row.tokens) <= FEW_TOKENS]
        many = [i for i, row in enumerate(rows) if len(row.tokens) > FEW_TOKENS]
        some = [rows[i] for i in few]
        grouping = group_rows(some, self.store.block_size, merge=self._merges, pack=pack)
        grouped = [*dict.fromkeys(i for problem in (*grouping.merged, *grouping.own) for i in problem.rows)]
        order = [few[i] for i in grouped] + many
        ordered = [rows[i] for i in order]
        begins = np.zeros(len(rows), np.int64)
        begins[order] = [0, *accumulate(len(row.tokens) for row in ordered[:-1])]

        tokens, positions, slots = self._flatten(ordered)
        groups, places = self._groups(some, begins[few], positions, grouping.own)
        batch = PagedBatch(
            self.store,
            len(rows),
            self._tensor(slots),
            self._begun(ordered),
            groups,
            self._places(some, grouped, places),
            tuple(self._merged(some, int(begins[few[problem.rows[0]]]), problem) for problem in grouping.merged),
            tuple(self._chunk(rows[i], int(begins[i])) for i in many),
        )
        wanted = self._tensor([begins[i] + len(row.tokens) - 1 for i, row in enumerate(rows) if row.wants_logits])
        return self._tensor(tokens), self._tensor(positions), wanted, batch

    def _flatten(self, rows: Sequence[Row]) -> tuple[Any, Any, Any]:
        """Tokens, positions and slots, `[tokens]` each."""
        size = self.store.block_size
        counts = [len(row.tokens) for row in rows]
        tokens = np.concatenate([np.asarray(row.tokens, np.int64) for row in rows])
        positions = np.repeat([row.start for row in rows], counts) + _numbers(counts)
        pages = [_ids(row, row.start // size, -(-row.end // size)) for row in rows]
        firsts = np.cumsum([0, *map(len, pages[:-1])]) - [row.start // size for row in rows]
        slots = np.concatenate(pages)[np.repeat(firsts, counts) + positions // size] * size + positions % size
        return tokens, positions, slots

    def _begun(self, rows: Sequence[Row]) -> torch.Tensor:
        """Slots behind the last tokens of rows that begin a block: what its last owner left is read with the page."""
        size = self.store.block_size
        rests = []
        for row in rows:
            page = (row.end - 1) // size
            if row.start <= page * size:
                rests.append(row.blocks[page] * size + np.arange((row.end - 1) % size + 1, size))
        return self._tensor(np.concatenate(rests) if rests else np.empty(0, np.int64))

    def _groups(
        self, rows: Sequence[Row], begins: Any, positions: Any, problems: Sequence[Problem]
    ) -> tuple[tuple[Group, ...], Any]:
        """Groups of all problems, and what `Places` says of each row's first token, `[rows, 3]`.

        `begins` says where in the batch the rows' tokens begin, and `positions` is of the batch's tokens.
        """
        size = self.store.block_size
        blocks = [_blocks(rows, problem) for problem in problems]
        lengths = [self._filled(len(ids) * size) for ids in blocks]
        sizes = [
            (problem.tokens, length, 0 if length == len(ids) * size and in_one_piece(ids) else length)
            for problem, length, ids in zip(problems, lengths, blocks, strict=True)
        ]
        groups: list[Group] = []
        places = np.zeros((len(rows), 3), np.int64)
        first = 0
        for numbers in pad_problems(sizes):
            width, length = (max(sizes[number][which] for number in numbers) for which in (0, 1))
            tokens = np.empty((len(numbers), width), np.int64)
            hidden = np.ones((len(numbers), width, length), np.bool_)
            for at, number in enumerate(numbers):
                problem, taken, long = problems[number], problems[number].tokens, len(blocks[number]) * size
                counts = np.array([len(rows[i].tokens) for i in problem.rows])
                befores = np.cumsum(counts) - counts
                tokens[at, :taken] = np.repeat(begins[[*problem.rows]] - befores, counts) + np.arange(taken)
                seen = positions[tokens[at, :taken]]
                _hide(problem, size, np.split(seen, befores[1:]), np.split(hidden[at, :taken, :long], befores[1:]))
                tokens[at, taken:], hidden[at, taken:] = tokens[at, taken - 1], hidden[at, taken - 1]
                places[problem.rows, :2] = first, width
                places[problem.rows, 2] = befores
                first += width
            mask = Mask(self._mask(hidden[:, None])) if hidden.any() else None
            groups.append(Group(self._tensor(tokens), self._pages([blocks[i] for i in numbers], length), mask))
        return tuple(groups), places

    def _places(self, rows: Sequence[Row], order: Sequence[int], places: Any) -> Places:
        """Of all tokens of these rows."""
        counts = [len(rows[i].tokens) for i in order]
        first, width, number = np.repeat(places[order], counts, 0).T if order else np.zeros((3, 0), np.int64)
        return Places(self._tensor(first), self._tensor(width), self._tensor(number + _numbers(counts)))

    def _merged(self, rows: Sequence[Row], start: int, problem: Problem) -> Merged:
        ids = _blocks(rows, problem)
        long = len(ids) * self.store.block_size
        length = self._filled(long)
        mask = None if length == long else self._mask(np.arange(length)[None] >= long)
        return Merged(start, start + problem.tokens, self._pages([ids], length), mask)

    def _chunk(self, row: Row, start: int) -> Chunk:
        length = self._filled(row.end)
        mask = self._mask(np.arange(length) > np.arange(row.start, row.end)[:, None]) if row.start else None
        ids = _ids(row, 0, -(-row.end // self.store.block_size))
        return Chunk(start, start + len(row.tokens), self._pages([ids], length), mask)

    def _filled(self, tokens: int) -> int:
        """As many as the kernel attends to for these."""
        return -(-tokens // self._multiple) * self._multiple

    def _pages(self, blocks: Sequence[Any], length: int) -> Pages:
        """Of the first `length` tokens of each problem's blocks; where it has fewer, filled up with its first one."""
        size = self.store.block_size
        most = -(-length // size)
        filled = np.stack([np.append(ids, np.full(most - len(ids), ids[0])) for ids in blocks])
        if len(filled) == 1 and in_one_piece(filled[0]):
            return Pages(length, int(filled[0, 0]) * size, None)
        return Pages(length, None, self._tensor(filled))

    def _mask(self, hidden: Any) -> torch.Tensor:
        hides = self._tensor(hidden)
        return torch.zeros_like(hides, dtype=self._dtype).masked_fill_(hides, -torch.inf)

    def _tensor(self, values: Any) -> torch.Tensor:
        if not isinstance(values, np.ndarray):
            values = np.array(values, np.int64)
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device, non_blocking=True)


def _ids(row: Row, first: int, stop: int) -> Any:
    """Of these pages, int64."""
    return np.frombuffer(row.blocks, np.uint32)[first:stop].astype(np.int64)


def _numbers(counts: Sequence[int]) -> Any:
    """0, 1, ... of each, one after the other."""
    ends = np.cumsum(counts, dtype=np.int64)
    return np.arange(ends[-1] if counts else 0) - np.repeat(ends - counts, counts)


def _blocks(rows: Sequence[Row], problem: Problem) -> Any:
    """The ids of a problem's pages."""
    pages = zip(problem.rows, problem.common, problem.stops, strict=True)
    return np.concatenate([_ids(rows[i], common, stop) for i, common, stop in pages])


def _hide(problem: Problem, size: int, positions: Sequence[Any], hidden: Sequence[Any]) -> None:
    """Write which slots of a problem's pages each row's tokens at these positions do not see, `[tokens, slots]`."""
    held = np.full(problem.pages * size, _NEVER, np.int32)  # the position that each slot has to a row
    begun = 0
    for common, stop, of_row, hides in zip(problem.common, problem.stops, positions, hidden, strict=True):
        held[held >= common * size] = _NEVER  # the row before has these alone
        end = begun + (stop - common) * size
        held[begun:end] = np.arange(common * size, stop * size)
        np.greater(held, of_row[:, None], out=hides)
        begun = end


def in_one_piece(blocks: Any) -> bool:
    """Whether these blocks, one or more, have consecutive ids. O(blocks)."""
    if int(blocks[-1]) - int(blocks[0]) != len(blocks) - 1:
        return False
    return len(blocks) < 3 or bool((np.diff(blocks) == 1).all())
