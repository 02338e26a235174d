"""The ledger: every printed cell of a paper beside ours, and the named causes of a deviation, worked out from facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from vitreous.benchmark.protocol import DataSpec, ModelSpec, Protocol, Published, read, shipped
from vitreous.benchmark.report_parts import Cell, card, escape, interval, note, number, section, table
from vitreous.benchmark.summary import Finding
from vitreous.errors import VitreousError
from vitreous.methods import get_method
from vitreous.metrics import Metric, get_metric
from vitreous.metrics.similarity import rank_correlation
from vitreous.results import ScoreTable
from vitreous.results.table import markdown

__all__ = ["Agreement", "Ledger", "Line"]

_SIMILAR = ("drawn", "the first")  # causes that the interval allows for already
_PREPARED = ("size", "resize", "crop", "interpolation", "mean", "std")


@dataclass(frozen=True)
class Line:
    """A printed cell and ours. ``verdict``: ``agrees``, ``differs`` or ``no number``, with the causes in words."""

    data: str
    model: str
    method: str
    metric: str
    printed: float
    published: float
    ours: float
    low: float
    high: float
    images: int
    verdict: str
    causes: tuple[str, ...]

    @property
    def difference(self) -> float:
        return self.ours - self.published

    @property
    def brief(self) -> tuple[str, ...]:
        """The causes without the name of the paper's model, which stands in the row."""
        return tuple(c.partition(" instead of ")[0] if c.startswith("other model") else c for c in self.causes)

    def beside(self, everywhere: Sequence[str]) -> str:
        """What is to be said about it where some causes have been named for all cells."""
        told = [each for each in self.brief if each not in everywhere]
        if not everywhere or self.verdict == "no number":
            return self.words
        return "; ".join(["agrees within the interval" if self.verdict == "agrees" else "differs", *told])

    @property
    def words(self) -> str:
        """What is to be said about it, in a line."""
        told = "; ".join(self.causes)
        if self.verdict == "agrees":
            return f"agrees within the interval{f', though: {told}' if told else ''}"
        unexplained = all(
            cause.startswith("other images") and any(w in cause for w in _SIMILAR) for cause in self.causes
        )
        if self.verdict == "differs" and unexplained:
            return "; ".join(filter(None, [told, "not explained by anything else that is known"]))
        return told


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of our column with the paper's, over the methods that have both numbers."""

    data: str
    model: str
    metric: str
    methods: int
    value: float


