"""Reports of a run: one page and its tables, from whatever is finished. ``docs/bench.md`` shows how."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.changes import commands
from vitreous.benchmark.data import ImageSource
from vitreous.benchmark.protocol import ReportLayout
from vitreous.benchmark.report_images import ReportImages, best_and_worst, draw_figures
from vitreous.benchmark.reproduction import Reproduction
from vitreous.benchmark.results import (
    PROTOCOL_FILE,
    describe_run,
    describe_state,
    read_results,
    result_files,
)
from vitreous.benchmark.significance import LEVEL
from vitreous.benchmark.store import Store
from vitreous.benchmark.summary import Flag
from vitreous.errors import VitreousError
from vitreous.html import render
from vitreous.methods import get_method
from vitreous.registry.defaults import CONTROLS, display_name
from vitreous.results.storage import comma_separated

SCHEMA = "vitreous.report/1"
_MOST_WITH_IMAGES = 6
"""Models of a report that have pictures: a page must open on a phone."""
_AXES = ("data", "models", "methods", "metrics")
_MODEL_SECTIONS = ("scores", "ranks", "figures", "differences", "metrics", "cost", "pictures")


@dataclass(frozen=True)
class Report:
    """What was written: the folder, its files, and what it says in short."""

    folder: Path
    files: tuple[str, ...]
    lead: str
    state: str
    notes: tuple[str, ...]
    results: tuple[ModelResult, ...]
    reproduction: Reproduction | None

    @property
    def page(self) -> Path:
        return self.folder / "report.html"


def report(
    run: str | Path,
    out: str | Path | None = None,
    *,
    reference: str | None = None,
    data: str | None = None,
    overwrite: bool = True,
) -> Report:
    """Write the report of a run, finished or not, into ``out`` (by default, ``report`` inside the run's folder).

    ``reference`` is the row that others are tested against, if not the protocol's. ``data`` is where the images are
    now; where they cannot be opened, the report has no images in it, and says so. A report of ours that is there
    already is replaced, anything else is not.
    """
    store = Store.open(run)
    folder = Path(run) / "report" if out is None else Path(out)
    disk.check_folder(folder, overwrite)
    manifest = store.manifest() or {}
    results, source = read_results(store, reference=reference, data=data)
    wanted = manifest["wanted"]
    reproduction = Reproduction.of(results, wanted) if results[0].protocol.cells else None
    files = result_files(results)
    if reproduction is not None:
        files["reproduction.csv"] = comma_separated(reproduction.rows).encode(errors="surrogateescape")
        files["reproduction.md"] = reproduction.to_markdown().encode(errors="surrogateescape")
    notes = [f"no pictures in the report: {source.why}"] if source.why else []
    if "scores.parquet" not in files:
        notes.insert(0, "no scores.parquet: pyarrow is not installed (pip install 'vitreous[bench]')")
    lead, state = describe_run(results), describe_state(results)
    file = str(folder.resolve() / PROTOCOL_FILE)
    protocol, threads = results[0].protocol, results[0].scores.config.threads
    page = render(
        "benchmark.html",
        title=protocol.title,
        protocol=protocol,
        manifest=manifest,
        lead=f"{lead} {state}".strip(),
        links=_links(results),
        overview=_overview(results),
        reproduction=reproduction,
        models=[_model(result, source, number) for number, result in enumerate(results)],
        unreadable={name: why for result in results for name, why in result.scores.unreadable.items()},
        commands=commands(protocol, wanted, str(run), threads, file),
        files=tuple(files),
        controls=CONTROLS,
        level=LEVEL,
        display_name=display_name,
    )
    with disk.folder(folder, overwrite=overwrite) as draft:
        draft.write("report.html", page.encode(errors="replace"))
        for name, content in files.items():
            draft.write(name, content)
        draft.finish({"schema": SCHEMA, "run": str(run)})
    return Report(folder, ("report.html", *files), lead, state, tuple(notes), results, reproduction)


def _links(results: Sequence[ModelResult]) -> list[tuple[str, str]]:
    """Return the anchors of a page and their words; those that are not on it are left out there."""
    if len(results) > 1:
        own = [(f"m{number}", result.name) for number, result in enumerate(results, 1)]
    else:
        own = [(f"m1-{word}", word) for word in _MODEL_SECTIONS]
    ends = [(name, name) for name in ("unreadable", "settings", "again")]
    return [("overview", "whole table"), ("reproduction", "beside the paper"), *own, *ends]


# -- one model -----------------------------------------------------------------------------------------------


def _model(result: ModelResult, source: ImageSource, number: int) -> dict[str, Any]:
    """Return what the page has of a model."""
    units, infos = result.scores.units, [done.info for done in result.scores.units]
    context: dict[str, Any] = {
        "result": result,
        "plans": Counter((done.plan.revision, done.plan.why) for done in units),
        "devices": Counter(done.device for done in units),
        "threads": Counter(info.get("threads", "") for info in infos),
        "versions": Counter(done.versions for done in units),
        "retried": sum(bool(info.get("retried")) for info in infos),
        "is_audited": any(info.get("audit") is not None for info in infos),
    }
    if result.is_empty:
        return context
    return context | {
        "figures": draw_figures(result),
        "images": best_and_worst(result, source) if number < _MOST_WITH_IMAGES else ReportImages(),
        "flags": _merged_flags(result),
        "costs": [_cost(result, name) for name in result.table.methods],
        "correlations": [pair for pair in result.statistics.correlations if not math.isnan(pair.value)],
    }


def _cost(result: ModelResult, name: str) -> dict[str, Any]:
    """Return what a method costs: passes by its definition, and the measured seconds per map, in all and by itself."""
    cost = result.scores.costs.get(name)
    seconds = [] if cost is None or not cost.maps else [(cost.own + cost.shared) / cost.maps, cost.own / cost.maps]
    try:
        method = get_method(result.scores.config.methods[name])
    except VitreousError:  # maps of others, or a plugin that is not here
        return {"method": name, "passes": (math.nan, math.nan), "note": "not ours", "seconds": seconds}
    note = "" if method.info.cost_note == "base" else method.info.cost_note
    return {"method": name, "passes": method.cost, "note": note, "seconds": seconds}


def _merged_flags(result: ModelResult) -> list[tuple[str, str, str, str]]:
    """Return kind, methods, metrics and text of all flags; what is said of several methods or metrics is said once."""
    statistics = result.statistics
    flags = [flag for flag in (*statistics.shared, *statistics.flags) if flag.method not in CONTROLS]
    for name, reasons in result.scores.failed.items():
        image, why = next(iter(reasons.items()))
        flags.append(Flag("failed", name, "", f"on {len(reasons)} pictures, such as {image}: {why}"))
    methods: dict[tuple[str, str, str], list[str]] = {}
    for flag in flags:
        methods.setdefault((flag.kind, flag.text, flag.metric), []).append(flag.method)
    metrics: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (kind, text, metric), names in methods.items():
        metrics.setdefault((kind, text, tuple(names)), []).append(metric)
    return [
        (kind, _names(rows, result.rows), _names(columns, result.table.metrics), text)
        for (kind, text, rows), columns in metrics.items()
    ]


def _names(names: Sequence[str], all_names: Sequence[str]) -> str:
    """Return names in a row, or that it is all of them; one that is empty stands for all."""
    if "" in names or (len(all_names) > 1 and set(names) == set(all_names)):
        return "all"
    return ", ".join(map(display_name, names))


# -- all models together -------------------------------------------------------------------------------------


def _overview(results: Sequence[ModelResult]) -> dict[str, Any] | None:
    """Return all means in one table, laid out as the protocol says; nothing where there is one model and data set."""
    layout = results[0].protocol.layout
    cells = [cell for result in results if not result.is_empty for cell in _cells_of(result)]
    if len({id(result) for _, result in cells}) < 2:
        return None
    axes = _column_axes(layout, [names for names, _ in cells])
    rows: dict[str, dict[tuple[str, ...], Any]] = {}
    for names, result in cells:
        top = tuple(names[axis] for axis in axes)
        rows.setdefault(names[layout.rows], {})[top] = result, names["methods"], names["metrics"]
    tops = _in_order([*chain(*rows.values())])
    return {
        "axis": layout.rows.removesuffix("s"),
        "heads": [_head(dict(zip(axes, top, strict=True)), cells) for top in tops],
        "rows": {name: [row.get(top) for top in tops] for name, row in rows.items()},
    }


def _column_axes(layout: ReportLayout, cells: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the axes of the columns: those that the layout forgets and that have several values come first."""
    varying = [axis for axis in _AXES if axis != layout.rows and len({names[axis] for names in cells}) > 1]
    asked = [axis for axis in layout.columns if axis in varying]
    return [axis for axis in varying if axis not in asked] + asked or ["metrics"]


def _cells_of(result: ModelResult) -> list[tuple[dict[str, str], ModelResult]]:
    """Return every cell of a model by its names on all axes."""
    names, table = {"models": result.scores.label, "data": result.scores.data}, result.table
    return [
        ({**names, "methods": method, "metrics": metric}, result)
        for method in table.methods
        for metric in table.metrics
    ]


def _in_order(tops: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return columns once each, those that begin alike side by side, in the order of their first appearance."""
    levels = [list(dict.fromkeys(top[level] for top in tops)) for level in range(len(tops[0]))]
    return sorted(dict.fromkeys(tops), key=lambda top: [names.index(n) for names, n in zip(levels, top, strict=True)])


def _head(names: Mapping[str, str], cells: Iterable[tuple[Mapping[str, str], ModelResult]]) -> dict[str, Any]:
    """Return the head of a column: its names, the outer one first, and which way is up where that is one way."""
    metrics = {(result, cell["metrics"]) for cell, result in cells if names.get("metrics") in (None, cell["metrics"])}
    ways = {result.table.higher_is_better[metric] for result, metric in metrics}
    is_up = next(iter(ways))
    arrow = "" if len(ways) > 1 else " ↑" if is_up else " ↓"
    words = [f"{name}{arrow}" if axis == "metrics" else name for axis, name in names.items()]
    return {"words": list(map(display_name, words)), "is_up": is_up}
