"""The real process: `radixkv serve` with a tiny model of random weights, and OpenAI's client."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.server.waiting import until
from tests.tiny import save_tiny

MESSAGES: Any = [
    {"role": "system", "content": "a prefix cache keeps what it has computed " * 4},
    {"role": "user", "content": "the quick brown fox"},
]


@dataclass
class Process:
    """A server process, its address and its log."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=20)

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def settled(self) -> dict[str, Any]:
        """The cache's view once nothing runs: every block is free or evictable."""

        def idle() -> bool:
            text = self.get("/metrics").text
            return "radixkv_running_requests 0.0" in text and "radixkv_waiting_requests 0.0" in text

        until(idle)
        view: dict[str, Any] = self.get("/cache").json()
        return view


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    save_tiny(folder)
    return folder


def launch(folder: Path, log: Path, *options: str) -> Process:
    command = [sys.executable, "-m", "radixkv.cli", "serve", "--model", str(folder), "--port", "0", *options]
    with log.open("wb") as file:
        process = Process(subprocess.Popen(command, stdout=file, stderr=file), log)

    def address() -> bool:
        found = re.search(r"running on (http://\S+)", log.read_text())
        process.url = found[1] if found else ""
        assert process.process.poll() is None, log.read_text()
        return found is not None

    until(address, 60)
    until(lambda: process.get("/health").json()["status"] == "ready", 60)
    return process


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    options = ["--blocks", "512", "--block-size", "4", "--dtype", "float32", "--grace", "5"]
    process = launch(folder, tmp_path_factory.mktemp("log") / "log", *options)
    yield process
    process.process.send_signal(signal.SIGTERM)
    status = process.process.wait(30)
    assert 0 == status, process.log.read_text()


@pytest.fixture
def client(served: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        yield client


def test_the_second_turn_pays_for_its_new_words(client: openai.OpenAI) -> None:
    """What the first turn computed is cached for the second, but for a block or so at the seam."""
    first = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=8, temperature=0)
    again = [*MESSAGES, first.choices[0].message, {"role": "user", "content": "and then?"}]
    second = client.chat.completions.create(model="tiny", messages=again, max_tokens=8, temperature=0)

    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens - 8 <= (second.usage.prompt_tokens_details.cached_tokens or 0)


def test_a_stream_says_the_same_as_an_answer_in_one_piece(client: openai.OpenAI) -> None:
    """Greedy: the pieces put together are the whole."""
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20, temperature=0)
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20, temperature=0, stream=True)

    assert whole.choices[0].message.content == "".join(
        chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices
    )


def test_the_same_seed_gives_the_same_text(client: openai.OpenAI) -> None:
    """And each of the `n` choices has its own."""
    answers = [
        client.completions.create(model="tiny", prompt="the dog", seed=3, n=3, max_tokens=12, temperature=1.5)
        for _ in range(2)
    ]
    texts = [[choice.text for choice in answer.choices] for answer in answers]

    assert texts[0] == texts[1]
    assert 3 == len(set(texts[0]))


def test_stop_ends_an_answer_and_is_not_in_it(client: openai.OpenAI) -> None:
    """The text up to the stop string, and "stop" as the reason."""
    prompt: Any = [40, 41, 42]
    whole = client.completions.create(model="tiny", prompt=prompt, max_tokens=30, temperature=0).choices[0].text
    stop = whole[4:6]
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=30, temperature=0, stop=stop).choices[0]

    assert (whole[: whole.index(stop)], "stop") == (answer.text, answer.finish_reason)


def test_logprobs_are_sorted_and_the_greedy_token_is_the_likeliest(client: openai.OpenAI) -> None:
    """Of the real model, in both calls' forms."""
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    for entry in logprobs.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert sorted(values, reverse=True) == values
        assert entry.logprob == values[0]


