"""What is right: transformers' own attention over whole sequences, no pages, no cache, no batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

TOLERANCE = 1e-4


class Reference:
    """A model that computes every sequence from its first token on."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}

    @torch.inference_mode()
    def logits(self, prompt: Sequence[int], outputs: Sequence[int]) -> torch.Tensor:
        """Those that each output was to be chosen from, `[outputs, vocabulary]`."""
        tokens = (*prompt, *outputs[:-1])
        key = (tokens, len(outputs))
        if key not in self._known:
            every = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
            self._known[key] = every[len(prompt) - 1 :]
        return self._known[key]

    def check(self, prompt: Sequence[int], outputs: Sequence[int], logits: torch.Tensor) -> None:
        """Every output is the likeliest token after those before it, and its logits are right."""
        assert outputs
        expected = self.logits(prompt, outputs)
        assert expected.argmax(-1).tolist() == list(outputs)
        assert logits.shape == expected.shape
        assert float((logits - expected).abs().max()) <= TOLERANCE
