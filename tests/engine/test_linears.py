"""Prepacked linear layers compute what plain ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixkv.engine import linears, load_model, models
from radixkv.engine.linears import PrepackedLinear, prepack
from tests.tiny import tiny_loaded, tiny_model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 7, 130])
@torch.inference_mode()
def test_it_computes_the_same(bias: bool, tokens: int) -> None:
    plain = torch.nn.Linear(48, 80, bias=bias)
    inputs = torch.randn(1, tokens, 48, generator=torch.Generator().manual_seed(1))
    got = PrepackedLinear(plain)(inputs)

    assert (1, tokens, 80) == got.shape
    assert torch.allclose(plain(inputs), got, atol=1e-5)


def test_the_weight_can_be_read() -> None:
    """Some model code does."""
    plain = torch.nn.Linear(48, 80)

    assert torch.equal(plain.weight, PrepackedLinear(plain).weight)


class Odd(torch.nn.Linear):
    """May do anything."""


def test_linear_layers_are_replaced_and_nothing_else() -> None:
    model = torch.nn.ModuleDict({
        "plain": torch.nn.Linear(4, 4), "odd": Odd(4, 4), "within": torch.nn.Sequential(torch.nn.Linear(4, 4))
    })  # fmt: skip
    prepack(model)

    assert [PrepackedLinear, Odd] == [type(model["plain"]), type(model["odd"])]
    assert PrepackedLinear is type(model["within"][0])  # type: ignore[index]


def test_without_onednn_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "_PREPACK", None)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    prepack(model)

    assert torch.nn.Linear is type(model[0])


@torch.inference_mode()
def test_a_model_computes_the_same() -> None:
    """Its embeddings, which may be tied to the last layer, are as they were."""
    model = tiny_model()
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    plain = model(tokens).logits
    embeddings = model.get_input_embeddings().weight.clone()
    prepack(model)

    assert PrepackedLinear is type(model.lm_head)
    assert torch.allclose(plain, model(tokens).logits, atol=1e-5)
    assert torch.equal(embeddings, model.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("dtype", "units", "expected"), [("bfloat16", True, 1), ("bfloat16", False, 0), ("float32", True, 0)]
)
def test_bfloat16_is_prepacked_where_there_are_units_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, dtype: str, units: bool, expected: int
) -> None:
    loaded = tiny_loaded()
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    prepacked: list[Any] = []
    monkeypatch.setattr(models, "_has_units", lambda: units)
    monkeypatch.setattr(models, "prepack", prepacked.append)
    load_model(str(tmp_path), dtype=dtype, device="cpu")

    assert expected == len(prepacked)


def test_a_layer_that_would_compute_something_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch may be wrong about its machine."""
    monkeypatch.setattr(linears, "_LINEAR", lambda inputs, *_: torch.zeros(*inputs.shape[:-1], 4))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    prepack(model)

    assert torch.nn.Linear is type(model[0])


def test_a_layer_that_torch_will_not_prepack_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every machine that computes in bfloat16 has what oneDNN wants for it."""

    def refuse(*_: Any) -> torch.Tensor:
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(linears, "_PREPACK", refuse)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    prepack(model)

    assert torch.nn.Linear is type(model[0])
