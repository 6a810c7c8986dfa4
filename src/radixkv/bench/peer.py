"""llama.cpp's server on the same chats: what a user would run instead on a machine like this."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from radixkv.bench.workloads import Workload
from radixkv.errors import RadixKVError

SLOTS: Final = 2
"""Of llama.cpp's server."""
GREEDY: Final = {"temperature": 0, "ignore_eos": True, "stream": True}
CHATS: Final = 4
"""Conversations at once: more than it has slots."""


class PeerError(RadixKVError):
    """llama.cpp is not there, or failed."""


@dataclass(frozen=True, slots=True)
class ChatReuse:
    """What a server saved on the chats."""

    server: str
    slots: str
    """How many conversations it can keep."""
    prompt_tokens: int
    reused_tokens: int
    first_token_seconds: float
    """The median."""
    uncached_first_token_seconds: float
    """The same server's, the same chats, nothing reused."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What the user's side says, turn by turn; the first turn with the system prompt."""

    turns: tuple[str, ...]
    outputs: int


def first_chats(workload: Workload, count: int) -> Workload:
    """The first conversations of a workload: each stands in one piece, and none forks."""
    starts = [index for index, call in enumerate(workload.calls) if call.after is None]
    return replace(workload, calls=workload.calls[: starts[count]] if count < len(starts) else workload.calls)


def as_text(workload: Workload, decode: Callable[[Sequence[int]], str]) -> list[Chat]:
    """The conversations of a workload as text."""
    chats: list[Chat] = []
    for call in workload.calls:
        said = chats.pop().turns if call.after is not None else ()
        chats.append(Chat((*said, decode(call.tokens)), call.outputs))
    return chats


def llama_cpp(gguf: Path, chats: Sequence[Chat], *, threads: int, processor_time: bool) -> ChatReuse:
    """Hold the chats with llama.cpp's server, in a process of its own; all at once, as ours.

    Raises:
        PeerError: `xllamacpp` is not installed, or it failed.
    """
    if find_spec("xllamacpp") is None:
        raise PeerError("llama.cpp is left out, since xllamacpp is not installed: pip install 'radixkv[bench]'")
    asked = {
        "gguf": str(gguf),
        "threads": threads,
        "processor_time": processor_time,
        "chats": [asdict(chat) for chat in chats],
    }
    command = [sys.executable, "-m", "radixkv.bench.peer"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise PeerError(f"llama.cpp failed: {reason}")
    return ChatReuse(**json.loads(done.stdout.rpartition("\n")[2]))


def serve(asked: dict[str, Any]) -> ChatReuse:
    """What the process does: hold the chats twice, with the prompt cache and without."""
    import xllamacpp  # noqa: PLC0415  # the one module of an extra of its own, loaded in this process alone

    parameters = xllamacpp.CommonParams()
    parameters.model.path = asked["gguf"]
    parameters.n_parallel = SLOTS
    parameters.n_ctx = 2048 * SLOTS
    for threads in (parameters.cpuparams, parameters.cpuparams_batch):
        threads.n_threads = asked["threads"]
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    clock = time.process_time if asked["processor_time"] else time.monotonic

    def hold(chat: dict[str, Any], reuse: bool) -> list[tuple[float, int, int]]:
        """Of each turn: seconds to the first token, prompt tokens, those reused."""
        said, turns = "", []
        for turn in chat["turns"]:
            said += turn
            chunks: list[tuple[float, dict[str, Any]]] = []
            began = clock()
            question = {"prompt": said, "n_predict": chat["outputs"], "cache_prompt": reuse}
            server.handle_completions(question | GREEDY, partial(_hear, chunks, clock))
            said += "".join(chunk["choices"][0]["text"] for _, chunk in chunks)
            timings = chunks[-1][1]["timings"]
            turns.append((chunks[0][0] - began, timings["cache_n"] + timings["prompt_n"], timings["cache_n"]))
        return turns

    def hold_all(*, reuse: bool) -> list[tuple[float, int, int]]:
        with ThreadPoolExecutor(len(asked["chats"])) as threads:
            held = threads.map(lambda chat: hold(chat, reuse), asked["chats"])
            return [turn for turns in held for turn in turns]

    hold({"turns": ["Once upon a time"], "outputs": 1}, reuse=False)
    uncached, cached = hold_all(reuse=False), hold_all(reuse=True)
    return ChatReuse(
        server="llama.cpp",
        slots=str(SLOTS),
        prompt_tokens=sum(tokens for _, tokens, _ in cached),
        reused_tokens=sum(reused for _, _, reused in cached),
        first_token_seconds=_median([seconds for seconds, _, _ in cached]),
        uncached_first_token_seconds=_median([seconds for seconds, _, _ in uncached]),
    )


def _hear(chunks: list[tuple[float, dict[str, Any]]], clock: Callable[[], float], chunk: dict[str, Any]) -> bool:
    chunks.append((clock(), chunk))
    return False  # go on


def _median(numbers: Sequence[float]) -> float:
    return sorted(numbers)[(len(numbers) - 1) // 2]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asdict(serve(json.load(sys.stdin)))))
