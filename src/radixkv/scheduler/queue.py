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

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from operator import index
from typing import Any, Final, Generic, TypeVar

from radixkv.errors import OutOfBlocksError, RadixKVError, UnknownNameError
from radixkv.keys import TOKEN_BYTES, TokenKey, Tokens, check_namespace, check_size, common_prefix
from radixkv.manager import BlockManager, BlockTable
from radixkv.scheduler.base import QueueOrder, Waiting
from radixkv.scheduler.dfs_weight import DepthFirst
from radixkv.scheduler.fcfs import Fcfs
from radixkv.scheduler.lpm import LongestPrefix
from radixkv.types import PrefixLocation

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
"""A request waits for a running one that will cache at least so many tokens for it; fewer are not worth a step."""


class _Leader:
    """A running request that computes a prefix which others may wait for."""

    __slots__ = ("common", "followers", "key", "missing", "node", "table", "tokens")

    def __init__(self, table: BlockTable, block_size: int) -> None:
        self.table = table
        self.tokens = len(table.key)
        # A match leaves out the last token's block, which will be cached as well: a token more brings it in.
        self.key = table.key if self.tokens % block_size else table.key.extended([0])
        self.common = b""  # the blocks shared with whoever was compared last
        self.followers: list[tuple[int, int, Waiting]] = []  # heap: tokens that it will cache for them, arrival
        self.node: Any = None
        self.missing: Any = None  # what it computes next


W = TypeVar("W", Waiting, _Leader)


class _Watch(Generic[W]):
    """Whose cached prefix becomes longer when a block is stored, and whose becomes shorter when a node is removed.

    They are noted only, and looked at once when somebody has to know, however often the cache changes until then.
    """

    __slots__ = ("at_node", "before_block", "changed")

    def __init__(self) -> None:
        self.at_node: dict[Any, dict[W, None]] = {}
        self.before_block: dict[Hashable, dict[W, None]] = {}
        self.changed: dict[W, None] = {}

    def add(self, watcher: W, place: PrefixLocation[Any]) -> None:
        watcher.node, watcher.missing = place.node, place.missing
        self.at_node.setdefault(place.node, {})[watcher] = None
        if place.missing is not None:
            self.before_block.setdefault(place.missing, {})[watcher] = None

    def discard(self, watcher: W) -> None:
        self.changed.pop(watcher, None)
        for watched, watchers in ((watcher.node, self.at_node), (watcher.missing, self.before_block)):
            if others := watchers.get(watched):
                others.pop(watcher, None)
                if not others:
                    del watchers[watched]

    def stored(self, block: Hashable) -> None:
        self.changed.update(self.before_block.pop(block, {}))

    def removed(self, node: Any) -> None:
        self.changed.update(self.at_node.pop(node, {}))

    def cleared(self) -> None:
        for watchers in self.at_node.values():
            self.changed.update(watchers)
        self.at_node.clear()
        self.before_block.clear()

    def take_changed(self) -> list[W]:
        """Those to locate again; they are not watched any more."""
        changed = list(self.changed)
        for watcher in changed:
            self.discard(watcher)
        return changed

    def __iter__(self) -> Iterator[W]:
        yield from self.changed
        for watchers in self.at_node.values():
            yield from (watcher for watcher in watchers if watcher not in self.changed)


class QueuedError(RadixKVError, ValueError):
    """A request that is in the queue already."""


