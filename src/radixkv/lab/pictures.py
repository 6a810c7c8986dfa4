"""What `doctor` found, drawn: the curve, the hottest prefixes, the misses over time, lifetimes beside reuse gaps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from heapq import nlargest
from math import log
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from radixkv.lab import style
from radixkv.lab.causes import CAUSES
from radixkv.lab.doctor import Diagnosis
from radixkv.lab.histogram import Histogram
from radixkv.lab.plots import CurvePicture
from radixkv.lab.style import Picture, picture
from radixkv.tree import Node

CAUSE_COLOURS: Final[Mapping[str, str]] = {
    "hit": style.BLUE,
    "evicted": style.ORANGE,
    "partial_block": style.YELLOW,
    "last_token": style.SKY,
    "namespace": style.PURPLE,
    "parted_early": style.RED,
    "first_seen": style.LINE,
}
"""Of every field of `TokenCauses`."""
CAUSE_LABELS: Final[Mapping[str, str]] = {
    "hit": "found cached",
    "evicted": "evicted, read again",
    "partial_block": "block not shared whole",
    "last_token": "last token",
    "namespace": "other namespace",
    "parted_early": "parted early",
    "first_seen": "first seen",
}
MOST_ROWS: Final = 16
"""Of `hottest_picture`."""


def diagnosis_pictures(found: Diagnosis) -> dict[str, Picture]:
    """All pictures of a diagnosis, by name."""
    return {
        "curve": curve_picture(found),
        "misses": misses_picture(found),
        "lifetimes": lifetimes_picture(found),
        "prefixes": hottest_picture(found),
    }


def curve_picture(found: Diagnosis) -> Picture:
    """Hit rate by capacity: LRU and the optimum everywhere, and the best other policy at the present size."""
    best = [fix for fix in found.fixes if fix.kind == "policy"][:1]
    beside = {f"{fix.what}, block by block": {found.blocks: fix.hit_rate} for fix in best}
    return CurvePicture(found.curve, found.optimum, beside, found.blocks, found.block_bytes).draw()


def misses_picture(found: Diagnosis) -> Picture:
    """Where the tokens went, from the first request to the last."""
    return picture(partial(_draw_misses, found), alt="Causes of misses over the trace", width=8.4, height=3.8)


def lifetimes_picture(found: Diagnosis) -> Picture:
    """How long ago a block that is asked for was used last, beside how long one lies idle before it goes."""
    return picture(partial(_draw_lifetimes, found), alt="Reuse gaps beside block lifetimes", width=8.4, height=3.8)


def hottest_picture(found: Diagnosis) -> Picture:
    """The prefixes that save most, a row each: where in the prompt they stand, and how many prompts have them."""
    return picture(partial(_draw_hottest, found), alt="The hottest prefixes", width=8.4, height=4.6)


def _draw_misses(found: Diagnosis, figure: Figure) -> None:
    axes = figure.subplots()
    over_time = found.over_time
    shown = [cause for cause in CAUSES if getattr(found.causes, cause)]
    bins = [bin_ for bin_ in over_time.bins if bin_.total]
    starts = np.arange(len(bins) + 1) * over_time.requests_per_bin
    starts[-1:] = max(found.curve.requests, 1)
    below = np.zeros(len(bins))
    for cause in shown:
        share = np.array([getattr(bin_, cause) / bin_.total for bin_ in bins])
        axes.stairs(
            below + share, starts, baseline=below, fill=True, color=CAUSE_COLOURS[cause], label=CAUSE_LABELS[cause]
        )
        below = below + share
    axes.set(xlim=(0, max(found.curve.requests, 1)), ylim=(0, 1))
    axes.grid(visible=False)
    axes.set_xlabel("requests, in the order they came")
    axes.set_ylabel("input tokens")
    style.percent_axis(axes.yaxis)
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
    axes.set_title("Where the tokens went")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_lifetimes(found: Diagnosis, figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title("When blocks are asked for again, and how long they last")
    axes.set_xscale("log")
    most = max(found.curve.requests, 10)
    edges = np.unique(np.geomspace(1, most, 49).astype(np.int64)).astype(float)
    hit, evicted = _counts(found.hit_gap, edges), _counts(found.evicted_gap, edges)
    axes.stairs(hit, edges, fill=True, color=style.BLUE, label="asked for again, found")
    axes.stairs(hit + evicted, edges, baseline=hit, fill=True, color=style.ORANGE, label="asked for again, evicted")
    low, middle, high = (found.now.idle.percentile(percent) for percent in (10, 50, 90))
    if low is not None and middle is not None and high is not None:
        axes.axvspan(
            max(low, 1), max(high, 1), color=style.MUTED, alpha=0.18, linewidth=0,
            label="an unused block is evicted\n(8 of 10 in this band)",
        )  # fmt: skip
        axes.axvline(max(middle, 1), color=style.INK, linewidth=1.2)
    axes.set(xlim=(1, most), ylim=(0, None))
    axes.set_xlabel("requests since the last use")
    axes.set_ylabel("blocks")
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
    axes.yaxis.set_major_formatter(lambda number, _: _short(number))
    if not (hit.any() or evicted.any()):
        axes.set_ylim(0, 1)
        axes.text(0.5, 0.5, "no block was asked for again", transform=axes.transAxes, ha="center", color=style.MUTED)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _counts(histogram: Histogram, edges: Any) -> Any:
    """The counts of a histogram between the edges."""
    return np.histogram(histogram.starts, bins=edges, weights=histogram.counts)[0]


def _short(number: float) -> str:
    """A count in a few characters."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"


