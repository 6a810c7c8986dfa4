"""Paged attention: one function for every model, behind transformers' attention interface.

A batch is one row of tokens, those of all its requests one after the other; the model code sees `[1, tokens]` and
builds no mask, since the interface knows no mask function for this attention. Whose token is whose, and which pages it
attends to, comes along as a keyword argument of the forward call, which model code hands on to the attention.

```text
tokens   | merged rows | other rows of a few tokens | chunks of prompts
write    every token's K and V to its slot, in every layer, before anything is read
attend   few tokens: groups of problems (grouping.py), a call each | a chunk: its pages, a view where in one piece
place    what the problems give, back in the order of the tokens
merge    rows that are in two problems: the other one is a call of its own, and its results are in order; by the
         log-sum-exp of both the two results are the one of all pages
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
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


# What `scaled_dot_product_attention` itself calls on a CPU; it alone gives the log-sum-exp.
_FLASH: Final[Any] = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def merges(store: KVStore) -> bool:
    """Whether results over some of the pages can be merged with those over others."""
    same = all(key.shape == value.shape for key, value in zip(store.keys, store.values, strict=True))
    return _FLASH is not None and same and store.keys[0].device.type == "cpu"


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
class Pages:
    """K and V that some problems attend to, as many slots of each, filled up with the first of its pages."""

    length: int
    """Slots of each."""
    first_slot: int | None
    """Where one problem's blocks lie in one piece, the first one's first slot: the pages are a view."""
    blocks: torch.Tensor | None
    """Otherwise their ids, `[problems, pages]`."""

    def of(self, paged: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Out of a layer's K or V, by block and by slot: `[problems, length, kv_heads, dim]`."""
        if self.blocks is None:
            first = self.first_slot or 0
            return flat[first : first + self.length].unsqueeze(0)
        # as rows of one dimension, which is twice as fast; cutting them into problems copies nothing
        gathered = paged.flatten(1).index_select(0, self.blocks.view(-1))
        return gathered.view(len(self.blocks), -1, *paged.shape[2:])[:, : self.length]


