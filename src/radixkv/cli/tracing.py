"""What the commands over traces do alike: sizes, progress, tables and JSON. Needs `radixkv[lab]`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from radixkv.cli.say import fail, size
from radixkv.errors import SizeError, UnknownNameError
from radixkv.lab.models import ModelConfigError, ModelCost, find_model
from radixkv.lab.sizes import USUAL_SHARES, Sizes
from radixkv.traces import Trace, trace_bytes

T = TypeVar("T")
STDIN: Final = "-"


def several(text: str | None, parse: Callable[[str], T], option: str) -> tuple[T, ...]:
    """The values of an option that takes several, with commas between them, each once; none without the option.

    Raises:
        typer.BadParameter: an empty list, or a value that is none.
    """
    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{option}: {error.message}") from None


def count(text: str) -> int:
    """A whole number above 0; `10_000` and `10000` are the same.

    Raises:
        ValueError: it is none.
    """
    try:
        number = int(text) if text.replace("_", "").isdecimal() else 0
    except ValueError:  # two underscores in a row
        number = 0
    if not number:
        raise ValueError(f"{text!r} is no whole number above 0")
    return number


def share(text: str) -> float:
    """A share above 0 and up to 1, of `1%`, `2.5 %` or `0.02`.

    Raises:
        ValueError: it is none.
    """
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ValueError(f"{text!r} is no share: write it as 1% or 0.01")
    return value


def sizes(
    blocks: str | None, shares: str | None, memory: str | None, model: ModelCost | None, context: int | None
) -> Sizes:
    """The capacities that the options name; the usual shares if they name none.

    Raises:
        typer.BadParameter: a size that is none, or memory without a model.
    """
    if memory is not None and not model:
        raise typer.BadParameter("--memory says nothing without --model: how much K and V a token takes is the model's")
    if blocks is None and shares is None and memory is None:
        return Sizes(shares=USUAL_SHARES)
    try:
        return Sizes(
            blocks=several(blocks, count, "--blocks"),
            shares=several(shares, share, "--share"),
            memory=several(memory, size, "--memory"),
            model=model,
            context=context,
        )
    except SizeError as error:  # no memory at all
        raise typer.BadParameter(str(error)) from None


def capacity(text: str, model: ModelCost | None, block_size: int, context: int | None) -> int:
    """Blocks of `1615`, or of `40GiB` of K and V of a model.

    Raises:
        typer.BadParameter: no size, or memory without a model.
        MemoryTooSmallError: memory for less than one block.
    """
    if text.replace("_", "").isdecimal():
        return several(text, count, "--present")[0]
    if not model:
        raise typer.BadParameter(f"{text!r} of memory says nothing without --model")
    return model.blocks_in(size(text), block_size, context)


def find(model: str | None) -> ModelCost | None:
    """The model of that name, if there is a name.

    Raises:
        typer.BadParameter: there is no such model.
    """
    try:
        return find_model(model) if model else None
    except (UnknownNameError, ModelConfigError) as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def files(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The paths, for who reads them more than once: standard input is copied to a file for as long as it takes."""
    if STDIN not in paths:
        yield tuple(paths)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "standard input")
        with copy.open("wb") as target:
            shutil.copyfileobj(sys.stdin.buffer, target)
        yield tuple(str(copy) if path == STDIN else path for path in paths)


@contextmanager
def reading(paths: Sequence[str], what: str) -> Iterator[Callable[[int], object]]:
    """A progress bar over the bytes of a trace, on standard error where that is a terminal; told them as they come."""
    with _bar() as bar:
        task = bar.add_task(what, total=trace_bytes(*paths))
        yield lambda read: bar.advance(task, read)


@contextmanager
def replaying(settings: int, requests: int) -> Iterator[Callable[[int], object]]:
    """A progress bar over the requests that a grid serves to all its settings, which come along side by side."""
    with _bar() as bar:
        task = bar.add_task(f"replaying {settings} settings", total=requests)
        yield lambda served: bar.advance(task, served)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A bar without an end, for work that does not say how far it is."""
    with _bar() as bar:
        bar.add_task(what, total=None)
        yield


def tell_what_was_passed_over(trace: Trace) -> None:
    """Say on standard error what of a trace that was read is not as it should be."""
    if trace.bad_lines:
        typer.echo(f"radixkv: passed over {trace.bad_lines:,} bad lines; the first: {trace.first_bad}", err=True)
    if trace.estimated:
        typer.echo("radixkv: token counts are estimates: the trace is text, and no tokenizer was chosen", err=True)


def write_json(value: object, path: str) -> None:
    """Write JSON to a file, or to standard output for `-`."""
    text = json.dumps(value, indent=1) + "\n"
    if path == STDIN:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        with writing(Path(path)):
            Path(path).write_text(text, encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A file that cannot be written is one line."""
    try:
        yield
    except OSError as error:
        raise fail(f"{path}: {error.strerror or error}") from None


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 0) -> None:
    """A table on standard output, its first `left` columns flush left and the others right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # Where nobody looks there is no width to keep to.
    Console(width=None if sys.stdout.isatty() else 250, highlight=False).print(table)


def _bar() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
