"""What a request brings: read in a bounded way, refused in one line.

The addresses of the explorer: what can be asked for, and who answers it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

import vitreous as vt
from vitreous.errors import VitreousError, one_line
from vitreous.registry import check_choice
from vitreous.web import (
    catalog as shelves,
)
from vitreous.web import (
    completion as typed,
)
from vitreous.web import (
    export as downloads,
)
from vitreous.web import (
    export as lines,
)
from vitreous.web import (
    perturbation as trying,
)
from vitreous.web.decoder import MOST_BYTES, MOST_PIXELS, Decoder
from vitreous.web.handlers import works
from vitreous.web.jobs import MOST_QUEUED, MOST_TASKS, Job, Worker, soon, streamed
from vitreous.web.schemas import LONGEST_SPELLING, Question, Refused, given_mask, png_bytes, text, whole
from vitreous.web.security import Guard
from vitreous.web.session import Desk

__all__ = [
    "Explorer",
    "answered",
    "body",
    "made_app",
    "read_json",
]

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


_STATIC = Path(__file__).parent / "static"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_MOST_SHORT, _MOST_ARRIVING, _MOST_UPLOADS, _DECODERS = 64, 16, 4, 2

Answered = Callable[..., Awaitable[Response]]


class Explorer:
    """Everything behind the page: the desk, one thread for what takes long and one for short questions.

    Short questions have a thread of their own, so that they never wait for a long job: passes of different threads do
    not see each other.
    """

    def __init__(
        self,
        models: Mapping[str, vt.VisionModel],
        runs: Mapping[str, Path],
        memory_gb: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.desk = Desk(models, memory_gb, options)
        limits = {"bytes": MOST_BYTES, "pixels": MOST_PIXELS, "tasks": MOST_TASKS, "passes": typed.MOST_PASSES}
        self.first = shelves.start(self.desk.models, runs) | {"limits": limits}
        self.arriving, self.uploads = asyncio.Semaphore(_MOST_ARRIVING), asyncio.Semaphore(_MOST_UPLOADS)
        self.long = Worker("vitreous jobs", MOST_QUEUED, behind=True)
        self.short = Worker("vitreous questions", _MOST_SHORT)
        self.decoders = [(Worker("vitreous uploads", _MOST_UPLOADS), Decoder()) for _ in range(_DECODERS)]

    def drop(self) -> None:
        """Take no more work, and stop all there is at its next tick."""
        for worker in self._workers():
            worker.end()
        for _, decoder in self.decoders:
            decoder.close()

    def close(self, seconds: float = 1.0) -> bool:
        """Stop all work; return whether all of it has ended within some seconds."""
        self.drop()
        ended = [worker.join(seconds) for worker in self._workers()]
        return all(ended)

    def _workers(self) -> list[Worker]:
        return [self.long, self.short, *(worker for worker, _ in self.decoders)]

    # -- the page --------------------------------------------------------------------------------------

    async def page(self) -> Response:
        return self._file("index.html")

    async def static(self, name: str) -> Response:
        return self._file(name)

    async def icon(self) -> Response:
        return Response(status_code=204)

    def _file(self, name: str) -> Response:
        """Return a file of the page: one of those that lie beside each other in its folder, and nothing else."""
        there = {path.name: path for path in _STATIC.iterdir() if path.suffix in _KINDS and path.is_file()}
        if name not in there:
            raise Refused(404, f"there is no file {name!r:.60}")
        return Response(there[name].read_bytes(), media_type=_KINDS[there[name].suffix])

    # -- short questions -------------------------------------------------------------------------------

    async def start(self) -> Response:
        return answered(self.first)

    async def methods(self, request: Request) -> Response:
        model = self.desk.model(request.query_params.get("model", ""))
        return answered(await self._short(request, lambda: shelves.methods_of(model)))

    async def classes(self, request: Request) -> Response:
        model = self.desk.model(request.query_params.get("model", ""))
        wanted = request.query_params.get("q", "")[:200]
        return answered(await self._short(request, lambda: shelves.classes_of(model, wanted)))

    async def method(self, request: Request) -> Response:
        given = await read_json(request)
        model = text(given, "model", 300) or ""
        vision_model, spec = self.desk.model(model), text(given, "spelling", LONGEST_SPELLING) or ""
        cursor = whole(given, "cursor", 0, len(spec) + 1, len(spec))

        def look() -> dict[str, Any]:
            found = typed.looked_at(spec, vision_model)
            if found["ok"]:
                found["seconds"] = self.desk.seconds(model, found["forwards"] + 2 * found["backwards"])
            return found | {"completions": typed.completions(spec, cursor or 0)}

        return answered(await self._short(request, look))

    async def upload(self, request: Request) -> Response:
        name = request.query_params.get("name", "picture")[:200]
        async with AsyncExitStack() as held:  # each may hold much, and fifty at once more than there is
            data = await body(request, MOST_BYTES, lambda: held.enter_async_context(self.arriving))
            await held.enter_async_context(self.uploads)
            worker, decoder = min(self.decoders, key=lambda pair: pair[0].busy)
            add = self.desk.pictures.add
            photo = await soon(worker, lambda job: add(data, name, decoder), request.is_disconnected)
        size = {"width": photo.image.width, "height": photo.image.height}
        return answered({"picture": photo.picture, "name": photo.name, **size})

    async def picture(self, picture: str, request: Request) -> Response:
        model = request.query_params.get("model", next(iter(self.desk.models)))
        self.desk.model(model)

        def look() -> bytes:
            return png_bytes(self.desk.seen(model, self.desk.pictures.get(picture)))

        return Response(await self._short(request, look), media_type="image/png")

    async def predict(self, request: Request) -> Response:
        asked = Question.of(await read_json(request))
        model = self.desk.model(asked.model)

        def look() -> dict[str, Any]:
            photo = self.desk.pictures.get(asked.picture)
            return trying.predicted(model, photo, self.desk.seen(asked.model, photo))

        return answered(await self._short(request, look))

    async def removed(self, request: Request) -> Response:
        given = await read_json(request)
        asked = Question.of(given)
        model = self.desk.model(asked.model)
        gone, fill = given_mask(given.get("removed"), model.grid()), text(given, "fill", 20, "blur") or ""
        check_choice("fill", fill, trying.FILLS)

        def look() -> dict[str, Any]:
            picture = self.desk.seen(asked.model, self.desk.pictures.get(asked.picture))
            return trying.removed(model, picture, gone, fill, asked.target)

        return answered(await self._short(request, look))

    async def _short(self, request: Request, work: Callable[[], Any]) -> Any:
        return await soon(self.short, lambda job: work(), request.is_disconnected)

    # -- long questions --------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        tasks = (await read_json(request)).get("tasks")
        if not isinstance(tasks, list) or not tasks:
            raise Refused(422, "an ask has a list of tasks")
        if len(tasks) > MOST_TASKS:
            raise Refused(429, f"an ask has at most {MOST_TASKS} tasks, not {len(tasks)}")
        self.long.room(len(tasks))
        said = streamed(self.long, works(self.desk, tasks), request.is_disconnected)
        return StreamingResponse(said, media_type="application/x-ndjson")

    async def download(self, request: Request) -> Response:
        given = await read_json(request)
        questions, look = _questions(given), downloads.Look.of(given.get("look"))
        form = text(given, "format", 10) or ""
        check_choice("format", form, tuple(downloads.FORMATS))

        def write(job: Job) -> tuple[bytes, str, str]:
            shares = [job.part(place / len(questions), (place + 1) / len(questions)) for place in range(len(questions))]
            made = [
                self.desk.made(question, on_progress).explanation
                for question, on_progress in zip(questions, shares, strict=True)
            ]
            content, ending = downloads.written(form, made, look)
            return content, ending, downloads.file_name(made, ending)

        worker = self.short if all(map(self.desk.knows, questions)) else self.long
        content, ending, name = await soon(worker, write, request.is_disconnected)
        kind = downloads.FORMATS.get(ending, "application/octet-stream")
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=kind, headers=headers)

    async def command(self, request: Request) -> Response:
        questions = _questions(await read_json(request))

        def write() -> dict[str, str]:
            asked = [self.desk.asked(question) for question in questions]
            photos = {each.picture: self.desk.pictures.get(each.picture) for each in asked}
            return {
                "python": lines.python(asked, photos, self.desk.options),
                "shell": lines.shell(asked, photos, self.desk.options),
            }

        return answered(await self._short(request, write))


def _questions(given: Mapping[str, Any]) -> list[Question]:
    found = given.get("questions")
    if not isinstance(found, list) or not 0 < len(found) <= MOST_TASKS:
        raise Refused(422, f"give a list of 1 to {MOST_TASKS} questions")
    return [Question.of(each) for each in found]


def made_app(explorer: Explorer, token: str | None, names: Sequence[str] | None, more: Sequence[Any] = ()) -> Guard:
    """Return the app with its guard; ``more`` are routers of others."""
    # its own pages fetch from elsewhere, it may tell others what it does, and believes the name that it is called by
    silent: Any = dict.fromkeys(("tracing", "metrics", "logs", "auto_configure"), False)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, telemetry=silent)
    reads: dict[str, Answered] = {
        "/": explorer.page,
        "/static/{name}": explorer.static,
        "/favicon.ico": explorer.icon,
        "/api/start": explorer.start,
        "/api/methods": explorer.methods,
        "/api/classes": explorer.classes,
        "/api/pictures/{picture}": explorer.picture,
    }
    asks: dict[str, Answered] = {
        "/api/pictures": explorer.upload,
        "/api/predict": explorer.predict,
        "/api/try": explorer.removed,
        "/api/method": explorer.method,
        "/api/ask": explorer.ask,
        "/api/download": explorer.download,
        "/api/command": explorer.command,
    }
    for verb, answers in (("GET", reads), ("POST", asks)):
        for path, answer in answers.items():
            app.add_api_route(path, answer, methods=[verb], response_model=None)
    for router in more:
        app.include_router(router)
    app.add_exception_handler(VitreousError, _told)
    for status in (404, 405):
        app.add_exception_handler(status, _missing)
    return Guard(app, token, names)


async def _told(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else 422
    return answered({"error": one_line(str(error))}, status)


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    words = "there is nothing at this address" if status == 404 else f"{request.method} is not for this address"
    return answered({"error": words}, status)
