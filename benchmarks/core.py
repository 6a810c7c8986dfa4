"""`make bench`: radixkv's core beside its peers, in one run.

python -m benchmarks.core [--quick] [--only ratios,tails,memory] [--json FILE] [--strict]
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import memory, ratios, tails
from benchmarks.measure import Verdict, number, table

PARTS = ("ratios", "tails", "memory")


def targets(results: ratios.Results, leaves: tuple[int, ...]) -> list[Verdict]:
    """What the project set out to reach, beside what this run measured."""
    verdicts = []
    for block_size, bound in ((16, 4.0), (1, 8.0)):
        row = results.row("serving loop", block_size)
        verdicts.append(
            Verdict.at_least(f"serving loop, B={block_size}: rust / radix", row.ratio("sglang-rust").median, bound)
        )
    for row in results.rows:
        if row.operation.startswith(("match", "insert", "131,072")):
            what = f"{row.operation}, B={row.block_size}"
            verdicts += [
                Verdict.ahead(f"{what}: {label} / radix", row.ratio(peer).median)
                for peer, label in (("sglang-rust", "rust"), ("sglang-python", "python"))
            ]
    for row in results.lookups:
        verdicts.append(
            Verdict.ahead(f"{row.operation}, B={row.block_size}: dynamo / radix", row.ratio("dynamo").median)
        )
    most, least = (
        results.row(ratios.evict_operation(leaves[-1]), 16),
        results.row(ratios.evict_operation(leaves[0]), 16),
    )
    verdicts.append(Verdict.at_least(f"{most.operation}: rust / radix", most.ratio("sglang-rust").median, 50))
    for name in ("radix", "hash"):
        slower = most.median(name) / least.median(name)
        verdicts.append(Verdict.at_most(f"{name}: evict at {leaves[-1]:,} leaves / at {leaves[0]:,}", slower, 4))
    return verdicts


def as_json(results: ratios.Results) -> dict[str, Any]:
    """The rows with their rounds."""
    return {
        "rows": [asdict(row) for row in results.rows],
        "lookups": [asdict(row) for row in results.lookups],
        "notes": results.notes,
    }


def main() -> int:
    """Measure, print, and say by the exit status (under --strict) whether every target was reached."""
    parser = argparse.ArgumentParser(prog="benchmarks.core", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute or two; its figures mean little")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a target is missed")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")

    size = ratios.Size.quick() if options.quick else ratios.Size()
    started = time.monotonic()
    verdicts: list[Verdict] = []
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "quick": options.quick,
    }
    if "ratios" in parts:
        results = ratios.measure(size)
        verdicts += targets(results, size.leaves)
        figures["ratios"] = as_json(results)
        print(ratios.render(results), end="\n\n", flush=True)
    if "tails" in parts:
        figures["tails"] = tails.measure(size.requests, quick=options.quick)
        print(tails.render(figures["tails"]), end="\n\n", flush=True)
    if "memory" in parts:
        figures["memory"] = memory.measure(quick=options.quick)
        verdicts += memory.verdicts(figures["memory"])
        print(memory.render(figures["memory"]), end="\n\n", flush=True)
    if verdicts:
        rows = [[verdict.what, verdict.bound, number(verdict.measured), str(verdict)] for verdict in verdicts]
        print(table("Targets", ["target", "bound", "measured", ""], rows), end="\n\n")
    figures["targets"] = [asdict(verdict) for verdict in verdicts]
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {time.monotonic() - started:.0f} s",
        file=sys.stderr,
    )
    missed = sum(not verdict.ok for verdict in verdicts)
    return 1 if options.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
