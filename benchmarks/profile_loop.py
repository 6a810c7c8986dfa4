"""Where the time of our serving loop goes, and how far it is from the floor.

    benchmarks/run.sh benchmarks.profile_loop [--requests N]

The floor is one pass of `memcmp` over the prompt: no cache that checks what it returns can do with less.
"""

import argparse
import cProfile
import pstats
import statistics
from array import array
from collections.abc import Callable
from pathlib import PurePath
from time import perf_counter_ns

from benchmarks.measure import micros, no_gc, number, table, timed_each
from benchmarks.ratios import CAPACITY_SHARE, LONG_TOKENS
from benchmarks.sides import Ours
from benchmarks.workloads import BlockNames, long_prompt, multi_turn
from radixkv import TokenKey

STEPS = ("match", "lock", "evict", "allocate and join ids", "insert", "unlock")
PASSES = 3


def split_by_step(side: Ours, keys: list[TokenKey]) -> list[float]:
    """`Ours.serve` with a clock between its steps: mean seconds of each step over `keys`."""
    cache, free = side.cache, side.free
    clock, totals = perf_counter_ns, [0] * len(STEPS)
    for key in keys:
        t0 = clock()
        _, blocks, node = cache.match_prefix(key)
        t1 = clock()
        cache.lock(node)  # type: ignore[arg-type]
        t2 = clock()
        need = len(key) // side.block_size - len(blocks)
        short = need - len(free)
        evicted = cache.evict(short) if short > 0 else array("I")
        t3 = clock()
        free.extend(evicted)
        start = len(free) - need
        blocks += free[start:]
        del free[start:]
        t4 = clock()
        inserted = cache.insert(key, blocks)
        t5 = clock()
        cache.unlock(node)  # type: ignore[arg-type]
        t6 = clock()
        free.extend(inserted.duplicates)
        for i, spent in enumerate((t1 - t0, t2 - t1, t3 - t2, t4 - t3, t5 - t4, t6 - t5)):
            totals[i] += spent
    return [total / 1e9 / len(keys) for total in totals]


def floor(keys: list[TokenKey]) -> float:
    """Seconds that one `memcmp` over a prompt takes, median of some passes."""
    copies = {id(key): bytes(bytearray(key.data)) for key in keys}  # one a key: as near as a cache's own label is
    pairs = [(key.data, copies[id(key)]) for key in keys]
    compare: Callable[[tuple[bytes, bytes]], bool] = lambda pair: pair[0].startswith(pair[1])  # noqa: E731
    nothing: Callable[[tuple[bytes, bytes]], bool] = lambda pair: True  # noqa: ARG005, E731
    return statistics.median(timed_each(compare, pairs) - timed_each(nothing, pairs) for _ in range(5 * PASSES))


def profile(block_size: int, requests: int) -> str:
    """The tables of one block size."""
    names = BlockNames(block_size)
    prompts = [names.name(tokens) for tokens in multi_turn(requests)]
    keys = [TokenKey(prompt.tokens) for prompt in prompts]
    capacity = max(len(names) // CAPACITY_SHARE, 2 * max(len(prompt.blocks) for prompt in prompts))
    warm = len(keys) // 3  # by then the pool is full

    splits, loops = [], []
    with no_gc():
        for _ in range(PASSES):
            side = Ours("radix", block_size, capacity)
            split_by_step(side, keys[:warm])
            splits.append(split_by_step(side, keys[warm:]))
            side = Ours("radix", block_size, capacity)
            timed_each(side.serve, keys[:warm])
            loops.append(timed_each(side.serve, keys[warm:]))
        least = floor(keys)
    steps = [statistics.median(pass_[i] for pass_ in splits) for i in range(len(STEPS))]
    whole = statistics.median(loops)
    rows = [[step, micros(spent), f"{spent / sum(steps):.0%}"] for step, spent in zip(STEPS, steps, strict=True)]
    rows.append(["sum of the steps, clock included", micros(sum(steps)), "100%"])
    rows.append(["the loop without a clock in it", micros(whole), ""])
    rows.append(["floor: one memcmp over the prompt", micros(least), f"1/{number(whole / least)}"])
    mean = sum(map(len, keys)) // len(keys)
    title = f"Serving loop of RadixCache, block size {block_size}, prompts of {mean} tokens on average"
    split = table(title, ["step", "µs a request", "share"], rows)

    side = Ours("radix", block_size, capacity)
    for key in keys[:warm]:
        side.serve(key)
    profiler = cProfile.Profile()
    profiler.enable()
    for key in keys[warm:]:
        side.serve(key)
    profiler.disable()
    return split + "\n\n" + top_functions(profiler, len(keys) - warm, block_size)


def top_functions(profiler: cProfile.Profile, requests: int, block_size: int, count: int = 15) -> str:
    """The functions that take most time themselves. The profiler's own cost swells what is called often."""
    profiler.create_stats()
    stats = pstats.Stats(profiler).get_stats_profile().func_profiles
    total = sum(each.tottime for each in stats.values())
    ordered = sorted(stats.items(), key=lambda item: -item[1].tottime)[:count]
    rows = [
        [
            name if each.file_name == "~" else f"{PurePath(each.file_name).name}:{each.line_number} {name}",
            number(int(each.ncalls.partition("/")[0]) / requests),
            micros(each.tottime / requests),
            f"{each.tottime / total:.0%}",
        ]
        for name, each in ordered
    ]
    title = f"cProfile of the same loop, block size {block_size}: own time"
    return table(title, ["function", "calls a request", "µs a request", "share"], rows)


def long_match() -> str:
    """A full match of one long prompt beside its floor."""
    rows = []
    key = TokenKey(long_prompt(LONG_TOKENS))
    for block_size in (16, 1):
        side = Ours("radix", block_size)
        blocks = array("I", range(LONG_TOKENS // block_size))
        with no_gc():
            side.insert(key, blocks)
            spent = statistics.median(timed_each(side.match, [key] * 5) for _ in range(20))
            least = floor([key] * 5)
        rows.append([f"B={block_size}", micros(spent), micros(least), number(spent / least)])
    return table(
        f"Full match of {LONG_TOKENS:,} tokens", ["block size", "match µs", "memcmp µs", "match / memcmp"], rows
    )


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.profile_loop", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2_000)
    requests = parser.parse_args().requests
    for block_size in (16, 1):
        print(profile(block_size, requests), end="\n\n")
    print(long_match())


if __name__ == "__main__":
    main()
