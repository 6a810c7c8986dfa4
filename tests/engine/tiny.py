"""The tiny model: made here, from a seed."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from radixkv.engine import LoadedModel, adopt_model

END = 256
"""The end token of the tiny model."""
VOCABULARY = 260
CONTEXT = 256


def tiny_model(**changes: Any) -> Any:
    """A Llama with weights so large that every token of the context matters to the next one."""
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.4,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": END,
            "pad_token_id": None,
        }
        | changes
    )
    torch.manual_seed(7)
    model: Any = LlamaForCausalLM(config)
    return model.eval().requires_grad_(False)


def tiny_tokenizer() -> Any:
    """One token a byte, and four that stand for no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte_of)
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<user>", "<assistant>", "<other>"])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, eos_token="<end>")


def tiny_loaded(**changes: Any) -> LoadedModel:
    """The tiny model as `load_model` would give it."""
    return adopt_model(tiny_model(**changes), tiny_tokenizer(), "tiny")


def _byte_of(letter: str) -> int:
    """The byte that a letter of the byte-level alphabet stands for."""
    decoded = decoders.ByteLevel().decode([letter])
    if decoded != "\N{REPLACEMENT CHARACTER}":
        return decoded.encode()[0]
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return ord(letter) if ord(letter) in kept else others[ord(letter) - 256]
