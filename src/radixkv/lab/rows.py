"""What replay and curve found, as plain values: the rows of a table, and of JSON."""

from __future__ import annotations

from typing import Any, Final

from radixkv.lab.curve import LruCurve
from radixkv.lab.histogram import Histogram
from radixkv.lab.models import Roofline
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


def curve_point(curve: LruCurve, blocks: int, optimum_hit_tokens: int | None = None) -> dict[str, Any]:
    """The curve at one capacity; `optimum` where it is known."""
    point: dict[str, Any] = {"blocks": blocks, "lru": curve.hit_rate(blocks)}
    if optimum_hit_tokens is not None:
        point["optimum"] = optimum_hit_tokens / curve.input_tokens if curve.input_tokens else 0.0
    return point


def _ages(requests: Histogram, milliseconds: Histogram) -> dict[str, dict[str, float] | None]:
    return {
        "requests": {f"p{percent}": requests.percentile(percent) for percent in PERCENTILES} if len(requests) else None,
        "seconds": {f"p{p}": milliseconds.percentile(p) / 1000 for p in PERCENTILES} if len(milliseconds) else None,
    }
