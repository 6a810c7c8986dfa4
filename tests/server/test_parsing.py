"""Bodies, field by field, without a server: what pydantic's answers become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.server.errors import ApiError
from radixkv.server.protocol import LABELS, NEUTRAL, ChatBody, CompletionBody, parse

FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, *NEUTRAL, *LABELS, "nonsense"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "include_usage", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6), st.booleans())
def test_any_object_is_taken_or_refused_by_name(fields: dict[str, Any], chat: bool) -> None:
    """No body gets anything but a body or an error with a field of its own; nothing else is ever raised."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} if chat else fields).encode()
    if chat:
        body = json.dumps(json.loads(body) | fields).encode()
    try:
        call = parse(body, ChatBody if chat else CompletionBody)
    except ApiError as error:
        assert 400 == error.status
        assert error.param
        assert error.code
        name = error.param.partition(".")[0].partition("[")[0]
        assert name in {*fields, "model", "messages", "prompt"}
    else:
        assert "m" == call.body.model or not chat or "model" in fields
        assert sorted(LABELS & {name for name, value in fields.items() if value is not None}) == list(call.labels)


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_or_taken(data: bytes) -> None:
    """Bytes are JSON or are said not to be."""
    with pytest.raises(ApiError) as caught:
        parse(data, CompletionBody)

    assert 400 == caught.value.status


def test_deep_nesting_is_refused() -> None:
    """A body of brackets alone takes no stack."""
    with pytest.raises(ApiError, match="not valid JSON"):
        parse(b"[" * 100_000, ChatBody)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), ([], [])],
    ids=str,
)
def test_prompts_in_every_form(prompt: Any, expected: list[Any]) -> None:
    """One list of texts or of lists of tokens."""
    body = parse(json.dumps({"model": "m", "prompt": prompt}).encode(), CompletionBody).body

    assert expected == body.prompts


def test_the_limit_has_two_names() -> None:
    """The newer one wins over nothing, and both may agree."""

    def limit(**fields: int) -> int | None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        return parse(json.dumps(body | fields).encode(), ChatBody).body.token_limit

    assert (None, 3, 4, 5) == (
        limit(),
        limit(max_tokens=3),
        limit(max_completion_tokens=4),
        limit(max_tokens=5, max_completion_tokens=5),
    )


def test_messages_of_an_error_do_not_quote_long_values() -> None:
    """The client gets its field's name back, not its prompt."""
    long = "word " * 1000
    with pytest.raises(ApiError) as caught:
        parse(json.dumps({"model": "m", "prompt": "x", "stop": [long, 5]}).encode(), CompletionBody)

    assert len(caught.value.message) < 200
    assert "stop[1]" == caught.value.param
