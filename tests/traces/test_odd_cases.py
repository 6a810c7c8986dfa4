"""What real traces have in them, case by case, and how the format of a file is told."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv.errors import TraceError
from radixkv.traces import READERS, Request, read_trace
from radixkv.traces.base import BadLineError
from radixkv.traces.hashed import BlockIds


def requests(folder: Path, *lines: str, **options: object) -> list[Request]:
    """What a file of these lines gives."""
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return list(read_trace(path, **options))  # type: ignore[arg-type]


def test_a_last_block_that_is_not_full(tmp_path: Path) -> None:
    """It has its id like any other; the length says how much of it there is."""
    (request,) = requests(tmp_path, '{"input_length": 513, "hash_ids": [1, 2]}')

    assert (513, 2, 512) == (request.input_tokens, len(request.prompt), request.span)


def test_the_same_ids_with_different_lengths(tmp_path: Path) -> None:
    """Each keeps its own."""
    one, other = requests(
        tmp_path, '{"input_length": 513, "hash_ids": [1, 2]}', '{"input_length": 1024, "hash_ids": [1, 2]}'
    )

    assert one.prompt == other.prompt
    assert (513, 1024) == (one.input_tokens, other.input_tokens)


def test_an_id_at_another_depth(tmp_path: Path) -> None:
    """Is what it is; the prompts share what they share from the start."""
    one, other = requests(
        tmp_path, '{"input_length": 1024, "hash_ids": [1, 2]}', '{"input_length": 1024, "hash_ids": [2, 1]}'
    )

    assert ([1, 2], [2, 1]) == (one.prompt.tolist(), other.prompt.tolist())


@pytest.mark.parametrize(
    "line",
    [
        '{{"tokens": [1, {}]}}',
        '{{"tokens": [1, "{}"]}}',
        '{{"tokens": [1], "output_length": -{}}}',
        '{{"tokens": [1], "output": [1], "output_length": {}}}',
        '{{"tokens": [1], "timestamp": {}}}',
        '{{"tokens": [1], "namespace": {}}}',
        '{{"input_length": {}, "hash_ids": [1]}}',
        '{{"prompt": [[{}]]}}',
    ],
)
def test_a_number_of_thousands_of_digits(tmp_path: Path, line: str) -> None:
    """Is not told whole."""
    with pytest.raises(TraceError, match="999…") as caught:
        requests(tmp_path, line.format("9" * 4000))
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


def test_a_field_that_stands_twice(tmp_path: Path) -> None:
    """The last one counts, as Python reads JSON."""
    (request,) = requests(tmp_path, '{"tokens": "no", "timestamp": 1, "tokens": [7], "timestamp": 2}')

    assert ([7], 2.0) == (request.prompt.tolist(), request.timestamp)


def test_time_that_runs_backwards(tmp_path: Path) -> None:
    """The order is that of the lines; the times are told as they stand."""
    lines = [f'{{"timestamp": {time}, "input_length": 1, "hash_ids": [1]}}' for time in (2000, 1000, -500)]

    assert [2.0, 1.0, -0.5] == [request.timestamp for request in requests(tmp_path, *lines)]


def test_ids_of_any_kind(tmp_path: Path) -> None:
    """Small integers are themselves; each other id gets a word of its own, the same in every file of the trace."""
    line = '{"input_length": 3072, "hash_ids": [7, 18446744073709551615, "a0f3", -1, 2147483648, "7"]}'
    one, again = requests(tmp_path, line, line)

    assert [7, *range(2**31, 2**31 + 5)] == one.prompt.tolist()
    assert one == again


ids = st.integers(-3, 3) | st.integers(2**31 - 2, 2**31 + 2) | st.integers(2**32 - 2, 2**64) | st.sampled_from("ab01")


@given(st.lists(st.lists(ids, max_size=6), max_size=6))
def test_words_are_equal_where_ids_are(lists: list[list[int | str]]) -> None:
    """And nowhere else, in whatever company they come; a second pass gives the same."""
    block_ids, again = BlockIds(), BlockIds()
    words = [block_ids.words(part).tolist() for part in lists]
    pairs = set(zip(map(repr, chain(*lists)), chain(*words), strict=True))

    assert len(pairs) == len({name for name, _ in pairs}) == len({word for _, word in pairs})
    assert words == [again.words(part).tolist() for part in lists]


def test_only_ids_that_need_it_take_memory() -> None:
    """Small integers leave nothing behind."""
    block_ids = BlockIds()
    block_ids.words(list(range(1000)))
    block_ids.words([2**40, 5, 2**40])

    assert {2**40: 2**31} == block_ids._words
    with pytest.raises(BadLineError):
        block_ids.words([2**40, True])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["not JSON", '{"input_length": 1, "hash_ids": [1]}'], "mooncake"),
        (['{"a": 1}', '{"chat_id": 1, "input_length": 1, "hash_ids": [1]}'], "bailian"),
        (['{"hash_ids": [1', '{"tokens": [1]}'], "tokens"),
        (["[]", '{"request": {"body": {"messages": []}}}'], "openai"),
        (["{" * 3, '{"prompt": 1}'], "openai"),
        (["one"] * 20 + ['{"tokens": [1]}'], "text"),
    ],
)
def test_the_first_line_that_fits_tells_the_format(tmp_path: Path, lines: list[str], expected: str) -> None:
    """A bad line before it is a bad line of that format, not a reason to take the file for text."""
    path = tmp_path / "trace"
    path.write_text("\n".join(lines))
    trace = read_trace(path, skip_bad=True)
    list(trace)

    assert expected == trace.format


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": 1}\n', "fit no format"),
        (b"[\n{\n", "fit no format"),
        (b"[[1, 2], [3]]\n", "fit no format"),
        (b"one\n{\n", "fit no format"),
        (b"PAR1\x15\xff\xfe\n", "fit no format"),
        ('{"tokens": [1]}'.encode("utf-16"), "fit no format"),
        (b'{"tokens": [1], "hash_ids": [1]}\n', "may be mooncake or tokens"),
        (b'{"prompt": "a", "tokens": [1]}\n', "may be openai or tokens"),
    ],
)
@pytest.mark.parametrize("skip_bad", [True, False])
def test_a_file_that_tells_no_format(tmp_path: Path, data: bytes, words: str, skip_bad: bool) -> None:
    """An error that says what there is to choose from, also where bad lines are passed over."""
    path = tmp_path / "trace"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=words) as caught:
        list(read_trace(path, skip_bad=skip_bad))

    assert str(path) == caught.value.path
    assert all(name in str(caught.value) for name in READERS)


def test_files_of_different_formats(tmp_path: Path) -> None:
    """Are no one trace."""
    (tmp_path / "one").write_text('{"tokens": [1]}')
    (tmp_path / "other").write_text("a prompt")
    trace = read_trace(tmp_path / "one", tmp_path / "other")
    next(trace)
    with pytest.raises(TraceError, match="its format is text, that of the files before it tokens"):
        next(trace)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", None),
        ('"namespace": "a",', "a"),
        ('"namespace": null,', None),
        ('"model": "m",', "model='m'"),
        ('"cache_salt": "s", "model": "m", "lora_path": "l", "namespace": "n",',
         "model='m' lora_path='l' namespace='n' cache_salt='s'"),
    ],
)  # fmt: skip
def test_namespaces(tmp_path: Path, fields: str, expected: str | None) -> None:
    """What another model, adapter, salt or tenant computed is never shared; in every format of JSON."""
    lines = {
        "mooncake": '"input_length": 1, "hash_ids": [1]',
        "bailian": '"chat_id": 1, "input_length": 1, "hash_ids": [1]',
        "tokens": '"tokens": [1]',
        "openai": '"prompt": "a"',
    }
    for name, line in lines.items():
        assert [expected] == [r.namespace for r in requests(tmp_path, f"{{{fields} {line}}}", format=name)]
