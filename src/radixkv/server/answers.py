"""How the two APIs write down what was generated: whole, and piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from radixkv.engine import Output, TokenLogprobs
from radixkv.server.generation import Choice
from radixkv.server.tokens import Tokens

Json = dict[str, Any]


class Form(Protocol):
    """One API's way of writing. Stateful: made for one call."""

    prefix: str
    """Of the answer's id."""
    whole_object: str
    """The `object` of an answer in one piece."""
    piece_object: str
    """The `object` of a stream's chunk."""

    def opening(self, index: int) -> Json | None:
        """What a stream says of a choice before its first token; None: nothing."""
        ...

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str | None) -> Json:
        """A choice in a stream's chunk: what is new of it."""
        ...

    def whole(self, index: int, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str | None) -> Json:
        """A choice that has ended."""
        ...


class ChatForm:
    """`/v1/chat/completions`."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def opening(self, index: int) -> Json:
        """The role, with no text yet."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str | None) -> Json:
        """See `Form`."""
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": self._logprobs(logprobs), "finish_reason": reason}

    def whole(self, index: int, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str | None) -> Json:
        """See `Form`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": self._logprobs(logprobs), "finish_reason": reason}

    def _logprobs(self, logprobs: Sequence[TokenLogprobs] | None) -> Json | None:
        if logprobs is None:
            return None
        content = [
            self._token(entry.token, entry.logprob)
            | {"top_logprobs": [self._token(token, logprob) for token, logprob in entry.top]}
            for entry in logprobs
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> Json:
        return {"token": self._tokens.text(token), "logprob": _finite(logprob), "bytes": list(self._tokens.raw(token))}


class CompletionForm:
    """`/v1/completions`. Keeps how far each choice's text has come, as its logprobs tell each token's offset in it."""

    prefix = "cmpl-"
    whole_object = piece_object = "text_completion"

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> None:
        """Nothing."""

    def piece(self, index: int, text: str, logprobs: Sequence[TokenLogprobs] | None, reason: str | None) -> Json:
        """See `Form`."""
        return {"index": index, "text": text, "logprobs": self._logprobs(index, logprobs), "finish_reason": reason}

    whole = piece

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprobs] | None) -> Json | None:
        if logprobs is None:
            return None
        texts = [self._tokens.text(entry.token) for entry in logprobs]
        offsets, offset = [], self._offsets.get(index, 0)
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self._offsets[index] = offset
        return {
            "tokens": texts,
            "token_logprobs": [_finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [
                {self._tokens.text(token): _finite(logprob) for token, logprob in entry.top} for entry in logprobs
            ],
            "text_offset": offsets,
        }


class Transcript:
    """What a choice has said so far, for an answer in one piece."""

    __slots__ = ("_texts", "logprobs", "reason")

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.logprobs: list[TokenLogprobs] | None = None
        self.reason: str | None = None

    def add(self, output: Output) -> None:
        """Append one output."""
        self._texts.append(output.text)
        if output.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *output.logprobs]
        self.reason = output.finish_reason or self.reason

    @property
    def text(self) -> str:
        """All text, joined."""
        return "".join(self._texts)


def usage(choices: Sequence[Choice]) -> Json:
    """The token counts of a call. A prompt counts once, however many choices it got.

    Of several choices of one prompt, the one that found least cached tells `cached_tokens`: the others found what it
    had just computed.
    """
    prompts: dict[int, tuple[int, int]] = {}
    for choice in choices:
        _, cached = prompts.get(choice.prompt, (0, choice.cached_tokens))
        prompts[choice.prompt] = (choice.prompt_tokens, min(cached, choice.cached_tokens))
    prompt_tokens = sum(tokens for tokens, _ in prompts.values())
    completion_tokens = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in prompts.values())},
    }


def _finite(logprob: float) -> float:
    """JSON has no infinity: a token that cannot be gets OpenAI's stand-in."""
    return max(logprob, -9999.0)
