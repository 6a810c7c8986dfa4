"""Where every missed token went.

```text
prompt   | hit | evicted | partial block | other namespace | parted early … first seen … parted early |
         0     |         |               |                 | behind here the prompt is new under this prefix
               |         |               ^ cached under another namespace up to here, in whole blocks
               |         ^ the same tokens stood here before, but they do not fill the next block
               ^ LRU had the blocks up to here
```

A prompt that was seen whole ends with the last token, which no prefix cache gives: its logits are the first output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import Final

import numpy as np

from radixkv.keys import TokenKey
from radixkv.lab.histogram import Histogram
from radixkv.lab.reuse import Reuse
from radixkv.lab.splits import Splits
from radixkv.traces import Request
from radixkv.tree import Node, RadixTree

MOST_BINS: Final = 96
"""Of `CausesOverTime`."""
_PENDING: Final = 2**12


@dataclass(frozen=True, slots=True)
class TokenCauses:
    """Input tokens by what became of them; each is in exactly one.

    >>> TokenCauses(hit=5, first_seen=3).total
    8
    """

    hit: int = 0
    """Found cached."""
    evicted: int = 0
    """Was cached, went, and was asked for again."""
    partial_block: int = 0
    """Seen before, but in a block that the two prompts do not share whole."""
    last_token: int = 0
    """The last one of a prompt that was all seen before."""
    namespace: int = 0
    """Cached, but under another namespace."""
    parted_early: int = 0
    """Text that stood in an earlier prompt, behind another beginning."""
    first_seen: int = 0
    """Never seen before, as far as the trace tells."""

    @property
    def total(self) -> int:
        """Of all of them: the input tokens."""
        return sum(astuple(self))

    @property
    def missed(self) -> int:
        """Of all but the hits."""
        return self.total - self.hit

    def __add__(self, other: TokenCauses) -> TokenCauses:
        return TokenCauses(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


CAUSES: Final = tuple(field.name for field in fields(TokenCauses))


class CausesOverTime:
    """Causes of a run of requests after the other, in `MOST_BINS` bins at most: wider ones as the trace goes on."""

    def __init__(self) -> None:
        self.requests_per_bin = 1
        self.bins: list[TokenCauses] = []
        self._in_last = 0

    def add(self, causes: TokenCauses) -> None:
        """The next request. O(1), amortized."""
        if not self.bins or self._in_last == self.requests_per_bin:
            if len(self.bins) == MOST_BINS:
                self.bins = [one + other for one, other in zip(self.bins[::2], self.bins[1::2], strict=True)]
                self.requests_per_bin *= 2
            self.bins.append(TokenCauses())
            self._in_last = 0
        self.bins[-1] += causes
        self._in_last += 1


def hit_blocks(runs: list[Reuse], blocks: int) -> int:
    """How many leading blocks an LRU cache of `blocks` blocks has of a prompt that reuses `runs`. O(runs)."""
    found = 0
    for start, stop, _, above in runs:
        found = min(stop, start + max(blocks - above, 0))
        if found < stop:
            break
    return found


class MissCauses:
    """Tells for every request where its tokens went; an `Observer` of `radixkv.lab.curve.lru_curve`.

    Args:
        blocks: capacity of the cache.
        block_size: tokens a block, as given to `lru_curve`.

    Keeps every distinct token once for each of two trees, and what `Splits` does: memory grows with what is new.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.splits = Splits()
        self.over_time = CausesOverTime()
        self.total = TokenCauses()
        self.hottest = PrefixTree()
        """Every prefix, with how many prompts have it."""
        self.hit_gap, self.evicted_gap = Histogram(), Histogram()
        """Of blocks that were asked for again, the requests since: those found, and those evicted meanwhile."""
        self.namespaces: set[str | None] = set()
        self.spans: set[int] = set()
        self.unknown_tokens = 0
        """First-seen tokens that a trace of block ids may hide a shared beginning in: at most so many were partial."""
        self._blocks, self._block_size = blocks, block_size
        self._shared = RadixTree[int](1)  # as if there were no namespaces
        self._gaps: list[tuple[int, int, int]] = []  # requests since, blocks hit, blocks evicted

    def add(self, number: int, request: Request, runs: list[Reuse]) -> None:
        """Sort the tokens of a request. O(tokens), those seen before at `memcmp` speed."""
        self.namespaces.add(request.namespace)
        self.spans.add(request.span)
        hit = hit_blocks(runs, self._blocks)
        self._note_gaps(number, runs, hit)
        causes = self._causes(number, request, hit, runs[-1].stop if runs else 0)
        self.total += causes
        self.over_time.add(causes)

    def settle(self) -> None:
        """Bring the histograms up to date."""
        if self._gaps:
            gaps, found, gone = np.array(self._gaps, np.int64).T
            self.hit_gap.add(np.repeat(gaps, found))
            self.evicted_gap.add(np.repeat(gaps, gone))
            self._gaps.clear()

    def _causes(self, number: int, request: Request, hit: int, seen: int) -> TokenCauses:
        size, span, length = self._block_size, request.span, request.input_tokens
        key = request.prompt
        stored = key.extended(request.output.prefix(len(request.output) - 1)) if request.output and span == 1 else key
        known = min(self.hottest.add(stored, len(key), request.namespace) * span, length)
        shared, _ = self._shared.match(key)
        self._shared.insert(stored, bytearray(len(stored)))
        last_token = int(known == length > 0)
        known -= last_token
        walled = max((min(shared * span, length - 1) // size * size) - known, 0) if not last_token else 0
        rest = length - known - last_token - walled
        parted_early = self.splits.add(number, key, length - rest) if span == 1 and rest else 0
        if span > 1:
            self.unknown_tokens += min(rest, size - 1)
        return TokenCauses(
            hit=hit * size,
            evicted=(seen - hit) * size,
            partial_block=known - seen * size,
            last_token=last_token,
            namespace=walled,
            parted_early=parted_early,
            first_seen=rest - parted_early,
        )

    def _note_gaps(self, number: int, runs: list[Reuse], hit: int) -> None:
        for start, stop, previous, _ in runs:
            found = min(max(hit - start, 0), stop - start)
            self._gaps.append((number - previous, found, stop - start - found))
        if len(self._gaps) > _PENDING:
            self.settle()


class PrefixTree:
    """A radix tree of prompts that counts how many came through each node."""

    def __init__(self) -> None:
        self.tree = RadixTree[int](1)
        self.uses: dict[Node[int], int] = {}

    def add(self, stored: TokenKey, prompt_words: int, namespace: str | None) -> int:
        """Note a prompt, which is the beginning of what it stores; how many of its words were here. O(words)."""
        tree, uses = self.tree, self.uses
        path, matched, inside = tree.walk(stored.data, len(stored.data), namespace)
        if inside:
            upper = tree.split(path[-1], inside)
            uses[upper] = uses[path[-1]]
            path[-1] = upper
        if matched < len(stored.data):
            parent = path[-1] if path else tree.root
            label = stored.data[matched:]
            path.append(tree.attach(parent, label, bytearray(len(label) // tree.stride), namespace))
        for node in path:
            uses[node] = uses.get(node, 0) + 1
        return min(matched // tree.stride, prompt_words)

    def children(self, node: Node[int] | None = None) -> Iterator[tuple[Node[int], int]]:
        """The nodes below one, or below the root, each with its uses; most used first."""
        children = (node or self.tree.root).children.values()
        yield from sorted(((child, self.uses[child]) for child in children), key=lambda pair: -pair[1])
