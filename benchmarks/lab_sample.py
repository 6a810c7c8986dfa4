"""How far sampled curves are from the exact one, on given traces.

benchmarks/run.sh benchmarks.lab_sample FILE ...
"""

import statistics
import sys

import numpy as np

from benchmarks.measure import number, table
from radixkv.lab import default_block_size, lru_curve, sampled_curve
from radixkv.traces import read_trace

RATE = 0.1
SEEDS = range(10)
CAPACITIES = 100


def main() -> None:
    """Compare ten samples of each trace with its curve."""
    rows = []
    for path in sys.argv[1:]:
        requests = list(read_trace(path))
        block_size = default_block_size(requests)
        exact = lru_curve(requests, block_size)
        smallest = max(exact.unique_blocks // 1000, 1)
        sizes = np.unique(np.geomspace(smallest, exact.unique_blocks, CAPACITIES).astype(int)).tolist()
        off, within = [], []
        for seed in SEEDS:
            sampled = sampled_curve(requests, block_size, RATE, seed=seed)
            for blocks in sizes:
                off.append(abs(sampled.hit_rate(blocks) - exact.hit_rate(blocks)))
                within.append(off[-1] <= 2 * sampled.error(blocks))
        shares = (statistics.mean(off), max(off), statistics.mean(within))
        rows.append([path, *(f"{share:.4f}" for share in shares), number(exact.unique_blocks)])
    head = ["trace", "off on average", "at most", "within two standard errors", "distinct blocks"]
    print(table(f"Ten samples of {RATE:.0%}", head, rows))


if __name__ == "__main__":
    main()
