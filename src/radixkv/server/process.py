"""The server as a process: loads the model behind an open port, serves, and stops without hanging up on anybody."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import deepcopy
from functools import partial
from math import ceil
from pathlib import Path
from time import time
from typing import Any, Final

import uvicorn

from radixkv.engine import DEFAULT_MODEL, Engine, EngineConfig, load_model
from radixkv.server.app import create_app
from radixkv.server.config import ServerConfig
from radixkv.server.connection import Connection
from radixkv.server.state import ServerState, Serving
from radixkv.server.tokens import Tokens

log = logging.getLogger("radixkv.server")

KEEP_ALIVE_SECONDS: Final = 15
TELLING_SECONDS: Final = 5.0
"""What calls get to write down that they were ended, before their connections are closed."""


class Server(uvicorn.Server):
    """uvicorn's server, with an end for calls that outlast the grace time: they are told, not cut off."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new calls, let running ones go on for the grace time, then tell them, then end."""
        self._state.stop()
        grace = self._state.config.grace_seconds
        if self._state.calls:
            log.info("%d calls are running: waiting up to %g s for them", self._state.calls, grace)
        timer = asyncio.get_running_loop().call_later(grace, self._state.tell_all)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


def load_engine(model: str | None, *, dtype: str, device: str, config: EngineConfig) -> Engine:
    """An engine that is not started yet, with its model loaded; the default one for None. Takes seconds to minutes.

    What the process has made by then is left out of garbage collection from now on: going through it stops everybody
    for a quarter of a second.

    Raises:
        RadixKVError: as `load_model` and `Engine`.
    """
    engine = Engine(load_model(model or DEFAULT_MODEL, dtype=dtype, device=device), config)
    gc.freeze()
    return engine


def serve(make_engine: Callable[[], Engine], config: ServerConfig) -> None:
    """Serve until SIGINT or SIGTERM.

    The port opens at once, and `/health` says "starting" while `make_engine` loads the model in a thread.

    Args:
        make_engine: loads the model and gives an engine that is not started yet. May take minutes.
        config: the server's settings.

    Raises:
        Exception: whatever `make_engine` raised; the port is closed again.
        SystemExit: uvicorn could not open the port, and has logged why.
    """
    state = ServerState(config)
    failures: list[Exception] = []

    def failed(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    settings = uvicorn.Config(
        create_app(state, lambda _: _lifespan(state, make_engine, failed)),
        host=config.host,
        port=config.port,
        http=Connection,
        log_config=_logging(),
        access_log=config.access_log,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ceil(config.grace_seconds + TELLING_SECONDS),
        server_header=False,
        proxy_headers=False,
        ws="none",
    )
    server = Server(settings, state)
    with _signals_end_quietly():
        server.run()
    if failures:
        raise failures[0]


@asynccontextmanager
async def _lifespan(
    state: ServerState, make_engine: Callable[[], Engine], failed: Callable[[Exception], None]
) -> AsyncIterator[None]:
    """Load while serving has begun; end the engine when it is over."""
    loop = asyncio.get_running_loop()

    def load() -> None:
        try:
            engine = make_engine()
            engine.start()
        except Exception as error:  # noqa: BLE001  # it is raised again once the port is closed
            _tell(loop, partial(failed, error))
        else:
            _tell(loop, partial(_ready, state, engine))

    # A daemon: who stops a server that is still loading does not want to wait for the end of that.
    threading.Thread(target=load, name="radixkv-load", daemon=True).start()
    try:
        yield
    finally:
        if (serving := state.loaded()) is not None:
            serving.tokens.close()
            await asyncio.to_thread(serving.engine.shutdown, drain_seconds=0.0)


def _ready(state: ServerState, engine: Engine) -> None:
    model = engine.model
    path = Path(model.name)  # a folder of this machine is nobody's business but its own
    name = state.config.served_name or (path.name if path.exists() else model.name)
    state.ready(Serving(engine, Tokens(model.tokenizer), name, int(time())))
    log.info("Ready: %s", name)


def _tell(loop: asyncio.AbstractEventLoop, news: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has closed: the server ended first
        loop.call_soon_threadsafe(news)


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn raises the signals that ended it once more when it is done: here they have had their effect."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _logging() -> dict[str, Any]:
    """uvicorn's logging, and ours in the same form."""
    settings = deepcopy(uvicorn.config.LOGGING_CONFIG)
    settings["loggers"]["radixkv"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return settings
