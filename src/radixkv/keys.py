"""Tokens to key bytes, block ids to arrays, and the chained block hashes.

A key is the prompt as one `bytes` object, 4 bytes a token in the machine's own order: two prefixes agree exactly
where `memcmp` says so, at memory speed and whatever the vocabulary.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress
from operator import index, ne
from typing import Any, Final, Protocol, SupportsIndex, TypeAlias

from radixkv.errors import BlockIdError, NamespaceError, SizeError, TokenError

TOKEN_BYTES: Final = array("I").itemsize
TOKEN_LIMIT: Final = 2**32
DIGEST_BYTES: Final = 32

_ZERO: Final = array("I", [0]).tobytes()
_ONE: Final = array("I", [1]).tobytes()
_INTEGER_FORMATS: Final = frozenset("bBhHiIlLqQnN")
_SIGNED_FORMATS: Final = frozenset("bhilqn")
_TYPECODES: Final = {1: "Bb", 2: "Hh", 4: "Ii", 8: "Qq"}  # by width; unsigned, signed
_SWAPPED_ORDERS: Final = frozenset("<" if sys.byteorder == "big" else ">!")
_TOP_BYTE: Final = 0 if sys.byteorder == "big" else TOKEN_BYTES - 1
_HIGH_HALF: Final = 0 if sys.byteorder == "big" else 1


class TokenKey:
    """A prompt's tokens, checked once and packed; every call of a cache that takes tokens takes one of these.

    Make it once a request and pass it on: the checks and the packing are then paid once, O(tokens).

    Args:
        tokens: a list, tuple, range or other sequence of integers; an `array`, numpy or torch buffer of any integer
            width and either byte order, one-dimensional; or another `TokenKey`. A CUDA tensor goes through `.cpu()`
            first.

    Raises:
        TokenError: a token below 0 or above 2**32-1, a float, a bool, or not a flat sequence.

    >>> key = TokenKey([5, 6, 7])
    >>> len(key), key.tolist(), key == TokenKey(range(5, 8))
    (3, [5, 6, 7], True)
    """

    __slots__ = ("_chain", "data")

    data: bytes
    """4 bytes a token, native order."""
    _chain: tuple[tuple[int, bytes, str | None], list[bytes]] | None

    def __init__(self, tokens: Tokens) -> None:
        self.data = tokens.data if isinstance(tokens, TokenKey) else _pack(tokens)
        self._chain = None

    @classmethod
    def of(cls, tokens: Tokens) -> TokenKey:
        """`tokens` itself if it is a key already, else a key made of it."""
        return tokens if isinstance(tokens, TokenKey) else cls(tokens)

    def extended(self, tokens: Tokens) -> TokenKey:
        """A longer key: these tokens and then `tokens`. Block hashes known so far go along. O(tokens)."""
        longer = TokenKey(tokens)
        longer.data = self.data + longer.data
        if self._chain:
            made_for, hashes = self._chain
            # The chain may be shared with a longer key: only the hashes of this one's own blocks go along.
            longer._chain = (made_for, hashes[: len(self) // made_for[0]])
        return longer

    def prefix(self, count: int) -> TokenKey:
        """The key of the first `count` tokens. Block hashes known so far are shared. O(count).

        Raises:
            SizeError: a negative count.
        """
        check_size("count", count, 0)
        shorter = TokenKey(())
        shorter.data = self.data[: count * TOKEN_BYTES]
        shorter._chain = self._chain
        return shorter

    def tolist(self) -> list[int]:
        """The tokens as a list of ints."""
        return array("I", self.data).tolist()

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenKey, (array("I", self.data),)  # not what is remembered: that may hold a cache's secret

    def __len__(self) -> int:
        return len(self.data) // TOKEN_BYTES

    def __eq__(self, other: object) -> bool:
        return self.data == other.data if isinstance(other, TokenKey) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        tokens = self.tolist()
        shown = ", ".join(map(str, tokens[:6]))
        return f"TokenKey([{shown}])" if len(tokens) <= 6 else f"<TokenKey of {len(tokens)} tokens: {shown}, …>"


class _ArrayLike(Protocol):
    """numpy's and torch's arrays, without importing either."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


