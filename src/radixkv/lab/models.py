"""Models by what a prompt costs them: bytes of K and V a token, and FLOPs of a prefill.

```text
K and V of a token    attention with G kv heads of d      2 · G · d numbers a layer      (MHA: G = heads; GQA: fewer)
                      latent attention (MLA)              kv_lora_rank + rope dimensions a layer, once for all heads
                      a sliding window of w               the same, but of the last w tokens of a prompt alone
FLOPs of a prefill    2 · P · (N - c)  +  2 · L · heads · d · (N² - c²)         N tokens, the first c cached
```
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from radixkv.errors import RadixKVError, UnknownNameError
from radixkv.keys import check_size
from radixkv.traces.base import brief


class ModelConfigError(RadixKVError, ValueError):
    """A `config.json` that does not say what its K and V cost; `field` is the one at fault, None for the whole."""

    def __init__(self, reason: str, *, path: str, field: str | None = None) -> None:
        super().__init__(f"{path}: {reason}" if field is None else f"{path}: {field}: {reason}")
        self.path, self.field = path, field


class MemoryTooSmallError(RadixKVError, ValueError):
    """Memory that holds not even one block of K and V; both in bytes."""

    def __init__(self, *, memory: int, block_bytes: float) -> None:
        super().__init__(f"{memory:,} bytes of memory are less than one block of {block_bytes:,.0f} bytes")
        self.memory, self.block_bytes = memory, block_bytes


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a model's prompts cost."""

    parameters: float
    """That a token goes through: of a mixture of experts, the active ones."""
    heads: int
    head_dim: float
    """Of attention scores and values; the mean where they differ."""
    kv_numbers: int
    """Numbers that a token leaves in one layer's cache: 2 · kv heads · head dim, or the latent's width."""
    windows: tuple[int | None, ...]
    """For each layer that keeps K and V, the tokens it looks back; None for all."""
    kv_bytes: float = 2
    """Bytes a number in the cache."""

    def token_bytes(self, context: int | None = None) -> float:
        """Bytes of K and V a token, of a prompt of `context` tokens: there a sliding layer keeps its window alone.

        Without a context every layer keeps every token, as caches do that free nothing behind the window.

        >>> find_model("llama-3.1-8b").token_bytes()
        131072
        >>> gemma = find_model("gemma-3-27b")
        >>> gemma.token_bytes(), gemma.token_bytes(context=65_536)
        (507904, 88576.0)
        """
        per_layer = self.kv_numbers * self.kv_bytes
        if context is None:
            return per_layer * len(self.windows)
        check_size("context", context, 1)
        return per_layer * sum(1 if window is None else min(window, context) / context for window in self.windows)

    def blocks_in(self, memory: int, block_size: int, context: int | None = None) -> int:
        """How many blocks of K and V fit in `memory` bytes.

        Raises:
            MemoryTooSmallError: none.

        >>> find_model("llama-3.1-70b").blocks_in(40 * 2**30, block_size=16)
        8192
        """
        block_bytes = block_size * self.token_bytes(context)
        if memory < block_bytes:
            raise MemoryTooSmallError(memory=memory, block_bytes=block_bytes)
        return int(memory // block_bytes)

    def prefill_flops(self, tokens: int, squares: int) -> float:
        """FLOPs of a prefill of so many tokens, `squares` being the sum of the squares of the prompts' lengths.

        Those of cached prefixes are what a cache saves. A layer with a sliding window w is counted as
        4 · heads · d · w a token, so as if every token had a whole window before it.
        """
        full = sum(window is None for window in self.windows)
        looked_back = sum(window for window in self.windows if window is not None)
        attention = 2 * full * squares + 4 * looked_back * tokens
        return 2 * self.parameters * tokens + self.heads * self.head_dim * attention


@dataclass(frozen=True, slots=True)
class Roofline:
    """How long a prefill takes on one GPU, if arithmetic is all it waits for.

    Raises:
        ValueError: a peak that is not above 0, or a utilisation that is not above 0 and up to 1.

    >>> roofline = Roofline(find_model("llama-3.1-8b"), peak_flops=1e15, utilisation=0.5)
    >>> round(roofline.seconds(tokens=8192, squares=8192**2), 2)
    0.3
    """

    model: ModelCost
    peak_flops: float = 989e12
    """A second; the default is an H100's, dense bfloat16."""
    utilisation: float = 0.5
    """The share of the peak that a prefill reaches."""

    def __post_init__(self) -> None:
        if not self.peak_flops > 0:
            raise ValueError(f"peak_flops must be above 0, got {self.peak_flops}")
        if not 0 < self.utilisation <= 1:
            raise ValueError(f"utilisation must be above 0 and up to 1, got {self.utilisation}")

    def seconds(self, tokens: int, squares: int) -> float:
        """Of one GPU, for `ModelCost.prefill_flops`."""
        return self.model.prefill_flops(tokens, squares) / (self.peak_flops * self.utilisation)


def _dense(parameters: float, layers: int, heads: int, kv_heads: int, head_dim: int) -> ModelCost:
    return ModelCost(parameters, heads, head_dim, 2 * kv_heads * head_dim, (None,) * layers)


def _sliding(dense: ModelCost, *, window: int, full_every: int) -> ModelCost:
    layers = range(1, len(dense.windows) + 1)
    return replace(dense, windows=tuple(None if layer % full_every == 0 else window for layer in layers))


# Parameters are those that a token goes through, as the models' own cards give them.
MODELS: Final[Mapping[str, ModelCost]] = {
    "deepseek-v3": ModelCost(37e9, 128, (192 + 128) / 2, 512 + 64, (None,) * 61),
    "gemma-2-9b": _sliding(_dense(9.24e9, 42, 16, 8, 256), window=4096, full_every=2),
    "gemma-3-12b": _sliding(_dense(12.2e9, 48, 16, 8, 256), window=1024, full_every=6),
    "gemma-3-27b": _sliding(_dense(27.4e9, 62, 32, 16, 128), window=1024, full_every=6),
    "gpt-oss-120b": _sliding(_dense(5.1e9, 36, 64, 8, 64), window=128, full_every=2),
    "gpt-oss-20b": _sliding(_dense(3.6e9, 24, 64, 8, 64), window=128, full_every=2),
    "llama-3.1-405b": _dense(405.9e9, 126, 128, 8, 128),
    "llama-3.1-70b": _dense(70.6e9, 80, 64, 8, 128),
    "llama-3.1-8b": _dense(8.03e9, 32, 32, 8, 128),
    "llama-3.2-1b": _dense(1.24e9, 16, 32, 8, 64),
    "llama-3.2-3b": _dense(3.21e9, 28, 24, 8, 128),
    "mistral-7b-v0.3": _dense(7.25e9, 32, 32, 8, 128),
    "mistral-small-24b": _dense(23.6e9, 40, 32, 8, 128),
    "mixtral-8x22b": _dense(39.1e9, 56, 48, 8, 128),
    "mixtral-8x7b": _dense(12.9e9, 32, 32, 8, 128),
    "phi-4": _dense(14.7e9, 40, 40, 10, 128),
    "qwen2.5-32b": _dense(32.8e9, 64, 40, 8, 128),
    "qwen2.5-72b": _dense(72.7e9, 80, 64, 8, 128),
    "qwen2.5-7b": _dense(7.62e9, 28, 28, 4, 128),
    "qwen3-235b-a22b": _dense(22e9, 94, 64, 4, 128),
    "qwen3-30b-a3b": _dense(3.3e9, 48, 32, 4, 128),
    "qwen3-32b": _dense(32.8e9, 64, 64, 8, 128),
    "qwen3-8b": _dense(8.19e9, 36, 32, 8, 128),
}
"""Well-known models by name; K and V in two bytes a number."""


def find_model(name: str) -> ModelCost:
    """A model of `MODELS`, or of a Hugging Face `config.json`: the file, or the folder it is in.

    Raises:
        UnknownNameError: neither.
        ModelConfigError: a config that does not say what its K and V cost.
    """
    if name in MODELS:
        return MODELS[name]
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise UnknownNameError(kind="model (and no config.json)", name=name, known=tuple(sorted(MODELS)))
    return read_config(path)


_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "kv_n_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "inner": ("intermediate_size", "ffn_dim", "n_inner"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts"),
    "window": ("sliding_window", "attention_chunk_size", "attention_window_size"),
}
_GEMMA_3: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
_QWEN: Final = {"use_sliding_window": False}
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "cohere2": {"sliding_window_pattern": 4},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window_pattern": 2},
    "gemma3": _GEMMA_3,
    "gemma3_text": _GEMMA_3,
    "llama4_text": {"attention_chunk_size": 8192, "sliding_window_pattern": 4},
    "mistral": {"num_attention_heads": 32, "num_key_value_heads": 8},
    "qwen2": _QWEN,
    "qwen2_moe": _QWEN,
    "qwen3": _QWEN,
    "qwen3_moe": _QWEN,
    "qwen3_next": {"full_attention_interval": 4},
}
"""By model type, what its configs leave out: a config inside another is written without what is the usual."""
_INSIDE: Final = ("text_config", "llm_config", "language_config")
"""Where a model that sees or hears has the part that makes tokens."""
_UNEVEN: Final = (
    "block_configs",
    "block_types",
    "compress_rates",
    "compress_ratios",
    "global_head_dim",
    "linear_attn_config",
    "num_global_key_value_heads",
    "num_key_value_heads_per_layer",
    "per_layer_config",
    "swa_num_key_value_heads",
)
"""Fields of models whose layers keep K and V of different sizes: no one number is right for them."""
_MOST: Final = 2**24
"""More than any size of a model."""
_WITHOUT_KV: Final = frozenset({"linear_attention", "mamba", "conv", "recurrent", "moe", "mlp"})


