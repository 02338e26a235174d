"""What a run has found, in Python: tables that print and show themselves, finished or not."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import overload

from vitreous import io as disk
from vitreous.benchmark.report import findings_of, lead, state
from vitreous.benchmark.store import Store
from vitreous.benchmark.summary import Finding
from vitreous.errors import VitreousError
from vitreous.registry.defaults import display_name
from vitreous.results import ScoreTable
from vitreous.results.table import comma_separated, html_rows

__all__ = ["BenchmarkResults", "load_run"]

_LEGEND = "Means with 95 % intervals. Better than random: * 5 %, ** 1 %, *** 0.1 %; ≈ not told apart from it, ▾ worse."
_MARK = "◆ the method asks about pictures changed as the metric changes them."


class BenchmarkResults(Sequence[Finding]):
    """One part for each model and data set: its ``table``, ``statistics`` and what was ``gathered``.

    At a prompt and in a notebook it shows means with intervals and the marks of the report.
    """

    def __init__(self, run: Path, parts: Sequence[Finding]) -> None:
        self.run, self.parts = run, tuple(parts)

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, place: int) -> Finding: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Finding, ...]: ...

    def __getitem__(self, place: int | slice) -> Finding | tuple[Finding, ...]:
        return self.parts[place]

    @property
    def lead(self) -> str:
        """What was measured, in one sentence, and how much of it is missing."""
        return f"{lead(self.parts)} {state(self.parts)}".strip()

    def table(self, model: str | None = None, data: str | None = None) -> ScoreTable:
        """Return the table of a model on a data set, as ``evaluate`` gives it; name them where there are several."""
        fits = [
            part for part in self.parts if model in (None, part.gathered.label) and data in (None, part.gathered.data)
        ]
        if len(fits) != 1:
            names = ", ".join(part.name for part in self.parts)
            many = "several parts" if fits else "no part"
            raise VitreousError(f"model={model!r} and data={data!r} name {many} of this run; there is {names}")
        return fits[0].table

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False, overwrite: bool = False) -> str:
        """Return one line per part, method and metric, or per image too; with a path, also write them there."""
        rows: list[list[str]] = []
        for each in self._full:
            head, *body = csv.reader(io.StringIO(each.table.to_csv(per_image=per_image)))
            rows = rows or [["data", "model", *head]]
            rows[0] = max(rows[0], ["data", "model", *head], key=len)  # a part may have several seeds, another one
            rows += [[each.gathered.data, each.gathered.label, *row] for row in body]
        text = comma_separated([[*row, *[""] * (len(rows[0]) - len(row))] for row in rows])
        if path is not None:
            disk.write_file(Path(path), text.encode(errors="surrogateescape"), overwrite=overwrite)
        return text

    @property
    def _full(self) -> list[Finding]:
        return [part for part in self.parts if not part.empty]

    def __str__(self) -> str:
        parts = [f"{each.name}\n{each.table}" if len(self.parts) > 1 else str(each.table) for each in self._full]
        return "\n\n".join([self.lead, *parts])

    def __repr__(self) -> str:
        return f"Results of {self.run}\n{self}"

    def _repr_html_(self) -> str:
        tables = "".join(_shown(each) for each in self._full)
        legend = f"{_LEGEND} {_MARK}" if any(each.statistics.marks for each in self._full) else _LEGEND
        return f"<p>{escape(self.lead)}</p>{tables}<p>{escape(legend)}</p>"


def load_run(run: str | Path, *, reference: str | None = None, data: str | None = None) -> BenchmarkResults:
    """Return what a benchmark run has found so far.

    ``run`` is its folder. ``reference`` is the row that others are tested against, if not the protocol's; ``data`` is
    where the pictures are now, if not where the run had them: rows that show one photograph are resampled together.
    """
    store = Store.open(run)
    return BenchmarkResults(Path(run), findings_of(store, reference=reference, data=data)[0])


def _shown(finding: Finding) -> str:
    found = finding.table
    more = ["between seeds"] if found.seed_sd else []
    arrows = {name: "↑" if up else "↓" for name, up in found.higher_is_better.items()}
    head = ["method", *(each for name, arrow in arrows.items() for each in (f"{name} {arrow}", *more))]
    rows = [
        [display_name(name), *(cell for metric in found.metrics for cell in _cells(finding, name, metric))]
        for name in found.methods
    ]
    return html_rows([head, *rows], f"{finding.name}, {len(found.images)} pictures")


def _cells(finding: Finding, name: str, metric: str) -> list[str]:
    """Return a cell, and the deviation between seeds where there are several."""
    deviation = finding.table.seed_sd.get((name, metric))
    told = [] if deviation is None else ["–" if math.isnan(deviation) else f"{deviation:.{finding.digits(metric)}f}"]
    return [_cell(finding, name, metric), *told]


def _cell(finding: Finding, name: str, metric: str) -> str:
    found, statistics = finding.table, finding.statistics
    mean, ends, digits = found.mean(name, metric), found.interval(name, metric), finding.digits(metric)
    if math.isnan(mean):
        return "–"
    test = statistics.test(name, statistics.chance, metric)
    word = "" if test is None else test.word
    sign = {"better": f"{test.stars} " if test else "", "worse": "▾ ", "not told apart": "≈ "}.get(word, "")
    between = "" if math.isnan(ends[0]) else f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"
    shared = any((mark.method, mark.metric) == (name, metric) for mark in statistics.marks)
    best = " (best)" if name == found.best(metric) else ""
    return f"{sign}{mean:.{digits}f}{between}{best}{' ◆' if shared else ''}"
