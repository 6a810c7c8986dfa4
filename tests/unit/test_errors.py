"""Every error carries its numbers, says them, and is what a caller would look for."""

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import radixkv
from radixkv import (
    POLICIES,
    BlockCountError,
    BlockIdError,
    BlockManager,
    BlockOwnershipError,
    BlockPool,
    BlockTableError,
    HashCache,
    InvariantError,
    LockError,
    MissingExtraError,
    NamespaceError,
    NodeError,
    OutOfBlocksError,
    RadixCache,
    RadixKVError,
    RadixTree,
    SizeError,
    StaleNodeError,
    TokenError,
    TokenKey,
    TraceError,
    UnknownNameError,
)
from radixkv.tree import Node


class OnAnotherDevice:
    """An array that cannot be read from here."""

    def __array__(self) -> object:
        raise RuntimeError("copy it first")


ELSEWHERE = OnAnotherDevice()
SQUARE = bytes(4)


def locked_after_it_went() -> None:
    cache = RadixCache(1)
    node = cache.insert([1], [1]).node
    cache.evict(1)
    cache.lock(node)


def reset_while_locked() -> None:
    cache = HashCache(1)
    cache.lock(cache.insert([1, 2], [1, 2]).node)
    cache.reset()


def two_locked() -> tuple[RadixTree[str], Node[str]]:
    """A tree of one node of two blocks, locked."""
    tree = RadixTree[str](1)
    node = tree.insert([1, 2], ["a", "b"])
    tree.lock(node)
    return tree, node


def cut_between_blocks() -> None:
    tree, node = two_locked()
    tree.split(node, 3)


def pruned_while_locked() -> None:
    tree, node = two_locked()
    tree.prune(node)


def attached_twice() -> None:
    tree, node = two_locked()
    tree.attach(tree.root, node.label, ["c", "d"], None)


def named_after_it_went() -> None:
    tree = RadixTree[str](1)
    node = tree.insert([1], ["a"])
    tree.prune(node)
    tree.path_hash(node)


def content_named_after_it_went() -> None:
    tree = RadixTree[str](1)
    node = tree.insert([1], ["a"])
    tree.prune(node)
    assert node.content_name


def missing_extra() -> None:
    raise MissingExtraError(part="the lab", package="numpy", extra="lab")


def without_a_parent() -> None:
    cache = HashCache(1)
    cache.insert([1], [1]).node.parent = None
    cache.check_invariants()


def finished_twice() -> None:
    manager = BlockManager(4, 1)
    table = manager.admit([1])
    manager.finish(table)
    manager.finish(table)


def given_to_another() -> None:
    BlockManager(4, 1).finish(BlockManager(4, 1).admit([1]))


def committed_backwards() -> None:
    manager = BlockManager(4, 1)
    table = manager.admit([1, 2, 3])
    manager.commit(table, 2)
    manager.commit(table, 1)


class Refusal(NamedTuple):
    """What is refused, with which error, its attributes and its words."""

    call: Callable[[], object]
    kind: type[RadixKVError]
    numbers: dict[str, Any]
    text: str


def size(call: Callable[[], object], name: str, minimum: int, given: object) -> Refusal:
    text = f"{name} must be an integer of at least {minimum}, got {given!r}"
    return Refusal(call, SizeError, {"name": name, "minimum": minimum, "given": given}, text)


