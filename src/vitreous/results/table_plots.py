"""Methods whose spellings differ in one number: a start layer, a layer, a count of samples.

What the model was shown, step by step, as a figure.

Which numbers of a table go into which figure: bars, curves, bins, matrix and radar.

The figures of a table: one at a time, or a folder of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitreous import io as disk
from vitreous.errors import VitreousError, nearest
from vitreous.metrics import ImageShape, RankedRemoval
from vitreous.metrics.bootstrap import THIN, interval, mean, resampled
from vitreous.metrics.perturb import perturbed
from vitreous.metrics.ranking import Array, Curve
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.registry.defaults import display_name
from vitreous.viz import plots as figures

if TYPE_CHECKING:
    from vitreous.results.table import ScoreTable

__all__ = [
    "KINDS",
    "SCHEMA",
    "Sweep",
    "bars",
    "better",
    "bins",
    "curves",
    "histogram",
    "matrix",
    "metric_of",
    "note",
    "over",
    "plot",
    "radar",
    "save_figures",
    "states_strip",
    "sweep",
    "sweeps",
]

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
    table: ScoreTable,
    metric: str,
    methods: Sequence[str],
    *,
    x: Sequence[float] | None = None,
    across: str = "",
    name: str = "methods",
    contrast: Sequence[str] | None = None,
    width: str | float = "column",
) -> figures.Figure:
    found = _swept(methods, x, name)
    levels = [each for each in ("random",) if each in table.methods] if contrast is None else list(contrast)
    lines = [_scores(table, metric, each.name, each.methods, each.x) for each in found]
    flat = [_scores(table, metric, display_name(level), [level], [0.0]) for level in levels]
    names = [line.name for line in lines]
    places = sorted({x for each in found for x in each.x})
    panel = figures.LinePanel(
        "",
        lines,
        across or found[0].across,
        "score",
        markers=True,
        levels=flat,
        x_ticks=places if len(places) < 13 else (),
    )
    said = note(table, metric, "bands are 95 % bootstrap intervals.")
    look = figures.line_styles([*names, *(each.name for each in flat)])
    return figures.lines([panel], metric, said, styles=look, width=width)


def _scores(table: ScoreTable, metric: str, name: str, methods: Sequence[str], x: Sequence[float]) -> figures.Series:
    low, high = np.array([table.interval(method, metric) for method in methods]).T
    means = np.array([table.mean(method, metric) for method in methods])
    return figures.Series(name, np.array(x, np.float64), means, low, high)


def histogram(
    table: ScoreTable,
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
    scores = np.stack([table[method, metric] for method in one.methods])
    scores = scores[:, ~np.isnan(scores).any(axis=0)]
    best = scores.argmax(axis=0) if table.higher_is_better[metric] else scores.argmin(axis=0)
    counts: Array = np.bincount(best, minlength=len(one.methods))
    names = [f"{each:g}" for each in one.x]
    said = f"How many of {len(best)} images have their best score ({better(table.higher_is_better[metric])}) where."
    title = f"{metric}: best {across or one.across} of {one.name}"
    return figures.histogram(counts.tolist(), names, title, said, x_label=across or one.across, width=width)


def states_strip(
    model: VisionModel,
    inputs: Tensor,
    maps: Mapping[str, Tensor],
    need: RankedRemoval,
    steps: Sequence[int] | None = None,
    target: int | str | None = None,
    *,
    upsample: str = "bilinear",
    ties: str = "random",
    seed: int = 0,
    width: str | float = "page",
) -> figures.Figure:
    """Draw what the model was shown: one image with more and more pixels gone, in the order of each method's map.

    ``inputs`` is one input ``[3, H, W]``, ``maps`` has a map ``[h, w]`` for every name, ``need`` the states of a metric
    (``Request.removed("black", counts)``) and ``steps`` which of them to show. Under each stands the probability of
    ``target``, or else of the predicted class. Cost: a forward for every picture.
    """
    if need.unit != "pixel":
        raise VitreousError(f"only states of pixels are pictures that the model was shown, not those of {need.unit}s")
    check_choice("upsample", upsample, ("bilinear", "nearest"))
    image = inputs[None] if inputs.ndim == 3 else inputs
    if len(image) != 1 or not maps:
        raise VitreousError(f"a strip shows one image and at least one map, not {len(image)} and {len(maps)}")
    chosen = list(range(len(need.spans)) if steps is None else steps)
    for step in chosen:
        if not 0 <= step < len(need.spans):
            raise VitreousError(f"step {step} is not one of the {len(need.spans)} states")
    index = int(model.logits(image).argmax()) if target is None else model.class_index(target)
    some = RankedRemoval(need.unit, need.baseline, need.keep, tuple(need.spans[step] for step in chosen))
    rows, notes = {}, {}
    for name, map in maps.items():
        states = perturbed(
            model, image, torch.as_tensor(map)[None], some, interpolation=upsample, tie_breaking=ties, seed=seed
        )[0]
        rows[name] = [model.preprocess.to_image(state) for state in states]
        chances = model.logits(states).double().softmax(dim=1)[:, index]
        notes[name] = [f"{float(chance):.2f}" for chance in chances]
    size = image.shape[-1] * image.shape[-2]
    word = "kept" if need.keep else "removed"
    columns = [f"{count / size:.0%} {word}" for count in some.counts]
    note = f"Under each picture the probability of {model.label(index)}; pixels in the order of each map."
    return figures.strips(rows, columns, notes, "", note, width=width)


_USUAL = ImageShape((224, 224), (14, 14))
_PROBABILITIES = ("insertion", "deletion", "least relevant first", "most relevant first")


def metric_of(table: ScoreTable, metric: str | None) -> str:
    if metric is not None:
        table[table.methods[0], metric]
        return metric
    if len(table.metrics) > 1:
        raise VitreousError(f"name a metric to draw: {', '.join(table.metrics)}")
    return table.metrics[0]


def note(table: ScoreTable, metric: str, how: str) -> str:
    """Return which way is better, how many images there are, and what else is drawn."""
    return f"{better(table.higher_is_better[metric]).capitalize()}. Mean of {over(table)}; {how}"


def better(higher: bool) -> str:
    return "higher is better" if higher else "lower is better"


def over(table: ScoreTable) -> str:
    count = len(table.images)
    return f"{count} image{'s' * (count != 1)}"


def _look(table: ScoreTable) -> dict[str, figures.LineStyle]:
    """Return the looks by the names that figures show: a method has one colour in all figures of a table."""
    return {display_name(name): look for name, look in figures.line_styles(table.methods).items()}


def bars(table: ScoreTable, metric: str, methods: Sequence[str], *, width: str | float = "column") -> figures.Figure:
    means = {name: figures.Mean(table.mean(name, metric), *table.interval(name, metric)) for name in methods}
    return figures.bars(
        {display_name(name): each for name, each in means.items()},
        metric,
        note(table, metric, "lines are 95 % bootstrap intervals."),
        higher_is_better=table.higher_is_better[metric],
        styles=_look(table),
        width=width,
    )


def curves(
    table: ScoreTable,
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
        panels.append(figures.LinePanel(each, bands, across, up, way))
    said = note(table, metric, "bands are 95 % bootstrap intervals.")
    return figures.lines(panels, metric, said, styles=_look(table), width=width)


def _meanings(table: ScoreTable, metric: str, names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Return what each curve has across, what it has upwards, and which way is better, from the states behind it."""
    needs = [
        request
        for request in table.judges[metric].requests(_USUAL).values()
        if isinstance(request, RankedRemoval) and request.by == "map"
    ]
    fitting: Sequence[RankedRemoval | None] = needs if len(needs) == len(names) else [None] * len(names)
    found = {}
    for name, need in zip(names, fitting, strict=True):
        by = getattr(table.judges[metric], "by", "probability")
        up = by if name in _PROBABILITIES and by in ("probability", "accuracy") else name
        if need is None or len(need.spans) < 2:
            found[name] = (table.judges[metric].x_axis, up, "")
            continue
        units = f"{need.unit.partition(':')[0]}s"
        across = f"share of {units} {'put back' if need.keep else 'removed'}"
        if need.keep and need.counts[0] > need.counts[-1]:
            across = f"share of {units} removed, least relevant first"
        found[name] = (across, up, better(need.keep))
    return found


