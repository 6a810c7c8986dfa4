"""How long cached blocks live, how long they lie idle before they go, and how long ago hit blocks were used."""

from __future__ import annotations

from array import array
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from radixkv.lab.histogram import Histogram

_PENDING: Final = 2**16
"""Blocks that are collected before they are counted: numpy is slow on few."""

_FARTHEST: Final = 2**53
"""Milliseconds, some 285,000 years: a clock beyond it stands still, so that every difference fits 64 bits."""

_Times: TypeAlias = npt.NDArray[np.int64]


class BlockAges:
    """Hands out block ids, and notes by id which request computed a block and which used it last.

    Time is in requests served and, where the trace has a clock, in its milliseconds. O(ids) a call, at numpy's speed;
    16 bytes a block and 8 a request.
    """

    def __init__(self) -> None:
        self.lifetime, self.idle, self.reuse_gap = Histogram(), Histogram(), Histogram()
        self.lifetime_ms, self.idle_ms, self.reuse_gap_ms = Histogram(), Histogram(), Histogram()
        self._free = array("I")
        self._fresh = 0  # the lowest id that was never handed out
        self._computed = np.zeros(1024, np.int64)  # by id, a request
        self._last_used = np.zeros(1024, np.int64)
        self._now = -1
        self._clock = array("q")  # by request, milliseconds; as long as every request has a time
        # Each with the request that was served then: last uses, and of evicted blocks who computed them.
        self._pending: list[tuple[int, _Times, _Times | None]] = []
        self._pending_blocks = 0

    def tick(self, timestamp: float | None) -> None:
        """The next request is served; it came at that second."""
        self._now += 1
        if timestamp is not None and len(self._clock) == self._now:
            self._clock.append(round(min(max(timestamp * 1000, -_FARTHEST), _FARTHEST)))

    def allocate(self, n: int) -> array[int]:
        """Ids for blocks that this request computes."""
        recycled = min(n, len(self._free))
        ids = self._free[len(self._free) - recycled :]
        del self._free[len(self._free) - recycled :]
        if recycled < n:
            ids.extend(range(self._fresh, self._fresh + n - recycled))
            self._fresh += n - recycled
            while self._fresh > len(self._computed):
                self._computed = np.concatenate([self._computed, np.zeros_like(self._computed)])
                self._last_used = np.concatenate([self._last_used, np.zeros_like(self._last_used)])
        places = np.frombuffer(ids, np.uint32)
        self._computed[places] = self._last_used[places] = self._now
        return ids

    def free(self, ids: array[int]) -> None:
        """Take ids back that were not needed after all."""
        self._free.extend(ids)

    def used(self, ids: array[int]) -> None:
        """This request uses blocks that were cached."""
        if ids:
            places = np.frombuffer(ids, np.uint32)
            self._note(self._last_used[places], None)
            self._last_used[places] = self._now

    def evicted(self, ids: array[int]) -> None:
        """Blocks are gone; takes their ids back."""
        if ids:
            places = np.frombuffer(ids, np.uint32)
            self._note(self._last_used[places], self._computed[places])
            self._free.extend(ids)

    def settle(self) -> None:
        """Bring the histograms up to date. O(blocks used and evicted since the last time)."""
        uses = [(now, last) for now, last, computed in self._pending if computed is None]
        evictions = [(now, last) for now, last, computed in self._pending if computed is not None]
        lives = [(now, computed) for now, _, computed in self._pending if computed is not None]
        for spans, histogram, in_ms in (
            (uses, self.reuse_gap, self.reuse_gap_ms),
            (evictions, self.idle, self.idle_ms),
            (lives, self.lifetime, self.lifetime_ms),
        ):
            if spans:
                begin = np.concatenate([begin for _, begin in spans])
                end = np.repeat([now for now, _ in spans], [len(begin) for _, begin in spans])
                histogram.add(end - begin)
                if len(self._clock) > self._now:
                    clock = np.frombuffer(self._clock, np.int64)
                    in_ms.add(clock[end] - clock[begin])
                    del clock  # while it looks at the array, that cannot grow
        self._pending.clear()
        self._pending_blocks = 0

    def _note(self, last_used: _Times, computed: _Times | None) -> None:
        self._pending.append((self._now, last_used, computed))
        self._pending_blocks += len(last_used)
        if self._pending_blocks > _PENDING:
            self.settle()
