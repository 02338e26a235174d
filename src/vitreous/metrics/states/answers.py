"""What is known about the maps of one method once all states have been run: all that a metric reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from vitreous.errors import TargetError, VitreousError
from vitreous.metrics.curves import Array
from vitreous.metrics.states.layout import CLEAN, Layout
from vitreous.metrics.states.need import Explained, Geometry, Images, Masks, Need, States

__all__ = ["Answers", "Common", "Readings", "Told"]


class Readings(NamedTuple):
    """For every slot: log-probability of the scored classes ``[n, S]``, and the arg-max ``[n]``."""

    log_probability: Array
    arg_max: Array


@dataclass
class Told:
    """Where the answers about one method stand, by the class that is explained."""

    starts: dict[str, list[Array]] = field(default_factory=dict)
    layouts: dict[str, list[Array]] = field(default_factory=dict)
    flags: dict[str, list[Array]] = field(default_factory=dict)
    maps: dict[str, list[Array]] = field(default_factory=dict)


@dataclass
class Common:
    """What is the same for all methods: the images, their classes, and the states that no map has a part in."""

    geometry: Geometry
    columns: tuple[str, ...]
    layouts: list[Layout]
    clean: list[Array] = field(default_factory=list)
    full: dict[str, list[Array]] = field(default_factory=dict)
    classes: list[Array] = field(default_factory=list)
    shared: dict[Need, list[Array]] = field(default_factory=dict)
    masks: dict[Need, list[Array]] = field(default_factory=dict)
    truth: list[Any] = field(default_factory=list)


class Answers:
    """What was found about the maps of one method. Images are the first axis of everything."""

    def __init__(
        self, common: Common, told: Told, readings: Readings, explained: Mapping[tuple[Need, str], Array] | None = None
    ) -> None:
        self.geometry = common.geometry
        self._readings, self._common, self._explained = readings, common, explained or {}
        self._clean = np.concatenate(common.clean)
        self._full = {name: np.concatenate(slots) for name, slots in common.full.items()}
        self._classes = np.concatenate(common.classes)
        self._starts, self._flags, self._kinds = (
            {mode: np.concatenate(parts) for mode, parts in each.items()}
            for each in (told.starts, told.flags, told.layouts)
        )
        self._maps = told.maps

    def __len__(self) -> int:
        return len(self._clean)

    # -- maps and truth --------------------------------------------------------------------------------

    def maps(self, explain: str) -> Array:
        """Return the maps themselves, ``[B, h, w]``."""
        return np.concatenate(self._maps[explain])

    def explained(self, need: Explained, explain: str) -> Array:
        """Return the maps that were made again, ``[B, count, h, w]``."""
        if (need, explain) not in self._explained:
            raise VitreousError("these maps were not made again: a metric has to ask for them")
        return self._explained[need, explain]

    def truth(self) -> Sequence[Any]:
        """Return what is known about each image: see ``vitreous.data.Truth``."""
        return self._common.truth

    def masks(self, need: Masks) -> Array:
        """Return the masks that were removed, ``[B, count, h, w]``, true where something was."""
        return np.concatenate(self._common.masks[need])

    def flags(self, explain: str) -> Array:
        """Return the code of each map in ``FLAGS``."""
        return self._flags[explain]

    # -- states ----------------------------------------------------------------------------------------

    def log_probability(self, need: Need, explain: str, score: str) -> Array:
        """Return ``log P`` of the scored class in each state of ``need``, ``[B, J]``; NaN where a map was left out."""
        slots, left_out = self._slots(need, explain)
        values: Array = self._readings.log_probability[slots, self._column(score, explain)].astype(np.float64)
        values[left_out] = np.nan
        return values

    def correct(self, need: Need, explain: str) -> Array:
        """Return 1 where the arg-max is the true class and 0 elsewhere, ``[B, J]``; NaN where a map was left out."""
        slots, left_out = self._slots(need, explain)
        truth = self._classes[:, self._column("label", explain)]
        values: Array = (self._readings.arg_max[slots] == truth[:, None]).astype(np.float64)
        values[left_out] = np.nan
        return values

    def clean(self, score: str, explain: str = "given") -> Array:
        """Return ``log P`` of the scored class for the images themselves, ``[B]``."""
        values: Array = self._readings.log_probability[self._clean, self._column(score, explain)].astype(np.float64)
        return values

    def _column(self, score: str, explain: str) -> int:
        columns = self._common.columns
        wanted = explain if score == "explained" else score
        if wanted == "given" and "given" not in columns:
            wanted = "pred"
        if wanted not in columns:
            raise TargetError(f"there is no {wanted!r} class to score: give labels")
        return columns.index(wanted)

    def _slots(self, need: Need, explain: str) -> tuple[Array, Array]:
        if isinstance(need, Masks | Images) or (isinstance(need, States) and need.by != "map"):
            slots = np.concatenate(self._common.shared[need])
            return slots, np.zeros(len(slots), bool)
        if not isinstance(need, States):
            raise VitreousError(f"{type(need).__name__} has no states")
        starts, kinds = self._starts[explain], self._kinds[explain]
        slots = np.zeros((len(starts), len(need.spans)), np.int64)
        for kind in np.unique(kinds):
            mine = kinds == kind
            places = self._common.layouts[kind].places(need)
            slots[mine] = starts[mine, None] + places
            for column, place in enumerate(places):
                if place < 0:
                    slots[mine, column] = (self._clean if place == CLEAN else self._full[need.substrate])[mine]
        return slots, starts < 0
