"""Why a hit rate is what it is: where every missed token went, the symptoms of churn, and what each fix is worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Final

import numpy as np

from radixkv.eviction import POLICIES
from radixkv.keys import TOKEN_BYTES, check_size, common_prefix
from radixkv.lab.causes import CausesOverTime, MissCauses, PrefixTree, TokenCauses
from radixkv.lab.curve import LruCurve, lru_curve
from radixkv.lab.fixes import Fix, Kind, Pricing, WhatIf, replays, what_ifs
from radixkv.lab.grid import TraceSource, replay_grid
from radixkv.lab.histogram import Histogram
from radixkv.lab.optimum import Optimum
from radixkv.lab.replay import ReplayResult
from radixkv.lab.sizes import bytes_text
from radixkv.lab.splits import Split
from radixkv.traces import Request

WORTH_IT: Final = 0.005
"""The gain in hit rate below which a fix is not worth its name, and a cause not worth a symptom."""
SPLITS_SHOWN: Final = 5
NOT_TRIED: Final = frozenset({"lru", "mru", "priority"})
"""Policies that are no fix: the present one, one that is right for a cycle alone, and one that is told priorities."""

_AROUND: Final = 40
_TOKENS_AROUND: Final = 6


@dataclass(frozen=True, slots=True)
class Symptom:
    """A sign of churn: a cache that gives up blocks just before they are asked for again."""

    name: str
    found: bool
    text: str
    """What was measured, in a sentence."""


@dataclass(frozen=True, slots=True)
class SplitExample:
    """Prompts that part early, and how two of them do."""

    split: Split
    shared: str
    """What stands just before the place where the two part, the end of what they share."""
    one: str
    """How the earlier one goes on."""
    other: str
    """How the later one does."""
    is_text: bool
    """Whether these are text; else token ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """What `diagnose` found. Everything is about an LRU cache that evicts single blocks."""

    blocks: int
    """The present capacity."""
    block_size: int
    block_bytes: float | None
    """Bytes of K and V a block, where the model is known."""
    curve: LruCurve
    causes: TokenCauses
    """All input tokens, each under one cause."""
    over_time: CausesOverTime
    hottest: PrefixTree
    now: ReplayResult
    """The replay of the cache as it is."""
    hit_gap: Histogram
    """Of blocks found cached, the requests since their last use."""
    evicted_gap: Histogram
    """Of blocks asked for again after they were evicted, the same."""
    optimum: Optimum
    """What a policy that knows the future finds at any capacity."""
    optimum_tokens: int
    """At the present one."""
    span: int
    """Tokens that a word of the trace stands for: see `Request.span`."""
    unknown_tokens: int
    """See `MissCauses.unknown_tokens`."""
    symptoms: tuple[Symptom, ...]
    splits: tuple[SplitExample, ...]
    """Those that cost most; the rest of `causes.parted_early` has more of them."""
    fixes: tuple[Fix, ...]
    """Most tokens saved first."""

    @property
    def knows_tokens(self) -> bool:
        """Whether the trace has tokens; one of block ids hides what happens inside a block."""
        return self.span == 1

    @property
    def hit_rate(self) -> float:
        """Hit tokens over input tokens, now."""
        return self.share(self.causes.hit)

    def share(self, tokens: float) -> float:
        """Of the input tokens."""
        return tokens / self.curve.input_tokens if self.curve.input_tokens else 0.0

    def blocks_to_keep(self, share: float) -> int:
        """The smallest capacity that would have kept such a share of the tokens that were evicted and read again."""
        wanted = self.causes.hit + share * self.causes.evicted
        return int(np.searchsorted(self.curve.hit_tokens, wanted))

    def size_text(self, blocks: int) -> str:
        """A capacity in words, with its memory where that is known."""
        return _size_text(blocks, self.block_bytes)

    @property
    def worth_it(self) -> tuple[Fix, ...]:
        """Those fixes that gain at least `WORTH_IT`."""
        return tuple(fix for fix in self.fixes if fix.gain >= WORTH_IT)

    @property
    def verdict(self) -> str:
        """What to do, in a sentence or two."""
        missed = f"{self.share(self.causes.missed):.1%} of the input tokens miss"
        if not self.worth_it:
            return (
                f"{missed}, and nothing that was tried gains even {WORTH_IT:.1%}: "
                f"{self.share(self.causes.first_seen):.1%} were never seen before."
            )
        best = self.worth_it[0]
        return (
            f"{missed}. What helps most: {best.what} takes the hit rate from {self.hit_rate:.1%} to "
            f"{best.hit_rate:.1%} and saves {best.saved_tokens:,} tokens of prefill."
        )

    def to_json(self) -> dict[str, Any]:
        """All of it but the pictures' data, ready for JSON."""
        return {
            "blocks": self.blocks,
            "block_size": self.block_size,
            "requests": self.curve.requests,
            "input_tokens": self.curve.input_tokens,
            "unique_blocks": self.curve.unique_blocks,
            "hit_rate": self.hit_rate,
            "ceiling": self.curve.ceiling,
            "optimum": self.share(self.optimum_tokens),
            "causes": asdict(self.causes),
            "blocks_to_keep_evicted": {f"{share:.0%}": self.blocks_to_keep(share) for share in (0.5, 0.9, 1.0)},
            "tokens_known": self.knows_tokens,
            "partial_block_at_most": self.causes.partial_block + self.unknown_tokens,
            "symptoms": [asdict(symptom) for symptom in self.symptoms],
            "parted_early": [asdict(example) for example in self.splits],
            "fixes": [asdict(fix) | {"hit_rate": fix.hit_rate, "gain": fix.gain} for fix in self.fixes],
            "verdict": self.verdict,
        }