def _bands(table: ScoreTable, curves: Mapping[str, Curve]) -> list[figures.Series]:
    """Return mean lines with the intervals of every point, over the images that have a whole line."""
    columns = []
    for curve in curves.values():
        whole = np.where(np.isnan(curve.y).any(axis=1, keepdims=True), np.nan, curve.y)
        columns += [(column[:, None], mean) for column in whole.T]
    ends = [interval(each) for each in resampled(columns, table.samples, table.seed, table.groups).T]
    lines, at = [], 0
    for name, curve in curves.items():
        low, high = np.array(ends[at : at + len(curve.x)]).T
        lines.append(figures.Series(display_name(name), curve.x, curve.mean, low, high))
        at += len(curve.x)
    return lines


def bins(
    table: ScoreTable,
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
        display_name(name): [figures.Mean(each.mean, *each.interval, each.count, each.thin) for each in each_bin]
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
        x_label=f"probability of the {whose} class",
        y_label="score / confidence" if relative else "score",
        styles=_look(table),
        width=width,
    )


def matrix(table: ScoreTable, metric: str, methods: Sequence[str], *, width: str | float = "column") -> figures.Figure:
    """How alike the scores of two methods are, over the images that have both."""
    scores = [table[method, metric] for method in methods]
    alike = [[_correlation(one, other) for other in scores] for one in scores]
    said = f"Correlation of the scores of two methods over {over(table)}."
    return figures.matrix(alike, [display_name(method) for method in methods], metric, said, width=width)


