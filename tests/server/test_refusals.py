"""What the server says no to, and how: OpenAI's error object with the field's name."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

import openai
import pytest

from radixkv.server.generation import Pace
from tests.server.conftest import Running
from tests.server.waiting import until
from tests.tiny import SERVED_CONTEXT

USER = {"role": "user", "content": "hi"}
BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"stream_options": {"inclued_usage": True}, "stream": True}, "stream_options.inclued_usage", "unknown_parameter"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"temperature": 2.5}, "temperature", "invalid_value"),
    ({"temperature": "0.5"}, "temperature", "invalid_value"),
    ({"temperature": True}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_k": -1}, "top_k", "invalid_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 1000}, "n", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"stop": ""}, "stop", "invalid_value"),
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
    ({"stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"cache_salt": ""}, "cache_salt", "invalid_value"),
    ({"model": None}, "model", "missing_required_parameter"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_value"),
    ({"messages": ["hi"]}, "messages[0]", "invalid_value"),
    ({"messages": [USER, {"role": "robot", "content": "hi"}]}, "messages[1].role", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "user", "content": "hi", "mood": "good"}]}, "messages[0].mood", "unknown_parameter"),
    ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role", "unsupported_value"),
    (
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
        "messages[0].tool_calls",
        "unsupported_parameter",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "unsupported_value",
    ),
    ({"tools": [{"type": "function"}]}, "tools", "unsupported_value"),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
    ({"presence_penalty": 0.5}, "presence_penalty", "unsupported_value"),
    ({"frequency_penalty": -1}, "frequency_penalty", "unsupported_value"),
    ({"logit_bias": {"5": 100}}, "logit_bias", "unsupported_value"),
    ({"logit_bias": []}, "logit_bias", "unsupported_value"),
    ({"presence_penalty": False}, "presence_penalty", "unsupported_value"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "unsupported_value"),
    ({"messages": [{"content": {"text": "hi"}, "role": "user"}]}, "messages[0].content", "invalid_value"),
    ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "unsupported_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_a_bad_field_is_named(server: Running, fields: dict[str, Any], param: str, code: str) -> None:
    """Status 400, the field's path as `param`, a code that programs can read, and no request in the engine."""
    submitted = len(server.engine.submitted)
    response = server.chat(**fields)
    error = response.json()["error"]

    assert 400 == response.status_code
    assert (param, code, "invalid_request_error") == (error["param"], error["code"], error["type"])
    assert param.partition(".")[0].partition("[")[0] in error["message"]
    assert submitted == len(server.engine.submitted)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [100_000]}, "prompt"),
        ({"prompt": [[1], [100_000]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [[[1]]]}, "prompt[0][0]"),
        ({"best_of": True}, "best_of"),
        ({"echo": 0}, "echo"),
        ({"n": 10**30}, "n"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_completion_field_is_named(server: Running, fields: dict[str, Any], param: str) -> None:
    """The same for the other call."""
    response = server.complete(**fields)

    assert 400 == response.status_code
    assert param == response.json()["error"]["param"]


def test_neutral_values_are_taken(server: Running) -> None:
    """A client that spells out the defaults of what is not served is not turned away."""
    response = server.chat(
        tools=[], response_format={"type": "text"}, presence_penalty=0, frequency_penalty=0.0, logit_bias={},
        store=False, service_tier="auto", parallel_tool_calls=True, tool_choice="none", modalities=["text"],
        temperature=None, stop=None, seed=None,
    )  # fmt: skip

    assert 200 == response.status_code


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"model": "\\ud800"}'])
def test_what_is_no_json_object(server: Running, body: bytes) -> None:
    """Status 400, and no field to name."""
    response = server.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})

    assert (400, "invalid_json") == (response.status_code, response.json()["error"]["code"])


def test_another_kind_of_content(server: Running) -> None:
    """A browser's form post, which needs no leave of ours to be sent, is not read."""
    response = server.http.post("/v1/chat/completions", content=b"{}", headers={"Content-Type": "text/plain"})

    assert 415 == response.status_code


def test_the_wrong_model(server: Running) -> None:
    """404, in calls and in the list."""
    with pytest.raises(openai.NotFoundError) as caught:
        server.client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hi"}])
    assert ("model_not_found", "model") == (caught.value.code, caught.value.param)
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("other/name")


