"""A pytest plugin for `make mutants`: a test that uses 20 seconds of processor time ends the process with SIGXCPU.

A mutant may loop for ever. mutmut's own limits are for all tests of a mutant together, and the lower one is of time on
the wall, which a busy machine uses up by itself. The slowest test takes three seconds.
"""

from __future__ import annotations

import resource
from collections.abc import Generator
from math import ceil
from time import process_time

import pytest

CPU_SECONDS = 20


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Lower the limit for the time of one test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(process_time()) + CPU_SECONDS, hard))
    try:
        return (yield)
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
