"""Tasks that are explained by examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from radixkv.traces.generate.base import Draws, Exchange, Workload, Zipf


@dataclass(frozen=True, kw_only=True)
class FewShot(Workload):
    """Each request: the instruction of one of `tasks`, its `shots` examples in one order, and a question of its own.

    Requests of a task share everything but the question.
    """

    tasks: int = 20
    """Tasks."""
    zipf: float = 1.0
    """How uneven they are asked: the i-th has a weight of 1 / i**zipf; 0 makes them equal."""
    shots: int = 5
    """Examples of a task."""
    instruction_tokens: int = 100
    """Length of an instruction."""
    example_tokens: int = 150
    """Length of an example."""
    question_tokens: int = 60
    """Mean length of a question."""
    answer_tokens: int = 20
    """Mean length of an answer."""

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end."""
        tasks = Zipf(self.tasks, self.zipf)
        for number in count():
            task = tasks.draw(draws)
            prompt = draws.text(self.instruction_tokens, "instruction", task)
            for shot in range(self.shots):
                prompt += draws.text(self.example_tokens, "example", task, shot)
            prompt += draws.text(draws.around(self.question_tokens), "question", number)
            yield Exchange(prompt, draws.text(draws.around(self.answer_tokens), "answer", number))
