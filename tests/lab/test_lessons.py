"""docs/lessons.md says what the code does: its numbers are pinned here, and the page is what the code writes."""

from __future__ import annotations

import re

import pytest

from tools import lessons


def test_sharing_in_layers() -> None:
    """Two splits: a tree of one node, then three, then five."""
    steps = lessons.layers()

    assert [(13, 0, 1, 13), (13, 10, 3, 16), (12, 7, 5, 21)] == [
        (step.tokens, step.matched, step.nodes, step.cached) for step in steps
    ]


@pytest.mark.parametrize(
    ("block_size", "shared", "expected"),
    [
        (16, 15, 0),
        (16, 16, 16),
        (16, 40, 32),
        (16, 63, 48),
        (16, 64, 48),
        (1, 0, 0),
        (1, 40, 40),
        (1, 63, 63),
        (1, 64, 63),
    ],
)
def test_reuse_by_block_size(block_size: int, shared: int, expected: int) -> None:
    """Whole blocks, and never the last token."""
    assert expected == lessons.reuse(block_size, shared)


def test_the_trunk_goes_last() -> None:
    """The oldest leaf first; of one path, the tail before the head."""
    assert ["question2", "rules question3", "question1", "tools", "system"] == lessons.evictions()


def test_nine_requests_in_two_orders() -> None:
    """Room for one: 0 hits as they came, 6 by the longest prefix."""
    came, found = lessons.queued("ABCABCABC", "fcfs")
    sorted_, found_sorted = lessons.queued("ABCABCABC", "lpm")

    assert ("ABCABCABC", 0) == (came, sum(map(bool, found)))
    assert ("AAABBBCCC", 6) == (sorted_, sum(map(bool, found_sorted)))


def test_five_prefixes_in_room_for_four() -> None:
    """0 of 10 in turn, 5 of 10 grouped."""
    assert 0 == sum(map(bool, lessons.matched("ABCDEABCDE", 4)))
    assert 5 == sum(map(bool, lessons.matched("AABBCCDDEE", 4)))


def test_flat_and_then_a_cliff() -> None:
    """Nothing at every size below the whole cycle; all but the first round from there."""
    shares = lessons.cliff("lru")

    assert {0.0} == {share for room, share in shares.items() if room < 40}
    assert {0.995} == {share for room, share in shares.items() if room >= 40}


def test_the_policy_that_survives_the_cycle() -> None:
    """Three hits in four once it has learned, which is all there is; at no size below LRU or above the optimum."""
    learned = lessons.matched("ABCDE" * 200, 32, blocks=8, policy="density")[500:]
    shares = lessons.cliff("density")

    assert 0.75 == sum(map(bool, learned)) / len(learned)
    assert all(lessons.cliff("lru")[room] <= shares[room] <= lessons.best_possible()[room] for room in shares)


def test_the_page_is_what_the_code_writes() -> None:
    """`make figures` would change no number."""
    page = lessons.PAGE.read_text(encoding="utf-8")

    assert page == lessons.rewritten(page)
    assert set(lessons.SECTIONS) == set(re.findall(r"<!-- made: (\S+) -->", page))


@pytest.mark.parametrize("name", lessons.PICTURES)
def test_the_pictures_are_what_the_code_draws(name: str) -> None:
    """`make figures` would change no picture, and the page shows each."""
    path = lessons.FIGURES / f"lesson-{name}.svg"

    assert path.read_text(encoding="utf-8") == lessons.PICTURES[name]().svg
    assert f"(figures/{path.name})" in lessons.PAGE.read_text(encoding="utf-8")


def test_a_changed_number_is_found() -> None:
    """The check above can fail."""
    page = "<!-- made: evictions -->\nsomething else\n<!-- made. -->"

    assert lessons.rewritten(page) != page