def test_no_such_path(server: Running) -> None:
    """Error objects for a wrong path and a wrong method, too."""
    assert (404, "not_found") == _status(server.http.get("/v1/embeddings"))
    assert (405, "method_not_allowed") == _status(server.http.get("/v1/chat/completions"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prompt_longer_than_the_context(server: Running, *, stream: bool) -> None:
    """400 before a stream begins, with the field and the numbers."""
    response = server.complete(prompt=[9] * (SERVED_CONTEXT + 1), stream=stream)
    error = response.json()["error"]

    assert (400, "context_length_exceeded") == _status(response)
    assert "prompt" == error["param"]
    assert str(SERVED_CONTEXT + 1) in error["message"]
    messages = [{"role": "user", "content": "dog " * SERVED_CONTEXT}]
    response = server.chat(messages=messages, stream=stream)
    assert (400, "context_length_exceeded") == _status(response)
    assert "messages" == response.json()["error"]["param"]


def test_a_prompt_longer_than_the_pool(start: Any) -> None:
    """What no amount of waiting would make room for is refused at once; one that just fits is served."""
    server: Running = start(blocks=4)

    assert (400, "context_length_exceeded") == _status(server.complete(prompt=[9] * 17))
    assert 200 == server.complete(prompt=[9] * 15).status_code


def test_a_full_queue(start: Any) -> None:
    """429 with Retry-After; what of the call was queued already is taken out again."""
    server: Running = start(max_waiting=2)
    server.engine.gate.clear()

    response = server.complete(prompt=["a", "b", "c"])

    assert (429, "queue_full") == _status(response)
    assert 1 <= int(response.headers["retry-after"])
    assert "rate_limit_error" == response.json()["error"]["type"]
    server.engine.gate.set()
    server.check()
    assert 2 == server.metric("radixkv_requests_total", reason="cancelled")


def test_a_full_queue_says_when_to_come_back() -> None:
    """After what those that wait take at the pace of the last minute: 8 ends in 4 s, so 20 take 10 s.

    At least 1 s, also where no pace is known; and no more than clients follow.
    """
    now = 0.0
    pace = Pace(lambda: now)
    assert 1 == pace.retry_seconds(1000)
    for _ in range(8):
        pace.ended()
        now += 0.5

    assert [1, 10, 11, 60] == [pace.retry_seconds(waiting) for waiting in (0, 20, 21, 1000)]
    now += 8
    assert 30 == pace.retry_seconds(20)  # and none since: 8 in 12 s
    now += 60
    assert 1 == pace.retry_seconds(20)


def test_the_pace_is_that_of_the_server(start: Any) -> None:
    """Requests that end and those that are cancelled both count."""
    server: Running = start(max_waiting=1)
    assert 200 == server.complete().status_code
    server.engine.gate.clear()
    for _ in range(2):
        assert 429 == server.complete(prompt=["a", "b"]).status_code
    server.engine.gate.set()

    assert 3 == len(server.state._pace._ends)


def test_api_key(start: Any) -> None:
    """Without the key nothing but `/health` answers."""
    server: Running = start(api_key="secret")

    assert 200 == server.http.get("/health").status_code
    for method, path in [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/cache"), ("POST", "/cache/reset")]:
        response = server.http.request(method, path)
        assert (401, "invalid_api_key") == _status(response)
        assert "Bearer" == response.headers["www-authenticate"]
    for wrong in ("Bearer wrong", "Basic secret", "secret", "Bearer sécret"):
        assert 401 == server.http.get("/v1/models", headers={b"Authorization": wrong.encode()}).status_code
    assert "tiny" == server.client.models.list().data[0].id


def test_a_page_of_another_site_cannot_post(server: Running) -> None:
    """A browser says where a page is from; a page of our own host may call."""
    host = server.url.removeprefix("http://")
    assert (403, "cross_origin") == _status(server.http.post("/cache/reset", headers={"Origin": "http://evil.example"}))
    assert 403 == server.http.post("/cache/reset", headers={"Origin": "null"}).status_code
    assert 200 == server.http.post("/cache/reset", headers={"Origin": f"http://{host}"}).status_code


def test_a_big_body(start: Any) -> None:
    """413, whether the size is declared or only turns out."""
    server: Running = start(max_body_bytes=1000)
    headers = {"Content-Type": "application/json"}

    def chunks() -> Any:
        for _ in range(3):
            yield b"x" * 500

    declared = server.http.post("/v1/completions", content=b"x" * 1001, headers=headers)
    chunked = server.http.post("/v1/completions", content=chunks(), headers=headers)

    assert [(413, "body_too_large")] * 2 == [_status(declared), _status(chunked)]


def test_a_slow_body(start: Any) -> None:
    """408 for a client that says it will send more, and does not."""
    import socket

    server: Running = start(body_seconds=0.2)
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_that_takes_too_long(start: Any, *, stream: bool) -> None:
    """It is ended and its blocks are back; a stream says so in an event."""
    server: Running = start(request_seconds=0.3, step_seconds=0.05)
    response = server.complete(max_tokens=400, stream=stream)

    if stream:
        assert '"code":"request_timeout"' in response.text
        assert response.text.endswith("data: [DONE]\n\n")
    else:
        assert (504, "request_timeout") == _status(response)
    server.check()


def test_a_server_that_is_still_starting(start: Any) -> None:
    """503 with Retry-After, and `/health` says why."""
    server: Running = start(ready=False)

    assert (503, {"status": "starting"}) == (server.http.get("/health").status_code, server.http.get("/health").json())
    response = server.chat()
    assert (503, "server_starting") == _status(response)
    assert "retry-after" in response.headers
    assert 503 == server.http.get("/cache").status_code
    assert 200 == server.http.get("/metrics").status_code


def test_a_quiet_stream_beats(start: Any) -> None:
    """While nothing comes, a comment does; clients skip it."""
    server: Running = start(heartbeat_seconds=0.05)
    server.engine.gate.clear()
    threading.Timer(0.3, server.engine.gate.set).start()

    response = server.complete(stream=True)

    assert response.text.startswith(": still here\n\n")
    until(lambda: server.state.calls == 0)
    assert response.text.endswith("data: [DONE]\n\n")


def _status(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "n", "seed", "presence_penalty", "top_k", "stop", "model"])
def test_numbers_that_are_none(server: Running, field: str, number: str) -> None:
    """The field is named, as Python's `json` writes such numbers."""
    body = f'{{"prompt": "a", "model": "tiny", "{field}": {number}}}'
    response = server.http.post("/v1/completions", content=body, headers=JSON)

    assert 400 == response.status_code
    assert field == response.json()["error"]["param"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "tiny", "prompt": "\xff"}',
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "a", "max_tokens": ' + b"9" * 100_000 + b"}",
        '{"model": "tiny", "prompt": "a"}'.encode("utf-16"),
    ],
    ids=["empty", "cut", "lists", "objects", "deep prompt", "bytes", "surrogate", "digits", "utf-16"],
)
def test_what_is_no_json(server: Running, body: bytes) -> None:
    """An error object that says where, and quotes nothing."""
    response = server.http.post("/v1/completions", content=body, headers=JSON)
    error = response.json()["error"]

    assert (400, "invalid_json") == (response.status_code, error["code"])
    assert "line 1 column" in error["message"]


