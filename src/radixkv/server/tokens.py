"""Text to tokens and back, at the edge of the API: prompts, chat templates, and the tokens of logprobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jinja2.exceptions import TemplateError

from radixkv.server.errors import ApiError

T = TypeVar("T")


class Tokens:
    """A model's tokenizer, in a thread of its own: a long prompt holds up neither other calls nor the engine.

    Args:
        tokenizer: one of transformers'; None for a model without, which then takes tokens alone.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixkv-tokenizer")
        self._bytes_of = _bytes_reader(tokenizer)

    async def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt that asks the model for the next message. O(characters).

        Raises:
            ApiError: the model has no chat template, or its template refuses these messages.
        """
        return await self._run(lambda: self._chat(messages))

    async def prompts(self, prompts: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
        """Each prompt's tokens; texts get the special tokens that the model expects at their beginning. O(characters).

        Raises:
            ApiError: there is none, or there are texts and the model has no tokenizer.
        """
        return await self._run(lambda: self._prompts(prompts))

    def text(self, token: int) -> str:
        """One token by itself; where it is part of a character, with the replacement character."""
        return self.raw(token).decode(errors="replace")

    def raw(self, token: int) -> bytes:
        """The bytes that one token stands for. O(1)."""
        return self._bytes_of(token)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of several tokens, special ones shown."""
        return "" if self._tokenizer is None else str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if not getattr(self._tokenizer, "chat_template", None):
            raise ApiError(400, "This model has no chat template: use /v1/completions.", code="no_chat_template")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except (TemplateError, ValueError, TypeError) as error:
            message = f"The model's chat template refuses these messages: {error}"
            raise ApiError(400, message, param="messages", code="invalid_value") from None
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def _prompts(self, prompts: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
        if not prompts:
            raise ApiError(400, "There is no prompt.", param="prompt", code="invalid_value")
        return [self._encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            message = "This model has no tokenizer: send tokens."
            raise ApiError(400, message, param="prompt", code="invalid_value")
        tokens: list[int] = self._tokenizer(text)["input_ids"]
        return tokens


def _bytes_reader(tokenizer: Any) -> Callable[[int], bytes]:
    """How to get at the bytes of one token: a decoded text would not tell those that are part of a character."""
    if tokenizer is None:
        return lambda _: b""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = json.loads(backend.to_str()).get("decoder") if backend is not None else None
    byte_level = "ByteLevel" in json.dumps(decoder)
    special = set(tokenizer.all_special_ids)

    def read(token: int) -> bytes:
        if token not in special:
            piece = tokenizer.convert_ids_to_tokens(token)
            if piece is None:  # a row of the model's that has no text
                return b""
            if byte_level and all(letter in _BYTE_OF for letter in piece):
                return bytes(_BYTE_OF[letter] for letter in piece)
            if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes([int(piece[3:5], 16)])
            if not byte_level and "\N{LOWER ONE EIGHTH BLOCK}" in piece:
                return str(piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")).encode()
        return str(tokenizer.decode([token], skip_special_tokens=False)).encode()

    return read


def _byte_letters() -> dict[str, int]:
    """The printable letter that stands for each byte in the tokens of byte-level BPE, the other way round.

    A printable byte of Latin-1 is its own letter; the others are numbered from 256 up.
    """
    own = {byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255}
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_letters()
