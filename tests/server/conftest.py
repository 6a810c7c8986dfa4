"""A server over the engine without a model, in a thread of the tests' own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import openai
import pytest
import uvicorn

from radixkv.engine import Engine, EngineConfig
from radixkv.server.app import create_app
from radixkv.server.config import ServerConfig
from radixkv.server.connection import Connection
from radixkv.server.process import Server
from radixkv.server.state import ServerState, Serving
from radixkv.server.tokens import Tokens
from tests.server.fake_engine import FakeEngine
from tests.server.waiting import until
from tests.tiny import tiny_tokenizer


@dataclass
class Running:
    """A server that runs, and the ways to it."""

    url: str
    engine: FakeEngine
    state: ServerState
    server: Server
    thread: threading.Thread
    api_key: str = "unused"
    http: httpx.Client = field(init=False)
    client: openai.OpenAI = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx.Client(base_url=self.url, timeout=20)
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0, timeout=20)

    def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "the dog"}], "max_tokens": 3}
        return self.http.post("/v1/chat/completions", json=body | fields)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": "tiny", "prompt": "the dog", "max_tokens": 3} | fields)

    def metric(self, name: str, **labels: str) -> float:
        return self.state.metrics.registry.get_sample_value(name, labels) or 0.0

    def check(self) -> None:
        """Every block is free or cached, none is locked, and the manager's books are right."""
        until(lambda: not (self.engine.snapshot().running or self.engine.snapshot().waiting or self.state.calls))
        snapshot = self.engine.snapshot()
        self.engine.call(lambda manager: manager.check_invariants()).result(10)
        assert 0 == snapshot.locked_blocks
        assert snapshot.evictable_blocks == snapshot.used_blocks


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return tiny_tokenizer()


@contextmanager
def running(engine: FakeEngine, config: ServerConfig, *, ready: bool = True) -> Iterator[Running]:
    state = ServerState(config)
    settings = uvicorn.Config(
        create_app(state), port=0, http=Connection, log_config=None, lifespan="off", timeout_graceful_shutdown=5
    )
    server = Server(settings, state)
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    engine.start()
    tokens = Tokens(engine.model.tokenizer)
    if ready:
        state.ready(Serving(cast("Engine", engine), tokens, "tiny", 0))
    port = server.servers[0].sockets[0].getsockname()[1]
    run = Running(f"http://127.0.0.1:{port}", engine, state, server, thread, config.api_key or "unused")
    try:
        yield run
    finally:
        run.client.close()
        run.http.close()
        server.should_exit = True
        engine.shutdown(drain_seconds=0)
        thread.join(20)
        tokens.close()


@pytest.fixture
def start(tokenizer: Any) -> Iterator[Callable[..., Running]]:
    """Start a server with settings of the test's own."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(*, blocks: int = 64, step_seconds: float = 0.0, max_waiting: int = 64, **settings: Any) -> Running:
            engine_config = EngineConfig(num_blocks=blocks, block_size=4, max_waiting=max_waiting)
            engine = FakeEngine(tokenizer, engine_config, step_seconds=step_seconds)
            ready = settings.pop("ready", True)
            return stack.enter_context(running(engine, ServerConfig(**settings), ready=ready))

        yield make


@pytest.fixture(scope="module")
def shared(tokenizer: Any) -> Iterator[Running]:
    """One server for the tests that leave it as it was."""
    config = EngineConfig(num_blocks=64, block_size=4, max_waiting=64)
    with running(FakeEngine(tokenizer, config), ServerConfig()) as run:
        yield run


@pytest.fixture
def server(shared: Running) -> Iterator[Running]:
    """A server that is checked after each test: every block is back."""
    yield shared
    shared.check()