@pytest.mark.parametrize("origin", ["http://[::1", "null", "", "http://"])
def test_an_origin_that_is_none(server: Running, origin: str) -> None:
    """Is another site's."""
    response = server.http.post("/v1/completions", json={}, headers={"Origin": origin})

    assert (403, "cross_origin") == (response.status_code, response.json()["error"]["code"])


def test_a_head_that_does_not_come(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends nothing, or its headers bit by bit, is let go; one whose answer takes longer is not."""
    monkeypatch.setattr("radixkv.server.connection.HEAD_SECONDS", 0.5)
    server: Running = start(step_seconds=0.05)
    host, _, port = server.url.removeprefix("http://").partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=20) as silent,
        socket.create_connection((host, int(port)), timeout=20) as slow,
    ):
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\n")
        assert b"" == silent.recv(1)
        with suppress(OSError):
            for _ in range(1000):
                slow.sendall(b"X")
                time.sleep(0.01)
            raise AssertionError("it is not let go")

    assert 200 == server.complete(max_tokens=20).status_code
    assert 200 == server.complete(max_tokens=1).status_code


def test_a_head_that_is_too_big(server: Running) -> None:
    """It is not read to its end."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    sent = 0
    with socket.create_connection((host, int(port)), timeout=20) as sock, suppress(OSError):
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Big: ")
        while sent < 50_000_000:
            sent += sock.send(b"x" * 10_000)

    assert sent < 50_000_000
