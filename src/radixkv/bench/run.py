"""The whole benchmark: every workload with every setup, and llama.cpp beside them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from radixkv.bench.measure import CACHED, NONE, Measured, Setup, measure
from radixkv.bench.peer import CHATS, ChatReuse, PeerError, as_text, first_chats, llama_cpp
from radixkv.bench.rates import Clock, Gauge, make_gauge
from radixkv.bench.workloads import WORKLOADS, Call, Scale, Workload, make
from radixkv.engine import DEFAULT_MODEL, LoadedModel, load_model
from radixkv.engine.default_model import default_model_gguf
from radixkv.errors import UnknownNameError

FULL = Scale(requests=2, length=2.0)
TIGHT = Setup("radix", 16, "lpm", max_skips=8)
"""With a bound on waiting that shuffled groups run into."""


@dataclass(frozen=True, slots=True)
class Result:
    """All that was measured."""

    model: str
    dtype: str
    threads: int
    clock: str
    """Whose seconds they are: "wall" or "cpu", the process's processor time."""
    workloads: tuple[Workload, ...]
    runs: tuple[Measured, ...]
    peers: tuple[ChatReuse, ...]
    left_out: str | None
    """Why llama.cpp was not run, if it was not."""


def run(  # noqa: PLR0913  # one a choice of the user's
    model_name: str | None,
    *,
    dtype: str,
    only: Sequence[str],
    full: bool,
    processor_time: bool,
    peer: bool,
    on_workload: Callable[[Workload, Sequence[Measured]], None],
) -> Result:
    """Measure, with progress bars on standard error.

    Args:
        model_name: as of `load_model`; None for the default one.
        dtype: as of `load_model`.
        only: names of workloads; all if there are none.
        full: more and longer requests.
        processor_time: measure the process's processor time instead of the wall clock's.
        peer: run llama.cpp, too.
        on_workload: called with the runs of a workload as soon as they are done.

    Raises:
        UnknownNameError: no such workload.
        RadixKVError: the model cannot be loaded, or a request failed.
    """
    for name in only:
        if name not in WORKLOADS:
            raise UnknownNameError(kind="workload", name=name, known=tuple(WORKLOADS))
    model = load_model(model_name or DEFAULT_MODEL, dtype=dtype)
    gc.freeze()  # as the server does

    def encode(words: str) -> Sequence[int]:
        tokens: list[int] = model.tokenizer(words, add_special_tokens=False)["input_ids"]
        return tokens

    workloads = [make(name, encode, FULL if full else Scale()) for name in only or WORKLOADS]
    clock: Clock = time.process_time if processor_time else time.monotonic
    gauge = make_gauge(model, clock)
    measure(model, Workload("warm-up", "", (Call(workloads[0].calls[0].tokens, 2),)), NONE, gauge)
    runs: list[Measured] = []
    for workload in workloads:
        of_workload = _measure_all(model, workload, gauge)
        runs += of_workload
        on_workload(workload, of_workload)
    peers: list[ChatReuse] = []
    left_out = None
    chats = next((workload for workload in workloads if workload.name == "multi-turn"), None)
    if peer and chats:
        try:
            peers = _hold_chats(model, first_chats(chats, CHATS), gauge)
        except PeerError as error:
            left_out = str(error)
    return Result(
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        clock="cpu" if processor_time else "wall",
        workloads=tuple(workloads),
        runs=tuple(runs),
        peers=tuple(peers),
        left_out=left_out,
    )


def _measure_all(model: LoadedModel, workload: Workload, gauge: Gauge) -> list[Measured]:
    """A workload with every setup, one after the other."""
    setups = setups_for(workload)
    runs = []
    with _progress() as progress:
        task = progress.add_task(workload.name, total=len(setups) * len(workload.calls))
        for setup in setups:
            progress.update(task, description=f"{workload.name}, {setup} {setup.order}")
            runs.append(measure(model, workload, setup, gauge, on_end=lambda: progress.advance(task)))
    return runs


def setups_for(workload: Workload) -> tuple[Setup, ...]:
    """What a workload is run with; without a cache twice, since the machine may not be as fast in the end."""
    return (NONE, *CACHED, *([TIGHT] if workload.name == "shuffled-groups" else ()), NONE)


def _hold_chats(model: LoadedModel, chats: Workload, gauge: Gauge) -> list[ChatReuse]:
    """The same chats with llama.cpp and with ours, each with and without what it caches."""
    if model.name != DEFAULT_MODEL:
        raise PeerError(f"llama.cpp is left out: it has no file of {model.name}")
    with _progress() as progress:
        progress.add_task("the first chats once more, with llama.cpp", total=None)
        theirs = llama_cpp(
            default_model_gguf(),
            as_text(chats, model.decode),
            threads=torch.get_num_threads(),
            processor_time=gauge.clock is time.process_time,
        )
        uncached = measure(model, chats, NONE, gauge)
        run = measure(model, chats, Setup("radix", 16, "lpm"), gauge)
    ours = ChatReuse(
        server=f"radixkv, {run.setup} {run.setup.order}",
        slots="-",
        prompt_tokens=run.prompt_tokens,
        reused_tokens=run.hit_tokens,
        first_token_seconds=run.first_token(0.5),
        uncached_first_token_seconds=uncached.first_token(0.5),
    )
    return [theirs, ours]


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1) as progress:
        yield progress
