"""Which numbers of a table go into which figure: bars, curves, bins, matrix and radar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vitreous.errors import VitreousError
from vitreous.metrics.bins import THIN
from vitreous.metrics.bootstrap import interval, mean, resampled
from vitreous.metrics.curves import Array, Curve
from vitreous.metrics.states.need import Geometry, States
from vitreous.show import figures
from vitreous.words.defaults import known_as

if TYPE_CHECKING:
    from vitreous.results.table import Table

__all__ = ["bars", "better", "bins", "curves", "matrix", "metric_of", "note", "over", "radar"]

_USUAL = Geometry((224, 224), (14, 14))
_PROBABILITIES = ("insertion", "deletion", "least relevant first", "most relevant first")


def metric_of(table: Table, metric: str | None) -> str:
    if metric is not None:
        table[table.methods[0], metric]
        return metric
    if len(table.metrics) > 1:
        raise VitreousError(f"name a metric to draw: {', '.join(table.metrics)}")
    return table.metrics[0]


def note(table: Table, metric: str, how: str) -> str:
    """Return which way is better, how many images there are, and what else is drawn."""
    return f"{better(table.higher_is_better[metric]).capitalize()}. Mean of {over(table)}; {how}"


def better(higher: bool) -> str:
    return "higher is better" if higher else "lower is better"


def over(table: Table) -> str:
    count = len(table.images)
    return f"{count} image{'s' * (count != 1)}"


def _look(table: Table) -> dict[str, figures.Look]:
    """Return the looks by the names that figures show: a method has one colour in all figures of a table."""
    return {known_as(name): look for name, look in figures.looks(table.methods).items()}


def bars(table: Table, metric: str, methods: Sequence[str], *, width: str | float = "column") -> figures.Figure:
    means = {name: figures.Mean(table.mean(name, metric), *table.interval(name, metric)) for name in methods}
    return figures.bars(
        {known_as(name): each for name, each in means.items()},
        metric,
        note(table, metric, "lines are 95 % bootstrap intervals."),
        higher_is_better=table.higher_is_better[metric],
        look=_look(table),
        width=width,
    )


def curves(
    table: Table,
    metric: str,
    methods: Sequence[str],
    *,
    curves: Sequence[str] | str | None = None,
    width: str | float | None = None,
) -> figures.Figure:
    kept = {name: table.curves.get((name, metric), {}) for name in methods}
    there = list(dict.fromkeys(each for found in kept.values() for each in found))
    if not there:
        raise VitreousError(f"this table kept no curves of {metric}; kind='bars' draws its means")
    asked = there if curves is None else [curves] if isinstance(curves, str) else list(curves)
    for each in asked:
        if each not in there:
            raise VitreousError(f"{metric} has no curve {each!r}, but {', '.join(there)}")
    meant = _meanings(table, metric, there)
    panels = []
    for each in asked:
        across, up, way = meant[each]
        bands = _bands(table, {name: found[each] for name, found in kept.items() if each in found})
        panels.append(figures.Panel(each, bands, across, up, way))
    said = note(table, metric, "bands are 95 % bootstrap intervals.")
    return figures.lines(panels, metric, said, look=_look(table), width=width)


def _meanings(table: Table, metric: str, names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Return what each curve has across, what it has upwards, and which way is better, from the states behind it."""
    needs = [each for each in table.judges[metric].needs(_USUAL) if isinstance(each, States) and each.by == "map"]
    fitting: Sequence[States | None] = needs if len(needs) == len(names) else [None] * len(names)
    found = {}
    for name, need in zip(names, fitting, strict=True):
        by = getattr(table.judges[metric], "by", "probability")
        up = by if name in _PROBABILITIES and by in ("probability", "accuracy") else name
        if need is None or len(need.spans) < 2:
            found[name] = (table.judges[metric].across, up, "")
            continue
        units = f"{need.unit.partition(':')[0]}s"
        across = f"share of {units} {'put back' if need.keep else 'removed'}"
        if need.keep and need.counts[0] > need.counts[-1]:
            across = f"share of {units} removed, least relevant first"
        found[name] = (across, up, better(need.keep))
    return found


def _bands(table: Table, curves: Mapping[str, Curve]) -> list[figures.Line]:
    """Return mean lines with the intervals of every point, over the images that have a whole line."""
    columns = []
    for curve in curves.values():
        whole = np.where(np.isnan(curve.y).any(axis=1, keepdims=True), np.nan, curve.y)
        columns += [(column[:, None], mean) for column in whole.T]
    ends = [interval(each) for each in resampled(columns, table.samples, table.seed, table.groups).T]
    lines, at = [], 0
    for name, curve in curves.items():
        low, high = np.array(ends[at : at + len(curve.x)]).T
        lines.append(figures.Line(known_as(name), curve.x, curve.mean, low, high))
        at += len(curve.x)
    return lines


def bins(
    table: Table,
    metric: str,
    methods: Sequence[str],
    *,
    count: int = 20,
    by: str = "width",
    confidence: str = "pred",
    relative: bool = False,
    width: str | float = "page",
) -> figures.Figure:
    found = {name: table.bins(name, metric, count, by, confidence, relative) for name in methods}
    first = next(iter(found.values()))
    means = {
        known_as(name): [figures.Mean(each.mean, *each.interval, each.count, each.thin) for each in each_bin]
        for name, each_bin in found.items()
    }
    whose = {"pred": "predicted", "label": "true"}.get(confidence, confidence)
    said = f"{better(table.higher_is_better[metric]).capitalize()}. Mean and 95 % bootstrap interval of each bin"
    said += f"{', scores divided by the confidence' if relative else ''}; pale on grey: fewer than {THIN} images."
    return figures.bins(
        [*(each.low for each in first), first[-1].high],
        means,
        metric,
        said,
        across=f"probability of the {whose} class",
        up="score / confidence" if relative else "score",
        look=_look(table),
        width=width,
    )


def matrix(table: Table, metric: str, methods: Sequence[str], *, width: str | float = "column") -> figures.Figure:
    """How alike the scores of two methods are, over the images that have both."""
    scores = [table[each, metric] for each in methods]
    alike = [[_correlation(one, other) for other in scores] for one in scores]
    said = f"Correlation of the scores of two methods over {over(table)}."
    return figures.matrix(alike, [known_as(each) for each in methods], metric, said, width=width)


def _correlation(one: Array, other: Array) -> float:
    there = ~(np.isnan(one) | np.isnan(other))
    one, other = one[there], other[there]
    if len(one) < 2 or one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))


def radar(
    table: Table,
    metric: str | None,
    methods: Sequence[str],
    *,
    metrics: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    width: str | float = "column",
) -> figures.Figure:
    if metric is not None:
        raise VitreousError("a radar has a metric on each of its axes: give metrics=[…] instead of one")
    chosen = list(table.metrics if metrics is None else metrics)
    for each in chosen:
        metric_of(table, each)
    lower = [each for each in chosen if not table.higher_is_better[each]]
    if lower:
        raise VitreousError(f"{lower[0]} is better when lower, and the rim of a radar is the best")
    if names is not None and len(names) != len(chosen):
        raise VitreousError(f"{len(names)} names do not fit {len(chosen)} metrics")
    return figures.radar(
        chosen if names is None else names,
        {known_as(name): [table.mean(name, each) for each in chosen] for name in methods},
        "",
        f"Mean of {over(table)} from 0 (centre) to 1 (rim): higher is better. Bars are 95 % bootstrap intervals.",
        intervals={known_as(name): [table.interval(name, each) for each in chosen] for name in methods},
        look=_look(table),
        width=width,
    )
