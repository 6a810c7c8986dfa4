"""The tiny model with room for the workloads' prompts, of which every letter is a token."""

from __future__ import annotations

import os
from collections.abc import Sequence

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads of two processes stop each other

import pytest
import torch

from radixkv.bench.workloads import Scale
from radixkv.engine import LoadedModel
from tests.tiny import tiny_loaded

SMALL = Scale(length=0.25)

torch.set_num_threads(1)  # a tiny model has no work for two


def letters(words: str) -> Sequence[int]:
    """A token a letter."""
    return list(words.encode())


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    return tiny_loaded(max_position_embeddings=4096)
