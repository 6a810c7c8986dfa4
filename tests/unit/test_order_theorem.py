"""The theorem about queue orders, by brute force over every order of small batches.

What is shown: a batch of prompts is served one at a time from an empty cache that holds at least the blocks of the
longest prompt. Of all orders of the batch none gets more hits than depth-first order (a prompt before its extensions),
and none gets more than longest-cached-prefix-first, if of those with as much cached the shortest goes first. Without
that tie-break, with the earliest first, longest-prefix-first falls short where a prompt begins another one: the block
of a prompt's last token is never covered by its own match, so it gains nothing by coming later, and its extensions
gain that block if it comes before them. Where no prompt begins another, plain longest-prefix-first is the best too.

Every order is tried, through the block manager itself; the batches are seeded. It is a proof for these batches, not for
all.
"""

from collections.abc import Iterable, Sequence
from itertools import permutations
from random import Random
from typing import NamedTuple

import pytest

from radixkv import BlockManager, OutOfBlocksError, TokenKey
from radixkv.scheduler import ORDERS, WaitingQueue, queue
from radixkv.scheduler.base import RankedOrder, Waiting

NO_BOUND = 1000


class Batch(NamedTuple):
    """A few prompts and the cache that they meet."""

    prefix_cache: str
    block_size: int
    num_blocks: int
    prompts: list[TokenKey]


class PlainLongestPrefix(RankedOrder):
    """Longest cached prefix first; of those with as many tokens, the earliest."""

    by_match = True

    def rank(self, waiting: Waiting) -> tuple[int, int]:
        return -waiting.matched_tokens, waiting.arrival


def serve(manager: BlockManager, tokens: TokenKey) -> int:
    """How many tokens of the prompt it finds cached; then all of it is."""
    table = manager.admit(tokens)
    manager.commit(table, table.num_tokens)
    manager.finish(table)
    return table.matched_tokens


def hits_in(batch: Batch, order: Iterable[int]) -> int:
    """How many tokens are found if the prompts run in this order."""
    manager = BlockManager(batch.num_blocks, batch.block_size, prefix_cache=batch.prefix_cache)
    return sum(serve(manager, batch.prompts[i]) for i in order)


def best(batch: Batch) -> int:
    """The most hits that any order gets."""
    return max(hits_in(batch, order) for order in permutations(range(len(batch.prompts))))


def hits_of(name: str, batch: Batch) -> int:
    """How many tokens are found if a queue chooses, one at a time."""
    manager = BlockManager(batch.num_blocks, batch.block_size, prefix_cache=batch.prefix_cache)
    waiting = WaitingQueue[int](manager, order=name, max_skips=NO_BOUND)
    for number, prompt in enumerate(batch.prompts):
        waiting.add(number, prompt)
    hits = 0
    while (admitted := waiting.admit()) is not None:
        table = admitted[1]
        hits += table.matched_tokens
        manager.commit(table, table.num_tokens)
        manager.finish(table)
    assert 0 == len(waiting)
    return hits


def begins_another(prompts: Sequence[TokenKey]) -> bool:
    """Whether any prompt is the beginning of another one, or the same."""
    return any(a is not b and b.data.startswith(a.data) for a in prompts for b in prompts)


def batches(seed: int, sizes: Sequence[int]) -> Iterable[Batch]:
    """One batch of every size, each with caches from the smallest that the theorem allows to one that never evicts."""
    random = Random(seed)
    for size in sizes:
        block_size = random.choice([1, 2])
        prompts = [[random.randrange(2) for _ in range(random.randrange(1, 9))] for _ in range(size)]
        for _ in range(random.randrange(3)):  # some begin others
            source = random.choice(prompts)
            prompts[random.randrange(size)] = source[: random.randrange(1, len(source) + 1)]
        longest = max(-(-len(prompt) // block_size) for prompt in prompts)
        for room in (0, 1, random.randrange(2, 6), 6 * longest):
            kind = random.choice(["radix", "hash"])
            yield Batch(kind, block_size, longest + room, [TokenKey(prompt) for prompt in prompts])


SMALL = [batch for seed in range(60) for batch in batches(seed, [2, 3, 4])]
LARGE = [batch for seed in range(1000, 1004) for batch in batches(seed, [5, 6])]


@pytest.fixture(scope="module")
def best_hits() -> list[tuple[Batch, int]]:
    return [(batch, best(batch)) for batch in [*SMALL, *LARGE]]


@pytest.mark.parametrize("name", ["dfs-weight", "lpm"])
def test_no_order_gets_more_hits(name: str, best_hits: list[tuple[Batch, int]]) -> None:
    """Depth first, and longest prefix first with the shortest before the others: the best of all orders, each time."""
    fell_short = [(batch, most) for batch, most in best_hits if hits_of(name, batch) != most]

    assert [] == fell_short


def test_first_come_first_served_does_fall_short(best_hits: list[tuple[Batch, int]]) -> None:
    """The order matters in these batches: that of arrival often gets less than the best."""
    fell_short = [batch for batch, most in best_hits if hits_of("fcfs", batch) < most]

    assert len(fell_short) > len(best_hits) / 4


def test_without_the_tie_break_longest_prefix_first_falls_short(
    monkeypatch: pytest.MonkeyPatch, best_hits: list[tuple[Batch, int]]
) -> None:
    """With the earliest first among equals it misses hits, but only in batches where a prompt begins another one."""
    monkeypatch.setattr(queue, "ORDERS", {**ORDERS, "plain": PlainLongestPrefix})
    fell_short = [batch for batch, most in best_hits if hits_of("plain", batch) < most]

    assert len(fell_short) > 20
    assert all(begins_another(batch.prompts) for batch in fell_short)
    assert sum(not begins_another(batch.prompts) for batch in SMALL) > 100


def test_the_least_batch_that_tells_the_two_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: [1 1] begins [1 1 1]. Run first it leaves two tokens for the other; run last it finds one."""
    monkeypatch.setattr(queue, "ORDERS", {**ORDERS, "plain": PlainLongestPrefix})
    batch = Batch("radix", 1, 3, [TokenKey([1, 1, 1]), TokenKey([1, 1])])

    assert (2, 2, 2, 1) == (best(batch), hits_of("lpm", batch), hits_of("dfs-weight", batch), hits_of("plain", batch))


def test_below_the_longest_prompt_nothing_is_claimed() -> None:
    """The pool of the theorem is the least that serves the batch at all: with less, the longest is refused."""
    batch = Batch("radix", 1, 2, [TokenKey([1, 1, 1]), TokenKey([2])])
    waiting = WaitingQueue[int](BlockManager(batch.num_blocks, batch.block_size))
    with pytest.raises(OutOfBlocksError):
        waiting.add(0, batch.prompts[0])
    waiting.add(1, batch.prompts[1])

    admitted = waiting.admit()
    assert admitted is not None
    assert 1 == admitted[0]
