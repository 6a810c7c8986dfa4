"""The engine in its thread: submit, cancel, call, fail, shut down; and what the step loop promises."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from radixkv import LockError, NamespaceError, SizeError, TokenError, UnknownNameError
from radixkv.engine import (
    Engine,
    EngineConfig,
    EngineStoppedError,
    LoadedModel,
    Output,
    ParameterError,
    PromptTooLongError,
    QueueFullError,
    Request,
    SamplingParams,
)
from radixkv.engine.kv_store import KVStore
from radixkv.engine.runner import ModelRunner
from radixkv.engine.steps import Steps
from tests.engine.harness import Harness, prompts
from tests.tiny import CONTEXT, VOCABULARY, tiny_loaded

GREEDY = SamplingParams(temperature=0, max_tokens=8)
SECONDS = 60


class Owner:
    """Collects a request's outputs and waits for the last."""

    def __init__(self) -> None:
        self.outputs: list[Output] = []
        self.done = threading.Event()

    def __call__(self, output: Output) -> None:
        self.outputs.append(output)
        if output.finish_reason is not None:
            self.done.set()

    def last(self) -> Output:
        assert self.done.wait(SECONDS)
        return self.outputs[-1]

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]


@pytest.fixture
def engine(tiny: LoadedModel) -> Iterator[Engine]:
    engine = Engine(tiny, EngineConfig(num_blocks=64, block_size=4, max_running=4, token_budget=32, max_waiting=8))
    engine.start()
    yield engine
    engine.shutdown()


def free_again(engine: Engine) -> bool:
    """No request holds a block, and every block is somewhere."""

    def look(manager: Any) -> bool:
        manager.check_invariants()
        return bool(manager.running == 0)

    return engine.call(look).result(SECONDS)


def test_a_second_turn_pays_for_its_new_words(engine: Engine) -> None:
    """What the first turn computed, its output too, is cached for the second."""
    first, second = Owner(), Owner()
    engine.submit(range(20), GREEDY, on_output=first)
    reply = first.last()
    engine.submit([*range(20), *first.tokens, 1, 2], GREEDY, on_output=second)

    assert (20, 0, 8, "length") == (
        reply.prompt_tokens,
        reply.cached_tokens,
        reply.output_tokens,
        reply.finish_reason,
    )
    assert 24 == second.last().cached_tokens
    timings = second.last().timings
    assert timings.admitted is not None
    assert timings.first_token is not None
    assert timings.finished is not None
    assert timings.submitted <= timings.admitted <= timings.first_token <= timings.finished
    snapshot = engine.snapshot()
    assert (0, 0) == (snapshot.running, snapshot.waiting)
    assert snapshot.used_blocks == snapshot.cached_blocks == snapshot.evictable_blocks > 0
    assert 0 == snapshot.locked_blocks
    assert 16 == snapshot.output_tokens
    assert snapshot.computed_tokens == 20 + 7 + (30 - 24) + 7
    assert free_again(engine)


def test_many_threads_at_once(engine: Engine) -> None:
    """Owners in many threads, half of whom go away midway: all end, and every block is back."""
    owners: list[Owner] = []
    alone: dict[int, list[int]] = {}
    for number in range(6):
        owner = Owner()
        engine.submit(prompts(6)[number] + [number], GREEDY, on_output=owner)
        owner.last()
        alone[number] = owner.tokens

    def work(number: int) -> None:
        for _ in range(5):
            owner = Owner()
            request = None
            while request is None:
                try:
                    request = engine.submit(prompts(6)[number] + [number], GREEDY, on_output=owner)
                except QueueFullError:
                    time.sleep(0.001)
            if number % 2:
                engine.cancel(request)
            owners.append(owner)
            if owner.last().finish_reason == "length":
                assert alone[number] == owner.tokens

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert 30 == len(owners)
    assert {owner.last().finish_reason for owner in owners} <= {"stop", "length", "cancelled"}
    assert free_again(engine)


