"""What stands before every route: who may come in, how big a body may be and how long it may take."""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from http import HTTPStatus
from urllib.parse import urlsplit

from prometheus_client import Counter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixkv.server.config import ServerConfig
from radixkv.server.errors import ApiError

log = logging.getLogger("radixkv.server")

OPEN_PATHS = frozenset({"/health"})
"""What answers without a key: a load balancer has none."""


class Guard:
    """The outermost layer: checks key and origin, counts responses, logs what went wrong.

    An unexpected error is logged by its type and its place in the code alone: its message may hold a prompt.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, responses: Counter) -> None:
        self._app, self._config, self._responses = app, config, responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                endpoint = getattr(scope.get("endpoint"), "__name__", "none")
                self._responses.labels(endpoint, str(message["status"])).inc()
            await send(message)

        try:
            self._check(scope)
        except ApiError as error:
            await error.response()(scope, receive, sending)
            return
        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # noqa: BLE001  # the last resort; the client has been answered
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s in %s %s\n%s", type(error).__name__, scope["method"], scope["path"], frames)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        key = self._config.api_key
        if key is not None and scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), key.encode()):
                raise ApiError(401, "Missing or wrong API key.", code="invalid_api_key")
        # A page of another site can make a browser send a POST to a loopback address. It cannot hide where it is from.
        origin = headers.get("origin")
        if scope["method"] == "POST" and origin is not None and _host(origin) != headers.get("host"):
            raise ApiError(403, "Calls from the pages of another site are refused.", code="cross_origin")


def _host(origin: str) -> str | None:
    """The host and port of an origin; None if it has none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


async def read_body(request: Request, config: ServerConfig) -> bytes:
    """The whole body of a request, within the limits.

    Raises:
        ApiError: it is too big (413), came too slowly (408), or is not said to be JSON (415).
        ClientDisconnect: the client went away meanwhile.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "The body must be sent as 'Content-Type: application/json'.", code="unsupported_media_type")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > config.max_body_bytes:
        raise _too_big(config)
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > config.max_body_bytes:
                    raise _too_big(config)
    except TimeoutError:
        raise ApiError(408, f"The body took longer than {config.body_seconds:g} s.", code="body_timeout") from None
    return bytes(body)


def _too_big(config: ServerConfig) -> ApiError:
    return ApiError(413, f"The body is longer than {config.max_body_bytes:,} bytes.", code="body_too_large")


def no_route(status: int, path: str) -> ApiError:
    """The error for a path or a method that there is not."""
    return ApiError(status, f"{HTTPStatus(status).phrase}: {path}", code=HTTPStatus(status).name.lower())
