"""What the server is doing: starting, ready or stopping, with which engine, for which calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from radixkv.engine import Engine, EngineSnapshot
from radixkv.server.config import ServerConfig
from radixkv.server.errors import ApiError
from radixkv.server.generation import Generation, Pace
from radixkv.server.metrics import Metrics
from radixkv.server.tokens import Tokens

STARTING_RETRY: Final = 5


@dataclass(frozen=True, slots=True)
class Serving:
    """A model that is ready."""

    engine: Engine
    tokens: Tokens
    name: str
    """What the API calls it."""
    created: int
    """Unix time at which it was ready."""

    def check_model(self, name: str) -> None:
        """Raise unless `name` is this model's.

        Raises:
            ApiError: 404, another name.
        """
        if name != self.name:
            message = f"The model '{name}' does not exist; this server has '{self.name}'."
            raise ApiError(404, message, param="model", code="model_not_found")


class ServerState:
    """One server's state. Written on the event loop's thread alone."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.phase: Literal["starting", "ready", "stopping"] = "starting"
        self.metrics = Metrics(self._snapshot)
        self._pace = Pace()
        self._serving: Serving | None = None
        self._running: set[Generation] = set()

    @property
    def calls(self) -> int:
        """Calls that generate now."""
        return len(self._running)

    def ready(self, serving: Serving) -> None:
        """The model is loaded and its engine runs."""
        self._serving = serving
        if self.phase == "starting":
            self.metrics.observe(serving.engine)
            self.phase = "ready"

    @property
    def failure(self) -> BaseException | None:
        """What ended the engine, if nobody told it to end."""
        return self._serving.engine.failure if self._serving is not None else None

    @property
    def failing_steps(self) -> int:
        """How many steps failed one after the other, up to now."""
        return self._serving.engine.snapshot().failing_steps if self._serving is not None else 0

    def serving(self) -> Serving:
        """The model to serve with.

        Raises:
            ApiError: 503, the server is still starting or already stopping.
        """
        if self.phase == "stopping":
            raise stopping()
        if self._serving is None:
            message = "The model is still being loaded."
            raise ApiError(503, message, code="server_starting", retry_after=STARTING_RETRY)
        return self._serving

    def loaded(self) -> Serving | None:
        """The model, if it is loaded, whatever the server is doing."""
        return self._serving

    def generation(self, serving: Serving) -> Generation:
        """A call's requests, to be submitted and, whatever happens, closed."""
        generation = Generation(serving.engine, self.metrics, self._pace, on_close=self._running.discard)
        self._running.add(generation)
        return generation

    def stop(self) -> None:
        """Take no new calls; those that run go on."""
        self.phase = "stopping"

    def tell_all(self) -> None:
        """End every running call now: a stream with an error event and `[DONE]`, any other with the error."""
        for generation in tuple(self._running):
            generation.interrupt(stopping())

    def _snapshot(self) -> EngineSnapshot | None:
        return self._serving.engine.snapshot() if self._serving is not None else None


def stopping() -> ApiError:
    """What a call hears from a server that stops."""
    return ApiError(503, "The server is stopping.", code="server_stopping")
