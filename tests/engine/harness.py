"""Runs prompts through the step loop, without a thread, and keeps the logits that every token was chosen from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from radixkv.engine import EngineConfig, LoadedModel, Output, Request, SamplingParams
from radixkv.engine.kv_store import KVStore
from radixkv.engine.runner import ModelRunner
from radixkv.engine.steps import Steps
from radixkv.keys import TokenKey
from radixkv.manager import BlockManager


@dataclass(eq=False)
class Run:
    """One request's way, and all it was given."""

    request: Request
    outputs: list[Output] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)

    @property
    def prompt(self) -> list[int]:
        return self.request.prompt.tolist()

    @property
    def tokens(self) -> list[int]:
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def last(self) -> Output:
        return self.outputs[-1]


class Recorder(Steps):
    """A step loop whose requests' logits are kept."""

    runs: dict[Request, Run]

    def _sample(self, requests: Sequence[Request], logits: torch.Tensor) -> None:
        for request, row in zip(requests, logits, strict=True):
            self.runs[request].logits.append(row.clone())
        super()._sample(requests, logits)


class Harness:
    """An engine in hand: add requests, step, look."""

    def __init__(self, model: LoadedModel, num_blocks: int = 256, **config: Any) -> None:
        self.model = model
        self.config = EngineConfig(num_blocks=num_blocks, **config)
        self.manager = BlockManager(
            num_blocks,
            self.config.block_size,
            prefix_cache=self.config.prefix_cache,
            eviction=self.config.eviction,
        )
        self.store = KVStore(model.layers, num_blocks, self.config.block_size, model.dtype, model.device)
        for tensor in (*self.store.keys, *self.store.values):
            tensor.fill_(50.0)  # what is read before it was written shows
        self.steps = Recorder(ModelRunner(model.model, self.store), self.manager, self.config, time.monotonic)
        self.runs: dict[Request, Run] = {}
        self.steps.runs = self.runs

    def add(self, prompt: Sequence[int], namespace: str | None = None, **params: Any) -> Run:
        """Let a prompt wait."""
        sampling = SamplingParams(**{"temperature": 0, "max_tokens": 8} | params)
        left = self.model.max_context - len(prompt)
        ends = frozenset(sampling.stop_token_ids)
        request = Request(
            number=len(self.runs) + 1,
            prompt=TokenKey(prompt),
            params=sampling,
            namespace=namespace,
            on_output=lambda output: self.runs[output.request].outputs.append(output),
            max_outputs=left if sampling.max_tokens is None else min(left, sampling.max_tokens),
            end_tokens=ends if sampling.ignore_eos else ends | self.model.eos_token_ids,
            vocab_size=self.model.vocab_size,
            decode=self.model.decode,
            submitted=time.monotonic(),
        )
        self.runs[request] = Run(request)
        self.steps.enqueue(request)
        return self.runs[request]

    def drain(self, *, check: bool = True) -> None:
        """Step until nothing is left; the invariants hold after every tenth step and in the end."""
        for number in range(10_000):
            if not self.steps.busy:
                break
            self.steps.step()
            if check and number % 10 == 9:
                self.manager.check_invariants()
        assert not self.steps.busy
        assert 0 == self.steps.latest.failed_steps
        if check:
            self.manager.check_invariants()
            assert 0 == self.manager.running


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Varied prompts of up to some 90 tokens: fresh, few-shot, forked, repeated, continued, block by block."""
    random = Random(seed)
    texts = [[random.randrange(256) for _ in range(random.choice((16, 32, 33, 47, 64)))] for _ in range(5)]
    made: list[list[int]] = []
    while len(made) < count:
        kind = random.randrange(6)
        fresh = [random.randrange(256) for _ in range(random.choice((1, 2, 3, 7, 15, 16, 17, 31, 32)))]
        if kind == 0 or not made:
            prompt = fresh
        elif kind == 1:
            prompt = random.choice(texts) + fresh
        elif kind == 2:
            old = random.choice(made)
            prompt = old[: random.randrange(len(old) + 1)] + fresh
        elif kind == 3:
            prompt = random.choice(made)
        elif kind == 4:
            prompt = (random.choice(made) + fresh)[:90]
        else:
            prompt = fresh[:1]
        made.append(list(prompt))
    return made
