"""The doctor: causes that add up, fixes that are worth what a replay gives, and planted faults that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import POLICIES, SizeError, TokenKey
from radixkv.lab import ReplayConfig, lru_curve, replay
from radixkv.lab.causes import CAUSES, MOST_BINS, CausesOverTime, MissCauses, TokenCauses
from radixkv.lab.doctor import Diagnosis, diagnose
from radixkv.lab.fixes import Fix
from radixkv.lab.routing import PrefixAffinity
from radixkv.lab.splits import LEAST, Splits
from radixkv.lab.wording import CAUSE_NAMES, best_fixes, fix_rows
from radixkv.traces import Request
from radixkv.traces.tokenizer import EstimatingTokenizer

NEW = st.lists(st.integers(0, 2), min_size=1, max_size=9)
TRACES = st.lists(st.tuples(NEW, NEW, st.sampled_from([None, None, "a", "b"])), max_size=12)


def request(tokens: Sequence[int], **fields: object) -> Request:
    return Request(TokenKey(tokens), len(tokens), **fields)  # type: ignore[arg-type]


def of_words(trace: Iterable[tuple[list[int], list[int], str | None]], *, span: int, spare: int) -> list[Request]:
    """Requests of tokens with outputs; or of ids for `span` tokens, the last standing for fewer by `spare`."""
    if span == 1:
        return [request(prompt, output=TokenKey(output), namespace=wall) for prompt, output, wall in trace]
    return [
        Request(TokenKey(prompt), len(prompt) * span - spare, span=span, namespace=wall) for prompt, _, wall in trace
    ]


def diagnosed(requests: list[Request], blocks: int, block_size: int, **options: object) -> Diagnosis:
    return diagnose(lambda: requests, blocks, block_size, workers=1, **options)  # type: ignore[arg-type]


def fixes(found: Diagnosis, kind: str) -> list[Fix]:
    return [fix for fix in found.fixes if fix.kind == kind]


def random_tokens(rng: Random, count: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(count)]


# --- Invariants ------------------------------------------------------------------------------------------------------


@given(TRACES, st.integers(1, 9), st.sampled_from([(1, 1, 0), (1, 2, 0), (1, 4, 0), (4, 4, 0), (4, 8, 3), (2, 4, 1)]))
def test_causes_add_up(
    trace: list[tuple[list[int], list[int], str | None]], blocks: int, sizes: tuple[int, int, int]
) -> None:
    """Each input token has one cause; hits are the curve's, and hits and evicted ones together are its ceiling."""
    span, block_size, spare = sizes
    requests = of_words(trace, span=span, spare=spare)
    causes = MissCauses(blocks, block_size)
    curve = lru_curve(requests, block_size, observe=causes.add)
    causes.settle()

    assert sum(one.input_tokens for one in requests) == causes.total.total
    assert all(tokens >= 0 for tokens in astuple(causes.total))
    assert curve.hit_rate(blocks) * curve.input_tokens == pytest.approx(causes.total.hit)
    assert curve.ceiling * curve.input_tokens == pytest.approx(causes.total.hit + causes.total.evicted)
    assert causes.total == sum(causes.over_time.bins, TokenCauses())
    assert causes.total.hit == block_size * len(causes.hit_gap)
    assert causes.total.evicted == block_size * len(causes.evicted_gap)


@given(TRACES)
def test_partial_blocks_are_what_blocks_of_one_would_find(
    trace: list[tuple[list[int], list[int], str | None]],
) -> None:
    """With memory for everything, blocks of 1 find the hits and the partial blocks, to the token."""
    requests = of_words(trace, span=1, spare=0)
    coarse, fine = MissCauses(10**6, 4), lru_curve(requests, 1)
    lru_curve(requests, 4, observe=coarse.add)

    assert int(fine.hit_tokens[-1]) == coarse.total.hit + coarse.total.partial_block


