"""A workload through a tiny engine: what is measured is what happened."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from radixkv.bench.measure import CACHED, NONE, BenchError, Measured, Setup, measure, worst_skips
from radixkv.bench.rates import STEP_TOKENS, Gauge, Rates, make_gauge
from radixkv.bench.workloads import WORKLOADS, Call, Scale, Workload, make
from radixkv.engine import LoadedModel, PromptTooLongError, Timings
from tests.bench.conftest import SMALL, letters

RATES = Rates(step=STEP_TOKENS, token=2, pair=2, logits=5)
GAUGE = Gauge(time.monotonic, RATES)


def ticking() -> Any:
    """A clock that goes on by one each time somebody looks."""
    return count().__next__


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_setup_serves_the_same_workload(tiny: LoadedModel, name: str) -> None:
    """The same tokens go in and come out; a cache saves work and never finds more than there is."""
    workload = make(name, letters, SMALL)
    ends: list[None] = []
    runs = [measure(tiny, workload, setup, GAUGE, on_end=lambda: ends.append(None)) for setup in (NONE, *CACHED)]

    assert len((NONE, *CACHED)) * len(workload.calls) == len(ends)
    without = runs[0]
    assert NONE == without.setup
    assert (0, 0.0) == (without.hit_tokens, without.hit_rate)
    for run in runs:
        assert name == run.workload
        assert len(workload.calls) == run.requests == len(run.first_token_seconds)
        assert sum(call.outputs for call in workload.calls) == run.output_tokens
        assert without.prompt_tokens == run.prompt_tokens
        assert 0 <= run.hit_tokens <= run.best_hit_tokens
        assert 0 < run.cache_seconds < run.seconds
        assert 0 <= run.decode_seconds < run.seconds
        assert all(0 < seconds <= run.seconds for seconds in run.first_token_seconds)
        assert run.worst_skips <= run.setup.max_skips
        if run.hit_tokens > 0.5 * run.prompt_tokens:
            assert run.prefill_work < without.prefill_work


def test_longest_prefix_first_reaches_the_best_on_shuffled_groups(tiny: LoadedModel) -> None:
    """And by arrival much less is found."""
    workload = make("shuffled-groups", letters, Scale())
    lpm, fcfs, bound = (
        measure(tiny, workload, setup, GAUGE)
        for setup in (
            Setup("radix", 16, "lpm"), Setup("radix", 16, "fcfs"), Setup("radix", 16, "lpm", max_skips=3)
        )
    )  # fmt: skip

    assert fcfs.of_best < 0.9
    assert lpm.of_best >= 0.96
    assert 3 == bound.worst_skips < lpm.worst_skips


def test_the_work_of_a_prompt_by_hand(tiny: LoadedModel) -> None:
    """Ten tokens, each with itself and those before it, and the logits of one."""
    run = measure(tiny, Workload("one", "", (Call(tuple(range(10)), 1),)), NONE, GAUGE)

    assert 10 * (2 + 1) + 55 * 2 + 5 == run.prefill_work
    assert 0 == run.decode_seconds


def test_rates_of_a_clock_that_ticks(tiny: LoadedModel) -> None:
    """Every step takes a tick, whatever it computes."""
    gauge = make_gauge(tiny, ticking())

    assert Rates(step=1.0, token=0.0, pair=0.0, logits=0.0) == gauge.rates


def test_rates_of_this_machine(tiny: LoadedModel) -> None:
    """A token takes more than attending to one, a step more than a token."""
    rates = make_gauge(tiny, time.process_time).rates

    assert 0 <= rates.pair < rates.token < rates.step


def test_decoding_is_measured_apart(tiny: LoadedModel) -> None:
    """Nine tokens after the first one: steps without a prompt. On this clock each step takes as long."""
    workload = Workload("one", "", (Call(tuple(range(10)), 10),))
    short = measure(tiny, Workload("one", "", (Call(tuple(range(10)), 1),)), NONE, GAUGE)
    run = measure(tiny, workload, NONE, Gauge(ticking(), RATES))

    assert short.prefill_work == run.prefill_work
    assert 0.7 < run.decode_seconds / run.seconds < 1
    assert 0 < run.sample_seconds < run.seconds - run.decode_seconds
    assert run.prefill_seconds == run.seconds - run.decode_seconds - run.sample_seconds


def test_a_continuing_call_has_the_history_before_it(tiny: LoadedModel) -> None:
    """Prompt, output and new tokens: of the first call all but the token sampled last is found."""
    workload = Workload("two", "", (Call((1, 2, 3), 4), Call((5, 6), 1, after=0)))
    run = measure(tiny, workload, Setup("radix", 1, "lpm"), GAUGE)

    assert (3 + 9, 6, 6) == (run.prompt_tokens, run.hit_tokens, run.best_hit_tokens)


def test_a_prompt_that_cannot_be_served(tiny: LoadedModel) -> None:
    """It is said, and nothing hangs: at once, or when its turn comes."""
    with pytest.raises(PromptTooLongError):
        measure(tiny, Workload("long", "", (Call((1,) * 5000, 1),)), NONE, GAUGE)
    with pytest.raises(BenchError, match="a request failed"):
        measure(tiny, Workload("long", "", (Call((1,), 1), Call((1,) * 5000, 1, after=0))), NONE, GAUGE)


def test_a_step_that_fails(tiny: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    """The engine's reason is the error's."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no luck")

    hook = tiny.model.register_forward_pre_hook(fail)
    try:
        with pytest.raises(BenchError, match="no luck"):
            measure(tiny, make("no-sharing", letters, SMALL), NONE, GAUGE)
    finally:
        hook.remove()
    assert "a step failed" in caplog.text


