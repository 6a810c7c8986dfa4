"""Print what became of the mutants of the last `mutmut run`, a row for each file; fail below 90 % killed.

Reads mutmut's own records in `mutants/`. A mutant that no test reaches counts as survived, one that hangs as killed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEAST_KILLED = 90.0

# mutmut's exit codes: pytest's own for a test that failed or crashed, and a few of mutmut's.
KILLED = {1, 3}
TIMED_OUT = {24, -24, 36, 152, 255}
SURVIVED = {0, 5, 33}  # all passed, nothing collected, no test reaches it


def verdict(exit_code: int | None) -> str:
    """One word for the way the tests ended under a mutant."""
    if exit_code in SURVIVED:
        return "survived"
    if exit_code in KILLED or exit_code in TIMED_OUT:
        return "killed"
    return "unclear"


def percent(counts: Counter[str]) -> float:
    """Killed mutants among all, those whose end is unclear included."""
    return 100 * counts["killed"] / counts.total() if counts else 0.0


def main() -> int:
    """Print the table and the names of what survived; return the exit status."""
    total: Counter[str] = Counter()
    left: list[str] = []
    print(f"{'file':<32}{'mutants':>8}{'killed':>8}{'survived':>10}{'unclear':>9}{'kill rate':>11}")
    for record in sorted((ROOT / "mutants" / "src").rglob("*.meta")):
        ends = {name: verdict(code) for name, code in json.loads(record.read_text())["exit_code_by_key"].items()}
        if not ends:
            continue
        counts = Counter(ends.values())
        total += counts
        left += [f"  {end:<9} {name}" for name, end in ends.items() if end != "killed"]
        print(row(record.name.removesuffix(".meta"), counts))
    print(row("all", total))
    if left:
        print("\nnot killed (`.venv/bin/mutmut show NAME` shows one):", *left, sep="\n")
    if percent(total) < LEAST_KILLED:
        print(f"\nfewer than {LEAST_KILLED:g} % were killed")
        return 1
    return 0


def row(name: str, counts: Counter[str]) -> str:
    """One line of the table."""
    return (
        f"{name:<32}{counts.total():>8}{counts['killed']:>8}{counts['survived']:>10}{counts['unclear']:>9}"
        f"{percent(counts):>9.1f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
