"""The contract of an eviction policy, over every one in the table: it ranks what it is told of, and nothing else.

The policies stand alone here, with nodes made of a name and a time; what they do inside both caches is compared with a
model in tests/stateful.
"""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from radixkv import POLICIES, EvictionPolicy, HashCache, RadixCache, UnknownNameError, make_policy


class Thing:
    """What a policy sees of a node."""

    def __init__(self, name: str) -> None:
        self.name, self.last_use = name, 0
        self.num_blocks, self.content_name = 1, name

    def __repr__(self) -> str:
        return self.name


class Shelf:
    """Keeps things under a policy as a cache keeps its nodes: every thing is a leaf unless it is locked."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy, self.clock = policy, 0
        self.things: dict[str, Thing] = {}
        self.locked: set[str] = set()

    def insert(self, name: str, priority: int = 0) -> None:
        self.clock += 1
        thing = self.things[name] = Thing(name)
        thing.last_use = self.clock
        self.policy.used([], priority)
        self.policy.inserted(thing, priority)
        self.policy.evictable(thing)

    def use(self, name: str, priority: int | None = None) -> None:
        self.clock += 1
        self.things[name].last_use = self.clock
        self.policy.used([self.things[name]], priority)

    def lock(self, name: str) -> None:
        if name not in self.locked:
            self.locked.add(name)
            self.policy.protected(self.things[name])

    def unlock(self, name: str) -> None:
        if name in self.locked:
            self.locked.remove(name)
            self.policy.evictable(self.things[name])

    def split(self, name: str, upper: str, *, used: bool) -> None:
        """`upper` is split off the beginning of `name`: it has a child, so it is no leaf."""
        thing = self.things[upper] = Thing(upper)
        thing.last_use = self.things[name].last_use
        self.locked.add(upper)
        self.policy.split(thing, self.things[name])
        if used:
            self.use(upper)

    def evict(self) -> str | None:
        victim = self.policy.victim()
        if victim is None:
            return None
        assert victim is self.policy.victim(), "to name a victim changes nothing"
        name = next(name for name, thing in self.things.items() if thing is victim)
        self.policy.removed(victim)
        del self.things[name]
        return name

    def drain(self) -> list[str]:
        """Everything that goes, in order."""
        out = []
        while (name := self.evict()) is not None:
            out.append(name)
        return out


def shelf(policy: str, names: Iterable[str] = ()) -> Shelf:
    made = Shelf(make_policy(policy))
    for name in names:
        made.insert(name)
    return made


every_policy = pytest.mark.parametrize("policy", sorted(POLICIES))


def test_the_table_has_the_policies_of_the_contract() -> None:
    """By these names."""
    assert [
        "arc",
        "density",
        "fifo",
        "lfu",
        "lru",
        "lru2",
        "mru",
        "priority",
        "random",
        "s3fifo",
        "slru",
        "tlru",
    ] == sorted(POLICIES)


@pytest.mark.parametrize("name", ["LRU", "clock", "", None, 7])
def test_an_unknown_name_lists_the_known(name: Any) -> None:
    """`known` is sorted, and the text has every name of it."""
    with pytest.raises(UnknownNameError) as caught:
        make_policy(name)

    assert tuple(sorted(POLICIES)) == caught.value.known
    assert name == caught.value.name
    assert all(known in str(caught.value) for known in POLICIES)


@every_policy
def test_nothing_has_no_victim(policy: str) -> None:
    """Neither a new policy nor one that everything left."""
    made = shelf(policy)

    assert None is made.evict()
    made.insert("a")
    assert ["a"] == made.drain()
    assert None is made.evict()


@every_policy
def test_drains_every_unlocked_node_once(policy: str) -> None:
    """And never a locked one, whatever happened to it before or after it was locked."""
    made = shelf(policy, "abcdef")
    made.lock("b")
    made.use("b")
    made.use("d")
    made.lock("e")
    made.unlock("e")
    made.use("f")
    made.lock("f")

    assert sorted("acde") == sorted(made.drain())
    made.unlock("b")
    made.unlock("f")
    assert sorted("bf") == sorted(made.drain())


@every_policy
def test_a_split_off_node_is_a_victim_once_it_is_a_leaf(policy: str) -> None:
    """It goes after the rest that kept it from being one."""
    made = shelf(policy, "ab")
    made.split("a", "A", used=True)
    order = made.drain()
    made.unlock("A")

    assert sorted("ab") == sorted(order)
    assert ["A"] == made.drain()


@every_policy
def test_is_deterministic(policy: str) -> None:
    """The same 2,000 calls give the same victims, in this process and any other: nothing depends on hashes or time."""
    runs = [replay(policy) for _ in range(2)]

    assert runs[0] == runs[1]
    assert len(runs[0]) > 100


def replay(policy: str) -> list[str]:
    random, made, out = Random(7), shelf(policy), []
    for step in range(2000):
        name = random.choice(sorted(made.things)) if made.things else ""
        match random.randrange(6) if made.things else 0:
            case 0 | 1:
                made.insert(str(step), random.randrange(3))
            case 2:
                made.use(name, random.choice([None, 0, 1, 2]))
            case 3:
                made.lock(name)
            case 4:
                made.unlock(name)
            case _ if len(made.things) > 20 and (victim := made.evict()) is not None:
                out.append(victim)
            case _:
                pass
    return out


@every_policy
def test_keeps_nothing_of_what_went(policy: str) -> None:
    """After everything went no container of the policy holds more than at first, but dead heap entries and ghosts."""
    made = shelf(policy)

    def held() -> int:
        return sum(len(kept) for kept in vars(made.policy).values() if hasattr(kept, "__len__"))

    at_first = held()
    for round_ in range(50):
        for i in range(20):
            made.insert(f"{round_}.{i}")
            made.use(f"{round_}.{i // 2}")
        made.drain()

    assert held() - at_first < 200


@every_policy
def test_does_not_grow_between_evictions(policy: str) -> None:
    """A hundred thousand uses, locks and unlocks of ten nodes leave a policy as large as a hundred did."""
    made = shelf(policy, "abcdefghij")

    def held() -> int:
        return sum(len(kept) for kept in vars(made.policy).values() if hasattr(kept, "__len__"))

    at_first = held()
    for rounds in (10, 1000):
        for _ in range(rounds):
            for name in "abcdefghij":
                made.use(name)
                made.lock(name)
                made.use(name)
                made.unlock(name)

        assert held() - at_first < 200
    assert sorted("abcdefghij") == sorted(made.drain())


# --- what each one ranks by ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", "cbad"),  # last uses: a 6, b 5, c 3, d 7
        ("mru", "dabc"),
        ("fifo", "abcd"),
        ("lfu", "cbda"),  # uses: a 3, b 2, c 1, d 2; b before d for its older use
        ("slru", "cbad"),  # three of four may be protected
        ("priority", "bdca"),
    ],
)
def test_the_order_of_four_nodes(policy: str, expected: str) -> None:
    """Inserted a b c d with priorities 2 0 1 0, then used a b a d: the order by hand."""
    made = shelf(policy)
    for name, priority in zip("abcd", [2, 0, 1, 0], strict=True):
        made.insert(name, priority)
    for name in "abad":
        made.use(name)

    assert list(expected) == made.drain()


def test_priority_is_the_highest_of_all_inserts() -> None:
    """An insert through a node may raise its priority and never lowers it; a match does neither."""
    made = shelf("priority")
    for name, priority in zip("abc", [1, 0, 1], strict=True):
        made.insert(name, priority)
    made.use("a", 0)
    made.use("b", 2)
    made.use("c", None)

    assert ["a", "c", "b"] == made.drain()


def test_priorities_may_be_negative() -> None:
    """Any integer is one."""
    made = shelf("priority")
    for name, priority in zip("abc", [0, -5, 2**70], strict=True):
        made.insert(name, priority)

    assert ["b", "a", "c"] == made.drain()


def test_slru_protects_what_was_used_again() -> None:
    """A node seen once goes before all that were seen twice, however new it is."""
    made = shelf("slru", "abc")
    made.use("a")
    made.use("b")
    for name in "wxyz":
        made.insert(name)

    assert list("cwxyzab") == made.drain()


def test_slru_protects_at_most_four_fifths() -> None:
    """With five nodes all used again the one used longest ago is on probation, at its recent end."""
    made = shelf("slru", "abcde")
    for name in "abcde":
        made.use(name)
    made.insert("f")

    assert "a" == made.evict()
    assert ["f", "b", "c", "d", "e"] == made.drain()


def test_slru_demotes_when_a_removal_leaves_too_many_protected() -> None:
    """Four protected of five are enough; when the fifth goes, the least recent of them follows to probation."""
    made = shelf("slru", "abcde")
    for name in "abcd":
        made.use(name)

    assert "e" == made.evict()
    made.insert("g")
    assert "a" == made.evict()
    assert "g" == made.evict()


def test_slru_moves_a_path_leaf_first() -> None:
    """Of a path used at once the leaf is demoted before its trunk."""
    made = shelf("slru", "pq")
    made.clock += 1
    made.policy.used([made.things["p"], made.things["q"]], None)

    assert ["q", "p"] == made.drain()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", ["a", "b", "A"]),  # A was used now
        ("mru", ["A", "b", "a"]),
        ("fifo", ["a", "A", "b"]),  # A is as old as a
        ("lfu", ["b", "a", "A"]),  # a was used twice, A as often and once more
        ("slru", ["b", "a", "A"]),
        ("priority", ["b", "a", "A"]),
    ],
)
def test_a_split_leaves_the_tail_as_it_was(policy: str, expected: list[str]) -> None:
    """The upper half inherits and is used; the tail is not promoted, and comes first where the two rank alike."""
    made = shelf(policy)
    for name in "xyz":  # so that the protected segment has room for two
        made.insert(name, 9)
        made.lock(name)
    made.insert("a", 1)
    if policy in {"lfu", "slru"}:
        made.use("a")
    made.insert("b", 0)
    made.split("a", "A", used=True)
    order: list[str | None] = []
    while len(order) < 3:
        if "A" in made.locked and ("a" not in made.things or policy == "mru"):
            made.unlock("A")
        order.append(made.evict())

    assert expected == order


# --- pinned facts ----------------------------------------------------------------------------------------------------


def hits(cache: Any, order: Iterable[int], room: int) -> int:
    """One-block prefixes served in this order through a pool with room for so many; how many were found."""
    for prefix in order:
        if not cache.match_prefix([prefix, 0]).matched_tokens:
            cache.evict(max(0, cache.cached_blocks + 1 - room))
            cache.insert([prefix], [prefix])
    return int(cache.stats.hit_tokens)


@pytest.mark.parametrize("kind", [RadixCache, HashCache])
@pytest.mark.parametrize(
    ("policy", "order", "expected"),
    [
        ("lru", "ABCDEABCDE", 0),
        ("fifo", "ABCDEABCDE", 0),
        ("lru", "AABBCCDDEE", 5),
        ("fifo", "AABBCCDDEE", 5),
        ("mru", "AABBCCDDEE", 5),
        ("lfu", "AABBCCDDEE", 5),
        ("slru", "AABBCCDDEE", 5),
        ("priority", "AABBCCDDEE", 5),
    ],
)
def test_five_prefixes_through_room_for_four(kind: type[Any], policy: str, order: str, expected: int) -> None:
    """Cycled, LRU never hits; grouped, every second lookup does, by any policy."""
    assert expected == hits(kind(1, eviction=policy), map(ord, order), 4)


@pytest.mark.parametrize("kind", [RadixCache, HashCache])
def test_mru_keeps_most_of_an_endless_cycle(kind: type[Any]) -> None:
    """Where LRU hits nothing, evicting what was used last hits 3 in 4 of the long run: the optimum."""
    assert 3 / 4 == pytest.approx(hits(kind(1, eviction="mru"), list(range(5)) * 100, 4) / 500, abs=0.01)


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"random"}))
def test_a_partial_hit_does_not_promote_the_tail(policy: str) -> None:
    """In a radix cache: of a split edge only the matched half is used, so the tail is the older of the leaves."""
    cache = RadixCache(1, eviction=policy)
    cache.insert([1, 2, 3], [10, 11, 12])
    cache.insert([5], [20])
    cache.match_prefix([1, 9])

    assert {"mru": [20]}.get(policy, [11, 12]) == cache.evict(1).tolist()
