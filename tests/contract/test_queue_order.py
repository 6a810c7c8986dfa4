"""The contract of a queue order, over every one in the table, and each by hand.

The orders stand alone here: a request is a prompt and a number of cached tokens that the test sets.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from radixkv import TokenKey
from radixkv.scheduler import ORDERS, QueueOrder, Waiting
from radixkv.scheduler.base import RankedOrder
from radixkv.scheduler.dfs_weight import DepthFirst

with_every_order = pytest.mark.parametrize("name", sorted(ORDERS))


class Line:
    """Requests by name, which arrive in the order they are added, and what an order makes of them."""

    def __init__(self, name: str, block_size: int = 1) -> None:
        self.order: QueueOrder = ORDERS[name](block_size)
        self.waiting: dict[str, Waiting] = {}

    def add(self, name: str, tokens: Sequence[int], matched: int = 0, namespace: str | None = None) -> None:
        waiting = self.waiting[name] = Waiting(name, TokenKey(tokens), namespace, 0, len(self.waiting))
        waiting.matched_tokens = matched
        self.order.add(waiting)

    def move(self, name: str, matched: int) -> None:
        self.waiting[name].matched_tokens = matched
        self.order.moved(self.waiting[name])

    def remove(self, name: str) -> None:
        self.order.remove(self.waiting[name])

    def look(self) -> str | None:
        """Who is offered; it does not fit and comes back."""
        waiting = self.order.pop()
        if waiting is not None:
            self.order.add(waiting)
        return waiting.request if waiting else None

    def run(self) -> str | None:
        """Who is offered, and started."""
        waiting = self.order.pop()
        if waiting is None:
            return None
        self.order.started(waiting)
        name: str = waiting.request
        return name

    def rest(self) -> str:
        """All that are left, one after the other."""
        names = ""
        while name := self.run():
            names += name
        return names


# --- every order ------------------------------------------------------------------------------------------------------


@with_every_order
def test_an_empty_order_offers_nobody(name: str) -> None:
    """Before the first request and after the last."""
    line = Line(name)
    assert line.run() is None

    line.add("a", [1])
    assert ("a", None, None) == (line.run(), line.run(), line.run())


@with_every_order
@pytest.mark.parametrize("left_behind", [0, 3, 64])
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_each_request_comes_out_once(
    name: str, block_size: int, left_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is added, moved, taken out, offered and given back: those inside are exactly those that come out."""
    monkeypatch.setattr(RankedOrder, "LEFT_BEHIND", left_behind)
    monkeypatch.setattr(DepthFirst, "LEFT_BEHIND", left_behind)
    random, line, inside = Random(5), Line(name, block_size), set[str]()
    for step in range(1500):
        action = random.choice(["add", "add", "remove", "move", "look", "look", "run"])
        if action == "add" and len(inside) < 30:
            tokens = [random.randrange(2) for _ in range(random.randrange(8))]
            line.add(str(step), tokens, random.randrange(4), random.choice([None, None, "a"]))
            inside.add(str(step))
        elif action == "run":
            out = line.run()
            assert (out in inside) if inside else (out is None)
            inside.discard(str(out))
        elif action == "look":
            assert (line.look() in inside) if inside else (line.look() is None)
        elif inside and action == "remove":
            line.remove(gone := random.choice(sorted(inside)))
            inside.remove(gone)
        elif inside and action == "move":
            line.move(random.choice(sorted(inside)), random.randrange(4))
    left = []
    while out := line.run():
        left.append(out)

    assert sorted(inside) == sorted(left)


@with_every_order
def test_the_same_calls_give_the_same_answers(name: str) -> None:
    """No order depends on a memory address or on chance."""

    def answers() -> list[str | None]:
        random, line, out = Random(3), Line(name, 2), list[str | None]()
        for step in range(400):
            tokens = [random.randrange(2) for _ in range(random.randrange(9))]
            line.add(f"{step} ", tokens, random.randrange(3), random.choice([None, "a", "b"]))
            if random.random() < 0.5:
                out.append(line.look() if random.random() < 0.5 else line.run())
        return [*out, line.rest()]

    assert answers() == answers()


@with_every_order
def test_looking_leaves_no_trace(name: str) -> None:
    """However many were offered and given back, the next is the same, and the order is no bigger than before."""
    line = Line(name, 2)
    for number, tokens in enumerate(
        [[1, 1, 2, 2], [1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 3], [1, 1], [4, 4, 5, 5], [4, 4], [9]]
    ):
        line.add(str(number), tokens)
    assert line.run()
    first = line.look()
    for _ in range(1000):
        taken = [line.order.pop() for _ in range(6)]
        assert first == getattr(taken[0], "request", None)
        for waiting in reversed(taken):
            assert waiting
            line.order.add(waiting)

    assert first == line.look()
    assert entries(line.order) < 6 * 6 * 64


def entries(order: Any) -> int:
    """Everything that an order keeps, dead or alive."""
    if isinstance(order, RankedOrder):
        return len(order._heap) + len(order._live)
    assert isinstance(order, DepthFirst)
    return len(order._live) + sum(len(spot.requests) + len(spot.branches) for spot in order._spots.values())


