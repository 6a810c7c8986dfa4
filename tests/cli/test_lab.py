"""`radixkv replay` and `radixkv curve`: what they print, as tables and as JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixkv.cli.commands import app


def invoke(*arguments: str, stdin: str | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def mooncake(tmp_path: Path) -> str:
    path = tmp_path / "mooncake.jsonl"
    records = [
        {"timestamp": 1000 * i, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1 + i % 2, 10 + i]}
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_curve_as_json(cycle: str) -> None:
    """Nothing but JSON on standard output; LRU finds nothing in room for four prefixes of five, the optimum most."""
    result = invoke("curve", cycle, "--blocks", "8,10", "--optimum", "--json", "-")

    assert (0, "") == (result.exit_code, result.stderr)
    report = json.loads(result.stdout)
    assert (10, 100, 3300, 16) == tuple(
        report[key] for key in ("unique_blocks", "requests", "input_tokens", "block_size")
    )
    full = 95 * 32 / 3300
    assert full == report["ceiling"]
    eight, ten = report["points"]
    assert (8, 0.0, 10, full, full) == (eight["blocks"], eight["lru"], ten["blocks"], ten["lru"], ten["optimum"])
    assert 0.75 < eight["optimum"] / full < 0.85
    (cliff,) = report["cliffs"]
    assert "one prefix too few costs everything: 8 → 10 blocks takes the hit rate from 0.00 to 0.92" == cliff["text"]


def test_curve_as_a_table(cycle: str) -> None:
    """Sizes in memory, policies beside it, the cliff in words."""
    result = invoke(
        "curve", cycle, "--memory", "16MiB,20MiB", "--model", "llama-3.1-8b", "--optimum", "--eviction", "lru,mru"
    )

    assert 0 == result.exit_code
    lines = result.stdout.splitlines()
    head = next(line for line in lines if "memory" in line)
    assert ["blocks", "memory", "of distinct", "LRU", "optimum", "lru, radix", "mru, radix"] == [
        name.strip() for name in head.split("   ") if name.strip()
    ]
    assert any(line.split()[:3] == ["8", "16", "MiB"] for line in lines)
    assert "one prefix too few costs everything: 16 MiB → 20 MiB" in lines[-1]


def test_curve_reads_standard_input_once_or_as_often_as_it_takes(cycle: str) -> None:
    """With and without what needs a second reading."""
    text = Path(cycle).read_text()
    once = invoke("curve", "-", "--blocks", "10", "--block-size", "16", "--json", "-", stdin=text)
    twice = invoke("curve", "-", "--blocks", "10", "--json", "-", stdin=text)

    assert 0 == once.exit_code
    assert once.stdout == twice.stdout == invoke("curve", cycle, "--blocks", "10", "--json", "-").stdout


def test_curve_of_a_sample(cycle: str) -> None:
    """Its rate, and an error beside each rate, in both outputs."""
    report = json.loads(invoke("curve", cycle, "--blocks", "10", "--sample", "50%", "--json", "-").stdout)
    table = invoke("curve", cycle, "--blocks", "10", "--sample", "50%").stdout

    assert 0.5 == report["sample"]
    assert report["points"][0]["lru_error"] >= 0
    assert " ± " in table
    assert "Estimated from 50.000% of the blocks" in table


def test_curve_of_a_sample_that_holds_nothing(cycle: str) -> None:
    """One line, and no rate of 0."""
    result = invoke("curve", cycle, "--sample", "0.01%")

    assert (1, "") == (result.exit_code, result.stdout)
    assert "radixkv: a sample of 0.01 % holds none of the trace's blocks: take a larger one\n" == result.stderr


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_curve_draws(cycle: str, tmp_path: Path, suffix: str, start: bytes) -> None:
    """What the file's name says."""
    path = tmp_path / f"curve.{suffix}"
    options = ["--optimum", "--eviction", "lru", "--present", "8", "--blocks", "8", "--output", str(path)]

    assert 0 == invoke("curve", cycle, *options).exit_code
    assert path.read_bytes().startswith(start)


def test_replay_draws(mooncake: str, tmp_path: Path) -> None:
    """A line a policy, in memory where a model is named."""
    path = tmp_path / "replay.svg"
    options = ["--eviction", "lru,lfu", "--workers", "1", "--output", str(path)]

    assert 0 == invoke("replay", mooncake, "--blocks", "2,4", *options).exit_code
    assert all(words in path.read_text() for words in ("lfu", "cache, in tokens", "radix, fcfs, blocks of 512"))
    assert 0 == invoke("replay", mooncake, "--memory", "128MiB,256MiB", "--model", "llama-3.1-8b", *options).exit_code
    assert "cache, in tokens" not in path.read_text()


