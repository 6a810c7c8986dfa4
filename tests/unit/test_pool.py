"""The block pool: free list, owners, and what it refuses."""

from array import array
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from radixkv import BlockIdError, BlockOwnershipError, BlockPool, InvariantError, OutOfBlocksError, SizeError


def owners(pool: BlockPool, first: int = 0) -> str:
    """One letter a block: f(ree), r(equest) or c(ache)."""
    pool.check_invariants()
    return "".join(pool.owner(first + i)[0] for i in range(pool.num_blocks))


def test_blocks_go_round() -> None:
    """free -> request -> cache -> free, and request -> free."""
    pool = BlockPool(4)
    assert (4, 4, "ffff") == (pool.num_blocks, pool.num_free, owners(pool))

    ids = pool.allocate(3)
    assert isinstance(ids, array)
    assert ("I", 3, 1) == (ids.typecode, len(set(ids)), pool.num_free)
    pool.adopt(ids[:2])
    assert (2, 1, 1) == tuple(owners(pool).count(letter) for letter in "crf")
    pool.free(ids[2:])
    pool.reclaim(ids[:2])
    assert (4, "ffff") == (pool.num_free, owners(pool))


def test_every_block_is_handed_out_once() -> None:
    """All ids from the first one on, and then no more."""
    pool = BlockPool(5, first_id=100)

    assert list(range(100, 105)) == sorted([*pool.allocate(2), *pool.allocate(3)])
    assert "rrrrr" == owners(pool, 100)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(1)


def test_an_allocation_that_is_too_large_changes_nothing() -> None:
    """It says what was wanted, what there is and what is missing."""
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError, match=r"5.*2.*3") as caught:
        pool.allocate(5)

    assert (5, 2, 3) == (caught.value.wanted, caught.value.available, caught.value.missing)
    assert 2 == pool.num_free == owners(pool).count("f")


def test_nothing_may_be_moved() -> None:
    """Zero blocks are a number of blocks."""
    pool = BlockPool(1)

    assert array("I") == pool.allocate(0)
    pool.free([])
    pool.adopt([])
    pool.reclaim([])
    assert "f" == owners(pool)


@pytest.mark.parametrize("n", [-1, 1.5, None, True])
def test_a_number_of_blocks_is_a_natural_number(n: Any) -> None:
    """Anything else is a SizeError."""
    pool = BlockPool(2)
    with pytest.raises(SizeError) as caught:
        pool.allocate(n)

    assert (0, n) == (caught.value.minimum, caught.value.given)
    assert "ff" == owners(pool)


@pytest.mark.parametrize(
    ("num_blocks", "first_id"), [(0, 0), (-1, 0), (1.5, 0), (4, -1), (4, None), (2, 2**32 - 1), (2**32 + 1, 0)]
)
def test_a_pool_has_blocks_with_ids_that_exist(num_blocks: Any, first_id: Any) -> None:
    """At least one, and none at or above 2**32."""
    with pytest.raises(SizeError):
        BlockPool(num_blocks, first_id=first_id)


def test_the_largest_ids_can_be_pooled() -> None:
    """Up to 2**32 - 1."""
    pool = BlockPool(2, first_id=2**32 - 2)

    assert [2**32 - 2, 2**32 - 1] == sorted(pool.allocate(2))
    pool.check_invariants()


def test_an_id_outside_the_pool_is_nobodys() -> None:
    """On both sides."""
    pool = BlockPool(2, first_id=10)

    assert ["nobody", "free", "free", "nobody"] == [pool.owner(block) for block in (9, 10, 11, 12)]
    assert "nobody" == pool.owner(-1)


# A pool of five: blocks 0 and 1 a request's, 2 and 3 the cache's, 4 free.
MOVES: dict[str, Callable[[BlockPool], Callable[[list[int]], None]]] = {
    "free": lambda pool: pool.free,
    "adopt": lambda pool: pool.adopt,
    "reclaim": lambda pool: pool.reclaim,
}


