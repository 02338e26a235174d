"""Benchmark runs over HTTP: their tables, the scores of every image, and the images with their maps.

Only the folders that were named at the start are readable, and a run, an image, a method is called by what the server
itself has listed; no name is ever a path. Answers are cut into pages, so that a run of any size fits a browser.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from vitreous.results.storage import to_plain
from vitreous.web import Refused
from vitreous.web.run_view import Filters, OpenedRun, RunPart
from vitreous.web.security import json_response

Name = Annotated[str, Field(max_length=1000)]
Number = Annotated[int, Field(ge=0, le=10**6)]
Names = Annotated[list[str], Field(min_length=1, max_length=4)]
Order = Literal["worst", "best"]


class ImageQuery(Filters):
    """An image among others, in the order of a cell of the table."""

    picture: Name
    method: Name = ""
    metric: Name = ""
    order: Order = "worst"


class CellQuery(Filters):
    """A page of the images behind a cell of the table."""

    method: Name
    metric: Name
    order: Order = "worst"
    page: Number = 0
    size: Annotated[int, Field(ge=1, le=60)] = 24


class ScoresQuery(Filters):
    """Some columns of scores, of at most so many images: every n-th where there are more."""

    method: Names
    metric: Names
    most: Annotated[int, Field(ge=1, le=20_000)] = 5000


def opened_run(request: Request, run: str) -> OpenedRun:
    """Return the run of an address; the folders of runs belong to the app."""
    folders = request.app.state.runs
    if run not in folders:
        raise Refused(404, f"there is no run {run!r:.60}")
    return folders[run].opened()  # type: ignore[no-any-return]


Run = Annotated[OpenedRun, Depends(opened_run)]


def part_of(run: Run, part: Number = 0) -> RunPart:
    """Return the part of a run that an address asks for."""
    return run.part(part)


Part = Annotated[RunPart, Depends(part_of)]


def table(request: Request, opened: Run) -> Response:
    """Answer with the table of a run."""
    return json_response({"id": request.path_params["run"], **opened.table})


def picture(part: Part, picture: Name) -> Response:
    """Answer with an image as the model sees it."""
    headers = {"Cache-Control": "private, max-age=600"}
    return Response(part.png(picture), media_type="image/png", headers=headers)


def photo(part: Part, picture: Name) -> Response:
    """Answer with the file of an image."""
    return Response(part.photo(picture), media_type="application/octet-stream")


def scores(part: Part, query: Annotated[ScoresQuery, Query()]) -> Response:
    """Answer with the scores of every image for pairs of methods and metrics."""
    if len(query.method) != len(query.metric):
        raise Refused(422, f"{len(query.method)} methods and {len(query.metric)} metrics are no pairs")
    columns = [part.scores(*pair) for pair in zip(query.method, query.metric, strict=True)]
    rows = np.flatnonzero(part.passes(query) & ~np.isnan(columns).any(axis=0))
    sample = rows
    if len(rows) > query.most:
        sample = rows[np.linspace(0, len(rows) - 1, query.most).round().astype(int)]
    content = {
        "total": len(rows),
        "pictures": [part.digests[row] for row in sample],
        "names": [part.names[row] for row in sample],
        "columns": [
            {"method": method, "scores": to_plain(column[sample]), "mean": _mean(column[rows])}
            for method, column in zip(query.method, columns, strict=True)
        ],
    }
    return json_response(content | {name: to_plain(column[sample]) for name, column in part.facts.items()})


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def cell(part: Part, query: Annotated[CellQuery, Query()]) -> Response:
    """Answer with a page of the images behind a cell, with the maps that were scored."""
    values = part.scores(query.method, query.metric)
    rows = part.ordered(query.method, query.metric, query.order, query)
    images = [
        {**part.describe(row), "score": float(values[row]), "map": part.map(row, query.method, query.metric)}
        for row in rows[query.page * query.size : (query.page + 1) * query.size]
    ]
    content = {
        "total": len(rows),
        "of": len(part.names),
        "without": int(np.isnan(values).sum()),
        "mean": _mean(values[rows]),
        "page": query.page,
        "pages": -(-len(rows) // query.size),
        "signed": part.describe_method(query.method)["signed"],
        "images": images,
    }
    return json_response(content)


def image(part: Part, query: Annotated[ImageQuery, Query()]) -> Response:
    """Answer with everything about one image, and its neighbours in the order of a cell."""
    row, scored = part.row(query.picture), part.result.table
    method, metric = query.method or scored.methods[0], query.metric or scored.metrics[0]
    rows = part.ordered(method, metric, query.order, query)
    index = rows.index(row) if row in rows else None
    neighbours: dict[str, str | None] = {}
    if index is not None:
        around = [None, *(part.digests[other] for other in rows), None]
        neighbours = {"previous": around[index], "next": around[index + 2]}
    methods = [
        {
            **part.describe_method(name),
            "map": part.map(row, name, metric),
            "scores": {other: to_plain(part.scores(name, other)[row]) for other in scored.metrics},
        }
        for name in scored.methods
    ]
    curves = [
        to_plain({"name": name, "x": curve.x, "y": curve.y[row], "mean": np.nanmean(curve.y, axis=0)})
        for name, curve in scored.curves.get((method, metric), {}).items()
        if not np.isnan(curve.y[row]).any()
    ]
    content = {"index": index, "total": len(rows), "methods": methods, "curves": curves}
    return json_response(part.describe(row) | neighbours | content)


routes = APIRouter(prefix="/api/runs")
"""The addresses of runs, for an app whose ``state.runs`` has their folders by name."""

_ENDPOINTS: tuple[Callable[..., Response], ...] = (scores, cell, image, picture, photo)
routes.add_api_route("/{run}", table, response_class=Response)
for _endpoint in _ENDPOINTS:
    routes.add_api_route(f"/{{run}}/{_endpoint.__name__}", _endpoint, response_class=Response)
