"""Methods whose spellings differ in one number: a start layer, a layer, a count of samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitreous.errors import VitreousError
from vitreous.metrics.curves import Array
from vitreous.results.drawings import better, note
from vitreous.show import figures
from vitreous.words.defaults import known_as

if TYPE_CHECKING:
    from vitreous.results.table import Table

__all__ = ["Sweep", "histogram", "sweep", "sweeps"]

_NUMBER = re.compile(r"(?<![\w.:-])-?\d+(?:\.\d+)?(?![\w.])")
_KNOWN = {"start": "start layer", "layer": "layer"}


@dataclass(frozen=True)
class Sweep:
    """Some methods in the order of the number that sets them apart; the name has ``…`` in its place."""

    name: str
    parameter: str
    methods: tuple[str, ...]
    x: tuple[float, ...]

    @property
    def across(self) -> str:
        """What the number is, in words."""
        return _KNOWN.get(self.parameter, self.parameter)


def sweeps(methods: Sequence[str]) -> list[Sweep]:
    """Return the sweeps among some spellings: those over the parameter that most of them vary."""
    families: dict[tuple[str, str], dict[float, str]] = {}
    for method in methods:
        for found in _NUMBER.finditer(method):
            before, after = method[: found.start()], method[found.end() :]
            said = re.search(r"(\w+)\s*=\s*$", before)
            family = (f"{before}…{after}", said[1] if said else "")
            families.setdefault(family, {})[float(found[0])] = method
    several = {family: members for family, members in families.items() if len(members) > 1}
    if not several:
        raise VitreousError("no two methods differ in one number only; give methods and x")
    sizes: dict[str, int] = {}
    for (_, parameter), members in several.items():
        sizes[parameter] = sizes.get(parameter, 0) + len(members)
    chosen = max(sizes, key=lambda parameter: sizes[parameter])
    return [
        Sweep(name, parameter, tuple(members[x] for x in sorted(members)), tuple(sorted(members)))
        for (name, parameter), members in several.items()
        if parameter == chosen
    ]


def _swept(methods: Sequence[str], x: Sequence[float] | None, name: str) -> list[Sweep]:
    if x is None:
        return sweeps(methods)
    if len(x) != len(methods) or len(set(x)) != len(x):
        raise VitreousError(f"x needs a different number for each of the {len(methods)} methods")
    order = sorted(range(len(x)), key=lambda at: x[at])
    return [Sweep(name, "x", tuple(methods[at] for at in order), tuple(float(x[at]) for at in order))]


def sweep(
    table: Table,
    metric: str,
    methods: Sequence[str],
    *,
    x: Sequence[float] | None = None,
    across: str = "",
    name: str = "methods",
    against: Sequence[str] | None = None,
    width: str | float = "column",
) -> figures.Figure:
    found = _swept(methods, x, name)
    levels = [each for each in ("random",) if each in table.methods] if against is None else list(against)
    lines = [_scores(table, metric, each.name, each.methods, each.x) for each in found]
    flat = [_scores(table, metric, known_as(each), [each], [0.0]) for each in levels]
    names = [each.name for each in lines]
    places = sorted({x for each in found for x in each.x})
    panel = figures.Panel(
        "",
        lines,
        across or found[0].across,
        "score",
        marks=True,
        levels=flat,
        places=places if len(places) < 13 else (),
    )
    said = note(table, metric, "bands are 95 % bootstrap intervals.")
    look = figures.looks([*names, *(each.name for each in flat)])
    return figures.lines([panel], metric, said, look=look, width=width)


def _scores(table: Table, metric: str, name: str, methods: Sequence[str], x: Sequence[float]) -> figures.Line:
    low, high = np.array([table.interval(each, metric) for each in methods]).T
    means = np.array([table.mean(each, metric) for each in methods])
    return figures.Line(name, np.array(x, np.float64), means, low, high)


def histogram(
    table: Table,
    metric: str,
    methods: Sequence[str],
    *,
    x: Sequence[float] | None = None,
    across: str = "",
    name: str = "methods",
    width: str | float = "column",
) -> figures.Figure:
    """How many images have their best score where; of equal scores, the first."""
    found = _swept(methods, x, name)
    if len(found) > 1:
        raise VitreousError(f"name the methods of one sweep: {', '.join(each.name for each in found)}")
    (one,) = found
    scores = np.stack([table[each, metric] for each in one.methods])
    scores = scores[:, ~np.isnan(scores).any(axis=0)]
    best = scores.argmax(axis=0) if table.higher_is_better[metric] else scores.argmin(axis=0)
    counts: Array = np.bincount(best, minlength=len(one.methods))
    names = [f"{each:g}" for each in one.x]
    said = f"How many of {len(best)} images have their best score ({better(table.higher_is_better[metric])}) where."
    title = f"{metric}: best {across or one.across} of {one.name}"
    return figures.histogram(counts.tolist(), names, title, said, across=across or one.across, width=width)
