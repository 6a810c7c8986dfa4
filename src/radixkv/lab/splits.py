"""Prompts whose bodies agree but which part early: a timestamp before the instructions, tools in another order.

To a prefix cache such prompts have nothing in common behind the place where they part. They are found by content, not
by prefix: the text that a prompt brings is cut into overlapping windows, and those whose hash has three leading zeros
are remembered, whatever stands before them (Manber, "Finding similar files in a large file system", 1994). A later
prompt that parts early meets the same windows again, and from there on is compared token by token.

```text
first    | time: 04:09:20 | You are a helpful agent. Tools: …            |      windows   ▁▁  ▁▁▁ ▁  ▁▁
second   | time: 04:11:57 | You are a helpful agent. Tools: …   | Hello  |                ▔▔  ▔▔▔ ▔  ▔▔
                  ^ parts here      ^ and agrees again from here on
```
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from radixkv.keys import TOKEN_BYTES, TokenKey, common_prefix

WINDOW: Final = 16
"""Tokens a window, a power of two."""
KEPT: Final = 8
"""One window in so many is remembered."""
LEAST: Final = 32
"""Tokens that two prompts must share in one piece behind the place where they part."""

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_AGAIN: Final = np.uint64(0xBF58476D1CE4E5B9)


class Run(NamedTuple):
    """Tokens `start` to `stop` of a prompt that stood before in prompt `source`, from its token `at` on."""

    start: int
    stop: int
    source: int
    at: int


@dataclass(slots=True)
class Split:
    """Prompts that bring again what one earlier prompt brought, though they parted from all earlier ones before it."""

    source: int
    """Number of the earlier prompt, from 0."""
    example: int
    """Number of the first prompt that parted so."""
    requests: int = 0
    tokens: int = 0
    """Missed tokens that stood in an earlier prompt."""
    first: int = 0
    """The earliest position where one of them parts, in tokens."""
    last: int = 0
    """The latest."""
    reordered: int = 0
    """How many of the prompts have the same parts in another order; the others differ in a field between them."""


class Splits:
    """Remembers what text prompts bring, and finds it again behind another beginning.

    Keeps the tokens that were new when they came, 4 bytes each, and about 100 bytes for every `KEPT` of them.
    """

    def __init__(self) -> None:
        self._windows: dict[int, tuple[int, int]] = {}  # by hash: the prompt that brought it, and where
        self._again: dict[int, int] = {}  # by hash: how many prompts brought it again
        self._brought: dict[int, tuple[int, bytes]] = {}  # by prompt: the tokens it brought, and where they begin
        self._found: dict[int, Split] = {}  # by source

    def add(self, number: int, prompt: TokenKey, parts_at: int) -> int:
        """How many tokens from `parts_at` on stood in an earlier prompt; then remember what is new of them.

        O(tokens from there on).
        """
        data = prompt.data
        windows = _windows(data, parts_at)
        runs = [run for run in self._runs(data, windows, parts_at) if run.stop - run.start >= LEAST]
        self._note(number, runs, parts_at)
        fresh = [(place, name) for place, name in windows if name not in self._windows]
        for name in {name for _, name in windows} - {name for _, name in fresh}:
            self._again[name] = self._again.get(name, 0) + 1
        if fresh:
            self._brought[number] = (parts_at, data[parts_at * TOKEN_BYTES :])
            for place, name in fresh:
                self._windows.setdefault(name, (number, place))
        return sum(run.stop - run.start for run in runs)

    def worst(self) -> list[Split]:
        """What was found, those that cost most first."""
        return sorted(self._found.values(), key=lambda split: (-split.tokens, split.source))

    def stable_first(self, number: int, prompt: TokenKey) -> TokenKey:
        """The prompt with older text before newer: fields that change stand behind the text that does not.

        Only a prompt that shares text with those of a `Split` is changed. Text is as old as the prompt that brought it;
        what one prompt brought has the order it had there, and what is new stands last. Up to `KEPT` or so tokens
        around a field move with it. To be called for the prompts of the same trace once all were added. O(tokens).
        """
        data = prompt.data
        found = [
            (place, *self._windows[name])
            for place, name in _windows(data, 0)
            if name in self._windows and self._is_stable(name, number)
        ]
        if not any(source in self._found for _, source, _ in found):
            return prompt
        sources, places = np.full(len(prompt), number), np.arange(len(prompt))
        for place, source, at in sorted(found, key=lambda window: -window[1]):  # the oldest has the last word
            sources[place : place + WINDOW] = source
            places[place : place + WINDOW] = np.arange(at, at + WINDOW)
        for (before, source, at), (after, same, then) in pairwise(found):
            if source == same and then - at == after - before > WINDOW:
                offset, brought = self._brought[source]
                gap = data[(before + WINDOW) * TOKEN_BYTES : after * TOKEN_BYTES]
                if brought.startswith(gap, (at + WINDOW - offset) * TOKEN_BYTES):
                    sources[before + WINDOW : after] = source
                    places[before + WINDOW : after] = np.arange(at + WINDOW, then)
        return TokenKey(np.frombuffer(data, np.uint32)[np.lexsort((places, sources))])

    def _is_stable(self, name: int, number: int) -> bool:
        """Whether a window is older than this prompt, and not just by chance: where prompts part, most have it."""
        source, _ = self._windows[name]
        split = self._found.get(source)
        return source < number and (split is None or 2 * self._again.get(name, 0) >= split.requests)

    def _note(self, number: int, runs: list[Run], parts_at: int) -> None:
        if not runs:
            return
        by_source: dict[int, int] = {}
        for run in runs:
            by_source[run.source] = by_source.get(run.source, 0) + run.stop - run.start
        source = max(by_source, key=lambda one: (by_source[one], -one))
        split = self._found.setdefault(source, Split(source, number, first=parts_at, last=parts_at))
        split.requests += 1
        split.tokens += sum(by_source.values())
        split.first, split.last = min(split.first, parts_at), max(split.last, parts_at)
        split.reordered += _reordered(runs)

    def _runs(self, data: bytes, windows: list[tuple[int, int]], begin: int) -> Iterator[Run]:
        """Stretches that stood before, as long as they agree, none overlapping, from left to right."""
        done = begin
        known = self._windows
        for place, name in windows:
            if place < done or (found := known.get(name)) is None:
                continue
            source, at = found
            offset, brought = self._brought[source]
            at -= offset
            length = common_prefix(data, brought[at * TOKEN_BYTES :], start=place * TOKEN_BYTES) // TOKEN_BYTES
            if length < WINDOW:  # two windows of one hash
                continue
            back = _agree_backwards(data[done * TOKEN_BYTES : place * TOKEN_BYTES], brought[: at * TOKEN_BYTES])
            start, stop = place - back, place + length
            done = stop
            yield Run(start, stop, source, at - back + offset)


def _windows(data: bytes, begin: int) -> list[tuple[int, int]]:
    """Place and hash of every window to remember, from token `begin` on. O(tokens)."""
    tokens = np.frombuffer(data, np.uint32)[begin:].astype(np.uint64)
    if len(tokens) < WINDOW:
        return []
    hashes: npt.NDArray[np.uint64] = (tokens + np.uint64(1)) * _MIX
    hashes ^= hashes >> np.uint64(32)
    factor, width = _MIX_AGAIN, 1
    while width < WINDOW:  # of 2, 4, 8, 16 tokens
        hashes = hashes[:-width] * factor + hashes[width:]
        hashes ^= hashes >> np.uint64(29)
        width *= 2
    hashes *= _MIX
    places = np.flatnonzero(hashes >> np.uint64(64 - KEPT.bit_length() + 1) == 0)
    return list(zip((places + begin).tolist(), hashes[places].tolist(), strict=True))


def _agree_backwards(one: bytes, other: bytes) -> int:
    """How many last tokens two stretches have in common. O(tokens)."""
    most = min(len(one), len(other)) // TOKEN_BYTES
    if not most:
        return 0
    differ = np.frombuffer(one, np.uint32)[-most:] != np.frombuffer(other, np.uint32)[-most:]
    last = np.flatnonzero(differ)
    return most - 1 - int(last[-1]) if len(last) else most


def _reordered(runs: list[Run]) -> bool:
    """Whether these parts stood elsewhere in an order of their own, and are not just shifted."""
    return any((before.source, before.at) > (after.source, after.at) for before, after in pairwise(runs))
