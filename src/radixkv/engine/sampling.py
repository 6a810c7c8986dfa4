"""Sampling: from logits to tokens, every request with its own parameters and its own random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NamedTuple

import torch

from radixkv.engine.errors import ParameterError

MAX_LOGPROBS: Final = 20
"""Most alternatives a request may ask for with each token."""

_CANDIDATES: Final = 256  # first guess at how many tokens hold `top_p` of the probability
_SPAN: Final = 256  # tokens whose weights are summed before those of single ones are looked at
_COLDEST: Final = 1e-30  # of float32: less would divide 0 by 0
_HOTTEST: Final = 1e30  # more, infinity by infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends.

    Applied in this order: repetition penalty, temperature, top-k, top-p.

    Raises:
        ParameterError: a value out of its range; it names the parameter.

    >>> SamplingParams(temperature=0, max_tokens=16).greedy
    True
    >>> SamplingParams(top_p=0)
    Traceback (most recent call last):
    radixkv.engine.errors.ParameterError: top_p must be above 0 and at most 1, got 0
    """

    temperature: float = 1.0
    """0 takes the likeliest token always."""
    top_p: float = 1.0
    """Only the likeliest tokens that together have this much of the probability."""
    top_k: int = 0
    """Only so many of the likeliest tokens; 0 for all."""
    seed: int | None = None
    """The same seed gives the same text, whatever else is in the batch. None draws one."""
    max_tokens: int | None = None
    """Most tokens of output; None for what the model's context leaves."""
    stop: tuple[str, ...] = ()
    """Strings that end the output, which does not contain them."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the output, besides the model's own; their text is not in it."""
    logprobs: int | None = None
    """With each token, its log-probability and that of so many of the likeliest, before any of the above."""
    repetition_penalty: float = 1.0
    """Above 1, tokens of prompt and output so far become less likely: what the logit is divided by."""
    ignore_eos: bool = False
    """Go on behind the model's end-of-sequence tokens."""

    def __post_init__(self) -> None:
        for name, (right, expected) in _RULES.items():
            given = getattr(self, name)
            if not right(given):
                raise ParameterError(name=name, expected=expected, given=given)

    @property
    def greedy(self) -> bool:
        """Whether no random number is drawn."""
        return self.temperature == 0


class TokenLogprobs(NamedTuple):
    """Log-probabilities of one position, of the model's own distribution."""

    token: int
    """The one that was chosen."""
    logprob: float
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens and theirs, likeliest first; as many as were asked for."""


class Sampler:
    """One request's choice of tokens: its parameters, random numbers and the tokens seen so far.

    Args:
        params: the request's.
        prompt: its tokens, for the repetition penalty.
        vocab_size: numbers a row of logits has.
    """

    def __init__(self, params: SamplingParams, prompt: Iterable[int], vocab_size: int) -> None:
        self.params = params
        self._generator: torch.Generator | None = None
        if not params.greedy:
            self._generator = torch.Generator()
            if params.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(params.seed)
        self._seen: torch.Tensor | None = None
        if params.repetition_penalty != 1:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool)
            self._seen[torch.tensor(sorted(set(prompt)), dtype=torch.int64)] = True

    @property
    def plain(self) -> bool:
        """Whether the choice is the likeliest token of the logits as they are."""
        return self.params.greedy and self._seen is None

    def choose(self, logits: torch.Tensor) -> int:
        """The next token, out of logits `[vocabulary]`, float32 on the CPU. O(vocabulary) and more for top-p."""
        params = self.params
        if self._seen is not None:
            penalty = params.repetition_penalty
            penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(self._seen, penalized, logits)
        token = int(likeliest(logits)) if self._generator is None else self._draw(logits, self._generator)
        if self._seen is not None:
            self._seen[token] = True
        return token

    def _draw(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        # one random number a token, whatever the parameters: the float64 sums make batches that differ in the last
        # bits of their logits choose alike
        point = torch.rand((), dtype=torch.float64, generator=generator)
        # however low the temperature, the likeliest token stays at 0; however high, one without a chance has none
        scaled = (logits - logits.max()) / min(max(self.params.temperature, _COLDEST), _HOTTEST)
        weights, tokens = _nucleus(scaled, self.params.top_k, self.params.top_p)
        place = _place(weights, point)
        return place if tokens is None else int(tokens[place])


def sample(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[tuple[int, TokenLogprobs | None]]:
    """Choose the next token of every request, and its log-probabilities where they are asked for.

    Args:
        logits: `[requests, vocabulary]`, float32.
        samplers: one for each row.
    """
    plain = [row for row, sampler in enumerate(samplers) if sampler.plain]
    rows = logits if len(plain) == len(samplers) else logits[plain]
    tokens = dict(zip(plain, likeliest(rows).tolist(), strict=True)) if plain else {}
    chosen: list[tuple[int, TokenLogprobs | None]] = []
    for row, sampler in enumerate(samplers):
        token = tokens[row] if sampler.plain else sampler.choose(logits[row].cpu())
        wanted = sampler.params.logprobs
        chosen.append((token, None if wanted is None else token_logprobs(logits[row], token, wanted)))
    return chosen


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The place of the largest of the last dimension, the first one of several; of float32, without gradients."""
    # numpy's search is some times as fast as torch's on a CPU, where every request of a step waits for it
    return torch.from_numpy(logits.numpy().argmax(-1, keepdims=True)[..., 0]) if logits.is_cpu else logits.argmax(-1)


