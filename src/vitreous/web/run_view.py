"""One model on one data set of a run: what is known about every picture, which are chosen, and in which order.

The table of a run as plain data: means with intervals, marks and flags, as the report prints them.

A run while someone looks at it: read when it is first asked for, and again when it has gone on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.benchmark.collect import collect
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.results import ModelResult, describe_run, describe_state
from vitreous.benchmark.summary import Flag
from vitreous.benchmark.units import RecordedPlan
from vitreous.datasets.class_tables import index_of_wnid  # as the benchmark reads labels
from vitreous.errors import TargetError, VitreousError, one_line
from vitreous.methods import get_method as spelled
from vitreous.models import Snapshot, VisionModel
from vitreous.registry.defaults import CONTROLS, display_name
from vitreous.results.storage import plain
from vitreous.web.run_store import Data, Guarded, Photos, photos_of
from vitreous.web.schemas import encode_array
from vitreous.web.security import Refused

__all__ = [
    "Facts",
    "Filters",
    "Opened",
    "Part",
    "Run",
    "table",
]

Numbers = NDArray[np.int64]
Truths = NDArray[np.bool_]
UNKNOWN = -1


@dataclass(frozen=True)
class Filters:
    """Which pictures are wanted: classes by their numbers, the model's confidence, whether it was right, a name."""

    predicted: int | None = None
    true: int | None = None
    low: float = 0.0
    high: float = 1.0
    correct: bool | None = None
    name: str = ""


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known about every picture, row by row; -1 and NaN where it is not.

    ``confidence`` is the probability of the predicted class, ``chance`` that of the true one. ``correct`` is 1 or 0.
    """

    confidence: NDArray[np.float64]
    chance: NDArray[np.float64]
    predicted: Numbers
    true: Numbers
    correct: Numbers


class Part:
    """What was found about one model on one data set, and how to look at it."""

    def __init__(
        self,
        finding: ModelResult,
        store: Guarded,
        plans: Sequence[RecordedPlan],
        photos: Photos | str,
        loaded: tuple[str, VisionModel] | None = None,
    ) -> None:
        self.finding, self.loaded = finding, loaded
        self.photos = photos if isinstance(photos, Photos) else None
        self.why = photos if isinstance(photos, str) else ""
        self._store, self._plans, self._maps = store, plans, Lock()

    @property
    def images(self) -> tuple[str, ...]:
        return self.finding.table.images

    @cached_property
    def rows(self) -> dict[str, int]:
        """Where each picture stands, by its digest."""
        return {picture: row for row, picture in enumerate(self.finding.scores.digests)}

    def row(self, picture: str) -> int:
        if picture not in self.rows:
            raise Refused(404, f"no picture {picture!r:.60} in {self.finding.name}")
        return self.rows[picture]

    def scores(self, method: str, metric: str) -> NDArray[np.float64]:
        """Return the score of every picture; what is not in the table is a refusal."""
        try:
            return self.finding.table[method, metric]
        except VitreousError as error:
            raise Refused(404, str(error)[:300]) from None

    # -- what is known -----------------------------------------------------------------------------------

    @cached_property
    def facts(self) -> Facts:
        table = self.finding.table
        nothing = np.full(len(self.images), math.nan)
        pred, label = (table.confidence.get(name, nothing) for name in ("pred", "label"))
        predicted, true = self._classes()
        silent = np.isnan(pred) | np.isnan(label)  # then the classes may tell
        known = (predicted != UNKNOWN) & (true != UNKNOWN)
        by_class = np.where(known, predicted == true, UNKNOWN)
        correct = np.where(silent, by_class, label >= pred).astype(np.int64)
        true = np.where((true == UNKNOWN) & (correct == 1), predicted, true)
        return Facts(pred, label, predicted, true, correct)

    def _classes(self) -> tuple[Numbers, Numbers]:
        """Return the predicted and the true class of every row, as the run or its pictures tell them."""
        predicted, true = (np.full(len(self.images), UNKNOWN, np.int64) for _ in range(2))
        setting = self.finding.scores.config
        where: dict[str, Numbers | None] = {"pred": predicted, "label": true}
        where["given"] = where.get(setting.evaluation.target)
        if self.photos is not None:
            for picture, row in self.rows.items():
                true[row] = self._number(self.photos.entry(picture).label)
        for plan, unit in wanted_units(self._plans):
            if unit.is_scoring or plan.config_of(unit).identity != setting.identity:
                continue
            found = self._store.read_arrays(unit.id, [f"classes/{mode}" for mode in unit.modes])
            for mode in unit.modes if found is not None else ():
                column = where.get(mode)
                assert found is not None
                if column is not None:
                    for picture, number in zip(
                        found.info["images"], found.arrays[f"classes/{mode}"].tolist(), strict=False
                    ):
                        if picture in self.rows:
                            column[self.rows[picture]] = max(int(number), UNKNOWN)
        return predicted, true

    def _number(self, label: Any) -> int:
        """Return the class that a label of the data is, where that can be told."""
        if type(label) is int:
            return label
        if not isinstance(label, str) or self.loaded is None:
            return UNKNOWN
        model = self.loaded[1]
        try:
            return model.class_index(label)
        except TargetError:
            number = index_of_wnid(label) if model.num_classes == 1000 else None
            return UNKNOWN if number is None else number

    def word(self, number: int) -> str:
        """Return what a class is called: by the model where it is loaded, or by the data."""
        if self.loaded is not None:
            return self.loaded[1].label(number)
        words = () if self.photos is None else self.photos.words
        return words[number] if 0 <= number < len(words) else f"class {number}"

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Every class that is predicted or true of some picture, and of how many; by their names."""
        facts = self.facts
        numbers = sorted({*facts.predicted.tolist(), *facts.true.tolist()} - {UNKNOWN})
        counts = [(facts.predicted == n, facts.true == n) for n in numbers]
        found = [
            {"index": n, "label": self.word(n), "predicted": int(said.sum()), "true": int(meant.sum())}
            for n, (said, meant) in zip(numbers, counts, strict=True)
        ]
        return sorted(found, key=lambda each: (str(each["label"]).lower(), each["index"]))

    def about(self, row: int) -> dict[str, Any]:
        """Return what is known about a picture, as plain data."""
        facts = self.facts

        def named(number: int) -> dict[str, Any] | None:
            return None if number == UNKNOWN else {"index": number, "label": self.word(number)}

        return {
            "picture": self.finding.scores.digests[row],
            "name": self.images[row],
            "confidence": plain(facts.confidence[row]),
            "chance": plain(facts.chance[row]),
            "predicted": named(int(facts.predicted[row])),
            "true": named(int(facts.true[row])),
            "correct": None if facts.correct[row] == UNKNOWN else bool(facts.correct[row]),
        }

    # -- choosing ----------------------------------------------------------------------------------------

    def chosen(self, wanted: Filters) -> Truths:
        """Return which rows pass; a picture of which something is not known passes where that is not asked for."""
        facts = self.facts
        passes = np.ones(len(self.images), bool)
        for column, number in ((facts.predicted, wanted.predicted), (facts.true, wanted.true)):
            if number is not None:
                passes &= column == number
        if wanted.low > 0 or wanted.high < 1:
            passes &= (facts.confidence >= wanted.low) & (facts.confidence <= wanted.high)
        if wanted.correct is not None:
            passes &= facts.correct == int(wanted.correct)
        if wanted.name:
            sought = wanted.name.casefold()
            passes &= np.array([sought in name.casefold() for name in self.images], bool).reshape(passes.shape)
        return passes

    def ordered(self, method: str, metric: str, order: str, wanted: Filters) -> list[int]:
        """Return the rows that pass and have a score, worst or best first; equal ones in the order of the table."""
        up = self.finding.table.higher_is_better.get(metric, True) == (order == "worst")
        values = self.scores(method, metric) * (1 if up else -1)
        there = self.chosen(wanted) & ~np.isnan(values)
        return [int(row) for row in np.argsort(values, kind="stable") if there[row]]

    # -- maps --------------------------------------------------------------------------------------------

    def map(self, row: int, method: str, metric: str) -> dict[str, Any] | None:
        """Return the map that a metric judged, as it travels; ``None`` where it is not there (yet)."""
        gathered, judge = self.finding.scores, self.finding.table.judges[metric]
        with self._maps:
            found = gathered.map(gathered.digests[row], method, judge.explain_class)
        return None if found is None or found.ndim != 2 else encode_array(found)

    def titled(self, method: str) -> dict[str, Any]:
        """Return how a method is named and spelled, and what is known about it."""
        spec = self.finding.scores.config.methods[method]
        try:
            how = spelled(spec)
        except VitreousError:  # maps of others, or a plugin that is not here
            how = None
        return {
            "name": method,
            "title": display_name(method),
            "spec": spec,
            "signed": None if how is None or how.signed else False,
            "passes": None if how is None else plain(float(sum(how.cost))),
        }


