"""The best possible hits: what no order of the requests exceeds, and some order reaches."""

from __future__ import annotations

from itertools import count, permutations
from random import Random

import pytest

from radixkv import RadixCache
from radixkv.bench.best import Served, best_hit_tokens


def hits(order: tuple[Served, ...], block_size: int) -> int:
    """What the radix cache finds if the requests run one after the other and nothing is forgotten."""
    cache, ids = RadixCache(block_size), count()
    for prompt, output in order:
        cache.match_prefix(prompt)
        computed = [*prompt, *output[:-1]]
        cache.insert(computed, [next(ids) for _ in range(len(computed) // block_size)])
    return cache.stats.hit_tokens


def batch(random: Random) -> list[Served]:
    """Up to five requests over two tokens, so that prompts begin, equal and continue each other."""
    return [
        Served(
            [random.randrange(2) for _ in range(random.randint(1, 7))], [random.randrange(2) for _ in range(outputs)]
        )
        for outputs in [random.randint(1, 4) for _ in range(random.randint(1, 5))]
    ]


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_it_is_the_best_of_all_orders(block_size: int) -> None:
    random = Random(block_size)
    for _ in range(150):
        requests = batch(random)
        expected = max(hits(order, block_size) for order in permutations(requests))

        assert expected == best_hit_tokens(requests, block_size), requests


def test_by_hand() -> None:
    """The last token of a prompt is computed always, and the token sampled last has no K and V."""
    assert 0 == best_hit_tokens([], 1)
    assert 0 == best_hit_tokens([Served([1, 2, 3], [4])], 1)
    assert 2 == best_hit_tokens([Served([1, 2, 3], [4])] * 2, 1)
    assert 4 == best_hit_tokens([Served([1, 2, 3, 4, 5, 6], [7]), Served([1, 2, 3], [4, 9])], 1)
    assert 2 == best_hit_tokens([Served([1, 2, 3], [4])] * 2, 2)
    assert 0 == best_hit_tokens([Served([1, 2], [4])] * 2, 2)