@pytest.mark.parametrize(
    ("move", "ids", "block", "owner", "expected"),
    [
        ("free", [4], 4, "free", "request"),
        ("free", [2], 2, "cache", "request"),
        ("free", [0, 2], 2, "cache", "request"),
        ("free", [0, 1, 4], 4, "free", "request"),
        ("free", [5], 5, "nobody", "request"),
        ("adopt", [4], 4, "free", "request"),
        ("adopt", [0, 3], 3, "cache", "request"),
        ("adopt", [0, 9], 9, "nobody", "request"),
        ("reclaim", [4], 4, "free", "cache"),
        ("reclaim", [0], 0, "request", "cache"),
        ("reclaim", [2, 3, 1], 1, "request", "cache"),
        ("reclaim", [2**32 - 1], 2**32 - 1, "nobody", "cache"),
    ],
)
def test_only_the_owner_hands_over(move: str, ids: list[int], block: int, owner: str, expected: str) -> None:
    """The error names the block, its owner and who would have to own it; no block moved, the right ones neither."""
    pool = five()
    with pytest.raises(BlockOwnershipError, match=rf"{block}.*{owner}.*{expected}") as caught:
        MOVES[move](pool)(ids)

    assert (block, owner, expected) == (caught.value.block, caught.value.owner, caught.value.expected)
    assert isinstance(caught.value, ValueError)
    assert ("rrccf", 1) == (owners(pool), pool.num_free)


@pytest.mark.parametrize(("move", "ids"), [("free", [0, 1, 0]), ("adopt", [1, 1]), ("reclaim", [2, 3, 3])])
def test_a_block_twice_in_one_call_is_refused(move: str, ids: list[int]) -> None:
    """The second time it is not its owner's any more; no block moved."""
    pool = five()
    with pytest.raises(BlockOwnershipError) as caught:
        MOVES[move](pool)(ids)

    assert ids[-1] == caught.value.block
    assert ("rrccf", 1) == (owners(pool), pool.num_free)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("value", [-1, 2**32, 1.5, None])
def test_what_is_no_block_id_is_refused(move: str, value: Any) -> None:
    """With its place; no block moved."""
    pool = five()
    with pytest.raises(BlockIdError) as caught:
        MOVES[move](pool)([2 if move == "reclaim" else 0, value])

    assert (1, value) == (caught.value.index, caught.value.value)
    assert "rrccf" == owners(pool)


def five() -> BlockPool:
    """Two blocks a request's, two the cache's, one free."""
    pool = BlockPool(5)
    pool.allocate(5)
    pool.adopt([2, 3])
    pool.free([4])
    return pool


def test_ids_may_come_from_an_iterator() -> None:
    """And are read once."""
    pool = five()
    pool.free(iter([1, 0]))
    pool.reclaim(block for block in (3, 2))

    assert "fffff" == owners(pool)


@pytest.mark.parametrize(
    ("free", "wrong"),
    [([4, 2], [2]), ([4, 4], [4]), ([], [4]), ([3], [3, 4])],
    ids=["owned too", "twice", "forgotten", "two"],
)
def test_invariants_name_the_blocks_at_fault(free: list[int], wrong: list[int]) -> None:
    """A free list that was tampered with is found out: block 4 alone is free."""
    pool = five()
    pool._free = array("I", free)

    with pytest.raises(InvariantError) as caught:
        pool.check_invariants()
    assert f"the free list and the owners disagree on blocks {wrong}" == str(caught.value)


def test_seeded_steps_against_three_sets() -> None:
    """2,000 random moves: the pool and three plain sets agree about every block."""
    random, pool = Random(11), BlockPool(12)
    free, request, cache = set(range(12)), set[int](), set[int]()
    for _ in range(2000):
        match random.randrange(4):
            case 0 if free:
                ids = list(pool.allocate(random.randint(1, len(free))))
                assert free.issuperset(ids)
                free.difference_update(ids)
                request.update(ids)
            case 1:
                ids = random.sample(sorted(request), random.randint(0, len(request)))
                pool.free(ids)
                request.difference_update(ids)
                free.update(ids)
            case 2:
                ids = random.sample(sorted(request), random.randint(0, len(request)))
                pool.adopt(ids)
                request.difference_update(ids)
                cache.update(ids)
            case 3:
                ids = random.sample(sorted(cache), random.randint(0, len(cache)))
                pool.reclaim(ids)
                cache.difference_update(ids)
                free.update(ids)
            case _:
                pass
        assert "".join("f" if i in free else "r" if i in request else "c" for i in range(12)) == owners(pool)
        assert len(free) == pool.num_free


def test_a_pool_whose_ids_begin_higher_moves_its_own() -> None:
    """Ids are what is handed over, not places; a refused move is taken back at the right ones."""
    pool = BlockPool(4, first_id=100)
    ids = pool.allocate(3)
    pool.adopt(ids[:2])
    with pytest.raises(BlockOwnershipError):
        pool.free([ids[2], ids[0]])

    assert ["cache", "cache", "request", "free"] == [pool.owner(block) for block in range(100, 104)]
    pool.reclaim(ids[:2])
    pool.free(ids[2:])
    assert 4 == pool.num_free
    pool.check_invariants()