_MOST_NAMES = 50


def table(part: Part, number: int) -> dict[str, Any]:
    """Return everything about one model and data set but what single pictures have to say."""
    finding = part.finding
    gathered = finding.scores
    lost = {**gathered.unreadable, **gathered.uncertain}
    told: dict[str, Any] = {
        "part": number,
        "name": finding.name,
        "model": gathered.label,
        "data": gathered.data,
        "images": len(finding.table.images),
        "seeds": list(gathered.seeds),
        "loaded": None if part.loaded is None else part.loaded[0],
        "pictures": part.photos is not None,
        "why": part.why,
        "reference": finding.reference,
        "missing": {"wanted": gathered.missing.wanted, "cells": gathered.missing.cells},
        "absent": list(gathered.missing.metrics),
        "left_out": [{"name": name, "why": why} for name, why in list(lost.items())[:_MOST_NAMES]],
        "left_out_count": len(lost),
    }
    if finding.is_empty:
        return {**told, "methods": [], "metrics": [], "cells": [], "flags": [], "notes": [], "classes": []}
    found, statistics = finding.table, finding.statistics
    return {
        **told,
        "methods": [_method(part, name) for name in found.methods],
        "metrics": [_metric(finding, metric) for metric in found.metrics],
        "cells": [[_cell(finding, name, metric) for metric in found.metrics] for name in found.methods],
        "flags": [_flag(each) for each in (*statistics.shared, *statistics.flags) if each.method not in CONTROLS],
        "notes": list(statistics.notes),
        "classes": part.classes,
    }


