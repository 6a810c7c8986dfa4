"""Depth first, the heaviest branch first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from radixkv.scheduler.base import Waiting
from radixkv.tree import Node, RadixTree

_Request: TypeAlias = tuple[int, int, Waiting, Node[int]]  # tokens, arrival
_Branch: TypeAlias = tuple[int, int, Node[int]]  # -weight, serial


class _Spot:
    """What waits at a node of the prompts' tree, and below it. In both heaps entries that do not count stay behind."""

    __slots__ = ("branch", "branches", "here", "requests", "weight")

    def __init__(self, weight: int = 0) -> None:
        self.weight = weight  # requests here and below
        self.here = 0
        self.requests: list[_Request] = []
        self.branches: list[_Branch] = []
        self.branch: _Branch | None = None  # its entry with the parent


class DepthFirst:
    """Down the tree of the waiting prompts: a prompt before its extensions, the branch with the most requests first.

    The tree is that of the prompts' full blocks and needs no look at the cache: what shares a prefix runs in one go.
    A branch that was begun is finished before the next: the search starts where the request that was started last
    parts from all that wait. A request that was looked at and did not fit leaves no trace.

    Cost: O(tokens) at `memcmp` speed and O(depth · log branches) to add or pop; O(depth · log branches) to remove,
    amortized.
    """

    LEFT_BEHIND = 64
    """Dead entries of a heap that are not worth a rebuild."""

    def __init__(self, block_size: int) -> None:
        self._tree: RadixTree[int] = RadixTree(block_size)
        self._spots: dict[Node[int], _Spot] = {self._tree.root: _Spot()}
        self._live: dict[Waiting, _Request] = {}
        self._begun: tuple[bytes, str | None] = b"", None
        self._serial = count()

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
        self._weigh(node, 1)

    def remove(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        node = self._live.pop(waiting)[3]
        self._spots[node].here -= 1
        while (parent := node.parent) is not None and self._spots[node].weight == 1:
            self._tree.prune(node)
            del self._spots[node]
            node = parent
        self._weigh(node, -1)

    def moved(self, waiting: Waiting) -> None:
        """See `QueueOrder`. What is cached does not matter here."""

    def pop(self) -> Waiting | None:
        """See `QueueOrder`."""
        if not self._live:
            return None
        data, namespace = self._begun
        path, _, _ = self._tree.walk(data, len(data), namespace)
        node = path[-1] if path else self._tree.root
        while (waiting := self._first(node)) is None:
            node = self._heaviest(node)
        heappop(self._spots[node].requests)
        self.remove(waiting)
        return waiting

    def started(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        self._begun = self._full_blocks(waiting), waiting.namespace

    def _first(self, node: Node[int]) -> Waiting | None:
        requests = self._spots[node].requests
        while requests and self._live.get(requests[0][2]) is not requests[0]:
            heappop(requests)
        return requests[0][2] if requests else None

    def _heaviest(self, node: Node[int]) -> Node[int]:
        branches = self._spots[node].branches
        while not self._counts(branches[0]):
            heappop(branches)
        return branches[0][2]

    def _counts(self, entry: _Branch) -> bool:
        spot = self._spots.get(entry[2])
        return spot is not None and spot.branch is entry

    def _weigh(self, node: Node[int], change: int) -> None:
        self._spots[node].weight += change
        while (parent := node.parent) is not None:
            self._spots[parent].weight += change
            self._branch(parent, node)
            node = parent

    def _branch(self, node: Node[int], child: Node[int]) -> None:
        spot, below = self._spots[node], self._spots[child]
        entry = below.branch = (-below.weight, next(self._serial), child)
        heappush(spot.branches, entry)
        if len(spot.branches) > 2 * len(node.children) + self.LEFT_BEHIND:
            spot.branches = [entry for entry in spot.branches if self._counts(entry)]
            heapify(spot.branches)

    def _reach(self, waiting: Waiting) -> Node[int]:
        """The node where the prompt's full blocks end, made if it is new."""
        tree, data = self._tree, self._full_blocks(waiting)
        path, matched, inside = tree.walk(data, len(data), waiting.namespace)
        node = path[-1] if path else tree.root
        if inside:
            lower, node = node, tree.split(node, inside)
            self._spots[node] = _Spot(self._spots[lower].weight)
            self._branch(node, lower)
        if matched < len(data):
            blocks = bytearray((len(data) - matched) // tree.stride)
            node = tree.attach(node, data[matched:], blocks, waiting.namespace)
            self._spots[node] = _Spot()
        return node

    def _full_blocks(self, waiting: Waiting) -> bytes:
        data, stride = waiting.key.data, self._tree.stride
        return data[: len(data) // stride * stride]
