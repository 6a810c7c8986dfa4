"""Distributions with long tails, in bounded memory."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_EXACT_BITS: Final = 7
_HALF: Final = 2 ** (_EXACT_BITS - 1)


class Histogram:
    """Counts of whole numbers from 0 up: exact below 128, from there on in 64 steps a doubling, so within 1.6 %.

    A few thousand counts at most, whatever is added. Two are equal if their counts are.

    >>> histogram = Histogram()
    >>> histogram.add(np.array([1, 1, 5, 100_000]))
    >>> len(histogram), histogram.percentile(50), histogram.percentile(100)
    (4, 1, 99328)
    """

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        """By step; `starts` says where each begins."""

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The lowest number of every step."""
        steps = np.arange(len(self.counts), dtype=np.int64)
        doublings = np.maximum(steps // _HALF - 1, 0)
        return np.where(steps < 2 * _HALF, steps, (steps - doublings * _HALF) << doublings)

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Count every value; one below 0, as of a clock that ran backwards, counts as 0. O(values)."""
        values = np.maximum(values, 0)
        _, bits = np.frexp(values.astype(np.float64))
        doublings = np.maximum(bits - _EXACT_BITS, 0)
        counts = np.bincount((values >> doublings) + doublings * _HALF, minlength=len(self.counts))
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    def percentile(self, percent: float) -> int | None:
        """The number that so many of a hundred are not above, rounded down to its step; None if nothing was added."""
        if not len(self):
            return None
        reached = np.cumsum(self.counts)
        return int(self.starts[np.searchsorted(reached, max(percent / 100 * len(self), 1))])

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self.counts, other.counts) if isinstance(other, Histogram) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        shown = {f"p{percent}": self.percentile(percent) for percent in (50, 90, 99)}
        return f"<Histogram of {len(self)}: {shown}>"
