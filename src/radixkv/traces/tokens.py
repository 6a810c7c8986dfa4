"""radixkv's own format: the tokens themselves."""

from __future__ import annotations

from typing import ClassVar

from radixkv.traces.base import BadLineError, brief, integer, looks_like, namespace, parse, seconds, string, token_key
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import Tokenizer


class TokensReader:
    """Reads `{"tokens": [...]}` and, where they are there, `output`, `output_length`, `timestamp`, `namespace`, `text`.

    `timestamp` is in seconds. `output_length` is for answers whose tokens nobody kept.
    """

    estimated: ClassVar[bool] = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        pass

    @staticmethod
    def fits(line: bytes) -> bool:
        """It has tokens."""
        return looks_like(line, having=frozenset({"tokens"}))

    def read(self, line: bytes) -> tuple[Request]:
        """The request of a line."""
        record = parse(line)
        prompt = token_key(record.get("tokens"), "tokens")
        if not prompt:
            raise BadLineError("the prompt is empty", field="tokens")
        output = token_key(record.get("output", []), "output")
        output_tokens = integer(record, "output_length", default=len(output))
        if output and output_tokens != len(output):
            raise BadLineError(f"{brief(output_tokens)}, but output has {len(output)} tokens", field="output_length")
        return (
            Request(
                prompt=prompt,
                input_tokens=len(prompt),
                output_tokens=output_tokens,
                output=output,
                timestamp=seconds(record),
                namespace=namespace(record),
                text=string(record, "text"),
            ),
        )
