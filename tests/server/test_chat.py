"""`/v1/chat/completions` through OpenAI's client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.conftest import Running
from tests.tiny import SERVED_CONTEXT

HELLO: Any = [{"role": "user", "content": "the quick brown fox"}]


def prompt_tokens(server: Running, messages: Any) -> list[int]:
    tokenizer = server.engine.model.tokenizer
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens


def expected_text(server: Running, messages: Any, count: int) -> str:
    """What the engine without a model answers: tokens that count upwards."""
    last = prompt_tokens(server, messages)[-1]
    return "".join(server.engine.model.tokenizer.decode([last + step]) for step in range(1, count + 1))


def test_an_answer_in_one_piece(server: Running) -> None:
    """Text, reason, counts and names are where the client looks for them."""
    answer = server.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)

    assert expected_text(server, HELLO, 4) == answer.choices[0].message.content
    assert ("assistant", "length") == (answer.choices[0].message.role, answer.choices[0].finish_reason)
    assert ("chat.completion", "tiny") == (answer.object, answer.model)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    count = len(prompt_tokens(server, HELLO))
    assert (count, 4, count + 4) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.total_tokens,
    )


def test_the_second_turn_finds_the_first_cached(start: Any) -> None:
    """`cached_tokens` counts whole blocks of the first turn; the answer's own blocks are among them."""
    server: Running = start()
    first = server.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
    assert first.usage is not None
    assert first.usage.prompt_tokens_details is not None
    assert 0 == first.usage.prompt_tokens_details.cached_tokens
    second: Any = [*HELLO, {"role": "assistant", "content": "x"}, {"role": "user", "content": "and now?"}]

    answer = server.client.chat.completions.create(model="tiny", messages=second, max_tokens=2)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens or 0
    assert first.usage.prompt_tokens - 4 <= cached < answer.usage.prompt_tokens
    assert 0 == cached % 4


def test_a_stream(server: Running) -> None:
    """The role first, then the text piece by piece, then the reason; no usage unless asked for."""
    stream = server.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3, stream=True)

    chunks = list(stream)

    assert "assistant" == chunks[0].choices[0].delta.role
    assert expected_text(server, HELLO, 3) == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert [*[None] * (len(chunks) - 1), "length"] == [chunk.choices[0].finish_reason for chunk in chunks]
    assert {"chat.completion.chunk"} == {chunk.object for chunk in chunks}
    assert 1 == len({chunk.id for chunk in chunks})
    assert {None} == {chunk.usage for chunk in chunks}


def test_a_stream_with_usage(server: Running) -> None:
    """`include_usage` adds a last chunk without a choice, and null in all others."""
    response = server.chat(stream=True, stream_options={"include_usage": True})
    lines = [line for line in response.text.split("\n\n") if line]

    assert "data: [DONE]" == lines[-1]
    assert '"choices":[]' in lines[-2]
    assert '"cached_tokens":' in lines[-2]
    assert all('"usage":null' in line for line in lines[:-2])
    assert "text/event-stream" == response.headers["content-type"].partition(";")[0]


def test_several_choices_share_one_prompt(start: Any) -> None:
    """`n` choices count the prompt once, are numbered, and with a seed each has its own."""
    server: Running = start()

    answer = server.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2, n=3, seed=5)

    assert [0, 1, 2] == [choice.index for choice in answer.choices]
    assert answer.usage is not None
    assert (len(prompt_tokens(server, HELLO)), 6) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    assert [5, 6, 7] == [request.params.seed for request in server.engine.submitted]


def test_several_choices_in_a_stream(server: Running) -> None:
    """Each choice's pieces make its text, however they are interleaved."""
    stream = server.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3, n=2, stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""

    assert dict.fromkeys((0, 1), expected_text(server, HELLO, 3)) == texts


def test_logprobs(server: Running) -> None:
    """Every token with its own logprob, its bytes, and as many others as were asked for."""
    answer = server.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2
    )

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [2, 2, 2] == [len(entry.top_logprobs) for entry in logprobs.content]
    assert -0.5 == logprobs.content[0].logprob
    assert expected_text(server, HELLO, 3) == b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode(
        errors="replace"
    )


