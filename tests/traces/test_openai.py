"""What becomes of a request to the OpenAI API, and how text becomes tokens."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from radixkv.errors import MissingExtraError, TraceError
from radixkv.traces import EstimatingTokenizer, Request, TokenizerError, load_tokenizer, read_trace
from radixkv.traces.tokenizer import _PIECES

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def read(folder: Path, *records: dict[str, Any], **options: Any) -> list[Request]:
    """The requests of a log."""
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return list(read_trace(path, format="openai", **options))


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def asked(*turns: str) -> str:
    return "".join(turns) + "<|im_start|>assistant\n"


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [USER]}, asked(turn("user", "Hi"))),
        (
            {"messages": [{"role": "system", "content": "Be kind."}, USER], "tools": [{"b": 1, "a": "é"}, {"c": 2}]},
            asked(turn("system", 'Be kind.\n\n# Tools\n{"b": 1, "a": "é"}\n{"c": 2}'), turn("user", "Hi")),
        ),
        ({"messages": [USER], "functions": [{"c": 2}]}, asked(turn("system", '# Tools\n{"c": 2}'), turn("user", "Hi"))),
        ({"messages": [USER], "tools": []}, asked(turn("user", "Hi"))),
        (
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
                          {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"}]},
            asked(turn("user", "Hi"), turn("assistant", "\n".join(2 * ['{"name": "f", "arguments": {"a": 1}}'])),
                  turn("tool", "42")),
        ),
        (
            {"messages": [{"role": "assistant", "content": "So:", "function_call": {"name": "f", "arguments": {}}}]},
            asked(turn("assistant", 'So:\n{"name": "f", "arguments": {}}')),
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"refusal": "c"}]}]},
            asked(turn("user", "abc")),
        ),
    ],
)  # fmt: skip
def test_a_chat_as_text(tmp_path: Path, body: dict[str, Any], expected: str) -> None:
    """Tools behind the system message, in the order and with the keys of the log; calls as lines of JSON."""
    (request,) = read(tmp_path, body)

    assert expected == request.text
    assert EstimatingTokenizer().encode(expected) == request.prompt
    assert len(request.prompt) == request.input_tokens


def test_an_image_is_a_mark(tmp_path: Path) -> None:
    """Equal ones equal, different ones different, and each one token, however long its base64."""
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "B" * 5000}}
    one, again, another = read(
        tmp_path, *({"messages": [{"role": "user", "content": [part]}]} for part in (IMAGE, IMAGE, other))
    )

    assert one.prompt == again.prompt != another.prompt
    assert one.input_tokens == another.input_tokens < 15


ANSWER = {"role": "assistant", "content": "Hello, you."}
CHAT = {"choices": [{"message": ANSWER}], "created": 7, "usage": {"completion_tokens": 99}}


@pytest.mark.parametrize(
    "record",
    [
        {"request": {"messages": [USER]}, "response": CHAT},
        {"body": {"messages": [USER]}, "response": {"status_code": 200, "body": CHAT}},
        {"request": {"body": {"messages": [USER]}}, "response": CHAT},
        {"messages": [USER], "response": CHAT},
        {"messages": [USER], **CHAT},
    ],
)
def test_an_answer_goes_on_where_the_prompt_ends(tmp_path: Path, record: dict[str, Any]) -> None:
    """So the next turn's prompt begins with both, as the cache will see it."""
    first, second = read(tmp_path, record, {"messages": [USER, ANSWER, USER]})
    both = first.prompt.extended(first.output)

    assert both == second.prompt.prefix(len(both))
    assert len(first.output) == first.output_tokens > 0
    assert 7.0 == first.timestamp


@pytest.mark.parametrize(
    ("fields", "length", "known"),
    [
        ({}, 0, False),
        ({"response": {"usage": {"completion_tokens": 9}}}, 9, False),
        ({"response": {"error": {"message": "no"}, "choices": None}}, 0, False),
        ({"choices": [{"text": "b c"}]}, 2, True),
        ({"response": "b c"}, 2, True),
    ],
)
def test_what_is_told_of_an_answer(tmp_path: Path, fields: dict[str, Any], length: int, known: bool) -> None:
    """Its text, or its length, or nothing."""
    (request,) = read(tmp_path, {"prompt": "a", **fields})

    assert (length, known) == (request.output_tokens, len(request.output) > 0)