@dataclass(frozen=True)
class Ledger:
    """All cells of a protocol that the paper printed, in its order; ``figures`` says what it only draws."""

    protocol: Protocol
    lines: tuple[Line, ...]
    agreements: tuple[Agreement, ...]
    figures: tuple[str, ...]

    @classmethod
    def of(cls, findings: Sequence[Finding], wanted: Mapping[str, Any]) -> Ledger:
        """Set every printed cell beside ours. ``wanted`` is what the run's manifest says."""
        ran = findings[0].protocol
        paper = read(ran.name) if ran.name in shipped() else ran
        lines = tuple(_Pair(paper, cell, findings, wanted).line() for cell in paper.cells)
        shown = dict.fromkeys(cell.source for cell in paper.published if cell.value is None and cell.source)
        return cls(paper, lines, tuple(_agreements(lines)), tuple(shown))

    @property
    def rows(self) -> list[list[str]]:
        """One row of text per cell, a head first."""
        head = ["data", "model", "method", "metric", "printed", "paper", "ours", "low", "high", "difference"]
        head += ["images", "verdict", "why"]
        body = []
        for each in self.lines:
            numbers = (each.printed, each.published, each.ours, each.low, each.high, each.difference)
            told = ["" if math.isnan(value) else f"{value:.6g}" for value in numbers]
            names = [each.data, each.model, each.method, each.metric]
            body.append([*names, *told, str(each.images), each.verdict, each.words])
        return [head, *body]

    @property
    def summary(self) -> str:
        counts = {word: sum(each.verdict == word for each in self.lines) for word in ("agrees", "differs", "no number")}
        told = f"{len(self.lines)} printed cells: {counts['agrees']} agree within our 95 % interval"
        return f"{told}, {counts['differs']} differ, {counts['no number']} have no number of ours."

    def to_markdown(self) -> str:
        protocol = self.protocol
        top = f"# Ledger of {protocol.name}\n\n{protocol.title}\n\n{self.summary}\n"
        if protocol.note:
            top += f"\n{' '.join(protocol.note.split())}\n"
        if self.figures:
            top += f"\nWithout printed numbers: {', '.join(self.figures)}.\n"
        text = f"{top}\n{markdown(self.rows)}"
        if self.agreements:
            found = [["data", "model", "metric", "methods", "rank correlation"]]
            found += [[a.data, a.model, a.metric, str(a.methods), number(a.value, 2)] for a in self.agreements]
            text += f"\n## Our order and the paper's\n\n{markdown(found)}"
        return text

    def html(self) -> str:
        """Return the section of the page."""
        if not self.lines:
            return ""
        everywhere = self.everywhere
        names = ["model", "method", "metric", "paper", "ours", "difference", "why"]
        head = [Cell(name, kind="n" if name in ("paper", "ours", "difference") else "") for name in names]
        rows = []
        for each in self.lines:
            model = f"{escape(each.model)}{f'<small>{escape(each.data)}</small>' if each.data else ''}"
            ours = f"{number(each.ours)}<small>{interval(each.low, each.high)}</small>"
            kind = {"agrees": "good", "differs": "weak"}.get(each.verdict, "")
            rows.append(
                [
                    Cell(model, f"{each.model} {each.data}"),
                    Cell(escape(each.method)),
                    Cell(escape(each.metric)),
                    Cell(number(each.published), each.published, "n"),
                    Cell(ours, each.ours, "n"),
                    Cell(number(each.difference), each.difference, "n"),
                    Cell(f'<span class="{kind}">{escape(each.beside(everywhere))}</span>', each.words),
                ]
            )
        found = []
        for own in self.agreements:
            model = f"{escape(own.model)}{f'<small>{escape(own.data)}</small>' if own.data else ''}"
            values = [Cell(str(own.methods), own.methods, "n"), Cell(number(own.value, 2), own.value, "n")]
            found.append([Cell(model, f"{own.model} {own.data}"), Cell(escape(own.metric)), *values])
        heads = [Cell("model"), Cell("metric"), Cell("methods", kind="n"), Cell("rank correlation", kind="n")]
        text = f"{self.summary} Published numbers stand in the metric's own unit."
        if everywhere:
            text += f" Known to differ in all of them: {'; '.join(everywhere)}."
        more = note(f"Without printed numbers: {', '.join(self.figures)}.") if self.figures else ""
        order = card(table(heads, found), "Our order of the methods and the paper's") if found else ""
        cells = card(table(head, rows) + more, "Cell by cell", "gap" if order else "")
        return section("ledger", "Beside the paper", text, order + cells)

    @property
    def everywhere(self) -> tuple[str, ...]:
        """The causes that hold for every cell that has a number of ours, so that a page need say them once."""
        told = [each.brief for each in self.lines if each.verdict != "no number"]
        return tuple(cause for cause in told[0] if all(cause in each for each in told)) if len(told) > 2 else ()


def _agreements(lines: Sequence[Line]) -> list[Agreement]:
    columns: dict[tuple[str, str, str], list[Line]] = {}
    for each in lines:
        if not (math.isnan(each.ours) or math.isnan(each.published)):
            columns.setdefault((each.data, each.model, each.metric), []).append(each)
    found = []
    for key, own in columns.items():
        if len(own) > 2:  # any two are in the same order, or in the opposite one
            ours, theirs = (np.array([[getattr(e, what) for e in own]]) for what in ("ours", "published"))
            found.append(Agreement(*key, len(own), float(rank_correlation(ours, theirs)[0])))
    return found


