"""The targets: reached and missed on the right side of each number; and how all of it is printed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixkv.bench import report
from radixkv.bench.measure import NONE, Measured, Setup
from radixkv.bench.peer import ChatReuse
from radixkv.bench.run import Result
from radixkv.bench.verdicts import uncached, verdicts
from radixkv.bench.workloads import Call, Workload
from tests.bench.test_measure import measured


def without(workload: str) -> Measured:
    """Ten times as long for ten times the work."""
    return measured(workload=workload, setup=NONE, seconds=82.0, prefill_work=300.0, hit_tokens=0)


def verdict(words: str, *runs: Measured) -> tuple[bool, str]:
    """Of the one target with these words in it."""
    (found,) = [verdict for verdict in verdicts(runs) if words in verdict.target]
    return found.reached, found.measured


@pytest.mark.parametrize(("seconds", "reached"), [(0.0311, True), (0.0313, False)])
def test_cache_cost(seconds: float, reached: bool) -> None:
    """Of the radix runs of the workload that shares nothing, the worst one: beyond 0.01 s of 82 s without a cache."""
    runs = [without("no-sharing"), measured(workload="no-sharing", cache_seconds=seconds)]
    other = measured(workload="no-sharing", cache_seconds=9, setup=Setup("hash", 16, "lpm"))

    assert reached == verdict("without sharing", *runs, other)[0]


@pytest.mark.parametrize(("decode_seconds", "reached"), [(1.0, True), (0.9, False)])
def test_bound(decode_seconds: float, reached: bool) -> None:
    """A tenth of the work: 8 s of prefill and what is no prefill, in 10 s, by the middle one of a workload's runs."""
    run = measured(decode_seconds=decode_seconds)
    found, said = verdict("saved prefill work", without("few-shot"), run)

    assert (reached, f"{int(reached)} of 1 workloads") == (found, said[:16])
    assert said.endswith("of prefill alone 0 of 1")
    slow, fast = measured(decode_seconds=-5.0), measured(decode_seconds=5.0)
    found, said = verdict("saved prefill work", without("few-shot"), slow, run, fast)
    assert (reached, f"of single runs {1 + reached} of 3") == (found, said.split("; ")[2])


def test_without_a_cache_is_the_mean_of_both_runs() -> None:
    """Those before and after the others: of all that a run with a cache is compared with."""
    fast = measured(workload="agent", setup=NONE, decode_seconds=1.0, sample_seconds=1.0, cache_seconds=0.1)
    slow = measured(
        workload="agent", setup=NONE, seconds=20.0, decode_seconds=2.0, sample_seconds=2.0, cache_seconds=0.3,
        prefill_work=40.0,
    )  # fmt: skip
    found = uncached([without("few-shot"), fast, measured(workload="agent"), slow], "agent")

    assert found
    assert (15.0, 1.5, 1.5, 0.2) == (found.seconds, found.decode_seconds, found.sample_seconds, found.cache_seconds)
    assert (35.0, 100, NONE) == (found.prefill_work, found.prompt_tokens, found.setup)
    assert uncached([fast], "few-shot") is None


@pytest.mark.parametrize("workload", ["few-shot", "multi-turn"])
@pytest.mark.parametrize(("seconds", "reached"), [(16.4, True), (16.5, False)])
def test_speed(workload: str, seconds: float, reached: bool) -> None:
    """Five times the prompt tokens a second of no cache."""
    assert reached == verdict(workload, without(workload), measured(workload=workload, seconds=seconds))[0]


@pytest.mark.parametrize(("hit_tokens", "reached"), [(77, True), (76, False)])
def test_order(hit_tokens: int, reached: bool) -> None:
    """96 % of 80 tokens; a run whose bound is too tight for all requests does not count."""
    run = measured(workload="shuffled-groups", hit_tokens=hit_tokens)
    tight = measured(workload="shuffled-groups", hit_tokens=1, setup=Setup("radix", 16, "lpm", max_skips=3))

    assert reached == verdict("lpm", without("shuffled-groups"), run, tight)[0]


@pytest.mark.parametrize(("skips", "reached"), [(3, True), (4, False)])
def test_waiting(skips: int, reached: bool) -> None:
    """The run that came nearest to its bound is named."""
    tight = measured(worst_skips=skips, setup=Setup("radix", 16, "lpm", max_skips=3))

    assert (reached, f"{skips} of 3 (few-shot, radix 16)") == verdict("passed over", measured(worst_skips=9), tight)


def test_nothing_is_said_of_what_did_not_run() -> None:
    assert [] == verdicts([])
    assert ["passed over"] == [
        words for words in ("without sharing", "saved prefill work", "lpm", "passed over")
        if any(words in found.target for found in verdicts([measured(workload="agent")]))
    ]  # fmt: skip
    assert uncached([measured()], "few-shot") is None


def result(**changes: Any) -> Result:
    workload = Workload("few-shot", "what it is", (Call((1,), 1),))
    peer = ChatReuse("llama.cpp", "2", 100, 25, 1.0, 4.0)
    given: dict[str, Any] = {
        "model": "m", "dtype": "float32", "threads": 2, "clock": "cpu", "workloads": (workload,), "peers": (peer,),
        "left_out": None,
    }  # fmt: skip
    return Result(**given | {"runs": (without("few-shot"), measured())} | changes)


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """Every run has its row, every target its line."""
    shown = result()
    report.show_workload(shown.workloads[0], shown.runs)
    report.show_rest(shown)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    assert "few-shot: what it is" == lines[0]
    assert "none fcfs 1 1.00 0.0 1.00 s 1.00 s - - - - 2% 0.01% 0/256" in lines
    assert "radix 16 lpm 10 8.20 0.4 1.00 s 1.00 s 50.0% 62.5% 100% 100% 20% 0.10% 0/256" in lines
    assert "llama.cpp 2 25 of 100 (25.0%) 1.00 s 4.00 s 0.250" in lines
    assert "m in float32, 2 threads, seconds of the cpu clock" in lines
    assert "reached few-shot: >= 5x the prompt tokens/s of no cache: 8.2x to 8.2x" in lines


def test_what_was_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    report.show_rest(result(peers=(), left_out="llama.cpp is left out"))

    assert "llama.cpp is left out" in capsys.readouterr().out.splitlines()


def test_json_has_all_figures() -> None:
    """What the tables show, and every run as it was."""
    found = json.loads(json.dumps(report.as_json(result())))

    assert ("m", 2, "cpu", {"few-shot": "what it is"}) == tuple(
        found[name] for name in ("model", "threads", "clock", "workloads")
    )
    assert 1.0 == found["runs"][1]["of_bound"]
    assert 10.0 == found["runs"][1]["prompt_rate"]
    assert {"prefix_cache": "radix", "block_size": 16, "order": "lpm", "max_skips": 256} == found["runs"][1]["setup"]
    assert 25 == found["peers"][0]["reused_tokens"]
    assert all({"target", "measured", "reached"} == verdict.keys() for verdict in found["verdicts"])