REFUSED: dict[str, Refusal] = {
    "block size": size(lambda: RadixCache(0), "block_size", 1, 0),
    "block size of hashes": size(lambda: HashCache(True), "block_size", 1, True),
    "block size of a manager": size(lambda: BlockManager(4, 0), "block_size", 1, 0),
    "eviction of leaves": size(lambda: RadixCache(1).evict(-3), "n", 0, -3),
    "eviction of blocks": size(lambda: HashCache(1).evict(1.5), "n", 0, 1.5),  # type: ignore[arg-type]
    "pool": size(lambda: BlockPool(0), "num_blocks", 1, 0),
    "first id": size(lambda: BlockPool(1, first_id=-1), "first_id", 0, -1),
    "last id": size(lambda: BlockPool(3, first_id=2**32 - 2), "room for the ids below 2**32", 3, 2),
    "allocation": size(lambda: BlockPool(1).allocate(-1), "n", 0, -1),
    "secret": size(lambda: HashCache(1, secret=b""), "bytes of the secret", 1, 0),
    "prefix": size(lambda: TokenKey([1]).prefix(-1), "count", 0, -1),
    "count": Refusal(
        lambda: RadixCache(2).insert([1, 2, 3], [4, 5]),
        BlockCountError,
        {"expected": 1, "given": 2},
        "expected 1 blocks, one for every full block of the tokens, got 2",
    ),
    "block id": Refusal(
        lambda: RadixCache(1).insert([1, 2], [0, -5]),
        BlockIdError,
        {"index": 1, "value": -5},
        "a block id is an integer in [0, 2**32), got -5 at index 1",
    ),
    "block ids": Refusal(
        lambda: RadixCache(1).insert([1, 2], 5),  # type: ignore[arg-type]
        BlockIdError,
        {"index": None, "value": 5},
        "a block id is an integer in [0, 2**32), got 5",
    ),
    "token": Refusal(
        lambda: TokenKey([3, 4, -7]),
        TokenError,
        {"index": 2, "value": -7},
        "a token is an integer in [0, 2**32), got -7 at index 2",
    ),
    "tokens": Refusal(
        lambda: TokenKey("abc"),  # type: ignore[arg-type]
        TokenError,
        {"index": None, "value": "abc"},
        "tokens are a flat sequence of integers, got str",
    ),
    "tokens in a square": Refusal(
        lambda: TokenKey(memoryview(SQUARE).cast("B", (2, 2))),
        TokenError,
        {"index": None, "value": SQUARE},
        "tokens are a one-dimensional buffer of integers, got 2 dimensions of format 'B'",
    ),
    "tokens elsewhere": Refusal(
        lambda: TokenKey(ELSEWHERE),
        TokenError,
        {"index": None, "value": ELSEWHERE},
        "OnAnotherDevice gives no buffer of tokens: copy it first",
    ),
    "namespace": Refusal(
        lambda: RadixCache(1).probe([1], 8),  # type: ignore[arg-type]
        NamespaceError,
        {"value": 8},
        "a namespace is a str or None, got int: 8",
    ),
    "policy": Refusal(
        lambda: RadixCache(1, eviction="clock"),
        UnknownNameError,
        {"kind": "eviction policy", "name": "clock", "known": tuple(sorted(POLICIES))},
        f"unknown eviction policy 'clock'; known: {', '.join(sorted(POLICIES))}",
    ),
    "cache": Refusal(
        lambda: BlockManager(4, 1, prefix_cache="tree"),
        UnknownNameError,
        {"kind": "prefix cache", "name": "tree", "known": ("hash", "none", "radix")},
        "unknown prefix cache 'tree'; known: hash, none, radix",
    ),
    "stale": Refusal(locked_after_it_went, StaleNodeError, {}, "the node was evicted: match its prompt again"),
    "reset": Refusal(reset_while_locked, LockError, {"locked_blocks": 2}, "2 blocks are locked: unlock before a reset"),
    "split": Refusal(cut_between_blocks, NodeError, {}, "a label of 8 bytes, 4 a block, cannot be split at 3"),
    "prune": Refusal(pruned_while_locked, NodeError, {}, "not an unlocked leaf: 0 children, 1 locks"),
    "attach": Refusal(attached_twice, NodeError, {}, "a child of the node begins with the same block: walk there"),
    "parent of a node": Refusal(
        named_after_it_went, InvariantError, {}, "the root has no parent, and a pruned node neither"
    ),
    "content of what went": Refusal(
        content_named_after_it_went, StaleNodeError, {}, "the root and a pruned node have no content to name"
    ),
    "extra": Refusal(
        missing_extra,
        MissingExtraError,
        {"part": "the lab", "package": "numpy", "extra": "lab"},
        "the lab needs the package 'numpy': pip install 'radixkv[lab]'",
    ),
    "parent of a block": Refusal(
        without_a_parent, InvariantError, {}, "the root has no parent, and an evicted block neither"
    ),
    "owner": Refusal(
        lambda: BlockPool(2).free([1]),
        BlockOwnershipError,
        {"block": 1, "owner": "free", "expected": "request"},
        "block 1 is owned by 'free', not by 'request'",
    ),
    "room": Refusal(
        lambda: BlockManager(2, 1).admit([1] * 5),
        OutOfBlocksError,
        {"wanted": 5, "available": 2, "missing": 3},
        "wanted 5 blocks, 2 available: 3 missing",
    ),
    "table's end": Refusal(finished_twice, BlockTableError, {}, "the table is finished, not running"),
    "table's manager": Refusal(given_to_another, BlockTableError, {}, "the table is another manager's"),
    "table's progress": Refusal(
        committed_backwards, BlockTableError, {}, "computed tokens must go from 2 up to at most 3, got 1"
    ),
}
VALUES = {
    BlockCountError,
    BlockIdError,
    BlockOwnershipError,
    BlockTableError,
    NodeError,
    SizeError,
    TokenError,
    UnknownNameError,
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_carries_its_numbers_and_says_them(case: str) -> None:
    """As attributes, and in words for whoever reads a log; errors of bad values are ValueErrors too."""
    call, kind, numbers, text = REFUSED[case]
    with pytest.raises(RadixKVError) as caught:
        call()
    error = caught.value

    assert kind is type(error)
    assert numbers == {name: getattr(error, name) for name in numbers}
    assert text == str(error)
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
