"""Depth first, the heaviest branch first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TypeAlias

from radixkv.scheduler.base import Waiting
from radixkv.tree import Node, RadixTree

_Request: TypeAlias = tuple[int, int, Waiting, Node[int]]  # tokens, arrival
_Branch: TypeAlias = tuple[int, int, int, Node[int]]  # -weight, the spot's serial, the entry's


class _Spot:
    """What waits at a node of the prompts' tree, and below it. In both heaps entries that do not count stay behind."""

    __slots__ = ("branch", "branches", "here", "requests", "serial", "weight")

    def __init__(self, serial: int, weight: int = 0) -> None:
        self.serial = serial
        self.weight = weight  # requests here and below
        self.here = 0
        self.requests: list[_Request] = []
        self.branches: list[_Branch] = []
        self.branch: _Branch | None = None  # its entry with the parent, for its weight or more


class DepthFirst:
    """Down the tree of the waiting prompts: a prompt before its extensions, the branch with the most requests first.

    The tree is that of the prompts' full blocks and needs no look at the cache: what shares a prefix runs in one go.
    Of branches with as many requests the one that came first goes first. A branch that was begun is finished before the
    next: the search starts where the request that was started last parts from all that wait. A request that was looked
    at and did not fit leaves no trace.

    Requests come and go in crowds, so what is taken out leaves its place in the tree behind, and a weight that went
    down is put right where the search meets it.

    Cost: O(tokens) at `memcmp` speed and O(depth · log branches) to add or pop; O(depth) to remove, amortized.
    """

    by_match = False

    LEFT_BEHIND = 64
    """Dead entries of a heap, or empty nodes, that are not worth a sweep."""

    def __init__(self, block_size: int) -> None:
        self._tree: RadixTree[int] = RadixTree(block_size)
        self._serial = count()
        self._spots: dict[Node[int], _Spot] = {self._tree.root: _Spot(next(self._serial))}
        self._live: dict[Waiting, _Request] = {}
        self._grown: dict[Node[int], _Spot] = {}  # those whose entry has too little weight, or that have none
        self._begun: tuple[Node[int], bytes, str | None] = self._tree.root, b"", None

    def add(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        node = self._reach(waiting)
        spot = self._spots[node]
        entry = self._live[waiting] = (len(waiting.key), waiting.arrival, waiting, node)
        spot.here += 1
        heappush(spot.requests, entry)
        if len(spot.requests) > 2 * spot.here + self.LEFT_BEHIND:
            spot.requests = [entry for entry in spot.requests if self._live.get(entry[2]) is entry]
            heapify(spot.requests)
        while (parent := node.parent) is not None:
            spot = self._spots[node]
            spot.weight += 1
            if spot.branch is None or spot.weight > -spot.branch[0]:
                self._grown[node] = spot
            node = parent

    def remove(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        node = self._live.pop(waiting)[3]
        self._spots[node].here -= 1
        while (parent := node.parent) is not None:
            self._spots[node].weight -= 1
            node = parent
        # Those that wait need two nodes each at most, forks included.
        if not self._live or self._tree.num_nodes > 4 * len(self._live) + self.LEFT_BEHIND:
            self._sweep()

    def moved(self, waiting: Waiting) -> None:
        """See `QueueOrder`. What is cached does not matter here."""

    def pop(self) -> Waiting | None:
        """See `QueueOrder`."""
        if not self._live:
            return None
        for node, spot in self._grown.items():
            if spot.weight and node.parent is not None:
                self._list(node.parent, node, spot)
        self._grown.clear()
        node = self._begin()
        while (waiting := self._first(node)) is None:
            node = self._heaviest(node)
        heappop(self._spots[node].requests)
        self.remove(waiting)
        return waiting

    def started(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        self._begun = waiting.place, waiting.key.data, waiting.namespace

    def _begin(self) -> Node[int]:
        """Where the request that was started last parts from all that wait."""
        node, data, namespace = self._begun
        if node.tree is None:  # swept out
            path, _, _ = self._tree.walk(data, self._full_blocks(data), namespace)
            node = path[-1] if path else self._tree.root
        while node.parent is not None and not self._spots[node].weight:
            node = node.parent
        return node

    def _first(self, node: Node[int]) -> Waiting | None:
        spot = self._spots[node]
        if not spot.here:
            return None
        requests = spot.requests
        while self._live.get(requests[0][2]) is not requests[0]:
            heappop(requests)
        return requests[0][2]

    def _heaviest(self, node: Node[int]) -> Node[int]:
        branches = self._spots[node].branches
        while True:
            entry = branches[0]
            child = entry[3]
            spot = self._spots.get(child)
            if spot is None or spot.branch is not entry:
                heappop(branches)
            elif spot.weight == -entry[0]:
                return child
            elif spot.weight:
                spot.branch = (-spot.weight, spot.serial, next(self._serial), child)
                heapreplace(branches, spot.branch)
            else:
                spot.branch = None
                heappop(branches)

    def _list(self, node: Node[int], child: Node[int], below: _Spot) -> None:
        """Enter the weight of a child with its parent."""
        spot = self._spots[node]
        entry = below.branch = (-below.weight, below.serial, next(self._serial), child)
        heappush(spot.branches, entry)
        if len(spot.branches) > 2 * len(node.children) + self.LEFT_BEHIND:
            spot.branches = [
                entry for entry in spot.branches if (other := self._spots.get(entry[3])) and other.branch is entry
            ]
            heapify(spot.branches)

    def _sweep(self) -> None:
        """Take the nodes out where nobody waits, here or below. O(nodes)."""
        for node in reversed(list(self._tree)):  # children before parents
            if not self._spots[node].weight:
                self._tree.prune(node)
                del self._spots[node]
                self._grown.pop(node, None)

    def _reach(self, waiting: Waiting) -> Node[int]:
        """The node where the prompt's full blocks end, made if it is new."""
        tree, data = self._tree, waiting.key.data
        place: Node[int] | None = waiting.place
        if place is not None and place.tree is tree:
            return place
        end = self._full_blocks(data)
        path, matched, inside = tree.walk(data, end, waiting.namespace)
        node = path[-1] if path else tree.root
        if inside:
            lower, node = node, tree.split(node, inside)
            spot = self._spots[lower]
            self._spots[node] = _Spot(spot.serial, spot.weight)
            self._list(node, lower, spot)
        if matched < end:
            blocks = bytearray((end - matched) // tree.stride)
            node = tree.attach(node, data[matched:end], blocks, waiting.namespace)
            self._spots[node] = _Spot(next(self._serial))
        waiting.place = node
        return node

    def _full_blocks(self, data: bytes) -> int:
        """Bytes of the full blocks of a key."""
        return len(data) // self._tree.stride * self._tree.stride
