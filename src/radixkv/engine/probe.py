"""What a model's pages look like, and whether the engine computes it right: asked of the model itself."""

from __future__ import annotations

from array import array
from typing import Any, Final

import torch

from radixkv.engine.attention import PAGED
from radixkv.engine.errors import UnsupportedModelError
from radixkv.engine.grouping import Row
from radixkv.engine.kv_store import KVStore, LayerShape
from radixkv.engine.runner import ModelRunner

_TOKENS: Final = 11
_BLOCK_SIZE: Final = 4
_TOLERANCE: Final = {torch.float32: 1e-3, torch.float64: 1e-6}
_COARSE: Final = 0.1  # of the largest logit, in the 16-bit types

_UNPAGED_LAYERS: Final = {
    "chunked_attention": "attends within chunks, which a prefix's pages cannot stand for",
    "conv": "keeps a running state, not K and V of every token",
    "hybrid": "mixes attention with a running state, which pages cannot represent",
    "linear_attention": "keeps a running state, not K and V of every token",
    "mamba": "keeps a running state, not K and V of every token",
    "sliding_attention": "attends within a sliding window, whose K and V pages do not represent",
}


class _Recorder:
    """Attends within one sequence, and notes the shapes that each layer would keep."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        if layer in self.layers:
            raise UnsupportedModelError(model="it", reason=f"layer {layer} attends more than once a token")
        self.layers[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        shared = query.shape[0] // key.shape[0]
        out = torch.nn.functional.scaled_dot_product_attention(
            query.unsqueeze(0),
            key.repeat_interleave(shared, 0).unsqueeze(0),
            value.repeat_interleave(shared, 0).unsqueeze(0),
            is_causal=True,
            scale=scaling,
        )
        return out[0].transpose(0, 1)


def check_config(config: Any, name: str) -> None:
    """Refuse, before any weight is read, a model whose configuration says that pages cannot represent its layers.

    A sliding window as long as the context is no window: it is taken out of the configuration.

    Args:
        config: a transformers configuration.
        name: what to call the model.

    Raises:
        UnsupportedModelError: sliding windows that are shorter than the context, running states, or an encoder.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(model=name, reason="it is an encoder-decoder, not a decoder alone")
    text = config.get_text_config(decoder=True)
    for index, kind in enumerate(getattr(text, "layer_types", None) or ()):
        if kind != "full_attention":
            why = _UNPAGED_LAYERS.get(kind, "is of a kind that pages are not known to represent")
            raise UnsupportedModelError(model=name, reason=f"its layer {index} ({kind}) {why}")
    window = getattr(text, "sliding_window", None)
    used = getattr(text, "use_sliding_window", True) and not getattr(text, "layer_types", None)
    if used and window is not None:
        if window < context_length(text):
            why = f"attends within a sliding window of {window} tokens, whose K and V pages do not represent"
            raise UnsupportedModelError(model=name, reason=f"every layer {why}")
        text.sliding_window = None


def context_length(config: Any) -> int:
    """Tokens that the model was made for; as good as endless where its configuration does not say."""
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else 2**31


@torch.inference_mode()
def probe(model: Any, name: str) -> tuple[LayerShape, ...]:
    """Run a few tokens through the model's own attention and through the paged one; they must agree.

    Leaves the model with the paged attention. Costs four short forward passes.

    Args:
        model: a transformers causal language model, loaded with an attention of transformers' own.
        name: what to call it.

    Returns:
        What each layer keeps of a token.

    Raises:
        UnsupportedModelError: layers without K and V, attention that does not come by, or different logits.
    """
    if getattr(model, "_is_stateful", False):
        reason = "its layers keep a running state (SSM or hybrid), which pages cannot represent"
        raise UnsupportedModelError(model=name, reason=reason)
    embeddings = model.get_input_embeddings().weight
    tokens = [(7 * i + 3) % embeddings.shape[0] for i in range(_TOKENS)]
    ids = torch.tensor([tokens], device=embeddings.device)
    expected = model(input_ids=ids, use_cache=False).logits[0, -1].float()
    recorder = _Recorder()
    try:
        model.set_attn_implementation(PAGED)
        model(
            input_ids=ids,
            position_ids=torch.arange(_TOKENS, device=ids.device)[None],
            use_cache=False,
            radixkv_batch=recorder,
        )
    except UnsupportedModelError as error:
        raise UnsupportedModelError(model=name, reason=error.reason) from error
    except (TypeError, ValueError) as error:
        reason = f"its code does not go through transformers' attention interface ({error})"
        raise UnsupportedModelError(model=name, reason=reason) from error
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    if sorted(recorder.layers) != list(range(count)):
        missing = sorted(set(range(count)) - set(recorder.layers))
        reason = f"layers {missing} of {count} keep no K and V of their own (SSM, hybrid or shared layers)"
        raise UnsupportedModelError(model=name, reason=reason)
    layers = tuple(recorder.layers[index] for index in range(count))
    store = KVStore(layers, 4, _BLOCK_SIZE, embeddings.dtype, embeddings.device)
    runner, blocks = ModelRunner(model, store), array("I", [2, 0, 3])
    runner.forward([Row(tokens[:6], 0, blocks, False)])
    runner.forward([Row(tokens[6:-1], 6, blocks, False)])
    got = runner.forward([Row(tokens[-1:], _TOKENS - 1, blocks, True)])[0]
    difference = float((got - expected).abs().max() / expected.abs().max())
    if not difference <= _TOLERANCE.get(embeddings.dtype, _COARSE):
        reason = f"its logits over pages differ from its own by {difference:.2g} of the largest"
        raise UnsupportedModelError(model=name, reason=reason)
    return layers