def _draw_hottest(found: Diagnosis, figure: Figure) -> None:
    axes = figure.subplots()
    rows = _hottest(found)
    longest = max((row.start + row.length for row in rows), default=1)
    most = max((row.uses for row in rows), default=1)
    for place, row in enumerate(rows):
        if row.parent is not None:  # down from where the parent ends
            axes.plot([row.start, row.start], [row.parent + 0.38, place], color=style.MUTED, linewidth=0.9, zorder=1)
        strength = 0.25 + 0.75 * log(row.uses) / max(log(most), 1)
        axes.barh(place, row.length, left=row.start, height=0.76, color=style.BLUE, alpha=strength, zorder=2)
        axes.annotate(
            f"{row.namespace}{row.length:,} tokens, {row.uses:,} prompts", (row.start + row.length, place),
            (4, 0), textcoords="offset points", va="center", fontsize=8.5,
        )  # fmt: skip
    axes.grid(visible=False)
    axes.set(xlim=(0, 1.45 * longest), ylim=(max(len(rows), 1) - 0.4, -0.6), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("tokens from the prompt's beginning")
    axes.xaxis.set_major_formatter(lambda number, _: f"{number:,.0f}")
    axes.set_title("The prefixes that save most")
    if not rows:
        axes.text(0.5, 0.5, "no prefix is shared", transform=axes.transAxes, ha="center", color=style.MUTED)


class _Row(NamedTuple):
    """A node of the tree, as a row of the drawing."""

    start: int
    """Tokens before it."""
    length: int
    uses: int
    namespace: str
    parent: int | None
    """The row of the nearest node above it that is drawn."""


def _hottest(found: Diagnosis) -> list[_Row]:
    """The nodes that would be computed most often without a cache, each below the one it goes on from. O(nodes)."""
    tree, span = found.hottest, found.span
    shared = ((uses - 1) * len(node.blocks) for node, uses in tree.uses.items() if uses > 1)
    least = nlargest(MOST_ROWS, shared)[-1:] or [0]
    rows: list[_Row] = []
    waiting: list[tuple[Node[int], int, int | None, str]] = [
        (node, 0, None, f"{node.edge[0][:16]}: " if isinstance(node.edge, tuple) else "")
        for node, _ in reversed(list(tree.children()))
    ]
    while waiting and len(rows) < MOST_ROWS:
        node, start, parent, namespace = waiting.pop()
        uses, length = tree.uses[node], len(node.blocks)
        if uses > 1 and (uses - 1) * length >= least[0]:
            rows.append(_Row(start * span, length * span, uses, namespace, parent))
            parent, namespace = len(rows) - 1, ""
        below = reversed(list(tree.children(node)))
        waiting.extend((child, start + length, parent, namespace) for child, uses in below if uses > 1)
    return rows
