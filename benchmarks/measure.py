"""Timing and tables: interleaved rounds, medians of ratios, and nothing clever."""

import gc
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Final, TypeVar

T = TypeVar("T")
CLOCK: Final = os.environ.get("RADIXKV_BENCH_CLOCK", "wall")
"""`wall`, or `cpu`: processor time of this thread, for a machine that is busy with other things."""


now: Final[Callable[[], int]] = thread_time_ns if CLOCK == "cpu" else perf_counter_ns
"""Nanoseconds, for all sides that answer in the calling thread."""
Runner = Callable[[int], float]
"""Runs its share of one round (the argument) and returns the seconds that its timed part took, per call."""


@contextmanager
def no_gc() -> Iterator[None]:
    """Collect, then keep the cyclic collector off: in one process, one side's objects would slow the other."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def race(runners: Mapping[str, Runner], rounds: int) -> dict[str, list[float]]:
    """Run all sides in every round, each round starting with another side; seconds a call, per side and round."""
    names = list(runners)
    times: dict[str, list[float]] = {name: [] for name in names}
    with no_gc():
        for number in range(rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(runners[name](number))
    return times


def timed_each(call: Callable[[T], object], arguments: Sequence[T], clock: Callable[[], int] = now) -> float:
    """Seconds a call over `arguments`."""
    start = clock()
    for argument in arguments:
        call(argument)
    return (clock() - start) / 1e9 / len(arguments)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Peer time over our time, round by round: above 1 we are ahead."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, peer: Sequence[float], ours: Sequence[float]) -> "Ratio":
        """The ratios of one run."""
        ratios = [theirs / mine for theirs, mine in zip(peer, ours, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{number(self.median)} [{number(self.low)}..{number(self.high)}]"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target of the project beside what this run measured."""

    what: str
    bound: str
    measured: float
    ok: bool

    @classmethod
    def at_least(cls, what: str, measured: float, bound: float) -> "Verdict":
        """The measured figure must not be below the bound."""
        return cls(what, f">= {bound:g}", measured, measured >= bound)

    @classmethod
    def ahead(cls, what: str, measured: float) -> "Verdict":
        """The measured ratio must be above 1."""
        return cls(what, "> 1", measured, measured > 1)

    @classmethod
    def at_most(cls, what: str, measured: float, bound: float) -> "Verdict":
        """The measured figure must not be above the bound."""
        return cls(what, f"<= {bound:g}", measured, measured <= bound)

    def __str__(self) -> str:
        return "ok" if self.ok else "MISSED"


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of `values` lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def number(value: float) -> str:
    """Three significant digits without an exponent."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def micros(seconds: float) -> str:
    """Seconds as microseconds."""
    return number(seconds * 1e6)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column left, the others right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([f"### {title}", "", line(head), rule, *map(line, rows)])
