"""A request on its way through the engine, and what it gives to its owner step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from radixkv.engine.sampling import Sampler, SamplingParams, TokenLogprobs
from radixkv.engine.text import Detokenizer, StopStrings
from radixkv.keys import TokenKey
from radixkv.manager import BlockTable

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened to a request, in seconds of the engine's clock; None for what has not."""

    submitted: float
    admitted: float | None = None
    """It got its blocks, the first time if it was preempted."""
    first_token: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave a request. Its texts and tokens, put together, are the whole output."""

    request: Request
    text: str
    """Text that became final; may be empty while a character or what looks like a stop string is incomplete."""
    token_ids: tuple[int, ...]
    """Tokens sampled, the stop token too."""
    logprobs: tuple[TokenLogprobs, ...] | None
    """One for each token; None if they were not asked for."""
    finish_reason: FinishReason | None
    """None while more is to come. "stop": an end token or stop string; "length": `max_tokens`, the model's context or
    the whole block pool is full."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's, those that it did not have to compute after its first admission: in the cache, or computed by
    another request of the same step."""
    output_tokens: int
    """All so far."""
    timings: Timings
    error: str | None = None
    """What went wrong, if the reason is "error"."""


class Request:
    """A prompt being continued. `Engine.submit` makes it; its owner compares, cancels and waits for it.

    The engine's thread alone writes it.
    """

    def __init__(  # noqa: PLR0913  # the engine alone makes one
        self,
        *,
        number: int,
        prompt: TokenKey,
        params: SamplingParams,
        namespace: str | None,
        on_output: Callable[[Output], None],
        max_outputs: int,
        end_tokens: frozenset[int],
        vocab_size: int,
        decode: Callable[[Sequence[int]], str],
        submitted: float,
    ) -> None:
        self.number = number
        """Requests of an engine count from 1."""
        self.prompt = prompt
        self.params = params
        self.namespace = namespace
        self.output_ids: list[int] = []
        """Tokens sampled so far."""
        self.cached_tokens = 0
        self.timings = Timings(submitted)
        self.finish_reason: FinishReason | None = None
        self.table: BlockTable | None = None
        """Its blocks' table, from the first admission on."""
        self._on_output = on_output
        self._max_outputs = max_outputs
        self._end_tokens = end_tokens
        self._prompt_ids = tokens = prompt.tolist()
        self.sampler = Sampler(params, tokens, vocab_size)
        self._text = Detokenizer(decode, tokens)
        self._stops = StopStrings(params.stop)

    def __repr__(self) -> str:
        state = self.finish_reason or (self.table.state if self.table else "waiting")
        return f"<Request {self.number} {state}: {len(self.prompt)} tokens and {len(self.output_ids)} of output>"

    @property
    def pending_token(self) -> int | None:
        """The token sampled last, while its K and V have no place in the table yet. O(1)."""
        if not self.output_ids or self.table is None:
            return None
        return self.output_ids[-1] if self.table.num_tokens < len(self.prompt) + len(self.output_ids) else None

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop` of prompt and output together. O(stop - start)."""
        size = len(self._prompt_ids)
        if stop <= size:
            return self._prompt_ids[start:stop]
        return self._prompt_ids[start:] + self.output_ids[max(start - size, 0) : stop - size]

    def admitted(self, table: BlockTable, now: float) -> None:
        """Note the blocks that it got."""
        self.table = table
        if self.timings.admitted is None:
            self.timings = Timings(self.timings.submitted, now)
            self.cached_tokens = table.matched_tokens

    def take(self, token: int, logprobs: TokenLogprobs | None, now: float) -> Output:
        """Note a sampled token: the output that it makes, the last one if it ends the request."""
        timings = self.timings
        self.output_ids.append(token)
        reason: FinishReason | None = None
        if token in self._end_tokens:
            reason, text = "stop", self._rest()
        else:
            text = self._stops.push(self._text.push(token))
            if self._stops.found:
                reason = "stop"
            elif len(self.output_ids) >= self._max_outputs:
                reason, text = "length", text + self._rest()
                if self._stops.found:  # its last character came with the flush
                    reason = "stop"
        first = now if timings.first_token is None else timings.first_token
        self.timings = Timings(timings.submitted, timings.admitted, first, None if reason is None else now)
        self.finish_reason = reason
        return self._output(text, (token,), logprobs and (logprobs,), None)

    def end(self, reason: FinishReason, now: float, error: str | None = None) -> Output:
        """End it without another token: what was held back of its text goes out."""
        self.finish_reason = reason
        self.timings = Timings(self.timings.submitted, self.timings.admitted, self.timings.first_token, now)
        return self._output("" if self._stops.found else self._rest(), (), None, error)

    def deliver(self, output: Output) -> None:
        """Hand an output to the owner, in the engine's thread."""
        self._on_output(output)

    def _rest(self) -> str:
        return self._stops.push(self._text.flush()) + self._stops.flush()

    def _output(
        self,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprobs, ...] | None,
        error: str | None,
    ) -> Output:
        return Output(
            request=self,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            output_tokens=len(self.output_ids),
            timings=self.timings,
            error=error,
        )
