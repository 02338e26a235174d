"""A run while someone looks at it: read when it is first asked for, and again when it has gone on.

Of each model on each data set: its table, as the report has it, what is known about every image, which images are
chosen, and in which order.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from vitreous.benchmark.cells import ModelResult
from vitreous.benchmark.collect import collect
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.results import describe_run, describe_state
from vitreous.benchmark.units import RecordedPlan
from vitreous.datasets.class_tables import index_of_wnid  # as the benchmark reads labels
from vitreous.errors import TargetError, VitreousError, one_line
from vitreous.methods import get_method
from vitreous.models import Snapshot, VisionModel
from vitreous.registry.defaults import CONTROLS, display_name
from vitreous.results.storage import to_plain
from vitreous.web import Refused
from vitreous.web.run_store import Data, RunImages, SafeStore, find_images
from vitreous.web.schemas import attributes, encode_array

Integers = NDArray[np.int64]
Column = NDArray[Any]
Floats = NDArray[np.float64]
UNKNOWN = -1
_MOST_NAMES = 50
_RESTS, _SHARE = 3.0, 10.0  # seconds between two looks at a folder; times as long as reading it took
_MOST_DAMAGED = 3

ClassIndex = Annotated[int | None, Field(ge=0, le=10**9)]


class Filters(BaseModel):
    """Which images are wanted: classes by their indices, the model's confidence, whether it was right, a name."""

    predicted: ClassIndex = None
    true: ClassIndex = None
    lower: Annotated[float, Field(ge=0, le=1, alias="low")] = 0.0
    upper: Annotated[float, Field(ge=0, le=1, alias="high")] = 1.0
    correct: Literal["yes", "no"] | None = None
    name: Annotated[str, Field(max_length=200)] = ""