@given(TRACES, st.integers(1, 6))
def test_fixes_are_worth_what_a_replay_gives(trace: list[tuple[list[int], list[int], str | None]], blocks: int) -> None:
    """More memory, another policy and order, and smaller blocks: the caches themselves say the same."""
    requests = of_words(trace, span=1, spare=0)
    found = diagnosed(requests, blocks, 2, policies=("lfu",), replicas=2)

    def hits(**setting: object) -> int:
        config = replace(ReplayConfig(blocks, 2, cache="hash"), **setting)  # type: ignore[arg-type]
        return replay(requests, [config])[0].hit_tokens

    now = hits()
    assert now == found.causes.hit == found.now.hit_tokens
    assert all(fix.saved_tokens == fix.hit_tokens - now for fix in found.fixes)
    assert [hits(eviction="lfu")] * len(fixes(found, "policy")) == [fix.hit_tokens for fix in fixes(found, "policy")]
    assert [hits(order="lpm")] == [fix.hit_tokens for fix in fixes(found, "order")]
    assert [hits(block_size=1, blocks=2 * blocks)] == [fix.hit_tokens for fix in fixes(found, "block size")]
    for fix in fixes(found, "memory"):
        if fix.what.startswith(("2x", "4x")):
            assert hits(blocks=int(fix.what[0]) * blocks) == fix.hit_tokens
    in_turn, by_prefix = (
        next(fix for fix in fixes(found, "replicas") if words in fix.what) for words in ("in turn", "affinity")
    )
    halves = [replay(requests[half::2], [ReplayConfig(blocks, 2, cache="hash")])[0] for half in (0, 1)]
    assert sum(half.hit_tokens for half in halves) == in_turn.hit_tokens
    affinity = PrefixAffinity(2)
    routes = [affinity.route(one) for one in requests]
    halves = [
        replay([one for one, route in zip(requests, routes, strict=True) if route == half], [found.now.config])[0]
        for half in (0, 1)
    ]
    assert sum(half.hit_tokens for half in halves) == by_prefix.hit_tokens


@given(TRACES, st.integers(1, 6))
def test_fixes_are_ranked(trace: list[tuple[list[int], list[int], str | None]], blocks: int) -> None:
    """Most tokens saved first; of the policies the table has the best alone."""
    found = diagnosed(of_words(trace, span=1, spare=0), blocks, 2)

    saved = [fix.saved_tokens for fix in found.fixes]
    assert sorted(saved, reverse=True) == saved
    assert len(fixes(found, "policy")[:1]) == sum(fix.kind == "policy" for fix in best_fixes(found))
    assert len(fix_rows(found)) == sum(fix.saved_tokens != 0 for fix in best_fixes(found))


@given(st.lists(st.integers(0, 5), max_size=400))
def test_causes_over_time_lose_nothing(tokens: list[int]) -> None:
    """However long the trace, there are few bins, of equal width but for the last, and they add up."""
    over_time = CausesOverTime()
    for count in tokens:
        over_time.add(TokenCauses(hit=count))

    width = over_time.requests_per_bin
    assert len(over_time.bins) <= MOST_BINS
    assert [sum(tokens[start : start + width]) for start in range(0, len(tokens), width)] == [
        one.hit for one in over_time.bins
    ]


def test_every_cause_has_a_name() -> None:
    """The tables have a row for each."""
    assert set(CAUSES) == set(CAUSE_NAMES)


@pytest.mark.parametrize(("blocks", "options"), [(0, {}), (1, {"replicas": 0})])
def test_sizes_below_one_are_refused(blocks: int, options: dict[str, int]) -> None:
    """Before anything is read."""
    with pytest.raises(SizeError):
        diagnosed([], blocks, 16, **options)


def test_an_empty_trace() -> None:
    """Nothing to say, and nothing divides by zero."""
    found = diagnosed([], 1, 16)

    assert (0, 0.0) == (found.causes.total, found.hit_rate)
    assert "nothing that was tried" in found.verdict


