"""The picture of a curve: what every capacity gets, and what there is to gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from radixkv.lab.curve import LruCurve
from radixkv.lab.optimum import Optimum
from radixkv.lab.sizes import bytes_text
from radixkv.lab.style import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RED, SKY, Picture, percent_axis, picture

_MARKERS = "osD^vP"
_COLOURS = (ORANGE, PURPLE, SKY, RED)
_LINE_POINTS = 400
_OPTIMUM_POINTS = 40


@dataclass(frozen=True, slots=True)
class CurvePicture:
    """What to draw beside a curve."""

    curve: LruCurve
    optimum: Optimum | None = None
    replayed: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Hit rates by capacity, of each setting that was replayed."""
    present: int | None = None
    """The capacity there is now, to mark."""
    block_bytes: float | None = None
    """Bytes a block, for an axis in memory."""

    def draw(self) -> Picture:
        """The picture. The optimum is computed at forty capacities and where LRU has a cliff."""
        curve = self.curve
        alt = (
            f"Hit rate of an LRU cache by its size: from {curve.hit_rate(1):.1%} with one block to {curve.ceiling:.1%} "
            f"with all {curve.unique_blocks:,} distinct blocks"
        )
        return picture(self._paint, alt=alt, width=8.0, height=4.4)

    def _paint(self, figure: Figure) -> None:
        axes = figure.add_subplot()
        curve, unit = self.curve, self._unit
        capacities = self._spread(_LINE_POINTS)
        rates = np.array([curve.hit_rate(int(blocks)) for blocks in capacities])
        for cliff in curve.cliffs():
            axes.axvspan(cliff.blocks * unit, cliff.enough * unit, color=RED, alpha=0.12, linewidth=0)
        axes.axhline(curve.ceiling, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
        axes.annotate(
            f"{curve.ceiling:.1%} if nothing were evicted",
            (0.01, curve.ceiling),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            color=MUTED,
            fontsize=8.5,
        )
        if self.optimum:
            corners = [size for cliff in curve.cliffs() for size in (cliff.blocks, cliff.enough)]
            chosen = np.union1d(self._spread(_OPTIMUM_POINTS), [*corners, curve.unique_blocks])
            best = [self.optimum.hit_tokens(int(blocks)) / max(curve.input_tokens, 1) for blocks in chosen]
            axes.plot(chosen * unit, best, color=GREEN, label="optimum, which knows the future")
        axes.plot(capacities * unit, rates, color=BLUE, label="LRU, block by block")
        if curve.error_tokens is not None:
            errors = 2 * np.array([curve.error(int(blocks)) for blocks in capacities])
            label = f"± 2 standard errors of a sample of {curve.sample:.3g}"
            axes.fill_between(capacities * unit, rates - errors, rates + errors, color=BLUE, alpha=0.15, label=label)
        for number, (name, points) in enumerate(self.replayed.items()):
            at = np.array(sorted(points))
            colour, marker = _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]
            found = [points[int(blocks)] for blocks in at]
            axes.plot(at * unit, found, marker, color=colour, markersize=6, label=name, clip_on=False)
        if self.present is not None:
            self._mark(axes, self.present)
        self._dress(axes)

    def _mark(self, axes: Axes, blocks: int) -> None:
        size = f"{blocks:,} blocks" if self.block_bytes is None else bytes_text(blocks * self.block_bytes)
        axes.axvline(blocks * self._unit, color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f" now: {size}, {self.curve.hit_rate(blocks):.1%} with LRU",
            (blocks * self._unit, 0.02),
            xycoords=("data", "axes fraction"),
            color=INK,
            fontsize=9,
        )

    def _dress(self, axes: Axes) -> None:
        axes.set_xscale("log", base=10 if self.block_bytes is None else 2)
        sizes = [self._smallest(), max(1.5 * self.curve.unique_blocks, 2), *([self.present] if self.present else [])]
        axes.set_xlim(min(sizes) * self._unit, max(sizes) * self._unit)
        top = 1.2 * max(self.curve.ceiling, 0.01)
        axes.set_ylim(0, top)
        percent_axis(axes.yaxis)
        if self.block_bytes is None:
            axes.xaxis.set_major_formatter(lambda blocks, _: f"{blocks:,.0f}")
        else:
            axes.xaxis.set_major_formatter(lambda gibibytes, _: bytes_text(gibibytes * 2**30))
        axes.set_xlabel(f"cache, in blocks of {self.curve.block_size} tokens" if self.block_bytes is None else "cache")
        axes.set_title("Hit rate, in prompt tokens, by the size of the cache")
        axes.legend(loc="upper left", bbox_to_anchor=(0, self.curve.ceiling / top - 0.01))

    @property
    def _unit(self) -> float:
        """What a block is on the axis: 1, or its GiB."""
        return 1.0 if self.block_bytes is None else self.block_bytes / 2**30

    def _smallest(self) -> int:
        """Where the picture begins: four decades below all distinct blocks."""
        return max(self.curve.unique_blocks // 10_000, 1)

    def _spread(self, points: int) -> npt.NDArray[np.int64]:
        """Capacities from there to beyond all distinct blocks, evenly on a log axis."""
        most = max(1.5 * self.curve.unique_blocks, 1)
        return np.unique(np.geomspace(self._smallest(), most, points).astype(np.int64))
