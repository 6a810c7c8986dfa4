"""`config.json` as models were published, by the fields that matter: bytes of K and V a token, and windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixkv.lab import ModelConfigError, find_model

DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
LLAMA_2_7B = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_3_1_70B = {
    "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_4_SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192, "no_rope_layers": [],
        "num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size": 8192,
    },
}  # fmt: skip
MINIMAX_TEXT_01 = {
    "model_type": "minimax_text_01", "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10,
}  # fmt: skip
MISTRAL_7B_V01 = {
    "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "sliding_window": 4096,
}  # fmt: skip
PIXTRAL_12B = {
    "model_type": "llava",
    "text_config": {
        "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 14336, "sliding_window": None,
    },
}  # fmt: skip
QWEN_2_5_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "max_window_layers": 28, "sliding_window": 131072, "use_sliding_window": False,
}  # fmt: skip
QWEN_3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
}  # fmt: skip
GEMMA_2_9B = {
    "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 4096,
}  # fmt: skip
GEMMA_3_4B = {
    "model_type": "gemma3", "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}  # fmt: skip
GEMMA_3_12B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 8, "sliding_window": 1024,
    },
}  # fmt: skip
GEMMA_3N_E4B = {
    "model_type": "gemma3n",
    "text_config": {
        "model_type": "gemma3n_text", "hidden_size": 2048, "intermediate_size": [16384] * 35, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "num_kv_shared_layers": 15,
        "sliding_window": 512, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    },
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False,
}  # fmt: skip
FALCON_40B = {
    "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
    "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True,
}  # fmt: skip
CHATGLM_3_6B = {
    "model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "num_attention_heads": 32, "kv_channels": 128,
    "multi_query_attention": True, "multi_query_group_num": 2,
}  # fmt: skip
DBRX = {
    "model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48,
    "attn_config": {"kv_n_heads": 8, "model_type": ""},
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attn_layer_offset": 4, "attn_layer_period": 8,
}  # fmt: skip
BAMBA_9B = {
    "model_type": "bamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27],
}  # fmt: skip
NEMOTRON_3_NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 52, "num_attention_heads": 32,
    "num_key_value_heads": 2, "head_dim": 128,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip
MIMO_V2 = {
    "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 192, "v_head_dim": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "token_bytes", "full", "windows"),
    [
        (DEEPSEEK_V2_LITE, (512 + 64) * 27 * 2, 27, []),
        (DEEPSEEK_V3, 70_272, 61, []),
        (LLAMA_2_7B, 2 * 32 * 32 * 128 * 2, 32, []),
        (LLAMA_3_1_70B, 327_680, 80, []),
        (LLAMA_4_SCOUT, 2 * 48 * 8 * 128 * 2, 12, [8192] * 36),
        (MISTRAL_7B_V01, 2 * 32 * 8 * 128 * 2, 0, [4096] * 32),
        (MISTRAL_7B_V01 | {"sliding_window": None}, 2 * 32 * 8 * 128 * 2, 32, []),
        (PIXTRAL_12B, 2 * 40 * 8 * 128 * 2, 40, []),
        (QWEN_2_5_7B, 2 * 28 * 4 * 128 * 2, 28, []),
        (QWEN_2_5_7B | {"use_sliding_window": None, "max_window_layers": 0}, 57_344, 28, []),
        ({k: v for k, v in QWEN_2_5_7B.items() if "window_" not in k and k[:3] != "use"}, 57_344, 28, []),
        (QWEN_2_5_7B | {"use_sliding_window": True, "max_window_layers": 21}, 57_344, 21, [131072] * 7),
        (QWEN_3_NEXT, 2 * 12 * 2 * 256 * 2, 12, []),
        (GEMMA_2_9B, 2 * 42 * 8 * 256 * 2, 21, [4096] * 21),
        (GEMMA_3_4B, 2 * 34 * 4 * 256 * 2, 5, [1024] * 29),
        (GEMMA_3_12B, 2 * 48 * 8 * 256 * 2, 8, [1024] * 40),
        (GEMMA_3N_E4B, 2 * 20 * 2 * 256 * 2, 4, [512] * 16),
        (GPT_OSS_20B, 2 * 24 * 8 * 64 * 2, 12, [128] * 12),
        (FALCON_7B, 2 * 32 * 1 * 64 * 2, 32, []),
        (FALCON_40B, 2 * 60 * 8 * 64 * 2, 60, []),
        (CHATGLM_3_6B, 2 * 28 * 2 * 128 * 2, 28, []),
        (DBRX, 2 * 40 * 8 * 128 * 2, 40, []),
        (JAMBA, 2 * 4 * 8 * 128 * 2, 4, []),
        (BAMBA_9B, 2 * 3 * 8 * 128 * 2, 3, []),
        (NEMOTRON_3_NANO, 2 * 6 * 2 * 128 * 2, 6, []),
        (MINIMAX_TEXT_01, 2 * 10 * 8 * 128 * 2, 10, []),
        (MIMO_V2, 4 * 4 * (192 + 128) * 2, 4, []),
    ],
)
def test_published(tmp_path: Path, fields: dict[str, Any], token_bytes: int, full: int, windows: list[int]) -> None:
    """Latents, windows, shared and fewer heads, defaults left out, layers without K and V."""
    (tmp_path / "config.json").write_text(json.dumps(fields))
    model = find_model(str(tmp_path))

    assert token_bytes == model.token_bytes()
    assert (full, windows) == (model.windows.count(None), [window for window in model.windows if window is not None])


def test_the_known_models_are_those_of_their_configs(tmp_path: Path) -> None:
    """What a name gives, the file gives."""
    configs = {"deepseek-v3": DEEPSEEK_V3, "gemma-2-9b": GEMMA_2_9B, "gemma-3-12b": GEMMA_3_12B}
    configs |= {"gpt-oss-20b": GPT_OSS_20B, "llama-3.1-70b": LLAMA_3_1_70B, "qwen2.5-7b": QWEN_2_5_7B}
    for name, fields in configs.items():
        (tmp_path / "config.json").write_text(json.dumps(fields))
        known, read = find_model(name), find_model(str(tmp_path))

        assert (known.kv_numbers, known.windows, known.heads) == (read.kv_numbers, read.windows, read.heads), name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_head_dim", 512),  # Gemma 4
        ("per_layer_config", {"5": {"head_dim": 512}}),  # the same, as transformers writes it
        ("block_configs", [{}]),  # Llama-Nemotron
        ("linear_attn_config", {"full_attn_layers": [4]}),  # Kimi Linear
    ],
)
def test_layers_of_different_sizes(tmp_path: Path, field: str, value: object) -> None:
    """Are no model that can be counted; better an error than a wrong number."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_3_1_70B, field: value}))

    with pytest.raises(ModelConfigError, match="differ in the size") as caught:
        find_model(str(tmp_path))
    assert field == caught.value.field
