"""The requests behind one call: submitted together, heard together, cancelled together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Final

from prometheus_client import Histogram

from radixkv.engine import (
    Engine,
    EngineStoppedError,
    Output,
    PromptTooLongError,
    QueueFullError,
    Request,
    SamplingParams,
)
from radixkv.errors import TokenError
from radixkv.server.errors import ApiError
from radixkv.server.metrics import Metrics

SEEDS: Final = 2**63
PACE_SECONDS: Final = 60.0
PACE_ENDS: Final = 1024
MAX_RETRY_SECONDS: Final = 60
"""OpenAI's clients do not follow a longer Retry-After: they come back at once."""


class Pace:
    """How fast requests end lately: from it follows when a client that found the queue full should come back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=PACE_ENDS)

    def ended(self) -> None:
        """A request ended, in whatever way."""
        self._ends.append(self._clock())

    def retry_seconds(self, waiting: int) -> int:
        """What `waiting` requests take at the pace of the last minute; 1 to `MAX_RETRY_SECONDS`, 1 if none ended."""
        now = self._clock()
        while self._ends and now - self._ends[0] > PACE_SECONDS:
            self._ends.popleft()
        seconds = waiting * (now - self._ends[0]) / len(self._ends) if self._ends else 0.0
        return min(max(ceil(seconds), 1), MAX_RETRY_SECONDS)


@dataclass(slots=True)
class Choice:
    """One request of the call, and what is known of it so far."""

    request: Request
    prompt: int
    """Which of the call's prompts it answers."""
    prompt_tokens: int
    cached_tokens: int = 0
    tokens: int = 0
    """Generated so far."""
    ended: bool = False


class Generation:
    """A call's choices, as one stream of outputs on the event loop that made it.

    Whatever happens, `close` must follow: it cancels what still runs, and blocks go back at once.
    """

    def __init__(self, engine: Engine, metrics: Metrics, pace: Pace, *, on_close: Callable[[Generation], None]) -> None:
        self.choices: list[Choice] = []
        """In the order of the response: the n choices of the first prompt, then those of the second."""
        self._engine, self._metrics, self._pace, self._on_close = engine, metrics, pace, on_close
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[tuple[int, Output] | ApiError] = asyncio.Queue()
        self._timers: list[asyncio.TimerHandle] = []

    def submit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, *, n: int, namespace: str | None, param: str
    ) -> None:
        """Hand every prompt `n` times to the engine. Choices of one prompt differ in their seeds.

        Args:
            prompts: their tokens.
            params: the same for all, but for the seed.
            n: choices a prompt.
            namespace: what the prompts share their cached beginnings within.
            param: the field that the prompts came in, for errors.

        Raises:
            ApiError: the queue is full or a prompt is empty, too long or has a token that the model has not; what was
                submitted before it goes when the generation is closed.
        """
        for place, prompt in enumerate(prompts):
            name = "The prompt" if len(prompts) == 1 else f"Prompt {place}"
            for index in range(n):
                try:
                    self._submit(place, prompt, _seeded(params, index), namespace)
                except PromptTooLongError as error:
                    message = f"{name} has {error.tokens} tokens; at most {error.limit} fit."
                    raise ApiError(400, message, param=param, code="context_length_exceeded") from None
                except TokenError as error:
                    message = f"{name} is refused: {error}."
                    raise ApiError(400, message, param=param, code="invalid_value") from None
                except QueueFullError as error:
                    retry = self._pace.retry_seconds(error.limit)
                    message = f"{error.limit} requests are waiting, as many as may."
                    raise ApiError(429, message, code="queue_full", retry_after=retry) from None
                except EngineStoppedError:
                    raise ApiError(503, "The engine has stopped.", code="engine_stopped") from None

    def limit(self, seconds: float) -> None:
        """End the call with an error if it takes longer from now."""
        error = ApiError(504, f"The call took longer than {seconds:g} s.", code="request_timeout")
        self._timers.append(self._loop.call_later(seconds, self.interrupt, error))

    def interrupt(self, error: ApiError) -> None:
        """End the call with an error, once what came before it is read. On the loop's thread."""
        self._inbox.put_nowait(error)

    @property
    def running(self) -> bool:
        """Whether a choice has not ended yet. O(choices)."""
        return not all(choice.ended for choice in self.choices)

    async def next(self) -> tuple[int, Output]:
        """Wait for the next output, while `running`: its choice's index, and it. To be cancelled at any time.

        Raises:
            ApiError: the call was interrupted, or the engine failed.
        """
        item = await self._inbox.get()
        if isinstance(item, ApiError):
            raise item
        index, output = item
        self._note(self.choices[index], output)
        if output.finish_reason == "error":
            raise ApiError(500, "The engine failed on this request.", code="engine_error")
        if output.finish_reason == "cancelled":
            raise ApiError(503, "The server is stopping.", code="server_stopping")
        return index, output

    def close(self) -> None:
        """Cancel every choice that has not ended. Safe to call again."""
        for timer in self._timers:
            timer.cancel()
        for choice in self.choices:
            if not choice.ended:
                choice.ended = True
                self._engine.cancel(choice.request)
                self._count_end("cancelled")
        self._on_close(self)

    def _submit(self, place: int, prompt: Sequence[int], params: SamplingParams, namespace: str | None) -> None:
        hear = partial(self._hear, len(self.choices))
        request = self._engine.submit(prompt, params, namespace=namespace, on_output=hear)
        self.choices.append(Choice(request, place, len(prompt)))

    def _hear(self, index: int, output: Output) -> None:
        """Called by the engine's thread: hand the output over to the loop's."""
        with suppress(RuntimeError):  # the loop has closed: nobody is left to hear it
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, (index, output))

    def _note(self, choice: Choice, output: Output) -> None:
        metrics, times = self._metrics, output.timings
        if output.token_ids and not choice.tokens:
            choice.cached_tokens = output.cached_tokens
            metrics.prompt_tokens.inc(choice.prompt_tokens)
            metrics.cached_tokens.inc(choice.cached_tokens)
            _observe(metrics.queue, times.submitted, times.admitted)
            _observe(metrics.first_token, times.submitted, times.first_token)
        choice.tokens += len(output.token_ids)
        metrics.generated_tokens.inc(len(output.token_ids))
        if output.finish_reason is not None:
            choice.ended = True
            self._count_end(output.finish_reason)
            _observe(metrics.request, times.submitted, times.finished)
            if choice.tokens > 1:
                _observe(metrics.per_token, times.first_token, times.finished, choice.tokens - 1)

    def _count_end(self, reason: str) -> None:
        self._metrics.ends.labels(reason).inc()
        self._pace.ended()


def _observe(histogram: Histogram, start: float | None, end: float | None, parts: int = 1) -> None:
    """Note the time between two moments, or its part, if both have come."""
    if start is not None and end is not None:
        histogram.observe((end - start) / parts)


def _seeded(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of one of n choices: with a seed, each has its own, the first the one that was sent."""
    return params if params.seed is None or not index else replace(params, seed=(params.seed + index) % SEEDS)
