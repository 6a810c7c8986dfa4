"""Nothing computes in the caller's thread: its OpenMP threads would halve the speed of the engine's."""

import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from radixkv.engine import adopt_model
from radixkv.engine.kv_store import LayerShape
from radixkv.engine.probe import probe
from radixkv.engine.threads import apart
from tests.tiny import tiny_model


def test_apart_gives_what_the_work_gives_and_leaves_no_thread() -> None:
    assert threading.current_thread() is not apart(threading.current_thread)
    assert not [thread for thread in threading.enumerate() if thread.name == "radixkv-apart"]


def test_apart_raises_what_the_work_raises_and_leaves_no_thread() -> None:
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)
    assert not [thread for thread in threading.enumerate() if thread.name == "radixkv-apart"]


def test_models_are_probed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def watched(model: Any, name: str) -> tuple[LayerShape, ...]:
        threads.append(threading.current_thread().name)
        return probe(model, name)

    monkeypatch.setattr("radixkv.engine.models.probe", watched)
    adopt_model(tiny_model(), None, "tiny")
    assert ["radixkv-apart"] == threads


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of the system in /proc")
def test_a_large_store_and_work_apart_leave_no_team_of_threads() -> None:
    script = """
        import os, time, torch
        from radixkv.engine.kv_store import KVStore, LayerShape
        from radixkv.engine.threads import apart
        threads = lambda: len(os.listdir("/proc/self/task"))
        torch.set_num_threads(2)
        before = threads()
        store = KVStore([LayerShape(8, 64, 64)] * 4, 1024, 16, torch.bfloat16, torch.device("cpu"))
        assert threads() == before, "the store"
        assert not store.keys[0].any()
        begun = threads()
        apart(lambda: torch.ones(2000, 2000) @ torch.ones(2000, 2000))
        until = time.monotonic() + 20
        while threads() > begun and time.monotonic() < until:  # the system takes its time to end them
            time.sleep(0.01)
        assert threads() == begun, "work apart"
        print(begun > before)  # what computes here does leave a team: this test can fail
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert ("True\n", 0) == (done.stdout, done.returncode), done.stderr