def policies_to_try() -> tuple[str, ...]:
    """The eviction policies that may do better than LRU."""
    return tuple(sorted(set(POLICIES) - NOT_TRIED))


def diagnose(  # noqa: PLR0913  # what the cache is, and what to try
    trace: TraceSource,
    blocks: int,
    block_size: int,
    *,
    policies: Sequence[str] | None = None,
    replicas: int = 4,
    block_bytes: float | None = None,
    workers: int | None = None,
) -> Diagnosis:
    """Find out where the missed tokens of a trace went, and price what could be done about them.

    Reads the trace three times, and once more a worker. Costs an LRU curve, a replay for every policy, and one pass
    through at most seven caches; memory grows with what is new in the trace.

    Args:
        trace: reads it from its beginning whenever it is called; for workers it must pickle.
        blocks: capacity of the cache.
        block_size: tokens a block, a whole multiple of the trace's span.
        policies: eviction policies to try; by default `policies_to_try()`.
        replicas: how many to try; 1 tries none.
        block_bytes: bytes of K and V a block, to say capacities in memory.
        workers: processes for the replays; by default one a core.

    Raises:
        SizeError: a number below 1.
        UnknownNameError: no such policy.
        SpanError, TraceError: as the curve and the trace.
    """
    check_size("blocks", blocks, 1)
    check_size("replicas", replicas, 1)
    causes, optimum = MissCauses(blocks, block_size), Optimum(block_size)

    def observe(number: int, request: Request, runs: list[Any]) -> None:
        causes.add(number, request, runs)
        optimum.add(number, request, runs)

    curve = lru_curve(trace(), block_size, observe=observe)
    causes.settle()
    tried = policies_to_try() if policies is None else policies
    # Where nothing is evicted no policy can help.
    settings = replays(blocks, block_size, tried if blocks < curve.unique_blocks else ())
    now, *others = replay_grid(trace, settings, workers=workers)
    wanted = causes.splits.worst()[:SPLITS_SHOWN]
    changed = what_ifs(causes, blocks, block_size, replicas)
    examples = _run(trace(), [what_if for *_, what_if in changed], wanted)
    fixes = _priced(curve, blocks, block_bytes, others, changed)
    return Diagnosis(
        blocks=blocks,
        block_size=block_size,
        block_bytes=block_bytes,
        curve=curve,
        causes=causes.total,
        over_time=causes.over_time,
        hottest=causes.hottest,
        now=now,
        hit_gap=causes.hit_gap,
        evicted_gap=causes.evicted_gap,
        optimum=optimum,
        optimum_tokens=optimum.hit_tokens(blocks),
        span=max(causes.spans, default=1),
        unknown_tokens=causes.unknown_tokens,
        symptoms=_symptoms(curve, causes, now, blocks, block_bytes),
        splits=tuple(_example(split, examples[split.source], examples[split.example]) for split in wanted),
        fixes=tuple(fixes),
    )


