"""Many settings at once: on all cores, or on a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeAlias

from radixkv.errors import MissingExtraError, RadixKVError
from radixkv.keys import check_size
from radixkv.lab.replay import ReplayConfig, ReplayResult, replay
from radixkv.traces import Request

TraceSource: TypeAlias = Callable[[], Iterable[Request]]
"""Reads a trace from its beginning whenever it is called. Workers get a pickled one."""

Progress: TypeAlias = Callable[[int], object]
"""Hears how many requests were served since the last time, each once a setting."""

_Batch: TypeAlias = tuple[TraceSource, list[ReplayConfig]]
_TOLD_EVERY: Final = 64


class WorkerError(RadixKVError):
    """A worker process that ended without an answer; `status` is its exit status, negative for a signal.

    It was ended from outside, as where memory is short, or by an error that is none of radixkv's, whose traceback is on
    standard error.
    """

    def __init__(self, *, status: int | None) -> None:
        super().__init__(f"a worker process ended without an answer, with exit status {status}")
        self.status = status


def replay_grid(
    trace: TraceSource,
    configs: Sequence[ReplayConfig],
    *,
    workers: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> list[ReplayResult]:
    """`replay` of many settings: they are dealt out, and each worker reads the trace once for all of its own.

    The answers are the same to the digit, whoever works, and in the order of `configs`.

    Args:
        trace: called once by every worker.
        configs: the settings.
        workers: processes; by default one a core. 1 works in this process, and so does any number for one setting. A
            script that has more needs `if __name__ == "__main__":`, as for any `multiprocessing`.
        ray: address of a Ray cluster to work on instead, one worker a core there, each of which must be able to read
            the trace; "local" starts one here.
        progress: hears of requests as they are served, `len(configs)` times those of the trace in all; not from Ray.

    Raises:
        MissingExtraError: a Ray address, and no Ray.
        SpanError, TraceError: as `replay` and the trace.
        WorkerError: a process that ended without an answer.
        SizeError: fewer workers than one.
    """
    own = _cores() if workers is None else check_size("workers", workers, 1)
    run, cores = _on_ray(ray) if ray else _on_cores(own, progress)
    # Equal settings but for the capacity, and so about equal work, stand next to each other: dealt out one by one.
    count = max(min(cores, len(configs)), 1)
    by_cost = sorted(range(len(configs)), key=lambda i: (configs[i].cache, configs[i].eviction, configs[i].order))
    hands = [sorted(by_cost[worker::count]) for worker in range(count)]
    batches = [(trace, [configs[i] for i in hand]) for hand in hands]
    answered = dict(zip((i for hand in hands for i in hand), (r for done in run(batches) for r in done), strict=True))
    return [answered[i] for i in range(len(configs))]


def _cores() -> int:
    """Cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _replay_batch(
    trace: TraceSource, configs: list[ReplayConfig], progress: Progress | None = None
) -> list[ReplayResult]:
    requests = trace()
    return replay(_told(requests, len(configs), progress) if progress else requests, configs)


def _told(requests: Iterable[Request], settings: int, progress: Progress) -> Iterator[Request]:
    number = 0
    for number, request in enumerate(requests, start=1):
        yield request
        if not number % _TOLD_EVERY:
            progress(_TOLD_EVERY * settings)
    progress(number % _TOLD_EVERY * settings)


def _on_cores(
    cores: int, progress: Progress | None
) -> tuple[Callable[[list[_Batch]], Iterable[list[ReplayResult]]], int]:
    def run(batches: list[_Batch]) -> Iterable[list[ReplayResult]]:
        if len(batches) == 1:
            return [_replay_batch(*batches[0], progress)]
        return _in_processes(batches, progress)

    return run, cores


def _in_processes(batches: list[_Batch], progress: Progress | None) -> list[list[ReplayResult]]:
    # A fresh interpreter: a fork of one that has threads (numpy's, a progress bar's) may hang.
    context = get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in batches]
    workers = [
        context.Process(target=_work, args=(sender, *batch), daemon=True)
        for (_, sender), batch in zip(pipes, batches, strict=True)
    ]
    answers: dict[int, list[ReplayResult]] = {}
    try:
        with _interrupts_blocked():
            for worker in workers:
                worker.start()
        for _, sender in pipes:
            sender.close()  # a copy: where the worker has ended, the pipe ends
        while len(answers) < len(batches):
            wait([receiver for number, (receiver, _) in enumerate(pipes) if number not in answers])
            for number, (receiver, _) in enumerate(pipes):
                if number not in answers and receiver.poll():
                    said = _heard(receiver, workers[number])
                    if isinstance(said, list):
                        answers[number] = said
                    elif progress:
                        progress(said)
    finally:  # an error or an interrupt ends those that still work
        for worker in workers:
            if worker.pid is not None:
                worker.terminate()
                worker.join()
    return [answers[number] for number in range(len(batches))]


def _heard(receiver: Connection, worker: BaseProcess) -> int | list[ReplayResult]:
    """What a worker says next, or an error."""
    try:
        said: int | list[ReplayResult] | RadixKVError = receiver.recv()
    except (EOFError, OSError):  # between two messages, or amid one
        worker.join()
        raise WorkerError(status=worker.exitcode) from None
    if isinstance(said, RadixKVError):
        raise said
    return said


def _work(sender: Connection, trace: TraceSource, configs: list[ReplayConfig]) -> None:
    """What a process does: tells numbers of served requests, and at last the results or what is wrong."""
    try:
        sender.send(_replay_batch(trace, configs, sender.send))
    except RadixKVError as error:
        sender.send(error)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Around the start of processes, which so never hear of Ctrl-C: who started them ends them.

    One that comes meanwhile is heard afterwards: amid a start it would leave a process without what it is to do.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # unblocks them when it starts, as it else would with the first process
    heard: list[int] = []
    # Another thread may still take the signal for the process; Python then calls the handler in this one.
    handles = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: heard.append(number)) if handles else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handles:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _on_ray(address: str) -> tuple[Callable[[list[_Batch]], Iterable[list[ReplayResult]]], int]:
    try:
        import ray  # noqa: PLC0415  # an extra of its own, and slow
    except ModuleNotFoundError:
        raise MissingExtraError(part="a grid on Ray", package="ray", extra="ray") from None
    started = not ray.is_initialized()
    if started:
        ray.init(address=address, log_to_driver=False)
    remote: Any = ray.remote(_replay_batch)

    def run(batches: list[_Batch]) -> Iterable[list[ReplayResult]]:
        try:
            return list(ray.get([remote.remote(*batch) for batch in batches]))
        finally:
            if started:
                ray.shutdown()

    return run, max(int(ray.cluster_resources().get("CPU", 1)), 1)