# --- Planted faults --------------------------------------------------------------------------------------------------


def stamped(rng: Random, count: int, body: list[int], question: int = 20) -> list[Request]:
    """The same body behind a field that is new every time, and a question."""
    return [request([1, 2, 3, *random_tokens(rng, 6), *body, *random_tokens(rng, question)]) for _ in range(count)]


def test_a_timestamp_at_the_start() -> None:
    """Found at its position; almost all of the body is saved by moving it."""
    rng = Random(0)
    body = random_tokens(rng, 400)
    found = diagnosed(stamped(rng, 40, body), 2_000, 16, policies=())

    assert 39 * 400 <= found.causes.parted_early <= 39 * 402
    split = found.splits[0].split
    assert (39, 3, 3, 0) == (split.requests, split.first, split.last, split.reordered)
    assert "volatile text" == found.fixes[0].kind
    assert found.fixes[0].saved_tokens > 0.85 * 39 * 400
    assert found.fixes[0] in found.worth_it


def test_both_sides_of_a_split_are_shown_as_text() -> None:
    """Where the log has text, the text before the split and both ways it goes on."""
    body = " ".join(f"Rule {number} says so." for number in range(40))
    texts = [f"Now: 04:{minute:02}. {body} Question {minute}?" for minute in (10, 25, 33)]
    encode = EstimatingTokenizer().encode
    found = diagnosed([request(encode(text).tolist(), text=text) for text in texts], 100, 16, policies=())

    example = found.splits[0]
    assert ("Now: 04:", True) == (example.shared, example.is_text)
    assert (example.one[:3], example.other[:3]) == ("10.", "25.")


def test_a_split_without_text_shows_tokens() -> None:
    """The ids on both sides."""
    body = list(range(1000, 1200))
    found = diagnosed([request([1, 2, 7, *body]), request([1, 2, 8, *body])], 100, 16, policies=())

    example = found.splits[0]
    assert ("1 2", False) == (example.shared, example.is_text)
    assert ("7 1000", "8 1000") == (example.one[:6], example.other[:6])


def test_shuffled_tools() -> None:
    """The same parts in another order are told from a field that changes, and an order for all saves them."""
    rng = Random(1)
    tools = [random_tokens(rng, 100) for _ in range(6)]
    system = random_tokens(rng, 50)
    requests = []
    for _ in range(60):
        rng.shuffle(tools)
        requests.append(request([*system, *(token for tool in tools for token in tool), *random_tokens(rng, 10)]))
    found = diagnosed(requests, 5_000, 16, policies=())

    split = max((example.split for example in found.splits), key=lambda one: one.tokens)
    assert 2 * split.reordered > split.requests
    assert min(example.split.first for example in found.splits) == 50
    moved = fixes(found, "volatile text")[0]
    assert moved.saved_tokens > 0.5 * found.causes.parted_early


def test_namespace_walls() -> None:
    """The same prompts under other namespaces: the wall is a cause, and one namespace saves just that."""
    body = list(range(100, 164))
    requests = [request([*body, 7, number], namespace=f"tenant {number % 4}") for number in range(20)]
    found = diagnosed(requests, 100, 16, policies=())

    assert 3 * 64 == found.causes.namespace
    assert [3 * 64] == [fix.saved_tokens for fix in fixes(found, "namespaces")]
    assert 16 * 64 == found.causes.hit


def test_a_cycle_one_too_big() -> None:
    """All signs of churn; a little more memory saves everything, and how much is said."""
    prefixes = [list(range(1000 * number, 1000 * number + 64)) for number in range(1, 6)]
    requests = [request([*prefix, 7]) for prefix in prefixes * 40]
    found = diagnosed(requests, 16, 16)

    assert 0 == found.causes.hit
    assert 39 * 5 * 64 == found.causes.evicted
    assert [True, True, True] == [symptom.found for symptom in found.symptoms]
    assert (18, 20) == (found.blocks_to_keep(0.5), found.blocks_to_keep(1.0))
    assert any(fix.kind == "memory" and fix.saved_tokens == found.causes.evicted for fix in found.worth_it)


