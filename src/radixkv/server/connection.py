"""A connection, with an end for clients that open one and do not get on with their request."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""How long the line and the headers of a request may take."""


class Connection(H11Protocol):
    """uvicorn's protocol over h11, which bounds the size of a request's head; this bounds its time, too.

    Between two calls uvicorn's own keep-alive time counts, and behind the head the time that a body may take.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The client may begin."""
        super().connection_made(transport)
        self._time_the_head()

    def data_received(self, data: bytes) -> None:
        """More of a head or a body, or both."""
        super().data_received(data)
        self._time_the_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or let go."""
        super().connection_lost(exc)
        self._stop_timing()

    def _time_the_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timing()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timing(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
