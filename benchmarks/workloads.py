"""The workloads: seeded, the same for every side, made before anything is timed."""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

SYSTEM_PROMPTS = 20
SYSTEM_TOKENS = 512
TURN_TOKENS = (64, 256)
MAX_TOKENS = 4_096
VOCABULARY = 128_000
REQUESTS_PER_USER = 4


def multi_turn(requests: int, seed: int = 1) -> Iterator[list[int]]:
    """Yield the prompts of growing conversations.

    A user's first prompt is one of 20 shared system prompts of 512 tokens and a turn of 64 to 256; every later
    prompt is the one before it and a new turn, until 4,096 tokens are reached and the user starts over.
    """
    rng = random.Random(seed)
    system = [[rng.randrange(1, VOCABULARY) for _ in range(SYSTEM_TOKENS)] for _ in range(SYSTEM_PROMPTS)]
    history: dict[int, list[int]] = {}
    for _ in range(requests):
        user = rng.randrange(max(1, requests // REQUESTS_PER_USER))
        before = history.get(user) or system[user % SYSTEM_PROMPTS]
        prompt = before + [rng.randrange(1, VOCABULARY) for _ in range(rng.randrange(*TURN_TOKENS))]
        history[user] = prompt if len(prompt) < MAX_TOKENS else []
        yield prompt


def long_prompt(tokens: int) -> list[int]:
    """One long prompt without repetition of its blocks."""
    return [(i * 2_654_435_761) % VOCABULARY for i in range(tokens)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with the ids that a cache holds for its full blocks.

    `blocks` are named by content: equal prefixes carry equal ids, as when a request takes what it matched and
    computes only the rest. `known` is how many leading blocks were named by an earlier prompt.
    """

    tokens: list[int]
    blocks: "array[int]"
    known: int


def leaf(index: int, block_size: int) -> Prompt:
    """Two blocks that share nothing with the leaf of any other index: each is a leaf of its own under the root."""
    tokens = [index + 1] * block_size + [0] * block_size
    return Prompt(tokens, array("I", (2 * index, 2 * index + 1)), 0)


class BlockNames:
    """Gives every block of every prefix one id, for good: a trie in a plain dict, apart from all the caches."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._names: dict[tuple[int, bytes], int] = {}

    def __len__(self) -> int:
        """How many different blocks have been named: the working set."""
        return len(self._names)

    def name(self, tokens: list[int]) -> Prompt:
        """Name the full blocks of `tokens`."""
        names, step = self._names, 4 * self.block_size
        data = array("I", tokens).tobytes()
        blocks, known, parent = array("I"), 0, -1
        for start in range(0, len(data) // step * step, step):
            edge = (parent, data[start : start + step])
            found = names.get(edge)
            if found is None:
                found = names[edge] = len(names)
            else:
                known += 1
            parent = found
            blocks.append(found)
        return Prompt(tokens, blocks, known)


def searched(tokens: int, block_size: int) -> int:
    """How many tokens of a prompt a match may cover: full blocks that leave at least the last token to compute."""
    return max(0, tokens - 1) // block_size * block_size
