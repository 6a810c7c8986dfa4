"""Token input of every kind, what is refused and how, and the chained block hashes."""

import ctypes
import itertools
import pickle
import struct
from array import array
from collections import UserList, deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixkv import BlockIdError, HashCache, RadixCache, SizeError, TokenError, TokenKey
from radixkv.keys import block_hashes, block_ids, common_prefix, differing_ids

TOKENS = [5, 0, 127, 3]
LARGEST = 2**32 - 1
SECRET = b"a secret of thirty-two bytes, so"

NUMPY_DTYPES = [f"{order}{kind}{width}" for order in "<>" for kind in "iu" for width in (1, 2, 4, 8)]
TORCH_DTYPES = [
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]


class Index:
    """An integer by `__index__` alone."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "another sequence": UserList,
    "a deque is one too": deque,
    "list of numpy scalars": lambda tokens: [np.int64(token) for token in tokens],
    "list of objects with __index__": lambda tokens: [Index(token) for token in tokens],
    "a TokenKey": TokenKey,
    "ctypes array": lambda tokens: (ctypes.c_int32 * len(tokens))(*tokens),
    "memoryview": lambda tokens: memoryview(array("H", tokens)),
    "strided memoryview": lambda tokens: memoryview(array("H", [t for token in tokens for t in (token, 9)]))[::2],
    **{f"array {code}": (lambda tokens, code=code: array(code, tokens)) for code in "bBhHiIlLqQ"},  # type: ignore[misc]
    **{f"numpy {dtype}": (lambda tokens, dtype=dtype: np.array(tokens, dtype)) for dtype in NUMPY_DTYPES},  # type: ignore[misc]
    **{
        f"strided numpy {dtype}": (lambda tokens, dtype=dtype: np.repeat(np.array(tokens, dtype), 3)[::3])  # type: ignore[misc]
        for dtype in NUMPY_DTYPES
    },
    "reversed numpy": lambda tokens: np.array(tokens[::-1], np.int64)[::-1],
    "read-only numpy": lambda tokens: np.frombuffer(np.array(tokens, np.int64).tobytes(), np.int64),
    "numpy column": lambda tokens: np.array([(token, 8) for token in tokens], np.int64).reshape(-1, 2)[:, 0],
    **{f"{dtype}": (lambda tokens, dtype=dtype: torch.tensor(tokens, dtype=dtype)) for dtype in TORCH_DTYPES},  # type: ignore[misc]
    "strided torch": lambda tokens: torch.tensor([(token, 8) for token in tokens], dtype=torch.int64).reshape(-1, 2)[
        :, 0
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_tokens_gives_the_same_key(form: str) -> None:
    """Four bytes a token in native order, whatever the tokens came in."""
    key = TokenKey(FORMS[form](TOKENS))

    assert struct.pack("=4I", *TOKENS) == key.data
    assert (4, TOKENS) == (len(key), key.tolist())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [[0] * 8, [7], [0, 0, 1]], ids=str)
def test_every_form_gives_the_tokens_it_holds(form: str, tokens: list[int]) -> None:
    """Zeros alone, which look like the upper half of wider tokens, and lengths that are no multiple of a width."""
    assert tokens == TokenKey(FORMS[form](tokens)).tolist()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_no_tokens_gives_the_empty_key(form: str) -> None:
    """No tokens are tokens too."""
    key = TokenKey(FORMS[form]([]))

    assert (b"", 0, []) == (key.data, len(key), key.tolist())


def test_a_range_gives_its_tokens() -> None:
    """Steps and directions included."""
    assert [9, 6, 3] == TokenKey(range(9, 0, -3)).tolist()


@pytest.mark.parametrize(
    "form", ["list", "array I", "array Q", "array q", "numpy <u4", "numpy >u4", "numpy >i8", "torch.int64"]
)
def test_the_largest_token_is_taken(form: str) -> None:
    """2**32 - 1 is a token."""
    assert [0, LARGEST, 2**31] == TokenKey(FORMS[form]([0, LARGEST, 2**31])).tolist()


@pytest.mark.parametrize(
    ("form", "value"),
    [
        *itertools.product(["list", "tuple", "another sequence"], [-1, LARGEST + 1, 2**64, -(2**64)]),
        *itertools.product(
            ["array q", "numpy <i8", "numpy >i8", "strided numpy <i8", "torch.int64"],
            [-1, LARGEST + 1, 2**62, -(2**62)],
        ),
        *itertools.product(
            ["array b", "array h", "array i", "array l", "numpy <i1", "numpy >i2", "numpy <i4", "torch.int32"],
            [-1, -128],
        ),
        *itertools.product(["array Q", "numpy <u8", "numpy >u8", "torch.uint64"], [LARGEST + 1, 2**64 - 1]),
        *itertools.product(["array i", "numpy <i4", "numpy >i4"], [-(2**31)]),
    ],
)
def test_a_token_out_of_range_is_named(form: str, value: int) -> None:
    """The error says which token and where."""
    with pytest.raises(TokenError, match=rf"{value}\b.*index 2") as caught:
        TokenKey(FORMS[form]([5, 6, value, -1 if value < 0 else value]))

    assert (2, value) == (caught.value.index, caught.value.value)
    assert isinstance(caught.value, ValueError)


def test_a_range_out_of_bounds_is_refused() -> None:
    """The first token below 0 is named."""
    with pytest.raises(TokenError) as caught:
        TokenKey(range(1, -3, -1))

    assert (2, -1) == (caught.value.index, caught.value.value)


@pytest.mark.parametrize(
    "value", [1.0, 1.5, float("nan"), True, False, "1", "", None, [1], (1,), b"1", 1j, np.float64(1)], ids=repr
)
def test_an_element_that_is_no_integer_is_named(value: object) -> None:
    """A float, a bool, a string or a list among the tokens is refused, also where its value would do."""
    for tokens in ([7, value, 8], (7, value, value), UserList([7, value])):
        with pytest.raises(TokenError) as caught:
            TokenKey(tokens)  # type: ignore[arg-type]

        assert 1 == caught.value.index
        assert value is caught.value.value


@pytest.mark.parametrize(
    "value", [np.bool_(True), torch.tensor(True), torch.tensor([1, 2]), np.array([1, 2])], ids=repr
)
def test_a_bool_scalar_or_an_array_among_the_tokens_is_refused(value: object) -> None:
    """numpy's and torch's bools are no tokens either, nor are arrays."""
    with pytest.raises(TokenError):
        TokenKey([7, value])  # type: ignore[list-item]


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param("12", id="str"),
        pytest.param("", id="empty str"),
        pytest.param(None, id="None"),
        pytest.param(7, id="int"),
        pytest.param(1.5, id="float"),
        pytest.param({1, 2}, id="set"),
        pytest.param(set(), id="empty set"),
        pytest.param({1: 2}, id="dict"),
        pytest.param({}, id="empty dict"),
        pytest.param(generator(), id="generator"),
        pytest.param(iter([1]), id="iterator"),
        pytest.param(object(), id="object"),
        pytest.param(list, id="class"),
        pytest.param(np.array([[1, 2], [3, 4]]), id="2-D numpy"),
        pytest.param(np.zeros((0, 2), np.int64), id="empty 2-D numpy"),
        pytest.param(np.array(3), id="0-d numpy"),
        pytest.param(np.int64(3), id="numpy scalar"),
        pytest.param(np.array([1.0]), id="numpy float64"),
        pytest.param(np.array([1.0], np.float16), id="numpy float16"),
        pytest.param(np.array([1j]), id="numpy complex"),
        pytest.param(np.array([True, False]), id="numpy bool"),
        pytest.param(np.array([1, 2], object), id="numpy object"),
        pytest.param(np.array(["1"]), id="numpy str"),
        pytest.param(np.array([1], "M8[s]"), id="numpy datetime"),
        pytest.param(np.array([(1, 2)], "i4,i4"), id="numpy struct"),
        pytest.param(torch.tensor([[1, 2], [3, 4]]), id="2-D torch"),
        pytest.param(torch.tensor(3), id="0-d torch"),
        pytest.param(torch.tensor([1.0]), id="torch float"),
        pytest.param(torch.tensor([1.0], dtype=torch.bfloat16), id="torch bfloat16"),
        pytest.param(torch.tensor([True, False]), id="torch bool"),
        pytest.param(torch.tensor([1], device="meta"), id="torch meta"),
        pytest.param(torch.tensor([1, 0, 2]).to_sparse(), id="torch sparse"),
        pytest.param(array("d", [1.0]), id="array of doubles"),
        pytest.param(array("f", [1.0]), id="array of floats"),
        pytest.param(array("u", "a"), id="array of characters"),
        pytest.param(memoryview(bytes(4)).cast("B", (2, 2)), id="2-D memoryview"),
        pytest.param(memoryview(bytes(2)).cast("?"), id="memoryview of bools"),
        pytest.param([[1, 2], [3, 4]], id="nested list"),
    ],
)
def test_what_is_no_flat_sequence_of_integers_is_refused(tokens: Any) -> None:
    """Strings, sets, generators, bools, floats and anything of another dimension are a TokenError that says so."""
    with pytest.raises(TokenError, match="token"):
        TokenKey(tokens)


def test_a_buffer_that_cannot_be_read_is_named() -> None:
    """With what the buffer's owner says."""
    tokens: Any = np.array([1], "M8[s]")
    with pytest.raises(TokenError) as caught:
        TokenKey(tokens)

    assert f"ndarray gives no buffer of tokens: {caught.value.__cause__}" == str(caught.value)
    assert tokens is caught.value.value


