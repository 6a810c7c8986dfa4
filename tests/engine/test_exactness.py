"""The engine gives the tokens of a plain forward pass, however they are cached, batched, chunked or preempted.

Faults planted in the K/V bookkeeping are caught by these very checks: see the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from radixkv import RadixKVError
from radixkv.engine import LoadedModel, Request, grouping, runner
from radixkv.engine.attention import Merged, PagedBatch, Places
from radixkv.engine.grouping import Grouping, Row, group_rows
from radixkv.engine.runner import ModelRunner
from radixkv.engine.steps import Steps
from radixkv.manager import BlockManager, BlockTable
from radixkv.radix_cache import RadixCache
from tests.engine.harness import Harness, Run, prompts
from tests.engine.reference import Reference

PROMPTS = prompts(200)
CACHES = ("none", "hash", "radix")
SIZES = (1, 16)


def check(reference: Reference, runs: Iterable[Run]) -> None:
    """Every run is what the reference says."""
    for run in runs:
        assert run.last.finish_reason in {"stop", "length"}
        reference.check(run.prompt, run.tokens, torch.stack(run.logits))


def converse(
    harness: Harness, some: list[list[int]], *, alone: bool = False, checked: bool = True, longest: int = 8
) -> None:
    """Run prompts, one by one or together, each with 1 to `longest` outputs; then a second turn of every tenth."""
    for number, prompt in enumerate(some):
        harness.add(prompt, max_tokens=1 + number % longest)
        if alone:
            harness.drain(check=checked and number % 20 == 0)
    harness.drain(check=checked)
    for run in [*harness.runs.values()][::10]:
        harness.add([*run.prompt, *run.tokens, 65, 66, 67])
    harness.drain(check=checked)


@pytest.mark.parametrize("block_size", SIZES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "batched"])
def test_cached_or_not(tiny: LoadedModel, reference: Reference, cache: str, block_size: int, alone: bool) -> None:
    """With and without a cache, one by one and all at once."""
    harness = Harness(tiny, 8_192 // block_size, prefix_cache=cache, block_size=block_size)
    converse(harness, PROMPTS, alone=alone)

    check(reference, harness.runs.values())
    assert (harness.manager.stats.prefix.hit_tokens > 1_000) == (cache != "none")
    assert 0 == harness.manager.stats.preempted


@pytest.mark.parametrize("block_size", SIZES)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("budget", [1, 7])
def test_chunked(tiny: LoadedModel, reference: Reference, cache: str, block_size: int, budget: int) -> None:
    """Prompts cut into chunks, beside decoding requests, down to one token a step."""
    harness = Harness(
        tiny,
        8_192 // block_size,
        prefix_cache=cache,
        block_size=block_size,
        token_budget=budget,
        max_running=min(budget, 4),
    )
    converse(harness, PROMPTS if budget > 1 else PROMPTS[:12])

    check(reference, harness.runs.values())


@pytest.mark.parametrize("block_size", SIZES)
@pytest.mark.parametrize("cache", CACHES)
def test_preempted_and_resumed(tiny: LoadedModel, reference: Reference, cache: str, block_size: int) -> None:
    """A pool so small that running requests lose their blocks, and everything cached is evicted soon."""
    harness = Harness(
        tiny, 144 // block_size, prefix_cache=cache, block_size=block_size, max_running=8, token_budget=24
    )
    converse(harness, PROMPTS, longest=24)
    stats = harness.manager.stats

    check(reference, harness.runs.values())
    assert stats.preempted >= 5
    assert stats.preempted == stats.resumed
    assert (stats.prefix.evicted_blocks > 10) == (cache != "none")


@pytest.mark.parametrize("block_size", SIZES)
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_identical_prompts_at_once(tiny: LoadedModel, reference: Reference, cache: str, block_size: int) -> None:
    """Requests that compute the same in one batch: all but one give their blocks back, and read the cache's."""
    harness = Harness(tiny, 4_096 // block_size, prefix_cache=cache, block_size=block_size)
    for _ in range(6):
        harness.add(PROMPTS[1] + PROMPTS[2], max_tokens=24)
    harness.drain()

    check(reference, harness.runs.values())


def share_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows attend together to whatever they share, however little it saves."""
    for name in ("PROBLEM_PAIRS", "CALL_PAIRS", "TOKEN_PAIRS", "MERGED_PAIRS"):
        monkeypatch.setattr(grouping, name, 0)
    monkeypatch.setattr(grouping, "PACKED_ROWS", 1)


@pytest.mark.parametrize("block_size", SIZES)
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_shared_pages_are_attended_to_together(
    tiny: LoadedModel, reference: Reference, monkeypatch: pytest.MonkeyPatch, cache: str, block_size: int
) -> None:
    """Wherever two rows of a step begin with the same page, prompts and decoding ones, however little it saves."""
    share_always(monkeypatch)
    together: list[int] = []

    def watched(rows: Sequence[Row], size: int, **which: bool) -> Grouping:
        found = group_rows(rows, size, **which)
        together.extend(len(rows[i].tokens) for problem in found.merged for i in problem.rows)
        return found

    monkeypatch.setattr(runner, "group_rows", watched)
    harness = Harness(tiny, 8_192 // block_size, prefix_cache=cache, block_size=block_size, token_budget=96)
    converse(harness, PROMPTS)

    check(reference, harness.runs.values())
    assert together.count(1) > 20  # decoding
    assert len(together) - together.count(1) > 20


def test_namespaces_share_nothing(tiny: LoadedModel, reference: Reference) -> None:
    """The same prompt under another salt finds nothing cached, and gives the same."""
    harness = Harness(tiny, block_size=4)
    for namespace in (None, "a", "b", "a"):
        harness.add(range(40), namespace)
        harness.drain()

    check(reference, harness.runs.values())
    assert [0, 0, 0, 36] == [run.last.cached_tokens for run in harness.runs.values()]


def shifted_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of a row is written one slot too far."""
    flatten = ModelRunner._flatten

    def wrong(self: ModelRunner, rows: Any) -> Any:
        tokens, positions, slots = flatten(self, rows)
        ends = np.cumsum([len(row.tokens) for row in rows]) - 1
        slots[ends] = (slots[ends] + 1) % (self.store.num_blocks * self.store.block_size)
        return tokens, positions, slots

    monkeypatch.setattr(ModelRunner, "_flatten", wrong)


def shifted_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token of a row is computed for the position behind its own."""
    flatten = ModelRunner._flatten

    def wrong(self: ModelRunner, rows: Any) -> Any:
        tokens, positions, slots = flatten(self, rows)
        positions[np.cumsum([len(row.tokens) for row in rows]) - 1] += 1
        return tokens, positions, slots

    monkeypatch.setattr(ModelRunner, "_flatten", wrong)


def cached_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ends caches the token sampled last, too, whose K and V were never computed."""
    release = Steps._release

    def wrong(self: Steps, request: Request) -> None:
        table = request.table
        if table is not None and table.computed_tokens == table.num_tokens and self.manager.available_blocks:
            self.manager.grow(table, request.output_ids[-1:])
            table.computed_tokens += 1
        release(self, request)

    monkeypatch.setattr(Steps, "_release", wrong)


def early_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix that a running request reads is not protected: its blocks are evicted and handed out again."""

    def nothing(cache: RadixCache, node: object) -> None:
        pass

    monkeypatch.setattr(RadixCache, "lock", nothing)
    monkeypatch.setattr(RadixCache, "unlock", nothing)


def stale_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reads a request's blocks once, and not again when the cache exchanged them."""
    known: dict[int, array[int]] = {}
    forward = ModelRunner.forward

    def wrong(self: ModelRunner, rows: Any) -> Any:
        stale = []
        for row in rows:
            seen = known.setdefault(id(row.blocks), row.blocks[:])
            known[id(row.blocks)] = seen + row.blocks[len(seen) :]
            stale.append(row._replace(blocks=known[id(row.blocks)]))
        return forward(self, stale)

    monkeypatch.setattr(ModelRunner, "forward", wrong)


def freed_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A duplicate goes back to the pool while the table goes on reading it."""
    compute = BlockManager._cache_computed

    def wrong(self: BlockManager, table: BlockTable) -> None:
        before = table.blocks[:]
        compute(self, table)
        table.blocks = before[: table.cached_blocks] + table.blocks[table.cached_blocks :]

    monkeypatch.setattr(BlockManager, "_cache_computed", wrong)


def one_page_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that share pages are thought to share the next one, too."""
    common = grouping.common_blocks

    def wrong(one: array[int], other: array[int]) -> int:
        found = common(one, other)
        return min(found + 1, len(one), len(other)) if found else 0

    monkeypatch.setattr(grouping, "common_blocks", wrong)


def one_page_too_many_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where all that is shared is merged."""
    share_always(monkeypatch)
    one_page_too_many(monkeypatch)


def seen_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a packed row sees the one behind it."""
    hide = runner._hide

    def wrong(problem: Any, size: int, positions: Any, hidden: Any) -> None:
        hide(problem, size, [of_row + 1 for of_row in positions], hidden)

    monkeypatch.setattr(runner, "_hide", wrong)


def other_rows_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is given what the one before it attended to."""
    lay_out = ModelRunner._lay_out

    def wrong(self: ModelRunner, rows: Any, *, pack: bool) -> Any:
        *others, batch = lay_out(self, rows, pack=pack)
        places = batch.places
        rolled = Places(places.first.roll(1), places.width.roll(1), places.number.roll(1))
        return *others, replace(batch, places=rolled)

    monkeypatch.setattr(ModelRunner, "_lay_out", wrong)


def other_rows_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, of merged pages alone."""
    share_always(monkeypatch)
    merge = PagedBatch._merge

    def wrong(self: PagedBatch, merged: Merged, layer: int, rows: torch.Tensor, *others: Any) -> None:
        merge(self, merged, layer, rows.roll(1, 0), *others)

    monkeypatch.setattr(PagedBatch, "_merge", wrong)


FAULTS = (
    shifted_slot,
    shifted_position,
    cached_too_much,
    early_reuse,
    stale_table,
    freed_duplicate,
    one_page_too_many,
    one_page_too_many_merged,
    seen_too_early,
    other_rows_result,
    other_rows_prefix,
)


def wrong_runs(tiny: LoadedModel, reference: Reference) -> int:
    """How many runs the checks above find wrong, up to where a failed step ended them."""
    wrong = 0
    for block_size, eviction in product(SIZES, ("lru", "mru")):  # by mru what was just found goes first, if not locked
        config = {"block_size": block_size, "eviction": eviction, "max_running": 8, "token_budget": 32}
        harness = Harness(tiny, 288 // block_size, **config)
        with suppress(AssertionError, RadixKVError):  # a step failed, or the end of one that did
            for _ in range(3):
                harness.add(PROMPTS[1] + PROMPTS[2], max_tokens=24)
            converse(harness, PROMPTS, checked=False)
        for run in harness.runs.values():
            if run.logits:
                try:
                    reference.check(run.prompt, run.tokens, torch.stack(run.logits))
                except AssertionError:
                    wrong += 1
    return wrong


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught(
    tiny: LoadedModel, reference: Reference, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    """By wrong tokens or logits alone: without the invariants, and whatever else breaks."""
    fault(monkeypatch)

    assert wrong_runs(tiny, reference)


def test_without_a_fault_nothing_is_wrong(tiny: LoadedModel, reference: Reference) -> None:
    """What catches the faults has nothing to say otherwise."""
    assert not wrong_runs(tiny, reference)