class WaitingQueue(Generic[R]):
    """Requests that wait for blocks, in an order that follows the cache.

    The order is kept, not computed: the queue observes the cache and moves the requests whose cached prefix changed
    since the last admission.
    Looking never touches: nothing here counts a lookup or freshens a block until a request is admitted.

    Args:
        manager: admits the requests; its cache is observed from now on, until `close`.
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

    def __init__(self, manager: BlockManager, *, order: str = "lpm", max_skips: int = 256) -> None:
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
        self._put_back: dict[R, BlockTable] = {}  # the one put back last goes first
        self._watch = _Watch[Waiting]()  # all that are in the order, or looked past, if the order goes by matches
        self._leaders = _Watch[_Leader]()  # running requests that have full blocks to compute
        if manager.cache:
            manager.cache.observe(self)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._put_back)

    @property
    def skips(self) -> int:
        """By how many later requests the oldest waiting one was passed over; no other was by more."""
        return self._skips

    def add(self, request: R, tokens: Tokens, namespace: str | None = None, *, priority: int = 0) -> None:
        """Let a request wait. Costs a `locate` of the cache and O(log requests).

        Raises:
            QueuedError: it waits already; nothing changed.
            OutOfBlocksError: it needs more blocks than the whole pool has; nothing changed.
            TokenError, NamespaceError: nothing changed.
            TypeError: a priority that is no integer; nothing changed.
        """
        self._check_new(request)
        check_namespace(namespace)
        key = TokenKey.of(tokens)
        wanted, there_are = self._manager.blocks_for(len(key)), self._manager.pool.num_blocks
        if wanted > there_are:
            raise OutOfBlocksError(wanted=wanted, available=there_are)
        waiting = Waiting(request, key, namespace, index(priority), self._arrivals)
        self._arrivals += 1
        self._waiting[request] = waiting
        waiting.older = self._newest
        if self._newest:
            self._newest.newer = waiting
        else:
            self._oldest = waiting
        self._newest = waiting
        self._locate(waiting)
        self._enter(waiting)

    def put_back(self, request: R, table: BlockTable) -> None:
        """Let a preempted request wait: before all others, the one put back last first. O(requests put back).

        Raises:
            QueuedError: it, or its table, waits already; nothing changed.
            BlockTableError: the table is not preempted, or another manager's; nothing changed.
        """
        self._check_new(request)
        self._manager.check_table(table, "preempted")
        if table in self._put_back.values():
            raise QueuedError("the table is in the queue already")
        self._put_back[request] = table

    def cancel(self, request: R) -> bool:
        """Take a request out; False if it is not here. O(log requests)."""
        waiting = self._waiting.get(request)
        if waiting:
            self._leave(waiting, passing=0)
            return True
        return self._put_back.pop(request, None) is not None

    def admit(self) -> tuple[R, BlockTable] | None:
        """Admit the next request that fits, and return it with its blocks; None if nothing can start now.

        A request put back goes first, and nobody before it fits. Then the oldest, if it was passed over `max_skips`
        times. Else the first of the order that fits; up to `LOOK_PAST` that do not are looked past, and while those
        behind them are tried, their cached prefixes are locked. O(log requests) and a few walks of the cache for each
        it looks at, and for each whose cached prefix changed since the last call.
        """
        self._settle()
        if self._put_back:
            return self._resume()
        if self._oldest is None:
            return None
        if self._skips >= self.max_skips:
            return self._start(self._oldest)
        looked_past: list[tuple[Waiting, Any]] = []
        try:
            return self._start_first(looked_past)
        finally:
            for waiting, node in looked_past:
                self._enter(waiting)
                if self._manager.cache:
                    self._manager.cache.unlock(node)

    def close(self) -> None:
        """Hear of the cache no more, where the manager outlives the queue. The queue is not to be used afterwards."""
        if self._manager.cache:
            self._manager.cache.unobserve(self)

    # --- what the cache tells --------------------------------------------------------------------------------------

    def matched(self, blocks: Sequence[int]) -> None:
        """See `CacheObserver`. A use changes nobody's match."""

    def inserted(self, blocks: Sequence[int], new_blocks: int, name: Hashable | None) -> None:
        """See `CacheObserver`. O(requests whose match it makes longer), a dict entry each."""
        if new_blocks:
            self._watch.stored(name)
            self._leaders.stored(name)

    def evicted(self, nodes: Sequence[Any], blocks: Sequence[int]) -> None:
        """See `CacheObserver`. O(nodes, and requests whose match it makes shorter), a dict entry each."""
        for node in nodes:
            self._watch.removed(node)
            self._leaders.removed(node)

    def cleared(self) -> None:
        """See `CacheObserver`. O(requests), a dict entry each."""
        self._watch.cleared()
        self._leaders.cleared()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _check_new(self, request: R) -> None:
        if request in self._waiting or request in self._put_back:
            raise QueuedError("the request is in the queue already")

    def _resume(self) -> tuple[R, BlockTable] | None:
        request = next(reversed(self._put_back))
        table = self._put_back[request]
        try:
            self._manager.resume(table)
        except OutOfBlocksError:
            return None
        del self._put_back[request]
        self._start_leading(table)
        return request, table

    def _start_first(self, looked_past: list[tuple[Waiting, Any]]) -> tuple[R, BlockTable] | None:
        """Start the first of the order that fits; those that do not are left in `looked_past`, locked."""
        last: Waiting | None = None
        place: PrefixLocation[Any] | None = None
        while len(looked_past) < LOOK_PAST and (waiting := self._order.pop()) is not None:
            waiting.ordered = False
            cache = self._manager.cache
            # Where a watched node was split, `waiting.node` may go on far behind the match: it is not what to lock.
            # Those of a branch often come one after the other: the cache is as it was, and so their match.
            if not (place and last and self._same_match(waiting, last, place)):
                place = cache.locate(waiting.key, waiting.namespace) if cache else None
            last = waiting
            if place and self._follow(waiting, place):
                continue
            if admitted := self._start(waiting):
                self._order.started(waiting)
                return admitted
            if cache and place:
                cache.lock(place.node)
            looked_past.append((waiting, place.node if place else None))
        return None

    def _same_match(self, waiting: Waiting, other: Waiting, place: PrefixLocation[Any]) -> bool:
        """Whether a request has the match of another one because it has its first missing block, too."""
        end = (place.matched_tokens + self._manager.block_size) * TOKEN_BYTES
        ours, theirs = waiting.key.data, other.key.data
        return (
            place.missing is not None
            and len(ours) > end  # the last token is never covered
            and waiting.namespace == other.namespace
            and ours.startswith(theirs[:end])
        )

    def _start(self, waiting: Waiting) -> tuple[R, BlockTable] | None:
        try:
            table = self._manager.admit(waiting.key, waiting.namespace, priority=waiting.priority)
        except OutOfBlocksError:
            return None
        self._leave(waiting, passing=1)
        self._start_leading(table)
        return waiting.request, table

    def _leave(self, waiting: Waiting, *, passing: int) -> None:
        """Take a request out of the queue; `passing` is 1 if that passes over those that came before it."""
        if waiting.ordered:
            self._order.remove(waiting)
        self._watch.discard(waiting)
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

    def _settle(self) -> None:
        """Put right whatever the cache or the end of a running request changed since the last time."""
        for waiting in self._watch.take_changed():
            self._locate(waiting)
            self._order.moved(waiting)
        for leader in [leader for leader in self._leaders if leader.table.state != "running"]:
            self._leaders.discard(leader)
            for _, _, waiting in leader.followers:
                self._unfollow(leader, waiting)
        for leader in self._leaders.take_changed():
            self._lead(leader)

    def _locate(self, waiting: Waiting) -> None:
        """Note how much of the prompt is cached, and hear from now on of what changes that."""
        if self._manager.cache and self._order.by_match:
            place = self._manager.cache.locate(waiting.key, waiting.namespace)
            waiting.matched_tokens = place.matched_tokens
            self._watch.add(waiting, place)

    def _start_leading(self, table: BlockTable) -> None:
        if self._manager.cache:
            self._lead(_Leader(table, self._manager.block_size))

    def _lead(self, leader: _Leader) -> None:
        """Note what a running request computes next, and let those go on for whom too little of it is left."""
        cache = self._manager.cache
        place = cache.locate(leader.key, leader.table.namespace) if cache else None
        done = leader.tokens
        if place and place.missing is not None:
            self._leaders.add(leader, place)
            done = place.matched_tokens
        followers = leader.followers
        while followers and (followers[0][2].leader is not leader or followers[0][0] < done + SHARE_TOKENS):
            self._unfollow(leader, heappop(followers)[2])

    def _follow(self, waiting: Waiting, place: PrefixLocation[Any]) -> bool:
        """Whether a running request computes enough of what this one misses; then it waits for that one."""
        shared, leader = 0, None
        for other in self._leaders.before_block.get(place.missing, ()):
            # names are checksums, and may agree by chance
            if other.table.namespace == waiting.namespace and (common := self._shared(waiting, other)) > shared:
                shared, leader = common, other
        if leader is None or shared < place.matched_tokens + SHARE_TOKENS:
            return False
        self._watch.discard(waiting)
        waiting.leader = leader
        heappush(leader.followers, (shared, waiting.arrival, waiting))
        return True

    def _shared(self, waiting: Waiting, leader: _Leader) -> int:
        """How many tokens of what this one may match a running request will have cached: full blocks."""
        size = self._manager.block_size
        stride = size * TOKEN_BYTES
        ours, theirs, common = waiting.key.data, leader.key.data, leader.common
        # The next one mostly shares what the last one did.
        if not ours.startswith(common) or ours.startswith(theirs[len(common) : len(common) + stride], len(common)):
            common = leader.common = theirs[: common_prefix(ours, theirs, stride)]
        return min(len(common) // TOKEN_BYTES, (len(waiting.key) - 1) // size * size, leader.tokens // size * size)

    def _unfollow(self, leader: _Leader, waiting: Waiting) -> None:
        if waiting.leader is leader:
            waiting.leader = None
            self._locate(waiting)
            self._enter(waiting)
