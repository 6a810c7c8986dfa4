"""Where torch computes before the engine does: in threads that end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """Run `work` in a thread that ends with it, wait, and give what it gives or raise what it raises.

    On a CPU every thread that computes with torch has a team of OpenMP threads for as long as it lives. GNU's OpenMP
    lets idle ones spin only while a process has no more of them than the machine has processors; beyond that they
    sleep, and every operation waits for the system to wake them: steps take twice as long. So the engine's thread must
    be the only one with a team: what computes before it, loading a model say, leaves none behind.

    What torch keeps for each thread, `no_grad` say, does not reach it. A caller that is interrupted leaves it at work,
    and a program that ends waits for it, unless the caller is a daemon thread: then this is one, too.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  # the caller's, as it would be without a thread
            future.set_exception(error)

    thread = threading.Thread(target=run, name="radixkv-apart")
    thread.start()
    try:
        return future.result()
    finally:
        if future.done():
            thread.join()
