"""The most that any prefix cache of a given capacity can save: Belady's rule, on runs of blocks.

A block that a request used is worth keeping until the next request that hits it, and for nothing longer. Whoever knows
the future keeps the blocks needed soonest and gives up the one needed last (Belady, "A study of replacement algorithms
for a virtual-storage computer", 1966); a block just computed may be given up at once. Of blocks needed by the same
request the deepest goes first, so that what is left is the prompt's beginning, and a prefix cache can use all of it.

```text
request        t                      r
keep a run     |=====================|       blocks [start, stop) of both prompts, used by nobody in between
room           blocks of all runs that are kept at a time, at most the capacity
```

That is exact if no prompt is a whole number of blocks. The last block of one that is will be computed anyway, for the
logits of its last token, so it is not worth keeping for that, while blocks behind it may be; no prefix cache keeps
those without it, and the optimum here may. It is never below what a prefix cache can do.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

import numpy as np

from radixkv.keys import check_size
from radixkv.lab.reuse import Reuse
from radixkv.traces import Request


class Optimum:
    """What a cache that knows the future saves, at any capacity; told the reuses of a trace by `lru_curve`.

    Keeps four numbers a run, some tens of bytes a request, however long the prompts are.

    Args:
        block_size: tokens a block, as given to `lru_curve`.

    Raises:
        SizeError: a block size below 1.

    >>> from radixkv import TokenKey
    >>> from radixkv.lab.curve import lru_curve
    >>> optimum = Optimum(block_size=1)
    >>> cycle = [Request(TokenKey([prefix, 9]), 2) for prefix in (1, 2, 3) * 3]
    >>> curve = lru_curve(cycle, 1, observe=optimum.add)
    >>> int(curve.hit_tokens[2]), optimum.hit_tokens(2)
    (0, 4)
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = check_size("block_size", block_size, 1)
        self._runs = array("q")  # previous request, this request, start, stop; in the order of this request
        self._end = 0

    def add(self, number: int, request: Request, runs: list[Reuse]) -> None:
        """Note what the request reuses; an `Observer` of `lru_curve`. O(runs)."""
        self._end = number + 1
        for start, stop, previous, _ in runs:
            self._runs.extend((previous, number, start, stop))

    def hit_tokens(self, blocks: int) -> int:
        """Prompt tokens found cached at that capacity. O(runs · log runs).

        Raises:
            SizeError: a negative capacity.
        """
        check_size("blocks", blocks, 0)
        runs = np.frombuffer(self._runs, np.int64).reshape(-1, 4)
        kept: dict[tuple[int, int], int] = {}  # by the request that needs it and its start: blocks left from there on
        last_needed: list[tuple[int, int]] = []  # heap of their negated keys: needed last, and of those the deepest
        room, hits = blocks, 0
        due = iter([*runs[:, 1:3].tolist(), (self._end, 0)])
        needed, at = next(due)
        for previous, number, start, stop in runs[np.argsort(runs[:, 0], kind="stable")].tolist():
            while needed <= previous:
                left = kept.pop((needed, at))
                hits += left
                room += left
                needed, at = next(due)
            kept[number, start] = stop - start
            heappush(last_needed, (-number, -start))
            room -= stop - start
            while room < 0:
                victim = -last_needed[0][0], -last_needed[0][1]
                given_up = min(-room, kept[victim])
                kept[victim] -= given_up
                room += given_up
                if not kept[victim]:
                    heappop(last_needed)
        return (hits + sum(kept.values())) * self.block_size
