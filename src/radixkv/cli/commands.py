"""The one list of commands. Each is a file of its own, and imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from radixkv import __version__
from radixkv.cli.bench import bench
from radixkv.cli.curve import curve
from radixkv.cli.demo import demo
from radixkv.cli.doctor import doctor
from radixkv.cli.generate import generate
from radixkv.cli.replay import replay
from radixkv.cli.serve import serve

app = typer.Typer(
    name="radixkv",
    help="Prefix caching for LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(demo)
app.command()(replay)
app.command()(curve)
app.command()(doctor)
app.command()(generate)
app.command()(bench)


def _version(wanted: bool) -> None:  # typer calls it so
    if wanted:
        typer.echo(f"radixkv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Prefix caching for LLM serving."""
