"""What prefill takes on this machine where a step is full: the rates that the bound counts work at."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from radixkv.engine import EngineConfig, LoadedModel
from radixkv.engine.kv_store import KVStore
from radixkv.engine.runner import ModelRunner, Row
from radixkv.engine.threads import apart

STEP_TOKENS: Final = EngineConfig().token_budget
"""Tokens of a full step, the engine's usual budget."""
FEW: Final = 8
"""Tokens of a step whose cost is nearly all its own."""
REPEATS: Final = 5


class Rates(NamedTuple):
    """Seconds that work takes. Arithmetic alone would not do: attention runs at another speed than the layers."""

    step: float
    """A step, whatever it computes: all weights are read once."""
    token: float
    """A token more in a step, but for what it attends to."""
    pair: float
    """A token and one that it attends to, itself included, in all layers."""

    def work(self, tokens: int, pairs: int) -> float:
        """What tokens take in full steps, the steps' own cost shared by all."""
        return tokens * (self.token + self.step / STEP_TOKENS) + pairs * self.pair

    def one_step(self, tokens: int, pairs: int) -> float:
        """What a step of so many tokens takes."""
        return self.step + tokens * self.token + pairs * self.pair


def measure_rates(model: LoadedModel, clock: Callable[[], float]) -> Rates:
    """Time steps of 8 tokens, full ones, and full ones behind twice as many; medians, in a thread of their own."""
    tokens = min(STEP_TOKENS, model.max_context // 3)
    blocks = array("I", range(3 * tokens))

    def seconds(runner: ModelRunner, count: int, behind: int) -> float:
        took = []
        for _ in range(REPEATS):
            began = clock()
            runner.forward([Row([0] * count, behind, blocks, wants_logits=True)])
            took.append(clock() - began)
        return statistics.median(took)

    def rates() -> Rates:
        runner = ModelRunner(model.model, KVStore(model.layers, len(blocks), 1, model.dtype, model.device))
        seconds(runner, tokens, 0)  # warm
        few, full, long = seconds(runner, FEW, 0), seconds(runner, tokens, 0), seconds(runner, tokens, 2 * tokens)
        pair = max(long - full, 0.0) / (2 * tokens * tokens)
        token = max(full - tokens * (tokens + 1) // 2 * pair - few, 0.0) / max(tokens - FEW, 1)
        return Rates(step=max(few - FEW * token, 0.0), token=token, pair=pair)

    return apart(rates)
