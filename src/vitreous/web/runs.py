"""Benchmark runs over HTTP: their tables, the scores of every picture, and the pictures with their maps.

Only the folders that were named at the start are readable, and a run, a picture, a method is called by what the server
itself has listed; no name is ever a path. Answers are cut into pages, so that a run of any size fits a browser.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from vitreous.errors import VitreousError, one_line
from vitreous.models import VisionModel
from vitreous.results.storage import plain
from vitreous.web.run_store import Data, Photos
from vitreous.web.run_view import Filters, Opened, Part, Run
from vitreous.web.security import Refused

__all__ = ["router", "titles"]

Name = Annotated[str, Query(max_length=1000)]
Number = Annotated[int, Query(ge=0, le=10**6)]
Class = Annotated[int | None, Query(ge=0, le=10**9)]
Share = Annotated[float, Query(ge=0, le=1)]
Order = Literal["worst", "best"]


class _Route(APIRoute):
    """Answers what goes wrong with one line of words."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                first = error.errors()[0]
                what = ".".join(str(each) for each in first["loc"][1:]) or "the request"
                return _error(422, f"{what}: {first['msg']}")
            except Refused as error:
                return _error(error.status, str(error))
            except (VitreousError, OSError) as error:
                return _error(404, str(error))

        return told


def _error(status: int, words: str) -> Response:
    return JSONResponse({"error": one_line(words)[:500]}, status)


def _filters(
    predicted: Class = None,
    true: Class = None,
    low: Share = 0.0,
    high: Share = 1.0,
    correct: Literal["yes", "no"] | None = None,
    name: Annotated[str, Query(max_length=200)] = "",
) -> Filters:
    return Filters(predicted, true, low, high, None if correct is None else correct == "yes", name)


Wanted = Annotated[Filters, Depends(_filters)]


def titles(runs: Mapping[str, Path]) -> list[dict[str, str]]:
    """Return the runs by their ids, with what they are called."""
    return [{"id": name, "title": Run(path).title} for name, path in runs.items()]


def router(runs: Mapping[str, Path], data: Data = None, views: Mapping[str, VisionModel] | None = None) -> APIRouter:
    """Return the addresses under ``/api/runs``.

    ``data`` is where the pictures of the runs are, one place or one for each label of a data set; ``views`` are the
    loaded models, among which that of a run is found by its weights.
    """
    known = {name: Run(Path(path), data, views) for name, path in runs.items()}
    routes = APIRouter(prefix="/api/runs", route_class=_Route)

    def opened(run: str) -> Opened:
        if run not in known:
            raise Refused(404, f"there is no run {run!r:.60}")
        return known[run].opened()

    def part_of(run: str, number: int) -> Part:
        return opened(run).part(number)

    def photos_of(run: str, number: int, picture: str) -> tuple[Part, Photos]:
        part = part_of(run, number)
        part.row(picture)
        if part.photos is None:
            raise Refused(404, part.why)
        return part, part.photos

    def whole(run: str) -> Response:
        return JSONResponse({"id": run, **opened(run).table})

    def scores(
        run: str,
        wanted: Wanted,
        method: Annotated[list[str], Query(min_length=1, max_length=4)],
        metric: Annotated[list[str], Query(min_length=1, max_length=4)],
        part: Number = 0,
        most: Annotated[int, Query(ge=1, le=20_000)] = 5000,
    ) -> Response:
        return JSONResponse(_scores(part_of(run, part), wanted, method, metric, most))

    def cell(
        run: str,
        wanted: Wanted,
        method: Name,
        metric: Name,
        part: Number = 0,
        order: Order = "worst",
        page: Number = 0,
        size: Annotated[int, Query(ge=1, le=60)] = 24,
    ) -> Response:
        return JSONResponse(_cell_page(part_of(run, part), wanted, method, metric, order, page, size))

    def image(
        run: str,
        wanted: Wanted,
        picture: Name,
        part: Number = 0,
        method: Name = "",
        metric: Name = "",
        order: Order = "worst",
    ) -> Response:
        return JSONResponse(_image(part_of(run, part), wanted, picture, method, metric, order))

    def picture(run: str, picture: Name, part: Number = 0) -> Response:
        found, photos = photos_of(run, part, picture)
        made = photos.png(found.finding.scores.config, picture, None if found.loaded is None else found.loaded[1])
        return Response(made, media_type="image/png", headers={"Cache-Control": "private, max-age=600"})

    def photo(run: str, picture: Name, part: Number = 0) -> Response:
        _, photos = photos_of(run, part, picture)
        return Response(photos.photo(picture), media_type="application/octet-stream")

    each: Callable[..., Response]
    for path, each in (
        ("/{run}", whole),
        ("/{run}/scores", scores),
        ("/{run}/cell", cell),
        ("/{run}/image", image),
        ("/{run}/picture", picture),
        ("/{run}/photo", photo),
    ):
        routes.add_api_route(path, each, methods=["GET"], response_class=Response)
    return routes


