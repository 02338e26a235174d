"""The addresses of the explorer: what can be asked for, and who answers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

import vitreous as vt
from vitreous.errors import VitreousError, one_line
from vitreous.explorer import trying
from vitreous.explorer.asking import Desk
from vitreous.explorer.guard import Guard
from vitreous.explorer.jobs import MOST_QUEUED, MOST_TASKS, Job, Worker, soon, streamed
from vitreous.explorer.pictures import MOST_BYTES, MOST_PIXELS
from vitreous.explorer.shelves import methods_of, start
from vitreous.explorer.wire import Question, Refused, given_mask, png_bytes, text
from vitreous.words import check_choice

__all__ = ["Explorer", "made_app"]

_STATIC = Path(__file__).parent / "static"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
_MOST_JSON = 4 * 2**20
_MOST_SHORT = 64
Answer = Callable[..., Awaitable[Response]]
_PATIENCE = 60.0  # seconds that a request may take to arrive


class Explorer:
    """Everything behind the page: the desk, one thread for what takes long and one for short questions.

    Short questions have a thread of their own, so that they never wait for a long job: passes of different threads do
    not see each other.
    """

    def __init__(self, models: Mapping[str, vt.View], runs: Mapping[str, Path], memory: float | None = None) -> None:
        self.desk, self.runs = Desk(models, memory), dict(runs)
        self.long, self.short = Worker("vitreous jobs", MOST_QUEUED), Worker("vitreous questions", _MOST_SHORT)
        limits = {"bytes": MOST_BYTES, "pixels": MOST_PIXELS, "tasks": MOST_TASKS}
        self.first = start(self.desk, self.runs) | {"limits": limits}

    def close(self, seconds: float = 2.0) -> bool:
        """Stop all work; return whether all of it has ended within some seconds."""
        ended = [worker.close(seconds) for worker in (self.long, self.short)]
        return all(ended)

    # -- the page --------------------------------------------------------------------------------------

    async def page(self) -> Response:
        return self._file("index.html")

    async def static(self, name: str) -> Response:
        return self._file(name)

    async def icon(self) -> Response:
        return Response(status_code=204)

    def _file(self, name: str) -> Response:
        """Return a file of the page: one of those that lie beside each other in its folder, and nothing else."""
        there = {each.name: each for each in _STATIC.iterdir() if each.suffix in _KINDS and each.is_file()}
        if name not in there:
            raise Refused(404, f"there is no file {name!r:.60}")
        return Response(there[name].read_bytes(), media_type=_KINDS[there[name].suffix])

    # -- short questions -------------------------------------------------------------------------------

    async def start(self) -> Response:
        return JSONResponse(self.first)

    async def methods(self, request: Request) -> Response:
        view = self.desk.model(request.query_params.get("model", ""))
        return JSONResponse(await self._short(lambda: {"methods": methods_of(view)}))

    async def upload(self, request: Request) -> Response:
        data = await body(request, MOST_BYTES)
        name = request.query_params.get("name", "picture")[:200]
        photo = (await self._short(lambda: {"photo": self.desk.pictures.add(data, name)}))["photo"]
        size = {"width": photo.image.width, "height": photo.image.height}
        return JSONResponse({"picture": photo.picture, "name": photo.name, **size})

    async def picture(self, picture: str, request: Request) -> Response:
        model = request.query_params.get("model", next(iter(self.desk.models)))
        self.desk.model(model)

        def look() -> dict[str, Any]:
            return {"png": png_bytes(self.desk.seen(model, self.desk.pictures.get(picture)))}

        return Response((await self._short(look))["png"], media_type="image/png")

    async def predict(self, request: Request) -> Response:
        asked = Question.of(await read_json(request))
        view = self.desk.model(asked.model)

        def look() -> dict[str, Any]:
            photo = self.desk.pictures.get(asked.picture)
            return trying.predicted(view, photo, self.desk.seen(asked.model, photo))

        return JSONResponse(_plain(await self._short(look)))

    async def removed(self, request: Request) -> Response:
        given = await read_json(request)
        asked = Question.of(given)
        view = self.desk.model(asked.model)
        gone, fill = given_mask(given.get("removed"), view.grid()), text(given, "fill", 20, "blur") or ""
        check_choice("fill", fill, trying.FILLS)

        def look() -> dict[str, Any]:
            picture = self.desk.seen(asked.model, self.desk.pictures.get(asked.picture))
            return trying.removed(view, picture, gone, fill, asked.target)

        return JSONResponse(_plain(await self._short(look)))

    async def _short(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return await soon(self.short, lambda job: work())

    # -- long questions --------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        tasks = (await read_json(request)).get("tasks")
        if not isinstance(tasks, list) or not tasks:
            raise Refused(422, "an ask has a list of tasks")
        if len(tasks) > MOST_TASKS:
            raise Refused(429, f"an ask has at most {MOST_TASKS} tasks, not {len(tasks)}")
        works = [self._work(task) for task in tasks]
        self.long.room(len(works))
        lines = streamed(self.long, works, request.is_disconnected)
        return StreamingResponse(lines, media_type="application/x-ndjson")

    def _work(self, task: Any) -> Callable[[Job], dict[str, Any]]:
        question = Question.of(task)
        self.desk.model(question.model)
        kind = text(task, "kind", 20) or ""
        known = {"explain": self.desk.explain}
        check_choice("kind", kind, tuple(known))
        return partial(known[kind], question)


def made_app(explorer: Explorer, token: str | None, names: Sequence[str] | None) -> Guard:
    """Return the app with its guard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)  # those pages fetch from elsewhere
    reads: dict[str, Answer] = {
        "/": explorer.page,
        "/static/{name}": explorer.static,
        "/favicon.ico": explorer.icon,
        "/api/start": explorer.start,
        "/api/methods": explorer.methods,
        "/api/pictures/{picture}": explorer.picture,
    }
    asks: dict[str, Answer] = {
        "/api/pictures": explorer.upload,
        "/api/predict": explorer.predict,
        "/api/try": explorer.removed,
        "/api/ask": explorer.ask,
    }
    for verb, answers in (("GET", reads), ("POST", asks)):
        for path, answer in answers.items():
            app.add_api_route(path, answer, methods=[verb], response_model=None)
    app.add_exception_handler(VitreousError, _told)
    for status in (404, 405):
        app.add_exception_handler(status, _missing)
    return Guard(app, token, names)


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
    data = await body(request, _MOST_JSON)
    try:
        found = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON that can be read") from None
    if not isinstance(found, dict):
        raise Refused(422, "the request must be a JSON object")
    return found


def _no_number(word: str) -> None:
    raise ValueError(word)


def _plain(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "event"}


async def _told(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else 422
    return JSONResponse({"error": one_line(str(error))}, status_code=status)


async def _missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = "there is nothing at this address" if status == 404 else f"{request.method} is not for this address"
    return JSONResponse({"error": text}, status_code=status)
