"""Depth first, the heaviest branch first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from radixkv.scheduler.base import Waiting
from radixkv.tree import Node, RadixTree


class _Spot:
    """What waits at a node of the prompts' tree, and below it."""

    __slots__ = ("branches", "requests", "weight")

    def __init__(self, weight: int = 0) -> None:
        self.weight = weight  # requests here and below
        self.requests: list[tuple[int, int, Waiting]] = []  # heap: tokens, arrival
        self.branches: list[
            tuple[int, int, Node[int]]
        ] = []  # heap: -weight, serial; entries of old weights stay behind


class DepthFirst:
    """Down the tree of the waiting prompts: a prompt before its extensions, the branch with the most requests first.

    The tree is that of the prompts' full blocks and needs no look at the cache: what shares a prefix runs in one go.
    A branch that was begun is finished before the next.

    Cost: O(tokens) at `memcmp` speed and O(depth · log branches) to add; O(depth · log branches) to remove or pop,
    amortized.
    """

    LEFT_BEHIND = 64
    """Dead entries of a heap that are not worth a rebuild."""

    def __init__(self, block_size: int) -> None:
        self._tree: RadixTree[int] = RadixTree(block_size)
        self._spots: dict[Node[int], _Spot] = {self._tree.root: _Spot()}
        self._where: dict[Waiting, Node[int]] = {}
        self._cursor = self._tree.root
        self._serial = count()

    def add(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        node = self._where[waiting] = self._reach(waiting)
        heappush(self._spots[node].requests, (len(waiting.key), waiting.arrival, waiting))
        self._weigh(node, 1)

    def remove(self, waiting: Waiting) -> None:
        """See `QueueOrder`."""
        node = self._where.pop(waiting)
        self._weigh(node, -1)
        while (parent := node.parent) is not None and not self._spots[node].weight:
            self._tree.prune(node)
            del self._spots[node]
            if self._cursor is node:
                self._cursor = parent
            node = parent

    def moved(self, waiting: Waiting) -> None:
        """See `QueueOrder`. What is cached does not matter here."""

    def pop(self) -> Waiting | None:
        """See `QueueOrder`."""
        node = self._cursor
        if not self._spots[node].weight:
            return None
        while (waiting := self._first(node)) is None:
            node = self._heaviest(node)
        self._cursor = node
        self.remove(waiting)
        return waiting

    def _first(self, node: Node[int]) -> Waiting | None:
        requests = self._spots[node].requests
        while requests and self._where.get(requests[0][2]) is not node:
            heappop(requests)
        return requests[0][2] if requests else None

    def _heaviest(self, node: Node[int]) -> Node[int]:
        branches = self._spots[node].branches
        while not self._counts(node, branches[0]):
            heappop(branches)
        return branches[0][2]

    def _counts(self, node: Node[int], entry: tuple[int, int, Node[int]]) -> bool:
        weight, _, child = entry
        return child.parent is node and self._spots[child].weight == -weight

    def _weigh(self, node: Node[int], change: int) -> None:
        self._spots[node].weight += change
        while (parent := node.parent) is not None:
            above = self._spots[parent]
            above.weight += change
            self._branch(parent, node)
            node = parent

    def _branch(self, node: Node[int], child: Node[int]) -> None:
        spot = self._spots[node]
        heappush(spot.branches, (-self._spots[child].weight, next(self._serial), child))
        if len(spot.branches) > 2 * len(node.children) + self.LEFT_BEHIND:
            spot.branches = [entry for entry in spot.branches if self._counts(node, entry)]
            heapify(spot.branches)

    def _reach(self, waiting: Waiting) -> Node[int]:
        """The node where the prompt's full blocks end, made if it is new."""
        tree, data = self._tree, waiting.key.data
        end = len(data) // tree.stride * tree.stride
        path, matched, inside = tree.walk(data, end, waiting.namespace)
        node = path[-1] if path else tree.root
        if inside:
            lower, node = node, tree.split(node, inside)
            self._spots[node] = _Spot(self._spots[lower].weight)
            self._branch(node, lower)
        if matched < end:
            blocks = bytearray((end - matched) // tree.stride)
            node = tree.attach(node, data[matched:end], blocks, waiting.namespace)
            self._spots[node] = _Spot()
        return node
