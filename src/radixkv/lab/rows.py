"""What replay and curve found, as plain values: the rows of a table, and of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from radixkv.lab.curve import LruCurve
from radixkv.lab.histogram import Histogram
from radixkv.lab.models import Roofline
from radixkv.lab.optimum import Optimum
from radixkv.lab.replay import ReplayResult

PERCENTILES: Final = (10, 50, 90, 99)


def replay_row(result: ReplayResult, roofline: Roofline | None = None) -> dict[str, Any]:
    """One setting and what came of it; `prefill_seconds_saved` and `gpu_hours_saved` with a roofline alone.

    Ages are percentiles in requests and, where the trace has a clock, in seconds; None where there was nothing to
    measure.
    """
    config, stats = result.config, result.stats
    row: dict[str, Any] = {
        "cache": config.cache,
        "eviction": config.eviction,
        "order": config.order,
        "block_size": config.block_size,
        "blocks": config.blocks,
        "hit_rate": result.hit_rate,
        "requests": result.requests,
        "input_tokens": result.input_tokens,
        "hit_tokens": result.hit_tokens,
        "inserted_blocks": stats.inserted_blocks,
        "evicted_blocks": stats.evicted_blocks,
        "missed": {
            "short": stats.missed_short,
            "cold": stats.missed_cold,
            "diverged": stats.missed_diverged,
            "evicted": stats.missed_evicted,
        },
        "lifetime": _ages(result.lifetime, result.lifetime_ms),
        "idle_before_eviction": _ages(result.idle, result.idle_ms),
        "reuse_gap": _ages(result.reuse_gap, result.reuse_gap_ms),
    }
    if roofline:
        seconds = roofline.seconds(result.hit_tokens, result.hit_squares)
        row |= {"prefill_seconds_saved": seconds, "gpu_hours_saved": seconds / 3600}
    return row


def curve_report(
    curve: LruCurve,
    capacities: Sequence[int],
    optimum: Optimum | None = None,
    *,
    replayed: Mapping[str, Mapping[int, float]] | None = None,
    block_bytes: float | None = None,
) -> dict[str, Any]:
    """The curve at some capacities, its ceiling and its cliffs; `optimum` in every point where it is known.

    `replayed` are hit rates of the radix cache by policy and capacity, which go to their points.
    Cliffs are told in memory where a block's bytes are known. A sampled curve has its rate, and in every point the
    standard error.
    """
    points: list[dict[str, Any]] = []
    for blocks in capacities:
        point: dict[str, Any] = {"blocks": blocks, "lru": curve.hit_rate(blocks)}
        if curve.error_tokens is not None:
            point["lru_error"] = curve.error(blocks)
        if optimum:
            point["optimum"] = optimum.hit_tokens(blocks) / max(curve.input_tokens, 1)
        if replayed:
            point["replayed"] = {name: rates[blocks] for name, rates in replayed.items()}
        points.append(point)
    report = {
        "block_size": curve.block_size,
        "requests": curve.requests,
        "input_tokens": curve.input_tokens,
        "unique_blocks": curve.unique_blocks,
        "ceiling": curve.ceiling,
        "points": points,
        "cliffs": [{**asdict(cliff), "text": cliff.text(block_bytes)} for cliff in curve.cliffs()],
    }
    return report if curve.error_tokens is None else {**report, "sample": curve.sample}


def _ages(requests: Histogram, milliseconds: Histogram) -> dict[str, dict[str, float] | None]:
    return {"requests": _percentiles(requests, 1), "seconds": _percentiles(milliseconds, 1000)}


def _percentiles(histogram: Histogram, unit: int) -> dict[str, float] | None:
    found = {f"p{percent}": histogram.percentile(percent) for percent in PERCENTILES}
    return {name: value if unit == 1 else value / unit for name, value in found.items() if value is not None} or None
