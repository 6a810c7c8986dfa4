"""The default model itself: 20 prompts of English and code, exact, and a chat of two turns."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixkv.engine import Engine, EngineConfig, LoadedModel, Output, SamplingParams, default_model_folder, load_model
from tests.engine.harness import Harness
from tests.engine.reference import Reference

pytestmark = pytest.mark.real_model

TOPICS = ("a lighthouse", "prime numbers", "bread", "the Moon", "trains")
QUESTIONS = (
    "Write one sentence about {}.",
    "Why do people like {}?",
    "def describe():\n    # about {}\n    return",
    "Translate to French: I know {}.",
)


@pytest.fixture(scope="module")
def real() -> LoadedModel:
    return load_model(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def plain() -> Reference:
    model: Any = AutoModelForCausalLM.from_pretrained(default_model_folder(), dtype=torch.float32)
    return Reference(model.eval())


@pytest.mark.parametrize(
    ("cache", "block_size", "config"),
    [
        ("none", 16, {"token_budget": 512}),
        ("radix", 16, {"token_budget": 32, "max_running": 8}),
        ("radix", 1, {"token_budget": 512, "max_running": 4}),
        ("hash", 16, {"token_budget": 64, "max_running": 8}),
    ],
)
def test_twenty_prompts(
    real: LoadedModel, plain: Reference, cache: str, block_size: int, config: dict[str, Any]
) -> None:
    """Cached or not, chunked or whole, under pressure or not: the tokens of a plain forward pass."""
    pool = 320 if config["token_budget"] == 64 else 4_096
    harness = Harness(real, pool // block_size, prefix_cache=cache, block_size=block_size, **config)
    asked = [question.format(topic) for topic in TOPICS for question in QUESTIONS]
    Random(1).shuffle(asked)
    for text in asked:
        messages = [{"role": "user", "content": text}]
        prompt = real.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        harness.add(prompt, max_tokens=6)
    harness.drain()

    for run in harness.runs.values():
        plain.check(run.prompt, run.tokens, torch.stack(run.logits))
    assert (harness.manager.stats.prefix.hit_tokens > 200) == (cache != "none")


@pytest.mark.one_turn
def test_two_turns(real: LoadedModel) -> None:
    """Right English, and the second turn pays only for its new words."""
    engine = Engine(real, EngineConfig(kv_memory=2**28))
    engine.start()
    messages: list[dict[str, str]] = []
    cached: list[int] = []
    for question, answer in (("What is the capital of France?", "Paris"), ("And of Italy?", "Rome")):
        messages.append({"role": "user", "content": question})
        outputs: list[Output] = []
        done = threading.Event()

        def take(output: Output, outputs: list[Output] = outputs, done: threading.Event = done) -> None:
            outputs.append(output)
            if output.finish_reason:
                done.set()

        prompt = real.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        engine.submit(prompt, SamplingParams(temperature=0, max_tokens=24), on_output=take)
        assert done.wait(120)
        text = "".join(output.text for output in outputs)
        assert answer in text
        messages.append({"role": "assistant", "content": text})
        cached.append(outputs[-1].cached_tokens)
    engine.shutdown()

    assert 0 == cached[0]
    assert cached[1] >= 32
