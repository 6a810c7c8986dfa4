"""The K/V store: where the blocks that the manager counts really are."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from radixkv.keys import check_size


class LayerShape(NamedTuple):
    """What one layer keeps of a token."""

    kv_heads: int
    key_dim: int
    """Numbers of a head's K."""
    value_dim: int
    """Numbers of a head's V; most models: as many as of K."""


class KVStore:
    """K and V of every layer, `[blocks, block_size, kv_heads, head_dim]` each, zero at first.

    A token's slot is `block * block_size + offset`; the flat views are indexed by slots. All of the memory is
    written at once, so that no step waits for the system to hand it out.

    Args:
        layers: the shape of each layer.
        num_blocks: blocks, as many as the manager's pool.
        block_size: tokens a block.
        dtype: of K and V, the model's.
        device: where they are.

    Raises:
        SizeError: no blocks, or no tokens in one.

    >>> store = KVStore([LayerShape(kv_heads=1, key_dim=4, value_dim=4)], 3, 2, torch.float32, torch.device("cpu"))
    >>> store.keys[0].shape, store.flat_keys[0].shape, store.nbytes
    (torch.Size([3, 2, 1, 4]), torch.Size([6, 1, 4]), 192)
    """

    def __init__(
        self, layers: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = check_size("num_blocks", num_blocks, 1)
        self.block_size = check_size("block_size", block_size, 1)
        self.keys = [_zeros((num_blocks, block_size, layer.kv_heads, layer.key_dim), dtype, device) for layer in layers]
        self.values = [
            _zeros((num_blocks, block_size, layer.kv_heads, layer.value_dim), dtype, device) for layer in layers
        ]
        self.flat_keys = [keys.flatten(0, 1) for keys in self.keys]
        self.flat_values = [values.flatten(0, 1) for values in self.values]

    @property
    def nbytes(self) -> int:
        """Bytes of all K and V. O(layers)."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    @staticmethod
    def block_bytes(layers: Sequence[LayerShape], block_size: int, dtype: torch.dtype) -> int:
        """Bytes that one block takes in all layers.

        >>> KVStore.block_bytes([LayerShape(3, 64, 64)] * 30, 16, torch.float32)
        737280
        """
        numbers = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers)
        return numbers * block_size * dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # pages of its own, so that the heap is left to what steps compute, and what a store had is the system's again after
    # it; private ones, since those alone may be huge, which are faster to gather from
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    # written by numpy in this thread: torch would write it in several, which `apart` is to avoid; not written at all,
    # each page would be asked of the system in the midst of a step, and what it does not have missed only there
    memory.fill(0)
    return torch.from_numpy(memory).view(dtype).view(shape)