class RunPart:
    """The results of one model on one data set, and how to look at them; ``images`` may be a reason why there are none.

    ``model`` is the loaded model with the same weights, ``model_name`` its name, if there is one. ``facts`` are columns
    of what is known about every image, -1 and NaN where it is not: ``predicted`` and ``true`` class, the probability of
    each (``confidence``, ``true_confidence``), and whether the model was ``correct``, 1 or 0.
    """

    def __init__(
        self,
        result: ModelResult,
        store: SafeStore,
        plans: Sequence[RecordedPlan],
        images: RunImages | str,
        model_name: str | None,
        model: VisionModel | None,
    ) -> None:
        self.result, self.images, self._store, self._plans, self._lock = result, images, store, plans, Lock()
        self.model_name, self.model = model_name, model
        self.names, self.digests = result.table.images, result.scores.digests
        self.rows = {digest: row for row, digest in enumerate(self.digests)}
        self.facts = self._facts()

    def row(self, picture: str) -> int:
        if picture not in self.rows:
            raise Refused(404, f"no picture {picture!r:.60} in {self.result.name}")
        return self.rows[picture]

    def scores(self, method: str, metric: str) -> Floats:
        """Return the score of every image; what is not in the table is a refusal."""
        try:
            return self.result.table[method, metric]
        except VitreousError as error:
            raise Refused(404, str(error)[:300]) from None

    # -- images ------------------------------------------------------------------------------------------

    def _images_with(self, picture: str) -> RunImages:
        self.row(picture)
        if isinstance(self.images, str):
            raise Refused(404, self.images)
        return self.images

    def png(self, picture: str) -> bytes:
        """Return an image as the model sees it."""
        return self._images_with(picture).png(self.result.scores.config, picture, self.model)

    def photo(self, picture: str) -> bytes:
        """Return the bytes of an image."""
        return self._images_with(picture).photo(picture)

    # -- what is known -----------------------------------------------------------------------------------

    def _facts(self) -> dict[str, Column]:
        confidence = self.result.table.confidence
        missing = np.full(len(self.names), math.nan)
        pred, label = (confidence.get(name, missing) for name in ("pred", "label"))
        predicted, true = self._classes()
        by_class = np.where((predicted != UNKNOWN) & (true != UNKNOWN), predicted == true, UNKNOWN)
        has_both = ~np.isnan(pred) & ~np.isnan(label)  # else the classes may tell
        correct = np.where(has_both, label >= pred, by_class).astype(np.int64)
        true = np.where((true == UNKNOWN) & (correct == 1), predicted, true)
        classes = {"predicted": predicted, "true": true, "correct": correct}
        return {"confidence": pred, "true_confidence": label, **classes}

    def _classes(self) -> tuple[Integers, Integers]:
        """Return the predicted and the true class of every row, as the run or its images have them."""
        predicted, true = (np.full(len(self.names), UNKNOWN, np.int64) for _ in range(2))
        columns = {"pred": predicted, "label": true}
        target = self.result.scores.config.evaluation.target
        if target in columns:
            columns["given"] = columns[target]
        if isinstance(self.images, RunImages):
            for digest, row in self.rows.items():
                true[row] = self._class_index(self.images.entry(digest).label)
        for mode, digest, index in self._recorded_classes():
            if mode in columns and digest in self.rows:
                columns[mode][self.rows[digest]] = max(index, UNKNOWN)
        return predicted, true

    def _recorded_classes(self) -> Iterator[tuple[str, str, int]]:
        """Give the classes that were explained: of which kind, of which image, which."""
        identity = self.result.scores.config.identity
        for plan, unit in wanted_units(self._plans):
            is_own = not unit.is_scoring and plan.config_of(unit).identity == identity
            names = [f"classes/{mode}" for mode in unit.modes]
            recorded = self._store.read_arrays(unit.id, names) if is_own else None
            if recorded is None:
                continue
            for mode in unit.modes:
                for digest, index in zip(recorded.info["images"], recorded.arrays[f"classes/{mode}"], strict=False):
                    yield mode, digest, int(index)

    def _class_index(self, label: Any) -> int:
        """Return the class that a label of the data is, where that can be told."""
        if type(label) is int:
            return label
        if not isinstance(label, str) or self.model is None:
            return UNKNOWN
        try:
            return self.model.class_index(label)
        except TargetError:
            index = index_of_wnid(label) if self.model.num_classes == 1000 else None
            return UNKNOWN if index is None else index

    def class_name(self, index: int) -> str:
        """Return what a class is called: by the model where it is loaded, or by the data."""
        if self.model is not None:
            return self.model.label(index)
        names = self.images.class_names if isinstance(self.images, RunImages) else ()
        return names[index] if 0 <= index < len(names) else f"class {index}"

    def classes(self) -> list[dict[str, Any]]:
        """Return every class that is predicted or true of some image, and of how many; by their names."""
        counts = {name: Counter(self.facts[name].tolist()) for name in ("predicted", "true")}
        indices = {index for count in counts.values() for index in count if index != UNKNOWN}
        classes = [self._describe_class(i) | {name: count[i] for name, count in counts.items()} for i in indices]
        return sorted(classes, key=lambda entry: (entry["label"].lower(), entry["index"]))

    def _describe_class(self, index: int) -> dict[str, Any]:
        return {"index": index, "label": self.class_name(index)}

    def describe(self, row: int) -> dict[str, Any]:
        """Return what is known about an image, as data."""
        facts = {name: to_plain(column[row]) for name, column in self.facts.items()}
        classes = {name: facts[name] for name in ("predicted", "true")}
        return {
            **facts,
            **{name: None if i == UNKNOWN else self._describe_class(i) for name, i in classes.items()},
            "correct": None if facts["correct"] == UNKNOWN else bool(facts["correct"]),
            "picture": self.digests[row],
            "name": self.names[row],
        }

    def describe_method(self, name: str) -> dict[str, Any]:
        """Return the name, the spec and the facts of a method."""
        spec = self.result.scores.config.methods[name]
        signed = passes = None
        with suppress(VitreousError):  # maps of others, or a plugin that is not here
            method = get_method(spec)
            signed, passes = None if method.signed else False, to_plain(float(sum(method.cost)))
        return {"name": name, "title": display_name(name), "spec": spec, "signed": signed, "passes": passes}

    # -- choosing ----------------------------------------------------------------------------------------

    def passes(self, filters: Filters) -> NDArray[np.bool_]:
        """Return which rows pass; an image of which something is not known passes where that is not asked for."""
        passes = np.ones(len(self.names), bool)
        correct = None if filters.correct is None else int(filters.correct == "yes")
        for name, value in (("predicted", filters.predicted), ("true", filters.true), ("correct", correct)):
            if value is not None:
                passes &= self.facts[name] == value
        if filters.lower > 0 or filters.upper < 1:
            passes &= (self.facts["confidence"] >= filters.lower) & (self.facts["confidence"] <= filters.upper)
        if filters.name:
            sought = filters.name.casefold()
            passes &= np.array([sought in name.casefold() for name in self.names], bool).reshape(passes.shape)
        return passes

    def ordered(self, method: str, metric: str, order: str, filters: Filters) -> list[int]:
        """Return the rows that pass and have a score, worst or best first; equal ones in the order of the table."""
        is_ascending = self.result.table.higher_is_better.get(metric, True) == (order == "worst")
        values = self.scores(method, metric) * (1 if is_ascending else -1)
        has_place = self.passes(filters) & ~np.isnan(values)
        return [int(row) for row in np.argsort(values, kind="stable") if has_place[row]]

    def map(self, row: int, method: str, metric: str) -> dict[str, Any] | None:
        """Return the map that a metric scored; ``None`` where it is not there (yet)."""
        with self._lock:
            mode = self.result.table.definitions[metric].explain_class
            values = self.result.scores.map(self.digests[row], method, mode)
        return None if values is None or values.ndim != 2 else encode_array(values)

    # -- the table ---------------------------------------------------------------------------------------

    def table(self, number: int) -> dict[str, Any]:
        """Return everything but what single images have to say."""
        result, scores = self.result, self.result.scores
        left_out = {**scores.unreadable, **scores.uncertain}
        entry: dict[str, Any] = {
            **attributes(result, "name", "reference"),
            "part": number,
            "model": scores.label,
            "data": scores.data,
            "images": len(self.names),
            "seeds": list(scores.seeds),
            "loaded": self.model_name,
            "pictures": isinstance(self.images, RunImages),
            "why": self.images if isinstance(self.images, str) else "",
            "left_out": [{"name": name, "why": why} for name, why in list(left_out.items())[:_MOST_NAMES]],
            "left_out_count": len(left_out),
        }
        if result.is_empty:
            return entry | {name: [] for name in ("methods", "metrics", "cells", "flags", "notes", "classes")}
        methods, metrics, statistics = result.table.methods, result.table.metrics, result.statistics
        cells = [[result.cell(name, metric) for metric in metrics] for name in methods]
        flags = [*statistics.shared, *statistics.flags]
        return entry | {
            "methods": [self._describe_row(name) for name in methods],
            "metrics": [{"name": column.metric, **_plain_fields(column)} for column in result.columns],
            "cells": [[None if cell is None else _plain_fields(cell) for cell in row] for row in cells],
            "flags": [vars(flag) for flag in flags if flag.method not in CONTROLS],
            "notes": list(statistics.notes),
            "classes": self.classes(),
        }

    def _describe_row(self, name: str) -> dict[str, Any]:
        counts, cost = self.result.table.degenerate[name], self.result.scores.costs.get(name)
        return {
            **self.describe_method(name),
            "quiet": name in CONTROLS,
            "reference": name == self.result.reference,
            "seconds": None if cost is None or not cost.maps else (cost.own + cost.shared) / cost.maps,
            "degenerate": ", ".join(f"{count} {kind}" for kind, count in counts.items() if count),
        }


