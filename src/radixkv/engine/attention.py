"""Paged attention: one function for every model, behind transformers' attention interface.

A batch is one row of tokens, those of all its requests one after the other; the model code sees `[1, tokens]` and
builds no mask, since the interface knows no mask function for this attention. Whose token is whose, and which pages it
attends to, comes along as a keyword argument of the forward call, which model code hands on to the attention.

```text
tokens   | rows that share pages: groups, chunks | the others: rows of a few tokens in groups | chunks of prompts
write    every token's K and V to its slot, in every layer, before anything is read
attend   a group: gathered pages, padded, one call    a chunk: its pages, a view where they lie in one piece
merge    rows that begin with the same pages attend to those once, all such prefixes in one call, padded, and each row
         to its own pages apart; by the log-sum-exp of both the two results are the one of all pages
```

Attending to a shared prefix once is of Juravsky et al., "Hydragen: High-Throughput LLM Inference with Shared Prefixes"
(2024), and known as cascade inference from FlashInfer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from radixkv.engine.errors import UnsupportedModelError
from radixkv.engine.kv_store import KVStore
from radixkv.errors import InvariantError

PAGED: Final = "radixkv_paged"
"""The name that the attention is registered under."""

FOREIGN_ARGUMENTS: Final = {
    "position_bias": "position biases",
    "s_aux": "attention sinks",
    "sliding_window": "a sliding window",
    "softcap": "soft-capped scores",
}
"""What model code may ask of an attention that this one does not do, and its name."""


FEW_TOKENS: Final = 64
"""Rows of more tokens are attended to by themselves, and fill the kernel's rows without other heads' tokens."""

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
    """Where K and V of consecutive tokens are, of one request or of several, as many of each."""

    length: int
    """Tokens of each."""
    first_slot: int | None
    """Where one request's blocks lie in one piece, the first one's first slot: the pages are a view."""
    blocks: torch.Tensor | None
    """Otherwise their ids, `[requests, pages]`."""

    def of(self, paged: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Out of a layer's K or V, by block and by slot: `[requests, length, kv_heads, dim]`."""
        if self.blocks is None:
            first = self.first_slot or 0
            return flat[first : first + self.length].unsqueeze(0)
        # as rows of one dimension, which is twice as fast; no copy makes requests of them
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
    """Requests with a few new tokens each, attended to in one call over their gathered pages.

    What is small is packed: to the kernel, some requests are one, by whose mask each token sees those of its own alone.
    All packs are padded alike.
    """

    start: int
    stop: int
    """Their rows of the batch."""
    pages: Pages
    """Every pack's, filled up with its own first to the longest one's number."""
    mask: Mask
    """`[packs, 1, tokens, length]`."""
    spread: torch.Tensor | None
    """Which of the group's rows is which pack's first, second, ... token, `[packs * tokens]`, filled up; None if each
    has one."""
    real: torch.Tensor | None
    """Where in `spread` the group's rows are, `[rows]`."""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Consecutive tokens of one request, which end its K and V."""

    start: int
    stop: int
    """Its rows of the batch."""
    pages: Pages
    """What it attends to, its own tokens the last."""
    mask: Mask | None
    """`[tokens, length]`; None where a plain causal mask will do, or none."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """Pages that several rows each begin with, attended to in one call for all of those rows, all padded alike."""

    pages: Pages
    """Those of every prefix."""
    mask: Mask | None
    """`[prefixes, 1, 1, length]`; None where all are as long."""
    spread: torch.Tensor
    """The rows of the batch that begin with the first prefix, the second, ..., `[prefixes * rows]`, filled up."""


class _Attended(NamedTuple):
    """Results over some of the pages."""

    out: torch.Tensor
    """`[tokens, heads, dim]`."""
    weight: torch.Tensor | None
    """The logarithm of the scores' sum of exponentials, `[tokens, heads, 1]`; only where it is needed."""

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> _Attended:
        """Both, changed alike."""
        return _Attended(change(self.out), None if self.weight is None else change(self.weight))


