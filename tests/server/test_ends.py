"""How calls end early: clients that hang up, and a server that stops."""

from __future__ import annotations

import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from radixkv.engine import Engine, EngineConfig, load_model
from radixkv.server.config import ServerConfig
from tests.server.conftest import Running, running
from tests.server.waiting import until
from tests.tiny import save_tiny


def hang_up(server: Running, *, stream: bool) -> None:
    """Send a call, wait until it runs, and close the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    body = f'{{"model": "tiny", "prompt": [40, 41], "max_tokens": 5000, "stream": {str(stream).lower()}}}'.encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(head.encode() + body)
        until(lambda: server.engine.snapshot().running)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_hangs_up_is_cancelled(start: Any, *, stream: bool) -> None:
    """Its request leaves the engine within moments, long before its tokens are made."""
    server: Running = start(step_seconds=0.02, blocks=2000)
    hang_up(server, stream=stream)
    gone = time.monotonic()

    until(lambda: not server.engine.snapshot().running)

    assert time.monotonic() - gone < 2
    server.check()
    assert 1 == server.metric("radixkv_requests_total", reason="cancelled")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_hangs_up_while_nothing_comes(start: Any, *, stream: bool) -> None:
    """Between two tokens, too: nothing has to be written to see that nobody reads."""
    server: Running = start(step_seconds=0.02, blocks=2000)
    host, _, port = server.url.removeprefix("http://").partition(":")
    server.engine.gate.clear()
    body = f'{{"model": "tiny", "prompt": [40], "stream": {str(stream).lower()}}}'.encode()
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        until(lambda: server.engine.snapshot().waiting)

    until(lambda: not server.engine.snapshot().waiting)

    server.engine.gate.set()
    server.check()


def test_half_of_32_streams_hang_up(start: Any) -> None:
    """The other half gets all of its text; every block is back."""
    server: Running = start(step_seconds=0.005, blocks=512)
    before = threading.active_count()

    def chat(number: int) -> int:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=30)
        with (
            client,
            client.completions.create(
                model="tiny", prompt=[40 + number % 4, 50, 60 + number], max_tokens=40, stream=True
            ) as stream,
        ):
            pieces = 0
            for _ in stream:
                pieces += 1
                if number % 2 and pieces == 5:
                    break
        return pieces

    with ThreadPoolExecutor(32) as pool:
        pieces = list(pool.map(chat, range(32)))

    server.check()
    assert [5] * 16 == pieces[1::2]
    assert all(count >= 30 for count in pieces[::2])
    assert 16 == server.metric("radixkv_requests_total", reason="length")
    assert before >= threading.active_count() - 1


def test_streams_finish_within_the_grace_time(start: Any) -> None:
    """A server told to stop lets a stream end by itself, and takes no new calls."""
    server: Running = start(step_seconds=0.02, blocks=2000, grace_seconds=10)
    done: list[str] = []

    def read() -> None:
        done.append(server.complete(prompt=[40], max_tokens=40, stream=True).text)

    reader = threading.Thread(target=read)
    reader.start()
    until(lambda: server.engine.snapshot().running)
    server.server.should_exit = True
    until(lambda: server.state.phase == "stopping")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url}/health")
    reader.join(20)
    server.thread.join(20)

    assert '"finish_reason":"length"' in done[0]
    assert done[0].endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_calls_that_outlast_the_grace_time_are_told(start: Any, *, stream: bool) -> None:
    """An error event and `[DONE]`, or a 503: no connection is cut."""
    server: Running = start(step_seconds=0.02, blocks=2000, grace_seconds=0.3)
    done: list[httpx.Response] = []
    reader = threading.Thread(target=lambda: done.append(server.complete(prompt=[40], max_tokens=5000, stream=stream)))
    reader.start()
    until(lambda: server.engine.snapshot().running)

    server.server.should_exit = True
    reader.join(20)
    server.thread.join(20)

    assert '"code":"server_stopping"' in done[0].text
    assert (200 if stream else 503) == done[0].status_code
    if stream:
        assert done[0].text.endswith("data: [DONE]\n\n")
    assert not server.engine.snapshot().running


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_engine_that_dies_is_noticed(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    """The model ends the engine's thread, amid a call: that is told, and `/health` and later calls say 503 and why."""
    caplog.set_level(logging.CRITICAL, "radixkv")
    save_tiny(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    engine: Any = Engine(loaded, EngineConfig(num_blocks=64, block_size=4))
    forward, steps = loaded.model.forward, 0

    def deadly(*args: Any, **options: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            raise SystemExit(f"dead, by {options['input_ids'].tolist()}")
        return forward(*args, **options)

    loaded.model.forward = deadly
    with running(engine, ServerConfig()) as server:
        assert 200 == server.http.get("/health").status_code
        response = server.complete(prompt=[40, 41], max_tokens=50, ignore_eos=True, stream=stream)
        until(lambda: engine.failure is not None)
        health, after = server.http.get("/health"), server.complete()

    assert (200 if stream else 500) == response.status_code
    assert '"code":"engine_error"' in response.text
    if stream:
        assert '"finish_reason":null' in response.text  # it had begun
        assert response.text.endswith("data: [DONE]\n\n")
    reason = "The engine ended with SystemExit; the log has the details."
    assert (503, {"status": "failed", "reason": reason}) == (health.status_code, health.json())
    assert (503, "engine_stopped") == (after.status_code, after.json()["error"]["code"])


def test_steps_that_fail_one_after_the_other_are_noticed(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two may be the requests' own fault; after the third `/health` says so, until a step succeeds."""
    caplog.set_level(logging.CRITICAL, "radixkv")
    save_tiny(tmp_path)
    loaded = load_model(str(tmp_path), dtype="float32", device="cpu")
    forward, broken = loaded.model.forward, True

    def failing(*args: Any, **options: Any) -> Any:
        if broken:
            raise RuntimeError("out of order")
        return forward(*args, **options)

    loaded.model.forward = failing
    seen = []
    engine: Any = Engine(loaded, EngineConfig(num_blocks=64, block_size=4))
    with running(engine, ServerConfig()) as server:
        for _ in range(3):
            assert 500 == server.complete().status_code
            seen.append(server.http.get("/health"))
        broken = False
        assert 200 == server.complete().status_code
        assert "radixkv_failed_steps_total 3.0" in server.http.get("/metrics").text.splitlines()
        seen.append(server.http.get("/health"))

    assert [200, 200, 503, 200] == [health.status_code for health in seen]
    reason = "The last 3 steps failed; the log has the details."
    assert {"status": "failing", "reason": reason} == seen[2].json()


def test_a_stopped_engine_is_said(start: Any) -> None:
    """Requests that an engine drops when it shuts down hear of it."""
    server: Running = start(step_seconds=0.02, blocks=2000)
    done: list[httpx.Response] = []
    reader = threading.Thread(target=lambda: done.append(server.complete(prompt=[40], max_tokens=5000)))
    reader.start()
    until(lambda: server.engine.snapshot().running)

    server.engine.shutdown(drain_seconds=0)
    reader.join(20)

    assert (503, "server_stopping") == (done[0].status_code, done[0].json()["error"]["code"])
