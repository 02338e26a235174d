"""The figures of a table: which of its numbers go into which figure, one at a time or a folder of them.

A figure may also show a sweep: methods whose specs differ in one number, such as a start layer or a count of samples.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from vitreous.viz import plots

if TYPE_CHECKING:
    from vitreous.results.table import ScoreTable

SCHEMA = "vitreous.figures/1"
_NUMBER = re.compile(r"(?<![\w.:-])-?\d+(?:\.\d+)?(?![\w.])")
_PARAMETERS = {"start": "start layer", "layer": "layer"}
_SHAPE = ImageShape((224, 224), (14, 14))
_PROBABILITIES = ("insertion", "deletion", "least relevant first", "most relevant first")
_MANY_TICKS = 13
_BANDS = "bands are 95 % bootstrap intervals."


# -- sweeps --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """Some methods in the order of the number that sets them apart; the name has ``…`` in its place."""

    name: str
    x_label: str
    methods: tuple[str, ...]
    x: tuple[float, ...]


def sweeps(methods: Sequence[str]) -> list[Sweep]:
    """Return the sweeps over the parameter that most of some specs vary."""
    families: dict[tuple[str, str], dict[float, str]] = {}
    for method in methods:
        for match in _NUMBER.finditer(method):
            before, after = method[: match.start()], method[match.end() :]
            keyword = re.search(r"(\w+)\s*=\s*$", before)
            family = (f"{before}…{after}", keyword[1] if keyword else "")
            families.setdefault(family, {})[float(match[0])] = method
    families = {family: members for family, members in families.items() if len(members) > 1}
    if not families:
        raise VitreousError("no two methods differ in one number only; give methods and x")
    sizes: Counter[str] = Counter()
    for (_, parameter), members in families.items():
        sizes[parameter] += len(members)
    ((most, _),) = sizes.most_common(1)
    return [
        Sweep(name, _PARAMETERS.get(most, most), tuple(members[x] for x in sorted(members)), tuple(sorted(members)))
        for (name, parameter), members in families.items()
        if parameter == most
    ]


def _sweeps_of(methods: Sequence[str], x: Sequence[float] | None, name: str) -> list[Sweep]:
    if x is None:
        return sweeps(methods)
    if len(x) != len(methods) or len(set(x)) != len(x):
        raise VitreousError(f"x needs a different number for each of the {len(methods)} methods")
    pairs = sorted(zip(map(float, x), methods, strict=True))
    return [Sweep(name, "x", tuple(method for _, method in pairs), tuple(value for value, _ in pairs))]


def sweep(
    table: ScoreTable,
    metric: str,
    methods: Sequence[str],
    *,
    x: Sequence[float] | None = None,
    x_label: str = "",
    name: str = "methods",
    contrast: Sequence[str] | None = None,
    width: str | float = "column",
) -> plots.Figure:
    """Draw scores over the number that sets methods apart, and those of ``contrast`` as level lines."""
    chosen = _sweeps_of(methods, x, name)
    levels = [level for level in ("random",) if level in table.methods] if contrast is None else list(contrast)
    lines = [_score_line(table, metric, one.name, one.methods, one.x) for one in chosen]
    flat = [_score_line(table, metric, display_name(level), [level], [0.0]) for level in levels]
    ticks = sorted({value for one in chosen for value in one.x})
    x_ticks, x_label = ticks if len(ticks) < _MANY_TICKS else (), x_label or chosen[0].x_label
    panel = plots.LinePanel("", lines, x_label, "score", markers=True, levels=flat, x_ticks=x_ticks)
    styles = plots.line_styles([line.name for line in (*lines, *flat)])
    return plots.lines([panel], metric, _note(table, metric, _BANDS), styles=styles, width=width)


def _score_line(table: ScoreTable, metric: str, name: str, methods: Sequence[str], x: Sequence[float]) -> plots.Series:
    lower, upper = np.array([table.interval(method, metric) for method in methods]).T
    means = np.array([table.mean(method, metric) for method in methods])
    return plots.Series(name, np.array(x, np.float64), means, lower, upper)


def histogram(
    table: ScoreTable,
    metric: str,
    methods: Sequence[str],
    *,
    x: Sequence[float] | None = None,
    x_label: str = "",
    name: str = "methods",
    width: str | float = "column",
) -> plots.Figure:
    """Draw how many images have their best score where; of equal scores, the first."""
    chosen, *others = _sweeps_of(methods, x, name)
    if others:
        raise VitreousError(f"name the methods of one sweep: {', '.join(one.name for one in (chosen, *others))}")
    scores = np.stack([table[method, metric] for method in chosen.methods])
    scores = scores[:, ~np.isnan(scores).any(axis=0)]
    best = scores.argmax(axis=0) if table.higher_is_better[metric] else scores.argmin(axis=0)
    counts = [int((best == index).sum()) for index in range(len(chosen.methods))]
    label = x_label or chosen.x_label
    note = f"How many of {len(best)} images have their best score ({_direction(table, metric)}) where."
    title = f"{metric}: best {label} of {chosen.name}"
    return plots.histogram(counts, [f"{value:g}" for value in chosen.x], title, note, x_label=label, width=width)


# -- one figure for each kind --------------------------------------------------------------------------


def bars(table: ScoreTable, metric: str, methods: Sequence[str], *, width: str | float = "column") -> plots.Figure:
    """Draw means with their intervals."""
    return plots.bars(
        {display_name(name): plots.Mean(table.mean(name, metric), *table.interval(name, metric)) for name in methods},
        metric,
        _note(table, metric, "lines are 95 % bootstrap intervals."),
        higher_is_better=table.higher_is_better[metric],
        styles=_styles(table),
        width=width,
    )


def curves(
    table: ScoreTable,
    metric: str,
    methods: Sequence[str],
    *,
    curves: Sequence[str] | str | None = None,
    width: str | float | None = None,
) -> plots.Figure:
    """Draw the curves that a metric is read from, or some of them by name."""
    by_method = {name: table.curves.get((name, metric), {}) for name in methods}
    available = list(dict.fromkeys(name for by_name in by_method.values() for name in by_name))
    if not available:
        raise VitreousError(f"this table kept no curves of {metric}; kind='bars' draws its means")
    names = available if curves is None else [curves] if isinstance(curves, str) else list(curves)
    for name in names:
        if name not in available:
            raise VitreousError(f"{metric} has no curve {name!r}, but {', '.join(available)}")
    labels = _curve_labels(table, metric, available)
    panels = []
    for name in names:
        lines = _bands(table, {method: by_name[name] for method, by_name in by_method.items() if name in by_name})
        panels.append(plots.LinePanel(name, lines, *labels[name]))
    return plots.lines(panels, metric, _note(table, metric, _BANDS), styles=_styles(table), width=width)


def _curve_labels(table: ScoreTable, metric: str, names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """Return the labels of both axes of each curve, and which way is better, from the states behind it."""
    definition = table.definitions[metric]
    removals = [
        request
        for request in definition.requests(_SHAPE).values()
        if isinstance(request, RankedRemoval) and request.by == "map"
    ]
    by = getattr(definition, "by", "probability")
    shared_label = by if by in ("probability", "accuracy") else ""
    labels = {}
    for index, name in enumerate(names):
        removal = removals[index] if len(removals) == len(names) else None
        y_label = shared_label if shared_label and name in _PROBABILITIES else name
        labels[name] = _labels_of(removal, definition.x_axis, y_label)
    return labels


def _labels_of(removal: RankedRemoval | None, x_axis: str, y_label: str) -> tuple[str, str, str]:
    if removal is None or len(removal.spans) < 2:
        return x_axis, y_label, ""
    units = f"{removal.unit.partition(':')[0]}s"
    x_label = f"share of {units} {'put back' if removal.keep else 'removed'}"
    if removal.keep and removal.counts[0] > removal.counts[-1]:
        x_label = f"share of {units} removed, least relevant first"
    return x_label, y_label, "higher is better" if removal.keep else "lower is better"


def _bands(table: ScoreTable, curves: Mapping[str, Curve]) -> list[plots.Series]:
    """Return mean lines with the intervals of every point, over the images that have a whole line."""
    columns = []
    for curve in curves.values():
        complete = np.where(np.isnan(curve.y).any(axis=1, keepdims=True), np.nan, curve.y)
        columns += [(column[:, None], mean) for column in complete.T]
    ends = [interval(column) for column in resampled(columns, table.n_bootstrap, table.seed, table.groups).T]
    lines, start = [], 0
    for name, curve in curves.items():
        lower, upper = np.array(ends[start : start + len(curve.x)]).T
        lines.append(plots.Series(display_name(name), curve.x, curve.mean, lower, upper))
        start += len(curve.x)
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
) -> plots.Figure:
    """Draw scores by the model's confidence: see ``ScoreTable.bins``."""
    by_method = {name: table.bins(name, metric, count, by, confidence, relative) for name in methods}
    first = next(iter(by_method.values()))
    means = {
        display_name(name): [plots.Mean(one.mean, *one.interval, one.count, one.thin) for one in own]
        for name, own in by_method.items()
    }
    scaled = ", scores divided by the confidence" if relative else ""
    return plots.bins(
        [*(one.low for one in first), first[-1].high],
        means,
        metric,
        f"{_direction(table, metric).capitalize()}. Mean and 95 % bootstrap interval of each bin{scaled}; "
        f"pale on grey: fewer than {THIN} images.",
        x_label=f"probability of the {'predicted' if confidence == 'pred' else 'true'} class",
        y_label="score / confidence" if relative else "score",
        styles=_styles(table),
        width=width,
    )


