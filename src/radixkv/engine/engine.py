"""The engine: requests in, tokens out, in one thread that owns the model and the block manager.

```text
other threads    submit  cancel  call  shutdown          snapshot
                    |       |      |       |                ^
                    v       v      v       v                |
engine's thread  [ commands, in the order they came ] -> one step -> ...
```

A command waits for the step at work, and for nothing else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import TypeVar

from radixkv.engine.config import DEFAULT_KV_MEMORY, EngineConfig
from radixkv.engine.errors import EngineStoppedError, ParameterError, PromptTooLongError, QueueFullError
from radixkv.engine.kv_store import KVStore
from radixkv.engine.models import LoadedModel
from radixkv.engine.request import FinishReason, Output, Request
from radixkv.engine.runner import ModelRunner
from radixkv.engine.sampling import SamplingParams
from radixkv.engine.snapshot import EngineSnapshot
from radixkv.engine.steps import Steps
from radixkv.errors import TokenError
from radixkv.keys import TokenKey, Tokens, check_namespace
from radixkv.manager import BlockManager

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Engine:
    """Serves a model: continuous batching over one pool of blocks that running requests and the prefix cache share.

    Every method may be called from any thread; `on_output` may call `submit`, `cancel` and `snapshot`. Made, it has
    written all of its K and V memory: a second or so a GiB, more where the system hands memory out slowly.

    Args:
        model: what `load_model` gives. From now on the engine's thread alone may use it.
        config: sizes and policies.
        clock: seconds, for `Timings` and the sums of the snapshot.

    Raises:
        UnknownNameError: no such cache, eviction policy or order.
        ParameterError: `kv_memory` is less than one block, or K and V are more than the machine's memory.
    """

    def __init__(
        self, model: LoadedModel, config: EngineConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.model = model
        self.config = config = config or EngineConfig()
        num_blocks = _num_blocks(model, config)
        manager = BlockManager(
            num_blocks, config.block_size, prefix_cache=config.prefix_cache, eviction=config.eviction
        )
        store = KVStore(model.layers, num_blocks, config.block_size, model.dtype, model.device)
        self.max_prompt_tokens = min(model.max_context - 1, num_blocks * config.block_size)
        """Longest prompt that `submit` takes."""
        self._steps = Steps(ModelRunner(model.model, store), manager, config, clock)
        self._clock = clock
        self._numbers = count(1)
        self._wake = threading.Condition()  # guards all below
        self._commands: deque[Callable[[], None]] = deque()
        self._arriving = 0  # requests among them
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._accepting = self._draining = self._aborting = self._ended = False

    def start(self) -> None:
        """Start the thread.

        Raises:
            EngineStoppedError: it was started or shut down before.
        """
        with self._wake:
            if self._thread is not None or self._draining:
                raise EngineStoppedError("an engine starts once")
            self._thread = threading.Thread(target=self._run, name="radixkv-engine", daemon=True)
            self._accepting = True
            self._thread.start()

    def submit(
        self,
        prompt: Tokens,
        params: SamplingParams,
        *,
        namespace: str | None = None,
        on_output: Callable[[Output], None],
        priority: int = 0,
    ) -> Request:
        """Queue a prompt. Returns at once; outputs come by callback, the last one with a finish reason.

        Args:
            prompt: its tokens, one or more.
            params: how to continue it.
            namespace: keeps K and V apart from those of other namespaces.
            on_output: called in the engine's thread with each `Output`; it must not block. If it raises, the request
                is cancelled.
            priority: for the `priority` eviction policy.

        Raises:
            PromptTooLongError: more than `max_prompt_tokens`.
            TokenError: a token that the model does not have, or no token at all.
            NamespaceError: a namespace that is no string.
            QueueFullError: `max_waiting` requests wait.
            EngineStoppedError: not started, or shut down.
        """
        key = TokenKey.of(prompt)
        self._check_prompt(key)
        check_namespace(namespace)
        left = self.model.max_context - len(key)
        ends = frozenset(params.stop_token_ids)
        request = Request(
            number=next(self._numbers),
            prompt=key,
            params=params,
            namespace=namespace,
            on_output=on_output,
            max_outputs=left if params.max_tokens is None else min(left, params.max_tokens),
            end_tokens=ends if params.ignore_eos else ends | self.model.eos_token_ids,
            vocab_size=self.model.vocab_size,
            decode=self.model.decode,
            submitted=self._clock(),
        )

        def enqueue() -> None:
            self._steps.enqueue(request, priority)
            with self._wake:
                self._arriving -= 1  # only now: it is never counted too little

        with self._wake:
            if not self._accepting:
                raise EngineStoppedError("the engine is not running")
            if self._arriving + self._steps.waiting >= self.config.max_waiting:
                raise QueueFullError(limit=self.config.max_waiting)
            self._arriving += 1
            self._commands.append(enqueue)
            self._wake.notify()
        return request

    def cancel(self, request: Request) -> None:
        """End a request early: its blocks are free before the next step. Nothing happens if it has ended."""
        self._command(lambda: self._steps.end(request, "cancelled"))

    def snapshot(self) -> EngineSnapshot:
        """Counters and gauges after the last step, with the ends that its outputs tell of. O(1); waits for nothing."""
        return self._steps.latest

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread, if it was not `shutdown`: no request is taken any more."""
        return self._failure

    def call(self, function: Callable[[BlockManager], T]) -> Future[T]:
        """Run a function on the block manager between two steps, in the engine's thread.

        The future fails with what the function raises, or with `EngineStoppedError` if the engine is not running.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(self._steps.manager)
                self._steps.refresh()
                future.set_result(result)
            except BaseException as error:  # noqa: BLE001  # it is the caller's, as it would be without a thread
                future.set_exception(error)

        if not self._command(run):
            future.set_exception(EngineStoppedError("the engine is not running"))
        return future

    def reset_cache(self) -> Future[int]:
        """Forget everything cached, and the cache's counters; gives the number of blocks that became free.

        The future fails with `LockError` while a running request reads cached blocks.
        """
        return self.call(BlockManager.reset)

    def shutdown(self, *, drain_seconds: float = 0.0) -> None:
        """Take no more requests, let those there finish for so long, cancel the rest, and end the thread.

        Waits at most for `drain_seconds` and the step at work; a second call does no harm. Not from `on_output`.
        """
        with self._wake:
            self._accepting, self._draining = False, True
            self._wake.notify()
            thread = self._thread
        if thread is None:
            return
        thread.join(max(drain_seconds, 0.0))
        with self._wake:
            self._aborting = True
            self._wake.notify()
        thread.join()

    def _run(self) -> None:
        """The thread."""
        reason: FinishReason = "cancelled"
        error: str | None = None
        try:
            while self._obey():
                if self._steps.busy:
                    self._steps.step()
        except BaseException as failure:  # noqa: BLE001  # whatever it is, it is logged, and told to all owners
            _log.exception("the engine's thread failed: it takes no more requests")
            self._failure = failure
            reason, error = "error", f"{type(failure).__name__}: {failure}"
        finally:
            self._close(reason, error)

    def _obey(self) -> bool:
        """Run the commands that came, waiting for one if there is nothing to do; False at the end."""
        with self._wake:
            while not (self._commands or self._steps.busy or self._draining):
                self._wake.wait()
            commands, self._commands = self._commands, deque()
            draining, aborting = self._draining, self._aborting
        while commands:
            commands.popleft()()
        return not aborting and (self._steps.busy or not draining)

    def _close(self, reason: FinishReason, error: str | None) -> None:
        """End what is left; after this no command is taken."""
        with self._wake:
            self._accepting, self._draining = False, True
            commands, self._commands = self._commands, deque()
            self._ended = True
        for command in commands:
            command()
        self._steps.end_all(reason, error)

    def _command(self, command: Callable[[], None]) -> bool:
        """Leave a command to the thread; False if there is none to obey it."""
        with self._wake:
            if self._thread is None or self._ended:
                return False
            self._commands.append(command)
            self._wake.notify()
        return True

    def _check_prompt(self, key: TokenKey) -> None:
        if not len(key):
            raise TokenError("a prompt has one token or more", index=None, value=())
        if len(key) > self.max_prompt_tokens:
            raise PromptTooLongError(tokens=len(key), limit=self.max_prompt_tokens)
        tokens, limit = key.tolist(), self.model.vocab_size
        if max(tokens) >= limit:
            index = next(i for i, token in enumerate(tokens) if token >= limit)
            reason = f"the model has tokens below {limit}, got {tokens[index]} at index {index}"
            raise TokenError(reason, index=index, value=tokens[index])


def _num_blocks(model: LoadedModel, config: EngineConfig) -> int:
    block = KVStore.block_bytes(model.layers, config.block_size, model.dtype)
    memory = config.kv_memory or DEFAULT_KV_MEMORY
    if config.num_blocks is None and memory < block:
        raise ParameterError(name="kv_memory", expected=f"at least one block, {block} bytes", given=memory)
    num_blocks = memory // block if config.num_blocks is None else config.num_blocks
    there_is = _physical_memory() if model.device.type == "cpu" else None
    if there_is is not None and num_blocks * block > there_is:  # which the system would end the process for
        name, given = ("kv_memory", memory) if config.num_blocks is None else ("num_blocks", num_blocks)
        expected = f"within the machine's {there_is} bytes of memory, not {num_blocks * block}"
        raise ParameterError(name=name, expected=expected, given=given)
    return num_blocks


def _physical_memory() -> int | None:
    """The machine's memory in bytes, where the system tells."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
