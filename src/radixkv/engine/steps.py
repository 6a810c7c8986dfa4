"""The step loop: who computes what in a step, and what becomes of it. No threads: one owns a `Steps`.

```text
a step   grow       a place for the token that each decoding request sampled last; blocks short: preempt
         plan       a token of each decoding request, then prompts in chunks, then admissions: up to the budget; what is
                    planned is committed at once, so who is admitted next hits it already
         forward    K and V of all of it, logits where a request's last token is among it
         sample     a token for each request with logits, its text, and perhaps its end
```

Blocks are the cache's before their K and V are computed, so that requests which come together compute what they share
once, in one step: in each layer, all K and V of a step are written before any are read. What a step failed to compute
must not be read later. If it raised, all that run end and the cache is emptied; if some logits are no numbers, their
requests end, prompts that are half done start again, and the cache gives up all that nobody locks.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from radixkv.cache import PrefixCache
from radixkv.engine.config import EngineConfig
from radixkv.engine.grouping import Row
from radixkv.engine.request import FinishReason, Output, Request
from radixkv.engine.runner import ModelRunner
from radixkv.engine.sampling import sample
from radixkv.engine.snapshot import EngineSnapshot
from radixkv.errors import InvariantError, OutOfBlocksError
from radixkv.manager import BlockManager, BlockTable
from radixkv.scheduler import WaitingQueue

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Meter:
    """Sums of what the snapshot shows."""

    steps: int = 0
    failed_steps: int = 0
    failing_steps: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    model_seconds: float = 0.0
    sample_seconds: float = 0.0
    cache_seconds: float = 0.0
    step_seconds: float = 0.0


class Steps:
    """Continuous batching over one pool of blocks: the requests that wait and run, and the steps that compute them.

    Args:
        runner: the model, and the K/V store that is as large as the manager's pool.
        manager: whose blocks they are; nobody else may use it.
        config: order, budget and bounds.
        clock: seconds, for `Timings` and the sums of the snapshot.

    Raises:
        UnknownNameError: no such order.
    """

    def __init__(
        self, runner: ModelRunner, manager: BlockManager, config: EngineConfig, clock: Callable[[], float]
    ) -> None:
        self.manager = manager
        self._runner = runner
        self._config = config
        self._clock = clock
        self._queue = WaitingQueue[Request](manager, order=config.order, max_skips=config.max_skips)
        self._waiting: dict[Request, None] = {}
        self._running: dict[Request, None] = {}  # in order of admission
        self._batch: list[Request] = []  # what the step at work computes
        self._promised = array("I")  # the cache's blocks that it is to compute
        self._meter = _Meter()
        self.latest = self._look()
        """How things stood before the last outputs were handed out, or since. Any thread may read it."""

    @property
    def waiting(self) -> int:
        """Requests that wait, preempted ones too. O(1); any thread may ask."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is something to do. O(1)."""
        return bool(self._running or self._waiting)

    def enqueue(self, request: Request, priority: int = 0) -> None:
        """Let a request wait for its admission."""
        self._waiting[request] = None
        began = self._clock()
        try:
            self._queue.add(request, request.prompt, request.namespace, priority=priority)
        except Exception as error:  # noqa: BLE001  # it is logged, and told to the owner
            _log.exception("%r cannot be queued", request)
            self.end(request, "error", _said(error))
        else:
            self._meter.cache_seconds += self._clock() - began

    def end(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End a request at once, wherever it is: its blocks are free or the cache's. Nothing if it has ended."""
        if request.finish_reason is None:
            self._release(request)
            output = request.end(reason, self._clock(), error)
            self.latest = self._look()
            self._deliver(output)

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every request."""
        for request in (*self._running, *self._waiting):
            self.end(request, reason, error)

    def step(self) -> None:
        """One step. What fails it ends all that run, with the reason "error", and empties the cache.

        Raises:
            InvariantError: after such a failure somebody holds blocks still that were not computed.
        """
        started = self._clock()
        self._batch, self._promised = [], array("I")
        try:
            sound = self._step()
        except Exception as error:  # noqa: BLE001  # it is logged, and told to the owners
            _log.exception("a step failed; all that run end")
            sound = False
            # if nobody ran, whoever was to start is at fault, and nobody knows who that was
            for request in tuple(self._running or self._waiting):
                self.end(request, "error", _said(error))
            self._break_promises()
        if sound:
            self._meter.failing_steps = 0
        else:
            self._meter.failed_steps += 1
            self._meter.failing_steps += 1
        self._meter.steps += 1
        self._meter.step_seconds += self._clock() - started
        self.refresh()

    def refresh(self) -> None:
        """Bring `latest` up to date, after somebody used the manager. O(1)."""
        self.latest = self._look()

    def _look(self) -> EngineSnapshot:
        manager, meter = self.manager, self._meter
        cache: PrefixCache[Any] | None = manager.cache
        return EngineSnapshot(
            stats=manager.stats,
            running=len(self._running),
            waiting=len(self._waiting),
            num_blocks=manager.pool.num_blocks,
            block_size=manager.block_size,
            free_blocks=manager.pool.num_free,
            cached_blocks=cache.cached_blocks if cache else 0,
            evictable_blocks=cache.evictable_blocks if cache else 0,
            kv_bytes=self._runner.store.nbytes,
            steps=meter.steps,
            failed_steps=meter.failed_steps,
            failing_steps=meter.failing_steps,
            computed_tokens=meter.computed_tokens,
            output_tokens=meter.output_tokens,
            model_seconds=meter.model_seconds,
            sample_seconds=meter.sample_seconds,
            cache_seconds=meter.cache_seconds,
            step_seconds=meter.step_seconds,
        )

    def _step(self) -> bool:
        """Whether anything came of it: False if none of the logits are numbers."""
        began = self._clock()
        rows = self._plan()
        planned = self._clock()
        self._meter.cache_seconds += planned - began
        if not rows:
            if self._waiting and not self._running:
                raise InvariantError("nothing runs, and nothing that waits can start")
            return True
        logits = self._runner.forward(rows)
        finite = _finite(logits)  # which waits for a GPU, too
        if not all(finite) and len(rows) > 1:
            logits = self._runner.forward(rows, pack=False)  # whose they are and nobody else's
            finite = _finite(logits)
        computed = self._clock()
        self._meter.model_seconds += computed - planned
        self._meter.computed_tokens += sum(len(row.tokens) for row in rows)
        wanting = [request for request, row in zip(self._batch, rows, strict=True) if row.wants_logits]
        if not all(finite):
            self._end_unsound([request for request, fine in zip(wanting, finite, strict=True) if not fine])
        began, cache_seconds = self._clock(), self._meter.cache_seconds
        sound = [request for request, fine in zip(wanting, finite, strict=True) if fine]
        if sound:
            self._sample(sound, logits if all(finite) else logits[torch.tensor(finite, device=logits.device)])
        released = self._meter.cache_seconds - cache_seconds
        self._meter.sample_seconds += self._clock() - began - released
        return bool(sound or not wanting)

    def _end_unsound(self, requests: Sequence[Request]) -> None:
        """End requests whose logits are no numbers: those of others go on, and nobody reads what they computed."""
        cached = any(_table(request).cached_blocks for request in requests)
        for request in requests:
            _log.error("the logits of %r are not finite; it ends", request)
            self.end(request, "error", "the model's logits are not finite numbers")
        if cached:
            # prompts that are half done may have read it, too, and their logits would tell too late
            for request in [request for request in self._batch if request in self._running and _left(request)]:
                self._preempt(request)
            self.manager.evict(self.manager.pool.num_blocks)

    def _break_promises(self) -> None:
        """Empty the cache after a step that failed: what it was to compute must be nowhere."""
        self.manager.evict(self.manager.pool.num_blocks)
        held = sum(self.manager.pool.owner(block) == "cache" for block in self._promised)
        if held:
            raise InvariantError(f"a step failed, and {held} cached blocks that it was to compute are locked still")

    def _plan(self) -> list[Row]:
        """What this step computes; `_batch` holds whose row is whose."""
        preempted = self._grow()
        budget = self._config.token_budget
        rows: list[Row] = []
        left = [(request, _left(request)) for request in self._running]
        for request, tokens in sorted(left, key=lambda pair: pair[1] > 1):  # stable: else in order of admission
            budget -= self._add_row(rows, request, min(tokens, budget))
        while not preempted and budget > 0 and len(self._running) < self._config.max_running:
            # everybody who runs may want one more block soon: leave it to them
            if self._running and self.manager.available_blocks <= len(self._running):
                break
            admitted = self._admit()
            if admitted is None:
                break
            budget -= self._add_row(rows, admitted, min(_left(admitted), budget))
        return rows

    def _add_row(self, rows: list[Row], request: Request, tokens: int) -> int:
        if tokens > 0:
            table = _table(request)
            start, stop = table.computed_tokens, table.computed_tokens + tokens
            self._batch.append(request)
            cached = table.cached_blocks
            self.manager.commit(table, stop)
            self._promised += table.blocks[cached : table.cached_blocks]
            rows.append(Row(request.tokens(start, stop), start, table.blocks, stop == table.num_tokens))
        return tokens

    def _grow(self) -> bool:
        """Give everybody who decodes a place for the token sampled last; whether somebody was preempted for it."""
        preempted = False
        for request in tuple(self._running):
            while request in self._running and (token := request.pending_token) is not None:
                try:
                    self.manager.grow(_table(request), (token,))
                except OutOfBlocksError:
                    if len(self._running) == 1:
                        self.end(request, "length")  # the whole pool is its own
                    else:
                        self._preempt(next(reversed(self._running)))
                        preempted = True
        return preempted

    def _admit(self) -> Request | None:
        """Start the next request that fits, if any."""
        admitted = self._queue.admit()
        if admitted is None:
            return None
        request, table = admitted
        del self._waiting[request]
        request.admitted(table, self._clock())
        self._running[request] = None
        token = request.pending_token  # of one that was preempted before its last token had a place
        if token is not None:
            try:
                self.manager.grow(table, (token,))
            except OutOfBlocksError:
                if len(self._running) == 1:
                    self.end(request, "length")
                else:
                    self._preempt(request)
                return None
        return request

    def _preempt(self, request: Request) -> None:
        table = _table(request)
        self.manager.preempt(table)
        del self._running[request]
        self._waiting[request] = None
        self._queue.put_back(request, table)

    def _sample(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        choices = sample(logits, [request.sampler for request in requests])
        now = self._clock()
        outputs = [
            request.take(token, logprobs, now) for request, (token, logprobs) in zip(requests, choices, strict=True)
        ]
        for output in outputs:
            if output.finish_reason is not None:
                self._release(output.request)
        self._meter.output_tokens += len(outputs)
        self.latest = self._look()  # whoever hears of an end finds the blocks returned
        for output in outputs:
            self._deliver(output)

    def _release(self, request: Request) -> None:
        """Take a request out of the queue or the running ones."""
        began = self._clock()
        try:
            if request in self._waiting:
                del self._waiting[request]
                self._queue.cancel(request)
            elif request in self._running:
                del self._running[request]
                self.manager.finish(_table(request))
        except Exception:  # noqa: BLE001  # one request must not end the others
            _log.exception("the blocks of %r are lost", request)
        self._meter.cache_seconds += self._clock() - began

    def _deliver(self, output: Output) -> None:
        request = output.request
        try:
            request.deliver(output)
        except Exception:  # noqa: BLE001  # as above
            _log.exception("the owner of %r failed on an output; it is cancelled", request)
            if request.finish_reason is None:
                request.end("cancelled", self._clock())
                self._release(request)


def _finite(logits: torch.Tensor) -> list[bool]:
    """Whether each row's are numbers."""
    return torch.isfinite(logits.amax(-1)).tolist() if len(logits) else []


def _left(request: Request) -> int:
    """Tokens whose K and V are still to compute."""
    table = _table(request)
    return table.num_tokens - table.computed_tokens


def _table(request: Request) -> BlockTable:
    if request.table is None:
        raise InvariantError(f"{request!r} has no blocks")
    return request.table


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
