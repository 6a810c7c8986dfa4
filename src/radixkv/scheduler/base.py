"""A waiting request as the queue orders see it, and what a queue order is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeAlias

from radixkv.keys import TokenKey


class Waiting:
    """A request in the queue. Only the queue writes it."""

    __slots__ = (
        "arrival",
        "key",
        "leader",
        "matched_tokens",
        "missing",
        "namespace",
        "newer",
        "node",
        "older",
        "ordered",
        "passes",
        "place",
        "priority",
        "request",
    )

    def __init__(self, request: Any, key: TokenKey, namespace: str | None, priority: int, arrival: int) -> None:
        self.request = request
        self.key = key
        self.namespace = namespace
        self.priority = priority
        self.arrival = arrival
        """Its place in the order of arrival."""
        self.matched_tokens = 0
        """Tokens of its prompt that were cached when the queue looked last, if its order goes by that."""
        self.node: Any = None
        """The cache's node where they ended."""
        self.missing: Any = None
        """The name of the block that was missing first."""
        self.ordered = False
        """It is in the queue order now."""
        self.leader: Any = None
        """The running request that computes what it waits for, instead of being in the queue order."""
        self.older: Waiting | None = None
        """The waiting request that came just before it."""
        self.newer: Waiting | None = None
        """The one that came just after it."""
        self.passes = 0
        """How many requests that came between it and `newer` were admitted before it."""
        self.place: Any = None
        """Where the queue order had it last; the order writes it."""


class QueueOrder(Protocol):
    """Which waiting request should go next. Told of every change, it works out nothing anew."""

    by_match: bool
    """It goes by `matched_tokens`; else nobody keeps those up to date, and `moved` is never called."""

    def add(self, waiting: Waiting) -> None:
        """Take a request in, new or taken out before."""

    def remove(self, waiting: Waiting) -> None:
        """Take a request out that is in."""

    def moved(self, waiting: Waiting) -> None:
        """The `matched_tokens` of a request that is in changed."""

    def pop(self) -> Waiting | None:
        """Take out the request that should go next; None if there is none. It may come back by `add`."""

    def started(self, waiting: Waiting) -> None:
        """A request that `pop` gave was admitted."""


Rank: TypeAlias = Any
"""Whatever compares: the lowest goes first. No two waiting requests have the same."""


class RankedOrder(ABC):
    """A queue order by a rank of each request: a heap, with the entries that do not count any more left behind.

    O(log requests) a call, amortized.
    """

    by_match = False

    LEFT_BEHIND = 64
    """Dead entries that are not worth a rebuild."""

    def __init__(self, block_size: int) -> None:
        self._heap: list[tuple[Rank, Waiting]] = []
        self._live: dict[Waiting, tuple[Rank, Waiting]] = {}

    @abstractmethod
    def rank(self, waiting: Waiting) -> Rank:
        """The rank now; it changes with `moved` only."""

    def add(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        entry = self._live[waiting] = (self.rank(waiting), waiting)
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + self.LEFT_BEHIND:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def remove(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        del self._live[waiting]

    def moved(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        if self._live[waiting][0] != self.rank(waiting):
            self.add(waiting)

    def pop(self) -> Waiting | None:
        """See `QueueOrder`."""
        while self._heap:
            entry = heappop(self._heap)
            if self._live.get(entry[1]) is entry:
                del self._live[entry[1]]
                return entry[1]
        return None

    def started(self, waiting: Waiting) -> None:
        """See `QueueOrder`. The rank says it all."""