def matrix(table: ScoreTable, metric: str, methods: Sequence[str], *, width: str | float = "column") -> plots.Figure:
    """Draw how alike the scores of two methods are, over the images that have both."""
    scores = [table[method, metric] for method in methods]
    values = [[_correlation(one, other) for other in scores] for one in scores]
    note = f"Correlation of the scores of two methods over {_images(table)}."
    return plots.matrix(values, [display_name(method) for method in methods], metric, note, width=width)


def _correlation(one: Array, other: Array) -> float:
    both = ~(np.isnan(one) | np.isnan(other))
    one, other = one[both], other[both]
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
) -> plots.Figure:
    """Draw means with a metric on each axis; all of them must be better when higher."""
    if metric is not None:
        raise VitreousError("a radar has a metric on each of its axes: give metrics=[…] instead of one")
    chosen = [_metric_of(table, name) for name in metrics or table.metrics]
    lower = [name for name in chosen if not table.higher_is_better[name]]
    if lower:
        raise VitreousError(f"{lower[0]} is better when lower, and the rim of a radar is the best")
    if names is not None and len(names) != len(chosen):
        raise VitreousError(f"{len(names)} names do not fit {len(chosen)} metrics")
    return plots.radar(
        names or chosen,
        {display_name(method): [table.mean(method, name) for name in chosen] for method in methods},
        "",
        f"Mean of {_images(table)} from 0 (centre) to 1 (rim): higher is better. Bars are 95 % bootstrap intervals.",
        intervals={display_name(method): [table.interval(method, name) for name in chosen] for method in methods},
        styles=_styles(table),
        width=width,
    )


