"""An engine without a model: the engine's interface over a real block manager, and tokens that count upwards.

Token after token is `last + 1`, so a test knows each answer beforehand. It takes `step_seconds` a step, and can be
held still with `gate`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from radixkv.engine import (
    EngineConfig,
    EngineSnapshot,
    Output,
    PromptTooLongError,
    QueueFullError,
    Request,
    SamplingParams,
    Timings,
    TokenLogprobs,
)
from radixkv.errors import OutOfBlocksError, TokenError
from radixkv.manager import BlockManager, BlockTable
from tests.tiny import SERVED_CONTEXT

FAILING_TOKEN = 7
"""A prompt that begins with it makes the engine fail on that request."""


@dataclass(eq=False)
class FakeRequest:
    prompt: list[int]
    params: SamplingParams
    namespace: str | None
    on_output: Callable[[Output], None]
    table: BlockTable | None = None
    generated: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    submitted: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None


class FakeEngine:
    """The part of `Engine` that the server uses. Type checkers are told that it is one where it is handed over."""

    def __init__(
        self, tokenizer: Any, config: EngineConfig, *, max_context: int = SERVED_CONTEXT, step_seconds: float = 0.0
    ) -> None:
        self.config = config
        self.model = SimpleNamespace(
            tokenizer=tokenizer, name="tiny", max_context=max_context, vocab_size=len(tokenizer)
        )
        self.failure: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.step_seconds = step_seconds
        self.submitted: list[FakeRequest] = []
        self._manager = BlockManager(config.num_blocks or 64, config.block_size, prefix_cache=config.prefix_cache)
        self._waiting: deque[FakeRequest] = deque()
        self._running: list[FakeRequest] = []
        self._calls: deque[tuple[Callable[[BlockManager], Any], Future[Any]]] = deque()
        self._lock = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        namespace: str | None = None,
        on_output: Callable[[Output], None],
    ) -> FakeRequest:
        if not prompt or max(prompt) >= self.model.vocab_size:
            raise TokenError("no such token", index=None, value=prompt)
        limit = min(self.model.max_context, self._manager.pool.num_blocks * self.config.block_size) - 1
        if len(prompt) > limit:
            raise PromptTooLongError(tokens=len(prompt), limit=limit)
        request = FakeRequest(list(prompt), params, namespace, on_output)
        with self._lock:
            if len(self._waiting) >= self.config.max_waiting:
                raise QueueFullError(limit=self.config.max_waiting)
            self._waiting.append(request)
            self.submitted.append(request)
            self._lock.notify()
        return request

    def cancel(self, request: FakeRequest) -> None:
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
            elif request in self._running:
                self._end(request)

    def snapshot(self) -> EngineSnapshot:
        manager, cache = self._manager, self._manager.cache
        evictable = cache.evictable_blocks if cache else 0
        return EngineSnapshot(
            stats=manager.stats,
            num_blocks=manager.pool.num_blocks,
            block_size=manager.block_size,
            free_blocks=manager.pool.num_free,
            cached_blocks=cache.cached_blocks if cache else 0,
            evictable_blocks=evictable,
            waiting=len(self._waiting),
            running=len(self._running),
        )

    def call(self, function: Callable[[BlockManager], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._calls.append((function, future))
            self._lock.notify()
        return future

    def shutdown(self, *, drain_seconds: float) -> None:
        with self._lock:
            self._stopped = True
            self._lock.notify()
        self.gate.set()
        self._thread.join(10)

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not (self._stopped or self._calls or (self.gate.is_set() and (self._waiting or self._running))):
                    self._lock.wait(0.01)
                if self._stopped:
                    for request in [*self._running, *self._waiting]:
                        request.on_output(self._output(request, finish_reason="cancelled"))
                    return
                while self._calls:
                    function, future = self._calls.popleft()
                    try:
                        future.set_result(function(self._manager))
                    except Exception as error:  # noqa: BLE001  # it is the caller's
                        future.set_exception(error)
                if self.gate.is_set():
                    self._admit()
                    for request in self._running[:]:
                        self._step(request)
            time.sleep(self.step_seconds)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.config.max_running:
            request = self._waiting[0]
            try:
                table = self._manager.admit(request.prompt, request.namespace)
            except OutOfBlocksError:
                return
            self._waiting.popleft()
            request.table, request.cached_tokens = table, table.matched_tokens
            request.admitted = time.monotonic()
            self._running.append(request)

    def _step(self, request: FakeRequest) -> None:
        table, params = request.table, request.params
        assert table is not None
        if request.prompt[0] == FAILING_TOKEN:
            self._end(request)
            request.on_output(self._output(request, finish_reason="error"))
            return
        self._manager.commit(table, table.num_tokens)
        token = (request.prompt + request.generated)[-1] + 1
        token = token % self.model.vocab_size or 10
        request.generated.append(token)
        request.first_token = request.first_token or time.monotonic()
        room = min(self.model.max_context - len(request.prompt), params.max_tokens or 10**6)
        reason = "length" if len(request.generated) >= room else None
        if reason is None:
            try:
                self._manager.grow(table, [token])
            except OutOfBlocksError:
                reason = "length"
        logprobs = None
        if params.logprobs is not None:
            top = tuple((token + place, -0.5 - place) for place in range(params.logprobs))
            logprobs = (TokenLogprobs(token, -0.5, top),)
        if reason:
            self._end(request)
        text = self.model.tokenizer.decode([token])
        request.on_output(self._output(request, text=text, token_ids=(token,), logprobs=logprobs, finish_reason=reason))

    def _end(self, request: FakeRequest) -> None:
        assert request.table is not None
        self._running.remove(request)
        self._manager.finish(request.table)

    def _output(self, request: FakeRequest, **fields: Any) -> Output:
        nothing: dict[str, Any] = {"text": "", "token_ids": (), "logprobs": None, "finish_reason": None}
        ended = time.monotonic() if fields.get("finish_reason") else None
        return Output(
            request=cast("Request", request),
            prompt_tokens=len(request.prompt),
            cached_tokens=request.cached_tokens,
            output_tokens=len(request.generated),
            timings=Timings(request.submitted, request.admitted, request.first_token, ended),
            **nothing | fields,
        )