class _Pair:
    """One printed cell, and what of the run stands beside it."""

    def __init__(
        self, paper: Protocol, cell: Published, findings: Sequence[Finding], wanted: Mapping[str, Any]
    ) -> None:
        self.paper, self.cell, self.wanted = paper, cell, wanted
        of_data = [finding for finding in findings if finding.gathered.data == cell.data]
        same = [each for each in of_data if each.gathered.label == cell.model]
        known = {model.label for model in paper.models}
        another = [each for each in of_data if each.gathered.label not in known]  # a model of one's own
        self.finding = same[0] if same else another[0] if len(another) == 1 else None
        self.metric = self._metric()

    def _metric(self) -> str | None:
        """Return our column: the same metric, or else the only one that differs from it in counts alone.

        Where the paper prints one column of that name, the only one of ours may differ in other settings too.
        """
        if self.finding is None:
            return None
        names, known = self.finding.gathered.setting.metrics, self.cell.metric
        if known in names:
            return known
        printed = {
            cell.metric for cell in self.paper.cells if get_metric(cell.metric).info.name == get_metric(known).info.name
        }
        same = (lambda how: get_metric(how).info.name) if len(printed) == 1 else (lambda how: _kind(get_metric(how)))
        alike = [name for name, how in names.items() if same(how) == same(known)]
        return alike[0] if len(alike) == 1 else None

    def line(self) -> Line:
        cell, finding = self.cell, self.finding
        ours = low = high = math.nan
        images, causes = 0, self._no_number()
        if finding is not None and not causes:
            assert self.metric is not None
            ours = finding.table.mean(cell.method, self.metric)
            low, high = finding.table.interval(cell.method, self.metric)
            images = self._pictures(finding.table, cell.method, self.metric)
            causes = () if not math.isnan(ours) else ("no picture has a score yet",)
        assert cell.value is not None
        verdict = "no number"
        if not math.isnan(ours):
            error = cell.error or 0.0
            verdict = "agrees" if low - error <= cell.value <= high + error else "differs"
            causes = tuple(self._causes(images))
        printed = cell.value if cell.printed is None else cell.printed
        names = cell.data, cell.model, cell.method, cell.metric
        return Line(*names, printed, cell.value, ours, low, high, images, verdict, causes)

    def _pictures(self, table: ScoreTable, method: str, metric: str) -> int:
        """Return how many pictures have a score, as protocols count them: grids, photographs with several objects."""
        assert self.finding is not None
        there, protocol = ~np.isnan(table[method, metric]), self.finding.protocol
        labels = [each.label for each in (protocol.data, *protocol.also)]
        sources: dict[str, dict[str, Any]] = dict(zip(labels, self.wanted.get("sources", ()), strict=False))
        told = sources.get(self.finding.gathered.data, {})
        if table.groups is None or told.get("images") == told.get("entries"):
            return int(there.sum())
        return len(set(np.array(table.groups)[there].tolist()))

    def _no_number(self) -> tuple[str, ...]:
        cell = self.cell
        if cell.method in self.paper.absent:
            return (f"no method here: {self.paper.absent[cell.method]}",)
        if self.finding is None:
            spec = self._spec
            needs = f", it requires {', '.join(spec.requires)}" if spec is not None and spec.requires else ""
            return (f"this model was not run{needs}",)
        if self.finding.empty:
            return ("nothing of it is finished yet",)
        if cell.method not in self.finding.table.methods:
            return ("this method was not run on this model",)
        if self.metric is None or self.metric not in self.finding.table.metrics:
            return ("this metric was not run",)
        return ()

    @property
    def _spec(self) -> ModelSpec | None:
        return next((model for model in self.paper.models if model.label == self.cell.model), None)

    @property
    def _data(self) -> DataSpec:
        return next(each for each in (self.paper.data, *self.paper.also) if each.label == self.cell.data)

    def _causes(self, images: int) -> list[str]:
        assert self.finding is not None
        return [*self._of_model(), *self._of_images(images), *self._of_method(), *self._of_metric()]

    def _of_model(self) -> list[str]:
        assert self.finding is not None
        setting, spec = self.finding.gathered.setting, self._spec
        name = str(setting.model.get("name", setting.label))
        if setting.label != self.cell.model or (spec is not None and spec.name != name):
            return [f"other model: {name} instead of {spec.name if spec else self.cell.model}"]
        causes = []
        file = (self.wanted.get("checkpoint") or {}).get(setting.label) or setting.model.get("checkpoint")
        if file and (spec is None or file != spec.checkpoint):
            causes.append(f"other weights: those of {file} (digest {setting.fingerprint[:12]})")
        theirs = {each: getattr(spec, each) for each in _PREPARED}
        ours = {each: setting.model.get(each) for each in _PREPARED}
        changed = [each for each in _PREPARED if _listed(theirs[each]) != _listed(ours[each])]
        if changed:
            told = ", ".join(f"{each} {ours[each] or 'own'} instead of {theirs[each] or 'own'}" for each in changed)
            causes.append(f"other preprocessing: {told}")
        return causes

    def _of_images(self, images: int) -> list[str]:
        assert self.finding is not None
        wanted, gathered = self._data, self.finding.gathered
        sets = (self.finding.protocol.data, *self.finding.protocol.also)
        ran = next((set_ for set_ in sets if set_.label == gathered.data), wanted)
        causes = []
        asked = self.wanted.get("images")
        if wanted.images and images < wanted.images:
            causes.append(f"fewer images: {images} instead of {wanted.images}")
        elif not wanted.images and (asked or ran.images):
            causes.append(f"fewer images: {images}, not all")
        if gathered.unreadable:
            causes.append(f"other images: {len(gathered.unreadable)} could not be read")
        if (ran.source, ran.split, ran.path) != (wanted.source, wanted.split, wanted.path):
            causes.append(f"other images: {ran.source} instead of {wanted.source}")
        elif ran.choose == "random":
            causes.append(f"other images: drawn with seed {ran.seed}, the paper lists none")
        elif ran.choose == "first" and (asked or ran.images):
            causes.append("other images: the first ones, the paper lists none")
        return causes

    def _of_method(self) -> list[str]:
        assert self.finding is not None
        setting, label = self.finding.gathered.setting, self.cell.method
        causes, ours, theirs = [], setting.methods[label], self.paper.methods.get(label)
        try:
            how = get_method(ours)
        except VitreousError:
            return [f"other method: {ours} instead of {theirs}"] if ours != theirs else []
        if theirs is not None and how.spec != get_method(theirs).spec:
            causes.append(f"other method setting: {ours} instead of {theirs}")
        for part in how.components():
            told = str(getattr(part, "notes", {}).get("statistics", ""))
            if told.startswith(("world", "noise", "own")):
                causes.append(f"other statistics: noise of {part.info.name} from {told}")
        return causes

    def _of_metric(self) -> list[str]:
        assert self.finding is not None
        assert self.metric is not None
        setting, causes = self.finding.gathered.setting, []
        ours, theirs = get_metric(setting.metrics[self.metric]), get_metric(self.cell.metric)
        if ours.spec != theirs.spec:
            causes.append(f"other metric setting: {ours.spec} instead of {theirs.spec}")
        if setting.target != self.paper.evaluation.target:
            causes.append(f"other class explained: {setting.target} instead of {self.paper.evaluation.target}")
        if (setting.class_subset is not None) != (self._data.class_subset == "own"):
            causes.append("other softmax: over other classes")
        if setting.precision != self.paper.evaluation.precision:
            causes.append(f"other precision: {setting.precision}")
        return causes


def _kind(how: Metric) -> tuple[str, dict[str, Any]]:
    """Return what a metric measures: its name and its settings but for counts, such as how many steps there are."""
    own = {field.name: getattr(how, field.name) for field in fields(how)}
    return how.info.name, {name: value for name, value in own.items() if type(value) not in (int, float)}


def _listed(value: Any) -> Any:
    return tuple(value) or None if isinstance(value, list | tuple) else value
