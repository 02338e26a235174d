"""States: perturbed images that metrics ask for, and where the answer of each one stands.

For one map and one substrate there are two families: the top-ranked pixels *removed* (deletion, MoRF, positive
perturbation) or *kept* (insertion; and, since removing the n - k least relevant leaves the k most relevant, LeRF too).
Nothing removed is the image itself and everything removed the bare substrate: both are shared by all maps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from vitreous.errors import VitreousError

__all__ = ["CLEAN", "FULL", "Geometry", "Layout", "Need", "Run"]

CLEAN, FULL = -1, -2
"""Places that are not in a map's own block: the clean image and the bare substrate."""


@dataclass(frozen=True)
class Geometry:
    """Rows and columns of the pixels and of the patch tokens."""

    pixels: tuple[int, int]
    tokens: tuple[int, int]

    def size(self, unit: str) -> int:
        """How many pixels or tokens there are to remove."""
        return prod(self.tokens if unit == "token" else self.pixels)


@dataclass(frozen=True)
class Need:
    """Some states of a map: its ``counts`` top-ranked pixels (or tokens) kept or removed on one substrate.

    ``unit`` is ``"pixel"``, ``"token"`` (removed from the sequence) or ``"blend"``: one state, the image faded into
    the substrate by the map itself.
    """

    unit: str
    substrate: str
    keep: bool
    counts: tuple[int, ...]

    @classmethod
    def removed(cls, substrate: str, counts: Iterable[int], unit: str = "pixel") -> Need:
        """The top-ranked ``counts`` are gone."""
        return cls(unit, substrate, False, tuple(counts))

    @classmethod
    def kept(cls, substrate: str, counts: Iterable[int], unit: str = "pixel") -> Need:
        """Only the top-ranked ``counts`` are left."""
        return cls(unit, substrate, True, tuple(counts))

    @classmethod
    def blend(cls, substrate: str) -> Need:
        """The image times the map scaled to 0 .. 1, plus the substrate times the rest."""
        return cls("blend", substrate, True, (1,))


@dataclass(frozen=True)
class Run:
    """States of one map that differ in their count only."""

    unit: str
    substrate: str
    keep: bool
    counts: tuple[int, ...]
    start: int
    """Where they begin in the map's block of answers."""


class Layout:
    """The states of one map, each once, whoever asked for it, and the place of each in one block of answers."""

    def __init__(self, needs: Iterable[Need], geometry: Geometry) -> None:
        self.geometry = geometry
        wanted: dict[tuple[str, str, bool], set[int]] = {}
        self.substrates: set[str] = set()
        """Substrates whose bare image is itself asked for."""
        for need in needs:
            interior = wanted.setdefault((need.unit, need.substrate, need.keep), set())
            for count in need.counts:
                end = self._end(need, count)
                if end is None:
                    interior.add(count)
                elif end == FULL:
                    if need.unit == "token":
                        raise VitreousError("a state without any token cannot be run; keep at least one")
                    self.substrates.add(need.substrate)
        self.runs: list[Run] = []
        self.length = 0
        self._places: dict[tuple[tuple[str, str, bool], int], int] = {}
        for key, interior in sorted(wanted.items()):
            counts = tuple(sorted(interior))
            if counts:
                self.runs.append(Run(*key, counts, self.length))
            for count in counts:
                self._places[key, count] = self.length
                self.length += 1

    def places(self, need: Need) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the place of each count of ``need`` in the block, or ``CLEAN`` or ``FULL``."""
        ends = [(count, self._end(need, count)) for count in need.counts]
        key = (need.unit, need.substrate, need.keep)
        return np.array([self._places[key, count] if end is None else end for count, end in ends], np.int64)

    def uses(self, unit: str) -> bool:
        return any(run.unit == unit for run in self.runs)

    def _end(self, need: Need, count: int) -> int | None:
        """Return which end of the curve a count is, if it is one."""
        if need.unit == "blend":
            return None
        size = self.geometry.size(need.unit)
        if not 0 <= count <= size:
            raise VitreousError(f"{count} {need.unit}s are outside 0..{size}")
        left = count if need.keep else size - count
        return CLEAN if left == size else FULL if left == 0 else None
