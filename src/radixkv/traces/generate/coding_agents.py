"""Coding agents, which call tools in a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from radixkv.traces.generate.base import Draws, Exchange, Workload, interleaved


@dataclass(frozen=True, kw_only=True)
class CodingAgents(Workload):
    """Each request: system prompt and tools, a project, a task, and all calls and results of the session so far.

    A step's prompt begins with the whole prompt and call of the step before it; sessions on one project share what
    stands before the task.
    """

    users: int = 20
    """Sessions at a time."""
    projects: int = 10
    """Projects, asked for evenly."""
    steps: int = 25
    """Mean number of steps in a session."""
    system_tokens: int = 4000
    """Length of system prompt and tools, which all sessions share."""
    project_tokens: int = 3000
    """Length of what stands about a project."""
    task_tokens: int = 200
    """Mean length of a task."""
    call_tokens: int = 150
    """Mean length of a tool call: of an answer."""
    result_tokens: int = 700
    """Mean length of a tool's result."""

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end."""
        system = draws.text(self.system_tokens, "system")

        def session(number: int) -> Iterator[Exchange]:
            prompt = system + draws.text(self.project_tokens, "project", draws.below(self.projects))
            prompt += draws.text(draws.around(self.task_tokens), "task", number)
            for step in range(draws.around(self.steps)):
                call = draws.text(draws.around(self.call_tokens), "call", number, step)
                yield Exchange(prompt, call)
                prompt = prompt + call + draws.text(draws.around(self.result_tokens), "result", number, step)

        return interleaved(draws, session, self.users)
