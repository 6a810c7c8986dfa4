"""What is written is read again."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.errors import MissingExtraError, TraceError, UnknownNameError
from radixkv.keys import TokenKey
from radixkv.traces import WRITERS, Request, read_trace, write_trace
from tests import strategies

milliseconds = st.none() | st.integers(-(10**9), 10**12).map(lambda time: time / 1000)
texts = st.none() | st.text()


@st.composite
def of_tokens(draw: st.DrawFn) -> Request:
    """Any request of tokens."""
    prompt = draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
    output = draw(st.lists(strategies.tokens, max_size=3))
    return Request(
        prompt=TokenKey(prompt),
        input_tokens=len(prompt),
        output_tokens=len(output) or draw(st.integers(0, 9)),
        output=TokenKey(output),
        timestamp=draw(milliseconds | st.floats(allow_nan=False, allow_infinity=False)),
        namespace=draw(texts),
        text=draw(texts),
    )


@st.composite
def of_blocks(draw: st.DrawFn) -> Request:
    """Any request of Mooncake's blocks."""
    length = draw(st.integers(1, 2000))
    blocks = -(-length // 512)
    return Request(
        prompt=TokenKey(draw(st.lists(st.integers(0, 2**31 - 1), min_size=blocks, max_size=blocks))),
        input_tokens=length,
        output_tokens=draw(st.integers(0, 9)),
        span=512,
        timestamp=draw(milliseconds),
        namespace=draw(texts),
    )


ANY = {"tokens": of_tokens(), "mooncake": of_blocks()}


def test_every_writer_is_tested() -> None:
    """A new one needs its requests."""
    assert sorted(ANY) == sorted(WRITERS)


@pytest.mark.parametrize("name", sorted(WRITERS))
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@given(data=st.data())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, name: str, suffix: str, data: st.DataObject) -> None:
    """Nothing is lost, and the same requests make the same bytes."""
    requests = data.draw(st.lists(ANY[name], max_size=4))
    path, again = (tmp_path_factory.getbasetemp() / f"{other}{suffix}" for other in ("one", "two"))

    assert len(requests) == write_trace(iter(requests), path, format=name) == write_trace(requests, again, format=name)
    assert requests == list(read_trace(path, format=name))
    assert path.read_bytes() == again.read_bytes()
    if requests:
        assert requests == list(read_trace(path))


def shared(one: Request, other: Request, size: int) -> int:
    """Tokens of the common prefix in whole blocks, counted one by one."""
    words = size // one.span
    count = 0
    limit = min(one.input_tokens, other.input_tokens)
    tokens = one.prompt.tolist(), other.prompt.tolist()
    while (count + 1) * size <= limit and (
        tokens[0][count * words : (count + 1) * words] == tokens[1][count * words : (count + 1) * words]
    ):
        count += 1
    return count * size


@given(
    st.lists(st.tuples(st.lists(strategies.tokens, min_size=1, max_size=4), st.integers(1, 512)), max_size=5),
    st.sampled_from([1, 16, 256]),
)
def test_tokens_as_block_ids(prompts: list[tuple[list[int], int]], span: int) -> None:
    """Two prompts share as many whole blocks as they share tokens; a part of a block is no whole one."""
    requests = []
    for blocks, tail in prompts:
        words = [word for word in blocks for _ in range(512 // span)]
        length = (len(blocks) - 1) * 512 + tail
        prompt = TokenKey(words[: -(-length // span)])
        requests.append(Request(prompt=prompt, input_tokens=length, span=span, output_tokens=1))
    writer = WRITERS["mooncake"]()
    hashed = [
        Request(TokenKey(record["hash_ids"]), record["input_length"], record["output_length"], span=512)
        for record in map(writer.record, requests)
    ]

    for one, coarse in zip(requests, hashed, strict=True):
        assert one.input_tokens == coarse.input_tokens
        assert -(-one.input_tokens // 512) == len(coarse.prompt)
        for other, other_coarse in zip(requests, hashed, strict=True):
            assert shared(one, other, 512) == shared(coarse, other_coarse, 512)
            if one.prompt == other.prompt:
                assert coarse.prompt == other_coarse.prompt


def test_ids_count_from_0(tmp_path: Path) -> None:
    """And tell nothing of the tokens; a part of a block is not the whole."""
    path = tmp_path / "trace"
    prompts = [[9] * 512, [9] * 600, [9] * 1024, [9] * 600]
    write_trace((Request(TokenKey(prompt), len(prompt)) for prompt in prompts), path, format="mooncake")

    assert [[0], [0, 1], [0, 2], [0, 1]] == [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]


def test_a_key_is_left_as_it_was() -> None:
    """The hash of a part of a block is not kept with the key."""
    key = TokenKey([1] * 600)
    writer = WRITERS["mooncake"]()
    writer.record(Request(key, 600))
    (first,) = writer.record(Request(key.prefix(512), 512))["hash_ids"]
    longer = writer.record(Request(key.extended([1] * 424), 1024))["hash_ids"]

    assert (0, [0, 2]) == (first, longer)


@pytest.mark.parametrize("path", ["-", "-.gz"])
def test_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The path "-" alone."""
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.chdir(tmp_path)
    write_trace([Request(TokenKey([1]), 1)], path)
    written = stdout.buffer.getvalue()

    assert (b'{"tokens":[1]}\n' if path == "-" else b"") == written


@pytest.mark.parametrize(
    ("request_", "name", "field"),
    [
        (Request(TokenKey([1]), 1, span=512), "tokens", "tokens"),
        (Request(TokenKey([1]), 1, 3, output=TokenKey([1])), "tokens", "output_length"),
        (Request(TokenKey([1]), 1, span=500), "mooncake", "hash_ids"),
        (Request(TokenKey([1]), 1, span=1024), "mooncake", "hash_ids"),
    ],
)
def test_what_a_format_has_no_words_for(tmp_path: Path, request_: Request, name: str, field: str) -> None:
    """An error with the line that it would have been."""
    good: dict[str, Any] = {"tokens": Request(TokenKey([1]), 1), "mooncake": Request(TokenKey([1]), 1, span=512)}
    with pytest.raises(TraceError) as caught:
        write_trace([good[name], request_], tmp_path / "trace", format=name)

    assert (str(tmp_path / "trace"), 2, field) == (caught.value.path, caught.value.line, caught.value.field)


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of a folder, a format or a package."""
    with pytest.raises(TraceError, match="No such file"):
        write_trace([], tmp_path / "no" / "trace")
    with pytest.raises(UnknownNameError, match="mooncake, tokens"):
        write_trace([], tmp_path / "trace", format="openai")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match=r"radixkv\[lab\]"):
        write_trace([], tmp_path / "trace.zst")
