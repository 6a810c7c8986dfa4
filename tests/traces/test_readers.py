"""What holds for every reader in the table."""

from __future__ import annotations

import gzip
import io
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from radixkv.errors import MissingExtraError, TraceError, UnknownNameError
from radixkv.traces import READERS, Request, read_trace, trace_bytes
from tests.traces.samples import SAMPLES

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstandard": zstandard.ZstdCompressor().compress,
}
NAMES = sorted(READERS)
BAD = [(name, what) for name, sample in SAMPLES.items() for what in sample.bad]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """Every format."""
    return str(request.param)


def content(name: str, end: str = "\n") -> bytes:
    """A file of a format's good lines."""
    return "".join(f"{line}{end}" for line in SAMPLES[name].lines).encode()


def written(folder: Path, data: bytes) -> str:
    """A file whose name tells nothing."""
    path = folder / "trace"
    path.write_bytes(data)
    return str(path)


def test_every_format_has_samples() -> None:
    """A new reader comes with its lines."""
    assert sorted(SAMPLES) == NAMES


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\n \t\r\n"], ids=repr)
@pytest.mark.parametrize("named", [True, False])
def test_requests(tmp_path: Path, name: str, named: bool, end: str) -> None:
    """Each line is what stands beside it, whether the format is told or seen; blank lines and CR count for nothing."""
    trace = read_trace(written(tmp_path, content(name, end)), format=name if named else None)

    assert SAMPLES[name].requests == list(trace)
    assert (name, 0, None) == (trace.format, trace.bad_lines, trace.first_bad)


def test_a_byte_order_mark_and_no_last_end_of_line(tmp_path: Path, name: str) -> None:
    """As editors of some systems leave them."""
    data = b"\xef\xbb\xbf" + content(name).rstrip(b"\n")

    assert SAMPLES[name].requests == list(read_trace(written(tmp_path, data)))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_files(tmp_path: Path, name: str, compression: str) -> None:
    """Told by their first bytes; several members or frames one after the other are one file."""
    compress = COMPRESSIONS[compression]
    data = compress(content(name)) + compress(content(name))

    assert 2 * SAMPLES[name].requests == list(read_trace(written(tmp_path, data)))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, name: str, compression: str) -> None:
    """The path "-", compressed or not."""
    data = COMPRESSIONS[compression](content(name))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    assert SAMPLES[name].requests == list(read_trace("-"))
    assert trace_bytes("-") is None


