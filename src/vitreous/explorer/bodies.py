"""What a request brings: read in a bounded way, refused in one line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from vitreous.explorer.wire import Refused

__all__ = ["answered", "body", "read_json"]

MOST_JSON = 2 * 2**20
_LITTLE = 2**20  # bytes that are held without asking for room
_SILENCE = 5.0  # seconds between two parts of a body
_PATIENCE, _SLOWEST = 10.0, 2**16
"""A body arrives within so many seconds, and one more for so many bytes of it that have arrived."""

Room = Callable[[], Awaitable[object]]


def answered(content: Any, status: int = 200) -> Response:
    """Answer with JSON; in ASCII, for a text may hold what no encoding has."""
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


async def body(request: Request, most: int, room: Room | None = None) -> bytes:
    """Read what a request brings, as long as it is not too much; what it says about its length is not believed.

    ``room`` is awaited once before much is held in memory: whoever sends little, or nothing, takes no one's place.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise Refused(413, f"the request has {declared[:20]} bytes, over {most:,}")
    parts, total, waited = request.stream(), 0, time.monotonic()
    data = bytearray()
    try:
        while True:
            left = waited + _PATIENCE + total / _SLOWEST - time.monotonic()
            data += await asyncio.wait_for(anext(parts), max(0.0, min(left, _SILENCE)))
            total = len(data)
            if total > most:
                raise Refused(413, f"the request has more than {most:,} bytes")
            if room is not None and total > _LITTLE:
                before = time.monotonic()
                await room()
                waited += time.monotonic() - before
                room = None
    except StopAsyncIteration:
        return bytes(data)
    except asyncio.TimeoutError:
        raise Refused(408, "the request arrives too slowly, or not at all") from None
    except ClientDisconnect:
        raise Refused(499, "nobody waits for this any more") from None


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
