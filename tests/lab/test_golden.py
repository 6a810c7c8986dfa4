"""Hit tokens of seeded workloads, pinned: a change here is a change of what every replay says.

`python -m tests.lab.test_golden` prints the table anew.
"""

from __future__ import annotations

from typing import Final

import pytest

from radixkv.lab import Optimum, ReplayConfig, lru_curve, replay
from radixkv.traces import Request
from radixkv.traces.generate import make_workload

REQUESTS: Final = 150
BLOCK_SIZE: Final = 16
SHARE: Final = 10
WORKLOADS: Final = ("chat", "cycle", "shared-system", "tree-of-thought")
SETTINGS: Final = (
    ("hash", "lru", "fcfs"),
    ("radix", "lru", "fcfs"),
    ("radix", "lru", "lpm"),
    ("radix", "slru", "fcfs"),
    ("radix", "lfu", "fcfs"),
    ("radix", "fifo", "fcfs"),
    ("radix", "density", "fcfs"),
    ("hash", "density", "fcfs"),
)

GOLDEN: Final = {
    "chat": [3717, 137728, 105440, 74864, 73552, 103104, 73264, 69424, 73552, 73552, 74864],
    "cycle": [160, 74240, 7424, 0, 0, 32512, 0, 0, 0, 6912, 6912],
    "shared-system": [3936, 138880, 134592, 106128, 101184, 130944, 113088, 119040, 101184, 101184, 106128],
    "tree-of-thought": [1509, 116320, 109200, 91504, 87184, 106624, 93200, 71360, 87184, 89264, 93008],
}


def found(workload: str) -> list[int]:
    """Distinct blocks, the ceiling, and the optimum and every setting with room for a tenth of the blocks."""
    trace: list[Request] = list(make_workload(workload).requests(REQUESTS, 7))
    optimum = Optimum(BLOCK_SIZE)
    curve = lru_curve(trace, BLOCK_SIZE, observe=optimum.add)
    blocks = curve.unique_blocks // SHARE
    configs = [
        ReplayConfig(blocks, BLOCK_SIZE, cache, eviction, order, window=16) for cache, eviction, order in SETTINGS
    ]
    hits = [result.hit_tokens for result in replay(trace, configs)]
    return [curve.unique_blocks, int(curve.hit_tokens[-1]), optimum.hit_tokens(blocks), *hits]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_counts_are_those_of_yesterday(workload: str) -> None:
    """All of them, to the token."""
    assert GOLDEN[workload] == found(workload)


if __name__ == "__main__":
    for name in WORKLOADS:
        print(f"    {name!r}: {found(name)},")  # noqa: T201  # the table to paste
