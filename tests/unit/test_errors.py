"""Every error carries its numbers, says them, and is what a caller would look for."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import radixkv
from radixkv import (
    BlockCountError,
    BlockIdError,
    BlockManager,
    BlockOwnershipError,
    BlockPool,
    BlockTableError,
    HashCache,
    LockError,
    NamespaceError,
    OutOfBlocksError,
    RadixCache,
    RadixKVError,
    SizeError,
    StaleNodeError,
    TokenError,
    TokenKey,
    TraceError,
    UnknownNameError,
)


def stale() -> None:
    cache = RadixCache(1)
    node = cache.insert([1], [1]).node
    cache.evict(1)
    cache.lock(node)


def reset_while_locked() -> None:
    cache = HashCache(1)
    cache.lock(cache.insert([1, 2], [1, 2]).node)
    cache.reset()


def finished_twice() -> None:
    manager = BlockManager(4, 1)
    table = manager.admit([1])
    manager.finish(table)
    manager.finish(table)


RAISED: dict[str, tuple[Callable[[], object], type[RadixKVError], dict[str, Any]]] = {
    "block size": (lambda: RadixCache(0), SizeError, {"name": "block_size", "minimum": 1, "given": 0}),
    "eviction": (lambda: HashCache(1).evict(-3), SizeError, {"name": "n", "minimum": 0, "given": -3}),
    "pool": (lambda: BlockPool(0), SizeError, {"name": "num_blocks", "minimum": 1, "given": 0}),
    "count": (lambda: RadixCache(2).insert([1, 2, 3], [4, 5]), BlockCountError, {"expected": 1, "given": 2}),
    "block id": (lambda: RadixCache(1).insert([1, 2], [0, -5]), BlockIdError, {"index": 1, "value": -5}),
    "token": (lambda: TokenKey([3, 4, -7]), TokenError, {"index": 2, "value": -7}),
    "tokens": (lambda: TokenKey("abc"), TokenError, {"index": None, "value": "abc"}),  # type: ignore[arg-type]
    "namespace": (lambda: RadixCache(1).probe([1], 8), NamespaceError, {"value": 8}),  # type: ignore[arg-type]
    "policy": (
        lambda: RadixCache(1, eviction="clock"),
        UnknownNameError,
        {"name": "clock", "known": ("fifo", "lfu", "lru", "mru", "priority", "slru")},
    ),
    "stale": (stale, StaleNodeError, {}),
    "reset": (reset_while_locked, LockError, {"locked_blocks": 2}),
    "owner": (
        lambda: BlockPool(2).free([1]),
        BlockOwnershipError,
        {"block": 1, "owner": "free", "expected": "request"},
    ),
    "room": (lambda: BlockManager(2, 1).admit([1] * 5), OutOfBlocksError, {"wanted": 5, "available": 2, "missing": 3}),
    "table": (finished_twice, BlockTableError, {}),
}
VALUES = {BlockCountError, BlockIdError, BlockOwnershipError, BlockTableError, SizeError, TokenError, UnknownNameError}


@pytest.mark.parametrize("case", RAISED)
def test_an_error_carries_its_numbers_and_says_them(case: str) -> None:
    """As attributes, and in its text; errors of bad values are ValueErrors too."""
    call, kind, numbers = RAISED[case]
    with pytest.raises(RadixKVError) as caught:
        call()
    error = caught.value

    assert kind is type(error)
    assert numbers == {name: getattr(error, name) for name in numbers}
    assert str(error)
    for number in numbers.values():
        if isinstance(number, int):
            assert str(number) in str(error)
    assert (kind in VALUES) is isinstance(error, ValueError)
    assert (kind is NamespaceError) is isinstance(error, TypeError)


def test_every_error_of_the_package_is_in_one_tree() -> None:
    """One except clause catches all that radixkv raises on purpose, and nothing else."""
    errors = [value for value in vars(radixkv).values() if isinstance(value, type) and issubclass(value, Exception)]

    assert 16 == len(errors)
    assert all(issubclass(error, RadixKVError) for error in errors)
    assert {RadixKVError} == {base for error in errors for base in error.__mro__ if base.__name__ == "RadixKVError"}
    assert all(error.__doc__ for error in errors)


@pytest.mark.parametrize(
    "error",
    [
        OutOfBlocksError(wanted=3, available=1),
        LockError("locked", locked_blocks=2),
        TokenError("no token", index=1, value=-1),
        TraceError("not JSON", path="a.jsonl", line=3, field="hash_ids"),
        NamespaceError(value=5),
        UnknownNameError(kind="policy", name="x", known=("lru",)),
        StaleNodeError("gone"),
    ],
    ids=repr,
)
def test_an_error_can_be_pickled_and_copied(error: RadixKVError) -> None:
    """Engines hand them from process to process."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(error), str(error), vars(error)) == (type(again), str(again), vars(again))