def test_cancel_frees_at_once(engine: Engine) -> None:
    """A cancelled request's blocks are free before the next step; cancelling again, or too late, does nothing."""
    owner = Owner()
    request = engine.submit(range(50), SamplingParams(temperature=0, ignore_eos=True), on_output=owner)
    while not owner.outputs:
        time.sleep(0.001)
    engine.cancel(request)
    running = engine.call(lambda manager: manager.running).result(SECONDS)

    assert 0 == running
    assert "cancelled" == owner.last().finish_reason == request.finish_reason
    engine.cancel(request)
    assert free_again(engine)
    assert 1 == sum(output.finish_reason is not None for output in owner.outputs)


def test_cancel_while_waiting(tiny: LoadedModel) -> None:
    """One that was never admitted ends, too, and is not admitted."""
    engine = Engine(tiny, EngineConfig(num_blocks=64, max_running=1))
    engine.start()
    first, second = Owner(), Owner()
    running = engine.submit(range(9), SamplingParams(temperature=0, ignore_eos=True), on_output=first)
    while not first.outputs:
        time.sleep(0.001)
    waiting = engine.submit(range(9), GREEDY, on_output=second)
    engine.cancel(waiting)

    assert "cancelled" == second.last().finish_reason
    assert [] == second.tokens
    assert second.last().timings.admitted is None
    engine.cancel(running)
    first.last()
    engine.shutdown()


def test_what_submit_refuses(tiny: LoadedModel, engine: Engine) -> None:
    """Prompts that are empty, too long for the pool or the context, not tokens, or in no namespace."""
    with pytest.raises(PromptTooLongError) as caught:
        engine.submit([0] * 256, GREEDY, on_output=print)
    assert (256, 255) == (caught.value.tokens, caught.value.limit)
    small = Engine(tiny, EngineConfig(num_blocks=3, block_size=16))
    with pytest.raises(PromptTooLongError, match="the prompt has 49 tokens; at most 48 fit"):
        small.submit([0] * 49, GREEDY, on_output=print)
    with pytest.raises(TokenError):
        engine.submit([], GREEDY, on_output=print)
    with pytest.raises(TokenError) as wrong:
        engine.submit([1, VOCABULARY], GREEDY, on_output=print)
    assert (1, VOCABULARY) == (wrong.value.index, wrong.value.value)
    with pytest.raises(NamespaceError):
        engine.submit([1], GREEDY, namespace=3, on_output=print)  # type: ignore[arg-type]
    with pytest.raises(EngineStoppedError):
        small.submit([1], GREEDY, on_output=print)


def test_a_full_queue(tiny: LoadedModel) -> None:
    """No more than `max_waiting` wait, those that the thread has not seen yet included."""
    engine = Engine(tiny, EngineConfig(num_blocks=64, max_waiting=3))
    engine._accepting = True  # no thread: nobody is admitted
    for _ in range(3):
        engine.submit([1], GREEDY, on_output=print)

    with pytest.raises(QueueFullError) as caught:
        engine.submit([1], GREEDY, on_output=print)
    assert 3 == caught.value.limit


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"num_blocks": 0}, SizeError),
        ({"num_blocks": 4, "kv_memory": 4}, ParameterError),
        ({"kv_memory": 0}, SizeError),
        ({"kv_memory": 10}, ParameterError),
        ({"block_size": 0}, SizeError),
        ({"token_budget": 8, "max_running": 9}, ParameterError),
        ({"max_waiting": 0}, SizeError),
        ({"prefix_cache": "tree"}, UnknownNameError),
        ({"eviction": "lucky"}, UnknownNameError),
    ],
)
def test_wrong_configurations(tiny: LoadedModel, wrong: dict[str, Any], error: type[Exception]) -> None:
    """Each is refused before there is an engine."""
    with pytest.raises(error):
        Engine(tiny, EngineConfig(**wrong))


def test_the_pool_is_as_large_as_the_memory(tiny: LoadedModel) -> None:
    """Bytes of K and V, rounded down to whole blocks."""
    block = 2 * 2 * 16 * 2 * 8 * 4  # K and V, layers, tokens, heads, dim, bytes
    snapshot = Engine(tiny, EngineConfig(kv_memory=10 * block + 5)).snapshot()

    assert (10, 10 * block) == (snapshot.num_blocks, snapshot.kv_bytes)


