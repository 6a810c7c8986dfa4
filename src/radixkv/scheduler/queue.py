"""The queue of waiting requests: who is admitted next.

Longest-prefix-first earns the most hits and starves whoever shares nothing. Here any order is bound: a request is
passed over by at most `max_skips` requests that came after it; then it is next, and nobody else is admitted until it
fits.

```text
add ──> order ──pop──> shares a prefix that a running request computes? ──> waits for it
                       fits?      ──> admitted: blocks allocated, prefix locked
                       fits not   ──> passed over for now; its cached prefix is locked while those behind it are tried
```
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from heapq import heappop, heappush
from typing import Any, Final, Generic, TypeVar

from radixkv.errors import OutOfBlocksError, RadixKVError, UnknownNameError
from radixkv.keys import TOKEN_BYTES, TokenKey, check_namespace, check_size, common_prefix
from radixkv.manager import BlockManager, BlockTable
from radixkv.scheduler.base import QueueOrder, Waiting
from radixkv.scheduler.dfs_weight import DepthFirst
from radixkv.scheduler.fcfs import Fcfs
from radixkv.scheduler.lpm import LongestPrefix

R = TypeVar("R", bound=Hashable)

ORDERS: Final[Mapping[str, Callable[[int], QueueOrder]]] = {
    "dfs-weight": DepthFirst,
    "fcfs": Fcfs,
    "lpm": LongestPrefix,
}
"""Every queue order by the name that `order=` takes."""

LOOK_PAST: Final = 64
"""How many requests that do not fit one call of `admit` looks past."""

SHARE_TOKENS: Final = 32
"""A request waits for a running one that computes at least so many tokens for it; fewer are not worth a step."""


class _Leader:
    """A running request that computes a prefix which others wait for."""

    __slots__ = ("followers", "key", "table")

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.key = table.key
        self.followers: list[tuple[int, int, Waiting]] = []  # heap: bytes they share with it, arrival


class QueuedError(RadixKVError, ValueError):
    """A request that is in the queue already."""


class WaitingQueue(Generic[R]):
    """Requests that wait for blocks, in an order that follows the cache.

    The order is kept, not computed: the queue observes the cache and moves the requests whose cached prefix changed.
    Looking never touches: nothing here counts a lookup or freshens a block until a request is admitted.

    Args:
        manager: admits the requests; its cache is observed from now on.
        order: a name of `ORDERS`.
        max_skips: by how many requests that came later a request may be passed over; 0 makes any order first come,
            first served.

    Raises:
        UnknownNameError: no such order.
        SizeError: a negative `max_skips`.

    >>> manager = BlockManager(num_blocks=8, block_size=1)
    >>> queue = WaitingQueue[str](manager)
    >>> warm = manager.admit([1, 2, 3, 4])
    >>> manager.commit(warm, 4)
    >>> manager.finish(warm)
    >>> queue.add("cold", TokenKey([9, 9]))
    >>> queue.add("cached", TokenKey([1, 2, 3, 4, 5]))
    >>> request, table = queue.admit()
    >>> request, table.matched_tokens
    ('cached', 4)
    """

    def __init__(self, manager: BlockManager, *, order: str = "lpm", max_skips: int = 64) -> None:
        try:
            make_order = ORDERS[order]
        except (KeyError, TypeError):
            raise UnknownNameError(kind="queue order", name=order, known=tuple(sorted(ORDERS))) from None
        self.max_skips = check_size("max_skips", max_skips, 0)
        self._manager = manager
        self._order = make_order(manager.block_size)
        self._waiting: dict[R, Waiting] = {}
        self._oldest: Waiting | None = None
        self._newest: Waiting | None = None
        self._skips = 0  # by how many later ones the oldest was passed over; no other was by more
        self._arrivals = 0
        self._put_back: deque[tuple[R, BlockTable]] = deque()
        self._missing: dict[Hashable, set[Waiting]] = {}  # who gets a longer match when a block is stored
        self._matched: dict[Any, set[Waiting]] = {}  # who gets a shorter one when a node is removed
        self._leaders: dict[Hashable, _Leader] = {}  # by the block that it computes next
        if manager.cache:
            manager.cache.observe(self)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._put_back)

    @property
    def skips(self) -> int:
        """By how many later requests the oldest waiting one was passed over; no other was by more."""
        return self._skips

    def add(self, request: R, tokens: TokenKey, namespace: str | None = None, *, priority: int = 0) -> None:
        """Let a request wait. Costs a `locate` of the cache and O(log requests).

        Raises:
            QueuedError: it waits already; nothing changed.
            NamespaceError: nothing changed.
        """
        if request in self._waiting:
            raise QueuedError("the request is in the queue already")
        check_namespace(namespace)
        waiting = Waiting(request, tokens, namespace, priority, self._arrivals)
        self._arrivals += 1
        self._waiting[request] = waiting
        waiting.older = self._newest
        if self._newest:
            self._newest.newer = waiting
        else:
            self._oldest = waiting
        self._newest = waiting
        self._watch(waiting)
        self._enter(waiting)

    def put_back(self, request: R, table: BlockTable) -> None:
        """Let a preempted request wait: before all others, the one put back last first. O(1)."""
        self._put_back.appendleft((request, table))

    def cancel(self, request: R) -> bool:
        """Take a request out; False if it is not here. O(log requests), or O(requests put back)."""
        waiting = self._waiting.get(request)
        if waiting:
            self._leave(waiting, passing=0)
            return True
        kept = [item for item in self._put_back if item[0] != request]
        found = len(kept) < len(self._put_back)
        self._put_back = deque(kept)
        return found

    def admit(self) -> tuple[R, BlockTable] | None:
        """Admit the next request that fits, and return it with its blocks; None if nothing can start now.

        A request put back goes first, and nobody before it fits. Then the oldest, if it was passed over `max_skips`
        times. Else the first of the order that fits; up to `LOOK_PAST` that do not are looked past, and while those
        behind them are tried, their cached prefixes are locked. O(log requests) and a `probe` for each it looks at.
        """
        if self._put_back:
            return self._resume()
        if self._oldest is None:
            return None
        if self._skips >= self.max_skips:
            return self._start(self._oldest)
        self._dismiss_leaders()
        looked_past: list[tuple[Waiting, Any]] = []
        try:
            return self._start_first(looked_past)
        finally:
            for waiting, node in looked_past:
                self._enter(waiting)
                if self._manager.cache:
                    self._manager.cache.unlock(node)

    # --- what the cache tells --------------------------------------------------------------------------------------

    def stored(self, block: Hashable) -> None:
        """See `CacheObserver`. O(log requests) for each request whose match it makes longer."""
        for waiting in self._missing.pop(block, ()):
            self._relocate(waiting)
        if leader := self._leaders.pop(block, None):
            self._lead(leader)

    def removed(self, node: Any) -> None:
        """See `CacheObserver`. O(log requests) for each request whose match it makes shorter."""
        for waiting in self._matched.pop(node, ()):
            self._relocate(waiting)

    def cleared(self) -> None:
        """See `CacheObserver`. O(requests)."""
        self._matched.clear()
        self._missing.clear()
        for waiting in self._waiting.values():
            if waiting.leader is None:
                self._relocate(waiting)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _resume(self) -> tuple[R, BlockTable] | None:
        request, table = self._put_back[0]
        try:
            self._manager.resume(table)
        except OutOfBlocksError:
            return None
        self._put_back.popleft()
        return request, table

    def _start_first(self, looked_past: list[tuple[Waiting, Any]]) -> tuple[R, BlockTable] | None:
        """Start the first of the order that fits; those that do not are left in `looked_past`, locked."""
        while len(looked_past) < LOOK_PAST and (waiting := self._order.pop()) is not None:
            waiting.ordered = False
            if self._follow(waiting):
                continue
            if admitted := self._start(waiting):
                return admitted
            looked_past.append((waiting, waiting.node))
            if self._manager.cache:
                self._manager.cache.lock(waiting.node)
        return None

    def _start(self, waiting: Waiting) -> tuple[R, BlockTable] | None:
        try:
            table = self._manager.admit(waiting.key, waiting.namespace, priority=waiting.priority)
        except OutOfBlocksError:
            return None
        self._leave(waiting, passing=1)
        if self._manager.cache:
            self._lead(_Leader(table))
        return waiting.request, table

    def _leave(self, waiting: Waiting, *, passing: int) -> None:
        """Take a request out of the queue; `passing` is 1 if that passes over those that came before it."""
        if waiting.ordered:
            self._order.remove(waiting)
        self._unwatch(waiting)
        waiting.leader = None
        del self._waiting[waiting.request]
        older, newer = waiting.older, waiting.newer
        if older:
            older.newer = newer
            older.passes += waiting.passes + passing
            self._skips += passing
        else:
            self._oldest = newer
            self._skips -= waiting.passes
        if newer:
            newer.older = older
        else:
            self._newest = older

    def _enter(self, waiting: Waiting) -> None:
        waiting.ordered = True
        self._order.add(waiting)

    def _relocate(self, waiting: Waiting) -> None:
        self._unwatch(waiting)
        self._watch(waiting)
        if waiting.ordered:
            self._order.moved(waiting)

    def _watch(self, waiting: Waiting) -> None:
        """Note how much of the prompt is cached, and which changes of the cache would change that."""
        if self._manager.cache:
            place = self._manager.cache.locate(waiting.key, waiting.namespace)
            waiting.matched_tokens, waiting.node, waiting.missing = place
            self._matched.setdefault(waiting.node, set()).add(waiting)
            if waiting.missing is not None:
                self._missing.setdefault(waiting.missing, set()).add(waiting)

    def _unwatch(self, waiting: Waiting) -> None:
        for watched, by in ((waiting.node, self._matched), (waiting.missing, self._missing)):
            if watchers := by.get(watched):
                watchers.discard(waiting)
                if not watchers:
                    del by[watched]

    def _lead(self, leader: _Leader) -> None:
        """Note what a running request computes next, and let those go on that share no more of it."""
        cache = self._manager.cache
        place = cache.locate(leader.key, leader.table.namespace) if cache else None
        done = len(leader.key)
        if place and place.missing is not None and place.missing not in self._leaders:
            self._leaders[place.missing] = leader
            done = place.matched_tokens
        while leader.followers and (
            leader.followers[0][2].leader is not leader or leader.followers[0][0] < (done + SHARE_TOKENS) * TOKEN_BYTES
        ):
            self._unfollow(leader, heappop(leader.followers)[2])

    def _follow(self, waiting: Waiting) -> bool:
        """Whether a running request computes enough of what this one misses; then it waits for that one."""
        leader = self._leaders.get(waiting.missing)
        if leader is None:
            return False
        shared = common_prefix(waiting.key.data, leader.key.data)
        if shared < (waiting.matched_tokens + SHARE_TOKENS) * TOKEN_BYTES:
            return False
        self._unwatch(waiting)
        waiting.leader = leader
        heappush(leader.followers, (shared, waiting.arrival, waiting))
        return True

    def _unfollow(self, leader: _Leader, waiting: Waiting) -> None:
        if waiting.leader is leader:
            waiting.leader = None
            self._watch(waiting)
            self._enter(waiting)

    def _dismiss_leaders(self) -> None:
        """Let go of those who follow a request that does not run any more. O(running requests)."""
        for block, leader in list(self._leaders.items()):
            if leader.table.state != "running":
                del self._leaders[block]
                for _, _, waiting in leader.followers:
                    self._unfollow(leader, waiting)