def test_several_files(tmp_path: Path, name: str) -> None:
    """One after the other, as paths or strings."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(content(name))
    other.write_bytes(gzip.compress(content(name)))

    assert 2 * SAMPLES[name].requests == list(read_trace(one, str(other)))
    assert trace_bytes(one, str(other)) == one.stat().st_size + other.stat().st_size


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_trace_is_streamed(tmp_path: Path, name: str, compression: str) -> None:
    """The first request is there long before the end of the file is read, and all bytes are heard of at last."""
    part = COMPRESSIONS[compression](content(name))
    times = 2**19 // len(part)
    path, heard = written(tmp_path, part * times), [0]
    trace = read_trace(path, progress=heard.append)
    next(trace)
    at_first = sum(heard)
    count = 1 + sum(1 for _ in trace)

    assert 0 < at_first < 0.6 * sum(heard)
    assert times * len(SAMPLES[name].requests) == count
    assert times * len(part) == sum(heard) == trace_bytes(path)


@pytest.mark.parametrize(("name", "what"), BAD)
def test_a_bad_line(tmp_path: Path, name: str, what: str) -> None:
    """It is an error with file, line and field; what stands before it was read."""
    line, field = SAMPLES[name].bad[what]
    path = written(tmp_path, content(name) + b"\n" + line.encode() + b"\n" + content(name))
    trace = read_trace(path)
    requests: list[Request] = []
    with pytest.raises(TraceError) as caught:
        requests.extend(trace)
    error = caught.value

    assert SAMPLES[name].requests == requests
    assert (path, len(SAMPLES[name].lines) + 2, field) == (error.path, error.line, error.field)
    assert str(error).startswith(f"{path}:{error.line}: " + (f"{field}: " if field else ""))
    assert len(str(error)) < len(path) + 200


@pytest.mark.parametrize(("name", "what"), BAD)
def test_a_bad_line_passed_over(tmp_path: Path, name: str, what: str) -> None:
    """It is counted, the first one kept, and reading goes on."""
    line, field = SAMPLES[name].bad[what]
    path = written(tmp_path, content(name) + f"{line}\n{line}\n".encode() + content(name))
    trace = read_trace(path, skip_bad=True)

    assert 2 * SAMPLES[name].requests == list(trace)
    assert 2 == trace.bad_lines
    assert trace.first_bad is not None
    assert (len(SAMPLES[name].lines) + 1, field) == (trace.first_bad.line, trace.first_bad.field)


def test_bytes_that_are_no_utf_8(tmp_path: Path, name: str) -> None:
    """A bad line like any other."""
    path = written(tmp_path, content(name) + b'{"a": "\xff"}\n' + content(name))
    trace = read_trace(path, format=name, skip_bad=True)

    assert 2 * SAMPLES[name].requests == list(trace)
    assert 1 == trace.bad_lines
    assert "not UTF-8: byte 7 of the line is 0xff" in str(trace.first_bad)


@pytest.mark.parametrize("compression", ["gzip", "zstandard"])
@pytest.mark.parametrize("fault", ["cut short", "flipped"])
def test_compressed_data_that_breaks_off(tmp_path: Path, name: str, compression: str, fault: str) -> None:
    """The requests before it are read; then it is an error of the next line, or counted as one."""
    compress = COMPRESSIONS[compression]
    data = bytearray(compress(content(name) * 50) + compress(content(name) * 50))
    if fault == "cut short":
        del data[-5:]
    else:
        data[len(data) // 2 : len(data) // 2 + 20] = b"\xff" * 20
    path = written(tmp_path, bytes(data))
    trace = read_trace(path, skip_bad=True)
    count = sum(1 for _ in trace)
    with pytest.raises(TraceError, match="compressed data broken or cut short") as caught:
        list(read_trace(path))

    assert (1, str(caught.value)) == (trace.bad_lines, str(trace.first_bad))
    assert 1 < (caught.value.line or 0) <= 100 * len(SAMPLES[name].lines) + 1
    assert 0 < count <= 100 * len(SAMPLES[name].requests)


def test_an_empty_file(tmp_path: Path, name: str) -> None:
    """Has no requests, if it is known what to look for; else nothing tells."""
    path = written(tmp_path, b"\n")

    assert [] == list(read_trace(path, format=name))
    with pytest.raises(TraceError, match="empty"):
        list(read_trace(path, skip_bad=True))


def test_a_long_line(tmp_path: Path, name: str) -> None:
    """Longer than any buffer."""
    line = SAMPLES[name].lines[0].encode()
    path = written(tmp_path, line + b" " * 5_000_000 + b"\n" + content(name))

    assert len(SAMPLES[name].requests) + 1 == sum(1 for _ in read_trace(path))


def test_requests_pickle(name: str) -> None:
    """The lab hands them to other processes."""
    assert SAMPLES[name].requests == pickle.loads(pickle.dumps(SAMPLES[name].requests))


def test_an_unknown_format() -> None:
    """Said at once, with those there are."""
    with pytest.raises(UnknownNameError, match="bailian, mooncake, openai, text, tokens"):
        read_trace("nowhere", format="parquet")


@pytest.mark.parametrize("skip_bad", [True, False])
@pytest.mark.parametrize("path", ["missing", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, skip_bad: bool) -> None:
    """Always an error, without a line."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path, skip_bad=skip_bad))

    assert (path, None) == (caught.value.path, caught.value.line)
    assert trace_bytes(path) is None


def test_zstandard_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; a plain file does not need it."""
    monkeypatch.setitem(sys.modules, "zstandard", None)

    assert SAMPLES["tokens"].requests == list(read_trace(written(tmp_path, content("tokens"))))
    with pytest.raises(MissingExtraError, match=r"radixkv\[lab\]"):
        list(read_trace(written(tmp_path, COMPRESSIONS["zstandard"](content("tokens"))), skip_bad=True))
