"""Every eviction policy on every trace, beside the optimum: the tables of docs/eviction.md.

python -m benchmarks.policies TRACE... [--cache hash] [--requests N]
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measure import table
from radixkv import POLICIES
from radixkv.lab import Optimum, ReplayConfig, TraceFiles, default_block_size, lru_curve, replay_grid
from radixkv.lab.sizes import USUAL_SHARES, Sizes
from radixkv.traces import Request
from radixkv.traces.generate import make_workload

WORKLOADS = ("chat", "rag", "shared-system")
SEED = 1


@dataclass(frozen=True)
class Generated:
    """A workload as a trace; it pickles, so that workers make it for themselves."""

    workload: str
    requests: int

    def __call__(self, progress: Callable[[int], object] | None = None) -> Iterator[Request]:
        return make_workload(self.workload).requests(self.requests, SEED)


def compare(title: str, source: Any, cache: str) -> str:
    """A table: policies by capacities, the best of each capacity in bold, between LRU and the optimum."""
    block_size = default_block_size(source())
    optimum = Optimum(block_size)
    curve = lru_curve(source(), block_size, observe=optimum.add)
    capacities = Sizes(shares=USUAL_SHARES).in_blocks(block_size, curve.unique_blocks)
    names = ["lru", *sorted(POLICIES.keys() - {"lru"})]
    settings = [ReplayConfig(blocks, block_size, cache, name) for name, blocks in product(names, capacities)]
    results = replay_grid(source, settings)
    rates = {(one.config.eviction, one.config.blocks): one.hit_rate for one in results}
    best = {blocks: max(rates[name, blocks] for name in names) for blocks in capacities}
    rows = [
        [f"`{name}`"]
        + [
            f"**{rates[name, blocks]:.4f}**" if rates[name, blocks] == best[blocks] else f"{rates[name, blocks]:.4f}"
            for blocks in capacities
        ]
        for name in names
    ]
    tokens = results[0].input_tokens
    rows.append(["optimum", *(f"{optimum.hit_tokens(blocks) / tokens:.4f}" for blocks in capacities)])
    head = ["hit rate", *(f"{share:.0%}: {n:,}" for share, n in zip(USUAL_SHARES, capacities, strict=True))]
    what = f"{results[0].requests:,} requests, {curve.unique_blocks:,} blocks of {block_size} tokens"
    return table(f"{title}: {what}, ceiling {curve.ceiling:.4f}", head, rows)


def main() -> None:
    """Print a table a trace, those given and those generated, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="*")
    parser.add_argument("--cache", choices=("hash", "radix"), default="hash")
    parser.add_argument("--requests", type=int, default=2000, help="of each generated workload")
    args = parser.parse_args()
    sources: dict[str, Any] = {Path(path).name.split(".")[0]: TraceFiles((path,)) for path in args.trace}
    sources |= {f"radixkv generate {name} --seed {SEED}": Generated(name, args.requests) for name in WORKLOADS}
    for title, source in sources.items():
        print(compare(title, source, args.cache), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
