"""Paged attention: one function for every model, behind transformers' attention interface.

A batch is one row of tokens, those of all its requests one after the other; the model code sees `[1, tokens]` and
builds no mask, since the interface knows no mask function for this attention. Whose token is whose, and which pages it
attends to, comes along as a keyword argument of the forward call, which model code hands on to the attention.

```text
tokens   | decode rows, one token each, in groups | chunk of a prompt | chunk of another |
write    every token's K and V to its slot, in every layer, before anything is read
attend   a group: gathered pages, padded, one call     a chunk: its pages, a view where they lie in one piece
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from radixkv.engine.errors import UnsupportedModelError
from radixkv.engine.kv_store import KVStore

PAGED: Final = "radixkv_paged"
"""The name that the attention is registered under."""

FOREIGN_ARGUMENTS: Final = {
    "position_bias": "position biases",
    "s_aux": "attention sinks",
    "sliding_window": "a sliding window",
    "softcap": "soft-capped scores",
}
"""What model code may ask of an attention that this one does not do, and its name."""


class Attender(Protocol):
    """What the registered function hands each layer's tensors to."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Attention of one layer.

        Args:
            layer: which.
            query: `[heads, tokens, dim]`.
            key: `[kv_heads, tokens, dim]`, of the new tokens.
            value: the same for V.
            scaling: of the scores; None for `dim ** -0.5`.

        Returns:
            `[tokens, heads, dim]`.
        """


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGroup:
    """Requests with one new token each, attended to in one call over their gathered pages."""

    start: int
    stop: int
    """Their rows of the batch."""
    blocks: torch.Tensor
    """Block ids, `[rows * pages]`: every request's, filled up with its own first to the longest one's number."""
    mask: torch.Tensor
    """What is added to the scores, `[rows, 1, 1, pages * block_size]`: 0 for the request's tokens, else -inf."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive tokens of one request, which end its K and V."""

    start: int
    stop: int
    """Its rows of the batch."""
    length: int
    """Tokens of the request, those of the chunk the last."""
    first_slot: int | None
    """Where its blocks lie in one piece, the first one's first slot: its pages are a view."""
    blocks: torch.Tensor | None
    """Otherwise its block ids."""
    mask: torch.Tensor | None
    """What is added to the scores, `[tokens, length]`; None where a plain causal mask will do, or none."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedBatch:
    """One forward pass: where its tokens go, and what they attend to. Groups and chunks cover all rows, in order."""

    store: KVStore
    slots: torch.Tensor
    """Every token's slot, `[tokens]`."""
    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Write the new K and V, then attend: `[heads, tokens, dim]` in, `[tokens, heads, dim]` out."""
        flat_keys, flat_values = self.store.flat_keys[layer], self.store.flat_values[layer]
        flat_keys.index_copy_(0, self.slots, key.transpose(0, 1))
        flat_values.index_copy_(0, self.slots, value.transpose(0, 1))
        parts = [self._attend_group(group, layer, query, scaling) for group in self.groups]
        parts += [self._attend_chunk(chunk, layer, query, scaling) for chunk in self.chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_group(self, group: DecodeGroup, layer: int, query: torch.Tensor, scaling: float | None) -> torch.Tensor:
        rows = group.stop - group.start
        heads, _, dim = query.shape
        key = self.store.keys[layer].index_select(0, group.blocks)
        value = self.store.values[layer].index_select(0, group.blocks)
        kv_heads = key.shape[2]
        # the heads that share a K/V head stand in the place of query tokens: nothing is repeated
        out = scaled_dot_product_attention(
            query[:, group.start : group.stop].transpose(0, 1).reshape(rows, kv_heads, heads // kv_heads, dim),
            key.view(rows, -1, kv_heads, dim).transpose(1, 2),
            value.view(rows, -1, kv_heads, value.shape[-1]).transpose(1, 2),
            attn_mask=group.mask,
            scale=scaling,
        )
        return out.reshape(rows, heads, -1)

    def _attend_chunk(self, chunk: Chunk, layer: int, query: torch.Tensor, scaling: float | None) -> torch.Tensor:
        length, tokens = chunk.length, chunk.stop - chunk.start
        if chunk.blocks is None:
            pages = slice(chunk.first_slot, (chunk.first_slot or 0) + length)
            key, value = self.store.flat_keys[layer][pages], self.store.flat_values[layer][pages]
        else:
            key = self.store.keys[layer].index_select(0, chunk.blocks).flatten(0, 1)[:length]
            value = self.store.values[layer].index_select(0, chunk.blocks).flatten(0, 1)[:length]
        heads, _, dim = query.shape
        kv_heads = key.shape[1]
        shared = heads // kv_heads
        # [kv_heads, shared, tokens, dim]: K and V of a head are seen by all that share it, through a stride of zero
        out = scaled_dot_product_attention(
            query[:, chunk.start : chunk.stop].reshape(kv_heads, shared, tokens, dim),
            key.transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1),
            value.transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None and tokens > 1,
            scale=scaling,
        )
        return out.flatten(0, 1).transpose(0, 1)


def paged_attention(  # noqa: PLR0913, PLR0917  # transformers calls it so
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    radixkv_batch: Attender | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """The attention that transformers' model code calls, once a layer.

    Args:
        module: the layer's attention; its `layer_idx` says which layer it is.
        query: `[1, heads, tokens, dim]`.
        key: `[1, kv_heads, tokens, dim]`, of the new tokens.
        value: the same for V.
        attention_mask: must be None.
        scaling: of the scores; None for `dim ** -0.5`.
        radixkv_batch: the forward pass, as it was given to the model's call.
        arguments: what else the model code passes; those that would change the result are refused.

    Returns:
        `[1, tokens, heads, dim]` and None for the weights.

    Raises:
        UnsupportedModelError: the model code asks for another attention than this.
    """
    asked = [name for argument, name in FOREIGN_ARGUMENTS.items() if arguments.get(argument) is not None]
    if attention_mask is not None:
        asked.append("a mask of its own")
    if arguments.get("is_causal") is False or not getattr(module, "is_causal", True):
        asked.append("attention to later tokens")
    layer = getattr(module, "layer_idx", None)
    if asked or radixkv_batch is None or not isinstance(layer, int):
        reason = f"its attention wants {', '.join(asked)}" if asked else "its code does not say which layer attends"
        raise UnsupportedModelError(model=type(module).__name__, reason=reason)
    return radixkv_batch.attend(layer, query[0], key[0], value[0], scaling).unsqueeze(0), None


def register_attention() -> None:
    """Make the attention known to transformers under `PAGED`; again does no harm."""
    AttentionInterface.register(PAGED, paged_attention)
