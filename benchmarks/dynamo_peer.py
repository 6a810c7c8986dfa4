"""Dynamo's RadixTree (ai-dynamo-runtime, Rust): the index that its router looks prompts up in.

The tree holds hashes, no tokens and no slots, and learns of blocks by events. So there are two lookups to time:
`find` with the hashes given, and `find_tokens`, which hashes a plain token list first as a router must.
Every call crosses to the tree's own thread and back.
"""

import importlib
import json
from typing import Any

from benchmarks.workloads import Prompt, searched

_core: Any = importlib.import_module("dynamo._core")
_WORKER = 0
_SCORE = (_WORKER, 0)
"""Scores are keyed by worker and data-parallel rank."""


class Dynamo:
    """The tree with one worker, whose blocks are a cache's blocks."""

    name = "dynamo"

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tree: Any = _core.RadixTree()
        self._events = 0

    def hashes(self, prompt: Prompt) -> list[int]:
        """The hashes of the part of a prompt that may be matched: never its last token."""
        return self._hash(prompt.tokens[: searched(len(prompt.tokens), self.block_size)])

    def _hash(self, tokens: list[int]) -> list[int]:
        return list(_core.compute_block_hash_for_seq(tokens, self.block_size))

    def event(self, prompt: Prompt) -> bytes:
        """The event with which a worker announces that it stored the blocks of a prompt that are new."""
        hashes = self._hash(prompt.tokens)
        new = [
            {"block_hash": prompt.blocks[i] + 1, "tokens_hash": hashes[i]}
            for i in range(prompt.known, len(prompt.blocks))
        ]
        parent = prompt.blocks[prompt.known - 1] + 1 if prompt.known else None
        self._events += 1
        stored = {"event_id": self._events, "data": {"stored": {"parent_hash": parent, "blocks": new}}, "dp_rank": 0}
        return json.dumps(stored).encode()

    def store(self, event: bytes) -> None:
        """Apply an event."""
        self.tree.apply_event(_WORKER, event)

    def find(self, hashes: list[int]) -> int:
        """Look up with the hashes given: the matched tokens."""
        blocks: int = self.tree.find_matches(hashes).scores.get(_SCORE, 0)
        return blocks * self.block_size

    def find_tokens(self, tokens: list[int]) -> int:
        """Hash and look up: the matched tokens."""
        size = self.block_size
        hashes = _core.compute_block_hash_for_seq(tokens[: searched(len(tokens), size)], size)
        blocks: int = self.tree.find_matches(hashes).scores.get(_SCORE, 0)
        return blocks * size