def _plain_fields(item: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as data."""
    return {name: to_plain(value) for name, value in vars(item).items()}


class OpenedRun(NamedTuple):
    """A run as it was at one moment; ``table`` is everything that its first page shows."""

    parts: Sequence[RunPart]
    table: dict[str, Any]

    def part(self, number: int) -> RunPart:
        if number >= len(self.parts):
            raise Refused(404, f"this run has {len(self.parts)} parts, counted from 0; there is no {number}")
        return self.parts[number]


class RunFolder:
    """A folder that was named at the start."""

    def __init__(self, path: Path, data: Data = None, models: Mapping[str, VisionModel] | None = None) -> None:
        self.path, self.data, self.models = path, data, models or {}
        self._lock = Lock()
        self._opened: OpenedRun | None = None
        self._state: tuple[Any, ...] = ()
        self._next = 0.0

    @property
    def title(self) -> str:
        """What the run is called, without reading more than its first file."""
        try:
            return self._title(_manifest(SafeStore(self.path)))
        except Exception:  # what is wrong is said when it is opened
            return one_line(self.path.name)

    def _title(self, manifest: Mapping[str, Any]) -> str:
        title = manifest["wanted"]["protocol"]["title"]
        return one_line(title)[:200] if isinstance(title, str) and title else one_line(self.path.name)

    def opened(self) -> OpenedRun:
        """Return the run as it is now, or was a moment ago; what cannot be read is one line."""
        with self._lock:
            if self._opened is None or time.monotonic() >= self._next:
                self._refresh()
            assert self._opened is not None
            return self._opened

    def _refresh(self) -> None:
        store, start = SafeStore(self.path), time.monotonic()
        state = store.state
        if self._opened is None or state != self._state:
            try:
                self._opened = self._read(store)
            except Exception as error:  # a folder from elsewhere can break a reader anywhere
                self._opened = None
                reason = str(error) if isinstance(error, VitreousError) else f"{type(error).__name__} {error}"
                prefix = "" if isinstance(error, VitreousError) else "this run cannot be read: "
                raise Refused(409, f"{self.path.name}: {one_line(prefix + reason)[:300]}") from None
        seconds = time.monotonic() - start
        self._state, self._next = state, time.monotonic() + max(_RESTS, _SHARE * seconds)

    def _read(self, store: SafeStore) -> OpenedRun:
        manifest = _manifest(store)
        protocol, plans = store.protocol(), store.plans()
        images = find_images(protocol, manifest["wanted"], plans, self.data)
        lookups = {label: lookup for label, lookup in images.items() if not isinstance(lookup, str)}
        parts = []
        for scores in collect(store, lookups):
            own = images.get(scores.data, "the run has no such data set")
            fingerprint = scores.config.fingerprint
            loaded = (item for item in self.models.items() if str(Snapshot(item[1]).recent) == fingerprint)
            parts.append(RunPart(ModelResult.of(scores, protocol), store, plans, own, *next(loaded, (None, None))))
        if not parts:
            raise VitreousError("there is no plan for what its run.json asks for: start the run again")
        results = [part.result for part in parts]
        table = {
            "title": self._title(manifest),
            "lead": describe_run(results),
            "state": describe_state(results),
            "notes": _notes(sorted(store.damaged)),
            "parts": [part.table(number) for number, part in enumerate(parts)],
        }
        return OpenedRun(parts, table)


def _notes(damaged: Sequence[str]) -> list[str]:
    if not damaged:
        return []
    names, more = ", ".join(damaged[:_MOST_DAMAGED]), len(damaged) - _MOST_DAMAGED
    names += f" and {more} more" if more > 0 else ""
    return [f"Damaged, and left out: {names}. The command that made the run makes damaged units again."]


def _manifest(store: SafeStore) -> dict[str, Any]:
    manifest = store.manifest()
    if manifest is None:
        raise VitreousError("this folder is no run: there is no run.json in it")
    return manifest
