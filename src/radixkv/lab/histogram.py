"""Distributions of long tails in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


class Histogram:
    """Counts of whole numbers from 0 up: exact below 128, from there on in steps of less than 1 %.

    64 counts for every doubling: a few thousand at most, whatever is added.

    >>> histogram = Histogram()
    >>> histogram.add(np.array([1, 1, 5, 100_000]))
    >>> len(histogram), histogram.percentile(50), histogram.percentile(100)
    (4, 1, 99840)
    """

    def __init__(self) -> None:
        self._counts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return int(self._counts.sum())
