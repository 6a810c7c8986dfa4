"""`radixkv generate`: a workload, made from a seed and written as a trace."""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

import typer

from radixkv.cli.say import fail, needs, one_of
from radixkv.errors import RadixKVError
from radixkv.traces import WRITERS, write_trace
from radixkv.traces.generate import WORKLOADS, make_workload

_WORKLOADS = ", ".join(sorted(WORKLOADS))
_FORMATS = ", ".join(sorted(WRITERS))
_PARAMETER: Final = re.compile(r"(?P<name>[a-z_]+)=(?P<number>-?\d+(\.\d+)?)", re.ASCII)


class Parameter(NamedTuple):
    """A parameter of a workload, as `--set` gives it."""

    name: str
    number: float


def parameter(text: str) -> Parameter:
    """Name and number of `prefixes=5`.

    Raises:
        typer.BadParameter: it is none.
    """
    found = _PARAMETER.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no parameter: write it as prefixes=5 or one_shots=0.3")
    return Parameter(found["name"], int(found["number"]) if found["number"].isdigit() else float(found["number"]))


def generate(  # noqa: PLR0913, PLR0917  # one parameter an option
    workload: Annotated[str, typer.Argument(parser=one_of(WORKLOADS), metavar="WORKLOAD", help=f"{_WORKLOADS}.")],
    requests: Annotated[int, typer.Option(min=0, help="Requests to make.")] = 1000,
    seed: Annotated[int, typer.Option(help="The same one makes the same trace.")] = 0,
    parameters: Annotated[
        list[Parameter] | None,
        typer.Option("--set", parser=parameter, metavar="NAME=NUMBER", help="A parameter of the workload; repeatable."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="May end in .gz or .zst; - is standard output.")
    ] = "-",
    format: Annotated[  # noqa: A002  # the option's name
        str, typer.Option(parser=one_of(WRITERS), metavar="NAME", help=f"{_FORMATS}.")
    ] = "tokens",
) -> None:
    """Write a workload made from a seed, as a trace. docs/traces.md has the workloads and their parameters."""
    try:
        made = make_workload(workload, **dict(parameters or []))
        with needs("lab"):
            write_trace(made.requests(requests, seed), output, format=format)
    except RadixKVError as error:
        raise fail(str(error)) from None
