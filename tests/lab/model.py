"""What the lab should find, worked out on plain lists and sets: slow, and written apart from the code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from hypothesis import strategies as st

from radixkv import TokenKey
from radixkv.traces import Request

Block = tuple[object, ...]
"""A block by all tokens up to its end, and the namespace."""


class Looked(NamedTuple):
    """A request as a cache sees it."""

    searched: list[Block]
    """What a lookup may find: whole blocks before the last token."""
    stored: list[Block]
    """What is computed whole: of the prompt, and of the answer but for its last token."""


def looked(request: Request, block_size: int) -> Looked:
    """The blocks of a request of tokens."""
    prompt, output = request.prompt.tolist(), request.output.tolist()

    def blocks(tokens: list[int]) -> list[Block]:
        ends = range(block_size, len(tokens) + 1, block_size)
        return [(request.namespace, *tokens[:end]) for end in ends]

    return Looked(searched=blocks(prompt[:-1]), stored=blocks(prompt + output[:-1]))


def leading(blocks: Iterable[Block], held: Iterable[Block]) -> int:
    """How many of the blocks are held, up to the first that is not."""
    held = set(held)
    count = 0
    for block in blocks:
        if block not in held:
            break
        count += 1
    return count


def lru_hit_blocks(requests: Sequence[Looked], capacity: int) -> int:
    """What an LRU cache finds that keeps the blocks used last, of one path those nearer to the root."""
    held: list[Block] = []  # the latest use first
    hits = 0
    for request in requests:
        hits += leading(request.searched, held)
        for block in reversed(request.stored):
            if block in held:
                held.remove(block)
            held.insert(0, block)
        del held[capacity:]
    return hits


def best_hit_blocks(requests: Sequence[Looked], capacity: int, *, prefix_of: Callable[[Block], Block] | None) -> int:
    """The most that can be found, trying everything that could be held after each request.

    `prefix_of` gives the block before a block; with it, none is held without that, as in prefix caches.
    """
    reached: dict[frozenset[Block], int] = {frozenset(): 0}
    for request in requests:
        after: dict[frozenset[Block], int] = {}
        for held, hits in reached.items():
            found = hits + leading(request.searched, held)
            candidates = held | set(request.stored)
            for choice in combinations(candidates, min(capacity, len(candidates))):
                kept = frozenset(choice)
                if prefix_of is None or all(len(prefix_of(block)) == 1 or prefix_of(block) in kept for block in kept):
                    after[kept] = max(after.get(kept, 0), found)
        reached = after
    return max(reached.values())


def requests(prompt_tokens: int = 10, output_tokens: int = 5) -> st.SearchStrategy[Request]:
    """Requests of three tokens, so that prompts meet and part all the time."""
    lists = st.builds(TokenKey, st.lists(st.integers(0, 2), max_size=prompt_tokens))
    outputs = st.one_of(st.just(TokenKey(())), st.builds(TokenKey, st.lists(st.integers(0, 2), max_size=output_tokens)))
    return st.builds(
        lambda prompt, output, namespace: Request(prompt, len(prompt), len(output), output=output, namespace=namespace),
        lists,
        outputs,
        st.sampled_from([None, None, "a"]),
    )


def traces(max_size: int = 12, prompt_tokens: int = 10) -> st.SearchStrategy[list[Request]]:
    """A few requests, some of them again and again."""
    return st.lists(requests(prompt_tokens), min_size=1, max_size=4).flatmap(
        lambda some: st.lists(st.one_of(st.sampled_from(some), requests(prompt_tokens)), max_size=max_size)
    )