@with_every_order
def test_an_order_that_is_empty_again_keeps_nothing(name: str) -> None:
    """After a thousand requests that came and went, by every way out."""
    line = Line(name)
    for number in range(1000):
        line.add(str(number), [number % 7, number % 5, number % 3])
        if number % 3:
            line.remove(str(number))
    line.rest()

    assert entries(line.order) <= 64
    if isinstance(line.order, DepthFirst):
        assert (0, 1) == (line.order._tree.num_nodes, len(line.order._spots))


# --- one by one -------------------------------------------------------------------------------------------------------


def test_fcfs_by_hand() -> None:
    """In the order of arrival, whatever is cached; who was taken out and comes back has its old place."""
    line = Line("fcfs")
    line.add("a", [1, 1, 1])
    line.add("b", [2, 2], matched=2)
    line.add("c", [3], matched=1)
    line.move("c", 3)
    assert "a" == line.look()
    line.remove("b")
    line.order.add(line.waiting["b"])

    assert "abc" == line.rest()


def test_lpm_by_hand() -> None:
    """Most cached tokens first; of those with as many the shortest; then the earliest. A change counts at once."""
    line = Line("lpm")
    line.add("a", [1, 1, 1, 1])
    line.add("b", [2, 2, 2])
    line.add("c", [3, 3, 3])
    line.add("d", [4, 4, 4, 4], matched=2)
    line.add("e", [5, 5, 5, 5, 5], matched=3)
    assert "e" == line.look()
    line.move("e", 0)
    assert "d" == line.look()
    line.move("a", 3)
    assert "a" == line.run()
    line.move("c", 1)

    assert "dcbe" == line.rest()


def test_dfs_weight_by_hand() -> None:
    """The branch of most requests first, a prompt before its extensions, and a branch is finished before the next.

    ```text
    root ─┬─ 1 ─┬─ 1        a       four below [1], three below [2], and e alone
          │     └─ 2 ─ 3    b, c; d is [1 2 3 4]
          ├─ 2 ...          x, y, z
          └─ 3              e
    ```
    """
    line = Line("dfs-weight")
    line.add("e", [3])
    line.add("a", [1, 1])
    line.add("d", [1, 2, 3, 4])
    for name, tokens in (("x", [2, 5]), ("y", [2, 6]), ("z", [2, 6, 7])):
        line.add(name, tokens)
    line.add("b", [1, 2, 3])
    line.add("c", [1, 2, 3])
    assert "b" == line.run()
    for name in "uvw":  # the branch of 2 is heavier now; but that of 1 was begun
        line.add(name, [2, 6, 8])

    assert "cda" == "".join(str(line.run()) for _ in range(3))
    assert "yuvwzxe" == line.rest()


def test_dfs_weight_keeps_namespaces_apart() -> None:
    """The same tokens in another namespace are another branch."""
    line = Line("dfs-weight")
    line.add("a", [1, 1])
    line.add("b", [1, 1, 1], namespace="n")
    line.add("c", [1, 1], namespace="n")
    line.add("d", [1, 1, 2])
    line.add("e", [1], namespace="n")

    assert "ecbad" == line.rest()


def test_dfs_weight_goes_on_where_it_was_if_nobody_fit() -> None:
    """Offers that came to nothing do not move it to another branch; a start does."""
    line = Line("dfs-weight")
    for name, tokens in (("a", [1, 1]), ("b", [1, 2]), ("c", [1, 3]), ("x", [2, 1]), ("y", [2, 2])):
        line.add(name, tokens)
    assert "a" == line.run()
    taken = [line.order.pop() for _ in range(3)]
    for waiting in taken:
        assert waiting
        line.order.add(waiting)

    assert {"b", "c"} == {line.run(), line.run()}


def test_dfs_weight_counts_prompts_shorter_than_a_block_at_the_root() -> None:
    """They share nothing, and go first: they cost least."""
    line = Line("dfs-weight", 2)
    for name, tokens in (("a", [1, 1]), ("b", [1]), ("c", []), ("d", [1, 1, 1])):
        line.add(name, tokens)

    assert "cbad" == line.rest()


def test_dfs_weight_after_a_split_and_a_cancel() -> None:
    """A prompt that ends inside the label of others is found before them, and weights follow those taken out."""
    line = Line("dfs-weight")
    line.add("a", [1, 1, 1, 1])
    line.add("b", [1, 1, 1, 2])
    line.add("c", [1, 1])
    line.add("x", [2, 1])
    line.add("y", [2, 2])
    line.remove("a")
    line.remove("b")

    assert {"x", "y"} == {line.run(), line.run()}
    assert "c" == line.rest()


def test_dfs_weight_takes_the_older_of_two_equal_branches() -> None:
    """Where weights are equal, whatever they were in between."""
    line = Line("dfs-weight")
    for name, tokens in (("a", [1, 1]), ("b", [2, 1]), ("c", [2, 2]), ("d", [1, 2]), ("e", [2, 3]), ("f", [2, 4])):
        line.add(name, tokens)
    assert "b" == line.look()
    line.remove("e")
    line.remove("f")

    assert "adbc" == line.rest()
