"""Agents that fork: a tree of thought for each problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from radixkv.traces.generate.base import Draws, Exchange, Workload, interleaved


@dataclass(frozen=True, kw_only=True)
class TreeOfThought(Workload):
    """Each request: a problem and the thoughts on the way to one node of its tree, asking for the next thought.

    Every kept node is asked `branches` times, with the same prompt; of the thoughts of a level, `keep` go on to the
    next.
    """

    trees: int = 4
    """Problems at a time."""
    depth: int = 4
    """Levels of a tree."""
    branches: int = 3
    """Thoughts asked for at a node."""
    keep: int = 2
    """Thoughts of a level that go on."""
    system_tokens: int = 300
    """Length of the system prompt, which all problems share."""
    problem_tokens: int = 300
    """Mean length of a problem."""
    thought_tokens: int = 150
    """Mean length of a thought."""

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end."""
        system = draws.text(self.system_tokens, "system")

        def tree(number: int) -> Iterator[Exchange]:
            nodes = [system + draws.text(draws.around(self.problem_tokens), "problem", number)]
            for level in range(self.depth):
                grown = []
                for node, prompt in enumerate(nodes):
                    for branch in range(self.branches):
                        length = draws.around(self.thought_tokens)
                        thought = draws.text(length, "thought", number, level, node, branch)
                        yield Exchange(prompt, thought)
                        grown.append(prompt + thought)
                nodes = draws.shuffled(grown)[: self.keep]

        return interleaved(draws, tree, self.trees)
