"""The second table: every call timed by itself, one side to a process, with Python's cyclic collector as it comes.

Run as a module it measures one side and prints JSON: `python -m benchmarks.tails SIDE BLOCK_SIZE REQUESTS`.
"""

import gc
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from benchmarks.measure import micros, percentile, table
from benchmarks.ratios import ALL, sides_at
from benchmarks.sides import make_side
from benchmarks.workloads import BlockNames, leaf, multi_turn

LEAVES = 50_000
FIRST_EVICTIONS = 40
Tails = dict[str, tuple[float, float, float]]
"""p50, p99 and max seconds of each operation."""


def _each(call: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[float], list[Any]]:
    """Time every call; the seconds and the results."""
    seconds, results = [], []
    for each in arguments:
        start = perf_counter_ns()
        result = call(each)
        seconds.append((perf_counter_ns() - start) / 1e9)
        results.append(result)
    return seconds, results


def _tail(seconds: list[float]) -> tuple[float, float, float]:
    return percentile(seconds, 0.5), percentile(seconds, 0.99), max(seconds)


def measure_side(name: str, block_size: int, requests: int, first_evictions: int) -> Tails:
    """Measure one side in this process."""
    names = BlockNames(block_size)
    prompts = [names.name(tokens) for tokens in multi_turn(requests)]
    working_set = len(names)
    del names
    tails: Tails = {}

    side = make_side(name, block_size)
    arguments = [side.insert_args(prompt) for prompt in prompts]
    keys = [side.match_key(prompt) for prompt in prompts]
    gc.collect()
    seconds, _ = _each(lambda each: side.insert(*each), arguments)
    tails["insert"] = _tail(seconds)
    seconds, results = _each(side.match, keys)
    tails["match, first"] = _tail(seconds)
    seconds, results = _each(side.match, keys)
    tails["match"] = _tail(seconds)
    seconds, _ = _each(side.lock_unlock, [side.handle(result) for result in results])
    tails["lock and unlock"] = _tail(seconds)
    del results, arguments, keys
    seconds, _ = _each(side.evict, [1] * min(1_000, requests // 2))
    tails["evict 1 block"] = _tail(seconds)

    capacity = max(working_set // 4, 2 * max(len(prompt.blocks) for prompt in prompts))
    side = make_side(name, block_size, capacity)
    serving = [side.serve_key(prompt) for prompt in prompts]
    gc.collect()
    seconds, _ = _each(side.serve, serving)
    tails["serving loop"] = _tail(seconds)
    del serving, prompts

    if first_evictions:
        tails[f"first evict after {LEAVES:,} matches"] = _tail(_first_evictions(name, first_evictions))
    return tails


def _first_evictions(name: str, times: int) -> list[float]:
    """Match every one of 50,000 leaves in a random order, then time one eviction; and again."""
    block_size = 16
    side = make_side(name, block_size)
    keys = []
    for index in range(LEAVES):
        prompt = leaf(index, block_size)
        side.insert(*side.insert_args(prompt))
        prompt.tokens.append(7)  # so that the whole leaf may be matched
        keys.append(side.match_key(prompt))
    gc.collect()
    seconds = []
    for number in range(times):
        order = random.Random(number).sample(range(LEAVES), LEAVES)
        for index in order:
            side.match(keys[index])
        start = perf_counter_ns()
        side.evict(2)
        seconds.append((perf_counter_ns() - start) / 1e9)
        side.insert(*side.insert_args(leaf(order[0], block_size)))
    return seconds


def measure(requests: int, *, quick: bool) -> dict[str, dict[str, Tails]]:
    """Measure all sides, each in a process of its own: block size, then side, then operation."""
    found: dict[str, dict[str, Tails]] = {}
    for block_size in (16,) if quick else (16, 1):
        for name in sides_at(block_size):
            print(f"... tails of {name}, block size {block_size}", file=sys.stderr, flush=True)
            skip = block_size == 1 or name == "sglang-python"
            evictions = 0 if skip or quick else FIRST_EVICTIONS
            command = [sys.executable, "-m", "benchmarks.tails", name, str(block_size), str(requests), str(evictions)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found.setdefault(str(block_size), {})[name] = json.loads(output)
    return found


def render(tails: dict[str, dict[str, Tails]]) -> str:
    """The table as text."""
    rows = []
    for block_size, sides in tails.items():
        for operation in sides["radix"]:
            cells = [" / ".join(map(micros, sides[n][operation])) if operation in sides.get(n, {}) else "" for n in ALL]
            rows.append([operation, block_size, *cells])
    head = ["operation", "B", *ALL]
    return table("Tails: µs of single calls, p50 / p99 / max, cyclic collector on, one side to a process", head, rows)


if __name__ == "__main__":
    print(json.dumps(measure_side(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