def test_replay_as_json(mooncake: str) -> None:
    """A row a setting, in the order asked for, with everything that was found."""
    options = ["--blocks", "2,4", "--eviction", "lru,lfu", "--cache", "radix,hash", "--json", "-", "--workers", "1"]
    result = invoke("replay", mooncake, *options)

    assert (0, "") == (result.exit_code, result.stderr)
    report = json.loads(result.stdout)
    assert [
        ("radix", "lru", 2), ("radix", "lru", 4), ("radix", "lfu", 2), ("radix", "lfu", 4),
        ("hash", "lru", 2), ("hash", "lru", 4), ("hash", "lfu", 2), ("hash", "lfu", 4),
    ] == [(row["cache"], row["eviction"], row["blocks"]) for row in report["rows"]]  # fmt: skip
    first = report["rows"][4]
    assert ("fcfs", 512, 10, 11000) == tuple(first[key] for key in ("order", "block_size", "requests", "input_tokens"))
    # The first block of all is found nine times; the second of each kind is gone when it comes again.
    assert (9 * 512, 9 * 512 / 11000, 9) == (first["hit_tokens"], first["hit_rate"], first["evicted_blocks"])
    assert 1.0 == first["reuse_gap"]["seconds"]["p50"]
    assert [{"block_size": 512, "unique_blocks": 3, "ceiling": (9 + 8) * 512 / 11000}] == report["ceilings"]


def test_replay_as_a_table(mooncake: str) -> None:
    """Settings that are the same for all stand above; costs with a model alone."""
    plain = invoke("replay", mooncake, "--share", "50%,100%", "--order", "fcfs,lpm").stdout
    costed = invoke("replay", mooncake, "--memory", "128MiB", "--model", "llama-3.1-8b").stdout

    assert plain.startswith("cache radix, eviction lru, block size 512\n")
    assert 2 == sum(line.startswith("lpm ") for line in plain.splitlines())
    assert "memory" not in plain
    assert "GPU-hours" in costed
    assert "128 MiB" in costed
    assert "3 distinct blocks, and a hit rate of 0.7913 if nothing were ever evicted" in costed