def test_several_prompts_in_one(tmp_path: Path) -> None:
    """Each is a request; whose the answers are nobody tells."""
    texts = read(tmp_path, {"prompt": ["a", "b"], "choices": [{"text": "c"}, {"text": "d"}]})
    ids = read(tmp_path, {"prompt": [[1], [2, 3]]})

    assert [("a", 0), ("b", 0)] == [(request.text, request.output_tokens) for request in texts]
    assert [[1], [2, 3]] == [request.prompt.tolist() for request in ids]


@pytest.mark.parametrize("date", ["1970-01-02T00:00:01Z", "1970-01-02 00:00:01", "1970-01-02T01:00:01+01:00"])
def test_dates(tmp_path: Path, date: str) -> None:
    """Seconds since 1970; UTC where nothing is said."""
    assert [86401.0] == [request.timestamp for request in read(tmp_path, {"prompt": "a", "timestamp": date})]


@given(st.text())
def test_no_character_is_lost(text: str) -> None:
    """The pieces of the estimate are the text."""
    assert text == "".join(_PIECES.findall(text))
    assert len(_PIECES.findall(text)) == len(EstimatingTokenizer().encode(text))


@given(st.text("ab cé\n日1,"), st.text("ab cé\n日1,"), st.text("ab cé\n日1,"))
def test_texts_that_begin_alike_have_tokens_that_do(start: str, one: str, other: str) -> None:
    """All but those of the last piece or two."""
    tokens = [EstimatingTokenizer().encode(start + rest).tolist() for rest in (one, other)]
    whole = max(len(_PIECES.findall(start)) - 2, 0)

    assert tokens[0][:whole] == tokens[1][:whole]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("The cat sat on the mat.", 7),
        ("<|im_start|>user\n", 3),
        ("    indented", 2),
        ("12345", 2),
        ("日本語", 3),
    ],
)
def test_the_estimate(text: str, count: int) -> None:
    """About what tokenizers make of it."""
    assert count == len(EstimatingTokenizer().encode(text))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer of two words."""
    tokenizer = Tokenizer(WordLevel({"a": 5, "b": 6, "?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("name", ["", "tokenizer.json"])
def test_a_real_tokenizer(folder: Path, name: str) -> None:
    """A file, or a folder that has it; its counts are no estimates."""
    tokenizer = load_tokenizer(str(folder / name))
    (folder / "prompts").write_text("a b b\nb\n")
    exact, estimate = read_trace(folder / "prompts", tokenizer=tokenizer), read_trace(folder / "prompts")

    assert [[5, 6, 6], [6]] == [request.prompt.tolist() for request in exact]
    assert [3, 1] == [request.input_tokens for request in estimate]
    assert (False, True) == (exact.estimated, estimate.estimated)


def test_token_ids_are_no_estimate(tmp_path: Path) -> None:
    """Only text is estimated."""
    path = tmp_path / "log"
    path.write_text('{"prompt": [1, 2]}\n{"prompt": "a"}\n')
    trace = read_trace(path)

    assert [False, True] == [trace.estimated for _ in trace]


def test_half_a_surrogate_pair(folder: Path) -> None:
    """The estimate takes it; a real tokenizer does not, which is a bad line."""
    record = {"prompt": "a \ud800"}

    assert [2] == [request.input_tokens for request in read(folder, record)]
    with pytest.raises(TraceError, match="cannot take it") as caught:
        read(folder, record, tokenizer=load_tokenizer(str(folder)))
    assert "prompt" == caught.value.field


def test_a_tokenizer_that_makes_nothing_of_a_line(folder: Path) -> None:
    """Is an empty prompt."""
    (folder / "prompts").write_text("\u3000\n", encoding="utf-8")
    with pytest.raises(TraceError, match="no token"):
        list(read_trace(folder / "prompts", tokenizer=load_tokenizer(str(folder))))


def test_a_tokenizer_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file, or the package."""
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot load the tokenizer"):
        load_tokenizer(str(tmp_path))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"radixkv\[lab\]"):
        load_tokenizer(str(tmp_path))
