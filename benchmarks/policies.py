"""Every eviction policy on every trace, beside the optimum, and what each costs: the tables of docs/eviction.md.

python -m benchmarks.policies TRACE... [--cache hash] [--requests N]
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measure import table
from radixkv import POLICIES, HashCache, TokenKey
from radixkv.lab import Optimum, ReplayConfig, TraceFiles, default_block_size, lru_curve, replay_grid
from radixkv.lab.sizes import USUAL_SHARES, Sizes
from radixkv.traces import Request
from radixkv.traces.generate import make_workload

WORKLOADS = ("chat", "rag", "shared-system")
SEED = 1
COST_SHARE = 10  # costs are those of a cache with room for one in so many distinct blocks


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


def serve(policy: str, prompts: list[TokenKey], blocks: int) -> HashCache:
    """What requests ask of a cache with room for so many blocks."""
    cache = HashCache(16, eviction=policy, secret=b"benchmarks")  # one secret: hashes are kept with the prompts
    ids = range(10**9)
    for prompt in prompts:
        match = cache.match_prefix(prompt)
        count = len(prompt) // 16
        with cache.pinned(match.node):
            cache.evict(max(0, cache.cached_blocks + count - len(match.blocks) - blocks))
            cache.insert(prompt, [*match.blocks, *ids[: count - len(match.blocks)]])
        ids = ids[count:]
    return cache


def costs(requests: int) -> str:
    """A table: processor time a request, the least of three, and memory a cached block, ghosts included."""
    prompts = [request.prompt for request in make_workload("chat").requests(requests, SEED)]
    everything = serve("lru", prompts, 10**9).cached_blocks
    blocks = everything // COST_SHARE
    names = ["lru", *sorted(POLICIES.keys() - {"lru"})]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(3):
        for name in names:
            start = time.process_time()
            serve(name, prompts, blocks)
            seconds[name].append(time.process_time() - start)
    rows = []
    for name in names:
        tracemalloc.start()
        cache = serve(name, prompts, blocks)
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/radixkv/eviction/*")])
        tracemalloc.stop()
        used = sum(trace.size for trace in traces.traces)
        least = min(seconds[name])
        rows.append(
            [
                f"`{name}`",
                f"{least / requests * 1e6:.0f} µs",
                f"{least / min(seconds['lru']):.2f}",
                f"{used / cache.cached_blocks:.0f}",
            ]
        )
    title = f"Costs: {requests:,} requests of chat, room for {blocks:,} of {everything:,} blocks"
    return table(title, ["policy", "a request", "times `lru`", "bytes a cached block"], rows)


def main() -> None:
    """Print a table a trace, those given and those generated, and one of costs, in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="*")
    parser.add_argument("--cache", choices=("hash", "radix"), default="hash")
    parser.add_argument("--requests", type=int, default=2000, help="of each generated workload")
    args = parser.parse_args()
    sources: dict[str, Any] = {Path(path).name.split(".")[0]: TraceFiles((path,)) for path in args.trace}
    sources |= {f"radixkv generate {name} --seed {SEED}": Generated(name, args.requests) for name in WORKLOADS}
    for title, source in sources.items():
        print(compare(title, source, args.cache), end="\n\n", flush=True)
    print(costs(args.requests))


if __name__ == "__main__":
    main()
