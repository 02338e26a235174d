"""What a request brings: read in a bounded way, refused in one line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from vitreous.explorer.wire import Refused

__all__ = ["answered", "body", "read_json"]

MOST_JSON = 2 * 2**20
_PATIENCE = 60.0  # seconds that a request may take to arrive


def answered(content: Any, status: int = 200) -> Response:
    """Answer with JSON; in ASCII, for a text may hold what no encoding has."""
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


async def body(request: Request, most: int) -> bytes:
    """Read what a request brings, as long as it is not too much; what it says about its length is not believed."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise Refused(413, f"the request has {declared[:20]} bytes, over {most:,}")
    try:
        return await asyncio.wait_for(_read(request, most), _PATIENCE)
    except asyncio.TimeoutError:
        raise Refused(408, f"the request did not arrive within {_PATIENCE:g} seconds") from None


async def _read(request: Request, most: int) -> bytes:
    parts, total = [], 0
    async for part in request.stream():
        total += len(part)
        if total > most:
            raise Refused(413, f"the request has more than {most:,} bytes")
        parts.append(part)
    return b"".join(parts)


async def read_json(request: Request) -> dict[str, Any]:
    """Read a JSON object; another kind of content is refused, for a page from elsewhere may send that unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, "the request must be application/json")
    data = await body(request, MOST_JSON)
    try:
        found = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON that can be read") from None
    if not isinstance(found, dict):
        raise Refused(422, "the request must be a JSON object")
    return found


def _no_number(word: str) -> None:
    raise ValueError(word)
