"""The command line parses, prints and decides nothing."""

from __future__ import annotations

import builtins
import errno
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import radixkv.bench.report
import radixkv.bench.run
import radixkv.cli
import radixkv.server.demo
import radixkv.server.process
from radixkv import __version__
from radixkv.bench.run import Result
from radixkv.cli import say
from radixkv.cli.commands import app
from radixkv.engine import DEFAULT_MODEL, EngineConfig, UnsupportedModelError
from radixkv.errors import RadixKVError
from radixkv.server.config import ServerConfig
from radixkv.server.demo import DemoError
from tests.tiny import tiny_model, tiny_tokenizer


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ServerConfig]]:
    """What `serve` would have run."""
    calls: list[tuple[Any, ServerConfig]] = []
    monkeypatch.setattr(radixkv.server.process, "serve", lambda make, config: calls.append((make, config)))
    return calls


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "RADIXKV_API_KEY": ""})


def test_version_and_help() -> None:
    """Both end well; without a command there is help."""
    assert f"radixkv {__version__}\n" == invoke("--version").output
    assert "serve" in invoke("--help").output
    assert "serve" in invoke().output


def test_every_option_arrives(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option ends up in its setting, and the model is loaded only when the server asks."""
    options = {
        "--model": "org/model", "--dtype": "float32", "--device": "cpu", "--kv-memory": "1.5GiB", "--block-size": "8",
        "--prefix-cache": "hash", "--eviction": "slru", "--order": "fcfs", "--max-skips": "3", "--token-budget": "99",
        "--max-running": "7", "--max-waiting": "9", "--host": "::1", "--port": "1234", "--served-name": "m",
        "--api-key": "k", "--max-body": "2M", "--request-timeout": "5", "--grace": "6",
    }  # fmt: skip
    loaded: list[Any] = []
    monkeypatch.setattr("radixkv.server.process.load_model", lambda name, **how: loaded.append((name, how)))
    monkeypatch.setattr("radixkv.server.process.Engine", lambda model, config: (model, config))
    flat = [part for pair in options.items() for part in pair]
    result = invoke("serve", *flat, "--show-text", "--no-access-log")

    assert (0, "") == (result.exit_code, result.output)
    ((make, config),) = runs
    assert [] == loaded
    assert config == ServerConfig(
        host="::1", port=1234, api_key="k", served_name="m", show_text=True, access_log=False,
        max_body_bytes=2 * 2**20, request_seconds=5, grace_seconds=6,
    )  # fmt: skip
    _, engine_config = make()
    assert [("org/model", {"dtype": "float32", "device": "cpu"})] == loaded
    assert engine_config == EngineConfig(
        kv_memory=3 * 2**29, block_size=8, prefix_cache="hash", eviction="slru", order="fcfs", max_skips=3,
        token_budget=99, max_running=7, max_waiting=9,
    )  # fmt: skip


def test_defaults_are_the_settings_own(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command adds no opinion: loopback, the default model, a radix cache."""
    loaded: list[str] = []
    monkeypatch.setattr("radixkv.server.process.load_model", lambda name, **_: loaded.append(name))
    monkeypatch.setattr("radixkv.server.process.Engine", lambda _, config: config)
    invoke("serve")

    ((make, config),) = runs
    assert (EngineConfig(), [DEFAULT_MODEL]) == (make(), loaded)
    assert ServerConfig() == config


def test_the_key_may_come_from_the_environment(runs: list[Any]) -> None:
    """So that it does not stand in the list of processes."""
    CliRunner().invoke(app, ["serve"], env={"RADIXKV_API_KEY": "from there"})

    assert "from there" == runs[0][1].api_key
    assert "from there" not in repr(runs[0][1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kv-memory", "lots"], "'lots' is no size"),
        (["--eviction", "best"], "'best' is none of"),
        (["--prefix-cache", "trie"], "trie"),
        (["--port", "99999"], "--port"),
        (["--speed", "11"], "--speed"),
    ],
)
def test_a_wrong_option_is_said_before_anything_runs(runs: list[Any], arguments: list[str], words: str) -> None:
    """Status 2, and the reason."""
    result = invoke("serve", *arguments)

    assert 2 == result.exit_code
    assert words in result.output
    assert [] == runs


@pytest.mark.parametrize(
    "arguments", [["--kv-memory", "1G", "--blocks", "5"], ["--token-budget", "1"]], ids=lambda value: value[0]
)
def test_options_that_do_not_fit_each_other(runs: list[Any], arguments: list[str]) -> None:
    """One line and status 1."""
    result = invoke("serve", *arguments)

    assert 1 == result.exit_code
    assert 1 == len(result.output.splitlines())
    assert result.output.startswith("radixkv: ")
    assert [] == runs


def test_a_model_that_cannot_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's reason is the line."""

    def refuse(make: Any, config: Any) -> None:
        raise UnsupportedModelError(model="m", reason="it has state-space layers")

    monkeypatch.setattr(radixkv.server.process, "serve", refuse)
    result = invoke("serve")

    assert (1, "radixkv: cannot serve m: it has state-space layers\n") == (result.exit_code, result.output)


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options arrive, and its failure is one line."""
    calls: list[Any] = []
    monkeypatch.setattr(radixkv.server.demo, "run", lambda model, **how: calls.append((model, how["max_tokens"])))
    assert 0 == invoke("demo", "--model", "m", "--max-tokens", "5").exit_code
    assert [("m", 5)] == calls

    def fail(*_: Any, **__: Any) -> None:
        raise DemoError("no luck")

    monkeypatch.setattr(radixkv.server.demo, "run", fail)
    result = invoke("demo")
    assert (1, "radixkv: no luck\n") == (result.exit_code, result.output)


def test_bench_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And prints what comes back: tables, or JSON alone on standard output, or both."""
    calls: list[Any] = []
    found = Result("m", "float32", 2, "cpu", (), (), (), None)

    def run(model: str | None, **how: Any) -> Result:
        calls.append((model, how.pop("on_workload") is radixkv.bench.report.show_workload, how))
        return found

    monkeypatch.setattr(radixkv.bench.run, "run", run)
    path = tmp_path / "out.json"
    options = (
        "--model",
        "m",
        "--only",
        "agent",
        "--only",
        "few-shot",
        "--full",
        "--clock",
        "cpu",
        "--no-peer",
        "--dtype",
        "float32",
    )
    result = invoke("bench", *options, "--json", str(path))

    assert (0, "m in float32, 2 threads, seconds of the cpu clock\n") == (result.exit_code, result.output)
    asked = {"dtype": "float32", "only": ["agent", "few-shot"], "full": True, "processor_time": True, "peer": False}
    assert [("m", True, asked)] == calls
    assert "m" == json.loads(path.read_text())["model"]
    assert json.loads(path.read_text()) == json.loads(invoke("bench", "--json", "-").stdout)
    assert (None, False) == calls[1][:2]
    assert {"dtype": "auto", "only": (), "full": False, "processor_time": False, "peer": True} == calls[1][2]
    result = invoke("bench", "--json", str(tmp_path / "none" / "out.json"))
    assert 1 == result.exit_code
    assert "radixkv: cannot write" in result.output


def test_bench_refuses_a_workload_that_there_is_not() -> None:
    """One line, before a model is loaded."""
    result = invoke("bench", "--only", "chess")

    assert 1 == result.exit_code
    assert result.output.startswith("radixkv: unknown workload 'chess'; known: few-shot, ")
    assert 1 == len(result.output.splitlines())


def test_bench_with_a_tiny_model(tmp_path: Path) -> None:
    """The real thing: JSON alone on standard output, the progress elsewhere; no llama.cpp for a model not its own."""
    tiny_model(max_position_embeddings=4096).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    result = invoke("bench", "--model", str(tmp_path), "--only", "multi-turn", "--json", "-")
    found = json.loads(result.stdout)

    assert 0 == result.exit_code
    assert "multi-turn, none fcfs" in result.stderr  # the last one
    assert ["none", "hash", "hash", "radix", "radix", "radix", "radix", "none"] == [
        run["setup"]["prefix_cache"] for run in found["runs"]
    ]
    assert found["left_out"].startswith("llama.cpp is left out")
    assert all(run["of_best"] > 0.9 for run in found["runs"][1:-1])


class Missing(RadixKVError, ImportError):
    """As the engine raises it."""


def without(monkeypatch: pytest.MonkeyPatch, package: str, error: type[ImportError] = ModuleNotFoundError) -> None:
    """Let `package` not be installed."""
    real = builtins.__import__

    def guarded(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == package or name.startswith(f"{package}."):
            raise error(f"No module named {package!r}", name=package)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", guarded)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 3, and what to install."""
    monkeypatch.delitem(sys.modules, "radixkv.server.process")
    monkeypatch.delattr(radixkv.server, "process")
    monkeypatch.delitem(sys.modules, "uvicorn")
    without(monkeypatch, "uvicorn")
    result = invoke("serve")

    expected = "radixkv: this command needs the package 'uvicorn': pip install 'radixkv[server]'\n"
    assert (3, expected) == (result.exit_code, result.output)


def test_the_engines_own_word_about_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said as it is, with the same status."""
    with pytest.raises(typer.Exit) as caught, say.needs("server"):
        raise Missing("radixkv.engine needs the package 'torch': pip install 'radixkv[engine]'")

    assert 3 == caught.value.exit_code
    assert "radixkv: radixkv.engine needs the package 'torch'" in capsys.readouterr().err


def test_a_broken_import_of_our_own_is_no_missing_extra() -> None:
    """It stays a traceback: it is a bug."""
    with pytest.raises(ImportError, match="cannot import"), say.needs("server"):
        raise ImportError("cannot import name 'x'", name="radixkv.server")


def test_main_without_its_own_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The script itself needs a package, too."""
    monkeypatch.delitem(sys.modules, "radixkv.cli.commands")
    without(monkeypatch, "typer")
    with pytest.raises(SystemExit) as caught:
        radixkv.cli.main()

    assert 3 == caught.value.code
    assert "pip install 'radixkv[cli]'" in capsys.readouterr().err


def test_main_does_not_hide_a_module_of_ours_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is a broken installation, not a missing extra."""
    monkeypatch.delitem(sys.modules, "radixkv.cli.commands")
    without(monkeypatch, "radixkv.cli.commands")
    with pytest.raises(ModuleNotFoundError):
        radixkv.cli.main()


def test_main_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As the script, and as `python -m radixkv.cli`."""
    monkeypatch.setattr(sys, "argv", ["radixkv", "--version"])
    for run in (radixkv.cli.main, lambda: runpy.run_module("radixkv.cli", run_name="__main__")):
        with pytest.raises(SystemExit) as caught:
            run()
        assert 0 == caught.value.code
    runpy.run_module("radixkv.cli.__main__", run_name="imported")

    assert f"radixkv {__version__}\n" * 2 == capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["curve", "TRACE", "--blocks", "8"],
        ["replay", "TRACE", "--blocks", "8", "--workers", "1"],
        ["replay", "TRACE", "--blocks", "8", "--workers", "1", "--json", "-"],
        ["doctor", "TRACE", "--blocks", "8", "--workers", "1"],
        ["doctor", "TRACE", "--blocks", "8", "--workers", "1", "--json", "-"],
        ["generate", "cycle"],
        ["generate", "cycle", "--requests", "5000"],
        ["--version"],
        ["curve", "--help"],
    ],
    ids=" ".join,
)
def test_standard_output_that_takes_nothing(cycle: str, arguments: list[str]) -> None:
    """A full disk is one line and a status; who has read enough hears nothing."""
    command = [sys.executable, "-m", "radixkv.cli", *(cycle if part == "TRACE" else part for part in arguments)]
    with open("/dev/full", "w") as full:
        disk = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    reader, writer = os.pipe()
    os.close(reader)
    pipe = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)

    assert (1, 1) == (disk.returncode, pipe.returncode)
    assert disk.stderr.startswith("radixkv: ")
    assert disk.stderr.endswith("No space left on device\n")
    assert 1 == disk.stderr.count("\n")
    assert "" == pipe.stderr


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyboardInterrupt(), SystemExit), (OSError(errno.EIO, "Input/output error"), OSError)]
)
def test_main_on_the_way_to_a_command(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: type[BaseException]
) -> None:
    """Ctrl-C while it still imports is a status; an error that is no full disk stays what it is."""

    def interrupted() -> None:
        raise error

    monkeypatch.setattr(radixkv.cli, "_run", interrupted)
    with pytest.raises(expected) as caught:
        radixkv.cli.main()

    assert getattr(caught.value, "code", 130) == 130


def test_help_does_not_load_torch() -> None:
    """`radixkv --help` answers at once: what takes seconds is imported when it is needed."""
    code = (
        "import sys\nfrom radixkv.cli.commands import app\n"
        "heavy = {'torch', 'transformers', 'starlette', 'openai'} & set(sys.modules)\nprint(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert "[]\n" == done.stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GiB", 2**31), ("512M", 2**29), ("1.5g", 3 * 2**29), ("64 KB", 2**16), ("17", 17), (18, 18), ("1T", 2**40)],
)
def test_sizes(text: str | int, expected: int) -> None:
    """As people write them."""
    assert expected == say.size(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1X", "1e9", "1GiBs"])
def test_what_is_no_size(text: str) -> None:
    """Said, not guessed."""
    with pytest.raises(typer.BadParameter):
        say.size(text)
