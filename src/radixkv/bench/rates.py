"""What prefill takes on this machine where a step is full: the rates that the bound counts work at."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

from radixkv.engine import LoadedModel
from radixkv.engine.kv_store import KVStore
from radixkv.engine.runner import ModelRunner, Row
from radixkv.engine.threads import apart

STEP_TOKENS: Final = 512
"""Tokens of a full step, the engine's usual budget."""
REPEATS: Final = 5


class Rates(NamedTuple):
    """Seconds that work takes. Arithmetic alone would not do: attention runs at another speed than the layers."""

    token: float
    """A token, but for what it attends to; a full step's fixed cost is shared by its tokens."""
    pair: float
    """A token and one that it attends to, itself included, in all layers."""


def measure_rates(model: LoadedModel, clock: Callable[[], float]) -> Rates:
    """Time full steps behind nothing and behind twice as many tokens; the medians, in a thread of their own."""
    tokens = min(STEP_TOKENS, model.max_context // 3)
    blocks = array("I", range(3 * tokens))
    alone, pairs = tokens * (tokens + 1) // 2, 2 * tokens * tokens

    def seconds(runner: ModelRunner, behind: int) -> float:
        took = []
        for _ in range(REPEATS):
            began = clock()
            runner.forward([Row([0] * tokens, behind, blocks, wants_logits=True)])
            took.append(clock() - began)
        return statistics.median(took)

    def rates() -> Rates:
        runner = ModelRunner(model.model, KVStore(model.layers, len(blocks), 1, model.dtype, model.device))
        seconds(runner, 0)  # warm
        short, long = seconds(runner, 0), seconds(runner, 2 * tokens)
        pair = max(long - short, 0.0) / pairs
        return Rates(token=(short - alone * pair) / tokens, pair=pair)

    return apart(rates)
