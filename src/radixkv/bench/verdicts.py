"""What the engine has to reach, and whether it did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Final

from radixkv.bench.measure import Measured

CACHE_SHARE: Final = 0.003
OF_BOUND: Final = 0.9
TIMES_UNCACHED: Final = 5.0
OF_BEST: Final = 0.96


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured."""

    target: str
    measured: str
    reached: bool


def verdicts(runs: Sequence[Measured]) -> list[Verdict]:
    """Those that these runs tell of."""
    return [*_cache_cost(runs), *_bound(runs), *_speed(runs), *_order(runs), *_waiting(runs)]


def uncached(runs: Sequence[Measured], workload: str) -> Measured | None:
    """The workload's run without a cache: the mean of those before and after the ones with a cache.

    Others use the machine, too, now more and now less, so that one of them alone would tell of another machine.
    """
    found = [run for run in runs if run.workload == workload and run.setup.prefix_cache == "none"]
    if not found:
        return None
    return replace(
        found[0],
        seconds=mean(run.seconds for run in found),
        decode_seconds=mean(run.decode_seconds for run in found),
        sample_seconds=mean(run.sample_seconds for run in found),
        prefill_work=mean(run.prefill_work for run in found),
        cache_seconds=mean(run.cache_seconds for run in found),
    )


def _cached(runs: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    """Runs with a cache, each with the one of the same workload without."""
    pairs = [(run, uncached(runs, run.workload)) for run in runs if run.setup.prefix_cache != "none"]
    return [(run, without) for run, without in pairs if without]


def _cache_cost(runs: Sequence[Measured]) -> Iterator[Verdict]:
    costs = {
        f"{run.setup} {run.setup.order}": (run.cache_share - without.cache_share, run.cache_share)
        for run, without in _cached(runs)
        if run.workload == "no-sharing" and run.setup.prefix_cache == "radix"
    }
    if costs:
        worst = max(costs, key=lambda name: costs[name])
        more, share = costs[worst]
        measured = f"at most {more:.2%} ({worst}), and {share:.2%} with what is there without a cache"
        yield Verdict(f"without sharing, the cache costs < {CACHE_SHARE:.1%}", measured, more < CACHE_SHARE)


def _bound(runs: Sequence[Measured]) -> Iterator[Verdict]:
    bounds, prefills = defaultdict(list), defaultdict(list)
    for run, without in _cached(runs):
        if run.setup.prefix_cache == "radix":
            bounds[run.workload].append(run.of_bound(without))
            prefills[run.workload].append(run.of_prefill(without))
    if bounds:
        typical = {workload: median(shares) for workload, shares in bounds.items()}
        least = min(typical, key=lambda workload: typical[workload])
        reached = sum(share >= OF_BOUND for share in typical.values())
        singles = [share for shares in bounds.values() for share in shares]
        alone = [median(shares) for shares in prefills.values()]
        measured = (
            f"{reached} of {len(typical)} workloads, by the median of their runs; "
            f"least {typical[least]:.0%} ({least}); "
            f"of single runs {sum(share >= OF_BOUND for share in singles)} of {len(singles)}; "
            f"of prefill alone {sum(share >= OF_BOUND for share in alone)} of {len(alone)}"
        )
        yield Verdict(
            f"throughput at >= {OF_BOUND:.0%} of what the saved prefill work allows", measured, reached == len(typical)
        )


def _speed(runs: Sequence[Measured]) -> Iterator[Verdict]:
    for workload in ("few-shot", "multi-turn"):
        times = [
            run.prompt_rate / without.prompt_rate
            for run, without in _cached(runs)
            if run.workload == workload and run.setup.prefix_cache == "radix"
        ]
        if times:
            measured = f"{min(times):.1f}x to {max(times):.1f}x"
            target = f"{workload}: >= {TIMES_UNCACHED:g}x the prompt tokens/s of no cache"
            yield Verdict(target, measured, min(times) >= TIMES_UNCACHED)


def _order(runs: Sequence[Measured]) -> Iterator[Verdict]:
    shares = {
        str(run.setup): run.of_best
        for run in runs
        if run.workload == "shuffled-groups" and run.setup.order == "lpm" and run.setup.max_skips >= run.requests
    }
    if shares:
        worst = min(shares, key=lambda name: shares[name])
        measured = f"at least {shares[worst]:.1%} ({worst})"
        yield Verdict(f"lpm finds >= {OF_BEST:.0%} of the best on shuffled groups", measured, shares[worst] >= OF_BEST)


def _waiting(runs: Sequence[Measured]) -> Iterator[Verdict]:
    if runs:
        tightest = max(runs, key=lambda run: run.worst_skips / max(run.setup.max_skips, 1))
        measured = f"{tightest.worst_skips} of {tightest.setup.max_skips} ({tightest.workload}, {tightest.setup})"
        reached = all(run.worst_skips <= run.setup.max_skips for run in runs)
        yield Verdict("nobody is passed over more than max_skips times", measured, reached)
