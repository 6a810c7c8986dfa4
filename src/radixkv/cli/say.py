"""What the commands have in common: sizes as people write them, and failures in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import typer

from radixkv.cli import FAILED, MISSING_EXTRA
from radixkv.errors import RadixKVError

UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = re.compile(r"(?P<number>\d+(\.\d+)?) *(?P<unit>[KMGT]?)(i?B)?", re.IGNORECASE)


def size(text: str | int) -> int:
    """Bytes of `2GiB`, `512M`, `1.5g` or a plain number. Units are powers of 1,024.

    Raises:
        typer.BadParameter: it is no size.
    """
    found = _SIZE.fullmatch(str(text).strip())
    number = float(found["number"]) * UNITS[found["unit"].upper()] if found else math.inf
    if not math.isfinite(number):
        raise typer.BadParameter(f"{text!r} is no size: write it as 2GiB, 512MiB or a number of bytes")
    return int(number)


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """A parser that takes these names alone, so that a wrong one is said before a model is loaded."""

    def parse(name: str) -> str:
        if name not in names:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(sorted(names))}")
        return name

    return parse


def fail(reason: str, *, status: int = FAILED) -> typer.Exit:
    """Print a line about what went wrong; to be raised."""
    typer.echo(f"radixkv: {reason}", err=True)
    return typer.Exit(status)


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around a command's imports: a package that is not installed is one line, and an exit status of its own."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, RadixKVError):  # it says which extra
            raise fail(str(error), status=MISSING_EXTRA) from None
        if error.name is None or error.name.partition(".")[0] == "radixkv":
            raise
        reason = f"this command needs the package {error.name!r}: pip install 'radixkv[{extra}]'"
        raise fail(reason, status=MISSING_EXTRA) from None