def test_the_end_token_and_what_ignores_it(tiny: LoadedModel) -> None:
    """The model's end token and `stop_token_ids` end the output with "stop"; their text is not in it."""
    harness = Harness(tiny)
    plain = harness.add(range(12), max_tokens=20)
    harness.drain()
    third = plain.tokens[2]
    stopped = harness.add(range(12), max_tokens=20, stop_token_ids=(third,))
    other = Harness(_with_ends(tiny, frozenset({third})))
    ended = other.add(range(12), max_tokens=20)
    ignoring = other.add(range(12), max_tokens=20, ignore_eos=True)
    harness.drain()
    other.drain()

    first = plain.tokens.index(third) + 1
    for run in (stopped, ended):
        assert "stop" == run.last.finish_reason
        assert plain.tokens[:first] == run.tokens
        assert tiny.decode(plain.tokens[: first - 1]) == run.text
    assert plain.tokens == ignoring.tokens


def _with_ends(model: LoadedModel, ends: frozenset[int]) -> LoadedModel:
    return replace(model, eos_token_ids=ends)


def test_a_stop_string_across_tokens(tiny: LoadedModel) -> None:
    """It ends the output, which does not contain it; nothing of it was let out before."""
    harness = Harness(_with_ends(tiny, frozenset()))
    plain = harness.add(range(30, 60), max_tokens=30)
    harness.drain()
    stop = plain.text[3:6]
    stopped = harness.add(range(30, 60), max_tokens=30, stop=("never said", stop))
    harness.drain()

    assert "stop" == stopped.last.finish_reason
    assert plain.text[: plain.text.index(stop)] == stopped.text
    assert len(stopped.tokens) < len(plain.tokens)


def test_the_context_ends_the_output(tiny: LoadedModel) -> None:
    """Prompt and output together are never longer than the model's context."""
    harness = Harness(_with_ends(tiny, frozenset()), 64)
    run = harness.add([1] * (CONTEXT - 5), max_tokens=None)
    harness.drain()

    assert ("length", 5) == (run.last.finish_reason, len(run.tokens))


def test_the_whole_pool_ends_the_output(tiny: LoadedModel) -> None:
    """Alone and still short of blocks: there is nobody to preempt."""
    harness = Harness(_with_ends(tiny, frozenset()), 4, block_size=4)
    run = harness.add([1] * 14, max_tokens=100)
    harness.drain()

    assert ("length", 3) == (run.last.finish_reason, len(run.tokens))  # the last one needs no place


