"""The best that any prefix cache could do on a set of requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Served(NamedTuple):
    """A request with what it was given."""

    prompt: Sequence[int]
    output: Sequence[int]


def best_hit_tokens(requests: Iterable[Served], block_size: int) -> int:
    """The most prompt tokens that a cache of whole blocks can find, over all orders and cache sizes.

    That is what a cache that forgets nothing finds if a prompt runs before its extensions: every block of tokens that
    begins some prompt is computed once. As everywhere, a match leaves the prompt's last token out, and the token
    sampled last has no K and V. O(tokens).

    >>> best_hit_tokens([Served([1, 2, 3], [4]), Served([1, 2], [9]), Served([1, 2, 3, 4, 5], [6])], block_size=1)
    5
    """
    blocks: dict[tuple[int, tuple[int, ...]], int] = {}  # (the block before it, its tokens): its number, from 1
    hits = 0
    for prompt, output in sorted(requests, key=lambda request: len(request.prompt)):
        computed = [*prompt, *output[:-1]]
        before, matched = 0, 0
        for start in range(0, len(computed) - block_size + 1, block_size):
            name = before, tuple(computed[start : start + block_size])
            if name in blocks and start + block_size < len(prompt):
                matched = start + block_size
            before = blocks.setdefault(name, len(blocks) + 1)
        hits += matched
    return hits
