"""Questions about passages that are found for them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from radixkv.traces.generate.base import Draws, Exchange, Workload, Zipf


@dataclass(frozen=True, kw_only=True)
class Rag(Workload):
    """Each request: a system prompt, the passages of one of `topics` in an order of chance, and a question of its own.

    Requests of a topic have the same passages, and share them as far as the order is the same by chance.
    """

    topics: int = 200
    """Topics."""
    zipf: float = 1.0
    """How uneven they are asked: the i-th has a weight of 1 / i**zipf; 0 makes them equal."""
    passages: int = 5
    """Passages of a topic."""
    system_tokens: int = 300
    """Length of the system prompt, which all requests share."""
    passage_tokens: int = 400
    """Length of a passage."""
    question_tokens: int = 30
    """Mean length of a question."""
    answer_tokens: int = 150
    """Mean length of an answer."""

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end."""
        system, topics = draws.text(self.system_tokens, "system"), Zipf(self.topics, self.zipf)
        for number in count():
            topic = topics.draw(draws)
            prompt = array("I", system)
            for passage in draws.shuffled(range(self.passages)):
                prompt += draws.text(self.passage_tokens, "passage", topic, passage)
            prompt += draws.text(draws.around(self.question_tokens), "question", number)
            yield Exchange(prompt, draws.text(draws.around(self.answer_tokens), "answer", number))
