"""The routes, and what holds them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from radixkv.engine import EngineStoppedError
from radixkv.errors import LockError
from radixkv.manager import BlockManager
from radixkv.server import cache_view
from radixkv.server.calls import chat_completions, completions
from radixkv.server.errors import ApiError
from radixkv.server.guards import Guard, no_route
from radixkv.server.state import ServerState, Serving

T = TypeVar("T")

FAILING: Final = 3
"""Steps that fail one after the other, from which on `/health` says so."""

Lifespan: TypeAlias = Callable[[Starlette], AbstractAsyncContextManager[None]]


def create_app(state: ServerState, lifespan: Lifespan | None = None) -> ASGIApp:
    """The server as an ASGI application.

    Args:
        state: is shared with whoever loads the model and stops the server.
        lifespan: runs around the serving.
    """
    routes = [
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/cache", cache),
        Route("/cache/reset", cache_reset, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=HANDLERS)
    app.state.server = state
    return Guard(app, state.config, state.metrics.responses)


async def health(request: Request) -> Response:
    """`GET /health`: 200 while calls are taken and steps do not fail one after the other, else 503 and why."""
    state = _state(request)
    if state.failure is not None:  # its message may quote what it failed on
        reason = f"The engine ended with {type(state.failure).__name__}; the log has the details."
        return JSONResponse({"status": "failed", "reason": reason}, 503)
    if state.failing_steps >= FAILING:
        reason = f"The last {state.failing_steps} steps failed; the log has the details."
        return JSONResponse({"status": "failing", "reason": reason}, 503)
    return JSONResponse({"status": state.phase}, 200 if state.phase == "ready" else 503)


async def metrics(request: Request) -> Response:
    """`GET /metrics`: Prometheus' text, or OpenMetrics where it asks for that."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(_state(request).metrics.registry), headers={"Content-Type": media_type})


async def cache(request: Request) -> Response:
    """`GET /cache`: the cache as JSON; with `?tree=1` its tree drawn, with `?check=1` its invariants proved."""
    state = _state(request)
    serving = _loaded(state)
    decode = serving.tokens.decode if state.config.show_text else None
    tree, check = (request.query_params.get(name, "0") not in {"0", "false", ""} for name in ("tree", "check"))
    view = await _in_engine(serving, partial(cache_view.view, decode=decode, tree=tree, check=check))
    return JSONResponse({"prefix_cache": serving.engine.config.prefix_cache} | view)


async def cache_reset(request: Request) -> Response:
    """`POST /cache/reset`: empty the cache; 409 while a request reads it."""
    state = _state(request)

    def reset(manager: BlockManager) -> int:
        with state.metrics.engine.reset(manager):
            return manager.reset()

    try:
        freed = await _in_engine(_loaded(state), reset)
    except LockError as error:
        message = f"{error.locked_blocks} blocks are read by running requests: try again when they have ended."
        raise ApiError(409, message, code="cache_locked", retry_after=1) from None
    return JSONResponse({"freed_blocks": freed})


async def models(request: Request) -> Response:
    """`GET /v1/models`: the one there is."""
    return JSONResponse({"object": "list", "data": [_describe(_state(request).serving())]})


async def model(request: Request) -> Response:
    """`GET /v1/models/NAME`."""
    serving = _state(request).serving()
    serving.check_model(request.path_params["name"])
    return JSONResponse(_describe(serving))


def _describe(serving: Serving) -> dict[str, Any]:
    return {
        "id": serving.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "radixkv",
        "max_model_len": serving.engine.model.max_context,
    }


def _state(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


def _loaded(state: ServerState) -> Serving:
    """The model, on a server that is stopping too: an operator may want to look."""
    return state.loaded() or state.serving()


async def _in_engine(serving: Serving, function: Callable[[BlockManager], T]) -> T:
    try:
        return await asyncio.wrap_future(serving.engine.call(function))
    except EngineStoppedError:
        raise ApiError(503, "The engine has stopped.", code="engine_stopped") from None


async def _api_error(_request: Request, error: Exception) -> Response:
    return cast("ApiError", error).response()


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own errors, a path or a method that there is not, as error objects."""
    problem = cast("HTTPException", error)
    response = no_route(problem.status_code, request.url.path).response()
    response.headers.update(problem.headers or {})
    return response


async def _gone(_request: Request, _error: Exception) -> Response:
    """Nobody reads it; it is counted, with the status that is customary for that."""
    return Response(status_code=499)


async def _failure(_request: Request, _error: Exception) -> Response:
    return ApiError(500, "The server failed.", code="internal_error").response()


HANDLERS: Final[Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]]] = {
    ApiError: _api_error,
    ClientDisconnect: _gone,
    Exception: _failure,
    HTTPException: _http_error,
}
