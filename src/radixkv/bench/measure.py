"""One workload through one engine: what it took."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Final

from radixkv.bench.best import Served, best_hit_tokens
from radixkv.bench.rates import STEP_TOKENS, Gauge
from radixkv.bench.workloads import Workload
from radixkv.engine import Engine, EngineConfig, LoadedModel, Output, SamplingParams, Timings
from radixkv.engine.attention import PagedBatch
from radixkv.errors import RadixKVError

MAX_RUNNING: Final = 256
"""Requests that run at once, many more than the engine's default: their short ends make full steps together."""


class BenchError(RadixKVError):
    """A request of a workload did not end as it should."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine is set up for a run."""

    prefix_cache: str
    block_size: int
    order: str
    max_skips: int = 256

    def __str__(self) -> str:
        if self.prefix_cache == "none":
            return "none"
        return f"{self.prefix_cache} {self.block_size}"


NONE: Final = Setup("none", 16, "fcfs")
"""Without a cache there is no longest cached prefix: the order lpm is that of arrival."""
CACHED: Final = tuple(
    Setup(prefix_cache, block_size, order)
    for prefix_cache, block_size in (("hash", 16), ("radix", 16), ("radix", 1))
    for order in ("fcfs", "lpm")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run took; seconds are of the clock that it was given."""

    workload: str
    setup: Setup
    requests: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    hit_tokens: int
    """Prompt tokens found cached, over all requests."""
    best_hit_tokens: int
    """The most that any order and any cache of this block size could have found."""
    first_token_seconds: tuple[float, ...]
    """From submission to the first token, a number a request, in order of submission."""
    decode_seconds: float
    """In steps that computed one token a request: no prompts."""
    sample_seconds: float
    """Of choosing tokens and handing them out in the other steps, by their share of all outputs."""
    prefill_work: float
    """Seconds that the tokens of those steps would take in full steps (`Rates.work`)."""
    cache_seconds: float
    """In the block manager, the cache and the waiting queue."""
    worst_skips: int
    """By how many requests that came later the unluckiest one was passed over."""

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second, cached ones too."""
        return self.prompt_tokens / self.seconds

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.seconds

    @property
    def hit_rate(self) -> float:
        """Hit tokens over prompt tokens."""
        return self.hit_tokens / self.prompt_tokens

    @property
    def of_best(self) -> float:
        """Hit tokens over the best possible; 1 where there is nothing to find."""
        return self.hit_tokens / self.best_hit_tokens if self.best_hit_tokens else 1.0

    @property
    def prefill_seconds(self) -> float:
        """All time but that of `decode_seconds` and `sample_seconds`."""
        return self.seconds - self.decode_seconds - self.sample_seconds

    @property
    def cache_share(self) -> float:
        """Share of all time that the cache took."""
        return self.cache_seconds / self.seconds

    def first_token(self, share: float) -> float:
        """Seconds to the first token that this share of the requests did not exceed."""
        ordered = sorted(self.first_token_seconds)
        return ordered[max(ceil(share * len(ordered)) - 1, 0)]

    def of_bound(self, uncached: Measured) -> float:
        """Throughput over what the saved prefill work allows: 1 if prefill takes as much less time as it has work.

        `uncached` is the same workload without a cache, in the same process. The rest of the time, decoding above all,
        is none that a cache could save.
        """
        rest = self.seconds - self.prefill_seconds
        return (rest + self.prefill_seconds * self.of_prefill(uncached)) / self.seconds

    def of_prefill(self, uncached: Measured) -> float:
        """The same of prefill alone."""
        speedup = uncached.prefill_seconds / self.prefill_seconds
        return speedup * self.prefill_work / uncached.prefill_work


def measure(
    model: LoadedModel,
    workload: Workload,
    setup: Setup,
    gauge: Gauge,
    *,
    on_end: Callable[[], None] = lambda: None,
) -> Measured:
    """Run a workload through an engine of its own.

    Args:
        model: nobody else may use it meanwhile.
        workload: what to run.
        setup: of the engine.
        gauge: what it is measured with.
        on_end: called at each request's end, in the engine's thread.

    Raises:
        BenchError: a request failed.
    """
    config = EngineConfig(
        num_blocks=workload.pool_tokens // setup.block_size,
        block_size=setup.block_size,
        prefix_cache=setup.prefix_cache,
        order=setup.order,
        max_skips=setup.max_skips,
        token_budget=STEP_TOKENS,
        max_running=MAX_RUNNING,
        max_waiting=len(workload.calls),
    )
    engine = Engine(model, config, clock=gauge.clock)
    steps = _StepWatch(gauge)
    drive = _Drive(engine, workload, on_end)
    hook = model.model.register_forward_pre_hook(steps, with_kwargs=True)
    engine.start()
    try:
        drive.run()
    finally:
        engine.shutdown()
        hook.remove()
    snapshot = engine.snapshot()
    timings = [ended.timings for ended in drive.ended]
    began, ended = min(timing.submitted for timing in timings), max(_known(timing.finished) for timing in timings)
    return Measured(
        workload=workload.name,
        setup=setup,
        requests=len(workload.calls),
        seconds=ended - began,
        prompt_tokens=sum(output.prompt_tokens for output in drive.ended),
        output_tokens=sum(output.output_tokens for output in drive.ended),
        hit_tokens=sum(output.cached_tokens for output in drive.ended),
        best_hit_tokens=best_hit_tokens(drive.served, setup.block_size),
        first_token_seconds=tuple(_known(timing.first_token) - timing.submitted for timing in timings),
        decode_seconds=steps.decode_seconds(ended),
        sample_seconds=snapshot.sample_seconds * steps.prefill_outputs,
        prefill_work=steps.prefill_work,
        cache_seconds=snapshot.cache_seconds,
        worst_skips=worst_skips(timings),
    )


def worst_skips(timings: Sequence[Timings]) -> int:
    """By how many requests that came later the unluckiest one was passed over. In order of submission. O(n²)."""
    admitted = [_known(timing.admitted) for timing in timings]
    return max(sum(later < mine for later in admitted[i + 1 :]) for i, mine in enumerate(admitted))


def _known(seconds: float | None) -> float:
    if seconds is None:
        raise BenchError("a request ended without being admitted, or without a token")
    return seconds


class _Drive:
    """Submits the calls of a workload, each one as soon as that which it continues has ended."""

    def __init__(self, engine: Engine, workload: Workload, on_end: Callable[[], None]) -> None:
        self._engine = engine
        self._calls = workload.calls
        self._on_end = on_end
        self._followers: dict[int | None, list[int]] = defaultdict(list)
        for index, call in enumerate(workload.calls):
            self._followers[call.after].append(index)
        self._served: dict[int, tuple[list[int], list[int]]] = {}
        self._ended: dict[int, Output] = {}  # in order of submission
        self._failure: BaseException | None = None
        self._done = threading.Event()

    @property
    def ended(self) -> list[Output]:
        """The last output of each request, in order of submission."""
        return [self._ended[index] for index in self._served]

    @property
    def served(self) -> list[Served]:
        """Every prompt with its output."""
        return [Served(prompt, output) for prompt, output in self._served.values()]

    def run(self) -> None:
        """Submit all, in the engine's thread so that the first ones come at once, and wait for the last one's end."""
        self._engine.call(lambda _: self._submit(None)).result()
        self._done.wait()
        if self._failure is not None:
            raise BenchError(f"a request failed: {self._failure}") from self._failure

    def _submit(self, after: int | None) -> None:
        for index in self._followers[after]:
            call = self._calls[index]
            prompt, output = self._served[after] if after is not None else ([], [])
            tokens = [*prompt, *output, *call.tokens]
            self._served[index] = tokens, []
            params = SamplingParams(
                temperature=0 if call.seed is None else 1, seed=call.seed, max_tokens=call.outputs, ignore_eos=True
            )
            self._engine.submit(tokens, params, on_output=partial(self._hear, index))

    def _hear(self, index: int, output: Output) -> None:
        self._served[index][1].extend(output.token_ids)
        if output.finish_reason is None:
            return
        self._ended[index] = output
        self._on_end()
        try:
            if output.finish_reason != "length":
                raise BenchError(output.error or f"it ended early: {output.finish_reason}")
            self._submit(index)
        except RadixKVError as error:
            self._failure = error
        if self._failure or len(self._ended) == len(self._calls):
            self._done.set()


@dataclass(slots=True)
class _Step:
    began: float
    decodes: bool
    """It computes one token a request."""
    outputs: int
    work: float


class _StepWatch:
    """Notes what each forward pass computes: a hook that torch calls before it.

    A step's time ends where the next one begins, so nothing is left out.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._clock = gauge.clock
        self._rates = gauge.rates
        self._steps: list[_Step] = []

    def __call__(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        batch: PagedBatch = kwargs["radixkv_batch"]
        positions = kwargs["position_ids"]
        pairs = int(positions.sum()) + positions.numel()
        outputs = len(kwargs.get("logits_to_keep", ()))
        work = self._rates.work(positions.numel(), pairs, outputs)
        self._steps.append(_Step(self._clock(), batch.decodes, outputs, work))

    @property
    def prefill_work(self) -> float:
        """Of all steps that computed more than a token for some request."""
        return sum(step.work for step in self._steps if not step.decodes)

    @property
    def prefill_outputs(self) -> float:
        """The share of all outputs that these steps have."""
        outputs = sum(step.outputs for step in self._steps)
        return sum(step.outputs for step in self._steps if not step.decodes) / max(outputs, 1)

    def decode_seconds(self, end: float) -> float:
        """Of the other steps, if the last one ended then."""
        ends = [step.began for step in self._steps[1:]] + [end]
        return sum(after - step.began for step, after in zip(self._steps, ends, strict=True) if step.decodes)