def test_a_resumed_request_without_a_place_for_its_last_token(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits but for the token that it had sampled last: it waits again, and nothing of its text is lost."""
    preempt, callers = Steps._preempt, list[str]()

    def spy(steps: Steps, request: Request) -> None:
        callers.append(sys._getframe(1).f_code.co_name)
        preempt(steps, request)

    monkeypatch.setattr(Steps, "_preempt", spy)
    texts: list[list[list[int]]] = []
    for blocks in (4, 64):
        harness = Harness(tiny, blocks, block_size=4)
        asked = zip((6, 8, 2, 1), (17, 10, 9, 8), strict=True)
        runs = [
            harness.add(range(7 * number, 7 * number + length), max_tokens=tokens, ignore_eos=True)
            for number, (length, tokens) in enumerate(asked)
        ]
        harness.drain()
        texts.append([run.tokens for run in runs])

    assert "_admit" in callers
    assert all(short == whole[: len(short)] for short, whole in zip(*texts, strict=True))
    assert texts[0][2:] == texts[1][2:]  # the first two are longer than the whole pool


def test_the_last_admitted_is_preempted_first(tiny: LoadedModel) -> None:
    """It loses its blocks, waits before all others, and goes on where it was."""
    harness = Harness(_with_ends(tiny, frozenset()), 10, block_size=4, prefix_cache="none")
    first = harness.add([1] * 12, max_tokens=12)
    second = harness.add([2] * 12, max_tokens=12)
    third = harness.add([3] * 30, max_tokens=1)
    harness.drain()

    assert 1 <= harness.manager.stats.preempted == harness.manager.stats.resumed
    ends = [run.last.timings.finished or 0 for run in (first, second, third)]
    assert sorted(ends) == ends
    assert [12, 12, 1] == [len(run.tokens) for run in (first, second, third)]


def test_decoding_goes_before_prompts(tiny: LoadedModel) -> None:
    """Every decoding request gets its token in every step, while a long prompt is computed in chunks beside it."""
    harness = Harness(_with_ends(tiny, frozenset()), token_budget=8, max_running=4)
    talking = harness.add([1, 2, 3], max_tokens=20)
    harness.steps.step()
    long = harness.add(list(range(50)), max_tokens=1)
    counts = []
    while not long.outputs:
        harness.steps.step()
        counts.append(len(talking.tokens))

    assert list(range(2, 2 + len(counts))) == counts
    assert 8 == len(counts)  # 50 tokens, 7 a step
    harness.drain()


def test_a_failing_step_ends_its_requests_only(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: Engine
) -> None:
    """They hear of it with "error", their blocks are back, and the engine serves the next one."""
    forward = ModelRunner.forward

    def failing(self: ModelRunner, rows: Any) -> Any:
        if any(13 in row.tokens for row in rows):
            raise RuntimeError("unlucky")
        return forward(self, rows)

    monkeypatch.setattr(ModelRunner, "forward", failing)
    caplog.set_level(logging.CRITICAL, "radixkv")
    bad, good = Owner(), Owner()
    engine.submit([5, 13], GREEDY, on_output=bad)
    last = bad.last()
    engine.submit([5, 12], SamplingParams(temperature=0, max_tokens=1), on_output=good)

    assert ("error", "RuntimeError: unlucky") == (last.finish_reason, last.error)
    assert "length" == good.last().finish_reason
    assert 1 == engine.snapshot().failed_steps
    assert free_again(engine)


def test_what_a_failed_step_was_to_compute_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: Engine
) -> None:
    """Its blocks were the cache's already, and other requests of the step were to read them; they all end."""
    forward = ModelRunner.forward
    failing = [True]

    def fail(self: ModelRunner, rows: Any) -> Any:
        forward(self, rows)
        if failing:
            raise RuntimeError("unlucky")
        return forward(self, rows)

    monkeypatch.setattr(ModelRunner, "forward", fail)
    caplog.set_level(logging.CRITICAL, "radixkv")
    owners = [Owner() for _ in range(4)]
    shared = list(range(20))

    def submit(some: list[Owner]) -> None:
        for place, owner in enumerate(some):
            engine.submit([*shared, place], SamplingParams(temperature=0, max_tokens=1), on_output=owner)

    engine.call(lambda _: submit(owners[:2])).result()
    assert ["error", "error"] == [owner.last().finish_reason for owner in owners[:2]]
    failing.clear()
    engine.call(lambda _: submit(owners[2:])).result()

    # the first one computes it anew, and the second one hits that
    assert [("length", 0), ("length", 20)] == [
        (owner.last().finish_reason, owner.last().cached_tokens) for owner in owners[2:]
    ]
    assert free_again(engine)


def test_what_is_shared_is_computed_once_and_in_one_step(tiny: LoadedModel) -> None:
    """Requests that come together read what one of them computes in the same step, and their tokens are the same."""
    shared, tokens = list(range(50, 82)), {}
    for cache in ("none", "radix", "hash"):
        engine = Engine(tiny, EngineConfig(num_blocks=256, block_size=4, prefix_cache=cache))
        owners = [Owner() for _ in range(6)]

        def submit(_: object, engine: Engine = engine, owners: list[Owner] = owners) -> None:
            for place, owner in enumerate(owners):
                params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
                engine.submit([*shared, *[place] * 3], params, on_output=owner)

        engine.start()
        try:
            engine.call(submit).result()
            hits = sorted(owner.last().cached_tokens for owner in owners)
            tokens[cache] = [owner.tokens for owner in owners]
            engine.call(lambda _: None).result()
            snapshot = engine.snapshot()
        finally:
            engine.shutdown()
        assert 4 == snapshot.steps
        if cache != "none":
            assert [0] + [32] * 5 == hits
            assert 32 + 6 * 3 + 6 * 3 == snapshot.computed_tokens

    assert tokens["none"] == tokens["radix"] == tokens["hash"]


def test_logits_that_are_no_numbers_end_their_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, engine: Engine
) -> None:
    """The others of the step go on; the step has not failed."""
    forward = ModelRunner.forward

    def spoiled(self: ModelRunner, rows: Any, **how: Any) -> Any:
        logits = forward(self, rows, **how).clone()
        for place, row in enumerate(row for row in rows if row.wants_logits):
            if 13 in row.tokens:
                logits[place, 7] = float("nan")
        return logits

    monkeypatch.setattr(ModelRunner, "forward", spoiled)
    caplog.set_level(logging.CRITICAL, "radixkv")
    bad, good = Owner(), Owner()

    def submit_both(_: object) -> None:
        engine.submit([5, 13], GREEDY, on_output=bad)
        engine.submit([5, 12], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), on_output=good)

    engine.call(submit_both).result()
    last = bad.last()

    assert ("error", "the model's logits are not finite numbers") == (last.finish_reason, last.error)
    assert ("length", 3) == (good.last().finish_reason, good.last().output_tokens)
    assert 0 == engine.snapshot().failed_steps
    assert free_again(engine)


