"""Server-sent events: a response that is written while its tokens are made, and that notices a client going away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE: Final = b"data: [DONE]\n\n"
HEARTBEAT: Final = b": still here\n\n"
"""A comment, which clients skip."""


def event(data: Mapping[str, Any]) -> bytes:
    """One event with a JSON object."""
    return b"data: " + to_json(data) + b"\n\n"


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone. To be awaited once the body is read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Awaitable[T], receive: Receive) -> T | None:
    """What `work` comes to, or None if the client goes first: then `work` is cancelled, at once."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for other in (task, gone):
            other.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


class EventStream(Response):
    """A response of events. `close` is called however it ends: written out, client gone, or server stopped.

    It listens for the client's going by itself, and not only when there is something to write, whatever version of
    ASGI the server below speaks: between two tokens of a busy engine lies time that a request nobody reads should
    not get.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, close: Callable[[], None], seconds: float, headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"} | dict(headers))
        del self.headers["content-length"]
        self._events, self._close, self._seconds = events, close, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the events end, the client goes, or it has read for too long without an end."""
        try:
            async with asyncio.timeout(self._seconds):
                await unless_disconnected(self._write(send), receive)
        except TimeoutError:
            pass  # the client stands still, which is as good as gone: unfinished, its connection is closed
        finally:
            self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            await asyncio.sleep(0)  # a backlog must not keep the loop from hearing that the client has gone
        await send({"type": "http.response.body", "body": b"", "more_body": False})
