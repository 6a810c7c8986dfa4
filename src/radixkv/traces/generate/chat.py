"""Chats of several turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from radixkv.traces.generate.base import Draws, Exchange, Workload, interleaved


@dataclass(frozen=True, kw_only=True)
class Chat(Workload):
    """Each request: a system prompt that all chats share, the turns of the chat so far, and a new message.

    A turn's prompt begins with the whole prompt and answer of the turn before it.
    """

    sessions: int = 50
    """Chats at a time."""
    turns: int = 6
    """Mean number of turns."""
    system_tokens: int = 400
    """Length of the system prompt."""
    user_tokens: int = 100
    """Mean length of a message."""
    answer_tokens: int = 300
    """Mean length of an answer."""

    def exchanges(self, draws: Draws) -> Iterator[Exchange]:
        """Prompts and answers without end."""
        system = draws.text(self.system_tokens, "system")

        def chat(number: int) -> Iterator[Exchange]:
            history = system
            for turn in range(draws.around(self.turns)):
                prompt = history + draws.text(draws.around(self.user_tokens), "message", number, turn)
                answer = draws.text(draws.around(self.answer_tokens), "answer", number, turn)
                yield Exchange(prompt, answer)
                history = prompt + answer

        return interleaved(draws, chat, self.sessions)
