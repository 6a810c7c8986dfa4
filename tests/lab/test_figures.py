"""Histograms, sizes, models and prefill costs: the figures beside hit rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixkv import SizeError, TokenKey, UnknownNameError
from radixkv.lab import (
    MODELS,
    Histogram,
    MemoryTooSmallError,
    ModelConfigError,
    ReplayConfig,
    Roofline,
    ShareError,
    Sizes,
    bytes_text,
    default_block_size,
    find_model,
    replay,
    replay_row,
)
from radixkv.traces import Request

VALUES = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**40)), min_size=1, max_size=50)


@given(VALUES, st.sampled_from([1, 10, 50, 90, 99, 100]))
def test_percentiles_are_those_of_the_sorted_values(values: list[int], percent: int) -> None:
    """Exact below 128, else low by less than 1.6 %; however the values came."""
    together, apart = Histogram(), Histogram()
    together.add(np.array(values))
    for value in values:
        apart.add(np.array([value]))
    expected = sorted(values)[max(-(-percent * len(values) // 100), 1) - 1]

    found = together.percentile(percent)
    assert found is not None
    assert found <= expected < max(found * (1 + 1 / 64), found + 1)
    assert together == apart
    assert len(values) == len(together)
    if expected < 128:
        assert expected == found


def test_a_clock_that_ran_backwards_counts_as_nothing() -> None:
    """And a histogram of nothing has no percentiles."""
    histogram = Histogram()
    assert histogram.percentile(50) is None
    histogram.add(np.array([-5]))

    assert 0 == histogram.percentile(50)
    assert histogram != 0


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("llama-3.1-70b", 2 * 80 * 8 * 128 * 2),
        ("deepseek-v3", 61 * 576 * 2),
        ("gpt-oss-120b", 2 * 36 * 8 * 64 * 2),
    ],
)
def test_well_known_models(name: str, token_bytes: int) -> None:
    """Grouped heads, latents and windows, as their papers and cards have them."""
    assert token_bytes == find_model(name).token_bytes()


def test_a_window_keeps_its_tokens_alone() -> None:
    """Of a long prompt, sliding layers keep their window; of a short one, everything."""
    model = MODELS["gpt-oss-20b"]

    assert model.token_bytes() == model.token_bytes(128)
    assert model.token_bytes() / 2 + 12 * 2 * 8 * 64 * 2 * 128 / 1024 == model.token_bytes(1024)


def config(tmp_path: Path, **fields: object) -> str:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return str(tmp_path)


SMALL = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}


@pytest.mark.parametrize(
    ("fields", "numbers", "windows"),
    [
        ({}, 4 * 2 * 64, [None] * 4),
        ({"num_key_value_heads": 2}, 4 * 2 * 2 * 8, [None] * 4),
        ({"num_key_value_heads": 2, "head_dim": 16}, 4 * 2 * 2 * 16, [None] * 4),
        ({"multi_query": True}, 4 * 2 * 8, [None] * 4),
        ({"kv_lora_rank": 32, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}, 4 * 36, [None] * 4),
        ({"sliding_window": 100}, 4 * 2 * 64, [100] * 4),
        ({"sliding_window": 100, "use_sliding_window": False}, 4 * 2 * 64, [None] * 4),
        ({"sliding_window": 100, "sliding_window_pattern": 2}, 4 * 2 * 64, [100, None] * 2),
        ({"sliding_window": 100, "model_type": "gemma2", "head_dim": 8}, 4 * 2 * 64, [100, None] * 2),
        ({"sliding_window": 100, "layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, 4 * 2 * 64,
         [None] * 3 + [100]),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 2 * 64, [None]),
        ({"num_kv_shared_layers": 3}, 2 * 64, [None]),
    ],
)  # fmt: skip
def test_configs(tmp_path: Path, fields: dict[str, object], numbers: int, windows: list[int | None]) -> None:
    """All heads, grouped heads, one head, latents, windows and layers without K and V."""
    model = find_model(config(tmp_path, **SMALL, **fields))

    assert 2 * numbers == model.token_bytes()
    assert windows == list(model.windows)


def test_other_names_and_widths(tmp_path: Path) -> None:
    """GPT-2's field names, a model inside another, and float32."""
    old = find_model(config(tmp_path, n_layer=4, n_head=8, n_embd=64, torch_dtype="float32"))
    inner = find_model(config(tmp_path, text_config=SMALL, vision_config={}))

    assert (2 * 4 * 64 * 4, 2 * 4 * 64 * 2) == (old.token_bytes(), inner.token_bytes())


