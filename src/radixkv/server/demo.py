"""A chat of three turns with a server of its own: what each turn finds cached, and how soon it answers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

from openai import APIError, OpenAI

from radixkv.errors import RadixKVError

SYSTEM: Final = (
    "You are the guide of a small museum of computing. You know every exhibit: the abacus by the door, the mechanical "
    "calculator with its brass wheels, the punched cards that wove patterns into silk, the room-sized machine of "
    "valves that needed its own power station, the first transistor under its glass dome, the home computer that "
    "taught a generation to program, and the telephone that outperforms them all. Answer in one or two short "
    "sentences, in plain English, kindly, and without lists. If you do not know something, say so."
)
QUESTIONS: Final = (
    "What should I look at first?",
    "And which exhibit is the oldest?",
    "Thank you. Which one would a child like best, and why?",
)
OTHER_QUESTION: Final = "Where do I find the punched cards?"
START_SECONDS: Final = 1_800.0
"""A first start downloads and converts the model, on a slow line maybe."""
END_SECONDS: Final = 20.0


class DemoError(RadixKVError):
    """The demo's server did not start, or did not answer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer."""

    text: str
    first_token_seconds: float
    prompt_tokens: int
    cached_tokens: int


def run(model: str | None, *, max_tokens: int, say: Callable[[str], None]) -> list[Turn]:
    """Start a server, chat, and say what each turn cost and what the cache holds in the end.

    Args:
        model: as of `radixkv serve`; None for the default one.
        max_tokens: of each answer.
        say: takes the lines to show.

    Raises:
        DemoError: the server did not start, and has said why, or it refused a question.
    """
    arguments = [] if model is None else ["--model", model]
    say("Starting a server; the first time ever, it makes the model ready.")
    with (
        serving([*arguments, "--show-text", "--no-access-log"]) as url,
        OpenAI(base_url=f"{url}/v1", api_key="unused") as client,
    ):
        name = client.models.list().data[0].id
        say(f"\nA chat with {name} at {url}/v1:")
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        turns = {}
        for number, question in enumerate(QUESTIONS, start=1):
            messages.append({"role": "user", "content": question})
            turns[f"turn {number}"] = turn = _ask(client, name, messages, max_tokens, say)
            messages.append({"role": "assistant", "content": turn.text})
        say("\nAnother visitor, of whom the server knows the instructions alone:")
        other = [messages[0], {"role": "user", "content": OTHER_QUESTION}]
        turns["other visitor"] = _ask(client, name, other, max_tokens, say)
        say("\n                 prompt tokens  cached  computed  time to first token")
        for title, turn in turns.items():
            computed = turn.prompt_tokens - turn.cached_tokens
            milliseconds = turn.first_token_seconds * 1000
            numbers = f"{turn.prompt_tokens:13}  {turn.cached_tokens:6}  {computed:8}  {milliseconds:16,.0f} ms"
            say(f"  {title:13}  {numbers}")
        say("\nWhat the cache holds now:")
        say(_get(f"{url}/cache?tree=1")["tree"])
    return list(turns.values())


def _ask(client: OpenAI, model: str, messages: list[Any], max_tokens: int, say: Callable[[str], None]) -> Turn:
    try:
        turn = ask(client, model, messages, max_tokens)
    except APIError as error:
        raise DemoError(f"the server did not answer: {error.message}") from None
    say(f"\n  you    {messages[-1]['content']}\n  model  {turn.text.strip()}")
    return turn


def ask(client: OpenAI, model: str, messages: list[Any], max_tokens: int) -> Turn:
    """One turn, streamed, by the likeliest tokens."""
    began, first, text, usage = time.perf_counter(), None, "", None
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if first is None and choice.delta.content:
                first = time.perf_counter()
    if usage is None:
        raise DemoError("the stream ended without its token counts")
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    return Turn(text, (first or time.perf_counter()) - began, usage.prompt_tokens, cached or 0)


@contextmanager
def serving(arguments: Sequence[str]) -> Iterator[str]:
    """`radixkv serve` as a process of its own, at a free port: its address, once it is ready. It ends with the block.

    Raises:
        DemoError: it ended, or was not ready in half an hour.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "radixkv.cli", "serve", "--port", str(port), *arguments])
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _ready(url):
            if process.poll() is not None:
                raise DemoError(f"the server ended with status {process.returncode}")
            if time.monotonic() > deadline:
                raise DemoError(f"the server was not ready in {START_SECONDS:g} s")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str) -> bool:
    try:
        return bool(_get(f"{url}/health")["status"] == "ready")
    except (URLError, OSError):
        return False


def _get(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
    return answer