def token_logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities of `token` and of the `count` likeliest tokens, of logits `[vocabulary]`."""
    logprobs = torch.log_softmax(logits, -1)
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    return TokenLogprobs(token, float(logprobs[token]), tuple(zip(tokens.tolist(), values.tolist(), strict=True)))


def _nucleus(scaled: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weights of the tokens that may be drawn, of logits below 0, and which they are (None: all, in order)."""
    vocab_size = len(scaled)
    limit = min(top_k, vocab_size) if top_k else vocab_size
    if limit == vocab_size and top_p >= 1:
        return scaled.exp(), None
    if top_p >= 1:
        values, tokens = scaled.topk(limit)
        return values.double().exp_(), tokens
    # with top-k, top-p is a share of what top-k leaves
    total = (scaled.topk(limit).values if top_k else scaled).exp().sum(dtype=torch.float64)
    count = min(limit, _CANDIDATES)
    while True:
        values, tokens = scaled.topk(count)
        weights = values.double().exp_()
        before = weights.cumsum(0) - weights
        kept = int((before < top_p * total).sum())  # at least the likeliest: there is nothing before it
        if kept < count or count == limit:
            return weights[:kept], tokens[:kept]
        count = min(limit, count * 8)


def _place(weights: torch.Tensor, share: torch.Tensor) -> int:
    """Where the running sum of the weights passes that share of all: first in which span of them, then there."""
    spans = torch.nn.functional.pad(weights, (0, -len(weights) % _SPAN)).view(-1, _SPAN)
    ends = spans.sum(-1, dtype=torch.float64).cumsum(0)
    target = share * ends[-1]
    span = _first_above(ends, target)
    sums = spans[span].double().cumsum(0)
    if span:
        sums += ends[span - 1]
    return span * _SPAN + _first_above(sums, target)


def _first_above(sums: torch.Tensor, target: torch.Tensor) -> int:
    """The first of rising sums above `target`; where rounding leaves none, the first that is as large as the last."""
    place = int(torch.searchsorted(sums, target, right=True))
    return place if place < len(sums) else int(torch.searchsorted(sums, sums[-1]))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_integer(value: object, minimum: int, maximum: int | None = None) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return minimum <= value and (maximum is None or value <= maximum)


def _all_are(kind: Callable[[object], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, tuple) and all(map(kind, values))


_RULES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "temperature": (lambda value: _is_number(value) and value >= 0, "0 or more"),
    "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "above 0 and at most 1"),
    "top_k": (lambda value: _is_integer(value, 0), "an integer of 0 (all) or more"),
    "seed": (lambda value: value is None or _is_integer(value, -(2**63), 2**64 - 1), "an integer of 64 bits"),
    "max_tokens": (lambda value: value is None or _is_integer(value, 1), "an integer of 1 or more"),
    "stop": (_all_are(lambda text: isinstance(text, str) and text != ""), "a tuple of strings that are not empty"),
    "stop_token_ids": (_all_are(lambda token: _is_integer(token, 0)), "a tuple of token ids"),
    "logprobs": (
        lambda value: value is None or _is_integer(value, 0, MAX_LOGPROBS),
        f"an integer of 0 to {MAX_LOGPROBS}",
    ),
    "repetition_penalty": (lambda value: _is_number(value) and 0.01 <= value <= 100, "between 0.01 and 100"),
    "ignore_eos": (lambda value: isinstance(value, bool), "true or false"),
}
"""What each parameter has to be."""