def read_config(path: Path) -> ModelCost:
    """What a Hugging Face `config.json` says a model costs; the parameters are an estimate from its shapes.

    Raises:
        ModelConfigError: not JSON, no config, or a field that is missing or cannot be.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelConfigError(f"cannot be read: {error}", path=str(path)) from None
    if not isinstance(found, dict):
        raise ModelConfigError("expected a JSON object", path=str(path))
    inner: dict[str, Any] = next((found[name] for name in _INSIDE if isinstance(found.get(name), dict)), {})
    fields = {**found, **inner}
    if isinstance(attention := fields.get("attn_config"), dict):
        fields["kv_n_heads"] = attention.get("kv_n_heads")
    return _Config({**_FAMILIES.get(str(fields.get("model_type")), {}), **fields}, str(path)).cost()


class _Config:
    """A `config.json`, by what its fields are called in one family or another."""

    def __init__(self, fields: Mapping[str, Any], path: str) -> None:
        self._fields, self._path = fields, path

    def cost(self) -> ModelCost:
        for name in _UNEVEN:
            if self._fields.get(name) is not None:
                raise self._wrong(name, "layers that differ in the size of their K and V cannot be counted")
        heads, hidden = self._size("heads"), self._size("hidden")
        head_dim = self._size("head_dim", hidden // heads)
        if not head_dim:
            raise self._wrong("hidden_size", f"{hidden} is less than one for each of {heads} heads")
        rank = self._get("kv_lora_rank", 0)
        windows = self._windows()
        if rank:
            rope, value = self._get("qk_rope_head_dim", 0), self._get("v_head_dim", head_dim)
            query = self._get("qk_nope_head_dim", 0) + rope
            queries = self._get("q_lora_rank", 0)
            into_queries = queries * (hidden + heads * query) if queries else hidden * heads * query
            attention = into_queries + hidden * (rank + rope) + rank * heads * (query - rope + value)
            attention += heads * value * hidden
            kv_numbers, mean_dim = rank + rope, (query + value) / 2
        else:
            one = self._fields.get("multi_query") is True and self._fields.get("new_decoder_architecture") is not True
            kv_heads, value = 1 if one else self._size("kv_heads", heads), self._get("v_head_dim", head_dim)
            attention = hidden * (head_dim + value) * (heads + kv_heads)
            kv_numbers, mean_dim = kv_heads * (head_dim + value), (head_dim + value) / 2
        parameters = self._size("layers") * attention + self._feed_forward(hidden) + self._embeddings(hidden)
        wide = self._fields.get("torch_dtype", self._fields.get("dtype")) == "float32"
        return ModelCost(parameters, heads, mean_dim, kv_numbers, windows, kv_bytes=4 if wide else 2)

    def _windows(self) -> tuple[int | None, ...]:
        """The window of every layer that keeps K and V of its own."""
        layers = self._size("layers")
        used = self._fields.get("use_sliding_window", True)
        window = (self._size("window", 0, minimum=0) or None) if used else None
        kinds = self._kinds(layers, slides=window is not None)
        if len(kinds) != layers:
            raise self._wrong("layer_types", f"expected one for each of {layers} layers, got {len(kinds)}")
        own = kinds[: max(layers - self._get("num_kv_shared_layers", 0), 0)]
        keeping = [kind for kind in own if kind not in _WITHOUT_KV]
        if not keeping:
            raise ModelConfigError("no layer keeps K and V of its own", path=self._path)
        return tuple(window if kind.startswith(("sliding", "chunked")) else None for kind in keeping)

    def _kinds(self, layers: int, *, slides: bool) -> list[str]:
        """What each layer is, in one of the ways in which configs say it."""
        for name in ("layer_types", "layers_block_type"):
            if isinstance(self._fields.get(name), list):
                return [str(kind) for kind in self._fields[name]]
        if isinstance(pattern := self._fields.get("hybrid_override_pattern"), str):
            return ["full_attention" if letter == "*" else "mamba" for letter in pattern]
        if isinstance(types := self._fields.get("attn_type_list"), list):
            return ["full_attention" if one == 1 else "linear_attention" for one in types]
        full: Container[int] = range(layers)
        other = "linear_attention"
        for name in ("attn_layer_indices", "full_attn_idxs"):
            if isinstance(self._fields.get(name), list):
                full = self._fields[name]
        if interval := self._get("full_attention_interval", 0):
            full = range(interval - 1, layers, interval)
        elif period := self._get("attn_layer_period", 0):
            full = range(self._get("attn_layer_offset", 0), layers, period)
        elif slides:
            every = self._get("sliding_window_pattern", layers + 1, minimum=1)
            other = "sliding_attention"
            full = {*range(every - 1, layers, every), *range(self._get("max_window_layers", 0))}
        return ["full_attention" if layer in full else other for layer in range(layers)]

    def _feed_forward(self, hidden: int) -> int:
        """Parameters that a token goes through: three matrices of the layer, or of each expert it is sent to."""
        each = self._fields.get("intermediate_size")
        if isinstance(each, list) and all(type(one) is int for one in each):  # one a layer
            return 3 * hidden * sum(each)
        layers, inner = self._size("layers"), self._size("inner", 4 * hidden, minimum=0)
        if not self._size("experts", 0, minimum=0):
            return layers * 3 * hidden * inner
        dense = self._get("first_k_dense_replace", 0)
        experts = self._get("num_experts_per_tok", 1) + self._get("n_shared_experts", 0)
        expert = self._get("moe_intermediate_size", inner)
        return 3 * hidden * (dense * inner + (layers - dense) * experts * expert)

    def _embeddings(self, hidden: int) -> int:
        tied = self._fields.get("tie_word_embeddings", True) is not False
        return self._get("vocab_size", 0) * hidden * (1 if tied else 2)

    def _size(self, what: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A size by any of its names."""
        for name in _NAMES[what]:
            if self._fields.get(name) is not None:
                return self._get(name, 1, minimum=minimum)
        if default is None:
            raise self._wrong(" or ".join(_NAMES[what]), "missing")
        return default

    def _get(self, name: str, default: int, *, minimum: int = 0) -> int:
        value = self._fields.get(name)
        if value is None:
            return default
        if type(value) is not int or not minimum <= value <= _MOST:
            raise self._wrong(name, f"expected an integer from {minimum} to {_MOST}, got {brief(value)}")
        return value

    def _wrong(self, field: str, reason: str) -> ModelConfigError:
        return ModelConfigError(reason, path=self._path, field=field)