def _method(part: Part, name: str) -> dict[str, Any]:
    finding = part.finding
    counts, cost = finding.table.degenerate[name], finding.scores.costs.get(name)
    return {
        **part.titled(name),
        "quiet": name in CONTROLS,
        "reference": name == finding.reference,
        "seconds": None if cost is None or not cost.maps else (cost.own + cost.shared) / cost.maps,
        "degenerate": ", ".join(f"{count} {kind}" for kind, count in counts.items() if count),
    }


def _metric(finding: ModelResult, metric: str) -> dict[str, Any]:
    column, trial = finding.column(metric), finding.table.trial[metric]
    return {
        "name": metric,
        "up": column.higher_is_better,
        "digits": column.digits,
        "span": None if column.span == (0.0, 0.0) else list(column.span),
        "chance": plain(column.chance),
        "trial": None if trial is None else {"verdict": trial.verdict, "text": str(trial)},
    }


def _cell(finding: ModelResult, name: str, metric: str) -> dict[str, Any] | None:
    cell = finding.cell(name, metric)
    if cell is None:
        return None
    return {
        "mean": cell.mean,
        "low": plain(cell.low),
        "high": plain(cell.high),
        "images": cell.images,
        "best": cell.is_best,
        "word": cell.word or None,
        "stars": cell.stars,
        "p": plain(cell.p),
        "letters": cell.letters,
        "mark": cell.shared or None,
        "paper": cell.paper,
        "seed_sd": plain(cell.seed_sd),
    }


def _flag(flag: Flag) -> dict[str, str]:
    return {"kind": flag.kind, "method": flag.method, "metric": flag.metric, "text": flag.text}


