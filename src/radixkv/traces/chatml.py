"""A chat as the text that a model reads, made as most chat templates of open models make it, in the marks of ChatML.

```text
<|im_start|>system         the system message, and behind it each tool as a line of JSON, its keys in the log's order
{content}

# Tools
{tool}
{tool}<|im_end|>
<|im_start|>user
{content}<|im_end|>
<|im_start|>assistant      an answer, and behind it each call of a tool as a line of JSON
{content}
{"name": ..., "arguments": ...}<|im_end|>
<|im_start|>tool
{content}<|im_end|>
<|im_start|>assistant      here the next answer begins
```

What most templates leave out is left out: ids of calls, names of speakers, reasoning. An image, or another part that
is no text, is a mark with its digest: equal ones are equal, and none takes the tokens of its base64.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from radixkv.traces.base import BadLineError, brief, kind

_START: Final = "<|im_start|>"
_END: Final = "<|im_end|>"


def prompt_text(messages: object, tools: object) -> str:
    """The text of a chat up to where the next answer begins.

    Raises:
        BadLineError: the messages or the tools are not what the OpenAI API takes.
    """
    turns = [_turn(message, f"messages[{index}]") for index, message in enumerate(_list(messages, "messages"))]
    if not turns:
        raise BadLineError("no message in it", field="messages")
    if offered := _list(tools or [], "tools"):
        described = "\n".join(["# Tools", *map(_json_line, offered)])
        role, content = turns[0]
        if role in {"system", "developer"}:
            turns[0] = role, f"{content}\n\n{described}"
        else:
            turns.insert(0, ("system", described))
    return "".join(f"{_START}{role}\n{content}{_END}\n" for role, content in turns) + f"{_START}assistant\n"


def answer_text(message: object, field: str) -> str:
    """The text of an answer, as it stands in the next prompt of its chat.

    Raises:
        BadLineError: it is no message of the OpenAI API.
    """
    return _turn(message, field, role="assistant")[1] + _END


def _turn(message: object, field: str, *, role: str | None = None) -> tuple[str, str]:
    """The role and the text of a message."""
    if not isinstance(message, Mapping):
        raise BadLineError(f"expected an object, got {kind(message)}", field=field)
    role = message.get("role", role)
    if not isinstance(role, str):
        raise BadLineError(f"expected a string, got {brief(role)}", field=f"{field}.role")
    parts = [*_content(message.get("content"), f"{field}.content"), *_calls(message, field)]
    return role, "\n".join(parts)


def _content(content: object, field: str) -> Iterator[str]:
    if content is None:  # of an answer that only calls tools
        return
    if isinstance(content, str):
        yield content
        return
    if not isinstance(content, list):
        raise BadLineError(f"expected a string or a list of parts, got {kind(content)}", field=field)
    yield "".join(_part(part, f"{field}[{index}]") for index, part in enumerate(content))


def _part(part: object, field: str) -> str:
    """A part's text, or the mark of one that is none."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise BadLineError(f"expected an object, got {kind(part)}", field=field)
    for name in ("text", "refusal"):
        if isinstance(part.get(name), str):
            return str(part[name])
    digest = blake2b(_json_line(part).encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"<|{part.get('type')}:{digest}|>"


def _calls(message: Mapping[str, Any], field: str) -> Iterator[str]:
    """The tools that an answer calls, a line each."""
    if isinstance(old := message.get("function_call"), Mapping):
        yield _call(old)
    for index, call in enumerate(_list(message.get("tool_calls") or [], f"{field}.tool_calls")):
        if not isinstance(call, Mapping):
            raise BadLineError(f"expected an object, got {kind(call)}", field=f"{field}.tool_calls[{index}]")
        function = call.get("function", call.get("custom"))
        yield _call(function if isinstance(function, Mapping) else call)


def _call(function: Mapping[str, Any]) -> str:
    """`arguments` is JSON in a string, which templates write out as it is."""
    arguments = function.get("arguments", function.get("input"))
    written = arguments if isinstance(arguments, str) else _json_line(arguments)
    return f'{{"name": {_json_line(function.get("name"))}, "arguments": {written}}}'


def _json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _list(value: object, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadLineError(f"expected a list, got {kind(value)}", field=field)
    return value