def states_strip(
    model: VisionModel,
    inputs: Tensor,
    maps: Mapping[str, Tensor],
    request: RankedRemoval,
    steps: Sequence[int] | None = None,
    target: int | str | None = None,
    *,
    interpolation: str = "bilinear",
    tie_breaking: str = "random",
    seed: int = 0,
    width: str | float = "page",
) -> plots.Figure:
    """Draw what the model was shown: one image with more and more pixels gone, in the order of each method's map.

    ``inputs`` is one input ``[3, H, W]``, ``maps`` has a map ``[h, w]`` for every name, ``request`` the states of a
    metric, and ``steps`` which of them to show. Under each stands the probability of ``target``, or else of the
    predicted class. Cost: a forward for every picture.
    """
    wrong_steps = [step for step in steps or () if not 0 <= step < len(request.spans)]
    if wrong_steps:
        raise VitreousError(f"step {wrong_steps[0]} is not one of the {len(request.spans)} states")
    if request.unit != "pixel":
        raise VitreousError(f"only states of pixels are pictures that the model saw, not those of {request.unit}s")
    check_choice("interpolation", interpolation, ("bilinear", "nearest"))
    image = inputs[None] if inputs.ndim == 3 else inputs
    if len(image) != 1 or not maps:
        raise VitreousError(f"a strip shows one image and at least one map, not {len(image)} and {len(maps)}")
    index = int(model.logits(image).argmax()) if target is None else model.class_index(target)
    sample = request if steps is None else replace(request, spans=tuple(request.spans[step] for step in steps))
    options: dict[str, Any] = {"interpolation": interpolation, "tie_breaking": tie_breaking, "seed": seed}
    rows, notes = {}, {}
    for name, map in maps.items():
        (states,) = perturbed(model, image, torch.as_tensor(map)[None], sample, **options)
        rows[name] = [model.preprocess.to_image(state) for state in states]
        probabilities = model.logits(states).double().softmax(dim=1)[:, index].tolist()
        notes[name] = [format(probability, ".2f") for probability in probabilities]
    size = image.shape[-1] * image.shape[-2]
    columns = [f"{count / size:.0%} {'kept' if request.keep else 'removed'}" for count in sample.counts]
    note = f"Under each picture the probability of {model.label(index)}; pixels in the order of each map."
    return plots.strips(rows, columns, notes, "", note, width=width)


