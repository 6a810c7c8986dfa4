"""The model runner: one forward pass over tokens of many requests, each with its own pages."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from radixkv.engine.attention import FEW_TOKENS, Chunk, Group, Mask, PagedBatch, Pages, Prefixes, merges
from radixkv.engine.kv_store import KVStore

VIEW_TOKENS: Final = 128
"""A row behind at least as many tokens whose blocks lie in one piece is attended to by itself: a call of its own costs
less than gathering its pages."""

SAVED_TOKENS: Final = 1536
"""Rows attend to the pages that they share together if that reads so many tokens' K and V less, over all prefixes:
below, one more call and the merging cost more than it saves."""
MERGED_TOKENS: Final = 8
"""Merging the results of one token costs as much as reading so many tokens' K and V."""
PREFIX_TOKENS: Final = 256
"""What a prefix is to save besides: it is one more to pad."""

PADDED_TOKENS: Final = 128
"""What padding may add to a row, whatever it has: less than another call costs."""

PACKED_PAIRS: Final = 1536
"""What one more problem costs the kernel, in pairs of a token and one that it could attend to."""

_HIDDEN, _SEEN = np.float32(-np.inf), np.float32(0)


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
    def forward(self, rows: Sequence[Row], *, pack: bool = True) -> torch.Tensor:
        """Write K and V of all tokens of the rows; give the logits of those that want them.

        Args:
            rows: one or more, of different requests.
            pack: attend to small rows several as one problem. That is faster, but a mask hides no NaN or infinity:
                those of one row may become those of others that share no page with it.

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
        shared = shared_runs(rows, self.store.block_size) if self._merges and len(rows) > 1 else []
        own = list(rows)
        for indices, pages in shared:
            for i in indices:
                own[i] = self._behind(rows[i], pages)
        sharing = {i for indices, _ in shared for i in indices}
        kinds = [self._kind(row) for row in own]
        order = sorted(range(len(rows)), key=lambda i: (i not in sharing, kinds[i]))
        ordered = [rows[i] for i in order]
        ends = dict(zip(order, accumulate(len(row.tokens) for row in ordered), strict=True))
        border = max((ends[i] for i in sharing), default=0)  # between those that share pages and the others
        spans = self._spans([(own[i], kinds[i]) for i in order[: len(sharing)]], 0, pack=pack)
        spans += self._spans([(own[i], kinds[i]) for i in order[len(sharing) :]], border, pack=pack)
        tokens, positions, slots = self._flatten(ordered)
        prefixes, place = self._prefixes(rows, shared, ends)
        batch = PagedBatch(self.store, len(rows), slots, self._begun(ordered), tuple(spans), border, prefixes, place)
        wanted = self._tensor([ends[i] - 1 for i, row in enumerate(rows) if row.wants_logits])
        return tokens, positions, wanted, batch

    def _behind(self, row: Row, pages: int) -> Row:
        """The row as it is to what it attends to apart: behind its first pages."""
        return row._replace(start=row.start - pages * self.store.block_size, blocks=row.blocks[pages:])

    def _kind(self, row: Row) -> tuple[int, int, int]:
        """Where a row goes: in groups by tokens and pages, then those that are attended to by themselves."""
        tokens = len(row.tokens)
        pages = -(-(row.start + tokens) // self.store.block_size)
        if tokens > FEW_TOKENS or (row.start >= VIEW_TOKENS and in_one_piece(filled([row.blocks], [pages])[0])):
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

    def _spans(
        self, rows: Sequence[tuple[Row, tuple[int, int, int]]], start: int, *, pack: bool
    ) -> list[Group | Chunk]:
        """What rows in the order of their kinds are attended to with."""
        spans: list[Group | Chunk] = []
        few = [(tokens, pages * self.store.block_size) for _, (alone, tokens, pages) in rows if not alone]
        packs = list(packed(few)) if pack else list(pairwise(range(len(few) + 1)))
        sizes = [size_of(few[first:stop]) for first, stop in packs]
        for first, stop in padded(sizes):
            group = [[row for row, _ in rows[begin:end]] for begin, end in packs[first:stop]]
            spans.append(self._group(group, start))
            start = spans[-1].stop
        for row, _ in rows[len(few) :]:
            spans.append(self._chunk(row, start))
            start = spans[-1].stop
        return spans

    def _prefixes(
        self, rows: Sequence[Row], shared: Sequence[tuple[list[int], int]], ends: Mapping[int, int]
    ) -> tuple[tuple[Prefixes, ...], torch.Tensor]:
        """What rows attend to together, and where each one's tokens are in that: in the order of the batch."""
        size = self.store.block_size
        counted = [(sum(len(rows[i].tokens) for i in indices), pages, indices) for indices, pages in shared]
        counted.sort(key=lambda each: each[:2])
        prefixes: list[Prefixes] = []
        places: dict[int, int] = {}
        spread_before = 0
        for first, stop in padded([(tokens, pages * size) for tokens, pages, _ in counted]):
            some = counted[first:stop]
            width, longest = some[-1][0], max(pages for _, pages, _ in some)
            spread = np.empty((len(some), width), np.int64)
            blocks = filled([rows[indices[0]].blocks for _, _, indices in some], [pages for _, pages, _ in some])
            for number, (tokens, _, indices) in enumerate(some):
                places_of = np.concatenate([np.arange(ends[i] - len(rows[i].tokens), ends[i]) for i in indices])
                spread[number, :tokens] = places_of
                spread[number, tokens:] = places_of[-1]
                begun = spread_before + number * width
                places.update(zip(places_of.tolist(), range(begun, begun + tokens), strict=True))
            spread_before += spread.size
            lengths = np.array([pages * size for _, pages, _ in some])
            mask = None
            if int(lengths.min()) < longest * size:
                hidden = np.arange(longest * size) >= lengths[:, None]
                mask = self._mask(np.where(hidden, _HIDDEN, _SEEN)[:, None, None])
            prefixes.append(Prefixes(self._gathered(blocks, longest * size), mask, self._tensor(spread.reshape(-1))))
        return tuple(prefixes), self._tensor([places[i] for i in range(len(places))])

    def _group(self, packs: Sequence[Sequence[Row]], start: int) -> Group:
        size = self.store.block_size
        counts = np.array([sum(len(row.tokens) for row in pack) for pack in packs])
        tokens = np.arange(counts.max())
        # of each pack's tokens, the first place among its pages that it sees, and the last, its own
        firsts, lasts = np.empty((2, len(packs), len(tokens)), np.int64)
        blocks = []
        for pack, first, last in zip(packs, firsts, lasts, strict=True):
            ids, taken = array("I"), 0
            for row in pack:
                begin, end = len(ids) * size, row.start + len(row.tokens)
                first[taken:] = begin
                last[taken:] = begin + end - 1  # what fills the pack up sees what the last token sees
                last[taken : taken + len(row.tokens)] = np.arange(begin + row.start, begin + end)
                taken += len(row.tokens)
                ids += row.blocks[: -(-end // size)]
            blocks.append(ids)
        pages = filled(blocks, [len(ids) for ids in blocks])
        length = pages.shape[1] * size
        places = np.arange(length)
        hidden = (places < firsts[:, :, None]) | (places > lasts[:, :, None])
        mask = np.where(hidden, _HIDDEN, _SEEN)[:, None]
        spread, real = None, None
        if len(tokens) > 1:
            befores = counts.cumsum() - counts
            spread = self._tensor((befores[:, None] + np.minimum(tokens, counts[:, None] - 1)).reshape(-1))
            real = self._tensor(np.flatnonzero(tokens < counts[:, None]))
        stop = start + int(counts.sum())
        return Group(start, stop, self._gathered(pages, length), self._mask(mask), spread, real)

    def _chunk(self, row: Row, start: int) -> Chunk:
        tokens = len(row.tokens)
        length, mask = row.start + tokens, None
        if tokens > 1 and row.start:
            later = np.arange(length) > np.arange(row.start, length)[:, None]
            mask = self._mask(np.where(later, _HIDDEN, _SEEN))
        return Chunk(start, start + tokens, self._pages(row.blocks, length), mask)

    def _pages(self, blocks: array[int], length: int) -> Pages:
        """Of the first `length` tokens of a request."""
        pages = -(-length // self.store.block_size)
        return self._gathered(filled([blocks], [pages]), length)

    def _gathered(self, blocks: Any, length: int) -> Pages:
        """Of the first `length` tokens of requests with these blocks, `[requests, pages]`."""
        if len(blocks) == 1 and in_one_piece(blocks[0]):
            return Pages(length, int(blocks[0, 0]) * self.store.block_size, None)
        return Pages(length, None, self._tensor(blocks))

    def _mask(self, mask: Any) -> Mask:
        return Mask(self._tensor(mask).to(self._dtype))

    def _tensor(self, values: Any) -> torch.Tensor:
        if not isinstance(values, np.ndarray):
            values = np.array(values, np.int64)
        return torch.from_numpy(values).to(self._device, non_blocking=True)


def filled(blocks: Sequence[array[int]], pages: Sequence[int]) -> Any:
    """The first so many ids of each, filled up with its first to the most, `[requests, pages]`, int64."""
    ids = np.empty((len(blocks), max(pages)), np.int64)
    for row, own, count in zip(ids, blocks, pages, strict=True):
        row[:count] = np.frombuffer(own, np.uint32)[:count]
        row[count:] = own[0]
    return ids


def in_one_piece(blocks: Any) -> bool:
    """Whether these blocks, one or more, have consecutive ids. O(blocks)."""
    if int(blocks[-1]) - int(blocks[0]) != len(blocks) - 1:
        return False
    return len(blocks) < 3 or bool((np.diff(blocks) == 1).all())


def size_of(pack: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Tokens and length of all of it."""
    return sum(tokens for tokens, _ in pack), sum(length for _, length in pack)


def packed(sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First and last but one of those that are packed together, of so many tokens and so long each.

    As many as lower what one costs: the pack's tokens times its length, and `PACKED_PAIRS` for being one.
    """
    first = 0
    while first < len(sizes):
        stop, tokens, length, cost = first, 0, 0, 0
        while stop < len(sizes):
            tokens, length = tokens + sizes[stop][0], length + sizes[stop][1]
            more, count = PACKED_PAIRS + tokens * length, stop - first
            if count and more * count >= cost * (count + 1):
                break
            stop, cost = stop + 1, more
        yield first, stop
        first = stop


def padded(sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First and last but one of those that are computed together, of so many tokens and so long each.

    As many as there are as long as padding at most doubles what they compute, and `PADDED_TOKENS` more for each.
    """
    first = 0
    while first < len(sizes):
        stop, area, widest, longest = first, 0, 0, 0
        while stop < len(sizes):
            tokens, length = sizes[stop]
            more, wide, long = area + tokens * length, max(widest, tokens), max(longest, length)
            count = stop + 1 - first
            if count * wide * long > 2 * more + PADDED_TOKENS * count:
                break
            stop, area, widest, longest = stop + 1, more, wide, long
        yield first, stop
        first = stop


def shared_runs(rows: Sequence[Row], block_size: int) -> list[tuple[list[int], int]]:
    """Rows that begin with the same blocks, all of them before their own new tokens, and how many: what saves most.

    Of the rows in the order of their block ids, neighbours share most: no other runs of neighbours that save
    `PREFIX_TOKENS` each save more. No runs if all together save less than `SAVED_TOKENS`. O(rows x (rows + pages x log
    rows)).
    """
    before = {i: row.blocks[: row.start // block_size] for i, row in enumerate(rows) if row.start >= block_size}
    order = sorted(before, key=before.__getitem__)
    common = [common_blocks(before[one], before[other]) * block_size for one, other in pairwise(order)]
    costs = [len(rows[i].tokens) * MERGED_TOKENS for i in order]
    runs = _best_runs(common, costs, PREFIX_TOKENS)
    saved = sum((last - first) * min(common[first:last]) - sum(costs[first : last + 1]) for first, last in runs)
    if saved < SAVED_TOKENS:
        return []
    return [(order[first : last + 1], min(common[first:last]) // block_size) for first, last in runs]


def _best_runs(common: Sequence[int], costs: Sequence[int], worth: int) -> list[tuple[int, int]]:
    """First and last rows of the runs that save most, each `worth` tokens or more.

    Rows next to each other share `common` tokens; of a run's, all but one are spared what all of it share, and each
    costs its `costs`. O(rows^2).
    """
    count = len(costs)
    shares, spent = np.array(common, np.int64), np.concatenate([[0], np.cumsum(costs, dtype=np.int64)])
    saved = np.zeros(count + 1, np.int64)  # at most, by runs of the rows before each; the last, of all
    ending: list[tuple[int, int] | None] = [None] * count  # the run that ends there, if one does
    for last in range(1, count):
        saved[last + 1] = saved[last]
        # for each first row, from the last but one back to row 0
        least = np.minimum.accumulate(shares[last - 1 :: -1])
        together = np.arange(1, last + 1) * least - (spent[last + 1] - spent[last - 1 :: -1])
        in_all = np.where(together >= worth, saved[last - 1 :: -1] + together, 0)
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


def common_blocks(one: array[int], other: array[int]) -> int:
    """How many leading ids are the same. O(ids)."""
    least = min(len(one), len(other))
    differ = np.frombuffer(one, np.uint32)[:least] != np.frombuffer(other, np.uint32)[:least]
    return int(differ.argmax()) if differ.any() else least
