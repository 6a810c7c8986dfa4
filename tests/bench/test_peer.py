"""The chats as llama.cpp's server gets them, and what is read out of its answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from radixkv.bench import peer
from radixkv.bench.peer import Chat, PeerError, as_text, first_chats, llama_cpp, serve
from radixkv.bench.workloads import make
from radixkv.engine.default_model import default_model_gguf
from tests.bench.conftest import SMALL, letters


def decode(tokens: Any) -> str:
    return bytes(tokens).decode()


def test_chats_as_text() -> None:
    """Turn by turn; the first ones are whole."""
    workload = make("multi-turn", letters, SMALL)
    chats = as_text(workload, decode)

    assert [4] * 40 == [len(chat.turns) for chat in chats]
    assert chats[:3] == as_text(first_chats(workload, 3), decode)
    assert workload == first_chats(workload, 40)
    assert chats[0].turns[0].startswith("You tell the story of Alice.\n")
    assert all(turn.startswith("\nUser: ") and turn.endswith("\nStory:") for turn in chats[0].turns[1:])


class Server:
    """Answers with letters, and remembers the longest prompt of each first word."""

    asked: list[dict[str, Any]]

    def __init__(self, parameters: Any) -> None:
        assert ("model.gguf", peer.SLOTS) == (parameters.model.path, parameters.n_parallel)
        assert 3 == parameters.cpuparams.n_threads == parameters.cpuparams_batch.n_threads
        Server.asked = []

    def handle_completions(self, request: dict[str, Any], hear: Callable[[Any], bool]) -> None:
        Server.asked.append(request)
        tokens = len(request["prompt"])
        cached = tokens // 2 if request["cache_prompt"] else 0
        for letter in "abcd"[: request["n_predict"]]:
            assert not hear({"choices": [{"text": letter}]})
        hear({"choices": [{"text": ""}], "timings": {"cache_n": cached, "prompt_n": tokens - cached}})


def test_what_is_asked_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own answers go into the next turn's prompt; everything twice, first without its prompt cache."""
    parameters = SimpleNamespace(
        model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
    )
    fake = SimpleNamespace(CommonParams=lambda: parameters, Server=Server)
    monkeypatch.setitem(sys.modules, "xllamacpp", fake)
    chats = [{"turns": ["A?", "B?"], "outputs": 2}]
    found = serve({"gguf": "model.gguf", "threads": 3, "processor_time": False, "chats": chats})

    warm_up, *asked = Server.asked
    assert not warm_up["cache_prompt"]
    assert [("A?", False), ("A?abB?", False), ("A?", True), ("A?abB?", True)] == [
        (request["prompt"], request["cache_prompt"]) for request in asked
    ]
    assert all(request["temperature"] == 0 and request["ignore_eos"] for request in asked)
    assert ("llama.cpp", 8, 4) == (found.server, found.prompt_tokens, found.reused_tokens)
    assert found.first_token_seconds >= 0
    assert found.uncached_first_token_seconds >= 0


def test_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """What to install is said."""
    monkeypatch.setattr(peer, "find_spec", lambda _: None)
    with pytest.raises(PeerError, match=r"pip install 'radixkv\[bench\]'"):
        llama_cpp(tmp_path, [], threads=1, processor_time=False)


def test_it_fails(tmp_path: Any) -> None:
    """The last thing that it said is the reason."""
    with pytest.raises(PeerError, match=r"llama\.cpp failed: .+"):
        llama_cpp(tmp_path / "none.gguf", [Chat(("a",), 1)], threads=1, processor_time=False)


@pytest.mark.real_model
def test_the_real_one() -> None:
    """A second turn reuses the first."""
    chats = [Chat(("Once upon a time, there was a rabbit.", " It had a watch."), 2)] * 2
    found = llama_cpp(default_model_gguf(), chats, threads=1, processor_time=False)

    assert 0 < found.reused_tokens < found.prompt_tokens
    assert 0 < found.first_token_seconds