def _scores(part: Part, wanted: Filters, methods: list[str], metrics: list[str], most: int) -> dict[str, Any]:
    """Return some columns of scores, of at most so many pictures: every n-th where there are more."""
    if len(methods) != len(metrics):
        raise Refused(422, f"{len(methods)} methods and {len(metrics)} metrics are no pairs")
    columns = [part.scores(*pair) for pair in zip(methods, metrics, strict=True)]
    rows = np.flatnonzero(part.chosen(wanted) & ~np.isnan(columns).any(axis=0))
    shown = rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]
    facts = part.facts
    return {
        "total": len(rows),
        "pictures": [part.finding.scores.digests[row] for row in shown],
        "names": [part.images[row] for row in shown],
        "columns": [
            {"method": method, "metric": metric, "scores": plain(column[shown]), "mean": _mean(column[rows])}
            for method, metric, column in zip(methods, metrics, columns, strict=True)
        ],
        "confidence": plain(facts.confidence[shown]),
        "predicted": facts.predicted[shown].tolist(),
        "true": facts.true[shown].tolist(),
        "correct": facts.correct[shown].tolist(),
    }


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def _cell_page(
    part: Part, wanted: Filters, method: str, metric: str, order: str, page: int, size: int
) -> dict[str, Any]:
    """Return a page of the pictures behind a cell, with the maps that were judged."""
    values = part.scores(method, metric)
    rows = part.ordered(method, metric, order, wanted)
    shown = rows[page * size : (page + 1) * size]
    return {
        "total": len(rows),
        "of": len(part.images),
        "without": int(np.isnan(values).sum()),
        "mean": _mean(values[rows]),
        "page": page,
        "pages": -(-len(rows) // size),
        "signed": part.titled(method)["signed"],
        "images": [
            {**part.about(row), "score": float(values[row]), "map": part.map(row, method, metric)} for row in shown
        ],
    }


def _image(part: Part, wanted: Filters, picture: str, method: str, metric: str, order: str) -> dict[str, Any]:
    """Return everything about one picture, and its neighbours in the order of a cell."""
    row, found = part.row(picture), part.finding.table
    method, metric = method or found.methods[0], metric or found.metrics[0]
    rows = part.ordered(method, metric, order, wanted)
    place = rows.index(row) if row in rows else None
    beside = {} if place is None else {"previous": place - 1, "next": place + 1}
    names = part.finding.scores.digests
    return {
        **part.about(row),
        "place": place,
        "total": len(rows),
        **{way: names[rows[at]] if 0 <= at < len(rows) else None for way, at in beside.items()},
        "methods": [
            {
                **part.titled(name),
                "map": part.map(row, name, metric),
                "scores": {each: plain(part.scores(name, each)[row]) for each in found.metrics},
            }
            for name in found.methods
        ],
        "curves": [
            {"name": name, "x": plain(curve.x), "y": plain(curve.y[row]), "mean": plain(np.nanmean(curve.y, axis=0))}
            for name, curve in found.curves.get((method, metric), {}).items()
            if not np.isnan(curve.y[row]).any()
        ],
    }
