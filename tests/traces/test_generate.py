"""What the workloads promise of who shares what with whom."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from radixkv.errors import SizeError, UnknownNameError
from radixkv.traces import Request
from radixkv.traces.generate import WORKLOADS, WorkloadError, make_workload
from radixkv.traces.generate.base import Draws, Zipf

NAMES = sorted(WORKLOADS)
GOLDEN = {
    "chat": "4ec39236838bf1e9",
    "coding-agents": "e9a3c33b49dc7924",
    "cycle": "8dbe7a326ce0aeba",
    "few-shot": "ae96c811a7567f42",
    "rag": "e6c8e21e3a1c819a",
    "shared-system": "12a4469722bc3ca2",
    "tree-of-thought": "fa6369b64e7c19db",
}


def made(name: str, count: int, seed: int = 1, **parameters: float) -> list[Request]:
    return list(make_workload(name, **parameters).requests(count, seed))


def shared(one: Request, other: Request) -> int:
    """Tokens of the common prefix."""
    pairs = zip(one.prompt.tolist(), other.prompt.tolist(), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(one.input_tokens, other.input_tokens))


def digest(requests: list[Request]) -> str:
    """A checksum of everything in them."""
    content = [(r.prompt.tolist(), r.output.tolist(), r.timestamp, r.namespace) for r in requests]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_requests_of_a_workload(name: str) -> None:
    """As many as asked for, in the order of their times, lengths that agree, and nothing but a seed decides."""
    requests = made(name, 60)
    times = [request.timestamp or 0.0 for request in requests]

    assert 60 == len(requests)
    assert times == sorted(times)
    assert 30 < times[-1] < 120
    for request in requests:
        assert (len(request.prompt), len(request.output), 1) == (
            request.input_tokens,
            request.output_tokens,
            request.span,
        )
    assert requests[:20] == made(name, 20)
    assert requests != made(name, 60, seed=2)
    assert [] == made(name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_makes_the_same_everywhere(name: str) -> None:
    """On every machine and every Python: made once, and written down."""
    assert GOLDEN[name] == digest(made(name, 20))


def test_shared_system_prompts() -> None:
    """Requests of a group share its prompt whole, of different ones nothing; the first group is asked most."""
    requests = made("shared-system", 400, groups=4, system_tokens=50, zipf=1.0)
    groups = Counter(tuple(request.prompt.tolist()[:50]) for request in requests)

    assert 4 == len(groups)
    assert 400 * 12 / 25 == pytest.approx(max(groups.values()), rel=0.2)
    assert {0, 50} == {shared(one, other) for one, other in pairwise(requests)}


def test_chats() -> None:
    """A turn begins with the prompt and the answer of the one before it; a new chat with the system prompt."""
    requests = made("chat", 60, sessions=3, turns=4, system_tokens=30)
    known, turns = {tuple(requests[0].prompt.tolist()[:30])}, Counter[bool]()
    for request in requests:
        prompt = tuple(request.prompt.tolist())
        past = max((start for start in known if prompt[: len(start)] == start), key=len)
        turns[len(past) > 30] += 1
        assert 50 <= len(prompt) - len(past) <= 150
        known.add(prompt + tuple(request.output.tolist()))

    assert turns[True] > turns[False] > 3


def test_few_shot() -> None:
    """Requests of a task share all but the question."""
    sizes = {"shots": 3, "instruction_tokens": 10, "example_tokens": 20}
    requests = made("few-shot", 60, tasks=3, **sizes)

    assert 3 == len({tuple(request.prompt.tolist()[:10]) for request in requests})
    assert {0, 70} == {shared(one, other) for one, other in pairwise(requests)}


def test_trees_of_thought() -> None:
    """`branches` requests with one prompt, and then prompts that go on with some of their answers."""
    requests = made("tree-of-thought", 15, trees=1, depth=3, branches=3, keep=2, system_tokens=10)
    prompts = [request.prompt for request in requests]
    thoughts = [request.prompt.extended(request.output) for request in requests]

    assert [3, 3, 3, 3, 3] == list(Counter(prompts).values())
    assert {*prompts[3:9]} < {*thoughts[:3]}
    assert {*prompts[9:]} < {*thoughts[3:9]}
    assert 15 == len({*thoughts})


def test_rag() -> None:
    """The passages of a topic are the same in every order."""
    requests = made("rag", 60, topics=1, passages=3, system_tokens=5, passage_tokens=7)
    passages = [
        tuple(tuple(request.prompt.tolist()[start : start + 7]) for start in (5, 12, 19)) for request in requests
    ]

    assert 1 == len({frozenset(found) for found in passages})
    assert 6 == len(set(passages))
    assert {5, 12, 26} == {shared(one, other) for one, other in pairwise(requests)}


def test_coding_agents() -> None:
    """A step goes on where the one before it ended; sessions of a project share what stands before the task."""
    requests = made("coding-agents", 40, users=1, projects=2, steps=4, system_tokens=30, project_tokens=20)
    steps = [shared(one, other) == one.input_tokens for one, other in pairwise(requests)]
    begun = [shared(one, other) for (one, other), goes_on in zip(pairwise(requests), steps, strict=True) if not goes_on]

    assert {30, 50} == set(begun)
    for (one, other), goes_on in zip(pairwise(requests), steps, strict=True):
        if goes_on:
            both = one.prompt.extended(one.output)
            assert both == other.prompt.prefix(len(both))


def test_a_cycle() -> None:
    """Each prefix comes back after all others, with a token of its own behind it."""
    requests = made("cycle", 12, prefixes=5, prefix_tokens=6)

    assert [6] * 7 == [shared(requests[i], requests[i + 5]) for i in range(7)]
    assert {0} == {shared(requests[i], requests[j]) for i in range(5) for j in range(i)}
    assert {7} == {request.input_tokens for request in requests}
    assert 12 == len({request.prompt for request in requests})


def test_a_cycle_with_one_shots() -> None:
    """They share nothing, are as long, and the cycle goes on behind them as if they were not there."""
    requests = made("cycle", 400, prefixes=3, prefix_tokens=6, suffix_tokens=0, one_shots=0.25)
    times = Counter(request.prompt for request in requests)
    cycle = [request.prompt for request in requests if times[request.prompt] > 1]

    assert 3 == len(set(cycle))
    assert cycle == [cycle[i % 3] for i in range(len(cycle))]
    assert 300 == pytest.approx(len(cycle), rel=0.1)
    assert {6} == {request.input_tokens for request in requests}


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_checked(name: str) -> None:
    """One that cannot be is said at once, with its name."""
    for field, default in vars(WORKLOADS[name]()).items():
        wrong: list[Any] = [-1, 2.5, True] if isinstance(default, int) else [-0.5, True, math.nan, math.inf, "1"]
        for value in wrong:
            with pytest.raises((SizeError, WorkloadError), match=f"{field} must be"):
                make_workload(name, **{field: value})


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("cycle", {"rate": 0}, "rate"),
        ("cycle", {"one_shots": 1}, "one_shots"),
        ("cycle", {"prefixes": 0}, "prefixes"),
        ("cycle", {"speed": 1}, "known: rate, prefixes"),
        ("circle", {}, "chat, coding-agents, cycle"),
    ],
)
def test_what_is_no_workload(name: str, parameters: dict[str, float], words: str) -> None:
    """Said, with what there is."""
    with pytest.raises((UnknownNameError, WorkloadError, SizeError), match=words):
        make_workload(name, **parameters)
    with pytest.raises(SizeError):
        make_workload("cycle").requests(-1, 0)


def test_draws() -> None:
    """Within their bounds, every value in them, and texts told apart by name and seed."""
    draws = Draws(3)

    assert set(range(5)) == {draws.below(5) for _ in range(200)}
    assert set(range(5, 16)) == {draws.around(10) for _ in range(500)}
    assert {1, 2} >= {draws.around(1) for _ in range(50)}
    assert 6 == len({tuple(draws.shuffled("abc")) for _ in range(200)})
    assert 2.0 == pytest.approx(sum(draws.pause(0.5) for _ in range(4000)) / 4000, rel=0.1)
    assert draws.text(9, "a", 1)[:5] == draws.text(5, "a", 1) == Draws(3).text(5, "a", 1)
    assert 3 == len({bytes(text) for text in (draws.text(5, "a", 1), draws.text(5, "a", 2), Draws(4).text(5, "a", 1))})


def test_zipf() -> None:
    """The i-th has a weight of 1 / i**exponent."""
    draws = Draws(5)
    drawn = Counter(map(Zipf(3, 1.0).draw, [draws] * 6000))
    even = Counter(map(Zipf(3, 0.0).draw, [draws] * 6000))

    assert [6 / 11, 3 / 11, 2 / 11] == pytest.approx([drawn[i] / 6000 for i in range(3)], abs=0.03)
    assert [1 / 3] * 3 == pytest.approx([even[i] / 6000 for i in range(3)], abs=0.03)
