"""The figures of a table: one at a time, or a folder of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous import disk
from vitreous.errors import VitreousError, nearest
from vitreous.metrics.bins import THIN
from vitreous.results import drawings
from vitreous.results import sweep as sweeps
from vitreous.results.strips import states_strip
from vitreous.show import figures

if TYPE_CHECKING:
    from vitreous.results.table import Table

__all__ = ["KINDS", "SCHEMA", "plot", "save_figures", "states_strip"]

SCHEMA = "vitreous.figures/1"
_FROM_PICTURES = ("strips", "cascade")

KINDS: dict[str, Callable[..., figures.Figure]] = {
    "curves": drawings.curves,
    "bins": drawings.bins,
    "bars": drawings.bars,
    "sweep": sweeps.sweep,
    "histogram": sweeps.histogram,
    "matrix": drawings.matrix,
    "layers": drawings.matrix,
    "radar": drawings.radar,
}


def plot(
    table: Table,
    kind: str | None,
    metric: str | None,
    methods: Sequence[str] | None,
    path: str | Path | None,
    overwrite: bool,
    options: Mapping[str, Any],
) -> figures.Figure:
    """Draw one figure of a table: see ``Table.plot``."""
    if kind in _FROM_PICTURES:
        raise VitreousError(f"a table keeps no pictures: draw {kind} with vitreous.show.figures.{kind}")
    if kind is not None and kind not in KINDS:
        raise VitreousError(f"kind={kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    figures.require()
    if path is not None:
        if Path(path).suffix.lower() not in figures.FORMATS:
            raise VitreousError(f"could not write {path}: a figure must end in one of {', '.join(figures.FORMATS)}")
        disk.check_file(path, overwrite)
    chosen = table.methods if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
    if not chosen:
        raise VitreousError("there are no methods to draw")
    if kind != "radar":
        metric = drawings.metric_of(table, metric)
        for each in chosen:
            table[each, metric]
    if kind is None:
        kind = "curves" if any(table.curves.get((each, str(metric))) for each in chosen) else "bars"
    draw = KINDS[kind]
    known = list(inspect.signature(draw).parameters)[3:]
    for option in options:
        if option not in known:
            raise VitreousError(f"{kind} has no option {option!r}, but {', '.join(known)}{nearest(option, known)}")
    figure = draw(table, metric, chosen, **options)
    if path is not None:
        figures.save(figure, path, overwrite=overwrite)
    return figure


def save_figures(table: Table, folder: str | Path, *, overwrite: bool = False) -> list[str]:
    """Write the figures of every metric into a new folder, as SVG; return the names of the files.

    Bars for every metric, curves where they were kept, and bins where at least two of them would not be thin.
    """
    figures.require()
    written: list[dict[str, str]] = []
    with disk.folder(folder, overwrite=overwrite) as draft:
        for metric in table.metrics:
            for kind, options in _worth_drawing(table, metric).items():
                figure = plot(table, kind, metric, None, None, False, options)
                name = _name(f"{disk.slug(metric)}-{kind}", [each["file"] for each in written])
                draft.write(name, figures.encoded(figure, name))
                written.append({"file": name, "kind": kind, "metric": disk.slug(metric)})
        draft.finish({"schema": SCHEMA, "figures": written})
    return [each["file"] for each in written]


def _name(stem: str, taken: Sequence[str]) -> str:
    """Return a name that no other figure has: two spellings may look alike once brackets are gone."""
    names = [f"{stem}{more}.svg" for more in ("", *(f"-{number}" for number in range(2, len(taken) + 3)))]
    low = [each.lower() for each in taken]
    return next(name for name in names if name.lower() not in low)


def _worth_drawing(table: Table, metric: str) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {"bars": {}}
    if any(table.curves.get((method, metric)) for method in table.methods):
        kinds["curves"] = {}
    count = min(10, len(table.images) // THIN)
    if count >= 2 and "pred" in table.confidence:
        kinds["bins"] = {"count": count, "by": "mass"}
    return kinds
