"""The lab beside itself and beside kvcache-simulator, in one run on one trace.

benchmarks/run.sh benchmarks.lab [--requests N] [--trace FILE ...] [--json FILE] [--strict]
"""

import argparse
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Ratio, Verdict, number, race, table
from radixkv import TokenKey
from radixkv.lab import Optimum, ReplayConfig, lru_curve, replay, sampled_curve
from radixkv.traces import Request, read_trace
from radixkv.traces.generate import make_workload

SPAN = 512
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)
ROUNDS = 3
MEMORY_REFERENCES = 5_000_000
MEMORY_BOUND = 2**30


def whole_blocks(trace: Iterator[Request], block_size: int) -> list[list[int]]:
    """The full blocks of each prompt, each named by a number that stands for it and all before it."""
    names: dict[tuple[int, bytes], int] = {}
    paths = []
    for request in trace:
        words = max(block_size // request.span, 1)
        data, name, path = request.prompt.data, 0, []
        for start in range(0, request.input_tokens // request.span // words * words * 4, words * 4):
            name = names.setdefault((name, data[start : start + words * 4]), len(names) + 1)
            path.append(name)
        if path:
            paths.append(path)
    return paths


def as_requests(paths: list[list[int]]) -> list[Request]:
    """As our lab reads them: a token behind the last full block, since the last token is always computed."""
    return [Request(TokenKey(array("I", [*path, 0])), len(path) * SPAN + 1, span=SPAN) for path in paths]


def as_peer_trace(paths: list[list[int]]) -> Any:
    """As kvcache-simulator reads them."""
    from kvcache_sim.trace import parse_trace_lines

    lines = (json.dumps({"hash_ids": path, "input_length": len(path) * SPAN, "block_size": SPAN}) for path in paths)
    return parse_trace_lines(lines)


def measured_half(requests: list[Request], blocks: int) -> float:
    """LRU's hit rate as the peer reports it: over the second half of the requests, in whole blocks."""
    hits = total = 0

    def observe(index: int, request: Request, runs: list[Any]) -> None:
        nonlocal hits, total
        if index >= len(requests) // 2:
            hits += sum(min(max(blocks - above, 0), stop - start) for start, stop, _, above in runs)
            total += len(request.prompt) - 1

    lru_curve(requests, SPAN, observe=observe)
    return hits / total


def side_by_side(name: str, paths: list[list[int]]) -> tuple[str, list[Verdict], dict[str, Any]]:
    """Time everything on one trace; a configuration is LRU at one capacity."""
    from kvcache_sim.cpp_backend import ensure_cpp_simulator, run_cpp_sweep
    from kvcache_sim.plan import build_execution_plan
    from kvcache_sim.policies import simulate_policy

    requests, peer = as_requests(paths), as_peer_trace(paths)
    best = Optimum(SPAN)
    curve = lru_curve(requests, SPAN, observe=best.add)
    sizes = [max(int(share * curve.unique_blocks), 1) for share in SHARES]
    two_percent = sizes[1]
    plan = build_execution_plan(peer)
    ensure_cpp_simulator()

    def cpp(capacities: list[int]) -> Any:
        return run_cpp_sweep(peer, capacities=capacities, policies=["lru"], warmup_requests=plan.warmup_requests)

    agreed = []
    for (_, blocks), theirs in cpp(sizes).results.items():
        if theirs.measurementMode == "fixed_window":
            agreed.append((blocks, measured_half(requests, blocks), theirs.hitRate))

    def timed(call: Callable[[], object]) -> Callable[[int], float]:
        def run(_: int) -> float:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start

        return run

    seconds = race(
        {
            "curve, every capacity": timed(lambda: lru_curve(requests, SPAN)),
            "curve, 10 % sample": timed(lambda: sampled_curve(requests, SPAN, 0.1)),
            "optimum, one capacity more": timed(lambda: best.hit_tokens(two_percent)),
            "replay, radix": timed(lambda: replay(requests, [ReplayConfig(two_percent, SPAN, "radix")])),
            "replay, hash": timed(lambda: replay(requests, [ReplayConfig(two_percent, SPAN, "hash")])),
            "peer, Python, plan made": timed(lambda: simulate_policy(plan, "lru", two_percent)),
            "peer, C++, one capacity": timed(lambda: cpp([two_percent])),
            "peer, C++, five capacities": timed(lambda: cpp(sizes)),
        },
        ROUNDS,
    )
    one, five = seconds["peer, C++, one capacity"], seconds["peer, C++, five capacities"]
    seconds["peer, C++, one capacity more"] = [max(b - a, 1e-9) / 4 for a, b in zip(one, five, strict=True)]
    replayed = seconds["replay, radix"]
    rows = [
        [what, number(sorted(times)[ROUNDS // 2] * 1000), str(Ratio.of(times, replayed))]
        for what, times in seconds.items()
    ]
    references = sum(map(len, paths))
    title = f"{name}: {len(paths):,} requests, {references:,} block references, {curve.unique_blocks:,} distinct"
    text = table(title, ["LRU", "ms", "of radix replay"], rows)
    rates = [[f"{blocks:,}", f"{ours:.6f}", f"{theirs:.6f}"] for blocks, ours, theirs in agreed]
    text += "\n\n" + table(f"{name}: LRU hit rate, second half", ["blocks", "radixkv", "kvcache-simulator"], rates)
    longest = max(map(len, paths))
    apart = [abs(ours - theirs) for blocks, ours, theirs in agreed if blocks >= longest]
    per_capacity = [times / curve.unique_blocks for times in seconds["curve, every capacity"]]
    verdicts = [
        Verdict.at_most(
            f"{name}: curve / replay (radix)", Ratio.of(seconds["curve, every capacity"], replayed).median, 2
        ),
        Verdict.at_most(
            f"{name}: hit rates apart, of {len(apart)} where every prompt fits", max(apart, default=0), 1e-9
        ),
        Verdict.at_least(
            f"{name}: peer in Python / replay (radix)", Ratio.of(seconds["peer, Python, plan made"], replayed).median, 5
        ),
        Verdict.at_least(
            f"{name}: peer in C++ / replay (radix)",
            Ratio.of(seconds["peer, C++, one capacity more"], replayed).median,
            5,
        ),
        Verdict.at_least(
            f"{name}: peer in C++ / curve, a capacity",
            Ratio.of(seconds["peer, C++, one capacity more"], per_capacity).median,
            5,
        ),
    ]
    return text, verdicts, {"title": title, "seconds": seconds, "agreed": agreed}


def many_references(references: int) -> Iterator[Request]:
    """Chats that grow by five blocks a turn to a hundred: one block reference in ten is new."""
    chats = 64
    lengths = [0] * chats
    starts = [chat * 1_000 for chat in range(chats)]
    fresh, made, turn = chats * 1_000, 0, 0
    while made < references:
        chat = turn % chats
        lengths[chat] += 5
        made += lengths[chat]
        turn += 1
        yield Request(
            TokenKey(range(starts[chat], starts[chat] + lengths[chat] + 1)), lengths[chat] * SPAN + 1, span=SPAN
        )
        if lengths[chat] == 100:
            lengths[chat], starts[chat], fresh = 0, fresh, fresh + 1_000


def peak_memory(what: str) -> dict[str, float]:
    """Peak of a fresh process that computes a curve over five million block references, in bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lab", "--peak", what], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def print_peak(what: str) -> None:
    """What `peak_memory` runs."""
    started = time.perf_counter()
    trace = many_references(MEMORY_REFERENCES)
    curve = sampled_curve(trace, SPAN, 0.1) if what == "sample" else lru_curve(trace, SPAN)
    # Of this program alone: getrusage would count what the process was before it became this one.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    found = {"bytes": peak, "seconds": time.perf_counter() - started, "unique_blocks": curve.unique_blocks}
    print(json.dumps(found))


def main() -> int:
    """Measure, print, and say by the exit status (under --strict) whether every target was reached."""
    parser = argparse.ArgumentParser(prog="benchmarks.lab", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=4000, help="of each generated workload")
    parser.add_argument("--trace", type=Path, action="append", help="measure on this trace instead; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak)
        return 0
    if options.trace:
        traces = {path.name.partition(".")[0]: whole_blocks(read_trace(path), SPAN) for path in options.trace}
    else:
        traces = {
            name: whole_blocks(make_workload(name).requests(options.requests, 1), 16)
            for name in ("chat", "coding-agents")
        }
    verdicts: list[Verdict] = []
    figures: dict[str, Any] = {"traces": []}
    for name, paths in traces.items():
        text, found, raw = side_by_side(name, paths)
        print(text, end="\n\n", flush=True)
        verdicts += found
        figures["traces"].append(raw)
    peaks = {what: peak_memory(what) for what in ("curve", "sample")}
    rows = [
        [what, *(number(p[key] / by) for key, by in (("bytes", 2**20), ("unique_blocks", 1)))]
        for what, p in peaks.items()
    ]
    print(
        table(f"Peak memory over {MEMORY_REFERENCES:,} block references", ["", "MiB", "distinct blocks"], rows),
        end="\n\n",
    )
    verdicts.append(Verdict.at_most("curve: MiB at its peak", peaks["curve"]["bytes"] / 2**20, MEMORY_BOUND / 2**20))
    print(
        table(
            "Targets",
            ["target", "bound", "measured", ""],
            [[v.what, v.bound, number(v.measured), str(v)] for v in verdicts],
        )
    )
    if options.json:
        options.json.write_text(
            json.dumps({**figures, "peaks": peaks, "targets": [asdict(v) for v in verdicts]}, indent=1)
        )
    return 1 if options.strict and not all(verdict.ok for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
