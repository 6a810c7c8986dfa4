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


@dataclass(slots=True, eq=False)
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
    _repeated: torch.Tensor | None = None

    def mask_of(self, heads: int) -> torch.Tensor | None:
        """The mask for the tokens of so many heads, one head's after the other's; made once for all layers."""
        if self.mask is not None and (self._repeated is None or len(self._repeated) != heads * len(self.mask)):
            self._repeated = self.mask.repeat(heads, 1)
        return self._repeated


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
        key = self.store.keys[layer].index_select(0, group.blocks)
        value = self.store.values[layer].index_select(0, group.blocks)
        # [rows * pages, block_size, ...] is [rows, pages * block_size, ...], without a copy
        key, value = (pages.view(rows, -1, *pages.shape[2:]) for pages in (key, value))
        return _attend_single_tokens(query[:, group.start : group.stop], key, value, group.mask, scaling)

    def _attend_chunk(self, chunk: Chunk, layer: int, query: torch.Tensor, scaling: float | None) -> torch.Tensor:
        length, tokens = chunk.length, chunk.stop - chunk.start
        if chunk.blocks is None:
            pages = slice(chunk.first_slot, (chunk.first_slot or 0) + length)
            key, value = self.store.flat_keys[layer][pages], self.store.flat_values[layer][pages]
        else:
            key = self.store.keys[layer].index_select(0, chunk.blocks).flatten(0, 1)[:length]
            value = self.store.values[layer].index_select(0, chunk.blocks).flatten(0, 1)[:length]
        query = query[:, chunk.start : chunk.stop]
        if tokens == 1:
            return _attend_single_tokens(query, key.unsqueeze(0), value.unsqueeze(0), None, scaling)
        kv_heads = key.shape[1]
        shared = query.shape[0] // kv_heads
        key, value = key.transpose(0, 1), value.transpose(0, 1)
        if chunk.mask is None:
            # [kv_heads, shared, tokens, dim]: K and V of a head are seen by all that share it, through a stride of zero
            out = scaled_dot_product_attention(
                query.reshape(kv_heads, shared, tokens, -1),
                key.unsqueeze(1).expand(-1, shared, -1, -1),
                value.unsqueeze(1).expand(-1, shared, -1, -1),
                is_causal=True,
                scale=scaling,
            )
            return out.flatten(0, 1).transpose(0, 1)
        # [1, kv_heads, shared * tokens, dim]: the heads that share K and V stand in the place of more query tokens, so
        # that few tokens behind a long prefix fill the kernel's rows
        out = scaled_dot_product_attention(
            query.reshape(1, kv_heads, shared * tokens, -1),
            key.unsqueeze(0),
            value.unsqueeze(0),
            attn_mask=chunk.mask_of(shared),
            scale=scaling,
        )
        return out.reshape(shared * kv_heads, tokens, -1).transpose(0, 1)


def _attend_single_tokens(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """One new token a request: `[heads, requests, dim]` over `[requests, length, kv_heads, dim]`.

    The heads that share a K/V head stand in the place of query tokens: no K or V is repeated.
    """
    heads, requests, dim = query.shape
    kv_heads = key.shape[2]
    out = scaled_dot_product_attention(
        query.transpose(0, 1).reshape(requests, kv_heads, heads // kv_heads, dim),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        scale=scaling,
    )
    return out.flatten(1, 2)


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
    if asked:
        raise _unsupported(module, f"its attention wants {', '.join(asked)}")
    if radixkv_batch is None:
        raise _unsupported(module, "its code does not hand the arguments of the forward call on to the attention")
    if not isinstance(layer, int):
        raise _unsupported(module, "its code does not say which layer attends")
    return radixkv_batch.attend(layer, query[0], key[0], value[0], scaling).unsqueeze(0), None


def _unsupported(module: torch.nn.Module, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(model=type(module).__name__, reason=reason)


def register_attention() -> None:
    """Make the attention known to transformers under `PAGED`; again does no harm."""
    AttentionInterface.register(PAGED, paged_attention)