def test_32_clients_stream_and_half_of_them_hang_up(served: Process) -> None:
    """The others get all of their text; then every block is back, and memory is where it was."""

    async def chat(client: openai.AsyncOpenAI, number: int) -> tuple[int, str | None]:
        prompt: Any = [40 + number % 4, 41, 42, 43, 44 + number, *range(50, 70)]
        options: Any = {"extra_body": {"ignore_eos": True, "cache_salt": f"tenant {number % 3}"}}
        stream = await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=60, stream=True, logprobs=0, **options
        )
        tokens, reason = 0, None
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    tokens += len((choice.logprobs and choice.logprobs.tokens) or ())
                    reason = choice.finish_reason or reason
                if number % 2 and tokens >= 5:
                    break
        return tokens, reason

    async def everybody() -> list[tuple[int, str | None]]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(chat(client, number) for number in range(32)))

    asyncio.run(everybody())  # pools, threads and caches are as big as they get
    served.settled()
    before = served.resident_mib()
    results = [asyncio.run(everybody()) for _ in range(3)]
    view = served.settled()

    for result in results:
        assert [(60, "length")] * 16 == result[::2]
        assert all(5 <= tokens < 60 and reason is None for tokens, reason in result[1::2])
    blocks = view["blocks"]
    assert (0, blocks["cached"]) == (blocks["locked"], blocks["used"])
    assert httpx.get(f"{served.url}/cache?check=1", timeout=20).json()["invariants"] == "hold"
    assert served.resident_mib() - before < 32
    text = served.get("/metrics").text
    assert 48 <= float(re.findall(r'radixkv_requests_total\{reason="cancelled"\} (\S+)', text)[0])
    assert blocks["cached"] == httpx.post(f"{served.url}/cache/reset", timeout=20).json()["freed_blocks"]


def test_the_times_of_blocks_are_kept(served: Process, client: openai.OpenAI) -> None:
    """Of every block evicted one lifetime and one idle time, of every block hit a gap."""

    def metric(name: str) -> float:
        found = re.search(rf"^radixkv_{name} (\S+)$", served.get("/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    hits = metric("hit_tokens_total") + metric("resumed_hit_tokens_total")
    for first in range(3):  # 1,500 tokens each, of a pool of 2,048
        prompt: Any = [first + 40, *([90] * 1500)]
        for _ in range(2):
            client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
    served.settled()

    assert metric("hit_tokens_total") + metric("resumed_hit_tokens_total") - hits == 3 * 1500
    gaps = (metric("hit_tokens_total") + metric("resumed_hit_tokens_total")) / 4
    assert gaps == metric("block_reuse_gap_seconds_count")
    evicted = metric("evicted_blocks_total")
    assert evicted >= 2 * 1500 // 4
    assert evicted == metric("block_lifetime_seconds_count") == metric("block_idle_before_eviction_seconds_count")
    assert metric("block_lifetime_seconds_sum") >= metric("block_idle_before_eviction_seconds_sum") > 0


def test_refusals_of_the_real_engine(client: openai.OpenAI) -> None:
    """Its own errors are error objects, too."""
    long: Any = [40] * 5000
    for prompt, code in ((long, "context_length_exceeded"), ([10**6], "invalid_value")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt=prompt)
        assert (code, "prompt") == (caught.value.code, caught.value.param)


def test_no_prompt_and_no_folder_in_the_log(served: Process, folder: Path) -> None:
    """What clients said stays between them and the model."""
    log = served.log.read_text()

    assert "POST /v1/chat/completions" in log
    assert "quick" not in log
    assert "brown" not in served.get("/metrics").text
    assert str(folder) not in log


def test_a_stream_is_told_when_the_process_stops(folder: Path, tmp_path: Path) -> None:
    """SIGTERM: no new calls, a running stream gets its grace time, an error event and `[DONE]`; status 0."""
    process = launch(folder, tmp_path / "log", "--blocks", "2048", "--block-size", "1", "--grace", "0.5")
    body = {"model": "tiny", "prompt": [40], "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{process.url}/v1/completions", json=body, timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]

    assert "data: [DONE]" == rest[-1]
    assert "server_stopping" in rest[-2] or '"finish_reason":"length"' in rest[-2]
    assert 0 == process.process.wait(30), process.log.read_text()


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """One line and status 1, and the port is closed."""
    command = [sys.executable, "-m", "radixkv.cli", "serve", "--model", str(tmp_path / "none"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, env=_offline())

    assert 1 == done.returncode
    last = done.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("radixkv: ")


def _offline() -> dict[str, str]:
    import os

    return {**os.environ, "HF_HUB_OFFLINE": "1"}
