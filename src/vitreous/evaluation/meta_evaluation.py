"""Meta-evaluation: every metric scores maps whose worth is known, and is judged by that."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from vitreous.errors import VitreousError, describe_error, one_line
from vitreous.evaluation.evaluate import evaluate, named_metrics
from vitreous.evaluation.meta_maps import (
    CENTRE,
    MIXES,
    ORACLE,
    STRENGTHS,
    MapRecall,
    MeasuredScenes,
    closeness,
    graded_maps,
    measure_scenes,
)
from vitreous.evaluation.meta_statistics import CORE, Parts, assess, not_tried
from vitreous.evaluation.plan import forwards_per_image, image_shape_of
from vitreous.evaluation.runner import provenance
from vitreous.html import duration
from vitreous.methods import compute_attributions, get_method, to_grid
from vitreous.metrics import ImageShape, Metric, Reattribution, list_metrics
from vitreous.models import VisionModel, wrap
from vitreous.models.registry import device_of
from vitreous.progress import Progress, track_progress
from vitreous.registry import check_at_least
from vitreous.results import MetaEvaluation, ScoreTable
from vitreous.results.diagnostics import MetricAssessment
from vitreous.tracing import Context, Target
from vitreous.world.models import ADAPTER

BASELINES = ("black", "zero_norm", "mean_channel", "blur_tv", "uniform_norm")
"""Tried in this order, those that a metric has already left out."""
N_BOOTSTRAP = 2000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class MetaRun:
    """One evaluation: some metrics, some maps, one seed. ``baselines`` names what each metric puts in, if not its own.

    With ``again``, maps are handed in as explainers that can be asked about other images.
    """

    metrics: Mapping[str, Metric]
    maps: tuple[str, ...]
    seed: int = 0
    again: bool = False
    baselines: Mapping[str, str] = field(default_factory=dict)

    def states(self, image_shape: ImageShape) -> int:
        """Return how many states each scene takes, if the explained class is the true one."""
        requests = [request for metric in self.metrics.values() for request in metric.requests(image_shape).values()]
        return forwards_per_image(requests, image_shape, len(self.maps))


def refusal(metric: Metric, image_shape: ImageShape) -> str | None:
    """Return why maps of scenes say nothing about a metric, or ``None`` where they do."""
    try:
        requests = [one for one in metric.requests(image_shape).values() if isinstance(one, Reattribution)]
    except VitreousError as error:
        return f"cannot be run here: {one_line(str(error))}"
    if any(request.under is not None for request in requests):
        return "compares maps of two models; a map of the scene has no second model"
    if any(request.target != "same" for request in requests):
        return "compares maps of two classes; a map of the scene has one"
    if any(request.images is None for request in requests):
        return "compares maps of two seeds; a map of the scene has none"
    return None


def runs_of(metrics: Mapping[str, Metric], image_shape: ImageShape, seeds: int, baselines: int) -> Iterator[MetaRun]:
    """Yield the runs: the first seed with all maps, the others and other baselines without the mixes."""
    again = {label: metric.num_reattributions(image_shape) > 0 for label, metric in metrics.items()}
    for is_again in (False, True):
        chosen = {label: metric for label, metric in metrics.items() if again[label] is is_again}
        if chosen:
            yield MetaRun(chosen, (*CORE, *MIXES), 0, is_again)
            yield from (MetaRun(chosen, CORE, seed, is_again) for seed in range(1, seeds))
    variants = {label: _on_baselines(metric, baselines) for label, metric in metrics.items() if not again[label]}
    for number in range(baselines):
        others = {label: changed[number] for label, changed in variants.items() if number < len(changed)}
        if others:
            names = {label: name for label, (name, _) in others.items()}
            yield MetaRun({label: metric for label, (_, metric) in others.items()}, CORE, baselines=names)


def _on_baselines(metric: Metric, count: int) -> list[tuple[str, Metric]]:
    """Return the metric on other baselines, as many as there are up to ``count``; none, if it puts nothing in."""
    names = [name for name in metric.settings if name == "baseline" or name.endswith("_baseline")]
    own = {metric.settings[name] for name in names}
    variants: list[tuple[str, Metric]] = []
    for other in BASELINES:
        if names and other not in own and len(variants) < count:
            try:
                variants.append((other, type(metric)(**{**metric.settings, **dict.fromkeys(names, other)})))
            except VitreousError:  # a baseline that this metric does not take
                continue
    return variants


def meta_evaluate(
    metrics: Sequence[str | Metric] | str | Metric | None = None,
    *,
    model: str | VisionModel | nn.Module = "world",
    scenes: int = 24,
    seeds: int = 2,
    baselines: int = 2,
    n_bootstrap: int = N_BOOTSTRAP,
    output: str = "logit",
    start: int = 0,
    shortcut: bool = False,
    device: str = "auto",
    precision: str = "float32",
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> MetaEvaluation:
    """Judge metrics where the truth is known: in the bundled world.

    Each metric scores the same maps of test scenes: the oracle (what removing each thing really costs the model), the
    oracle made worse in known ways, the centre and random maps. It passes if it sees that order. What it will cost is
    logged before the work.

    Parameters
    ----------
    metrics : str, Metric or sequence of such, optional
        Specs; all metrics by default.
    model : str, VisionModel or torch.nn.Module, default "world"
        A model of the world's classes, or the name of a bundled one.
    scenes : int, default 24
        Test scenes.
    seeds : int, default 2
        Runs, which differ in ties, masks and noise.
    baselines : int, default 2
        Further baselines on which metrics that replace removed pixels are tried.
    n_bootstrap : int, default 2000
        Resamples of the intervals.
    output : {"logit", "prob"}, default "logit"
        What the oracle measures.
    start : int, default 0
        The first scene.
    shortcut : bool, default False
        Scenes with a marker.
    device : str, default "auto"
        For a bundled model.
    precision, batch_size, memory_gb, progress
        As in ``evaluate``.

    Returns
    -------
    MetaEvaluation
        A verdict for each metric, and the numbers behind it.

    Examples
    --------
    >>> found = vt.meta_evaluate("insertion(steps=4)", scenes=3, seeds=1, baselines=0, n_bootstrap=50)
    >>> found.assessments[0].family
    'faithfulness'
    """
    for name, number, least in (("scenes", scenes, 2), ("seeds", seeds, 1), ("baselines", baselines, 0)):
        check_at_least(name, number, least)
    vision_model = (
        wrap(ADAPTER.load(model).to(device_of(device)), name=model) if isinstance(model, str) else wrap(model)
    )
    chosen = named_metrics([info.name for info in list_metrics()] if metrics is None else metrics, by_spec=True)
    start_time = time.perf_counter()
    measured = measure_scenes(vision_model, scenes, start, output, shortcut)
    options = {"batch_size": batch_size, "memory_gb": memory_gb, "precision": precision}
    evaluator = _MapEvaluator(vision_model, measured, options)
    refusals = evaluator.refusals(chosen)
    fit = {label: metric for label, metric in chosen.items() if label not in refusals}
    runs = list(runs_of(fit, evaluator.image_shape, seeds, baselines))
    total = sum(run.states(evaluator.image_shape) for run in runs) * len(measured)
    _announce(vision_model, measured, len(fit), total)
    results: list[tuple[MetaRun, Mapping[str, Parts]]] = []
    done = 0
    with track_progress(progress, "states") as on_progress:
        for run in runs:
            table = evaluator.score(run, progress=_shifted(on_progress, done, total))
            done += table.plan["states"]
            parts = {
                label: {name: table.parts[name, metric.spec] for name in run.maps}
                for label, metric in run.metrics.items()
            }
            results.append((run, parts))
    assessments = [
        not_tried(label, metric, refusals[label]) if label in refusals else _assess(label, metric, results, n_bootstrap)
        for label, metric in chosen.items()
    ]
    return MetaEvaluation(
        tuple(assessments),
        len(measured),
        measured.left_out,
        evaluator.closeness,
        {
            **provenance(vision_model),
            "output": output,
            "start": start,
            "shortcut": shortcut,
            "seeds": seeds,
            "baselines": baselines,
            "precision": precision,
            "n_bootstrap": n_bootstrap,
            "strengths": {kind: list(pair) for kind, pair in STRENGTHS.items()},
            "states": done,
            "forwards_for_the_oracle": measured.forwards,
            "seconds": time.perf_counter() - start_time,
        },
    )


class _MapEvaluator:
    """Scores the maps of some scenes, as tensors and as explainers that can be asked about other images."""

    def __init__(self, model: VisionModel, scenes: MeasuredScenes, options: Mapping[str, Any]) -> None:
        self.model, self.scenes, self.options = model, scenes, options
        self.image_shape = image_shape_of(model, (scenes.owner.shape[-1],) * 2)
        grid = model.grid(scenes.inputs[:1])
        context = Context(model, scenes.inputs[:1], Target(classes=torch.zeros(1, dtype=torch.int64)))
        (attribution,) = compute_attributions(context, [get_method(CENTRE)])
        centre = to_grid(attribution.map, "pixel", model, context.inputs).float().cpu()
        self.tensors = {**graded_maps(scenes, grid), CENTRE: centre.expand(len(scenes), -1, -1)}
        self.explainers = {name: CENTRE if name == CENTRE else MapRecall(name, scenes, grid) for name in self.tensors}
        self.closeness = closeness({name: self.tensors[name] for name in (*CORE, *MIXES)})

    def score(self, run: MetaRun, scenes: slice = slice(None), progress: Progress | None = None) -> ScoreTable:
        """Return the scores of one run, on all scenes or some."""
        maps: Mapping[str, Any] = self.explainers if run.again else self.tensors
        return evaluate(
            self.model,
            self.scenes.inputs[scenes].cpu(),
            {name: maps[name] for name in run.maps},
            list({metric.spec: metric for metric in run.metrics.values()}.values()),
            labels=self.scenes.labels[scenes],
            annotations=self.scenes.annotations[scenes],
            controls=False,
            seed=run.seed,
            progress=progress,
            **self.options,
        )

    def refusals(self, metrics: Mapping[str, Metric]) -> dict[str, str]:
        """Return why metrics cannot be tried: known beforehand, or from a rehearsal on one map of one scene."""
        reasons = {label: refusal(metric, self.image_shape) for label, metric in metrics.items()}
        fit = {label: metric for label, metric in metrics.items() if reasons[label] is None}
        for run in runs_of(fit, self.image_shape, 1, 0):
            rehearsal = replace(run, maps=(ORACLE,))
            if self._rehearse(rehearsal) is not None:
                for label, metric in run.metrics.items():
                    reasons[label] = self._rehearse(replace(rehearsal, metrics={label: metric}))
        return {label: reason for label, reason in reasons.items() if reason is not None}

    def _rehearse(self, run: MetaRun) -> str | None:
        """Return what goes wrong in a run of one scene."""
        try:
            self.score(run, slice(1))
        except Exception as error:  # whatever is wrong with one metric, the others go on
            return f"cannot be run here: {describe_error(error)[:200]}"
        return None


def _announce(model: VisionModel, scenes: MeasuredScenes, metrics: int, states: int) -> None:
    """Log what it will cost, at the speed of a few forwards."""
    few, start = scenes.inputs[:16], time.perf_counter()
    with torch.no_grad():
        model.logits(few).cpu()
    rate = len(few) / (time.perf_counter() - start)
    text = "meta-evaluation of %d metrics on %d scenes: about %s forwards, about %s at %.0f a second"
    _log.info(text, metrics, len(scenes), f"{states:,}", duration(states / rate), rate)


def _shifted(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Return the progress of one run as that of all of them."""
    if progress is None:
        return None
    return lambda states, _: progress(done + int(states), max(total, done + int(states)))


def _assess(
    label: str, metric: Metric, results: Sequence[tuple[MetaRun, Mapping[str, Parts]]], n_bootstrap: int
) -> MetricAssessment:
    """Return what the runs say about one metric."""
    own = [(run, parts[label]) for run, parts in results if label in parts]
    seeds = [parts for run, parts in own if not run.baselines]
    others = {run.baselines[label]: parts for run, parts in own if run.baselines}
    try:
        return assess(label, metric, seeds, others, n_bootstrap)
    except VitreousError as error:
        return not_tried(label, metric, str(error))
