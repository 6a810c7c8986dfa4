"""The tiny model: made here, from a seed, with a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from radixkv.engine import LoadedModel, adopt_model

END = 256
"""The end token of the tiny model."""
VOCABULARY = 260
CONTEXT = 256
SERVED_CONTEXT = 2048
"""Of the model that a server process loads."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}<end>\n{% endfor %}"
    "{% if messages[0]['content'] == 'refuse me' %}{{ raise_exception('this template refuses') }}{% endif %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


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
    return fast(tokenizer_object=tokenizer, eos_token="<end>", chat_template=CHAT_TEMPLATE)


def tiny_loaded(**changes: Any) -> LoadedModel:
    """The tiny model as `load_model` would give it."""
    return adopt_model(tiny_model(**changes), tiny_tokenizer(), "tiny")


def save_tiny(folder: Path) -> None:
    """The tiny model and its tokenizer as files."""
    tiny_model(max_position_embeddings=SERVED_CONTEXT).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def _byte_of(letter: str) -> int:
    """The byte that a letter of the byte-level alphabet stands for."""
    decoded = decoders.ByteLevel().decode([letter])
    if decoded != "\N{REPLACEMENT CHARACTER}":
        return decoded.encode()[0]
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return ord(letter) if ord(letter) in kept else others[ord(letter) - 256]