def _metric_of(table: ScoreTable, metric: str | None) -> str:
    if metric is None:
        if len(table.metrics) > 1:
            raise VitreousError(f"name a metric to draw: {', '.join(table.metrics)}")
        return table.metrics[0]
    table[table.methods[0], metric]
    return metric


def _direction(table: ScoreTable, metric: str) -> str:
    return f"{'higher' if table.higher_is_better[metric] else 'lower'} is better"


def _images(table: ScoreTable) -> str:
    return f"{len(table.images)} image{'s' * (len(table.images) != 1)}"


def _note(table: ScoreTable, metric: str, more: str) -> str:
    """Return which way is better, how many images there are, and what else is drawn."""
    return f"{_direction(table, metric).capitalize()}. Mean of {_images(table)}; {more}"


def _styles(table: ScoreTable) -> dict[str, plots.LineStyle]:
    """Return the styles by the names that figures show: a method has one colour in all figures of a table."""
    return {display_name(name): style for name, style in plots.line_styles(table.methods).items()}


# -- what tables call ----------------------------------------------------------------------------------

KINDS: dict[str, Callable[..., plots.Figure]] = {
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
) -> plots.Figure:
    """Draw one figure of a table: see ``ScoreTable.plot``."""
    if kind in ("strips", "cascade"):
        raise VitreousError(f"a table keeps no pictures: draw {kind} with vitreous.viz.plots.{kind}")
    if kind is not None and kind not in KINDS:
        raise VitreousError(f"kind={kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    plots.require()
    if path is not None:
        if Path(path).suffix.lower() not in plots.FORMATS:
            raise VitreousError(f"could not write {path}: a figure must end in one of {', '.join(plots.FORMATS)}")
        disk.check_file(path, overwrite)
    chosen = table.methods if methods is None else (methods,) if isinstance(methods, str) else tuple(methods)
    if not chosen:
        raise VitreousError("there are no methods to draw")
    if kind != "radar":
        metric = _metric_of(table, metric)
        for method in chosen:
            table[method, metric]
    if kind is None:
        kind = "curves" if any(table.curves.get((method, str(metric))) for method in chosen) else "bars"
    _check_options(kind, options)
    figure = KINDS[kind](table, metric, chosen, **options)
    if path is not None:
        plots.save(figure, path, overwrite=overwrite)
    return figure


def _check_options(kind: str, options: Mapping[str, Any]) -> None:
    names = list(inspect.signature(KINDS[kind]).parameters)[3:]
    for option in options:
        if option not in names:
            raise VitreousError(f"{kind} has no option {option!r}, but {', '.join(names)}{nearest(option, names)}")


def save_figures(table: ScoreTable, folder: str | Path, *, overwrite: bool = False) -> list[str]:
    """Write the figures of every metric into a new folder, as SVG; return the names of the files.

    Bars for every metric, curves where they were kept, and bins where at least two of them would not be thin.
    """
    plots.require()
    written: list[dict[str, str]] = []
    with disk.folder(folder, overwrite=overwrite) as draft:
        for metric in table.metrics:
            for kind, options in _kinds_of(table, metric).items():
                figure = KINDS[kind](table, metric, table.methods, **options)
                name = _free_name(f"{disk.slug(metric)}-{kind}", [row["file"].lower() for row in written])
                draft.write(name, plots.encoded(figure, name))
                written.append({"file": name, "kind": kind, "metric": disk.slug(metric)})
        draft.finish({"schema": SCHEMA, "figures": written})
    return [row["file"] for row in written]


def _free_name(stem: str, taken: Sequence[str]) -> str:
    """Return a name that no other figure has: two specs may look alike once brackets are gone."""
    names = [f"{stem}{suffix}.svg" for suffix in ("", *(f"-{number}" for number in range(2, len(taken) + 3)))]
    return next(name for name in names if name.lower() not in taken)


def _kinds_of(table: ScoreTable, metric: str) -> dict[str, dict[str, Any]]:
    """Return the kinds of figures that are worth drawing, with their options."""
    kinds: dict[str, dict[str, Any]] = {"bars": {}}
    if any(table.curves.get((method, metric)) for method in table.methods):
        kinds["curves"] = {}
    count = min(10, len(table.images) // THIN)
    if count >= 2 and "pred" in table.confidence:
        kinds["bins"] = {"count": count, "by": "mass"}
    return kinds