def test_logprobs_in_a_stream(server: Running) -> None:
    """The pieces' logprobs are those of their tokens."""
    stream = server.client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=3, logprobs=True, stream=True
    )
    entries = [
        entry for chunk in stream if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content or []
    ]

    assert [[], [], []] == [entry.top_logprobs for entry in entries]


def test_what_the_engine_is_told(start: Any) -> None:
    """Every field that is served reaches the engine."""
    server: Running = start()
    server.chat(
        temperature=0.5, top_p=0.9, top_k=3, seed=11, stop=["a", "b"], stop_token_ids=[9], repetition_penalty=1.5,
        ignore_eos=True, cache_salt="tenant", max_completion_tokens=2, max_tokens=2, logprobs=True, top_logprobs=1,
    )  # fmt: skip
    (request,) = server.engine.submitted

    params = request.params
    assert (0.5, 0.9, 3, 11) == (params.temperature, params.top_p, params.top_k, params.seed)
    assert (("a", "b"), (9,), 1.5, True) == (
        params.stop,
        params.stop_token_ids,
        params.repetition_penalty,
        params.ignore_eos,
    )
    assert (2, 1, "tenant") == (params.max_tokens, params.logprobs, request.namespace)


def test_tenants_do_not_share(start: Any) -> None:
    """A prompt that one `cache_salt` has cached is not found by another."""
    server: Running = start()
    cached = [
        server.chat(cache_salt=salt).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("a", "b", "a")
    ]

    assert [0, 0] == cached[:2]
    assert 0 < cached[2]


def test_without_a_limit_an_answer_fills_the_context(server: Running) -> None:
    """No `max_tokens`: as many as there is room for."""
    body = {"model": "tiny", "messages": HELLO}
    answer = server.http.post("/v1/chat/completions", json=body).json()

    assert "length" == answer["choices"][0]["finish_reason"]
    assert answer["usage"]["total_tokens"] <= SERVED_CONTEXT


def test_content_in_parts_and_the_developer_role(server: Running) -> None:
    """Text parts are joined, and a developer speaks as the system."""
    parts: Any = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        *HELLO,
    ]
    plain: Any = [{"role": "system", "content": "be brief"}, *HELLO]

    answers = [
        server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=3)
        for messages in (parts, plain)
    ]

    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_an_answer_can_be_sent_back_as_it_came(server: Running) -> None:
    """The client's own message object, with its empty fields, is a message."""
    message = server.client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3).choices[0].message
    history: Any = [*HELLO, message, {"role": "user", "content": "go on"}]

    answer = server.client.chat.completions.create(model="tiny", messages=history, max_tokens=1)

    assert answer.usage is not None
    assert 1 == answer.usage.completion_tokens


def test_labels_are_taken_and_said(server: Running) -> None:
    """Fields that only name a call have no effect, and the response says which they were."""
    response = server.chat(user="me", metadata={"a": "b"})

    assert 200 == response.status_code
    assert "metadata, user" == response.headers["x-radixkv-ignored"]
    assert response.json()["id"] == response.headers["x-request-id"]


def test_a_failing_request_is_an_error(server: Running) -> None:
    """The engine's own failure is a 500 for a whole answer."""
    with pytest.raises(openai.InternalServerError) as caught:
        server.client.completions.create(model="tiny", prompt=[7, 8])

    assert "engine_error" == caught.value.code


def test_a_failing_request_ends_its_stream_with_an_error(server: Running) -> None:
    """In a stream the failure is an event, and `[DONE]` comes all the same."""
    response = server.complete(prompt=[7, 8], stream=True)

    assert '"code":"engine_error"' in response.text
    assert response.text.endswith("data: [DONE]\n\n")
    with pytest.raises(openai.APIError, match="engine failed"):
        list(server.client.completions.create(model="tiny", prompt=[7, 8], stream=True))