def test_short_prompts_are_prefill(tiny: LoadedModel) -> None:
    """Also where every row of a step is attended to in a group."""
    workload = Workload("short", "", (Call((1,) * 20, 1), Call((2,) * 40, 1)))

    assert 0.0 == measure(tiny, workload, NONE, GAUGE).decode_seconds


def test_worst_skips_by_hand() -> None:
    """Of those that came later and were admitted before."""
    admitted = [3.0, 1.0, 4.0, 2.0]
    timings = [Timings(float(i), at) for i, at in enumerate(admitted)]

    assert 2 == worst_skips(timings)
    assert 0 == worst_skips([Timings(float(i), float(i)) for i in range(3)])
    with pytest.raises(BenchError):
        worst_skips([Timings(0.0)])


def test_shares_and_rates() -> None:
    """From numbers that can be worked out in the head."""
    run = measured(first_token_seconds=(4.0, 1.0, 2.0, 3.0))
    without = measured(setup=NONE, seconds=20.0, decode_seconds=2.0, prefill_work=90.0)

    assert (10.0, 0.4, 0.5, 0.625) == (run.prompt_rate, run.output_rate, run.hit_rate, run.of_best)
    assert (2.0, 4.0) == (run.first_token(0.5), run.first_token(0.99))
    assert 0.001 == run.cache_share
    assert (18 / 3) / 8 == run.of_prefill(without) == measured(seconds=13.0, sample_seconds=3.0).of_prefill(without)
    assert (2 + 18 / 3) / 10 == run.of_bound(without)
    assert (2 + 3 + 18 / 3) / 13 == measured(seconds=13.0, sample_seconds=3.0).of_bound(without)
    assert 1.0 == measured(hit_tokens=0, best_hit_tokens=0).of_best
    assert ("none", "radix 16") == (str(NONE), str(run.setup))


def measured(**changes: Any) -> Measured:
    """A run of ten seconds, two of them decoding."""
    given: dict[str, Any] = {
        "workload": "few-shot", "setup": Setup("radix", 16, "lpm"), "requests": 4, "seconds": 10.0,
        "prompt_tokens": 100, "output_tokens": 4, "hit_tokens": 50, "best_hit_tokens": 80,
        "first_token_seconds": (1.0,), "decode_seconds": 2.0, "sample_seconds": 0.0,
        "prefill_work": 30.0,
        "cache_seconds": 0.01, "worst_skips": 0,
    }  # fmt: skip
    return Measured(**given | changes)
