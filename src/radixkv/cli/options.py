"""Options that several commands over traces take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from radixkv.cli.say import one_of
from radixkv.traces import READERS

_TRACE: Final = "Trace"
_SIZES: Final = "Sizes"


def picture_path(text: str | Path) -> Path:
    """A path that says which picture to make.

    Raises:
        typer.BadParameter: another suffix than .png and .svg.
    """
    path = Path(text)
    if path.suffix not in {".png", ".svg"}:
        raise typer.BadParameter(f"a picture is a .png or a .svg, not {path.name!r}")
    return path


Paths: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="TRACE...", help="Files of one trace; - is standard input.")
]
Format: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--format",
        parser=one_of(READERS),
        metavar="NAME",
        help=f"Of {', '.join(sorted(READERS))}; by default the files tell.",
        rich_help_panel=_TRACE,
    ),
]
SkipBad: TypeAlias = Annotated[
    bool,
    typer.Option("--skip-bad", help="Pass over lines that are no requests, and count them.", rich_help_panel=_TRACE),
]
TokenizerName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="NAME",
        help="For text: a tokenizer.json, its folder or a Hugging Face name.",
        show_default="an estimate",
        rich_help_panel=_TRACE,
    ),
]
Blocks: TypeAlias = Annotated[
    str | None, typer.Option(metavar="N,N…", help="Capacities in blocks.", rich_help_panel=_SIZES)
]
Share: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="1%,2%…",
        help="Capacities as shares of the trace's distinct blocks.",
        show_default="1%,2%,5%,10%,20%",
        rich_help_panel=_SIZES,
    ),
]
Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="40GiB…", help="Capacities in memory for K and V of --model.", rich_help_panel=_SIZES),
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(help="A well-known model, or a config.json of Hugging Face or its folder.", rich_help_panel=_SIZES),
]
Context: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Prompt length at which layers with a sliding window keep that alone.",
        show_default="they keep everything",
        rich_help_panel=_SIZES,
    ),
]
BlockSize: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens a block.", show_default="what an id of the trace stands for, or 16"),
]
Workers: TypeAlias = Annotated[int | None, typer.Option(min=1, help="Processes.", show_default="one a core")]
Json: TypeAlias = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write JSON; - to standard output.")
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(parser=picture_path, metavar="PICTURE", help="Draw it: .png or .svg.")
]
