"""The addresses of the explorer: what can be asked for, read in a bounded way, and who answers it."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import vitreous as vt
from vitreous.errors import VitreousError, one_line
from vitreous.results.storage import refuse_constant
from vitreous.viz.canvas import png_bytes
from vitreous.web import Refused, completion, export, handlers, runs, schemas
from vitreous.web.decoder import MOST_BYTES, Decoder
from vitreous.web.jobs import MOST_QUEUED, QueuedWork, WorkQueue, run_soon, stream_events
from vitreous.web.run_view import RunFolder
from vitreous.web.schemas import MOST_TASKS, parse
from vitreous.web.security import Guard, json_response
from vitreous.web.session import SCENES, Session, render_scene

MOST_JSON = 2 * 2**20
SMALL_BODY = 2**20  # bytes that are held without asking for room
SILENCE = 5.0  # seconds between two parts of a body
BODY_SECONDS, BODY_RATE = 10.0, 2**16
"""A body arrives within so many seconds, and one more for so many bytes of it that have arrived."""
_MOST_SHORT, _MOST_ARRIVING, _MOST_UPLOADS, _NUM_DECODERS = 64, 16, 4, 2
_STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Endpoint = Callable[..., Awaitable[Response]]
S = TypeVar("S", bound=schemas.Schema)


async def read_body(request: Request, most: int, room: Callable[[], Awaitable[object]] | None = None) -> bytes:
    """Read what a request brings, as long as it is not too much; what it says about its length is not believed.

    ``room`` is awaited once before much is held in memory: whoever sends little, or nothing, takes no one's place.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:
        raise Refused(413, f"the request has {declared[:20]} bytes, over {most:,}")
    chunks, start = request.stream(), time.monotonic()
    data = bytearray()
    try:
        while True:
            left = start + BODY_SECONDS + len(data) / BODY_RATE - time.monotonic()
            data += await asyncio.wait_for(anext(chunks), max(0.0, min(left, SILENCE)))
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
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refused(415, "the request must be application/json")
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
    not see each other. ``folders`` are those of runs, ``data`` says where their images are, ``load_options`` is what
    the models were loaded with.
    """

    def __init__(
        self,
        models: Mapping[str, vt.VisionModel],
        folders: Mapping[str, Path],
        memory_gb: float | None = None,
        load_options: Mapping[str, Any] | None = None,
        data: str | Mapping[str, str] | None = None,
    ) -> None:
        self.session = Session(models, memory_gb, load_options)
        self.runs = {name: RunFolder(folder, data, models) for name, folder in folders.items()}
        photos = [(render_scene(kind, start), scene.title) for kind, scene in SCENES.items() for start in scene.starts]
        self.start_content = completion.describe_models(self.session.models) | {
            "runs": [{"id": name, "title": folder.title} for name, folder in self.runs.items()],
            "scenes": [{"picture": photo.picture, "title": f"{photo.name}, {title}"} for photo, title in photos],
            "limits": {"bytes": MOST_BYTES, "tasks": MOST_TASKS},
        }
        self.arriving, self.uploads = asyncio.Semaphore(_MOST_ARRIVING), asyncio.Semaphore(_MOST_UPLOADS)
        self.long = WorkQueue("vitreous jobs", MOST_QUEUED, low_priority=True)
        self.short = WorkQueue("vitreous questions", _MOST_SHORT)
        self.decoders = [(WorkQueue("vitreous uploads", _MOST_UPLOADS), Decoder()) for _ in range(_NUM_DECODERS)]
        self._workers = [self.long, self.short, *(worker for worker, _ in self.decoders)]

    def drop(self) -> None:
        """Take no more work, and let all there is end at its next report of progress."""
        for worker in self._workers:
            worker.end()
        for _, decoder in self.decoders:
            decoder.close()

    def close(self, seconds: float = 1.0) -> bool:
        """Stop all work; return whether all of it has ended within some seconds."""
        self.drop()
        ended = [worker.join(seconds) for worker in self._workers]
        return all(ended)

    async def static(self, name: str) -> Response:
        """Return a file of the page: one of those that lie beside each other in its folder, and nothing else."""
        files = {path.name: path for path in _STATIC.iterdir() if path.suffix in _MEDIA_TYPES and path.is_file()}
        if name not in files:
            raise Refused(404, f"there is no file {name!r:.60}")
        return Response(files[name].read_bytes(), media_type=_MEDIA_TYPES[files[name].suffix])

    async def icon(self) -> Response:
        return Response(status_code=204)

    # -- short questions -------------------------------------------------------------------------------

    def question(self, schema: type[S], answer: Callable[[Session, S], Any]) -> Endpoint:
        """Return what answers a short question that comes as JSON."""

        async def respond(request: Request) -> Response:
            question = parse(schema.model_validate, await read_json(request))
            return json_response(await self._short(request, lambda: answer(self.session, question)))

        return respond

    async def start(self) -> Response:
        return json_response(self.start_content)

    async def methods(self, request: Request, model: str = "") -> Response:
        return json_response(await self._short(request, lambda: completion.list_methods(self.session.model(model))))

    async def classes(self, request: Request, model: str = "", q: str = "") -> Response:
        list_classes = completion.list_classes
        return json_response(await self._short(request, lambda: list_classes(self.session.model(model), q[:200])))

    async def picture(self, request: Request, picture: str, model: str | None = None) -> Response:
        name = next(iter(self.session.models)) if model is None else model
        draw = functools.partial(self.session.model_input, name, picture)
        content = await self._short(request, lambda: png_bytes(draw(), compress_level=3))
        return Response(content, media_type="image/png")

    async def upload(self, request: Request, name: str = "picture") -> Response:
        async with AsyncExitStack() as stack:  # each may hold much, and fifty at once more than there is
            data = await read_body(request, MOST_BYTES, lambda: stack.enter_async_context(self.arriving))
            await stack.enter_async_context(self.uploads)
            worker, decoder = min(self.decoders, key=lambda pair: pair[0].num_jobs)
            add = functools.partial(self.session.add_photo, data, name[:200], decoder)
            photo = await run_soon(worker, lambda job: add(), request.is_disconnected)
        size = {"width": photo.image.width, "height": photo.image.height}
        return json_response({"picture": photo.picture, "name": photo.name, **size})

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
        wanted = parse(schemas.Download.model_validate, await read_json(request))
        count = len(wanted.questions)

        def write(job: QueuedWork) -> tuple[bytes, str | None, str]:
            maps = [
                self.session.explain(question, job.part(index / count, (index + 1) / count)).explanation
                for index, question in enumerate(wanted.questions)
            ]
            content, ending = export.encode_maps(wanted.format, maps, wanted.look)
            return content, export.MEDIA_TYPES.get(ending), export.file_name(maps, ending)

        worker = self.short if all(map(self.session.has_map, wanted.questions)) else self.long
        content, media_type, name = await run_soon(worker, write, request.is_disconnected)
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=media_type or "application/octet-stream", headers=headers)


def create_app(explorer: Explorer, token: str | None, names: Sequence[str] | None) -> Guard:
    """Return the app behind its guard."""
    app, question = new_app(explorer.runs), explorer.question
    routes: dict[tuple[str, str], Endpoint] = {
        ("GET", "/"): functools.partial(explorer.static, "index.html"),
        ("GET", "/static/{name}"): explorer.static,
        ("GET", "/favicon.ico"): explorer.icon,
        ("GET", "/api/start"): explorer.start,
        ("GET", "/api/methods"): explorer.methods,
        ("GET", "/api/classes"): explorer.classes,
        ("GET", "/api/pictures/{picture}"): explorer.picture,
        ("POST", "/api/pictures"): explorer.upload,
        ("POST", "/api/predict"): question(schemas.Question, handlers.predict),
        ("POST", "/api/try"): question(schemas.Removal, handlers.remove),
        ("POST", "/api/method"): question(schemas.PartialSpec, handlers.describe_spec),
        ("POST", "/api/command"): question(schemas.CommandRequest, export.write_commands),
        ("POST", "/api/ask"): explorer.ask,
        ("POST", "/api/download"): explorer.download,
    }
    for (verb, path), endpoint in routes.items():
        app.add_api_route(path, endpoint, methods=[verb], response_model=None)
    return Guard(app, token, names)


def new_app(folders: Mapping[str, RunFolder]) -> FastAPI:
    """Return an app that knows the addresses of runs, and says in one line what goes wrong."""
    # its own pages fetch from elsewhere, it may tell others what it does, and believes the name that it is called by
    silent: Any = dict.fromkeys(("tracing", "metrics", "logs", "auto_configure"), False)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, telemetry=silent)
    app.state.runs = folders
    app.include_router(runs.routes)
    for error in (VitreousError, OSError, RequestValidationError, 404, 405):
        app.add_exception_handler(error, _explain)
    return app


async def _explain(request: Request, error: Exception) -> Response:
    """Answer with one line about what went wrong."""
    if isinstance(error, HTTPException):
        is_missing = error.status_code == 404
        message = "there is nothing at this address" if is_missing else f"{request.method} is not for this address"
        return json_response({"error": message}, error.status_code)
    if isinstance(error, RequestValidationError):
        return json_response({"error": schemas.first_error(error.errors())}, 422)
    return json_response({"error": one_line(str(error))[:500]}, getattr(error, "status", 404))