def _run(requests: Iterable[Request], what_ifs: list[WhatIf], wanted: list[Split]) -> dict[int, Request]:
    """Tell the changed caches the trace; the requests that stand for a split, by number."""
    numbers = {number for split in wanted for number in (split.source, split.example)}
    examples = {}
    for number, request in enumerate(requests):
        for what_if in what_ifs:
            what_if.serve(number, request)
        if number in numbers:
            examples[number] = request
    return examples


def _priced(
    curve: LruCurve,
    blocks: int,
    block_bytes: float | None,
    results: Iterable[ReplayResult],
    changed: Iterable[tuple[Kind, str, WhatIf]],
) -> list[Fix]:
    pricing = Pricing(curve, blocks, lambda size: _size_text(size, block_bytes))
    fixes = [
        *pricing.memory(),
        *pricing.replayed(results),
        *(pricing.fix(kind, what, what_if.hit_tokens) for kind, what, what_if in changed),
    ]
    return sorted(fixes, key=lambda fix: -fix.saved_tokens)


def _symptoms(
    curve: LruCurve, causes: MissCauses, now: ReplayResult, blocks: int, block_bytes: float | None
) -> tuple[Symptom, ...]:
    repeats = causes.total.evicted > WORTH_IT * max(curve.input_tokens, 1)
    return (
        _gap_symptom(causes.evicted_gap.percentile(50), now.idle.percentile(50), repeats),
        _turnover_symptom(now, repeats),
        _cliff_symptom(curve, blocks, block_bytes),
    )


def _gap_symptom(gap: int | None, idle: int | None, repeats: bool) -> Symptom:
    name = "reuse just beyond the block lifetime"
    if gap is None or idle is None:
        return Symptom(name, found=False, text="No block was asked for again after it was evicted.")
    text = (
        f"Evicted blocks that were asked for again came back after {gap:,} requests (median); "
        f"a block that nobody uses goes after {idle:,}."
    )
    return Symptom(name, found=repeats and gap <= 2 * idle, text=text)


def _turnover_symptom(now: ReplayResult, repeats: bool) -> Symptom:
    inserted, evicted = now.stats.inserted_blocks, now.stats.evicted_blocks
    repeated = "though blocks repeat" if repeats else "and hardly any of them is asked for again"
    text = f"{evicted:,} blocks evicted for {inserted:,} inserted, {repeated}."
    return Symptom("evictions keep up with insertions", found=repeats and evicted >= 0.8 * inserted, text=text)


def _cliff_symptom(curve: LruCurve, blocks: int, block_bytes: float | None) -> Symptom:
    name = "a cliff right of the present size"
    near = [cliff for cliff in curve.cliffs() if blocks < cliff.enough <= 2 * blocks]
    if not near:
        return Symptom(name, found=False, text="No size up to twice the present one has a jump in the hit rate.")
    text = near[0].text(block_bytes)
    return Symptom(name, found=True, text=f"{text[:1].upper()}{text[1:]}.")


def _example(split: Split, one: Request, other: Request) -> SplitExample:
    if one.text is not None and other.text is not None:
        parts = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.text, other.text, strict=False)))
        shared, first, second = (
            one.text[max(parts - _AROUND, 0) : parts],
            one.text[parts : parts + _AROUND],
            other.text[parts : parts + _AROUND],
        )
        return SplitExample(split, shared, first, second, is_text=True)
    parts = common_prefix(one.prompt.data, other.prompt.data) // TOKEN_BYTES
    left, right = one.prompt.tolist(), other.prompt.tolist()
    return SplitExample(
        split,
        _tokens(left[max(parts - _TOKENS_AROUND, 0) : parts]),
        _tokens(left[parts : parts + _TOKENS_AROUND]),
        _tokens(right[parts : parts + _TOKENS_AROUND]),
        is_text=False,
    )


def _tokens(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


def _size_text(blocks: int, block_bytes: float | None) -> str:
    count = f"{blocks:,} block{'' if blocks == 1 else 's'}"
    return count if block_bytes is None else f"{count}, {bytes_text(blocks * block_bytes)}"
