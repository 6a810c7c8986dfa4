"""`/v1/completions` through OpenAI's client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Running


def text_after(server: Running, token: int, count: int) -> str:
    return "".join(server.engine.model.tokenizer.decode([token + step]) for step in range(1, count + 1))


def test_every_form_of_prompt(server: Running) -> None:
    """A text, several texts, tokens, several lists of tokens: choices come in the prompts' order."""
    tokenizer = server.engine.model.tokenizer
    texts, lists = ["the dog", "a prefix"], [[40, 41], [50, 51, 52]]
    last = [tokenizer(text)["input_ids"][-1] for text in texts]
    prompts: list[tuple[Any, list[int]]] = [
        (texts[0], last[:1]), (texts, last), (lists[0], [41]), (lists, [41, 52]),
    ]  # fmt: skip
    for prompt, ends in prompts:
        answer = server.client.completions.create(model="tiny", prompt=prompt, max_tokens=3)

        assert [text_after(server, end, 3) for end in ends] == [choice.text for choice in answer.choices]
        assert list(range(len(ends))) == [choice.index for choice in answer.choices]
        assert ("text_completion", "length") == (answer.object, answer.choices[0].finish_reason)
        assert answer.usage is not None
        assert 3 * len(ends) == answer.usage.completion_tokens


def test_prompts_times_choices(server: Running) -> None:
    """With `n`, a prompt's choices stand together, and each prompt counts once."""
    answer = server.client.completions.create(model="tiny", prompt=[[40, 41], [50, 51, 52]], n=2, max_tokens=2)

    expected = [text_after(server, end, 2) for end in (41, 41, 52, 52)]
    assert expected == [choice.text for choice in answer.choices]
    assert answer.usage is not None
    assert (5, 8) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)


def test_the_limit_is_16_tokens_by_itself(server: Running) -> None:
    """As in OpenAI's API."""
    answer = server.client.completions.create(model="tiny", prompt="a")

    assert answer.usage is not None
    assert 16 == answer.usage.completion_tokens


def test_a_stream_of_several_prompts(server: Running) -> None:
    """Pieces are told apart by their index; the last chunk has the counts."""
    stream = server.client.completions.create(
        model="tiny", prompt=[[40], [50]], max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    texts, usage = {0: "", 1: ""}, None
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text

    assert {0: text_after(server, 40, 3), 1: text_after(server, 50, 3)} == texts
    assert usage is not None
    assert (2, 6) == (usage.prompt_tokens, usage.completion_tokens)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_logprobs(server: Running, *, stream: bool) -> None:
    """Tokens, their logprobs, the likeliest others, and where in the text each begins."""
    body = {"prompt": [80], "logprobs": 2, "stream": stream}
    if stream:
        answer: Any = server.client.completions.create(model="tiny", max_tokens=3, **body)  # type: ignore[call-overload]
        parts = [chunk.choices[0].logprobs for chunk in answer]
        tokens = [token for part in parts for token in part.tokens]
        offsets = [offset for part in parts for offset in part.text_offset]
        tops = [top for part in parts for top in part.top_logprobs]
    else:
        logprobs = server.complete(**body).json()["choices"][0]["logprobs"]
        tokens, offsets, tops = logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"]
        assert [-0.5, -0.5, -0.5] == logprobs["token_logprobs"]

    assert [text_after(server, 80 + step, 1) for step in range(3)] == tokens
    assert [0, len(tokens[0]), len(tokens[0] + tokens[1])] == offsets
    assert [2, 2, 2] == [len(top) for top in tops]


def test_models(server: Running) -> None:
    """The one model, listed and by its name."""
    (model,) = server.client.models.list().data

    assert ("tiny", "radixkv") == (model.id, model.owned_by)
    assert model == server.client.models.retrieve("tiny")
