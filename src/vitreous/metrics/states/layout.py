"""Where the answer of each state stands: equal states have one place, whoever asked for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.errors import VitreousError
from vitreous.metrics.states.need import Geometry, Masks, Need, States, WithoutParts

__all__ = ["CLEAN", "FULL", "Layout", "Run", "substrates_of"]

CLEAN, FULL = -1, -2
"""Places that are not in a map's own block: the clean image and the bare substrate."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Run:
    """States of one order that differ in their span only."""

    unit: str
    substrate: str
    keep: bool
    spans: tuple[Span, ...]
    start: int
    """Where they begin in the block of answers."""


class Layout:
    """The states of one order, each once, and the place of each in one block of answers."""

    def __init__(self, needs: Iterable[States], geometry: Geometry) -> None:
        self.geometry = geometry
        wanted: dict[tuple[str, str, bool], set[Span]] = {}
        self.substrates: set[str] = set()
        """Substrates whose bare image is itself asked for."""
        for need in needs:
            interior = wanted.setdefault((need.unit, need.substrate, need.keep), set())
            for span in need.spans:
                end = self._end(need, span)
                if end is None:
                    interior.add(span)
                elif end == FULL:
                    if need.unit == "token":
                        raise VitreousError("a state without any token cannot be run; keep at least one")
                    self.substrates.add(need.substrate)
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

    def places(self, need: States) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the place of each state of ``need`` in the block, or ``CLEAN`` or ``FULL``."""
        ends = [(span, self._end(need, span)) for span in need.spans]
        key = (need.unit, need.substrate, need.keep)
        return np.array([self._places[key, span] if end is None else end for span, end in ends], np.int64)

    def _end(self, need: States, span: Span) -> int | None:
        """Return which end of the curve a span is, if it is one."""
        if need.unit.startswith("blend:"):
            return None
        size, (low, high) = self.geometry.size(need.unit), span
        if not 0 <= low <= high <= size:
            raise VitreousError(f"{low} .. {high} {need.unit}s are outside 0..{size}")
        left = high - low if need.keep else size - (high - low)
        return CLEAN if left == size else FULL if left == 0 else None


def substrates_of(needs: Iterable[Need], geometry: Geometry) -> list[str]:
    """Return the substrates that some state is made with."""
    wanted = list(needs)
    states = Layout([need for need in wanted if isinstance(need, States)], geometry)
    used = {run.substrate for run in states.runs} | states.substrates
    return sorted(used | {need.substrate for need in wanted if isinstance(need, Masks | WithoutParts)})
