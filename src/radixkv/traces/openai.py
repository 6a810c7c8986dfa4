"""Logs of requests to the OpenAI API: chats and completions, tools and answers included."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from radixkv.keys import TokenKey
from radixkv.traces.base import BadLineError, Record, integer, kind, namespace, parse, seconds, shown, token_key
from radixkv.traces.chatml import answer_text, prompt_text
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import Tokenizer, TokenizerError

_WRAPPERS: Final = ("request", "body")


class OpenAIReader:
    """Reads `{"messages": [...]}`, with `tools` or `functions`, and `{"prompt": ...}`, as the API takes them.

    A log may wrap the request, as `{"request": {...}}` or `{"body": {...}}`, and have the answer beside it, as
    `{"response": {...}}`. A `prompt` is a text or a list of token ids; a list of either makes as many requests.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._estimated = False

    @property
    def estimated(self) -> bool:
        """Whether some prompt was text, and its tokens are estimates."""
        return self._estimated

    @staticmethod
    def fits(line: bytes) -> bool:
        """It has messages or a prompt, wrapped or not."""
        try:
            return not {"messages", "prompt"}.isdisjoint(_unwrapped(parse(line)))
        except BadLineError:
            return False

    def read(self, line: bytes) -> list[Request]:
        """The requests of a line."""
        record = _unwrapped(parse(line))
        prompts = self._prompts(record)
        response = _response(record)
        # Of several prompts in one request, nothing tells whose the answers are.
        output, output_tokens = self._answer(response) if len(prompts) == 1 else (TokenKey(()), 0)
        timestamp, wall = _time(record, response), namespace(record)
        return [
            Request(
                prompt=prompt,
                input_tokens=len(prompt),
                output_tokens=output_tokens,
                output=output,
                timestamp=timestamp,
                namespace=wall,
                text=text,
            )
            for prompt, text in prompts
        ]

    def _prompts(self, record: Record) -> list[tuple[TokenKey, str | None]]:
        """Tokens and text of each prompt of a request."""
        if "messages" in record:
            text = prompt_text(record["messages"], record.get("tools") or record.get("functions"))
            return [(self._encode(text, "messages"), text)]
        prompt = record.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            return [self._prompt(part, f"prompt[{index}]") for index, part in enumerate(prompt)]
        return [self._prompt(prompt, "prompt")]

    def _prompt(self, prompt: object, field: str) -> tuple[TokenKey, str | None]:
        if isinstance(prompt, str):
            key, text = self._encode(prompt, field), prompt
        elif isinstance(prompt, list):
            key, text = token_key(prompt, field), None
        else:
            raise BadLineError(f"expected a text or a list of token ids, got {kind(prompt)}", field=field)
        if not key:
            raise BadLineError("the prompt is empty", field=field)
        return key, text

    def _answer(self, response: Record) -> tuple[TokenKey, int]:
        """The first answer's tokens, if it is there, and how many they are."""
        text = _answer_text(response)
        if text is not None:
            output = self._encode(text, "response")
            return output, len(output)
        usage = response.get("usage")
        return TokenKey(()), integer(usage, "completion_tokens", default=0) if isinstance(usage, Mapping) else 0

    def _encode(self, text: str, field: str) -> TokenKey:
        self._estimated = self._tokenizer.estimates
        try:
            return self._tokenizer.encode(text)
        except TokenizerError as error:
            raise BadLineError(str(error), field=field) from None


def _unwrapped(record: Record) -> Record:
    """The request's own fields, and beside them those of what it is wrapped in."""
    for wrapper in _WRAPPERS:
        inner = record.get(wrapper)
        if isinstance(inner, Mapping):
            record = {**record, **inner}
    return record


def _response(record: Record) -> Record:
    """What holds the answer: `response`, its `body` as batches have it, or the record itself."""
    response: Any = record.get("response")
    if response is None:
        return record
    if isinstance(response, str):
        return {"choices": [{"text": response}]}
    if not isinstance(response, Mapping):
        raise BadLineError(f"expected an object or a text, got {kind(response)}", field="response")
    body = response.get("body")
    return body if isinstance(body, Mapping) else response


def _answer_text(response: Record) -> str | None:
    """The text of the first choice, as it goes on behind the prompt; None where there is none."""
    choices = response.get("choices") or []
    if not isinstance(choices, list):
        raise BadLineError(f"expected a list, got {kind(choices)}", field="choices")
    if not choices:
        return None
    first = choices[0]
    if not isinstance(first, Mapping):
        raise BadLineError(f"expected an object, got {kind(first)}", field="choices[0]")
    if "message" in first:
        return answer_text(first["message"], "choices[0].message")
    text = first.get("text")
    return text if isinstance(text, str) else None


def _time(record: Record, response: Record) -> float | None:
    """Seconds of `timestamp`, a number or an ISO 8601 date, UTC if it does not say; else when the answer was made."""
    timestamp = record.get("timestamp")
    if not isinstance(timestamp, str):
        return seconds(response, "created") if timestamp is None else seconds(record)
    try:
        date = datetime.fromisoformat(timestamp)
    except ValueError:
        reason = f"expected seconds or an ISO 8601 date, got {shown(record, 'timestamp')}"
        raise BadLineError(reason, field="timestamp") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
