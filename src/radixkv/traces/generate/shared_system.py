"""Applications with a system prompt each, some asked far more often than others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from radixkv.traces.generate.base import Draws, Exchange, Workload, Zipf


@dataclass(frozen=True, kw_only=True)
class SharedSystem(Workload):
    """Each request: one of `groups` system prompts, and a message of its own.

    Requests of a group share the whole system prompt, those of different groups nothing.
    """

    groups: int = 10
    """System prompts."""
    zipf: float = 1.0
    """How uneven they are asked: the i-th has a weight of 1 / i**zipf; 0 makes them equal."""
    system_tokens: int = 1000
    """Length of a system prompt."""
    user_tokens: int = 150
    """Mean length of a message."""
    answer_tokens: int = 200
    """Mean length of an answer."""

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end."""
        groups = Zipf(self.groups, self.zipf)
        for number in count():
            system = draws.text(self.system_tokens, "system", groups.draw(draws))
            message = draws.text(draws.around(self.user_tokens), "message", number)
            yield Exchange(system + message, draws.text(draws.around(self.answer_tokens), "answer", number))
