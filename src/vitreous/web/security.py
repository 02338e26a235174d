"""Who may ask: every request is looked at here first, and every answer leaves with the same headers.

Bound to this machine alone, the name in ``Host`` must be one of this machine's own: a page from elsewhere, whose name
was rebound to 127.0.0.1, still sends its own name. Bound elsewhere, a token decides. Other origins are refused always.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from vitreous.errors import VitreousError, one_line

__all__ = ["HEADERS", "LOOPBACK", "MOST_ACTIVE", "Guard", "Refused"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
MOST_ACTIVE = 128
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


class Refused(VitreousError):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(one_line(text))
        self.status = status


class Guard:
    """Stands around an ASGI app. ``names`` are the hosts that may be asked for; ``None`` leaves that to the token."""

    def __init__(self, app: App, token: str | None = None, names: Iterable[str] | None = LOOPBACK) -> None:
        if token is None and names is None:
            raise ValueError("a server that anyone can reach needs a token")
        self.app, self.token = app, token
        self.names = None if names is None else frozenset(names)
        self.num_active = 0
        """Requests that have arrived and are being answered; those that never arrive shall not keep others out."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message = {**message, "headers": _with_own(message.get("headers", ()), scope["path"])}
            await send(message)

        try:
            self._check(scope)
        except Refused as error:
            await _answer(send_with_headers, error.status, str(error))
            return
        is_arriving = _has_body(scope)
        self.num_active += not is_arriving

        async def receive_counted() -> MutableMapping[str, Any]:
            nonlocal is_arriving
            message = await receive()
            if is_arriving and message["type"] == "http.request" and not message.get("more_body", False):
                is_arriving = False
                self.num_active += 1
            return message

        try:
            await self.app(scope, receive_counted, send_with_headers)
        except Exception:
            _log.exception("%s %s went wrong", scope["method"], scope["path"])
            if not has_begun:
                await _answer(send_with_headers, 500, "this went wrong inside the explorer")
        finally:
            self.num_active -= not is_arriving

    def _check(self, scope: Scope) -> None:
        """Refuse what is not answered."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        self._check_origin(headers, scope["path"])
        self._check_token(headers, scope)
        if self.num_active >= MOST_ACTIVE:
            raise Refused(503, f"{self.num_active} requests are being answered, at most {MOST_ACTIVE}; try again")

    def _check_origin(self, headers: Mapping[str, list[str]], path: str) -> None:
        host = headers.get("host", [])
        match = _HOST.fullmatch(host[0].lower()) if len(host) == 1 else None
        if match is None:
            raise Refused(400, "the request has no host, or an odd one")
        if self.names is not None and match[1] not in self.names:
            text = f"this explorer does not answer to the name {match[1]:.60}; open it as it was printed at start"
            raise Refused(403, text)
        if any(origin.lower() != f"http://{host[0].lower()}" for origin in headers.get("origin", [])):
            raise Refused(403, "other origins may not ask this explorer")
        if path != "/" and any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
            raise Refused(403, "other sites may not ask this explorer")

    def _check_token(self, headers: Mapping[str, list[str]], scope: Scope) -> None:
        if self.token is None or scope["path"].startswith("/static/") or scope["path"] == "/favicon.ico":
            return
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=50)
        except ValueError:
            raise Refused(400, "the address has too many parts") from None
        tokens = [*headers.get("x-vitreous-token", []), *query.get("token", [])]
        if not any(secrets.compare_digest(token.encode(), self.token.encode()) for token in tokens):
            raise Refused(403, "this address needs the token that was printed at start: open the whole address")


def _has_body(scope: Scope) -> bool:
    """Whether a body follows the head of a request."""
    headers = {bytes(name).lower(): value for name, value in scope["headers"]}
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _with_own(headers: Iterable[tuple[bytes, bytes]], path: str) -> list[tuple[bytes, bytes]]:
    own = {**HEADERS, "cache-control": "no-cache" if path.startswith("/static/") else "no-store"}
    others = [(name, value) for name, value in headers if name.decode("latin-1").lower() not in own]
    return [*others, *((name.encode(), value.encode()) for name, value in own.items())]


async def _answer(send: Send, status: int, text: str) -> None:
    """Answer with one line about what is wrong."""
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