def _correlation(one: Array, other: Array) -> float:
    there = ~(np.isnan(one) | np.isnan(other))
    one, other = one[there], other[there]
    if len(one) < 2 or one.std() == 0 or other.std() == 0:
        return float("nan")
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))


def radar(
    table: ScoreTable,
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
        {display_name(name): [table.mean(name, each) for each in chosen] for name in methods},
        "",
        f"Mean of {over(table)} from 0 (centre) to 1 (rim): higher is better. Bars are 95 % bootstrap intervals.",
        intervals={display_name(name): [table.interval(name, each) for each in chosen] for name in methods},
        styles=_look(table),
        width=width,
    )


SCHEMA = "vitreous.figures/1"
_FROM_PICTURES = ("strips", "cascade")

KINDS: dict[str, Callable[..., figures.Figure]] = {
    "curves": curves,
    "bins": bins,
    "bars": bars,
    "sweep": sweep,
    "histogram": histogram,
    "matrix": matrix,
    "layers": matrix,
    "radar": radar,
}


def plot(
    table: ScoreTable,
    kind: str | None,
    metric: str | None,
    methods: Sequence[str] | None,
    path: str | Path | None,
    overwrite: bool,
    options: Mapping[str, Any],
) -> figures.Figure:
    """Draw one figure of a table: see ``Table.plot``."""
    if kind in _FROM_PICTURES:
        raise VitreousError(f"a table keeps no pictures: draw {kind} with vitreous.viz.plots.{kind}")
    if kind is not None and kind not in KINDS:
        raise VitreousError(f"kind={kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    figures.require()
    if path is not None:
        if Path(path).suffix.lower() not in figures.FORMATS:
            raise VitreousError(f"could not write {path}: a figure must end in one of {', '.join(figures.FORMATS)}")
        disk.check_file(path, overwrite)
    chosen = table.methods if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
    if not chosen:
        raise VitreousError("there are no methods to draw")
    if kind != "radar":
        metric = metric_of(table, metric)
        for each in chosen:
            table[each, metric]
    if kind is None:
        kind = "curves" if any(table.curves.get((each, str(metric))) for each in chosen) else "bars"
    draw = KINDS[kind]
    known = list(inspect.signature(draw).parameters)[3:]
    for option in options:
        if option not in known:
            raise VitreousError(f"{kind} has no option {option!r}, but {', '.join(known)}{nearest(option, known)}")
    figure = draw(table, metric, chosen, **options)
    if path is not None:
        figures.save(figure, path, overwrite=overwrite)
    return figure


def save_figures(table: ScoreTable, folder: str | Path, *, overwrite: bool = False) -> list[str]:
    """Write the figures of every metric into a new folder, as SVG; return the names of the files.

    Bars for every metric, curves where they were kept, and bins where at least two of them would not be thin.
    """
    figures.require()
    written: list[dict[str, str]] = []
    with disk.folder(folder, overwrite=overwrite) as draft:
        for metric in table.metrics:
            for kind, options in _worth_drawing(table, metric).items():
                figure = plot(table, kind, metric, None, None, False, options)
                name = _name(f"{disk.slug(metric)}-{kind}", [each["file"] for each in written])
                draft.write(name, figures.encoded(figure, name))
                written.append({"file": name, "kind": kind, "metric": disk.slug(metric)})
        draft.finish({"schema": SCHEMA, "figures": written})
    return [each["file"] for each in written]


def _name(stem: str, taken: Sequence[str]) -> str:
    """Return a name that no other figure has: two spellings may look alike once brackets are gone."""
    names = [f"{stem}{more}.svg" for more in ("", *(f"-{number}" for number in range(2, len(taken) + 3)))]
    low = [each.lower() for each in taken]
    return next(name for name in names if name.lower() not in low)


def _worth_drawing(table: ScoreTable, metric: str) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {"bars": {}}
    if any(table.curves.get((method, metric)) for method in table.methods):
        kinds["curves"] = {}
    count = min(10, len(table.images) // THIN)
    if count >= 2 and "pred" in table.confidence:
        kinds["bins"] = {"count": count, "by": "mass"}
    return kinds
