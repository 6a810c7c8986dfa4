"""The workloads: the same from the same seed, sharing what they promise."""

from __future__ import annotations

import pytest

from radixkv.bench.best import Served, best_hit_tokens
from radixkv.bench.run import FULL
from radixkv.bench.workloads import WORKLOADS, Scale, Text, TextUsedUpError, Workload, make
from tests.bench.conftest import SMALL, letters


def served(workload: Workload) -> list[Served]:
    """Every call's prompt and an output of its own, as if the model never said the same twice."""
    done: list[Served] = []
    for index, call in enumerate(workload.calls):
        before = () if call.after is None else (*done[call.after].prompt, *done[call.after].output)
        done.append(Served((*before, *call.tokens), (1000 + index,) * call.outputs))
    return done


def best_rate(workload: Workload, block_size: int = 4) -> float:
    requests = served(workload)
    return best_hit_tokens(requests, block_size) / sum(len(request.prompt) for request in requests)


@pytest.mark.parametrize("name", WORKLOADS)
def test_seeded(name: str) -> None:
    """The same seed makes the same calls, another one others; its name is the one it is asked for by."""
    workload = make(name, letters, SMALL)

    assert workload == make(name, letters, SMALL)
    assert workload.calls != make(name, letters, SMALL, seed=2).calls
    assert name == workload.name


@pytest.mark.parametrize("name", WORKLOADS)
def test_calls_continue_earlier_ones(name: str) -> None:
    """So that they can be submitted in order, and none waits for ever."""
    for index, call in enumerate(make(name, letters, SMALL).calls):
        assert call.tokens
        assert call.outputs > 0
        assert call.after is None or call.after < index


@pytest.mark.parametrize("name", WORKLOADS)
def test_scale(name: str) -> None:
    """Twice the requests are twice as many calls; twice the length makes longer prompts."""
    workload = make(name, letters, SMALL)
    more, longer = make(name, letters, Scale(2, SMALL.length)), make(name, letters, Scale(1, 2 * SMALL.length))

    assert 2 * len(workload.calls) == len(more.calls)
    assert len(workload.calls) == len(longer.calls)
    assert sum(len(call.tokens) for call in workload.calls) < sum(len(call.tokens) for call in longer.calls)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("few-shot", 0.8),
        ("multi-turn", 0.8),
        ("tree-of-thought", 0.8),
        ("self-consistency", 0.8),
        ("agent", 0.7),
        ("document-qa", 0.6),
        ("shuffled-groups", 0.6),
    ],
)
def test_sharing(name: str, least: float) -> None:
    """So much of all prompts is shared at the default lengths."""
    assert least <= best_rate(make(name, letters, Scale())) < 1


def test_no_sharing() -> None:
    """Nothing but that two passages begin with the same word."""
    assert best_rate(make("no-sharing", letters, Scale())) < 0.002


def test_the_shuffled_groups_do_not_fit_and_are_shuffled() -> None:
    """Otherwise no order would be better than another."""
    calls = make("shuffled-groups", letters, Scale()).calls
    groups = [call.tokens[:112] for call in calls]

    assert {4} == {groups.count(group) for group in groups}
    assert sum(len(call.tokens) for call in calls) > 5 * make("shuffled-groups", letters, Scale()).pool_tokens
    assert groups != sorted(groups, key=groups.index)


def test_the_same_question_is_sampled_from_different_seeds() -> None:
    for name in ("self-consistency", "tree-of-thought"):
        seeds = [call.seed for call in make(name, letters, SMALL).calls if call.seed is not None]
        assert len(seeds) == len(set(seeds)) > 4


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_book_has_enough(name: str) -> None:
    """For the full benchmark, in tokens of four letters, about as long as a model's."""
    assert make(name, lambda words: range(len(words) // 4), FULL).calls


def test_passages_follow_each_other() -> None:
    """No text comes twice and none is lost."""
    text, whole = (Text(letters, seed=1) for _ in range(2))
    first = text.passage(30)

    assert whole.passage(100) == first + text.passage(70)


def test_the_book_ends() -> None:
    """No passage comes twice, so there is an end to them."""
    text = Text(letters, seed=1)
    with pytest.raises(TextUsedUpError, match="999999 tokens") as caught:
        text.passage(999_999)
    assert 999_999 == caught.value.wanted
