"""A tiny random model, and the second copy of it that says what is right."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of two processes stop each other
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from radixkv.engine import LoadedModel
from tests.engine.reference import Reference
from tests.tiny import tiny_loaded, tiny_model

torch.set_num_threads(1)  # a tiny model has no work for two


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    """Two layers, 4 heads over 2 K/V heads, float32, with a tokenizer of bytes."""
    return tiny_loaded()


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The same weights in transformers' own model, computing every prompt as a whole."""
    return Reference(tiny_model())