def test_parameters_from_a_config(tmp_path: Path) -> None:
    """A dense model's are counted by hand; of experts, those that a token is sent to."""
    dense = find_model(config(tmp_path, **SMALL, intermediate_size=100, vocab_size=1000, tie_word_embeddings=False))
    experts = find_model(
        config(tmp_path, **SMALL, moe_intermediate_size=100, num_local_experts=16, num_experts_per_tok=2)
    )

    assert 4 * (4 * 64 * 64 + 3 * 64 * 100) + 2 * 1000 * 64 == dense.parameters
    assert 4 * (4 * 64 * 64 + 2 * 3 * 64 * 100) == experts.parameters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "expected a JSON object"),
        ("{", "cannot be read"),
        ("{}", "num_attention_heads or n_head or n_heads: missing"),
        ("[" * 100_000, "cannot be read"),
        ('{"num_attention_heads": "8"}', "num_attention_heads: expected an integer from 1 to 16777216, got '8'"),
        ('{"num_attention_heads": 0}', "num_attention_heads: expected an integer from 1"),
        ('{"num_attention_heads": 1%s}' % ("0" * 4000), "got 10{39}…$"),
    ],
    ids=lambda value: value[:40],
)
def test_a_config_that_does_not_say(tmp_path: Path, text: str, words: str) -> None:
    """The file, the field, and what is wrong."""
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ModelConfigError, match=words) as caught:
        find_model(str(tmp_path))
    assert caught.value.path.endswith("config.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 0),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", -1),
        ("num_key_value_heads", 2.0),
        ("num_key_value_heads", True),
        ("hidden_size", 0),
        ("hidden_size", 7),
        ("head_dim", 0),
        ("sliding_window_pattern", 0),
        ("sliding_window", -1),
        ("kv_lora_rank", "512"),
        ("layer_types", ["full_attention"]),
        (None, {"layer_types": ["mamba"] * 4}),
        (None, {"num_kv_shared_layers": 5}),
    ],
)
def test_a_number_that_cannot_be(tmp_path: Path, field: str | None, value: Any) -> None:
    """The field is named; so many bytes a token are never 0."""
    changes = value if field is None else {field: value}

    with pytest.raises(ModelConfigError) as caught:
        find_model(config(tmp_path, **{**SMALL, "sliding_window": 9, **changes}))
    assert field == caught.value.field


def test_no_such_model() -> None:
    """Neither a name nor a file."""
    with pytest.raises(UnknownNameError, match=r"llama-3\.1-8b"):
        find_model("llama-9")


def test_prefill_seconds() -> None:
    """2 · P · (N - c) and 2 · L · heads · d · (N² - c²), by the peak that is reached."""
    model = find_model("llama-3.1-8b")
    saved = Roofline(model, peak_flops=1e12, utilisation=0.25).seconds(tokens=100, squares=10_000)

    assert (2 * 8.03e9 * 100 + 2 * 32 * 32 * 128 * 10_000) / 0.25e12 == pytest.approx(saved)
    for peak, share in ((0, 0.5), (1, 0), (1, 1.5)):
        with pytest.raises(ValueError, match="must be above 0"):
            Roofline(model, peak, share)


def test_sizes() -> None:
    """Blocks, shares and memory together, each once, smallest first; a share is a block at least, memory is not."""
    model = find_model("llama-3.1-8b")

    assert [1, 7, 14, 49] == Sizes(blocks=(14, 7), shares=(0.0001, 0.5)).in_blocks(16, 98)
    # 2 MiB a block of 16 tokens, 4 MiB one of 32.
    memory = Sizes(blocks=(7,), memory=(28 * 2**20,), model=model)
    assert ([7, 14], [7]) == (memory.in_blocks(16, 0), memory.in_blocks(32, 0))
    assert [1] == Sizes(memory=(2 * 2**20,), model=model).in_blocks(16, 98)
    with pytest.raises(MemoryTooSmallError) as caught:
        Sizes(memory=(2 * 2**20 - 1,), model=model).in_blocks(16, 98)
    assert (2**21 - 1, 2**21) == (caught.value.memory, caught.value.block_bytes)
    with pytest.raises(SizeError):
        Sizes(blocks=(0,))
    with pytest.raises(ShareError):
        Sizes(shares=(1.5,))


def test_bytes_as_people_write_them() -> None:
    """Three digits and a unit."""
    sizes = (40 * 2**30, 1.5 * 2**20, 2**40 - 2**30, 12)

    assert ["40 GiB", "1.5 MiB", "1023 GiB", "12 B"] == [bytes_text(size) for size in sizes]


def test_default_block_size() -> None:
    """The span of ids; 16 for tokens, or nothing."""
    ids, tokens = Request(TokenKey([1]), 5, span=512), Request(TokenKey([1]), 1)

    assert [512, 16, 16] == [default_block_size(trace) for trace in ([ids], [tokens], [])]


def test_a_row() -> None:
    """Everything a table shows; costs with a roofline alone, seconds with a clock alone."""
    trace = [Request(TokenKey([1, 1, n]), 3, timestamp=float(n)) for n in range(3)]
    (timed,) = replay(trace, [ReplayConfig(1, 1)])
    (untimed,) = replay([Request(one.prompt, 3) for one in trace], [ReplayConfig(9, 1)])
    row = replay_row(timed, Roofline(find_model("llama-3.1-8b")))

    settings = ("cache", "eviction", "order", "block_size", "blocks")
    assert ("radix", "lru", "fcfs", 1, 1) == tuple(row[key] for key in settings)
    assert 2 / 9 == row["hit_rate"]
    assert row["prefill_seconds_saved"] == 3600 * row["gpu_hours_saved"] > 0
    percentiles = ("p10", "p50", "p90", "p99")
    assert {"requests": dict.fromkeys(percentiles, 1), "seconds": dict.fromkeys(percentiles, 1.0)} == row["reuse_gap"]
    assert {"requests": None, "seconds": None} == replay_row(untimed)["lifetime"]
    assert "gpu_hours_saved" not in replay_row(untimed)
