"""Tokens are drawn from the distribution that the parameters say, with each request's own random numbers."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radixkv.engine import ParameterError, SamplingParams
from radixkv.engine.sampling import MAX_LOGPROBS, Sampler, _nucleus, _place, sample

SIZE = 600
LOGITS = torch.randn(SIZE, generator=torch.Generator().manual_seed(3)) * 3


def draw(count: int, logits: torch.Tensor = LOGITS, prompt: tuple[int, ...] = (), **params: Any) -> list[int]:
    sampler = Sampler(SamplingParams(**params), prompt, len(logits))
    return [sample(logits[None], [sampler])[0][0] for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("seed", "7"),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("stop", ["a"]),
        ("stop", ("",)),
        ("stop_token_ids", (-1,)),
        ("logprobs", MAX_LOGPROBS + 1),
        ("logprobs", True),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-3),
        ("repetition_penalty", 1e308),
        ("ignore_eos", 1),
    ],
)
def test_wrong_parameters(name: str, wrong: Any) -> None:
    """The error names the parameter."""
    with pytest.raises(ParameterError, match=name) as caught:
        SamplingParams(**{name: wrong})

    assert name == caught.value.name
    assert wrong is caught.value.given


def test_greedy_is_the_likeliest() -> None:
    assert draw(3, temperature=0) == [int(LOGITS.argmax())] * 3


@pytest.mark.parametrize("penalty", [0.01, 1, 100])
@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (5e-324, 0), (5e-324, 5), (1.0, 5)])
def test_the_lowest_temperatures_are_greedy(top_p: float, top_k: int, penalty: float) -> None:
    """No number is so small that it makes one of infinite size: such a request would end all that run with it."""
    for temperature in (5e-324, 1e-300, 1e-9):
        params: dict[str, Any] = {"top_p": top_p, "top_k": top_k, "repetition_penalty": penalty}
        expected = draw(3, temperature=0, repetition_penalty=penalty, prompt=(1, 2))
        assert expected == draw(3, temperature=temperature, seed=1, prompt=(1, 2), **params)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.5, 0), (1.0, 2), (0.5, 2)])
def test_no_temperature_is_too_high(top_p: float, top_k: int) -> None:
    """A token that the model rules out is never drawn, nor does it fail the step."""
    logits = torch.tensor([float("-inf"), 1.0, 1.0, float("-inf")])
    drawn = draw(40, logits, temperature=1e39, seed=1, top_p=top_p, top_k=top_k)

    assert set(drawn) <= {1, 2}
    if top_p == 1:
        assert {1, 2} == set(drawn)


def test_frequencies_are_the_probabilities() -> None:
    """Of 4 tokens at temperature 2, 4,000 draws: each within four standard deviations."""
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0])
    expected = (logits / 2).softmax(0).tolist()
    counts = Counter(draw(4_000, logits, temperature=2, seed=1))

    for token, probability in enumerate(expected):
        deviation = (4_000 * probability * (1 - probability)) ** 0.5
        assert abs(counts[token] - 4_000 * probability) < 4 * deviation


@given(
    top_k=st.sampled_from([0, 1, 5, 300, SIZE, 2 * SIZE]),
    top_p=st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 40.0]),
)
def test_who_may_be_drawn(top_k: int, top_p: float, temperature: float) -> None:
    """The smallest set of likeliest tokens, by sorting all of them."""
    scaled = (LOGITS - LOGITS.max()).double() / temperature
    order = scaled.argsort(descending=True)[: top_k or SIZE]
    probabilities = scaled[order].softmax(0)
    kept = order if top_p >= 1 else order[(probabilities.cumsum(0) - probabilities) < top_p]
    got, tokens = _nucleus(scaled, top_k, top_p)

    assert sorted(kept.tolist()) == sorted(range(SIZE) if tokens is None else tokens.tolist())
    exact = scaled[kept if tokens is None else tokens].softmax(0)
    found = got if tokens is not None else got[kept]
    assert torch.allclose(exact, found / found.sum())


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.125, 0.5, 3.0]), min_size=1, max_size=700).filter(any),
    share=st.one_of(st.sampled_from([0.0, 0.5, 1 - 2**-53]), st.floats(0, 1, exclude_max=True)),
    exact=st.booleans(),
)
def test_the_place_is_where_the_running_sum_passes_the_share(
    weights: list[float], share: float, *, exact: bool
) -> None:
    """Found by adding up, one after the other: the first whose sum is above it; never one that weighs nothing."""
    dtype = torch.float64 if exact else torch.float32
    place = _place(torch.tensor(weights, dtype=dtype), torch.tensor(share, dtype=torch.float64))
    sums = list(accumulate(torch.tensor(weights, dtype=dtype).tolist()))

    assert 0 < weights[place]
    assert (sums[place - 1] if place else 0.0) <= share * sums[-1] * (1 + 1e-12)
    assert share * sums[-1] <= sums[place] * (1 + 1e-12)


def test_seeds() -> None:
    """The same seed draws the same tokens, whatever is drawn between them; no seed draws its own."""
    one = Sampler(SamplingParams(seed=9), (), SIZE)
    two = Sampler(SamplingParams(seed=9), (), SIZE)
    other = Sampler(SamplingParams(seed=10), (), SIZE)
    rows = torch.stack([LOGITS, LOGITS, LOGITS])
    both = [[token for token, _ in sample(rows, [one, other, two])] for _ in range(20)]

    assert [row[0] for row in both] == [row[2] for row in both] == draw(20, seed=9)
    assert [row[1] for row in both] == draw(20, seed=10)
    assert draw(20) != draw(20)


def test_repetition_penalty() -> None:
    """Tokens of the prompt and those drawn since are pushed down, whatever their logits' sign."""
    logits = torch.tensor([5.0, 4.0, 3.0, -1.0])

    assert [1, 2, 0] == draw(3, logits, (0,), temperature=0, repetition_penalty=2.0)
    negative = torch.tensor([-1.0, -1.5])
    assert [1] == draw(1, negative, (0,), temperature=0, repetition_penalty=2.0)


def test_logprobs_are_the_models_own() -> None:
    """Before penalty, temperature and cuts."""
    params = SamplingParams(logprobs=2, temperature=0.1, top_k=1, repetition_penalty=3.0, seed=1)
    logits = torch.tensor([3.0, 2.9, 0.0])
    exact = logits.log_softmax(0).tolist()
    ((token, logprobs),) = sample(logits[None], [Sampler(params, (0,), 3)])

    assert 1 == token
    assert logprobs is not None
    assert 1 == logprobs.token
    assert exact[1] == pytest.approx(logprobs.logprob)
    assert [0, 1] == [alternative for alternative, _ in logprobs.top]
    assert exact[:2] == pytest.approx([logprob for _, logprob in logprobs.top])
    ((_, none),) = sample(logits[None], [Sampler(SamplingParams(logprobs=0), (), 3)])
    assert none is not None
    assert () == none.top
