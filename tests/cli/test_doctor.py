"""`radixkv doctor`: what it prints, as tables, as JSON, as a page and as pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixkv.cli.commands import app


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def chats(tmp_path: Path) -> str:
    path = tmp_path / "chats.jsonl"
    rules = " ".join(f"Rule {number} of the house holds." for number in range(40))
    records = [
        {
            "messages": [
                {"role": "system", "content": f"Now: 2026-11-30T04:{minute:02}:00Z\n{rules}"},
                {"role": "user", "content": f"Question {minute}"},
            ]
        }
        for minute in range(10, 40)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_json(cycle: str) -> None:
    """Nothing but JSON on standard output; causes that add up; fixes ranked."""
    result = invoke(cycle, "--blocks", "8", "--json", "-", "--workers", "1")

    assert 0 == result.exit_code
    found = json.loads(result.stdout)
    assert found["input_tokens"] == sum(found["causes"].values()) == 3300
    assert (0.0, 95 * 32) == (found["hit_rate"], found["causes"]["evicted"])
    assert {"50%": 9, "90%": 10, "100%": 10} == found["blocks_to_keep_evicted"]
    saved = [fix["saved_tokens"] for fix in found["fixes"]]
    assert sorted(saved, reverse=True) == saved
    assert all(symptom["found"] for symptom in found["symptoms"])


def test_tables(cycle: str) -> None:
    """In plain words, with the size in memory where a model is named."""
    result = invoke(cycle, "--memory", "40MiB", "--model", "llama-3.1-70b", "--workers", "1")

    assert 0 == result.exit_code
    for words in (
        "8 blocks, 40 MiB",
        "evicted and read again",
        "half of it kept by 9 blocks, 45 MiB",
        "yes  a cliff right of the present size: One prefix too few costs everything",
        "2x the memory: 16 blocks, 80 MiB",
        "What helps most: ",
    ):
        assert words in result.stdout


def test_splits_in_text(chats: str, tmp_path: Path) -> None:
    """A log of chats with the time in front: both sides are shown, on the page as well; pictures are written."""
    report, folder = tmp_path / "report.html", tmp_path / "pictures"
    result = invoke(chats, "--share", "100%", "--report", str(report), "--pictures", str(folder), "--workers", "1")

    assert 0 == result.exit_code
    assert "token counts are estimates" in result.stderr
    assert "Now: 2026-11-30T04:" in result.stdout
    assert "one '0:00Z" in result.stdout
    assert "<mark>0:00Z" in report.read_text(encoding="utf-8")
    names = {"curve", "lifetimes", "misses", "prefixes"}
    assert {f"{name}{suffix}" for name in names for suffix in (".png", ".svg")} == {
        path.name for path in folder.iterdir()
    }


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        ((), 2, "give one size"),
        (("--blocks", "8", "--share", "1%"), 2, "give one size"),
        (("--blocks", "8,9"), 2, "give one size, not several"),
        (("--memory", "1GiB"), 2, "--model"),
        (("--blocks", "0"), 2, "--blocks"),
    ],
)
def test_what_cannot_be_done(cycle: str, arguments: tuple[str, ...], status: int, expected: str) -> None:
    """One line on standard error, and nothing on standard output."""
    result = invoke(cycle, *arguments, "--workers", "1")

    assert (status, "") == (result.exit_code, result.stdout)
    assert expected in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("option", "path"), [("--report", "none/report.html"), ("--pictures", "cycle.jsonl"), ("--json", "none/a.json")]
)
def test_a_file_that_cannot_be_written(cycle: str, tmp_path: Path, option: str, path: str) -> None:
    """One line that names it, after the tables."""
    result = invoke(cycle, "--blocks", "8", "--workers", "1", option, str(tmp_path / path))

    assert 1 == result.exit_code
    assert "What helps most: " in result.stdout
    assert result.stderr.startswith(f"radixkv: {tmp_path / path}: ")
    assert 1 == len(result.stderr.splitlines())


def test_a_process_with_workers(cycle: str) -> None:
    """For real, its replays on two cores: the same numbers."""
    command = [sys.executable, "-m", "radixkv.cli", "doctor", cycle, "--blocks", "8", "--json", "-", "--workers"]
    two = subprocess.run([*command, "2"], capture_output=True, text=True, check=True)
    one = invoke(cycle, "--blocks", "8", "--json", "-", "--workers", "1")

    assert two.stdout == one.stdout
