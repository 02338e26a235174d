"""Connections that keep the server waiting: each has a deadline, and those that wait longest make room for others.

uvicorn closes a connection that is idle between two requests, and nothing else: one that sends half a request, or reads
half an answer, and then nothing more, or a byte from time to time, would stay for ever. Event streams and long
downloads are no such connections: their request is complete, and what is written to them is read.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""In which the head of a request has to arrive, from the start of the connection or the end of the last answer."""
READ_SECONDS = 30.0
"""In which a client has to read some of what was written to it."""
MOST_CONNECTIONS = 256
BACKLOG = 128
"""Connections that may wait to be accepted, and that are accepted at a time."""
_GRACE = 0.5  # seconds in which a new connection is not closed for others: its request may be on the way


def connection_limit() -> int:
    """Return how many connections there may be; a process that may open few files has fewer."""
    try:
        import resource
    except ImportError:
        return MOST_CONNECTIONS
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(8, min(MOST_CONNECTIONS, files // 4))


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a deadline wherever the client is to do something.

    The body of a request has its deadline where it is read (``app.read_body``).
    """

    _since: float | None = None
    _deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None

    @property
    def waits_since(self) -> float | None:
        """Since when the client has sent nothing that it owes; ``None`` while it owes nothing."""
        return None if self.flow.read_paused else self._since

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > connection_limit():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        self._look(before)

    def on_response_complete(self) -> None:
        before = self.cycle
        self._expect_request()
        super().on_response_complete()  # the next request may have arrived already
        self._look(before)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_deadline = self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
        super().resume_writing()

    def _look(self, before: Any) -> None:
        """Note what has arrived: a new request, or some of a body that was not complete."""
        if self.cycle is not before:
            self._expect_nothing()
        if self.cycle is not None and not self.cycle.response_complete:
            self._since = time.monotonic() if self.cycle.more_body else None

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._since = time.monotonic()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._close)

    def _expect_nothing(self) -> None:
        self._since = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        """End the connection; what was written is sent, if the client reads it."""
        if not self.is_closing:
            self.transport.close()

    def _make_room(self) -> None:
        """Close the connection that has kept the server waiting for longest, or this one if none does."""
        now = time.monotonic()
        alive = [other for other in self.connections if isinstance(other, TimedProtocol) and not other.is_closing]
        waits = [(other.waits_since, other) for other in alive if other.waits_since is not None and other is not self]
        since, oldest = min(waits, key=lambda pair: pair[0], default=(now - _GRACE, self))
        if now - since >= _GRACE or len(alive) > 2 * connection_limit():
            oldest.transport.abort()