@dataclass(slots=True, eq=False)
class Mask:
    """What is added to the scores: 0 for what a token sees, else -inf."""

    tokens: torch.Tensor
    """`[..., tokens, length]`."""
    _repeated: torch.Tensor | None = None

    def of(self, heads: int) -> torch.Tensor:
        """For the tokens of so many heads, one head's after the other's; made once for all layers."""
        tokens = self.tokens.shape[-2]
        if tokens == 1 or heads == 1:
            return self.tokens
        if self._repeated is None or self._repeated.shape[-2] != heads * tokens:
            self._repeated = torch.cat([self.tokens] * heads, dim=-2)
        return self._repeated


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Problems of one call, all padded alike."""

    tokens: torch.Tensor
    """Which rows of the batch each one's tokens are, `[problems, tokens]`; filled up with its last."""
    pages: Pages
    """Each one's."""
    mask: Mask | None
    """`[problems, 1, tokens, length]`; None where every token sees every page."""
    _queries: dict[int, torch.Tensor] = field(default_factory=dict)

    def queries(self, heads: int) -> torch.Tensor:
        """Where the kernel's queries are among all heads of all tokens, `[problems * heads * tokens]`.

        The heads that share a K/V head stand in the place of more query tokens: no K or V is repeated, and few tokens
        behind a long prefix fill the kernel's rows. Made once for all layers.
        """
        found = self._queries.get(heads)
        if found is None:
            head = torch.arange(heads, device=self.tokens.device)
            found = self._queries[heads] = (self.tokens[:, None] * heads + head[:, None]).view(-1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the results of some tokens are among those of all groups, `[tokens]` each."""

    first: torch.Tensor
    """The first token of its problem, counting each group's as they are padded."""
    width: torch.Tensor
    """The tokens of its problem, as they are padded."""
    number: torch.Tensor
    """Which of its problem's tokens it is."""
    _heads: dict[int, torch.Tensor] = field(default_factory=dict)

    def of(self, heads: int) -> torch.Tensor:
        """Where each head's result is, `[tokens * heads]`; made once for all layers."""
        found = self._heads.get(heads)
        if found is None:
            # a problem's results are [kv_heads, tokens of the kernel, dim], and those tokens [shared heads, tokens]
            head = torch.arange(heads, device=self.first.device)
            places = self.first[:, None] * heads + head * self.width[:, None] + self.number[:, None]
            found = self._heads[heads] = places.view(-1)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Pages that consecutive tokens of the batch all see, besides those in a group."""

    start: int
    stop: int
    """Its rows of the batch."""
    pages: Pages
    """Of one problem."""
    mask: torch.Tensor | None
    """`[1, length]`: of what they are filled up with; None where they are not."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive tokens of one request, which end its K and V."""

    start: int
    stop: int
    """Its rows of the batch."""
    pages: Pages
    """What it attends to, its own tokens the last, but for what they are filled up with."""
    mask: torch.Tensor | None
    """`[tokens, length]`; None where a plain causal mask will do, which hides what is behind them, too."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedBatch:
    """One forward pass: where its tokens go, and what they attend to."""

    store: KVStore
    requests: int
    """How many have tokens in it."""
    slots: torch.Tensor
    """Every token's slot, `[tokens]`."""
    begun: torch.Tensor
    """Slots to clear: the ends of the pages that the tokens begin. Whole pages are read, and what an earlier owner left
    there is masked, but a NaN or an infinity is not hidden by a mask."""
    groups: tuple[Group, ...]
    """What all tokens before those of `chunks` attend to."""
    places: Places
    """Of those tokens' results."""
    merged: tuple[Merged, ...]
    """Of the first ones of them, in order: what comes before the pages in their groups."""
    chunks: tuple[Chunk, ...]
    """Of all other tokens, in order."""

    @property
    def decodes(self) -> bool:
        """Whether it computes one token of each request."""
        return len(self.slots) == self.requests

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Write the new K and V, all of them, then attend: `[heads, tokens, dim]` in, `[tokens, heads, dim]` out.

        Rows may read what other rows of the batch write.
        """
        flat_keys, flat_values = self.store.flat_keys[layer], self.store.flat_values[layer]
        if len(self.begun):
            flat_keys.index_fill_(0, self.begun, 0)
            flat_values.index_fill_(0, self.begun, 0)
        flat_keys.index_copy_(0, self.slots, key.transpose(0, 1))
        flat_values.index_copy_(0, self.slots, value.transpose(0, 1))
        rows = query.transpose(0, 1)  # as model code has them in memory
        parts = [self._attend_groups(layer, rows, scaling)] if self.groups else []
        parts += [self._attend_chunk(chunk, layer, rows, scaling) for chunk in self.chunks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _pages(self, pages: Pages, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer, `[problems, kv_heads, length, dim]` each."""
        store = self.store
        key = pages.of(store.keys[layer], store.flat_keys[layer])
        value = pages.of(store.values[layer], store.flat_values[layer])
        return key.transpose(1, 2), value.transpose(1, 2)

    def _attend_groups(self, layer: int, rows: torch.Tensor, scaling: float | None) -> torch.Tensor:
        heads, dim = rows.shape[1:]
        kv_heads = self.store.keys[layer].shape[2]
        flat = rows.reshape(-1, dim)
        outs, weights = [], []
        for group in self.groups:
            key, value = self._pages(group.pages, layer)
            queries = flat.index_select(0, group.queries(heads)).view(len(key), kv_heads, -1, dim)
            mask = None if group.mask is None else group.mask.of(heads // kv_heads)
            if self.merged:
                out, weight = _FLASH(queries, key, value, 0.0, False, attn_mask=mask, scale=scaling)
                weights.append(weight.reshape(-1))
            else:
                out = scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
            outs.append(out.reshape(-1, out.shape[-1]))
        places = self.places.of(heads)
        result = _joined(outs).index_select(0, places).view(-1, heads, outs[0].shape[-1])
        if self.merged:
            weight = _joined(weights).index_select(0, places[: self.merged[-1].stop * heads]).view(-1, heads)
            for merged in self.merged:
                own = slice(merged.start, merged.stop)
                self._merge(merged, layer, rows[own], result[own], weight[own], scaling)
        return result

    def _merge(  # noqa: PLR0913, PLR0917  # what the kernel takes, and what it gave
        self,
        merged: Merged,
        layer: int,
        rows: torch.Tensor,
        result: torch.Tensor,
        weight: torch.Tensor,
        scaling: float | None,
    ) -> None:
        """Make of these tokens' results over the pages in their groups, and their log-sum-exps, those over all."""
        key, value = self._pages(merged.pages, layer)
        kv_heads = key.shape[1]
        # the heads that share a K/V head one after the other, as in a group; what comes of them is a view in order
        queries = rows.view(len(rows), kv_heads, -1, rows.shape[-1]).permute(1, 2, 0, 3)
        folded = queries.reshape(1, kv_heads, -1, rows.shape[-1])
        out, before = _FLASH(folded, key, value, 0.0, False, attn_mask=merged.mask, scale=scaling)
        out = out.view(queries.shape).permute(2, 0, 1, 3)
        before = before.view(*queries.shape[:3]).permute(2, 0, 1)
        share = torch.sigmoid(before - weight.view(before.shape)).unsqueeze(-1)
        # in the results' own type, which rounds once more than in float32 and takes half the time; each by a share
        # of its own, since what one near one leaves would be lost to bfloat16
        all_heads = result.view(out.shape)
        all_heads.mul_((1 - share).to(out.dtype)).addcmul_(out, share.to(out.dtype))

    def _attend_chunk(self, chunk: Chunk, layer: int, rows: torch.Tensor, scaling: float | None) -> torch.Tensor:
        key, value = self._pages(chunk.pages, layer)
        out = scaled_dot_product_attention(
            rows[chunk.start : chunk.stop].transpose(0, 1).unsqueeze(0),
            key,
            value,
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scaling,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


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
