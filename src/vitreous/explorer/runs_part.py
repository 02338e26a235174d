"""One model on one data set of a run: what is known about every picture, which are chosen, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous import View
from vitreous import method as spelled
from vitreous.bench.planning import wanted_units
from vitreous.bench.report.finding import Finding
from vitreous.bench.store import RecordedPlan
from vitreous.data.sets.labels import index_of_wnid  # as the benchmark reads labels
from vitreous.errors import TargetError, VitreousError
from vitreous.explorer.runs_pictures import Photos
from vitreous.explorer.runs_store import Guarded
from vitreous.explorer.wire import Refused, array
from vitreous.results.records import plain
from vitreous.words.defaults import known_as

__all__ = ["Facts", "Filters", "Part"]

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
        finding: Finding,
        store: Guarded,
        plans: Sequence[RecordedPlan],
        photos: Photos | str,
        loaded: tuple[str, View] | None = None,
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
        return {picture: row for row, picture in enumerate(self.finding.gathered.pictures)}

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
        setting = self.finding.gathered.setting
        where = {"pred": predicted, "label": true, "given": {"pred": predicted, "label": true}.get(setting.target)}
        if self.photos is not None:
            for picture, row in self.rows.items():
                true[row] = self._number(self.photos.entry(picture).label)
        for plan, unit in wanted_units(self._plans):
            if unit.judges or plan.settings[unit.setting].identity != setting.identity:
                continue
            found = self._store.some(unit.id, [f"classes/{mode}" for mode in unit.modes])
            for mode in unit.modes if found is not None else ():
                column = where.get(mode)
                assert found is not None
                if column is not None:
                    for picture, number in zip(
                        found[1]["pictures"], found[0][f"classes/{mode}"].tolist(), strict=False
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
        view = self.loaded[1]
        try:
            return view.class_index(label)
        except TargetError:
            number = index_of_wnid(label) if view.classes == 1000 else None
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
            "picture": self.finding.gathered.pictures[row],
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
        gathered, judge = self.finding.gathered, self.finding.table.judges[metric]
        with self._maps:
            found = gathered.map(gathered.pictures[row], method, judge.explain)
        return None if found is None or found.ndim != 2 else array(found)

    def titled(self, method: str) -> dict[str, Any]:
        """Return how a method is named and spelled, and what is known about it."""
        spelling = self.finding.gathered.setting.methods[method]
        try:
            how = spelled(spelling)
        except VitreousError:  # maps of others, or a plugin that is not here
            how = None
        return {
            "name": method,
            "title": known_as(method),
            "spelling": spelling,
            "signed": None if how is None or how.signed else False,
            "passes": None if how is None else plain(float(sum(how.cost))),
        }