def test_where_nothing_helps_it_says_so() -> None:
    """Prompts without anything in common: no fix is worth it."""
    rng = Random(2)
    found = diagnosed([request(random_tokens(rng, 100)) for _ in range(30)], 50, 16)

    assert () == found.worth_it
    assert found.causes.first_seen == 3_000
    assert "nothing that was tried" in found.verdict
    assert not any(symptom.found for symptom in found.symptoms)


def test_a_trace_of_ids_knows_no_splits() -> None:
    """Ids say nothing of what is inside a block: the doctor says that, and how much it may be."""
    requests = [Request(TokenKey([1, 100 + number, 200]), 1200, span=512) for number in range(10)]
    found = diagnosed(requests, 100, 512, policies=())

    assert (0, False, 9 * 511 + 511) == (found.causes.parted_early, found.knows_tokens, found.unknown_tokens)
    assert not fixes(found, "block size")


def test_a_last_token_and_a_partial_block() -> None:
    """The same prompt again: all but the last token was seen, whole blocks or not."""
    found = diagnosed([request(range(20))] * 3, 100, 16, policies=())

    assert (32, 6, 2, 20) == (
        found.causes.hit,
        found.causes.partial_block,
        found.causes.last_token,
        found.causes.first_seen,
    )


# --- Splits ----------------------------------------------------------------------------------------------------------


def added(prompts: list[list[int]], parts_at: Callable[[int], int] = lambda _: 0) -> tuple[Splits, list[int]]:
    splits = Splits()
    return splits, [splits.add(number, TokenKey(one), parts_at(number)) for number, one in enumerate(prompts)]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 2**32))
def test_a_long_body_is_found_wherever_it_stands(before: int, after: int, seed: int) -> None:
    """A body of many windows, behind any other beginning and before any other end, to the token."""
    body = random_tokens(Random(seed), 300)
    other = [100_000 + number for number in range(before)]
    _, found = added([body, [*other, *body, *range(200_000, 200_000 + after)]])

    assert [0, 300] == found


def test_a_short_piece_is_no_body() -> None:
    """What is shorter than `LEAST` is not counted."""
    rng = Random(3)
    body = random_tokens(rng, LEAST - 1)
    _, found = added([body, [9, *body]])

    assert [0, 0] == found


@given(st.lists(st.lists(st.integers(0, 1), max_size=80), max_size=6))
def test_stable_first_moves_tokens_and_loses_none(prompts: list[list[int]]) -> None:
    """Prompts that repeat themselves all the time: the same tokens come out, in some order."""
    splits, found = added(prompts)

    assert all(0 <= count <= len(prompt) for count, prompt in zip(found, prompts, strict=True))
    for number, prompt in enumerate(prompts):
        assert sorted(prompt) == sorted(splits.stable_first(number, TokenKey(prompt)).tolist())


def test_prompts_without_splits_stay_as_they_are() -> None:
    """Nothing is moved where nothing parts early."""
    rng = Random(4)
    prompts = [random_tokens(rng, 200) for _ in range(4)]
    splits, _ = added(prompts)

    assert prompts == [splits.stable_first(number, TokenKey(prompt)).tolist() for number, prompt in enumerate(prompts)]


def test_policies_tried_are_policies() -> None:
    """By default, all that may help: LRU is what there is."""
    found = diagnosed([request([*range(10), number]) for number in (1, 2)] * 3, 1, 2)

    tried = {fix.what.removeprefix("eviction policy ") for fix in fixes(found, "policy")}
    assert tried < set(POLICIES)
    assert "lru" not in tried
