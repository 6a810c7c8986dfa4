"""Parts of the server by themselves: streams, states, and what only a broken engine shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, Histogram

from radixkv import BlockManager
from radixkv.engine import EngineStoppedError
from radixkv.server import cache_view
from radixkv.server.config import ServerConfig
from radixkv.server.errors import ApiError
from radixkv.server.generation import _observe
from radixkv.server.sse import EventStream, disconnected
from radixkv.server.state import ServerState, Serving
from tests.server.conftest import Running
from tests.server.waiting import until


def test_a_client_that_reads_nothing_is_let_go() -> None:
    """A stream that cannot be written for too long ends, and is closed."""
    closed: list[bool] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def main() -> None:
        stream = EventStream(events(), close=lambda: closed.append(True), seconds=0.05, headers={})
        await stream({"type": "http"}, receive, send)

    asyncio.run(main())
    assert [True] == closed


def test_other_messages_are_no_disconnect() -> None:
    """The rest of a body that nobody read may come first."""
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    asyncio.run(disconnected(receive))
    assert [] == list(messages)


def test_a_state_that_stops_while_it_starts() -> None:
    """A model that is ready too late does not make the server ready."""
    state = ServerState(ServerConfig())
    state.stop()
    state.ready(cast("Serving", None))

    assert "stopping" == state.phase
    with pytest.raises(ApiError, match="stopping"):
        state.serving()


def test_an_engine_that_stopped_by_itself(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """503, from calls and from the cache's view."""
    server: Running = start()

    def stopped(*_: Any, **__: Any) -> Any:
        raise EngineStoppedError("the engine is not running")

    monkeypatch.setattr(server.engine, "submit", stopped)
    monkeypatch.setattr(server.engine, "call", stopped)
    for response in (server.complete(), server.http.get("/cache")):
        assert (503, "engine_stopped") == (response.status_code, response.json()["error"]["code"])


def test_a_stream_in_which_the_server_fails(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told in an event, then `[DONE]`; the requests are cancelled."""
    server: Running = start(step_seconds=0.02)

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("bug")

    monkeypatch.setattr("radixkv.server.answers.CompletionForm.piece", broken)
    lines: list[str] = []
    with server.http.stream(
        "POST", "/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 90, "stream": True}
    ) as response:
        try:
            lines.extend(response.iter_lines())  # what came before the error stays
        except Exception as error:  # noqa: BLE001  # the connection is closed, unfinished
            assert "incomplete" in str(error)

    assert '"code":"internal_error"' in lines[0]
    assert "data: [DONE]" in lines
    until(lambda: server.state.calls == 0)
    server.check()


def test_tokens_without_text_are_not_sent(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that completes no character makes no chunk; the counts have it all the same."""
    server: Running = start()
    monkeypatch.setattr(server.engine.model.tokenizer, "decode", lambda *_, **__: "")
    response = server.complete(stream=True, max_tokens=5, stream_options={"include_usage": True})
    chunks = [line for line in response.text.split("\n\n") if '"text"' in line]

    assert 1 == len(chunks)
    assert '"finish_reason":"length"' in chunks[0]
    assert '"completion_tokens":5' in response.text


def test_a_drawing_shows_locks_and_joins_what_was_used_at_once() -> None:
    """An answer grows block by block, and is one line all the same; a lock on part of it starts another."""
    manager = BlockManager(32, 1)
    table = manager.admit([1, 2, 3])
    for computed in range(3, 8):
        manager.commit(table, computed)
        manager.grow(table, [computed + 1])
    running = cache_view.view(manager, decode=None, tree=True)["tree"].splitlines()
    manager.finish(table)
    manager.admit([1, 2, 9])
    forked = cache_view.view(manager, decode=str, tree=True)

    assert ["5 nodes, 7 tokens cached", "└─ 7 tokens, 1 lock, age 0"] == running
    assert ["└─ 2 tokens, 1 lock, age 0  '[1, 2]'", "   └─ 5 tokens, age 1  '[3, 4, 5, 6, 7]'"] == forked[
        "tree"
    ].splitlines()[1:]
    assert [1, 0] == [entry["locks"] for entry in forked["prefixes"]]


def test_a_time_is_noted_between_moments_that_came() -> None:
    """A request that ended before its first token has no time to it."""
    registry = CollectorRegistry()
    histogram = Histogram("seconds", "Some.", registry=registry)
    _observe(histogram, 1.0, None)
    _observe(histogram, None, 1.0)
    _observe(histogram, 1.0, 5.0, 2)

    assert [1, 2] == [registry.get_sample_value(f"seconds_{name}") for name in ("count", "sum")]


def test_long_texts_are_cut() -> None:
    """No more tokens are read than letters are shown, and no more letters shown than fit."""
    manager = BlockManager(256, 1)
    table = manager.admit(list(range(200)))
    manager.commit(table, 200)
    manager.finish(table)
    read: list[int] = []

    def decode(tokens: Any) -> str:
        read.append(len(tokens))
        return "word " * len(tokens)

    view = cache_view.view(manager, decode=decode, tree=True)

    assert [cache_view.LETTERS_SHOWN] * 2 == read
    assert cache_view.LETTERS_SHOWN == len(view["prefixes"][0]["text"])
    assert view["prefixes"][0]["text"].endswith("…")