@pytest.mark.parametrize("cache", ["none", "radix"])
def test_what_is_left_of_numbers_that_are_none_harms_nobody(cache: str, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks full of NaN are other requests' later, which read them by whole pages."""
    caplog.set_level(logging.CRITICAL, "radixkv")
    loaded = tiny_loaded()
    loaded.model.get_input_embeddings().weight[13] = float("nan")
    engine = Engine(loaded, EngineConfig(num_blocks=4, block_size=16, prefix_cache=cache))
    engine.start()
    try:
        bad = Owner()
        engine.submit([13] * 64, GREEDY, on_output=bad)
        assert "error" == bad.last().finish_reason
        for first in range(4):
            good = Owner()
            params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
            engine.submit([first, 12, 7], params, on_output=good)
            assert "length" == good.last().finish_reason
    finally:
        engine.shutdown()


def test_what_is_no_number_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tiny: LoadedModel
) -> None:
    """A step without one number has failed, and the same prompt is computed anew once the model is well again."""
    forward = ModelRunner.forward
    health = [float("nan"), float("nan"), 1.0]

    def spoiled(self: ModelRunner, rows: Any) -> Any:
        return forward(self, rows) * health.pop(0)

    monkeypatch.setattr(ModelRunner, "forward", spoiled)
    caplog.set_level(logging.CRITICAL, "radixkv")
    engine = Engine(tiny, EngineConfig(num_blocks=64, block_size=4))
    engine.start()
    try:
        seen = []
        for _ in range(3):
            owner = Owner()
            engine.submit(range(40), SamplingParams(temperature=0, max_tokens=1), on_output=owner)
            seen.append((owner.last().finish_reason, owner.last().cached_tokens))
        engine.call(lambda _: None).result()  # after the step
        snapshot = engine.snapshot()
    finally:
        engine.shutdown()

    assert [("error", 0), ("error", 0), ("length", 0)] == seen
    assert (2, 0) == (snapshot.failed_steps, snapshot.failing_steps)


