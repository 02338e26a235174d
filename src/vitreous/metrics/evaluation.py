"""Where the answer of each state stands: equal states have one place, whoever asked for them.

What is known about the maps of one method once all states have been run: all that a metric reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vitreous.errors import TargetError, VitreousError
from vitreous.metrics.curves import Array
from vitreous.metrics.ranking import enlarged, finite, patched
from vitreous.metrics.requests import (
    Images,
    ImageShape,
    Masks,
    Measured,
    RankedRemoval,
    Reattribution,
    RenderedStates,
    Request,
    WithoutParts,
)

__all__ = [
    "Evaluation",
    "CLEAN",
    "Common",
    "FULL",
    "Layout",
    "Readings",
    "Run",
    "Told",
    "baselines_of",
]

CLEAN, FULL = -1, -2
"""Places that are not in a map's own block: the clean image and the bare substrate."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """States of one order that differ in their span only."""

    unit: str
    baseline: str
    keep: bool
    spans: tuple[Span, ...]
    start: int
    """Where they begin in the block of answers."""


class Layout:
    """The states of one order, each once, and the place of each in one block of answers."""

    def __init__(self, needs: Iterable[RankedRemoval], image_shape: ImageShape) -> None:
        self.image_shape = image_shape
        wanted: dict[tuple[str, str, bool], set[Span]] = {}
        self.baselines: set[str] = set()
        """Substrates whose bare image is itself asked for."""
        for need in needs:
            interior = wanted.setdefault((need.unit, need.baseline, need.keep), set())
            for span in need.spans:
                end = self._end(need, span)
                if end is None:
                    interior.add(span)
                elif end == FULL:
                    if need.unit == "token":
                        raise VitreousError("a state without any token cannot be run; keep at least one")
                    self.baselines.add(need.baseline)
        self.runs: list[Run] = []
        self.length = 0
        self._places: dict[tuple[tuple[str, str, bool], Span], int] = {}
        for key, interior in sorted(wanted.items()):
            spans = tuple(sorted(interior))
            if spans:
                self.runs.append(Run(*key, spans, self.length))
            for span in spans:
                self._places[key, span] = self.length
                self.length += 1

    def places(self, need: RankedRemoval) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the place of each state of ``need`` in the block, or ``CLEAN`` or ``FULL``."""
        ends = [(span, self._end(need, span)) for span in need.spans]
        key = (need.unit, need.baseline, need.keep)
        return np.array([self._places[key, span] if end is None else end for span, end in ends], np.int64)

    def _end(self, need: RankedRemoval, span: Span) -> int | None:
        """Return which end of the curve a span is, if it is one."""
        if need.unit.startswith("blend:"):
            return None
        size, (low, high) = self.image_shape.size(need.unit), span
        if not 0 <= low <= high <= size:
            raise VitreousError(f"{low} .. {high} {need.unit}s are outside 0..{size}")
        left = high - low if need.keep else size - (high - low)
        return CLEAN if left == size else FULL if left == 0 else None


def baselines_of(needs: Iterable[Request], image_shape: ImageShape) -> list[str]:
    """Return the substrates that some state is made with."""
    wanted = list(needs)
    states = Layout([need for need in wanted if isinstance(need, RankedRemoval)], image_shape)
    used = {run.baseline for run in states.runs} | states.baselines
    return sorted(used | {need.baseline for need in wanted if isinstance(need, Masks | WithoutParts)})


class Readings(NamedTuple):
    """For every slot: log-probability and logit of the scored classes ``[n, S]``, and the arg-max ``[n]``."""

    log_probability: Array
    logit: Array
    arg_max: Array


@dataclass
class Told:
    """Where the answers about one method stand, by the class that is explained."""

    starts: dict[str, list[Array]] = field(default_factory=dict)
    layouts: dict[str, list[Array]] = field(default_factory=dict)
    flags: dict[str, list[Array]] = field(default_factory=dict)
    maps: dict[str, list[Array]] = field(default_factory=dict)
    drawn: dict[tuple[Request, str], list[Array]] = field(default_factory=dict)
    """Slots of the states that were drawn beside the model; ``facts`` are the numbers that came with them."""
    facts: dict[tuple[Request, str], list[Array]] = field(default_factory=dict)


@dataclass
class Common:
    """What is the same for all methods: the images, their classes, and the states that no map has a part in."""

    image_shape: ImageShape
    columns: tuple[str, ...]
    layouts: list[Layout]
    interpolation: str = "bilinear"
    clean: list[Array] = field(default_factory=list)
    full: dict[str, list[Array]] = field(default_factory=dict)
    classes: list[Array] = field(default_factory=list)
    shared: dict[Request, list[Array]] = field(default_factory=dict)
    masks: dict[Request, list[Array]] = field(default_factory=dict)
    measured: dict[Request, list[Array]] = field(default_factory=dict)
    facts: dict[Request, list[Array]] = field(default_factory=dict)
    parts: dict[Request, list[dict[str, int]]] = field(default_factory=dict)
    """For every image, the slot of the state without each of its parts."""
    truth: list[Any] = field(default_factory=list)


class Evaluation:
    """What was found about the maps of one method. Images are the first axis of everything."""

    def __init__(
        self,
        common: Common,
        told: Told,
        readings: Readings,
        explained: Mapping[tuple[Request, str], Array] | None = None,
    ) -> None:
        self.image_shape = common.image_shape
        self._readings, self._common, self._explained = readings, common, explained or {}
        self._clean = np.concatenate(common.clean)
        self._full = {name: np.concatenate(slots) for name, slots in common.full.items()}
        self._classes = np.concatenate(common.classes)
        self._starts, self._flags, self._kinds = (
            {mode: np.concatenate(parts) for mode, parts in each.items()}
            for each in (told.starts, told.flags, told.layouts)
        )
        self._told = told
        self._values: dict[tuple[str, str, str | None], Array] = {}

    def __len__(self) -> int:
        return len(self._clean)

    # -- maps and truth --------------------------------------------------------------------------------

    def maps(self, explain: str) -> Array:
        """Return the maps themselves, ``[B, h, w]``."""
        return np.concatenate(self._told.maps[explain])

    def values(self, explain: str, grid: str = "own", upsample: str | None = None) -> Array:
        """Return the values of the maps in float64, NaN everywhere where a map was left out.

        ``grid`` is the map's ``own``, or ``pixel`` (enlarged as the table says, or by ``upsample``), or ``token``,
        where the pixels of a patch are summed.
        """
        if (explain, grid, upsample) not in self._values:
            maps, size = self.maps(explain).astype(np.float64), self.image_shape.pixels
            maps = finite(maps)
            maps[self._starts[explain] < 0] = np.nan
            if grid == "pixel":
                maps = enlarged(maps, size, upsample or self._common.interpolation)
            elif grid == "token" and maps.shape[1:] != self.image_shape.tokens:
                maps = patched(enlarged(maps, size, "bilinear"), self.image_shape.tokens)
            maps.flags.writeable = False  # all metrics read the same array
            self._values[explain, grid, upsample] = maps
        return self._values[explain, grid, upsample]

    def explained(self, need: Reattribution, explain: str) -> Array:
        """Return the maps that were made again, ``[B, count, h, w]``."""
        if (need, explain) not in self._explained:
            raise VitreousError("these maps were not made again: a metric has to ask for them")
        return self._explained[need, explain]

    def annotations(self) -> Sequence[Any]:
        """Return what is known about each image: see ``vitreous.datasets.Truth``."""
        return self._common.truth

    def masks(self, need: Masks) -> Array:
        """Return the masks that were removed, ``[B, count, h, w]``, true where something was."""
        return np.concatenate(self._common.masks[need])

    def measured(self, need: Measured) -> Array:
        """Return what was measured of the other images, ``[B, count]``."""
        return np.concatenate(self._common.measured[need])

    def facts(self, need: RenderedStates, explain: str) -> Array:
        """Return the numbers that came with the states drawn beside the model, ``[B, count]``; NaN as below."""
        if need.by != "map":
            return np.concatenate(self._common.facts[need])
        return np.concatenate(self._told.facts[need, explain])

    def flags(self, explain: str) -> Array:
        """Return the code of each map in ``FLAGS``."""
        return self._flags[explain]

    # -- states ----------------------------------------------------------------------------------------

    def log_probability(self, need: Request, explain: str, score: str) -> Array:
        """Return ``log P`` of the scored class in each state of ``need``, ``[B, J]``; NaN where a map was left out."""
        return self._read(self._readings.log_probability, need, explain, score)

    def logit(self, need: Request, explain: str, score: str) -> Array:
        """Return the logit of the scored class in each state, ``[B, J]``; of one-logit heads, half of it."""
        return self._read(self._readings.logit, need, explain, score)

    def correct(self, need: Request, explain: str, score: str = "label") -> Array:
        """Return 1 where the arg-max is the true (or scored) class and 0 elsewhere, ``[B, J]``; NaN as above."""
        slots, left_out = self._slots(need, explain)
        wanted = self._classes[:, self._column(score, explain)]
        values: Array = (self._readings.arg_max[slots] == wanted[:, None]).astype(np.float64)
        values[left_out] = np.nan
        return values

    def without(self, need: WithoutParts, score: str, explain: str, value: str) -> list[dict[str, float]]:
        """Return for each image the ``logit`` or ``log_probability`` of the scored class without each of its parts."""
        readings, column = getattr(self._readings, value), self._column(score, explain)
        return [{name: float(readings[slot, column]) for name, slot in row.items()} for row in self._common.parts[need]]

    def clean(self, score: str, explain: str = "given") -> Array:
        """Return ``log P`` of the scored class for the images themselves, ``[B]``."""
        values: Array = self._readings.log_probability[self._clean, self._column(score, explain)].astype(np.float64)
        return values

    def clean_logit(self, score: str, explain: str = "given") -> Array:
        """Return the logit of the scored class for the images themselves, ``[B]``."""
        values: Array = self._readings.logit[self._clean, self._column(score, explain)].astype(np.float64)
        return values

    def clean_correct(self, score: str = "label", explain: str = "given") -> Array:
        """Return 1 where the arg-max of the image itself is the true (or scored) class, ``[B]``."""
        wanted = self._classes[:, self._column(score, explain)]
        return np.asarray(self._readings.arg_max[self._clean] == wanted, np.float64)

    def _read(self, readings: Array, need: Request, explain: str, score: str) -> Array:
        slots, left_out = self._slots(need, explain)
        values: Array = readings[slots, self._column(score, explain)].astype(np.float64)
        values[left_out] = np.nan
        return values

    def _column(self, score: str, explain: str) -> int:
        columns = self._common.columns
        wanted = explain if score == "explained" else score
        if wanted == "given" and "given" not in columns:
            wanted = "pred"
        if wanted not in columns:
            raise TargetError(f"there is no {wanted!r} class to score: give labels")
        return columns.index(wanted)

    def _slots(self, need: Request, explain: str) -> tuple[Array, Array]:
        if isinstance(need, Masks | Images) or (isinstance(need, RankedRemoval | RenderedStates) and need.by != "map"):
            slots = np.concatenate(self._common.shared[need])
            return slots, np.zeros(len(slots), bool)
        if isinstance(need, RenderedStates):
            slots = np.concatenate(self._told.drawn[need, explain])
            return slots, self._starts[explain] < 0
        if not isinstance(need, RankedRemoval):
            raise VitreousError(f"{type(need).__name__} has no states")
        starts, kinds = self._starts[explain], self._kinds[explain]
        slots = np.zeros((len(starts), len(need.spans)), np.int64)
        for kind in np.unique(kinds):
            mine = kinds == kind
            places = self._common.layouts[kind].places(need)
            slots[mine] = starts[mine, None] + places
            for column, place in enumerate(places):
                if place < 0:
                    slots[mine, column] = (self._clean if place == CLEAN else self._full[need.baseline])[mine]
        return slots, starts < 0
