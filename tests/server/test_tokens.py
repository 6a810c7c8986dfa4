"""Text to tokens and back."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from radixkv.engine import Request
from radixkv.server.answers import usage
from radixkv.server.errors import ApiError
from radixkv.server.generation import Choice
from radixkv.server.tokens import Tokens


def test_the_bytes_of_tokens_are_those_of_their_text(tokenizer: Any) -> None:
    """Characters of several bytes too, which single tokens hold in part."""
    tokens = Tokens(tokenizer)
    text = "the dog says 'wäre 火 🙂'\n"
    ids = tokenizer(text)["input_ids"]

    assert text == b"".join(map(tokens.raw, ids)).decode()
    assert any("\N{REPLACEMENT CHARACTER}" in tokens.text(token) for token in ids)
    assert "<end>" == tokens.text(tokenizer.eos_token_id)
    assert b"" == tokens.raw(10**6)
    tokens.close()


class Pieces:
    """A tokenizer as SentencePiece makes them: bytes written out, and a letter that stands for the space."""

    all_special_ids = (0,)
    chat_template = None

    def convert_ids_to_tokens(self, token: int) -> str:
        return ["<s>", "<0xE2>", "\N{LOWER ONE EIGHTH BLOCK}dog", "dog"][token]

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(["<s>", "?", "dog", "dog"][token] for token in tokens)


def test_the_bytes_of_other_tokenizers() -> None:
    """Bytes written out, spaces that decoding one token alone would drop, special tokens, plain ones."""
    tokens = Tokens(Pieces())

    assert [b"<s>", b"\xe2", b" dog", b"dog"] == [tokens.raw(token) for token in range(4)]
    tokens.close()


def test_a_model_without_a_tokenizer() -> None:
    """Takes tokens, and says so of everything else."""
    tokens = Tokens(None)

    assert [[1, 2]] == asyncio.run(tokens.prompts([[1, 2]]))
    assert ("", "") == (tokens.text(5), tokens.decode([1, 2]))
    with pytest.raises(ApiError, match="no tokenizer"):
        asyncio.run(tokens.prompts(["a"]))
    with pytest.raises(ApiError, match="no chat template"):
        asyncio.run(tokens.chat([{"role": "user", "content": "a"}]))
    tokens.close()


def test_usage_of_several_prompts_and_choices() -> None:
    """A prompt counts once; of its choices, the one that found least cached tells what was."""
    request = cast("Request", None)
    choices = [Choice(request, 0, 10, 0, 3), Choice(request, 0, 10, 8, 4), Choice(request, 1, 20, 16, 5)]

    expected = {
        "prompt_tokens": 30,
        "completion_tokens": 12,
        "total_tokens": 42,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    assert expected == usage(choices)
