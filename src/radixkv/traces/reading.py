"""Traces from files: which format it is, and the requests one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, TypeAlias

from radixkv.errors import TraceError, UnknownNameError
from radixkv.traces.base import BadLineError, TraceReader
from radixkv.traces.hashed import BailianReader, MooncakeReader
from radixkv.traces.openai import OpenAIReader
from radixkv.traces.request import Request
from radixkv.traces.source import Progress, numbered_lines, size_of
from radixkv.traces.text import TextReader
from radixkv.traces.tokenizer import EstimatingTokenizer, Tokenizer
from radixkv.traces.tokens import TokensReader

READERS: Final[Mapping[str, type[TraceReader]]] = {
    "bailian": BailianReader,
    "mooncake": MooncakeReader,
    "openai": OpenAIReader,
    "text": TextReader,
    "tokens": TokensReader,
}
"""Every format by the name that `format=` takes."""

Line: TypeAlias = tuple[int, bytes]
"""A line of a file, and its number from 1."""

_LOOKED_AT: Final = 16


class Trace(Iterator[Request]):
    """The requests of a trace, one after the other; what `read_trace` returns.

    A file is opened when its turn comes: what this tells is what was read so far.
    """

    format: str | None
    """The format's name; None before the first line."""
    bad_lines: int
    """Lines passed over; a file that breaks off counts as one."""
    first_bad: TraceError | None
    """What is wrong with the first of them."""

    def __init__(
        self, paths: Sequence[str], name: str | None, tokenizer: Tokenizer, skip_bad: bool, progress: Progress | None
    ) -> None:
        self.format, self.bad_lines, self.first_bad = name, 0, None
        self._tokenizer, self._skip_bad, self._progress = tokenizer, skip_bad, progress
        self._reader = None if name is None else READERS[name](tokenizer)
        self._detects = name is None
        self._requests = chain.from_iterable(map(self._of_file, paths))

    @property
    def estimated(self) -> bool:
        """Whether token counts are estimates, because text was read without a real tokenizer."""
        return self._reader is not None and self._reader.estimated

    def __next__(self) -> Request:
        return next(self._requests)

    def _of_file(self, path: str) -> Iterator[Request]:
        lines = numbered_lines(path, self._progress)
        try:
            reader, lines = self._reader_for(path, lines)
            for number, line in lines:
                try:
                    requests = reader.read(line)
                except BadLineError as error:
                    self._pass_over(TraceError(error.reason, path=path, line=number, field=error.field))
                else:
                    yield from requests
        except TraceError as error:  # of a bad line, or of a file that breaks off
            self._pass_over(error)

    def _reader_for(self, path: str, lines: Iterator[Line]) -> tuple[TraceReader, Iterator[Line]]:
        """The one reader of the trace, once it is known that the file is for it; and all of the lines."""
        if self._reader is not None and not self._detects:
            return self._reader, lines
        name, lines = detect_format(path, lines)
        if self._reader is None:
            self.format, self._reader = name, READERS[name](self._tokenizer)
        elif name != self.format:
            raise TraceError(f"its format is {name}, that of the files before it {self.format}", path=path)
        return self._reader, lines

    def _pass_over(self, error: TraceError) -> None:
        """Count what is wrong from some line on, or raise it; a file that cannot be read at all is always raised."""
        if not self._skip_bad or error.line is None:
            raise error from error.__cause__
        self.bad_lines += 1
        self.first_bad = self.first_bad or error


def read_trace(
    path: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    format: str | None = None,  # noqa: A002  # what the field calls it
    skip_bad: bool = False,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The requests of one or more files of one format, as an iterator over them.

    Holds one line at a time, and beside it only what block ids that are no small integers need, each once. gzip and
    zstandard are told by a file's first bytes. Equal block ids are equal from file to file: the files are parts of
    one trace.

    Args:
        path: a file; "-" is standard input.
        more: files to go on with.
        format: a name from `READERS`; without one, each file's first lines tell.
        skip_bad: pass over lines that are no requests, and count them in `Trace.bad_lines`.
        tokenizer: for the formats of text, `openai` and `text`; by default an estimate that needs no download.
        progress: hears of bytes as they are read; `trace_bytes` is how many there will be.

    Raises:
        UnknownNameError: no such format.
        TraceError: while iterating: a line that is no request (unless `skip_bad`), with file, line and field; a file
            that cannot be read; a format that cannot be told, or that differs from the one of the files before.
        MissingExtraError: while iterating: a `.zst` file, and no zstandard.
    """
    if format is not None and format not in READERS:
        raise UnknownNameError(kind="trace format", name=format, known=tuple(sorted(READERS)))
    paths = [os.fspath(part) for part in (path, *more)]
    return Trace(paths, format, EstimatingTokenizer() if tokenizer is None else tokenizer, skip_bad, progress)


def trace_bytes(path: str | os.PathLike[str], *more: str | os.PathLike[str]) -> int | None:
    """How many bytes `progress` will hear of in all; None where a pipe does not tell."""
    sizes = [size_of(os.fspath(part)) for part in (path, *more)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def detect_format(path: str, lines: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """The name of the format, and all of the lines again.

    The first line that fits a format of JSON decides; the file is plain text if its first lines all are.

    Raises:
        TraceError: the lines fit none, or more than one.
    """
    seen: list[Line] = []
    known = ", ".join(sorted(READERS))
    for line in islice(lines, _LOOKED_AT):
        seen.append(line)
        fitting = [name for name, reader in READERS.items() if reader.fits(line[1])]
        if len(fitting) > 1:
            raise TraceError(f"line {line[0]} may be {' or '.join(fitting)}; name one of {known}", path=path)
        if fitting and fitting != ["text"]:
            return fitting[0], chain(seen, lines)
    if seen and all(TextReader.fits(line) for _, line in seen):
        return "text", chain(seen, lines)
    what = "its first lines fit no format" if seen else "it is empty, so nothing tells the format"
    raise TraceError(f"{what}; name one of {known}", path=path)
