"""Who may ask: every request is looked at here first, and every answer leaves with the same headers.

Bound to this machine alone, the name in ``Host`` must be one of this machine's own: a page from elsewhere, whose name
was rebound to 127.0.0.1, still sends its own name. Bound elsewhere, a token decides. Other origins are refused always.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.web import Refused

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


class Guard:
    """Stands around an ASGI app. ``names`` are the hosts that may be asked for; ``None`` leaves that to the token."""

    def __init__(self, app: ASGIApp, token: str | None = None, names: Iterable[str] | None = LOOPBACK) -> None:
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

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                headers.update(HEADERS)
                headers["cache-control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
                message = {**message, "headers": headers.raw}
            await send(message)

        async def answer(status: int, text: str) -> None:
            await json_response({"error": text}, status)(scope, receive, send_with_headers)

        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
        except Refused as error:
            await answer(error.status, str(error))
            return
        is_arriving = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        self.num_active += not is_arriving

        async def receive_counted() -> Message:
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
                await answer(500, "this went wrong inside the explorer")
        finally:
            self.num_active -= not is_arriving

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse what is not answered."""
        self._check_origin(headers, scope["path"])
        self._check_token(headers, scope)
        if self.num_active >= MOST_ACTIVE:
            raise Refused(503, f"{self.num_active} requests are being answered, at most {MOST_ACTIVE}; try again")

    def _check_origin(self, headers: Headers, path: str) -> None:
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if match is None:
            raise Refused(400, "the request has no host, or an odd one")
        if self.names is not None and match[1] not in self.names:
            text = f"this explorer does not answer to the name {match[1]:.60}; open it as it was printed at start"
            raise Refused(403, text)
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in headers.getlist("origin")):
            raise Refused(403, "other origins may not ask this explorer")
        if path != "/" and any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
            raise Refused(403, "other sites may not ask this explorer")

    def _check_token(self, headers: Headers, scope: Scope) -> None:
        if self.token is None or scope["path"].startswith("/static/") or scope["path"] == "/favicon.ico":
            return
        try:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=50)
        except ValueError:
            raise Refused(400, "the address has too many parts") from None
        tokens = [*headers.getlist("x-vitreous-token"), *query.get("token", [])]
        if not any(secrets.compare_digest(token.encode(), self.token.encode()) for token in tokens):
            raise Refused(403, "this address needs the token that was printed at start: open the whole address")


def json_response(content: Any, status: int = 200) -> Response:
    """Answer with JSON; in ASCII, for a text may hold what no encoding has."""
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")