@pytest.mark.parametrize("kind", [RadixCache, HashCache])
@pytest.mark.parametrize("tokens", [[1, -1, 2], [1, 2.5], "abc", None, np.array([True, False])])
def test_every_call_of_a_cache_refuses_the_same_tokens(kind: type[RadixCache | HashCache], tokens: Any) -> None:
    """A refused call changes nothing: no lookup is counted, nothing is cached."""
    cache = kind(1)
    before = cache.stats
    calls: list[Callable[[], object]] = [
        lambda: cache.match_prefix(tokens),
        lambda: cache.match_length(tokens),
        lambda: cache.probe(tokens),
        lambda: cache.insert(tokens, [0, 1, 2]),
    ]
    for call in calls:
        with pytest.raises(TokenError):
            call()

    assert (0, before) == (cache.cached_blocks, cache.stats)


@given(st.lists(st.integers(0, LARGEST)), st.lists(st.integers(0, LARGEST)))
def test_keys_compare_by_their_tokens(left: list[int], right: list[int]) -> None:
    """Equal tokens, equal keys and hashes; a key made longer is the key of the longer prompt."""
    assert (left == right) is (TokenKey(left) == TokenKey(right))
    assert hash(TokenKey(left)) == hash(TokenKey(tuple(left)))
    assert TokenKey(left + right) == TokenKey(left).extended(right)
    assert left == TokenKey(left).tolist()


