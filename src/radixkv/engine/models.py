"""Loading a model: any causal model of transformers', checked before it is served."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

from radixkv.engine.attention import register_attention
from radixkv.engine.default_model import DEFAULT_MODEL, default_model_folder
from radixkv.engine.errors import ModelFilesError, ParameterError, UnsupportedModelError
from radixkv.engine.kv_store import LayerShape
from radixkv.engine.linears import prepack
from radixkv.engine.probe import check_config, context_length, probe
from radixkv.engine.threads import apart

DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""What `dtype=` takes, besides "auto"."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve, with what the engine has to know of it. `load_model` makes it."""

    name: str
    model: Any
    """A transformers causal language model, its attention the paged one."""
    tokenizer: Any
    """A transformers tokenizer; None for a model without."""
    layers: tuple[LayerShape, ...]
    """What each layer keeps of a token."""
    vocab_size: int
    """Tokens are below."""
    max_context: int
    """Tokens of prompt and output together, at most."""
    eos_token_ids: frozenset[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def num_layers(self) -> int:
        """Layers that keep K and V."""
        return len(self.layers)

    @property
    def kv_heads(self) -> int:
        """K/V heads of the first layer; of all, in most models."""
        return self.layers[0].kv_heads

    @property
    def head_dim(self) -> int:
        """Numbers of a K head of the first layer; of all, in most models."""
        return self.layers[0].key_dim

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that stand for no text."""
        return frozenset(getattr(self.tokenizer, "all_special_ids", ()))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens, without special ones; empty without a tokenizer."""
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def load_model(name_or_path: str = DEFAULT_MODEL, *, dtype: str = "auto", device: str = "auto") -> LoadedModel:
    """Load a model and its tokenizer, and prove on a few tokens that the engine computes it right.

    In bfloat16 on a CPU with units for it its linear layers are `PrepackedLinear`: it cannot be saved or copied.

    Args:
        name_or_path: `DEFAULT_MODEL`, a folder as `save_pretrained` writes it, a `.gguf` file, or a name on the
            Hugging Face hub.
        dtype: of weights, K and V: a key of `DTYPES`, or "auto": the machine's best. On a CPU without units for it,
            bfloat16 is many times slower than float32.
        device: "cpu", "cuda", "cuda:1", ..., or "auto": CUDA where torch sees one.

    Raises:
        UnsupportedModelError: pages cannot represent its layers, or its code does not use the attention interface.
        ModelFilesError: its files are not there, or cannot be read.
        ParameterError: no such dtype or device.
    """
    return apart(lambda: _load(name_or_path, dtype, device))


def _load(name_or_path: str, dtype: str, device: str) -> LoadedModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # takes seconds

    place = _device(device)
    kind = _dtype(dtype, place)
    name, source = name_or_path, name_or_path
    files: dict[str, Any] = {}
    if name_or_path == DEFAULT_MODEL:
        source = str(default_model_folder())
    elif name_or_path.endswith(".gguf"):
        source, files = str(Path(name_or_path).parent), {"gguf_file": Path(name_or_path).name}
    try:
        config = AutoConfig.from_pretrained(source, **files)
        check_config(config, name)
        tokenizer = AutoTokenizer.from_pretrained(source, **files)
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=kind, **files)
    except UnsupportedModelError:
        raise
    except (OSError, ValueError, KeyError, ImportError) as error:  # what transformers raises at files it cannot take
        raise ModelFilesError(f"cannot load {name}: {error}") from error
    model = model.to(place)
    if kind is torch.bfloat16 and _has_units():  # in float32 there is nothing to gain
        prepack(model)
    return _adopt(model, tokenizer, name)


def adopt_model(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    """Take a model that is loaded already: its attention becomes the paged one.

    Raises:
        UnsupportedModelError: as `load_model`.
    """
    return apart(lambda: _adopt(model, tokenizer, name))


def _adopt(model: Any, tokenizer: Any, name: str) -> LoadedModel:
    check_config(model.config, name)
    register_attention()
    model.eval().requires_grad_(False)
    layers = probe(model, name)
    embeddings = model.get_input_embeddings().weight
    gc.collect()
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        layers=layers,
        vocab_size=embeddings.shape[0],
        max_context=context_length(model.config.get_text_config(decoder=True)),
        eos_token_ids=_end_tokens(model, tokenizer),
        dtype=embeddings.dtype,
        device=embeddings.device,
    )


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    ends: set[int] = set()
    for owner in (getattr(model, "generation_config", None), tokenizer):
        end = getattr(owner, "eos_token_id", None)
        ends.update([end] if isinstance(end, int) else end or ())
    return frozenset(ends)


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (AssertionError, RuntimeError) as error:
        raise ParameterError(name="device", expected=f"one that torch has ({error})", given=device) from error


def _dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return _best_dtype(device)
    if dtype not in DTYPES:
        raise ParameterError(name="dtype", expected=f"one of auto, {', '.join(DTYPES)}", given=dtype)
    return DTYPES[dtype]


def _best_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the machine has units for it; float16 on a GPU without; float32 on a CPU without."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if _has_units() else torch.float32


def _has_units() -> bool:
    """Whether the CPU has units for bfloat16."""
    asked = getattr(torch.cpu, "get_capabilities", None)  # not in every version
    units: dict[str, Any] = asked() if asked else {}
    return any(map(units.get, ("amx_bf16", "avx512_bf16", "bf16")))
