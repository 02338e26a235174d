"""The addresses of the explorer: what can be asked for, read in a bounded way, and who answers it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

import vitreous as vt
from vitreous.errors import VitreousError, one_line
from vitreous.viz.canvas import png_bytes
from vitreous.web import completion, export, handlers
from vitreous.web.decoder import MOST_BYTES, MOST_PIXELS, Decoder
from vitreous.web.jobs import MOST_QUEUED, QueuedWork, WorkQueue, run_soon, stream_events
from vitreous.web.runs import titles
from vitreous.web.schemas import (
    MOST_TASKS,
    CommandRequest,
    Download,
    PartialSpec,
    Question,
    Removal,
    parse,
)
from vitreous.web.security import Guard, Refused
from vitreous.web.session import SCENES, Session, render_scene

__all__ = ["Explorer", "create_app"]

MOST_JSON = 2 * 2**20
SMALL_BODY = 2**20  # bytes that are held without asking for room
SILENCE = 5.0  # seconds between two parts of a body
BODY_SECONDS, BODY_RATE = 10.0, 2**16
"""A body arrives within so many seconds, and one more for so many bytes of it that have arrived."""
_MOST_SHORT, _MOST_ARRIVING, _MOST_UPLOADS, _NUM_DECODERS = 64, 16, 4, 2
_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}

Answer = Callable[..., Awaitable[Response]]


def json_response(content: Any, status: int = 200) -> Response:
    """Answer with JSON; in ASCII, for a text may hold what no encoding has."""
    return Response(json.dumps(content, separators=(",", ":")), status, media_type="application/json")


async def read_body(request: Request, most: int, room: Callable[[], Awaitable[object]] | None = None) -> bytes:
    """Read what a request brings, as long as it is not too much; what it says about its length is not believed.

    ``room`` is awaited once before much is held in memory: whoever sends little, or nothing, takes no one's place.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise Refused(413, f"the request has {declared[:20]} bytes, over {most:,}")
    parts, start = request.stream(), time.monotonic()
    data = bytearray()
    try:
        while True:
            left = start + BODY_SECONDS + len(data) / BODY_RATE - time.monotonic()
            data += await asyncio.wait_for(anext(parts), max(0.0, min(left, SILENCE)))
            if len(data) > most:
                raise Refused(413, f"the request has more than {most:,} bytes")
            if room is not None and len(data) > SMALL_BODY:
                before = time.monotonic()
                await room()
                start += time.monotonic() - before
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

    def refuse_constant(word: str) -> None:
        raise ValueError(word)

    try:
        content = json.loads(await read_body(request, MOST_JSON), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON that can be read") from None
    if not isinstance(content, dict):
        raise Refused(422, "the request must be a JSON object")
    return content


class Explorer:
    """Everything behind the page: the session, one thread for what takes long and one for short questions.

    Short questions have a thread of their own, so that they never wait for a long job: passes of different threads do
    not see each other.
    """

    def __init__(
        self,
        models: Mapping[str, vt.VisionModel],
        runs: Mapping[str, Path],
        memory_gb: float | None = None,
        load_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.session = Session(models, memory_gb, load_options)
        self.start_content = completion.describe_models(self.session.models) | {
            "runs": titles(runs),
            "scenes": [
                {"picture": photo.picture, "title": f"{photo.name}, {scene.title}", "kind": kind}
                for kind, scene in SCENES.items()
                for photo in (render_scene(kind, start) for start in scene.starts)
            ],
            "limits": {
                "bytes": MOST_BYTES,
                "pixels": MOST_PIXELS,
                "tasks": MOST_TASKS,
                "passes": completion.MOST_PASSES,
            },
        }
        self.arriving, self.uploads = asyncio.Semaphore(_MOST_ARRIVING), asyncio.Semaphore(_MOST_UPLOADS)
        self.long = WorkQueue("vitreous jobs", MOST_QUEUED, low_priority=True)
        self.short = WorkQueue("vitreous questions", _MOST_SHORT)
        self.decoders = [(WorkQueue("vitreous uploads", _MOST_UPLOADS), Decoder()) for _ in range(_NUM_DECODERS)]

    def drop(self) -> None:
        """Take no more work, and let all there is end at its next report of progress."""
        for worker in self._workers():
            worker.end()
        for _, decoder in self.decoders:
            decoder.close()

    def close(self, seconds: float = 1.0) -> bool:
        """Stop all work; return whether all of it has ended within some seconds."""
        self.drop()
        ended = [worker.join(seconds) for worker in self._workers()]
        return all(ended)

    def _workers(self) -> list[WorkQueue]:
        return [self.long, self.short, *(worker for worker, _ in self.decoders)]

    # -- the page --------------------------------------------------------------------------------------

    async def page(self) -> Response:
        return await self.static("index.html")

    async def static(self, name: str) -> Response:
        """Return a file of the page: one of those that lie beside each other in its folder, and nothing else."""
        files = {path.name: path for path in _STATIC.iterdir() if path.suffix in _MEDIA_TYPES and path.is_file()}
        if name not in files:
            raise Refused(404, f"there is no file {name!r:.60}")
        return Response(files[name].read_bytes(), media_type=_MEDIA_TYPES[files[name].suffix])

    async def icon(self) -> Response:
        return Response(status_code=204)

    # -- short questions -------------------------------------------------------------------------------

    async def start(self) -> Response:
        return json_response(self.start_content)

    async def methods(self, request: Request) -> Response:
        model = self.session.model(request.query_params.get("model", ""))
        return json_response(await self._short(request, lambda: completion.list_methods(model)))

    async def classes(self, request: Request) -> Response:
        model = self.session.model(request.query_params.get("model", ""))
        query = request.query_params.get("q", "")[:200]
        return json_response(await self._short(request, lambda: completion.list_classes(model, query)))

    async def method(self, request: Request) -> Response:
        partial = parse(PartialSpec.model_validate, await read_json(request))
        model = self.session.model(partial.model)

        def describe() -> dict[str, Any]:
            content = completion.describe_spec(partial.spec, model)
            if content["ok"]:
                passes = content["forwards"] + 2 * content["backwards"]
                content["seconds"] = self.session.seconds(partial.model, passes)
            cursor = len(partial.spec) if partial.cursor is None else partial.cursor
            return content | {"completions": completion.complete(partial.spec, cursor)}

        return json_response(await self._short(request, describe))

    async def upload(self, request: Request) -> Response:
        name = request.query_params.get("name", "picture")[:200]
        async with AsyncExitStack() as stack:  # each may hold much, and fifty at once more than there is
            data = await read_body(request, MOST_BYTES, lambda: stack.enter_async_context(self.arriving))
            await stack.enter_async_context(self.uploads)
            worker, decoder = min(self.decoders, key=lambda pair: pair[0].num_jobs)
            add = self.session.photos.add
            photo = await run_soon(worker, lambda job: add(data, name, decoder), request.is_disconnected)
        size = {"width": photo.image.width, "height": photo.image.height}
        return json_response({"picture": photo.picture, "name": photo.name, **size})

    async def picture(self, picture: str, request: Request) -> Response:
        model = request.query_params.get("model", next(iter(self.session.models)))
        self.session.model(model)
        question = parse(Question.model_validate, {"model": model, "picture": picture})
        image = await self._short(request, lambda: png_bytes(self.session.model_input(question), compress_level=3))
        return Response(image, media_type="image/png")

    async def predict(self, request: Request) -> Response:
        question = parse(Question.model_validate, await read_json(request))
        self.session.model(question.model)
        return json_response(await self._short(request, lambda: handlers.predict(self.session, question)))

    async def remove(self, request: Request) -> Response:
        removal = parse(Removal.model_validate, await read_json(request))
        removal.mask(self.session.model(removal.model).grid())
        return json_response(await self._short(request, lambda: handlers.remove(self.session, removal)))

    async def command(self, request: Request) -> Response:
        questions = parse(CommandRequest.model_validate, await read_json(request)).questions

        def write() -> dict[str, str]:
            resolved = [self.session.resolve(question) for question in questions]
            photos = {question.picture: self.session.photos.get(question.picture) for question in resolved}
            options = self.session.load_options
            return {
                "python": export.python_code(resolved, photos, options),
                "shell": export.shell_commands(resolved, photos, options),
            }

        return json_response(await self._short(request, write))

    async def _short(self, request: Request, work: Callable[[], Any]) -> Any:
        return await run_soon(self.short, lambda job: work(), request.is_disconnected)

    # -- long questions --------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Response:
        tasks = (await read_json(request)).get("tasks")
        if not isinstance(tasks, list) or not tasks:
            raise Refused(422, "an ask has a list of tasks")
        if len(tasks) > MOST_TASKS:
            raise Refused(429, f"an ask has at most {MOST_TASKS} tasks, not {len(tasks)}")
        self.long.check_room(len(tasks))
        events = stream_events(self.long, handlers.plan_work(self.session, tasks), request.is_disconnected)
        return StreamingResponse(events, media_type="application/x-ndjson")

    async def download(self, request: Request) -> Response:
        wanted = parse(Download.model_validate, await read_json(request))
        count = len(wanted.questions)

        def write(job: QueuedWork) -> tuple[bytes, str, str]:
            maps = [
                self.session.explain(question, job.part(index / count, (index + 1) / count)).explanation
                for index, question in enumerate(wanted.questions)
            ]
            content, ending = export.encode_maps(wanted.format, maps, wanted.look)
            return content, ending, export.file_name(maps, ending)

        worker = self.short if all(map(self.session.has_map, wanted.questions)) else self.long
        content, ending, name = await run_soon(worker, write, request.is_disconnected)
        media_type = export.MEDIA_TYPES.get(ending, "application/octet-stream")
        return Response(
            content, media_type=media_type, headers={"content-disposition": f'attachment; filename="{name}"'}
        )


def create_app(
    explorer: Explorer, token: str | None, names: Sequence[str] | None, routers: Sequence[APIRouter] = ()
) -> Guard:
    """Return the app behind its guard."""
    # its own pages fetch from elsewhere, it may tell others what it does, and believes the name that it is called by
    silent: Any = dict.fromkeys(("tracing", "metrics", "logs", "auto_configure"), False)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, telemetry=silent)
    reads: dict[str, Answer] = {
        "/": explorer.page,
        "/static/{name}": explorer.static,
        "/favicon.ico": explorer.icon,
        "/api/start": explorer.start,
        "/api/methods": explorer.methods,
        "/api/classes": explorer.classes,
        "/api/pictures/{picture}": explorer.picture,
    }
    posts: dict[str, Answer] = {
        "/api/pictures": explorer.upload,
        "/api/predict": explorer.predict,
        "/api/try": explorer.remove,
        "/api/method": explorer.method,
        "/api/ask": explorer.ask,
        "/api/download": explorer.download,
        "/api/command": explorer.command,
    }
    for verb, answers in (("GET", reads), ("POST", posts)):
        for path, answer in answers.items():
            app.add_api_route(path, answer, methods=[verb], response_model=None)
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(VitreousError, _explain_error)
    for status in (404, 405):
        app.add_exception_handler(status, _explain_missing)
    return Guard(app, token, names)


async def _explain_error(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, Refused) else 422
    return json_response({"error": one_line(str(error))}, status)


async def _explain_missing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = "there is nothing at this address" if status == 404 else f"{request.method} is not for this address"
    return json_response({"error": message}, status)
