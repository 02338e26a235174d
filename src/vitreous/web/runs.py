"""Benchmark runs over HTTP: their tables, the scores of every image, and the images with their maps.

Only the folders that were named at the start are readable, and a run, an image, a method is called by what the server
itself has listed; no name is ever a path. Answers are cut into pages, so that a run of any size fits a browser.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from vitreous.errors import VitreousError, one_line
from vitreous.models import VisionModel
from vitreous.results.storage import to_plain
from vitreous.web.run_store import Data
from vitreous.web.run_view import Filters, OpenedRun, RunFolder, RunPart
from vitreous.web.schemas import first_error
from vitreous.web.security import Refused

__all__ = ["router", "titles"]

Name = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=0, le=10**6)]
Names = Annotated[list[str], Field(min_length=1, max_length=4)]
Order = Literal["worst", "best"]


class PictureQuery(BaseModel):
    """An image of one model on one data set."""

    picture: Name
    part: Number = 0


class ImageQuery(Filters):
    """The same among others, in the order of a cell of the table."""

    picture: Name
    part: Number = 0
    method: Name = ""
    metric: Name = ""
    order: Order = "worst"


class CellQuery(Filters):
    """A page of the images behind a cell of the table."""

    method: Name
    metric: Name
    part: Number = 0
    order: Order = "worst"
    page: Number = 0
    size: Annotated[int, Field(ge=1, le=60)] = 24


class ScoresQuery(Filters):
    """Some columns of scores, of at most so many images: every n-th where there are more."""

    method: Names
    metric: Names
    part: Number = 0
    most: Annotated[int, Field(ge=1, le=20_000)] = 5000


class _Route(APIRoute):
    """Answers what goes wrong with one line of words."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def explained(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _error(422, first_error(error.errors()))
            except Refused as error:
                return _error(error.status, str(error))
            except (VitreousError, OSError) as error:
                return _error(404, str(error))

        return explained


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": one_line(message)[:500]}, status)


def titles(runs: Mapping[str, Path]) -> list[dict[str, str]]:
    """Return the runs by their ids, with what they are called."""
    return [{"id": name, "title": RunFolder(path).title} for name, path in runs.items()]


def router(runs: Mapping[str, Path], data: Data = None, models: Mapping[str, VisionModel] | None = None) -> APIRouter:
    """Return the addresses under ``/api/runs``.

    ``data`` is where the images of the runs are, one place or one for each label of a data set; ``models`` are the
    loaded models, among which that of a run is found by its weights.
    """
    folders = {name: RunFolder(Path(path), data, models) for name, path in runs.items()}
    routes = APIRouter(prefix="/api/runs", route_class=_Route)

    def opened(run: str) -> OpenedRun:
        if run not in folders:
            raise Refused(404, f"there is no run {run!r:.60}")
        return folders[run].opened()

    def table(run: str) -> Response:
        return JSONResponse({"id": run, **opened(run).table})

    def scores(run: str, query: Annotated[ScoresQuery, Query()]) -> Response:
        return JSONResponse(_scores(opened(run).part(query.part), query))

    def cell(run: str, query: Annotated[CellQuery, Query()]) -> Response:
        return JSONResponse(_cell_page(opened(run).part(query.part), query))

    def image(run: str, query: Annotated[ImageQuery, Query()]) -> Response:
        return JSONResponse(_image(opened(run).part(query.part), query))

    def picture(run: str, query: Annotated[PictureQuery, Query()]) -> Response:
        png = opened(run).part(query.part).png(query.picture)
        return Response(png, media_type="image/png", headers={"Cache-Control": "private, max-age=600"})

    def photo(run: str, query: Annotated[PictureQuery, Query()]) -> Response:
        content = opened(run).part(query.part).photo(query.picture)
        return Response(content, media_type="application/octet-stream")

    answers: dict[str, Callable[..., Response]] = {
        "/{run}": table,
        "/{run}/scores": scores,
        "/{run}/cell": cell,
        "/{run}/image": image,
        "/{run}/picture": picture,
        "/{run}/photo": photo,
    }
    for path, answer in answers.items():
        routes.add_api_route(path, answer, methods=["GET"], response_class=Response)
    return routes


def _scores(part: RunPart, query: ScoresQuery) -> dict[str, Any]:
    if len(query.method) != len(query.metric):
        raise Refused(422, f"{len(query.method)} methods and {len(query.metric)} metrics are no pairs")
    columns = [part.scores(*pair) for pair in zip(query.method, query.metric, strict=True)]
    rows = np.flatnonzero(part.passes(query) & ~np.isnan(columns).any(axis=0))
    sample = rows
    if len(rows) > query.most:
        sample = rows[np.linspace(0, len(rows) - 1, query.most).round().astype(int)]
    facts = part.facts
    return {
        "total": len(rows),
        "pictures": [part.digests[row] for row in sample],
        "names": [part.names[row] for row in sample],
        "columns": [
            {"method": method, "metric": metric, "scores": to_plain(column[sample]), "mean": _mean(column[rows])}
            for method, metric, column in zip(query.method, query.metric, columns, strict=True)
        ],
        "confidence": to_plain(facts.confidence[sample]),
        "predicted": facts.predicted[sample].tolist(),
        "true": facts.true[sample].tolist(),
        "correct": facts.correct[sample].tolist(),
    }


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def _cell_page(part: RunPart, query: CellQuery) -> dict[str, Any]:
    """Return a page of the images behind a cell, with the maps that were scored."""
    values = part.scores(query.method, query.metric)
    rows = part.ordered(query.method, query.metric, query.order, query)
    images = []
    for row in rows[query.page * query.size : (query.page + 1) * query.size]:
        map_ = part.map(row, query.method, query.metric)
        images.append({**part.describe(row), "score": float(values[row]), "map": map_})
    return {
        "total": len(rows),
        "of": len(part.names),
        "without": int(np.isnan(values).sum()),
        "mean": _mean(values[rows]),
        "page": query.page,
        "pages": -(-len(rows) // query.size),
        "signed": part.describe_method(query.method)["signed"],
        "images": images,
    }


def _image(part: RunPart, query: ImageQuery) -> dict[str, Any]:
    """Return everything about one image, and its neighbours in the order of a cell."""
    row, table = part.row(query.picture), part.result.table
    method, metric = query.method or table.methods[0], query.metric or table.metrics[0]
    rows = part.ordered(method, metric, query.order, query)
    place = rows.index(row) if row in rows else None
    neighbours: dict[str, str | None] = {}
    if place is not None:
        around = [None, *(part.digests[other] for other in rows), None]
        neighbours = {"previous": around[place], "next": around[place + 2]}
    return {
        **part.describe(row),
        "place": place,
        "total": len(rows),
        **neighbours,
        "methods": [
            {
                **part.describe_method(name),
                "map": part.map(row, name, metric),
                "scores": {other: to_plain(part.scores(name, other)[row]) for other in table.metrics},
            }
            for name in table.methods
        ],
        "curves": [
            to_plain({"name": name, "x": curve.x, "y": curve.y[row], "mean": np.nanmean(curve.y, axis=0)})
            for name, curve in table.curves.get((method, metric), {}).items()
            if not np.isnan(curve.y[row]).any()
        ],
    }