def test_a_key_is_no_other_thing() -> None:
    """A key equals keys alone."""
    key: object = TokenKey([1])

    assert key != [1]
    assert key != TokenKey([1]).data


def test_extending_a_key_leaves_it_alone() -> None:
    """`extended` answers a new key and refuses what the constructor refuses."""
    key = TokenKey([1, 2])

    assert [1, 2, 3] == key.extended(np.array([3])).tolist()
    assert [1, 2] == key.tolist()
    with pytest.raises(TokenError) as caught:
        key.extended([4, -7])
    assert (1, -7) == (caught.value.index, caught.value.value)


def test_of_passes_a_key_on() -> None:
    """A key made once is not made again; anything else becomes one."""
    key = TokenKey([1, 2])

    assert key is TokenKey.of(key)
    assert key == TokenKey.of([1, 2])


def test_a_key_does_not_follow_its_source() -> None:
    """The tokens are copied: a buffer that changes later changes no key."""
    source = np.array([1, 2, 3], np.uint32)
    key = TokenKey(source)
    source[:] = 9

    assert [1, 2, 3] == key.tolist()


def test_the_text_of_a_key_is_short() -> None:
    """A short key shows its tokens, a long one says how many they are."""
    assert "TokenKey([1, 2])" == repr(TokenKey([1, 2]))
    assert "1000 tokens" in repr(TokenKey(range(1000)))
    assert len(repr(TokenKey(range(1000)))) < 100