def test_more_memory_than_there_is(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken without a word, and the process be killed when the pool fills."""
    block = KVStore.block_bytes(tiny.layers, 16, tiny.dtype)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": block}.__getitem__)

    Engine(tiny, EngineConfig(num_blocks=10))
    with pytest.raises(ParameterError, match=f"num_blocks must be within the machine's {10 * block} bytes of memory"):
        Engine(tiny, EngineConfig(num_blocks=11))
    with pytest.raises(ParameterError, match="kv_memory must be within"):
        Engine(tiny, EngineConfig(kv_memory=11 * block))
    monkeypatch.delattr(os, "sysconf")
    Engine(tiny, EngineConfig(num_blocks=11))


def test_an_owner_that_fails_is_cancelled(caplog: pytest.LogCaptureFixture, engine: Engine) -> None:
    """What `on_output` raises is logged; its request ends, the others do not notice."""
    good = Owner()

    def bad(output: Output) -> None:
        raise ValueError("no")

    caplog.set_level(logging.CRITICAL, "radixkv")
    request = engine.submit([4, 5], GREEDY, on_output=bad)
    engine.submit([4, 6], GREEDY, on_output=good)

    assert good.last().finish_reason in {"stop", "length"}
    assert "cancelled" == request.finish_reason
    assert free_again(engine)


def test_call_and_reset(engine: Engine) -> None:
    """Functions run between steps; what they raise comes back. A reset is refused while blocks are read."""
    owner = Owner()
    request = engine.submit(range(40), SamplingParams(temperature=0, ignore_eos=True), on_output=owner)
    while len(owner.outputs) < 2:
        time.sleep(0.001)
    with pytest.raises(LockError):
        engine.reset_cache().result(SECONDS)
    engine.cancel(request)
    with pytest.raises(ZeroDivisionError):
        engine.call(lambda manager: manager.running // 0).result(SECONDS)

    assert engine.reset_cache().result(SECONDS) > 0
    assert 64 == engine.call(lambda manager: manager.pool.num_free).result(SECONDS)
    assert 64 == engine.snapshot().free_blocks


def test_shutdown_drains_or_cancels(tiny: LoadedModel) -> None:
    """Within its time what is there finishes; behind it, it is told. Nothing is taken any more."""
    for seconds, reason in ((SECONDS, "length"), (0.0, "cancelled")):
        engine = Engine(_with_ends(tiny, frozenset()), EngineConfig(num_blocks=64, max_running=1))
        engine.start()
        owners = [Owner(), Owner()]
        requests: list[Request] = [
            engine.submit([1, 2], SamplingParams(temperature=0, max_tokens=100), on_output=owner) for owner in owners
        ]
        engine.shutdown(drain_seconds=seconds)

        assert [reason] * 2 == [request.finish_reason for request in requests]
        assert all(owner.done.is_set() for owner in owners)
        assert 64 == engine.snapshot().free_blocks + engine.snapshot().cached_blocks
        with pytest.raises(EngineStoppedError):
            engine.submit([1], GREEDY, on_output=print)
        with pytest.raises(EngineStoppedError):
            engine.call(lambda manager: manager.running).result(SECONDS)
        engine.cancel(requests[0])
        engine.shutdown()
        with pytest.raises(EngineStoppedError):
            engine.start()


def test_a_thread_that_breaks_tells_everybody(
    tiny: LoadedModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a fault of the loop itself ends all requests and refuses new ones: nobody waits forever."""
    caplog.set_level(logging.CRITICAL, "radixkv")
    engine = Engine(tiny, EngineConfig(num_blocks=64))

    def broken() -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(engine._steps, "step", broken)
    engine.start()
    owner = Owner()
    engine.submit([1], GREEDY, on_output=owner)

    assert ("error", "RuntimeError: broken") == (owner.last().finish_reason, owner.last().error)
    engine.shutdown()
    with pytest.raises(EngineStoppedError):
        engine.submit([1], GREEDY, on_output=owner)
    assert "broken" == str(engine.failure)


def test_an_engine_that_is_shut_down_has_not_failed(tiny: LoadedModel) -> None:
    """Its end was wanted."""
    engine = Engine(tiny, EngineConfig(num_blocks=8))
    engine.start()
    engine.shutdown()

    assert engine.failure is None


def test_an_engine_never_started_shuts_down(tiny: LoadedModel) -> None:
    """And cannot be started afterwards."""
    engine = Engine(tiny, EngineConfig(num_blocks=8))
    engine.shutdown(drain_seconds=1)

    with pytest.raises(EngineStoppedError):
        engine.start()


def test_same_seed_same_text_whatever_else_is_in_the_batch(tiny: LoadedModel) -> None:
    """Alone, among others, and preempted."""
    params: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 5, "max_tokens": 16}
    texts: list[list[int]] = []
    for blocks in (128, 12):
        for others in ([], prompts(12)):
            harness = Harness(tiny, blocks, block_size=8)
            for prompt in others:
                harness.add(prompt, temperature=1, seed=1)
            run = harness.add(range(70, 90), **params)
            for prompt in others:
                harness.add(prompt, temperature=1, seed=1)
            harness.drain()
            texts.append(run.tokens)

    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len(set(texts[0])) > 3


