"""How every picture of the lab looks, and how it becomes SVG and PNG: the same bytes on every run.

Colours are those of Okabe and Ito, "Color Universal Design" (2008), told apart by colour-blind people too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK: Final = "#24292f"
MUTED: Final = "#6e7781"
LINE: Final = "#d0d7de"
PAPER: Final = "#fffffe"
"""White but for one bit, so that it is told from the white that a picture uses otherwise."""

BLUE: Final = "#0072b2"
ORANGE: Final = "#e69f00"
GREEN: Final = "#009e73"
RED: Final = "#d55e00"
PURPLE: Final = "#cc79a7"
SKY: Final = "#56b4e9"
YELLOW: Final = "#f0e442"
SERIES: Final = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
"""Colours of lines, in the order to take them."""

PNG_DPI: Final = 160

_STYLE: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",  # text stays text: it can be found and read aloud, and takes a tenth of the bytes
    "svg.hashsalt": "radixkv",
    "text.color": INK,
    "text.parse_math": False,  # a prompt may have dollars in it
    "xtick.color": MUTED,
    "xtick.labelsize": 9,
    "ytick.color": MUTED,
    "ytick.labelsize": 9,
}
_FONTS: Final = "'DejaVu Sans', Verdana, 'Segoe UI', Helvetica, Arial, sans-serif"
_THEMED: Final = {INK: "var(--ink)", MUTED: "var(--muted)", LINE: "var(--line)", PAPER: "var(--paper)"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, drawn."""

    alt: str
    """What it shows, for who cannot see it."""
    svg: str
    """The whole of an SVG file."""
    png: bytes

    def save(self, path: Path) -> None:
        """Write it as `.svg` or `.png`, as the name says.

        Raises:
            ValueError: another suffix.
            OSError: as the file system has it.
        """
        if path.suffix == ".svg":
            path.write_text(self.svg, encoding="utf-8", newline="\n")
        elif path.suffix == ".png":
            path.write_bytes(self.png)
        else:
            raise ValueError(f"a picture is written as .svg or .png, not {path.suffix!r}")

    def inline(self) -> str:
        """The `<svg>` element for an HTML page that defines `--ink`, `--muted`, `--line` and `--paper`."""
        element = self.svg[self.svg.index("<svg") :]
        for colour, variable in _THEMED.items():
            element = element.replace(colour, variable)
        return element


def picture(paint: Callable[[Figure], None], *, alt: str, width: float = 8.0, height: float = 4.0) -> Picture:
    """Draw in this style what `paint` puts on an empty figure of so many inches; matplotlib is left as it was.

    >>> drawn = picture(lambda figure: None, alt="nothing", width=1, height=1)
    >>> drawn.png.startswith(bytes([137])), "<svg" in drawn.svg
    (True, True)
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        svg, png = BytesIO(), BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Title": alt})
        figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
    return Picture(alt=alt, svg=_tidy(svg.getvalue().decode()), png=png.getvalue())


def percent_axis(axis: Any) -> None:
    """Show the shares of an axis as whole percents."""
    axis.set_major_formatter(lambda share, _: f"{share:.0%}")


def bare(axes: Axes) -> None:
    """Take ticks, grid and frame away, for a drawing that is no graph."""
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _tidy(svg: str) -> str:
    """Name fallbacks for the font; drop the ids that nothing refers to, since two pictures may share a page."""
    svg = svg.replace("'DejaVu Sans'", _FONTS)
    used = set(re.findall(r"(?:url\(#|href=\"#)([\w-]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