def digests(
    tokens: Sequence[int], block_size: int = 2, secret: bytes = SECRET, namespace: str | None = None
) -> list[bytes]:
    return block_hashes(TokenKey(tokens), block_size, secret, namespace, len(tokens) // block_size)


def test_a_block_hash_names_the_whole_prefix() -> None:
    """The same block behind another prefix has another name, and a longer prompt keeps the names of a shorter one."""
    one, other = digests([1, 2, 3, 4, 5]), digests([9, 9, 3, 4])

    assert one[:1] == digests([1, 2])
    assert 2 == len(one) == len(other)
    assert 4 == len({*one, *other})


def test_a_block_hash_depends_on_secret_and_namespace() -> None:
    """None, the empty namespace and every other give different names, and so does another secret."""
    names = [
        *(digests([1, 2], namespace=namespace)[0] for namespace in (None, "", "a", "b", "\0", "\1")),
        digests([1, 2], secret=b"another secret of 32 bytes, also")[0],
    ]

    assert len(names) == len(set(names))


def test_a_namespace_is_no_part_of_the_tokens() -> None:
    """No namespace makes one prompt look like another: bytes do not move from one to the other."""
    text = struct.pack("=I", 7).decode("latin-1")

    assert digests([7, 7, 1], 1) != digests([7, 1, 1], 1, namespace=text)
    assert not set(digests([7, 7, 1], 1)) & set(digests([7, 1], 1, namespace=text))


@pytest.mark.parametrize(
    ("namespace", "name", "kind"),
    [
        (None, b"", b"no namespace"),
        ("", b"", b"namespace"),
        ("t", b"t", b"namespace"),
        ("é", b"\xc3\xa9", b"namespace"),
    ],
)
def test_a_block_hash_is_made_as_it_says(namespace: str | None, name: bytes, kind: bytes) -> None:
    """Written once more, step by step: processes of different releases that share a secret must agree on names."""
    parent = blake2b(name, digest_size=32, key=SECRET, person=kind).digest()
    expected = []
    for block in ([1, 2], [3, 4]):
        parent = blake2b(parent + struct.pack("=2I", *block), digest_size=32, key=SECRET).digest()
        expected.append(parent)

    assert expected == digests([1, 2, 3, 4, 5], namespace=namespace)


def test_block_hashes_are_worked_out_once() -> None:
    """They stay with the key, are shared by its prefixes and go along into longer keys: the very same objects."""
    key = TokenKey([1, 2, 3, 4])
    (first, second) = block_hashes(key, 2, SECRET, "a", 2)
    later = [
        block_hashes(key, 2, SECRET, "a", 1),
        block_hashes(key.prefix(3), 2, SECRET, "a", 1),
        block_hashes(key.extended([5, 6]), 2, SECRET, "a", 3),
    ]

    assert all(first is hashes[0] for hashes in later)
    assert second is later[-1][1]


def test_block_hashes_kept_with_a_key_are_those_of_a_new_key() -> None:
    """Asked in steps, for two caches in turn, or carried along by `extended`: always the same names."""
    key = TokenKey([1, 2, 3, 4])
    expected = digests([1, 2, 3, 4, 5, 6, 7])
    first = block_hashes(key, 2, SECRET, None, 1)
    other = block_hashes(key, 2, SECRET, "a", 2)
    longer = key.extended([5, 6, 7])

    assert expected[:1] == first
    assert digests([1, 2, 3, 4], namespace="a") == other
    assert digests([1, 2, 3, 4, 5, 6, 7], namespace="a") == block_hashes(longer, 2, SECRET, "a", 3)
    assert expected == block_hashes(longer, 2, SECRET, None, 3)
    assert digests([1, 2, 3, 4, 5, 6, 7], 3) == block_hashes(longer, 3, SECRET, None, 2)
    assert expected[:2] == block_hashes(key, 2, SECRET, None, 2)
    assert digests([1, 2, 3, 4], namespace="a") == block_hashes(key, 2, SECRET, "a", 2)


def test_a_fork_of_an_extended_key_keeps_its_own_names() -> None:
    """Two continuations of one key share nothing that one of them could write into."""
    stem = TokenKey([1, 2])
    block_hashes(stem, 2, SECRET, None, 1)
    left, right = stem.extended([3, 4]), stem.extended([5, 6])

    assert digests([1, 2, 3, 4]) == block_hashes(left, 2, SECRET, None, 2)
    assert digests([1, 2, 5, 6]) == block_hashes(right, 2, SECRET, None, 2)
    assert digests([1, 2]) == block_hashes(stem, 2, SECRET, None, 1)


def test_a_namespace_may_be_any_string() -> None:
    """Lone surrogates and characters of any plane are as good as others."""
    names = [digests([1, 2], namespace=namespace)[0] for namespace in ("\ud800", "\udc80", "?", "漢", "😀")]

    assert 5 == len(set(names))


def test_a_prefix_of_a_prefix_grown_otherwise_has_hashes_of_its_own() -> None:
    """A forking agent: what was cut off leaves no hash behind, whatever was worked out before."""
    cache = HashCache(2)
    key = TokenKey([1, 2, 3, 4, 5])
    cache.insert(key, [10, 11])
    fork = key.prefix(2).extended([9, 9, 9])

    assert (2, [10]) == (cache.match_prefix(fork).matched_tokens, list(cache.match_prefix(fork).blocks))
    cache.insert(fork.prefix(4), [10, 12])
    assert [10, 11] == list(cache.match_prefix(key).blocks)


def test_any_history_of_a_key_gives_the_hashes_of_its_tokens() -> None:
    """Prefixes and extensions of each other, in any order, against keys made at once."""
    rng = Random(7)
    keys = [TokenKey([rng.randrange(3) for _ in range(6)])]
    for _ in range(600):
        key = rng.choice(keys)
        if rng.random() < 0.5:
            key = key.prefix(rng.randrange(len(key) + 1))
        else:
            key = key.extended([rng.randrange(3) for _ in range(rng.randrange(4))])
        if len(key) > 12:
            key = key.prefix(4)
        keys.append(key)
        if rng.random() < 0.5:
            count = len(key) // 2
            assert block_hashes(TokenKey(key.tolist()), 2, b"s", None, count) == block_hashes(key, 2, b"s", None, count)


def test_a_pickled_key_keeps_its_tokens_and_no_secret() -> None:
    """It goes to other processes; the cache's secret does not."""
    cache = HashCache(2, secret=b"not to be seen")
    key = TokenKey([1, 2, 2**32 - 1])
    cache.match_length(key)
    pickled = pickle.dumps(key)

    assert key == pickle.loads(pickled)
    assert cache._secret not in pickled


def test_a_prefix_has_no_negative_length() -> None:
    """It is a count of tokens."""
    with pytest.raises(SizeError):
        TokenKey([1, 2]).prefix(-1)


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_a_common_prefix_is_counted_token_by_token(one: list[int], other: list[int]) -> None:
    """By bisection, and as a loop would."""
    same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))

    assert 4 * same == common_prefix(TokenKey(one).data, TokenKey(other).data)