_Kernel: TypeAlias = Callable[..., _Attended]


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
    spans: tuple[Group | Chunk, ...]
    """They cover all rows, in order."""
    shared: int
    """So many rows, the first ones, begin with pages that others begin with, too; their spans are without those."""
    prefixes: tuple[Prefixes, ...]
    """Those pages."""
    place: torch.Tensor
    """Where each of those rows is among what all `prefixes` spread, `[shared]`."""

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
        own: list[_Attended] = []  # of rows that attend to prefixes, too
        parts: list[torch.Tensor] = []
        for span in self.spans:
            kernel = partial(_attention, scaling=scaling, weighed=span.start < self.shared)
            if isinstance(span, Group):
                found = self._attend_group(span, layer, rows, kernel)
            else:
                found = self._attend_chunk(span, layer, rows, kernel)
            if span.start < self.shared:
                own.append(found)
            else:
                parts.append(found.out)
        if own:
            kernel = partial(_attention, scaling=scaling, weighed=True)
            before = _joined([self._attend_prefixes(some, layer, rows, kernel) for some in self.prefixes])
            parts.insert(0, _merged(before.each(lambda part: part.index_select(0, self.place)), _joined(own)))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _pages(self, pages: Pages, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer."""
        store = self.store
        return (
            pages.of(store.keys[layer], store.flat_keys[layer]),
            pages.of(store.values[layer], store.flat_values[layer]),
        )

    def _attend_group(self, group: Group, layer: int, rows: torch.Tensor, kernel: _Kernel) -> _Attended:
        rows = rows[group.start : group.stop]
        if group.spread is not None:
            rows = rows.index_select(0, group.spread)
        found = _attend_padded(rows, *self._pages(group.pages, layer), group.mask, kernel)
        real = group.real
        return found if real is None else found.each(lambda part: part.index_select(0, real))

    def _attend_prefixes(self, some: Prefixes, layer: int, rows: torch.Tensor, kernel: _Kernel) -> _Attended:
        return _attend_padded(rows.index_select(0, some.spread), *self._pages(some.pages, layer), some.mask, kernel)

    def _attend_chunk(self, chunk: Chunk, layer: int, rows: torch.Tensor, kernel: _Kernel) -> _Attended:
        key, value = self._pages(chunk.pages, layer)
        rows = rows[chunk.start : chunk.stop]
        tokens, heads, dim = rows.shape
        if tokens == 1 or (chunk.mask is not None and tokens <= FEW_TOKENS):
            return _attend_padded(rows, key, value, chunk.mask, kernel)
        shared = heads // key.shape[2]
        # [kv_heads, shared, tokens, dim]: K and V of a head are seen by all that share it, through a stride of zero
        found = kernel(
            rows.transpose(0, 1).reshape(-1, shared, tokens, dim),
            key[0].transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1),
            value[0].transpose(0, 1).unsqueeze(1).expand(-1, shared, -1, -1),
            mask=None if chunk.mask is None else chunk.mask.tokens,
            causal=chunk.mask is None,
        )
        return found.each(lambda part: part.flatten(0, 1).transpose(0, 1))


def _attend_padded(
    rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Mask | None, kernel: _Kernel
) -> _Attended:
    """Requests with as many tokens and pages each.

    `[requests * tokens, heads, dim]` attends to `[requests, length, kv_heads, dim]`; `mask` as of `Group` or `Chunk`.
    The heads that share a K/V head stand in the place of more query tokens: no K or V is repeated, and few tokens
    behind a long prefix fill the kernel's rows.
    """
    requests, _, kv_heads, _ = key.shape
    heads, dim = rows.shape[1:]
    found = kernel(
        rows.reshape(requests, -1, heads, dim).transpose(1, 2).reshape(requests, kv_heads, -1, dim),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask=None if mask is None else mask.of(heads // kv_heads),
    )
    return found.each(lambda part: part.reshape(requests, heads, -1, part.shape[-1]).transpose(1, 2).flatten(0, 1))


def _joined(parts: list[_Attended]) -> _Attended:
    if len(parts) == 1:
        return parts[0]
    return _Attended(
        torch.cat([part.out for part in parts]), torch.cat([part.weight for part in parts if part.weight is not None])
    )


def _merged(one: _Attended, other: _Attended) -> torch.Tensor:
    """The result over all pages, of results with weights over some and over the others: `[tokens, heads, dim]`."""
    if one.weight is None or other.weight is None:
        raise InvariantError("results are merged by their weights, and one has none")
    share = torch.sigmoid(one.weight - other.weight)
    # in float32: what is left of a share near one would be lost to bfloat16
    return torch.lerp(other.out.float(), one.out.float(), share.float()).to(other.out.dtype)


def _attention(  # noqa: PLR0913  # as many as attention has
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scaling: float | None,
    weighed: bool,
    mask: torch.Tensor | None = None,
    causal: bool = False,
) -> _Attended:
    """Attention of `[batch, heads, tokens, dim]`, with weights if it is to be merged; both in this order still."""
    if weighed:
        out, weight = _FLASH(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
        return _Attended(out, weight.unsqueeze(-1))
    return _Attended(
        scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scaling), None
    )


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
