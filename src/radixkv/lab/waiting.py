"""The order in which a trace's requests are served, where it is not that of their arrival."""

from __future__ import annotations

from typing import Any, Final

from radixkv.cache import PrefixCache
from radixkv.keys import TokenKey, Tokens, check_size
from radixkv.manager import BlockManager, BlockTable
from radixkv.scheduler import WaitingQueue
from radixkv.traces import Request

_MOST_BLOCKS: Final = 2**20


class RequestWindow:
    """The next requests of a trace, which wait together, and a queue order that chooses among them.

    ```text
    trace  … r9 r8 │ r7 r6 r5 r4 │  ──>  the order's choice is served; then the next request joins those that wait
                   │ window of 4 │
    ```

    A server so busy that `window` requests always wait. The queue is `radixkv.scheduler.WaitingQueue`, its bound on
    waiting included, and follows what the replay does to the cache.

    Args:
        cache: the cache that the requests will be served from.
        order: a name of `radixkv.scheduler.ORDERS`.
        window: how many wait at a time.
        blocks: capacity of the cache.

    Raises:
        UnknownNameError: no such order.
        SizeError: a window below 1.
    """

    def __init__(self, cache: PrefixCache[Any], *, order: str, window: int, blocks: int) -> None:
        self._window = check_size("window", window, 1)
        self._manager = _Gate(cache, min(blocks, _MOST_BLOCKS))
        self._queue = WaitingQueue[int](self._manager, order=order)
        self._waiting: dict[int, Request] = {}  # by arrival: equal requests may wait together
        self._arrivals = 0

    def push(self, request: Request) -> Request | None:
        """Let a request wait; the one to serve now, if there were enough of them before. Costs what the queue does."""
        served = self.pop() if len(self._waiting) == self._window else None
        key, most = request.prompt, self._manager.pool.num_blocks * self._manager.block_size
        self._queue.add(self._arrivals, key.prefix(most) if len(key) > most else key, request.namespace)
        self._waiting[self._arrivals] = request
        self._arrivals += 1
        return served

    def pop(self) -> Request | None:
        """The one to serve now; None if none waits. Costs what the queue does."""
        admitted = self._queue.admit()
        return self._waiting.pop(admitted[0]) if admitted else None


class _Gate(BlockManager):
    """Lets every request start at once and holds no blocks: the replay makes room by itself."""

    def __init__(self, cache: PrefixCache[Any], blocks: int) -> None:
        super().__init__(blocks, cache.block_size, prefix_cache="none")
        self.cache = cache

    def admit(self, tokens: Tokens, namespace: str | None = None, *, priority: int = 0) -> BlockTable:
        """See `BlockManager`; the table is finished already."""
        table = BlockTable(self, TokenKey.of(tokens), namespace, priority)
        table.state = "finished"
        return table