def test_a_common_prefix_ends_at_any_token() -> None:
    """Every place where two prompts of up to ten tokens can part, in keys of one length and of two."""
    for length in range(11):
        for same in range(length + 1):
            one, other = TokenKey([0] * length), TokenKey([0] * same + [1] * (length - same))
            assert 4 * same == common_prefix(one.data, other.data)
            assert 4 * same == common_prefix(one.data, one.prefix(same).data)


class Ids:
    """What an array of a foreign kind has, and no more."""

    def tolist(self) -> list[int]:
        return [5, LARGEST]


def test_block_ids_are_copied_only_where_they_must_be() -> None:
    """An array of the right kind is itself; of a signed kind it is looked through; of a foreign kind its list is."""
    right, foreign = array("I", [5, LARGEST]), Ids()

    assert right is block_ids(right)
    assert [right] * 3 == [block_ids(ids) for ids in (array("q", right), right.tolist(), foreign)]  # type: ignore[arg-type]
    with pytest.raises(BlockIdError) as caught:
        block_ids(array("i", [5, -1]))
    assert (1, -1) == (caught.value.index, caught.value.value)


IDS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])


@given(st.lists(st.tuples(IDS, IDS), max_size=6))
def test_differing_ids_are_those_of_a_loop(pairs: list[tuple[int, int]]) -> None:
    """Also where whole-run operations answer: no id differs, none behind some point agrees."""
    mine, theirs = array("I", [a for a, _ in pairs]), array("I", [b for _, b in pairs])

    assert [a for a, b in pairs if a != b] == list(differing_ids(mine, theirs))


def test_equal_keys_hash_alike_and_others_do_not() -> None:
    """They serve as dictionary keys."""
    assert hash(TokenKey([1, 2])) == hash(TokenKey((1, 2)))
    assert 50 == len({hash(TokenKey([i])) for i in range(50)})


def test_a_long_key_is_shown_shortened() -> None:
    """Up to six tokens as they are."""
    assert "TokenKey([1, 2, 3, 4, 5, 6])" == repr(TokenKey(range(1, 7)))
    assert "<TokenKey of 7 tokens: 1, 2, 3, 4, 5, 6, …>" == repr(TokenKey(range(1, 8)))