Tokens: TypeAlias = TokenKey | Sequence[SupportsIndex] | _ArrayLike
"""What calls take as tokens: a `TokenKey`, or what one can be made of (buffers of numpy and torch too)."""


def common_prefix(one: bytes, other: bytes, unit: int = TOKEN_BYTES, *, start: int = 0) -> int:
    """How many leading bytes of `other` stand in `one` from `start` on, in whole units.

    One `memcmp` if it is all of them, else a bisection over `memcmp`s.
    """
    low, high = 0, min(len(one) - start, len(other)) // unit
    if one.startswith(other[: high * unit], start):
        return high * unit
    high -= 1  # units: `low` agree, more than `high` do not
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low * unit : middle * unit], start + low * unit):
            low = middle
        else:
            high = middle - 1
    return low * unit


def check_size(name: str, given: int, minimum: int) -> int:
    """`given` as a plain int, or `SizeError` if it is no integer or below `minimum`."""
    try:
        size = index(given)
    except TypeError:
        size = minimum - 1
    if size < minimum or isinstance(given, bool):
        raise SizeError(name=name, minimum=minimum, given=given)
    return size


def check_namespace(namespace: str | None) -> None:
    """Raise `NamespaceError` unless `namespace` is None or a string."""
    if namespace is not None and not isinstance(namespace, str):
        raise NamespaceError(value=namespace)


def block_ids(ids: Iterable[int]) -> array[int]:
    """The ids as `array('I')`: the very object if it is one already, else a checked copy.

    Raises:
        BlockIdError: an id that is no integer in [0, 2**32).
    """
    if isinstance(ids, array) and ids.typecode == "I":
        return ids
    if not hasattr(ids, "tolist") and not isinstance(ids, Iterable):
        raise BlockIdError(index=None, value=ids)
    values: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if not isinstance(values, list):  # an array without dimensions
        raise BlockIdError(index=None, value=ids)
    try:
        return array("I", _pack_integers(values))
    except TokenError as error:
        raise BlockIdError(index=error.index, value=error.value) from None


def differing_ids(given: array[int], cached: array[int]) -> array[int]:
    """Of two runs of ids of one length, those of `given` that are not what `cached` has at their place, in order.

    Mostly the runs agree up to some point and nowhere behind it; that is told by whole-run operations, and only a
    mixture is gone through id by id.
    """
    start = common_prefix(given.tobytes(), cached.tobytes()) // TOKEN_BYTES
    given, cached = given[start:], cached[start:]
    # A word of the XOR is 0 where two ids agree; if none is, taking 1 from each sets no top bit that was not set.
    differences = int.from_bytes(given.tobytes(), "little") ^ int.from_bytes(cached.tobytes(), "little")
    ones = int.from_bytes(b"\1\0\0\0" * len(given), "little")
    if (differences - ones) & ~differences & (ones << 31):
        return array("I", compress(given, map(ne, given, cached)))
    return given


def block_hashes(key: TokenKey, block_size: int, secret: bytes, namespace: str | None, count: int) -> list[bytes]:
    """The chained digests of the first `count` full blocks of `key`, 32 bytes each.

    Block i is named by blake2b, keyed with `secret`, over its parent's digest and its tokens; the first block's parent
    is the namespace. A name so stands for the whole prefix, and without the secret nobody can look for two prompts
    that share one. The chain is kept with the key: a second call pays for new blocks only. O(tokens) the first time.
    """
    made_for = (block_size, secret, namespace)
    if key._chain is None or key._chain[0] != made_for:
        key._chain = (made_for, [])
    hashes = key._chain[1]
    if len(hashes) < count:
        stride = block_size * TOKEN_BYTES
        parent = hashes[-1] if hashes else _namespace_digest(namespace, secret)
        keyed = blake2b(digest_size=DIGEST_BYTES, key=secret)  # a copy of it is half the price of a new one
        for start in range(len(hashes) * stride, count * stride, stride):
            digest = keyed.copy()
            digest.update(parent + key.data[start : start + stride])
            parent = digest.digest()
            hashes.append(parent)
    return hashes[:count]


