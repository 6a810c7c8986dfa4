"""The same prefixes round and round: what LRU does worst at."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from radixkv.traces.generate.base import Draws, Exchange, Workload, WorkloadError


@dataclass(frozen=True, kw_only=True)
class Cycle(Workload):
    """Each request: the next of `prefixes`, and a little text of its own. There are no answers.

    A prefix comes back after all others: LRU with room for one too few of them never hits.
    """

    prefixes: int = 5
    """Prefixes."""
    prefix_tokens: int = 512
    """Length of a prefix."""
    suffix_tokens: int = field(default=1, metadata={"minimum": 0})
    """Length of what stands behind it, different each time."""
    one_shots: float = 0.0
    """Share of requests, below 1, that stand outside the cycle, are as long, and share nothing with any other."""

    def __post_init__(self) -> None:
        """Check every parameter."""
        Workload.__post_init__(self)
        if self.one_shots >= 1:
            raise WorkloadError(name="one_shots", expected="below 1", given=self.one_shots)

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts without end."""
        position = 0
        for number in count():
            if draws.share() < self.one_shots:
                prompt = draws.text(self.prefix_tokens + self.suffix_tokens, "one shot", number)
            else:
                prefix = draws.text(self.prefix_tokens, "prefix", position)
                prompt = prefix + draws.text(self.suffix_tokens, "suffix", number)
                position = (position + 1) % self.prefixes
            yield Exchange(prompt, array("I"))
