"""The most that any prefix cache of a given capacity can save: Belady's rule, on runs of blocks."""

from __future__ import annotations

from radixkv.lab.reuse import Reuse
from radixkv.traces import Request


class Optimum:
    """What a cache that knows the future saves, at any capacity; told the reuses of a trace by `lru_curve`.

    >>> from radixkv import TokenKey
    >>> from radixkv.lab.curve import lru_curve
    >>> optimum = Optimum(block_size=1)
    >>> cycle = [Request(TokenKey([prefix, 9]), 2) for prefix in (1, 2, 3) * 3]
    >>> curve = lru_curve(cycle, 1, observe=optimum.add)
    >>> int(curve.hit_tokens[2]), optimum.hit_tokens(2)
    (0, 2)
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def add(self, number: int, request: Request, runs: list[Reuse]) -> None:
        """Note what the request reuses; see `radixkv.lab.curve.Observer`."""
        raise NotImplementedError

    def hit_tokens(self, blocks: int) -> int:
        """Prompt tokens found cached at that capacity. O(runs · log runs)."""
        raise NotImplementedError
