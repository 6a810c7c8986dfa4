"""A grid is the same replays, whoever works."""

from __future__ import annotations

import builtins
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from radixkv import TokenKey
from radixkv.errors import MissingExtraError, SizeError, TraceError
from radixkv.lab import ReplayConfig, TraceFiles, WorkerError, replay, replay_grid
from radixkv.traces import Request, write_trace

CONFIGS = [
    ReplayConfig(blocks, size, cache, eviction, order, window=4)
    for cache in ("radix", "hash")
    for size in (1, 2)
    for eviction in ("lru", "lfu")
    for order in ("fcfs", "lpm")
    for blocks in (5, 2)
]


@pytest.fixture
def trace(tmp_path: Path) -> TraceFiles:
    path = str(tmp_path / "trace.jsonl")
    prompts = [TokenKey([number % 3, number % 2, 7, number % 5]) for number in range(40)]
    write_trace([Request(prompt, len(prompt), timestamp=float(i)) for i, prompt in enumerate(prompts)], path)
    return TraceFiles((path,))


def test_processes_find_what_one_finds(trace: TraceFiles) -> None:
    """In the order of the settings, all counters and histograms equal."""
    expected = replay(trace(), CONFIGS)

    assert CONFIGS == [result.config for result in expected]
    assert len({result.hit_tokens for result in expected}) > 3
    assert expected == replay_grid(trace, CONFIGS, workers=1)
    assert expected == replay_grid(trace, CONFIGS, workers=2)


def test_more_workers_than_settings(trace: TraceFiles) -> None:
    """No worker without work; nothing to do is done."""
    assert replay(trace(), CONFIGS[:1]) == replay_grid(trace, CONFIGS[:1], workers=8)
    assert [] == replay_grid(trace, [], workers=8)
    with pytest.raises(SizeError):
        replay_grid(trace, CONFIGS, workers=0)


def test_a_workers_error_comes_home(tmp_path: Path) -> None:
    """With the line and the field."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"tokens": [1]}\n{"tokens": "no"}\n')

    with pytest.raises(TraceError) as caught:
        replay_grid(TraceFiles((str(path),)), CONFIGS, workers=2)
    assert (2, "tokens") == (caught.value.line, caught.value.field)


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_hears_of_every_request_once_a_setting(tmp_path: Path, workers: int) -> None:
    """On the way, not at the end alone; whoever works."""
    path = str(tmp_path / "trace.jsonl")
    write_trace([Request(TokenKey([number, 7]), 2) for number in range(150)], path)
    told: list[int] = []

    replay_grid(TraceFiles((path,)), CONFIGS[:6], workers=workers, progress=told.append)
    assert 6 * 150 == sum(told)
    assert len(told) >= 3 * workers


class Killed:
    """A trace whose reader is ended from outside, as by a system that is short of memory."""

    def __call__(self) -> list[Request]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


def test_a_worker_that_is_ended_from_outside() -> None:
    """Is an error with its status; nothing waits for it."""
    with pytest.raises(WorkerError) as caught:
        replay_grid(Killed(), CONFIGS[:2], workers=2)
    assert -signal.SIGKILL == caught.value.status
    assert [] == multiprocessing.active_children()


class FakeRay(ModuleType):
    """As much of Ray as the grid uses, at once and here."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.calls: list[Any] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **how: Any) -> None:
        self.calls.append(how["address"])

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def remote(self, function: Any) -> Any:
        class Remote:
            @staticmethod
            def remote(*args: Any) -> Any:
                self.calls.append(len(args[1]))
                return function(*args)

        return Remote

    def get(self, values: list[Any]) -> list[Any]:
        return values

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_ray_is_dealt_the_same_grid(trace: TraceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share for every core of the cluster, and the cluster is left when it is done."""
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)

    assert replay(trace(), CONFIGS) == replay_grid(trace, CONFIGS, ray="ray://head:10001")
    assert ["ray://head:10001", 11, 11, 10, "shutdown"] == ray.calls


def test_without_ray(trace: TraceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    real = builtins.__import__

    def guarded(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(builtins, "__import__", guarded)
    with pytest.raises(MissingExtraError, match=r"radixkv\[ray\]"):
        replay_grid(trace, CONFIGS, ray="local")
