"""The third table: what a cached block costs, and that a cache does not grow by being read.

Each figure comes from a process of its own that reads the workload from a file: memory freed while making it would
be used again unnoticed. Run as a module it measures one thing and prints JSON:
`python -m benchmarks.memory rss|trace|growth SIDE WORKLOAD MATCHES`.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import types
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Verdict, number, table
from benchmarks.sides import OURS, PEERS, Ours, make_side
from benchmarks.workloads import BlockNames, Prompt, multi_turn

BLOCK_SIZE = 16
BLOCKS = 100_000
MATCHES = 1_000_000
GROWTH_BLOCKS = 20_000
BLOCKS_PER_REQUEST = 9
"""A little less than a multi-turn request adds, to choose how many requests fill a tree."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Prompts in three flat arrays, one after the other: a workload that leaves no holes in memory behind it."""

    tokens: "array[int]"
    ends: "array[int]"
    """Where each prompt ends in `tokens`."""
    blocks: "array[int]"
    known: "array[int]"

    @classmethod
    def of_blocks(cls, blocks: int) -> "Packed":
        """Multi-turn prompts of at least that many different blocks."""
        names = BlockNames(BLOCK_SIZE)
        packed = cls(array("I"), array("Q"), array("I"), array("I"))
        for tokens in multi_turn(max(20, blocks // BLOCKS_PER_REQUEST)):
            prompt = names.name(tokens)
            packed.tokens.extend(tokens)
            packed.ends.append(len(packed.tokens))
            packed.blocks.extend(prompt.blocks)
            packed.known.append(prompt.known)
            if len(names) >= blocks:
                break
        return packed

    def prompts(self, count: int | None = None) -> Iterator[Prompt]:
        """Unpack the prompts, one at a time."""
        start = block = 0
        for end, known in list(zip(self.ends, self.known, strict=True))[:count]:
            following = block + (end - start) // BLOCK_SIZE
            yield Prompt(self.tokens[start:end].tolist(), self.blocks[block:following], known)
            start, block = end, following

    def write(self, directory: Path) -> None:
        """Write each array to a file."""
        directory.mkdir()
        for name in self.__slots__:
            Path(directory, name).write_bytes(getattr(self, name).tobytes())

    @classmethod
    def read(cls, directory: Path) -> "Packed":
        """Read what `write` wrote."""
        packed = cls(array("I"), array("Q"), array("I"), array("I"))
        for name in cls.__slots__:
            values = getattr(packed, name)
            path = Path(directory, name)
            with path.open("rb") as file:
                values.fromfile(file, path.stat().st_size // values.itemsize)
        return packed


def _resident() -> int:
    """Resident bytes of this process, after giving back what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def deep_size(root: object) -> int:
    """Bytes of all Python objects that `root` reaches, each counted once; code and classes are not data."""
    seen, stack, total = {id(root)}, [root], 0
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
    while stack:
        each = stack.pop()
        total += sys.getsizeof(each)
        for child in gc.get_referents(each):
            if id(child) not in seen and not isinstance(child, code):
                seen.add(id(child))
                stack.append(child)
    return total


def _fill(name: str, packed: Packed, count: int | None = None) -> tuple[Any, Callable[[], int]]:
    """Fill a fresh cache the way requests do; the object to keep alive, and its number of blocks."""
    if name == "dynamo":
        from benchmarks.dynamo_peer import Dynamo

        index = Dynamo(BLOCK_SIZE)
        stored = 0
        for prompt in packed.prompts(count):
            if prompt.known < len(prompt.blocks):
                index.store(index.event(prompt))
                stored += len(prompt.blocks) - prompt.known
        index.find([0])  # comes after every event: the tree's thread has applied them
        return index, lambda: stored
    side = make_side(name, BLOCK_SIZE)
    for prompt in packed.prompts(count):
        side.match(side.match_key(prompt))
        side.insert(*side.insert_args(prompt))
    return side, side.cached_blocks


def bytes_per_block(name: str, packed: Packed, *, traced: bool) -> float:
    """Bytes a cached block, by resident memory or by what Python's allocators handed out."""
    keep = _fill(name, packed, 20)  # loads and sizes whatever is made once
    if traced:
        import tracemalloc

        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        kept, count = _fill(name, packed)
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
    else:
        before = _resident()
        kept, count = _fill(name, packed)
        after = _resident()
    result = (after - before) / count()
    del keep, kept
    return result


def growth(name: str, packed: Packed, matches: int) -> tuple[int, int, int, int]:
    """Match, lock and unlock over and over, no eviction: bytes of the cache before and after, and of the process.

    Whole passes over the prompts, so that the cache ends in the very state in which it began; the size after is the
    greatest of the last three passes, since what is cleaned up now and then may just have been.
    """
    side = make_side(name, BLOCK_SIZE)
    if not isinstance(side, Ours):
        raise TypeError("only our own caches are Python objects through and through")
    keys = []
    for prompt in packed.prompts():
        side.insert(*side.insert_args(prompt))
        keys.append(side.match_key(prompt))

    def one_pass() -> None:
        for key in keys:
            side.lock_unlock(side.match(key).node)

    one_pass()
    before, resident_before = deep_size(side.cache), _resident()
    sizes = []
    passes = max(3, -(-matches // len(keys)))
    for number_of_pass in range(passes):
        one_pass()
        if number_of_pass >= passes - 3:
            sizes.append(deep_size(side.cache))
    return before, max(sizes), resident_before, _resident()


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure all sides, each in a process of its own."""
    blocks, matches = (10_000, 20_000) if quick else (BLOCKS, MATCHES)
    with tempfile.TemporaryDirectory() as directory:
        workloads = {}
        for size in (blocks, GROWTH_BLOCKS):
            workloads[size] = Path(directory, str(size))
            Packed.of_blocks(size).write(workloads[size])

        def run(what: str, name: str, size: int) -> Any:
            print(f"... memory of {name}: {what}", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "benchmarks.memory", what, name, str(workloads[size]), str(matches)]
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

        return {
            "blocks": blocks,
            "matches": matches,
            "rss": {name: run("rss", name, blocks) for name in (*OURS, *PEERS, "dynamo")},
            "trace": {name: run("trace", name, blocks) for name in OURS},
            "growth": {name: run("growth", name, GROWTH_BLOCKS) for name in OURS},
        }


def verdicts(memory: dict[str, Any]) -> list[Verdict]:
    """The cache must not be larger after the matches than before."""
    what = f"bytes more after {memory['matches']:,} matches than before"
    return [
        Verdict.at_most(f"{name}: {what}", after - before, 0)
        for name, (before, after, _, _) in memory["growth"].items()
    ]


def render(memory: dict[str, Any]) -> str:
    """The tables as text."""
    rss, trace = memory["rss"], memory["trace"]
    rows = [
        [name, number(rss[name]), number(trace[name]) if name in trace else "", f"{rss[name] / rss['radix']:.2f}"]
        for name in rss
    ]
    title = f"Memory: bytes per cached block of a {memory['blocks']:,}-block tree, {BLOCK_SIZE}-token blocks"
    first = table(title, ["side", "resident", "tracemalloc", "resident / radix"], rows)
    grown = [
        [name, f"{before:,}", f"{after:,}", f"{(resident_after - resident_before) / 1024:,.0f} KiB"]
        for name, (before, after, resident_before, resident_after) in memory["growth"].items()
    ]
    title = f"Growth: bytes of a cache before and after {memory['matches']:,} matches, locks and unlocks, no eviction"
    return first + "\n\n" + table(title, ["side", "before", "after", "process grew by"], grown)


def main() -> None:
    """Measure one thing in this process and print it."""
    what, name, workload, matches = sys.argv[1:]
    packed = Packed.read(Path(workload))
    found = (
        growth(name, packed, int(matches))
        if what == "growth"
        else bytes_per_block(name, packed, traced=what == "trace")
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
