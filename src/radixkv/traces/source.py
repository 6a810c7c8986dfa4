"""The lines of a file, decompressed where it is compressed, with word of how far reading has come."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

from radixkv.errors import MissingExtraError, TraceError

STDIO: Final = "-"
"""The path that means standard input, or output."""

Progress: TypeAlias = Callable[[int], object]
"""Hears how many bytes of a file were read since the last time, as they are on disk."""

_CHUNK: Final = 2**18
_ZSTD_CHUNK: Final = 2**14  # what comes of it is in memory at once
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_UTF8_MARK: Final = b"\xef\xbb\xbf"


def numbered_lines(path: str, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that hold anything, each with its number from 1, ends of lines included.

    gzip and zstandard are told by a file's first bytes, not by its name. One line at a time is in memory.

    Raises:
        TraceError: the file cannot be opened or read, or its compressed data is broken or ends early.
        MissingExtraError: the file is compressed with zstandard, which is not installed.
    """
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(_decompressed(file, progress), start=1):
                text = line.removeprefix(_UTF8_MARK) if number == 1 else line
                if text and not text.isspace():
                    yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"compressed data broken or cut short: {error}", path=path, line=number + 1) from error
    except OSError as error:
        raise TraceError(error.strerror or str(error), path=path, line=number + 1 if number else None) from error


def size_of(path: str) -> int | None:
    """Bytes of a file as it is on disk; None where nobody knows, as of a pipe or a file that cannot be read."""
    try:
        status = os.fstat(sys.stdin.fileno()) if path == STDIO else os.stat(path)
    except (OSError, ValueError):  # ValueError: a path with a NUL, or a standard input that is no file
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def import_zstandard() -> ModuleType:
    """The package, imported where a file asks for it.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import zstandard  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError(part="a file compressed with zstandard", package="zstandard", extra="lab") from None
    return zstandard


def _opened(path: str) -> AbstractContextManager[io.BufferedReader]:
    return nullcontext(cast("io.BufferedReader", sys.stdin.buffer)) if path == STDIO else open(path, "rb")


def _decompressed(file: io.BufferedReader, progress: Progress | None) -> Iterable[bytes]:
    head = file.read(len(_ZSTD))
    raw = _Counted(head, file, progress)
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=io.BufferedReader(raw, _CHUNK))
    if head == _ZSTD:
        return io.BufferedReader(_Zstd(raw), _CHUNK)
    return io.BufferedReader(raw, _CHUNK)


class _Counted(io.RawIOBase):
    """A file whose first bytes were read already, and that tells how much is read of it."""

    def __init__(self, head: bytes, file: io.BufferedReader, progress: Progress | None) -> None:
        self._head, self._file, self._progress = head, file, progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._head or self._file.read1(len(buffer))
        self._head = b""
        buffer[: len(data)] = data
        if self._progress is not None:
            self._progress(len(data))
        return len(data)


class _Zstd(io.RawIOBase):
    """The content of a zstandard file, frame after frame; one that ends inside a frame is an `EOFError`."""

    def __init__(self, source: io.RawIOBase) -> None:
        self._source = source
        self._zstandard = import_zstandard()
        self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        self._inside = False
        self._content = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content and self._decompress():
            pass
        data, self._content = self._content[: len(buffer)], self._content[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _decompress(self) -> bool:
        """Decompress a little more; False where there is no more."""
        compressed = self._frame.unused_data if self._frame.eof else b""
        compressed = compressed or self._source.read(_ZSTD_CHUNK)
        if not compressed:
            if self._inside:
                raise EOFError("the file ends inside a zstandard frame")
            return False
        if self._frame.eof:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            self._content = self._frame.decompress(compressed)
        except self._zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        self._inside = not self._frame.eof
        return True