def test_a_cancelled_call_does_not_run(tiny: LoadedModel) -> None:
    engine = Engine(tiny, EngineConfig(num_blocks=8))
    hold = threading.Event()
    engine.start()
    engine.call(lambda manager: hold.wait(SECONDS) and manager.running)
    ran: list[int] = []
    future = engine.call(lambda manager: ran.append(manager.running))
    assert future.cancel()
    hold.set()
    engine.shutdown()

    assert [] == ran


def test_what_shutdown_finds_in_the_mailbox_is_told(tiny: LoadedModel) -> None:
    """A request that the thread had not even seen ends, too."""
    engine = Engine(tiny, EngineConfig(num_blocks=8))
    engine._accepting = True
    owner = Owner()
    engine.submit([1], GREEDY, on_output=owner)
    engine._close("cancelled", None)

    assert "cancelled" == owner.last().finish_reason
    assert 0 == engine.snapshot().waiting


def test_a_request_that_cannot_be_queued_ends(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "radixkv")
    harness = Harness(tiny)

    def full(*args: object, **arguments: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(harness.steps._queue, "add", full)
    run = harness.add([1, 2])

    assert ("error", "RuntimeError: no room") == (run.last.finish_reason, run.last.error)
    assert not harness.steps.busy


def test_blocks_that_cannot_be_returned_are_logged(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request ends all the same."""
    harness = Harness(tiny)
    run = harness.add([1, 2], max_tokens=1)

    def broken(table: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(harness.manager, "finish", broken)
    harness.steps.step()

    assert run.last.finish_reason in {"stop", "length"}
    assert "are lost" in caplog.text


def test_a_queue_that_admits_nobody_is_an_error(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rather than a loop without end."""
    caplog.set_level(logging.CRITICAL, "radixkv")
    harness = Harness(tiny)
    run = harness.add([1, 2])
    monkeypatch.setattr(harness.steps._queue, "admit", lambda: None)
    harness.steps.step()

    assert "error" == run.last.finish_reason
    assert "InvariantError: nothing runs" in (run.last.error or "")


def test_an_owner_that_fails_on_the_last_output(tiny: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing left to cancel."""
    caplog.set_level(logging.CRITICAL, "radixkv")
    harness = Harness(tiny)
    run = harness.add([1, 2], max_tokens=1)
    del harness.runs[run.request]

    class Once(dict[Request, Any]):
        def __missing__(self, request: Request) -> Any:
            return run if not run.logits else None

    harness.runs = Once()
    harness.steps.runs = harness.runs
    harness.steps.step()

    assert run.request.finish_reason in {"stop", "length"}
    assert not harness.steps.busy


def test_what_a_request_shows(tiny: LoadedModel) -> None:
    harness = Harness(tiny)
    run = harness.add([1, 2], max_tokens=2, ignore_eos=True)
    assert "<Request 1 waiting: 2 tokens and 0 of output>" == repr(run.request)
    harness.steps.step()
    assert "<Request 1 running: 2 tokens and 1 of output>" == repr(run.request)
    harness.drain()
    assert "<Request 1 length: 2 tokens and 2 of output>" == repr(run.request)
