"""An engine's sizes and policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from radixkv.engine.errors import ParameterError
from radixkv.keys import check_size

DEFAULT_KV_MEMORY: Final = 2**30
"""Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes and policies of an engine.

    Raises:
        ParameterError: both sizes of the pool, or a budget that cannot hold a token of every running request.
        SizeError: a number too small.
    """

    num_blocks: int | None = None
    """Blocks of the pool. By default as many as `kv_memory` holds."""
    kv_memory: int | None = None
    """Bytes of K and V; 1 GiB if neither is given."""
    block_size: int = 16
    prefix_cache: str = "radix"
    eviction: str = "lru"
    order: str = "lpm"
    """Of the waiting requests; a name of `radixkv.scheduler.ORDERS`."""
    max_skips: int = 256
    """How often a waiting request may be passed over."""
    token_budget: int = 512
    """Tokens a step, at most: those of decoding requests first, then chunks of prompts."""
    max_running: int = 32
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        if self.num_blocks is not None and self.kv_memory is not None:
            raise ParameterError(name="kv_memory", expected="left out if num_blocks is given", given=self.kv_memory)
        for name in ("num_blocks", "kv_memory"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name), 1)
        for name in ("block_size", "token_budget", "max_running", "max_waiting"):
            check_size(name, getattr(self, name), 1)
        if self.token_budget < self.max_running:
            expected = f"at least max_running, {self.max_running}: each of them decodes one token a step"
            raise ParameterError(name="token_budget", expected=expected, given=self.token_budget)