def _namespace_digest(namespace: str | None, secret: bytes) -> bytes:
    """The parent of a namespace's first blocks. Personalized, so that no block has it, and "" is not None."""
    name = b"" if namespace is None else namespace.encode(errors="surrogatepass")
    kind = b"no namespace" if namespace is None else b"namespace"
    return blake2b(name, digest_size=DIGEST_BYTES, key=secret, person=kind).digest()


def _pack(tokens: object) -> bytes:
    """The tokens as key bytes; everything a caller can get wrong is refused here."""
    if isinstance(tokens, list | tuple | range):
        return _pack_integers(tokens)
    try:
        view = memoryview(tokens)  # type: ignore[arg-type]  # the TypeError is the question
    except TypeError:
        if not hasattr(tokens, "__array__"):
            return _pack_sequence(tokens)
        try:
            view = memoryview(tokens.__array__())  # torch: no buffer protocol, but a numpy view of the same memory
        except Exception as error:  # whatever a foreign array type raises, say for a CUDA tensor
            raise _no_buffer(tokens, error) from error
    except (BufferError, ValueError) as error:
        raise _no_buffer(tokens, error) from error
    return _pack_view(view)


def _pack_sequence(tokens: object) -> bytes:
    if isinstance(tokens, Sequence) and not isinstance(tokens, str):
        return _pack_integers(tuple(tokens))
    raise TokenError(f"tokens are a flat sequence of integers, got {type(tokens).__name__}", index=None, value=tokens)


def _no_buffer(tokens: object, error: Exception) -> TokenError:
    return TokenError(f"{type(tokens).__name__} gives no buffer of tokens: {error}", index=None, value=tokens)


def _pack_integers(tokens: Sequence[SupportsIndex]) -> bytes:
    try:
        packed = array("I", tokens).tobytes()  # type: ignore[type-var]  # it takes all that has __index__
    except (OverflowError, TypeError):
        raise _first_fault(tokens) from None
    # `array` takes bools, as 0 and 1; only where one of these may be is it worth a look at every token's type.
    if (_ZERO in packed or _ONE in packed) and set(map(type, tokens)) - {int} and not all(map(_is_uint32, tokens)):
        raise _first_fault(tokens)
    return packed


def _pack_view(view: memoryview) -> bytes:
    """The elements of a one-dimensional integer buffer; the common widths are range-checked at memory speed."""
    kind = view.format[-1]
    if view.ndim != 1 or kind not in _INTEGER_FORMATS:
        raise TokenError(
            f"tokens are a one-dimensional buffer of integers, got {view.ndim} dimensions of format {view.format!r}",
            index=None,
            value=view.obj,
        )
    signed = kind in _SIGNED_FORMATS
    values = array(_TYPECODES[view.itemsize][signed], view.tobytes())
    if view.format[0] in _SWAPPED_ORDERS:
        values.byteswap()
    data = values.tobytes()
    if view.itemsize == TOKEN_BYTES:
        if not signed or data[_TOP_BYTE::TOKEN_BYTES].isascii():  # no sign bit is set
            return data
    elif view.itemsize == 2 * TOKEN_BYTES:
        halves = array("I", data)
        if halves[_HIGH_HALF::2].tobytes() == bytes(len(data) // 2):
            return halves[1 - _HIGH_HALF :: 2].tobytes()
    return _pack_integers(values.tolist())


def _first_fault(tokens: Iterable[object]) -> TokenError:
    """The error for the first token that is none; there is one."""
    position, value = next((i, token) for i, token in enumerate(tokens) if not _is_uint32(token))
    return TokenError(
        f"a token is an integer in [0, 2**32), got {value!r} at index {position}", index=position, value=value
    )


def _is_uint32(value: object) -> bool:
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return False
    try:
        return 0 <= index(value) < TOKEN_LIMIT  # type: ignore[arg-type]  # the TypeError is the question
    except TypeError:
        return False
