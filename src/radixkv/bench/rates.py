"""What prefill takes on this machine where a step is full: the rates that the bound counts work at."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from radixkv.engine import LoadedModel
from radixkv.engine.grouping import Row
from radixkv.engine.kv_store import KVStore
from radixkv.engine.runner import ModelRunner
from radixkv.engine.threads import apart

STEP_TOKENS: Final = 2048
"""Tokens of a full step: a budget for throughput, vLLM's by default. The engine's own is smaller, since nobody who
decodes hears of a token before a step has ended; but a token costs as much in either, and fewer steps are not full."""
PROMPT_TOKENS: Final = 512
"""Tokens of the prompts that are timed, about those of the workloads."""
FEW: Final = 8
"""Tokens of a step whose cost is nearly all its own."""
REPEATS: Final = 7
OUTPUTS: Final = 256
"""Rows of logits that are timed together."""

Clock: TypeAlias = Callable[[], float]
"""Seconds."""


class Rates(NamedTuple):
    """Seconds that work takes. Arithmetic alone would not do: attention runs at another speed than the layers."""

    step: float
    """A step, whatever it computes: all weights are read once."""
    token: float
    """A token more in a step, but for what it attends to and for its logits."""
    pair: float
    """A token and one that it attends to, itself included, in all layers."""
    logits: float
    """The logits of a token."""

    def work(self, tokens: int, pairs: int, logits: int) -> float:
        """What tokens take in full steps, the steps' own cost shared by all."""
        return tokens * (self.token + self.step / STEP_TOKENS) + pairs * self.pair + logits * self.logits


@dataclass(frozen=True, slots=True)
class Gauge:
    """What runs are measured with."""

    clock: Clock
    rates: Rates
    """What the work of their steps is counted at."""


def make_gauge(model: LoadedModel, clock: Clock) -> Gauge:
    """Measure the rates: steps of 8 tokens, full ones of several prompts, prompts behind others, and logits.

    They are timed in turn, and the least of each counts: what others on the machine take is no part of any rate.
    The rates are measured in a thread that ends; nobody else may use the model meanwhile.
    """
    size = min(PROMPT_TOKENS, model.max_context // 3)  # of a prompt
    prompts = STEP_TOKENS // PROMPT_TOKENS
    blocks = array("I", range(prompts * size + OUTPUTS))
    runner = ModelRunner(model.model, KVStore(model.layers, len(blocks), 1, model.dtype, model.device))

    def seconds(rows: list[Row]) -> float:
        began = clock()
        runner.forward(rows)
        return clock() - began

    def prompt(tokens: int, behind: int = 0) -> list[Row]:
        return [Row([0] * tokens, behind, blocks, wants_logits=True)]

    def full_step() -> list[Row]:
        return [Row([0] * size, 0, blocks[i * size :], wants_logits=not i) for i in range(prompts)]

    def outputs(wanted: int) -> list[Row]:
        return [Row([0], 0, blocks[i:], wants_logits=i < wanted) for i in range(OUTPUTS)]

    def rates() -> Rates:
        steps = prompt(FEW), prompt(size), prompt(size, 2 * size), full_step(), outputs(OUTPUTS), outputs(1)
        for rows in steps:  # warm
            seconds(rows)
        rounds = [[seconds(rows) for rows in steps] for _ in range(REPEATS)]
        few, one, behind, full, every, single = map(min, zip(*rounds, strict=True))
        pair = max(behind - one, 0.0) / (2 * size * size)
        pairs = prompts * size * (size + 1) // 2
        token = max(full - pairs * pair - few, 0.0) / max(prompts * size - FEW, 1)
        logits = max(every - single, 0.0) / (OUTPUTS - 1)
        return Rates(step=max(few - FEW * token, 0.0), token=token, pair=pair, logits=logits)

    return Gauge(clock, apart(rates))
