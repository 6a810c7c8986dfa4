"""The process's parts, in the tests' own process: start, failure, signals, and the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import openai
import pytest

from radixkv.engine import Engine, EngineConfig
from radixkv.server import demo
from radixkv.server.config import ServerConfig
from radixkv.server.process import serve
from tests.server.conftest import Running
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import until


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@contextmanager
def in_background(work: Any) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_a_life(tokenizer: Any, number: signal.Signals) -> None:
    """The port opens first, then the model is ready; a signal ends it all, and the handlers are as they were."""
    port, gate, seen = free_port(), threading.Event(), []
    engine = FakeEngine(tokenizer, EngineConfig(num_blocks=64, block_size=4))
    before = signal.getsignal(number)

    def make() -> Engine:
        gate.wait(20)
        return cast("Engine", engine)

    def visit() -> None:
        def status() -> str | None:
            try:
                return str(httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).json()["status"])
            except httpx.TransportError:
                return None

        until(status)
        seen.append(status())
        gate.set()
        until(lambda: status() == "ready")
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x") as client:
            seen.append(client.models.list().data[0].id)
        os.kill(os.getpid(), number)

    with in_background(visit):
        serve(make, ServerConfig(port=port, access_log=False))

    assert ["starting", "tiny"] == seen
    assert before == signal.getsignal(number)
    assert not engine._thread.is_alive()


def test_a_model_that_fails_to_load_closes_the_port() -> None:
    """Its error is the caller's."""

    def make() -> Engine:
        raise RuntimeError("no such model")

    with pytest.raises(RuntimeError, match="no such model"):
        serve(make, ServerConfig(port=free_port()))


def test_a_signal_while_the_model_loads(tokenizer: Any) -> None:
    """The end does not wait for the loading; what is loaded afterwards is nobody's."""
    gate, loading = threading.Event(), threading.Event()
    engine = FakeEngine(tokenizer, EngineConfig(num_blocks=64, block_size=4))

    def make() -> Engine:
        loading.set()
        gate.wait(20)
        return cast("Engine", engine)

    def end() -> None:
        loading.wait(20)
        os.kill(os.getpid(), signal.SIGTERM)

    with in_background(end):
        serve(make, ServerConfig(port=free_port()))
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "radixkv-load":
            thread.join(20)

    engine.shutdown(drain_seconds=0)


def test_the_demo_shows_each_turn(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later turns find the earlier ones cached; the lines say so, and the tree is drawn."""
    server: Running = start(show_text=True, blocks=512)
    told: list[Any] = []

    @contextmanager
    def serving(arguments: Any) -> Iterator[str]:
        told.append(arguments)
        yield server.url

    monkeypatch.setattr(demo, "serving", serving)
    lines: list[str] = []
    turns = demo.run("m", max_tokens=8, say=lines.append)

    assert [["--model", "m", "--show-text", "--no-access-log"]] == told
    assert 0 == turns[0].cached_tokens < turns[1].cached_tokens < turns[2].cached_tokens
    assert 0 < turns[3].cached_tokens < turns[1].cached_tokens
    assert all(turn.first_token_seconds > 0 for turn in turns)
    text = "\n".join(lines)
    assert all(question in text for question in demo.QUESTIONS)
    assert "tokens cached" in text
    assert ["├─", "└─"] == [line.split()[0] for line in text.splitlines() if line.startswith("   ") and "age" in line]
    demo.run(None, max_tokens=8, say=lines.append)
    assert ["--show-text", "--no-access-log"] == told[1]


def test_the_demo_says_what_it_was_refused(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model too small for the chat, say."""
    server: Running = start(blocks=8)

    @contextmanager
    def serving(_: Any) -> Iterator[str]:
        yield server.url

    monkeypatch.setattr(demo, "serving", serving)
    with pytest.raises(demo.DemoError, match="at most 31 fit"):
        demo.run("m", max_tokens=8, say=lambda _: None)


STUB = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"status": STATUS}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
if STUBBORN:
    import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
"""


def stub(monkeypatch: pytest.MonkeyPatch, status: str, *, stubborn: bool = False) -> None:
    """Let `serving` start a process that only answers `/health`."""
    code = STUB.replace("STATUS", repr(status)).replace("STUBBORN", str(stubborn))
    real = subprocess.Popen

    def popen(command: list[str]) -> Any:
        assert [sys.executable, "-m", "radixkv.cli", "serve", "--port"] == command[:5]
        return real([sys.executable, "-c", code, "serve", "--port", *command[5:]])

    monkeypatch.setattr(subprocess, "Popen", popen)


@pytest.mark.parametrize("stubborn", [False, True], ids=["willing", "stubborn"])
def test_the_demos_server_ends_with_it(monkeypatch: pytest.MonkeyPatch, *, stubborn: bool) -> None:
    """It is waited for at both ends, and killed if it does not go."""
    stub(monkeypatch, "ready", stubborn=stubborn)
    monkeypatch.setattr(demo, "END_SECONDS", 1.0)
    with demo.serving([]) as url:
        assert 200 == httpx.get(f"{url}/health", timeout=5).status_code

    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", timeout=5)


def test_the_demo_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a server that never gets ready, nor for one that ended."""
    real = subprocess.Popen
    stub(monkeypatch, "starting")
    monkeypatch.setattr(demo, "START_SECONDS", 0.5)
    with pytest.raises(demo.DemoError, match="not ready"), demo.serving([]):
        pass
    monkeypatch.setattr(demo, "START_SECONDS", 20.0)
    monkeypatch.setattr(subprocess, "Popen", lambda _: real([sys.executable, "-c", "raise SystemExit(1)"]))
    with pytest.raises(demo.DemoError, match="ended with status 1"), demo.serving([]):
        pass


def test_a_stream_without_counts_is_no_answer() -> None:
    """The demo is about the counts: without them it fails rather than shows nothing."""
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **_: [])))

    with pytest.raises(demo.DemoError, match="without its token counts"):
        demo.ask(cast("openai.OpenAI", client), "m", [], 1)
