"""300 recorded calls with every answer, from an independent model (README.md beside the file says how to read it)."""

import json
from pathlib import Path
from typing import Any, Protocol

from radixkv import RadixCache
from tests.model import ModelRadix

TRACE = Path(__file__).parent / "radix_trace.jsonl"


class Player(Protocol):
    """Answers one recorded call after the other."""

    def match(self, tokens: list[int]) -> tuple[int, list[int], Any]: ...
    def insert(self, tokens: list[int], blocks: list[int]) -> tuple[list[int], Any]: ...
    def lock(self, node: Any) -> None: ...
    def unlock(self, node: Any) -> None: ...
    def evict(self, n: int) -> list[int]: ...
    def state(self) -> list[int]: ...


class CodePlayer:
    """The radix cache."""

    def __init__(self, block_size: int) -> None:
        self.cache = RadixCache(block_size)

    def match(self, tokens: list[int]) -> tuple[int, list[int], Any]:
        match = self.cache.match_prefix(tokens)
        return match.matched_tokens, match.blocks.tolist(), match.node

    def insert(self, tokens: list[int], blocks: list[int]) -> tuple[list[int], Any]:
        inserted = self.cache.insert(tokens, blocks)
        return inserted.duplicates.tolist(), inserted.node

    def lock(self, node: Any) -> None:
        self.cache.lock(node)

    def unlock(self, node: Any) -> None:
        self.cache.unlock(node)

    def evict(self, n: int) -> list[int]:
        return self.cache.evict(n).tolist()

    def state(self) -> list[int]:
        self.cache.check_invariants()
        cache, stats = self.cache, self.cache.stats
        counters = [stats.lookups, stats.query_tokens, stats.hit_tokens, stats.inserted_blocks, stats.evicted_blocks]
        return [cache.cached_tokens, cache.cached_blocks, cache.evictable_blocks, *counters]


class ModelPlayer:
    """Our own model."""

    def __init__(self, block_size: int) -> None:
        self.model = ModelRadix(block_size)

    def match(self, tokens: list[int]) -> tuple[int, list[int], Any]:
        return self.model.match(tokens)

    def insert(self, tokens: list[int], blocks: list[int]) -> tuple[list[int], Any]:
        return self.model.insert(tokens, blocks)[1:]

    def lock(self, node: Any) -> None:
        self.model.lock(node)

    def unlock(self, node: Any) -> None:
        self.model.unlock(node)

    def evict(self, n: int) -> list[int]:
        return self.model.evict(n)

    def state(self) -> list[int]:
        names = ("lookups", "query_tokens", "hit_tokens", "inserted_blocks", "evicted_blocks")
        model = self.model
        return [
            model.cached_tokens,
            model.cached_blocks,
            model.evictable_blocks,
            *(model.counters[name] for name in names),
        ]


def replay(player_class: type[CodePlayer] | type[ModelPlayer]) -> None:
    """Make every recorded call and compare every answer."""
    head, *calls = map(json.loads, TRACE.read_text().splitlines())
    assert ("radix-trace", 1, 300) == (head["format"], head["version"], len(calls))
    player: Player = player_class(head["block_size"])
    nodes: dict[int, Any] = {}
    for number, call in enumerate(calls, start=1):
        match call["op"]:
            case "match":
                matched, blocks, nodes[number] = player.match(call["tokens"])
                assert (number, call["matched"], call["blocks"]) == (number, matched, blocks)
            case "insert":
                duplicates, nodes[number] = player.insert(call["tokens"], call["blocks"])
                assert (number, call["duplicates"]) == (number, duplicates)
            case "lock":
                player.lock(nodes[call["of"]])
            case "unlock":
                player.unlock(nodes[call["of"]])
            case "evict":
                assert (number, call["blocks"]) == (number, player.evict(call["n"]))
            case op:
                raise ValueError(f"call {number} is of no known kind: {op}")
        assert (number, call["state"]) == (number, player.state())


def test_golden_reference_trace() -> None:
    """The radix cache gives every recorded answer."""
    replay(CodePlayer)


def test_the_model_replays_the_golden_trace() -> None:
    """Our model, written apart from the one that recorded the trace, gives every recorded answer too."""
    replay(ModelPlayer)
