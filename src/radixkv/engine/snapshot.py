"""What an engine shows of itself."""

from __future__ import annotations

from dataclasses import dataclass

from radixkv.types import ManagerStats


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine's counters and gauges after some step; it does not move."""

    stats: ManagerStats
    """Of the block manager and its cache."""
    running: int = 0
    waiting: int = 0
    """Preempted requests too."""
    num_blocks: int = 0
    block_size: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    """Blocks that are the cache's: evictable and locked ones."""
    evictable_blocks: int = 0
    kv_bytes: int = 0
    steps: int = 0
    computed_tokens: int = 0
    """Tokens whose K and V the model computed."""
    output_tokens: int = 0
    """Tokens sampled."""
    failed_steps: int = 0
    failing_steps: int = 0
    """Failed steps since the last one that did not fail."""
    model_seconds: float = 0.0
    """Time in forward passes."""
    sample_seconds: float = 0.0
    """Time in sampling, detokenizing and handing out outputs."""
    cache_seconds: float = 0.0
    """Time in the block manager, the cache and the waiting queue."""
    step_seconds: float = 0.0
    """Time in steps, all of the above included."""

    @property
    def used_blocks(self) -> int:
        """Blocks that hold something: those of running requests and of the cache."""
        return self.num_blocks - self.free_blocks

    @property
    def locked_blocks(self) -> int:
        """Blocks of the cache that running requests read."""
        return self.cached_blocks - self.evictable_blocks
