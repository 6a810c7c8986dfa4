"""What only the hash cache does: single blocks, names that nobody can forge, and how it proves itself."""

from typing import Any

import pytest

from radixkv import HashCache, InvariantError, SizeError


def chain(blocks: int = 3, **options: Any) -> tuple[HashCache, Any]:
    """A cache with one prefix of so many one-token blocks, and the handle of its end."""
    cache = HashCache(1, **options)
    return cache, cache.insert(range(blocks), range(10, 10 + blocks)).node


def test_it_evicts_exactly_as_many_blocks_as_asked() -> None:
    """A prefix's tail before its head, and the rest stays a prefix."""
    cache, _ = chain(5)

    assert [14, 13] == cache.evict(2).tolist()
    assert 3 == cache.match_length(range(9))
    assert [12, 11, 10] == cache.evict(3).tolist()


def test_the_least_recently_used_tail_goes_first() -> None:
    """Two prefixes that share a head lose their tails in turn, by last use."""
    cache = HashCache(1)
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([1, 5, 6], [10, 13, 14])
    cache.match_prefix([1, 2, 9])

    assert [12, 14, 13, 11, 10] == cache.evict(9).tolist()


def test_every_block_is_a_handle() -> None:
    """A lock on the middle of a prefix leaves its tail evictable."""
    cache, _ = chain(3)
    middle = cache.match_prefix([0, 1, 9]).node
    with cache.pinned(middle):
        assert [12] == cache.evict(9).tolist()
        assert 0 == cache.evictable_blocks
    assert [11, 10] == cache.evict(9).tolist()


def test_names_are_secret() -> None:
    """The same prompt has another name in another cache, unless both were given the same secret."""
    names = [chain(1)[1].name, chain(1)[1].name, chain(1, secret=b"a")[1].name, chain(1, secret=b"b")[1].name]

    assert 4 == len(set(names))
    assert names[2] == chain(1, secret=b"a")[1].name
    assert 1 == len(set(map(len, names)))


@pytest.mark.parametrize("length", [1, 32, 64, 65, 1000])
def test_a_secret_may_be_of_any_length(length: int) -> None:
    """But not empty; all of it counts."""
    one, other = bytes(length - 1) + b"x", bytes(length - 1) + b"y"

    assert chain(1, secret=one)[1].name != chain(1, secret=other)[1].name
    with pytest.raises(SizeError):
        HashCache(1, secret=b"")


def test_the_text_of_a_block_shows_its_state() -> None:
    """Its id, its locks, and whether it is gone."""
    cache, node = chain(1)
    name = node.name.hex()[:8]
    cache.lock(node)
    assert f"<HashBlock {name}: block 10, 1 locks>" == repr(node)
    cache.unlock(node)
    cache.evict(1)

    assert f"<evicted HashBlock {name}: block 10, 0 locks>" == repr(node)


@pytest.mark.parametrize(
    ("attribute", "value", "fact"),
    [
        ("name", b"another", "a block is found by its name"),
        ("cache", None, "a block names its cache"),
        ("children", 4, "children are counted"),
        ("pins", 2, "locks are the block's own and its children's"),
        ("last_use", 99, "a block is used no later than its parent"),
    ],
)
def test_invariants_find_a_block_that_was_tampered_with(attribute: str, value: object, fact: str) -> None:
    """Whatever of it is wrong, and say what and where."""
    cache, node = chain(3)
    setattr(node, attribute, value)

    with pytest.raises(InvariantError) as caught:
        cache.check_invariants()
    assert f"{fact}: broken at {node!r}" == str(caught.value)


def test_invariants_find_a_wrong_parent() -> None:
    """A parent that is not the one the cache has under its name."""
    cache, node = chain(2)
    other, stranger = chain(1, secret=b"another")
    stranger.last_use = 99
    node.parent.children -= 1
    stranger.children += 1
    node.parent = stranger

    with pytest.raises(InvariantError) as caught:
        cache.check_invariants()
    assert f"its parent is cached: broken at {node!r}" == str(caught.value)
    other.match_prefix([0, 1])


def test_invariants_find_wrong_counters() -> None:
    """Both are recounted."""
    cache, node = chain(2)
    cache.lock(node)
    cache._locked_blocks += 1
    with pytest.raises(InvariantError) as caught:
        cache.check_invariants()
    assert "the root's children and the locked blocks are (1, 2), kept as (1, 3)" == str(caught.value)
    cache._locked_blocks -= 1
    cache.check_invariants()
    cache._root.children += 1
    with pytest.raises(InvariantError) as caught:
        cache.check_invariants()
    assert "the root's children and the locked blocks are (1, 2), kept as (2, 2)" == str(caught.value)
