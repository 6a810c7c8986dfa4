"""`radixkv generate`, in its own process where it matters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixkv.cli.commands import app
from radixkv.traces import read_trace
from radixkv.traces.generate import WORKLOADS, Cycle


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["generate", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.mark.parametrize("name", sorted(WORKLOADS))
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_to_a_file(tmp_path: Path, name: str, suffix: str) -> None:
    """What is written is what the workload makes, and nothing is said."""
    path = tmp_path / f"trace{suffix}"
    result = invoke(name, "--requests", "5", "--seed", "7", "-o", str(path))

    assert (0, "") == (result.exit_code, result.output)
    assert list(WORKLOADS[name]().requests(5, 7)) == list(read_trace(path))


def test_a_real_process_to_standard_output(tmp_path: Path) -> None:
    """Nothing but the trace, the same each time; parameters and format arrive."""
    command = [sys.executable, "-m", "radixkv.cli", "generate", "cycle", "--requests", "4", "--format", "mooncake"]
    options = ["--set", "prefixes=2", "--set", "prefix_tokens=1024", "--set", "one_shots=0.0", "--set", "rate=2"]
    done = subprocess.run([*command, *options], capture_output=True, check=True)
    path = tmp_path / "trace"
    path.write_bytes(done.stdout)

    assert b"" == done.stderr
    assert [[0, 1, 2], [3, 4, 5], [0, 1, 6], [3, 4, 7]] == [request.prompt.tolist() for request in read_trace(path)]
    times = [request.timestamp for request in Cycle(rate=2).requests(4, 0)]
    assert times == [request.timestamp for request in read_trace(path)]


def test_a_reader_that_has_enough() -> None:
    """`| head` ends it without a traceback."""
    command = [sys.executable, "-m", "radixkv.cli", "generate", "chat", "--requests", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        said = process.stderr.read()

    assert b"" == said
    assert 1 == process.returncode


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["circle"], 2, "'circle' is none of chat"),
        (["cycle", "--requests", "-1"], 2, "--requests"),
        (["cycle", "--format", "openai"], 2, "none of mooncake, tokens"),
        (["cycle", "--set", "prefixes"], 2, "write it as prefixes=5"),
        (["cycle", "--set", "prefixes=many"], 2, "write it as prefixes=5"),
        (["cycle", "--set", "speed=1"], 1, "radixkv: unknown parameter of cycle 'speed'; known: rate"),
        (["cycle", "--set", "prefixes=0"], 1, "radixkv: prefixes must be an integer of at least 1, got 0"),
        (["cycle", "--set", "prefixes=1.5"], 1, "radixkv: prefixes must be an integer of at least 1, got 1.5"),
        (["cycle", "-o", "no/such/folder"], 1, "radixkv: no/such/folder: No such file or directory"),
    ],
)
def test_what_cannot_be(arguments: list[str], status: int, words: str) -> None:
    """A status, and the reason."""
    result = invoke(*arguments)

    assert status == result.exit_code
    assert words in result.output


def test_zstandard_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status of a missing extra, and its name."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    result = invoke("cycle", "-o", str(tmp_path / "trace.zst"))

    assert 3 == result.exit_code
    assert "pip install 'radixkv[lab]'" in result.output