def test_bad_lines_and_estimates_are_said(tmp_path: Path) -> None:
    """On standard error, so that JSON stays JSON."""
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"tokens": [1, 2, 3]}\n{"tokens": 5}\n{"tokens": [1, 2, 4]}\n')
    text = tmp_path / "prompts.txt"
    text.write_text("Tell me of the sea.\nTell me of the sky.\n")
    bad = invoke("curve", str(path), "--block-size", "1", "--blocks", "9", "--skip-bad", "--json", "-")
    estimated = invoke("replay", str(text), "--block-size", "1", "--blocks", "99", "--json", "-")

    assert "passed over 1 bad lines; the first: " in bad.stderr
    assert 2 / 6 == json.loads(bad.stdout)["ceiling"]
    assert "token counts are estimates" in estimated.stderr
    assert json.loads(estimated.stdout)["rows"][0]["hit_rate"] > 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--blocks", "0"], 2, "--blocks: '0' is no whole number above 0"),
        (["--blocks", "1,x"], 2, "'x' is no whole number"),
        (["--blocks", "1__0"], 2, "'1__0' is no whole number"),
        (["--blocks", ""], 2, "--blocks"),
        (["--share", "200%"], 2, "--share: '200%' is no share"),
        (["--memory", "40GiB"], 2, "--memory says nothing without --model"),
        (["--memory", "lots", "--model", "llama-3.1-8b"], 2, "--memory: 'lots' is no size"),
        (["--memory", "0", "--model", "llama-3.1-8b"], 2, "bytes of memory must be an integer of at least 1, got 0"),
        (["--memory", "40GiB", "--model", "llama-9"], 2, "llama-9"),
        (["--eviction", "best"], 2, "--eviction: 'best' is none of"),
        (["--memory", "1KiB", "--model", "llama-3.1-8b"], 1, "1,024 bytes of memory are less than one block of 67,1"),
        (["--block-size", "100"], 1, "whole multiple of 512"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", ["curve", "replay"])
def test_what_is_wrong_is_said(mooncake: str, command: str, arguments: list[str], status: int, words: str) -> None:
    """Options with status 2, the trace with one line and status 1."""
    result = invoke(command, mooncake, *arguments)

    assert status == result.exit_code
    assert words in " ".join(result.output.replace("│", " ").split())
    if status == 1:
        assert 1 == len(result.output.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sample", "10%", "--optimum"], "knows no optimum"),
        (["--present", "40GiB"], "without --model"),
        (["--output", "curve.gif"], "a .png or a .svg"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_curve_cannot_do(cycle: str, arguments: list[str], words: str) -> None:
    """Said before anything is read."""
    result = invoke("curve", cycle, *arguments)

    assert 2 == result.exit_code
    assert words in " ".join(result.output.replace("│", " ").split())


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    """One line."""
    result = invoke("curve", str(tmp_path / "none.jsonl"))

    assert 1 == result.exit_code
    assert 1 == len(result.output.splitlines())
    assert "none.jsonl" in result.output


@pytest.mark.parametrize("options", [["--json", "{}/none/a.json"], ["--output", "{}/none/a.png"]], ids=str)
def test_a_file_that_cannot_be_written(cycle: str, tmp_path: Path, options: list[str]) -> None:
    """One line, after the table."""
    result = invoke("curve", cycle, "--blocks", "8", *(option.format(tmp_path) for option in options))

    assert 1 == result.exit_code
    assert result.stderr.startswith("radixkv: ")
    assert 1 == len(result.stderr.splitlines())


def test_a_real_process_on_all_cores(cycle: str) -> None:
    """As the script runs it, with worker processes."""
    command = [
        sys.executable,
        "-m",
        "radixkv.cli",
        "replay",
        cycle,
        "--blocks",
        "8,10",
        "--workers",
        "2",
        "--json",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, check=True, text=True)

    assert [0.0, 95 * 32 / 3300] == [row["hit_rate"] for row in json.loads(done.stdout)["rows"]]


def test_a_clock_beyond_64_bits_and_a_policy_named_twice(tmp_path: Path) -> None:
    """Any finite time can be read, so replay must stand it; what is named twice is replayed once."""
    path = tmp_path / "clock.jsonl"
    times = (1e308, -1.7e308, 1.7e308)
    path.write_text("".join(json.dumps({"tokens": [1] * 33, "timestamp": time}) + "\n" for time in times))

    result = invoke("replay", str(path), "--blocks", "2", "--eviction", "lru,lru", "--json", "-")

    assert 0 == result.exit_code, result.exception
    assert 1 == len(json.loads(result.stdout)["rows"])


@pytest.mark.parametrize("options", [["--present", "1__0"], ["--present", "0"], ["--memory", "9" * 400]])
def test_sizes_that_are_no_numbers(cycle: str, options: list[str]) -> None:
    assert 2 == invoke("curve", cycle, "--blocks", "8", "--model", "llama-3.1-8b", *options).exit_code


def test_a_present_size_of_less_than_one_block(cycle: str) -> None:
    """Is no size of zero blocks."""
    result = invoke("curve", cycle, "--blocks", "8", "--model", "llama-3.1-8b", "--present", "1KiB")

    assert (1, "") == (result.exit_code, result.stdout)
    assert "less than one block of 2,097,152 bytes" in result.stderr


def has_workers(process: int) -> bool:
    """Two, and the process that tracks resources."""
    return len(Path(f"/proc/{process}/task/{process}/children").read_text().split()) == 3


def has_opened(process: int, path: Path) -> bool:
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in between
            if os.readlink(descriptor) == str(path):
                return True
    return False


@pytest.mark.parametrize(
    ("options", "send"),
    [
        (["replay", "--blocks", "10,20", "--workers", "2"], os.killpg),  # to all of them, as a terminal does
        (["replay", "--blocks", "10,20", "--workers", "2"], os.kill),
        (["doctor", "--blocks", "10", "--workers", "2"], os.killpg),
        (["curve", "--blocks", "10", "--eviction", "lru"], os.killpg),
    ],
)
def test_ctrl_c(tmp_path: Path, options: list[str], send: Callable[[int, int], None]) -> None:
    """No traceback, status 130, and no worker that is left."""
    path = tmp_path / "long.jsonl"
    requests = 20_000 if "2" in options else 200_000
    path.write_text("".join(f'{{"tokens": [{number % 50}, {number % 7}, 1, 2, 3]}}\n' for number in range(requests)))
    command = [sys.executable, "-m", "radixkv.cli", options[0], str(path), "--block-size", "1", *options[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        while not (has_workers(process.pid) if "2" in options else has_opened(process.pid, path)):
            assert process.poll() is None
            time.sleep(0.01)
        send(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (b"", b"", 130) == (out, err, process.returncode)
    for _ in range(500):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail("a process is left")
