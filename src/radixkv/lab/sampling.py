"""The LRU curve from a sample of the blocks, for traces whose blocks do not fit in memory: SHARDS.

After Waldspurger et al., "Efficient MRC Construction with SHARDS" (2015), at a fixed rate R: a block is in the sample
if a hash of it, and of all before it, is low enough, so that all uses of a block are in or none is. Between two uses of
a sampled block lie about R times as many sampled blocks as blocks. The uses that are sampled should be R of all; what
they are short of, or too many, are those of the few blocks that everybody uses, so it is put right at the shortest
distance (SHARDS-adj).

The standard error has two parts: how many uses of the sampled blocks miss, from 16 parts of the sample against each
other; and how far down they are, since of n sampled blocks as many could as well have been n ± sqrt(n · (1 - R)).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from radixkv.errors import RadixKVError
from radixkv.keys import check_namespace
from radixkv.lab.blocks import BlockWords, finished_key, prompt_key
from radixkv.lab.curve import LruCurve
from radixkv.lab.sizes import ShareError
from radixkv.lab.slots import Slots
from radixkv.traces import Request

_PARTS: Final = 16


class SampleError(RadixKVError, ValueError):
    """A sample that holds none of a trace's blocks, so that it tells nothing; `rate` is its share of them."""

    def __init__(self, *, rate: float) -> None:
        super().__init__(f"a sample of {100 * rate:g} % holds none of the trace's blocks: take a larger one")
        self.rate = rate


def sampled_curve(requests: Iterable[Request], block_size: int, rate: float, *, seed: int = 0) -> LruCurve:
    """The curve of a trace, estimated from a share of its blocks. Memory grows with the sampled blocks alone.

    O(tokens) at numpy's speed, and O(log requests) a sampled block.

    Args:
        requests: the trace, read once.
        block_size: tokens a block, a whole multiple of the trace's span.
        rate: the share of the blocks to sample, above 0 and up to 1.
        seed: which blocks those are.

    Raises:
        SizeError: a block size below 1.
        ShareError: a rate that is no share.
        SampleError: a trace of so few blocks that none is in the sample.
        SpanError: blocks that the trace cannot tell.
    """
    if not 0 < rate <= 1:
        raise ShareError(share=rate)
    words = BlockWords(block_size)
    sample = _Sample(round(rate * 2**64), seed)
    input_tokens = searched_blocks = count = 0
    for request in requests:
        size = words.of(request)
        check_namespace(request.namespace)
        key = finished_key(request) or prompt_key(request)
        searched = max(len(request.prompt) - 1, 0) // size
        sample.use(sample.names(key.data, size, request.namespace), searched, count)
        searched_blocks += searched
        input_tokens += request.input_tokens
        count += 1
    if searched_blocks and not sample.unique_blocks:
        raise SampleError(rate=rate)
    hit_blocks, error_blocks = sample.hits(searched_blocks * rate, 1 - rate)
    return LruCurve(
        block_size=block_size,
        requests=count,
        input_tokens=input_tokens,
        unique_blocks=round((len(hit_blocks) - 1) / rate),
        hit_tokens=np.rint(hit_blocks * block_size / rate).astype(np.int64),
        sample=rate,
        error_tokens=np.rint(error_blocks * block_size / rate).astype(np.int64),
    )


class _Sample:
    """The sampled blocks in the order of last use, and how far down each use found its block."""

    def __init__(self, threshold: int, seed: int) -> None:
        self._threshold = threshold
        self._salt = _mixed(np.array([seed % 2**64], np.uint64))
        self._positions = np.zeros(0, np.uint64)
        self._slots = Slots()
        self._slot_of: dict[int, int] = {}
        self._uses = np.zeros(_PARTS, np.int64)
        self._found = np.zeros((_PARTS, 1024), np.int64)  # by the sampled blocks above, and 1

    @property
    def unique_blocks(self) -> int:
        """Distinct blocks of the sample."""
        return len(self._slot_of)

    def names(self, data: bytes, size: int, namespace: str | None) -> dict[int, int]:
        """The sampled ones of a key's full blocks, by depth: 64-bit hashes of all up to each block's end."""
        words = np.frombuffer(data, np.uint32)
        count = len(words) // size
        if len(self._positions) < len(words):
            self._positions = _mixed(np.arange(2 * len(words), dtype=np.uint64) + self._salt)
        # A sum of hashes of words, each hashed with its place: of two prefixes the sums agree by chance alone.
        sums = np.cumsum(_mixed(self._positions[: len(words)] + words))[size - 1 :: size]
        if namespace is not None:
            sums = sums ^ _mixed(np.array([crc32(namespace.encode(errors="surrogatepass")) + 1], np.uint64))
        hashes = _mixed(sums)
        depths = np.arange(count) if self._threshold >= 2**64 else np.flatnonzero(hashes < np.uint64(self._threshold))
        return dict(zip(depths.tolist(), hashes[depths].tolist(), strict=True))

    def use(self, names: dict[int, int], searched: int, number: int) -> None:
        """Note how far down the sampled blocks of a path lie, from the root on; then put them on top."""
        slots, slot_of = self._slots, self._slot_of
        for before, (depth, name) in enumerate(names.items()):
            slot = slot_of.get(name)
            part = name % _PARTS
            counts = depth < searched
            self._uses[part] += counts
            if slot is None:
                continue
            if counts:
                above = slots.above(slot) + before
                if above + 1 >= self._found.shape[1]:
                    self._found = np.pad(self._found, ((0, 0), (0, max(above, self._found.shape[1]))))
                self._found[part, above + 1] += 1
            slots.take_out(slot, 1)
        if names:
            if slots.full:
                moved = slots.compact()
                self._slot_of = slot_of = {name: moved[slot] for name, slot in slot_of.items() if slot in moved}
            slot = slots.append(number, len(names))
            for name in names.values():
                slot_of[name] = slot

    def hits(self, expected_uses: float, unseen: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Uses that hit, by the sampled blocks that a cache holds, and their standard errors.

        `unseen` is the share of the blocks that is not in the sample.
        """
        unique = self.unique_blocks
        found = np.zeros((_PARTS, unique + 1))
        width = min(unique + 1, self._found.shape[1])
        found[:, :width] = self._found[:, :width]
        if unique:
            found[:, 1] += expected_uses / _PARTS - self._uses
        parts = np.cumsum(found, axis=1)
        hits = np.maximum.accumulate(np.maximum(parts.sum(axis=0), 0))
        held = np.arange(unique + 1)
        around = np.sqrt(held * unseen).astype(np.int64)
        low, high = hits[np.maximum(held - around, 0)], hits[np.minimum(held + around, unique)]
        return hits, np.sqrt(_PARTS * parts.var(axis=0, ddof=1) * unseen + ((high - low) / 2) ** 2)


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each value hashed, one to one: the finalizer of SplitMix64 (Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