_RESTS, _SHARE = 3.0, 10.0  # seconds between two looks at a folder; times as long as reading it took
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Opened:
    """A run as it was at one moment."""

    title: str
    parts: tuple[Part, ...]
    damaged: tuple[str, ...]

    def part(self, number: int) -> Part:
        if number >= len(self.parts):
            raise Refused(404, f"this run has {len(self.parts)} parts, counted from 0; there is no {number}")
        return self.parts[number]

    @cached_property
    def table(self) -> dict[str, Any]:
        """Everything that the first page of a run shows."""
        findings = [part.finding for part in self.parts]
        tables = [table(part, number) for number, part in enumerate(self.parts)]
        return {
            "title": self.title,
            "lead": describe_run(findings),
            "state": describe_state(findings),
            "notes": self._notes,
            "parts": tables,
        }

    @property
    def _notes(self) -> list[str]:
        if not self.damaged:
            return []
        some, more = ", ".join(self.damaged[:_SHOWN]), len(self.damaged) - _SHOWN
        many = f"{some}{f' and {more} more' if more > 0 else ''}"
        return [f"Damaged, and left out: {many}. The command that made the run makes damaged units again."]


class Run:
    """A folder that was named at the start."""

    def __init__(self, path: Path, data: Data = None, views: Mapping[str, VisionModel] | None = None) -> None:
        self.path, self.data, self.views = path, data, views or {}
        self._guard = Lock()
        self._opened: Opened | None = None
        self._state: tuple[Any, ...] = ()
        self._next = 0.0

    @property
    def title(self) -> str:
        """What the run is called, without reading more than its first file."""
        try:
            return _title(_manifest(Guarded(self.path)), self.path)
        except Exception:  # what is wrong is said when it is opened
            return one_line(self.path.name)

    def opened(self) -> Opened:
        """Return the run as it is now, or was a moment ago; what cannot be read is one line."""
        with self._guard:
            if self._opened is None or time.monotonic() >= self._next:
                self._refresh()
            assert self._opened is not None
            return self._opened

    def _refresh(self) -> None:
        store, began = Guarded(self.path), time.monotonic()
        now = store.state
        if self._opened is None or now != self._state:
            try:
                self._opened = self._read(store)
            except Exception as error:  # a foreign folder can break a reader anywhere
                self._opened = None
                raise Refused(409, f"{self.path.name}: {_reason(error)}") from None
        took = time.monotonic() - began
        self._state, self._next = now, time.monotonic() + max(_RESTS, _SHARE * took)

    def _read(self, store: Guarded) -> Opened:
        manifest = _manifest(store)
        protocol = store.protocol()
        plans = store.plans()
        photos = photos_of(protocol, manifest["wanted"], plans, self.data)
        known = {label: photo for label, photo in photos.items() if not isinstance(photo, str)}
        findings = [ModelResult.of(each, protocol) for each in collect(store, known)]
        if not findings:
            raise VitreousError("there is no plan for what its run.json asks for: start the run again")
        parts = []
        for finding in findings:
            own = photos.get(finding.scores.data, "the run has no such data set")
            parts.append(Part(finding, store, plans, own, self._loaded(finding)))
            parts[-1].facts  # noqa: B018 - read now, so that all damage is known
        opened = Opened(_title(manifest, self.path), tuple(parts), tuple(sorted(store.damaged)))
        opened.table  # noqa: B018 - what cannot be told is told here, once
        return opened

    def _loaded(self, finding: ModelResult) -> tuple[str, VisionModel] | None:
        """Return the loaded model with the weights of this part."""
        own = finding.scores.config.fingerprint
        return next((each for each in self.views.items() if str(Snapshot(each[1]).recent) == own), None)


def _manifest(store: Guarded) -> dict[str, Any]:
    manifest = store.manifest()
    if manifest is None:
        raise VitreousError("this folder is no run: there is no run.json in it")
    return manifest


def _title(manifest: Mapping[str, Any], path: Path) -> str:
    title = manifest["wanted"]["protocol"]["title"]
    return one_line(title)[:200] if isinstance(title, str) and title else one_line(path.name)


def _reason(error: Exception) -> str:
    if isinstance(error, VitreousError):
        return one_line(str(error))[:300]
    return one_line(f"this run cannot be read: {type(error).__name__} {error}")[:300]
