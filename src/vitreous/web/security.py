"""Who may ask: every request is looked at here first, and every answer leaves with the same headers.

Bound to this machine alone, the name in ``Host`` must be one of this machine's own: a page from elsewhere, whose name
was rebound to 127.0.0.1, still sends its own name. Bound elsewhere, a token decides. Other origins are refused always.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

__all__ = ["HEADERS", "LOOPBACK", "MOST_AT_ONCE", "Guard"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
MOST_AT_ONCE = 128
"""Requests that are being answered."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?")
_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Stands around an ASGI app. ``names`` are the hosts that may be asked for; ``None`` leaves that to the token."""

    def __init__(self, app: App, token: str | None = None, names: Iterable[str] | None = LOOPBACK) -> None:
        if token is None and names is None:
            raise ValueError("a server that anyone can reach needs a token")
        self.app, self.token = app, token
        self.names = None if names is None else frozenset(names)
        self.at_once = 0
        """Requests that have arrived and are being answered; those that never do shall not keep others out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def marked(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": _marked(message.get("headers", ()), scope["path"])}
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await answer(marked, *refused)
            return
        arrives = _has_body(scope)
        self.at_once += not arrives

        async def counted() -> MutableMapping[str, Any]:
            nonlocal arrives
            message = await receive()
            if arrives and message["type"] == "http.request" and not message.get("more_body", False):
                arrives = False
                self.at_once += 1
            return message

        try:
            await self.app(scope, counted, marked)
        except Exception:
            _log.exception("%s %s went wrong", scope["method"], scope["path"])
            if not begun:
                await answer(marked, 500, "this went wrong inside the explorer")
        finally:
            self.at_once -= not arrives

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason if this request is not answered."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        found = _HOST.fullmatch(host[0].lower()) if len(host) == 1 else None
        if found is None:
            return 400, "the request has no host, or an odd one"
        if self.names is not None and found[1] not in self.names:
            return 403, f"this explorer does not answer to the name {found[1]:.60}; open it as it was printed at start"
        origins = headers.get("origin", [])
        if any(origin.lower() != f"http://{host[0].lower()}" for origin in origins):
            return 403, "other origins may not ask this explorer"
        path = scope["path"]
        if path != "/" and any(point not in ("same-origin", "none") for point in headers.get("sec-fetch-site", [])):
            return 403, "other sites may not ask this explorer"
        if self.token is not None and not path.startswith("/static/") and path != "/favicon.ico":
            try:
                query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=50)
            except ValueError:
                return 400, "the address has too many parts"
            given = [*headers.get("x-vitreous-token", []), *query.get("token", [])]
            if not any(secrets.compare_digest(each.encode(), self.token.encode()) for each in given):
                return 403, "this address needs the token that was printed at start: open the whole address"
        if self.at_once >= MOST_AT_ONCE:
            return 503, f"{self.at_once} requests are being answered, at most {MOST_AT_ONCE}; try again"
        return None


def _has_body(scope: Scope) -> bool:
    """Whether a body follows the head of a request."""
    headers = {bytes(name).lower(): value for name, value in scope["headers"]}
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _marked(headers: Iterable[tuple[bytes, bytes]], path: str) -> list[tuple[bytes, bytes]]:
    own = {**HEADERS, "cache-control": "no-cache" if path.startswith("/static/") else "no-store"}
    kept = [(name, value) for name, value in headers if name.decode("latin-1").lower() not in own]
    return [*kept, *((name.encode(), value.encode()) for name, value in own.items())]


async def answer(send: Send, status: int, text: str) -> None:
    """Answer with one line about what is wrong."""
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
