"""Traces to files: the tokens themselves, or Mooncake's block ids, which tell nothing of them."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import Any, BinaryIO, Final, Protocol, cast

from radixkv.errors import TraceError, UnknownNameError
from radixkv.keys import DIGEST_BYTES, TOKEN_BYTES, block_hashes
from radixkv.traces.base import BadLineError
from radixkv.traces.hashed import MooncakeReader
from radixkv.traces.request import Request
from radixkv.traces.source import STDIO, import_zstandard


class TraceWriter(Protocol):
    """Makes lines of requests, in one format."""

    def record(self, request: Request) -> Mapping[str, Any]:
        """The JSON object of a request.

        Raises:
            BadLineError: the format has no words for the request.
        """
        ...


class TokensWriter:
    """Writes all that a request of tokens has."""

    def record(self, request: Request) -> dict[str, Any]:
        """What `TokensReader` reads.

        Raises:
            BadLineError: the request has block ids, not tokens; or fewer or more answer tokens than it says.
        """
        if request.span != 1:
            raise BadLineError(f"block ids of {request.span} tokens instead of tokens", field="tokens")
        if request.output and len(request.output) != request.output_tokens:
            reason = f"{request.output_tokens}, but output has {len(request.output)} tokens"
            raise BadLineError(reason, field="output_length")
        fields = {
            "tokens": request.prompt.tolist(),
            "output": request.output.tolist() or None,
            "output_length": None if request.output else request.output_tokens or None,
            "timestamp": request.timestamp,
            "namespace": request.namespace,
            "text": request.text,
        }
        return {field: value for field, value in fields.items() if value is not None}


class MooncakeWriter:
    """Writes lengths and block ids of 512 tokens; of requests of tokens too, which so become anonymous.

    Ids of tokens count from 0 in the order of first appearance; memory grows with them, about 150 bytes each.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}

    def record(self, request: Request) -> dict[str, Any]:
        """What `MooncakeReader` reads. The tokens of answers are lost, and text.

        Raises:
            BadLineError: 512 tokens are no whole number of the words that the request has.
        """
        fields = {
            "timestamp": _milliseconds(request.timestamp),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": self._hash_ids(request),
            "namespace": request.namespace,
        }
        return {field: value for field, value in fields.items() if value is not None}

    def _hash_ids(self, request: Request) -> list[int]:
        words, rest = divmod(MooncakeReader.span, request.span)
        if rest:
            raise BadLineError(f"blocks of {request.span} tokens do not fill one of 512", field="hash_ids")
        if words == 1:
            return request.prompt.tolist()
        full, rest = divmod(len(request.prompt), words)
        hashes = block_hashes(request.prompt, words, b"", request.namespace, full)
        if rest:
            parent = hashes[-1] if hashes else repr(request.namespace).encode()
            tail = request.prompt.data[-rest * TOKEN_BYTES :]
            hashes.append(blake2b(parent + tail, digest_size=DIGEST_BYTES, person=b"partial block").digest())
        return [self._ids.setdefault(digest, len(self._ids)) for digest in hashes]


WRITERS: Final[Mapping[str, Callable[[], TraceWriter]]] = {"mooncake": MooncakeWriter, "tokens": TokensWriter}
"""Every format that can be written, by the name that `format=` takes."""


def write_trace(
    requests: Iterable[Request],
    path: str | os.PathLike[str],
    *,
    format: str = "tokens",  # noqa: A002  # what the field calls it
) -> int:
    """Write requests as they come, a line each, and return how many they were.

    The same requests make the same bytes. An error leaves the file as far as it was written.

    Args:
        requests: taken one at a time.
        path: a file, compressed if its name ends in `.gz` or `.zst`; "-" is standard output.
        format: `tokens`, for requests of tokens; or `mooncake`, for block ids and for tokens, which become such.

    Raises:
        UnknownNameError: no such format can be written.
        TraceError: a request that the format has no words for, or a file that cannot be written.
        MissingExtraError: a `.zst` file, and no zstandard.
    """
    if format not in WRITERS:
        raise UnknownNameError(kind="format to write", name=format, known=tuple(sorted(WRITERS)))
    target, writer, number = os.fspath(path), WRITERS[format](), 0
    try:
        with _sink(target) as sink:
            for request in requests:
                number += 1
                record = writer.record(request)
                sink.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    except BadLineError as error:
        raise TraceError(error.reason, path=target, line=number, field=error.field) from None
    except BrokenPipeError:  # whoever read standard output has enough
        raise
    except OSError as error:
        raise TraceError(error.strerror or str(error), path=target) from error
    return number


@contextmanager
def _sink(path: str) -> Iterator[BinaryIO]:
    if path == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with open(path, "wb") as file, _compressor(path, file) as sink:
        yield sink


def _compressor(path: str, file: BinaryIO) -> AbstractContextManager[BinaryIO]:
    if path.endswith(".gz"):
        # Without name and time, the same content makes the same file.
        return cast("BinaryIO", gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
    if path.endswith(".zst"):
        return cast("BinaryIO", import_zstandard().ZstdCompressor().stream_writer(file, closefd=False))
    return nullcontext(file)


def _milliseconds(timestamp: float | None) -> float | None:
    """Thousandths of a second, without the noise of the multiplication, and as an integer where they are one."""
    if timestamp is None:
        return None
    milliseconds = round(timestamp * 1000, 3)
    return int(milliseconds) if milliseconds.is_integer() else milliseconds
