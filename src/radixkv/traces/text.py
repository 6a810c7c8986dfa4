"""Plain text: a prompt a line."""

from __future__ import annotations

import json

from radixkv.traces.base import BadLineError, decoded
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import Tokenizer, TokenizerError


class TextReader:
    """Takes each line as a prompt, without the end of the line."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def estimated(self) -> bool:
        """As the tokenizer says."""
        return self._tokenizer.estimates

    @staticmethod
    def fits(line: bytes) -> bool:
        """It is UTF-8, and neither JSON of some other kind nor the start of it."""
        try:
            text = decoded(line).strip()
            return text != "[" and not text.startswith("{") and not isinstance(json.loads(text), list)
        except BadLineError:
            return False
        except (ValueError, RecursionError):
            return True

    def read(self, line: bytes) -> tuple[Request]:
        """The request of a line."""
        text = decoded(line).rstrip("\r\n")
        try:
            prompt = self._tokenizer.encode(text)
        except TokenizerError as error:
            raise BadLineError(str(error)) from None
        if not prompt:
            raise BadLineError("the tokenizer makes no token of it")
        return (Request(prompt=prompt, input_tokens=len(prompt), text=text),)
