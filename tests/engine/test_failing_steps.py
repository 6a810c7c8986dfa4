"""What a step did not compute, or computed wrong, is read by nobody: blocks are the cache's before it computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixkv import InvariantError
from radixkv.engine import LoadedModel
from radixkv.engine.attention import PagedBatch
from radixkv.engine.request import Request
from radixkv.engine.runner import ModelRunner
from tests.engine.harness import Harness, Run
from tests.engine.reference import Reference
from tests.tiny import tiny_loaded, tiny_model

SHARED = list(range(40))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Failures are logged; here they are meant."""
    caplog.set_level("CRITICAL", "radixkv")


def drain(harness: Harness) -> None:
    """Step until nobody is left, failed steps or not."""
    while harness.steps.busy:
        harness.steps.step()


def sound(run: Run) -> bool:
    """Whether its logits are those of a plain forward pass."""
    expected = Reference(tiny_model()).logits(run.prompt, run.tokens)
    return bool(run.last.finish_reason == "length" and torch.allclose(torch.stack(run.logits), expected, atol=1e-4))


@pytest.mark.parametrize("cache", ["none", "radix"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_requests_numbers_harm_no_stranger(value: float, cache: str) -> None:
    """Small requests are attended to several as one problem, whose mask hides no NaN; they all are small here."""
    loaded = tiny_loaded()
    loaded.model.get_input_embeddings().weight[13] = value
    harness = Harness(loaded, 256, prefix_cache=cache)
    running = [harness.add([100 + i] * 3, max_tokens=6, ignore_eos=True) for i in range(2)]
    harness.steps.step()
    bad = harness.add([13, 5, 6], max_tokens=3, ignore_eos=True)
    others = [harness.add([i + 20, 12, 7], max_tokens=3, ignore_eos=True) for i in range(8)]
    drain(harness)

    assert "error" == bad.last.finish_reason
    assert all(sound(run) for run in (*running, *others))


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_prompt_half_done_keeps_nothing_that_is_wrong(monkeypatch: pytest.MonkeyPatch, cancelled: bool) -> None:
    """It shares a prefix with a request of the step whose numbers are none, and has no logits to tell of it yet."""
    attend = PagedBatch.attend
    spoil = [True]

    def spoiled(self: PagedBatch, layer: int, query: Any, key: Any, value: Any, scaling: Any) -> Any:
        if spoil and layer == 0 and key.shape[1] > 20:
            key = key.clone()
            key[:, 5] = float("nan")
        return attend(self, layer, query, key, value, scaling)

    monkeypatch.setattr(PagedBatch, "attend", spoiled)
    harness = Harness(tiny_loaded(), 256, block_size=4, token_budget=44)
    bad = harness.add([*SHARED, 1], max_tokens=4, ignore_eos=True)
    half = harness.add([*SHARED, *range(60, 120)], max_tokens=4, ignore_eos=True)
    harness.steps.step()
    spoil.clear()
    if cancelled:
        harness.steps.end(half.request, "cancelled")
    later = harness.add([*SHARED, 200], max_tokens=1, ignore_eos=True)
    drain(harness)

    assert "error" == bad.last.finish_reason
    assert sound(later)
    assert cancelled or sound(half)


def test_whoever_was_admitted_ends_with_the_step(monkeypatch: pytest.MonkeyPatch, tiny: LoadedModel) -> None:
    """Its plan failed between an admission and what was to be computed for it."""
    pending = Request.pending_token
    fails = [True]

    def fail(self: Request) -> Any:
        if fails and self.table is not None and self.table.matched_tokens:
            fails.clear()
            raise MemoryError("no room")
        return pending.fget(self)  # type: ignore[attr-defined]

    monkeypatch.setattr(Request, "pending_token", property(fail))
    harness = Harness(tiny, 256, block_size=4)
    both = [harness.add([*SHARED, i], max_tokens=2, ignore_eos=True) for i in range(2)]
    harness.steps.step()
    later = harness.add([*SHARED, 3], max_tokens=1, ignore_eos=True)
    drain(harness)

    assert ["error", "error"] == [run.last.finish_reason for run in both]
    assert (0, True) == (later.request.cached_tokens, sound(later))


def test_blocks_that_cannot_be_given_up_end_the_engine(monkeypatch: pytest.MonkeyPatch, tiny: LoadedModel) -> None:
    """A step failed, and so did the end of one of its requests: the lock on what was not computed is lost."""
    harness = Harness(tiny, 256, block_size=4)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("unlucky")

    monkeypatch.setattr(ModelRunner, "forward", fail)
    monkeypatch.setattr(harness.manager, "finish", fail)
    harness.add([*SHARED, 1], max_tokens=2)

    with pytest.raises(InvariantError, match="10 cached blocks that it was to compute are locked still"):
        harness.steps.step()
