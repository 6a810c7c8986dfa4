"""What a process that runs a model sets up, each time in a process of its own."""

import os
import platform
import subprocess
import sys

import pytest

SET_UP = "from radixkv.cli.runtime import set_up_process; set_up_process()\n"

SPINS = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"

FAULTS = """
import ctypes, resource, threading

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a fault is a page, whatever the system's setting

def layers():  # each takes 48 MiB and frees them, in a thread, as the engine does
    for _ in range(10):
        parts = [b"x" * (12 << 20) for _ in range(4)]

def count():
    layers()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    layers()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


def said(script: str, **environment: str) -> str:
    """What a script prints in a process with these variables, and none of those that the set-up heeds."""
    heeded = ("GOMP_", "KMP_", "OMP_", "MALLOC_", "GLIBC_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(heeded)}
    command, variables = [sys.executable, "-c", script], inherited | environment
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_threads_spin_briefly() -> None:
    """Unless the environment says how long."""
    assert "10000" == said(SET_UP + SPINS)
    assert "77" == said(SET_UP + SPINS, GOMP_SPINCOUNT="77")
    assert "None" == said(SET_UP + SPINS, OMP_WAIT_POLICY="PASSIVE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others have no mallopt, and nothing is set")
def test_freed_memory_serves_again() -> None:
    """No page is asked of the system twice; unless the environment says how memory is had."""
    pages = 10 * 48 * 2**20 // os.sysconf("SC_PAGE_SIZE")

    assert int(said(SET_UP + FAULTS)) < pages // 20
    assert int(said(SET_UP + FAULTS, MALLOC_ARENA_MAX="2")) > pages // 4
    assert int(said(FAULTS)) > pages // 4  # as it is without
