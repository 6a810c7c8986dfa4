"""Plain text: a prompt a line."""

from __future__ import annotations

import json

from radixkv.traces.base import BadLineError
from radixkv.traces.request import Request
from radixkv.traces.tokenizer import Tokenizer


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
        """It is UTF-8, and neither JSON nor the start of it."""
        try:
            text = line.decode()
            return not text.lstrip().startswith("{") and not isinstance(json.loads(text), list | dict)
        except UnicodeDecodeError:
            return False
        except (ValueError, RecursionError):
            return True

    def read(self, line: bytes) -> tuple[Request]:
        """The request of a line."""
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise BadLineError(f"not UTF-8: byte {error.start} of the line is 0x{line[error.start]:02x}") from None
        prompt = self._tokenizer.encode(text)
        return (Request(prompt=prompt, input_tokens=len(prompt), text=text),)
