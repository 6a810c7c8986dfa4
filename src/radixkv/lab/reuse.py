"""Reuse distances: how many other blocks were used since a block was used last, for every block of every request.

A prefix cache that evicts single blocks, least recently used first and a prefix's tail before its head, is plain LRU
over blocks if each request uses the blocks of its path leaf first, root last. Plain LRU is a stack algorithm (Mattson
et al., "Evaluation techniques for storage hierarchies", 1970): a block is a hit in every cache that is larger than its
reuse distance, so one pass tells all sizes.

```text
stack, the latest use on top        | a b c |  x y | a' |  d e f |       runs: blocks that one request used last
request  a b c d e g                  above: 0        4
```

The blocks of a path that one earlier request used last lie next to each other, on the path and in the stack. A request
makes one such run and cuts at most one, and joins all that it meets: so it costs a few runs, however long its prompt
is. A Fenwick tree over the requests, the weight of each being the blocks that nobody used since, tells how many blocks
lie above a run.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from radixkv.errors import InvariantError
from radixkv.keys import check_namespace
from radixkv.lab.blocks import BlockWords, finished_key, prompt_key
from radixkv.lab.slots import Slots
from radixkv.traces import Request
from radixkv.tree import Node, RadixTree


class Reuse(NamedTuple):
    """A run of blocks of a prompt that the same earlier request used last.

    Block `start + i` of the prompt is a hit in an LRU cache of at least `above + i + 1` blocks.
    """

    start: int
    """Its first block, counted from the prompt's start."""
    stop: int
    """The block behind its last."""
    previous: int
    """The request that used it last, counted from 0."""
    above: int
    """Distinct blocks used since, those of this prompt before `start` among them."""


class ReuseStack:
    """Every block ever used, in the order of last use; told the requests one by one.

    Memory grows with the distinct blocks and not with the requests: the key bytes of each block, once, and a tree node
    for every place where prompts part or end.

    Args:
        block_size: tokens a block, a whole multiple of the trace's span.

    Raises:
        SizeError: a block size below 1.

    >>> from radixkv import TokenKey
    >>> stack = ReuseStack(block_size=1)
    >>> first = Request(TokenKey([1, 2, 3]), 3)
    >>> stack.use(first)
    []
    >>> stack.use(Request(TokenKey([1, 8, 9]), 3))
    [Reuse(start=0, stop=1, previous=0, above=0)]
    >>> stack.use(first)                    # 2 lies below 1, 8 and 9; the last token is computed anyway
    [Reuse(start=0, stop=1, previous=1, above=0), Reuse(start=1, stop=2, previous=0, above=3)]
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.requests = 0
        """How many were used."""
        self._words = BlockWords(block_size)
        self._tree = RadixTree[int](1)  # a node's last use is the slot of a request; its blocks carry nothing
        self._slots = Slots()

    @property
    def unique_blocks(self) -> int:
        """Distinct blocks so far. O(1)."""
        return self._tree.num_blocks

    def use(self, request: Request) -> list[Reuse]:
        """What a lookup of this request would find if nothing were ever evicted, from the prompt's start; then use it.

        O(tokens) at `memcmp` speed, and O(log requests) a run.

        Raises:
            SpanError: the block size is no whole multiple of the request's span; nothing changed.
            NamespaceError: nothing changed.
        """
        words = self._words.of(request)
        check_namespace(request.namespace)
        if not self.requests:
            self._tree = RadixTree(words)
        tree = self._tree
        data = (finished_key(request) or prompt_key(request)).data
        end = len(data) // tree.stride * tree.stride
        path, matched, inside = tree.walk(data, end, request.namespace)
        if inside:
            path[-1] = tree.split(path[-1], inside)
        runs = self._take_out(path, max(len(request.prompt) - 1, 0) // words)
        if matched < end:
            leaf, new = path[-1] if path else tree.root, bytearray((end - matched) // tree.stride)
            path.append(tree.attach(leaf, data[matched:end], new, request.namespace))
        self._put_on_top(path, end // tree.stride)
        self.requests += 1
        return runs

    def check_invariants(self) -> None:
        """Recount everything. O(distinct blocks).

        Raises:
            InvariantError: something does not add up.
        """
        self._tree.check_invariants()
        counted: Counter[int] = Counter()
        for node in self._tree:
            counted[node.last_use] += len(node.blocks)
        kept = {slot: weight for slot, weight in enumerate(self._slots.weights()) if weight}
        if counted != kept:
            raise InvariantError(f"blocks by the slot of their last use are {dict(counted)}, kept as {kept}")

    def _take_out(self, path: list[Node[int]], searched: int) -> list[Reuse]:
        """Take a path out of the stack; its runs, cut to the blocks that a lookup searches."""
        slots = self._slots
        runs: list[Reuse] = []
        start = 0
        for slot, nodes in groupby(path, key=_last_use):
            blocks = sum(len(node.blocks) for node in nodes)
            if start < searched:
                # Of what was used later, the blocks of this path before `start` are taken out already.
                above = slots.above(slot) + start
                runs.append(Reuse(start, min(start + blocks, searched), slots.requests[slot], above))
            slots.take_out(slot, blocks)
            start += blocks
        return runs

    def _put_on_top(self, path: list[Node[int]], blocks: int) -> None:
        slots = self._slots
        if slots.full:
            moved = slots.compact()
            for node in self._tree:
                node.last_use = moved.get(node.last_use, 0)  # this path's own slots may be gone
        slot = slots.append(self.requests, blocks)
        for node in path:
            node.last_use = slot


_last_use = attrgetter("last_use")
