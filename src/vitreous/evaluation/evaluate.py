"""Many images, methods and metrics to one table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np
from torch import nn

from vitreous.datasets import Sample, batched, count_images, read_samples
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.evaluation.plan import EvaluationPlan, explainers_of, image_shape_of, with_batch_sizes
from vitreous.evaluation.runner import ScoredUnit, degenerate_counts, provenance, score_unit
from vitreous.metrics import EvaluationConfig, Metric, get_metric
from vitreous.metrics.base import check_widths
from vitreous.metrics.bootstrap import SAMPLES
from vitreous.metrics.ranking import Array, Curve
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress, ProgressCounter, track_progress
from vitreous.registry import defaults
from vitreous.results import ScoreTable
from vitreous.tracing import Targets, plain_target
from vitreous.tracing.targets import ClassSets, class_sets, restriction


def evaluate(
    model: VisionModel | nn.Module,
    images: Any,
    methods: Any = None,
    metrics: Sequence[str | Metric] | str | Metric | None = None,
    *,
    target: Any = None,
    labels: Any = None,
    annotations: Any = None,
    groups: Sequence[int] | None = None,
    controls: bool = True,
    n_bootstrap: int = SAMPLES,
    output: str = "logit",
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    precision: str = "float32",
    interpolation: str = "bilinear",
    tie_breaking: str = "random",
    nan_policy: str = "exclude",
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> ScoreTable:
    """Score methods by metrics over images.

    Parameters
    ----------
    model : VisionModel or torch.nn.Module
        The model.
    images : path, sequence, Tensor, loader or iterable
        As in ``explain``, or an iterable of ``(image, label)``.
    methods : optional
        Specs, callables ``(model, inputs, classes) -> maps``, attribution objects, folders of ``.npy`` maps, tensors of
        maps, or a mapping of names to such; by default what ``explain`` does, and ``generic``.
    metrics : str, Metric or sequence of such, optional
        Specs; the usual six by default.
    target : optional
        The explained class: ``"pred"`` (the default), ``"label"``, a class, or one per image; metrics may have their
        own.
    labels : sequence or mapping, optional
        The true classes, in order or by the names of the images.
    annotations : sequence, mapping or callable, optional
        Masks, boxes and parts (``vt.Annotation``), in order, by name or as a function of the image.
    groups : sequence of int, optional
        A number for each image; those that share one (the cells of a grid) are resampled together.
    controls : bool, default True
        Add the control methods ``random``, ``constant`` and ``centre``.
    n_bootstrap : int, default 10000
        Resamples of the intervals.
    output, class_subset, compare_classes
        As in ``explain``.
    precision : {"float32", "float16", "bfloat16"}, default "float32"
        Of the forwards that metrics need; half precision is audited against float32.
    interpolation : {"bilinear", "nearest"}, default "bilinear"
        How maps are enlarged to pixels.
    tie_breaking : {"random", "raster", "reverse_raster"}, default "random"
        The order of equal values.
    nan_policy : {"exclude", "lowest", "raise"}, default "exclude"
        What becomes of maps that are not finite.
    seed : int, default 0
        Of everything random.
    batch_size : int, optional
        Perturbed images in one forward; what the device holds by default.
    memory_gb : float, optional
        A budget in GiB.
    progress : callable or bool, optional
        A function of done and total states, or ``True`` for a bar on standard error.

    Returns
    -------
    ScoreTable
        Scores of every image, means and bootstrap intervals.

    Notes
    -----
    Cost: equal states of all methods and metrics run once; ``vitreous metrics`` lists the forwards of each metric.

    Examples
    --------
    >>> table = vt.evaluate(model, images, ["ixg", "rollout"], "insertion(steps=4)", n_bootstrap=50)
    >>> table.methods
    ('ixg', 'rollout', 'random', 'constant', 'centre')
    """
    config = EvaluationConfig(  # a wrong word is refused before the work
        output=output,
        precision=precision,
        interpolation=interpolation,
        tie_breaking=tie_breaking,
        nan_policy=nan_policy,
        seed=seed,
    )
    vision_model, definitions = wrap(model), named_metrics(defaults.METRICS if metrics is None else metrics)
    explainers = explainers_of(methods, vision_model, controls, output)
    count = count_images(images)
    _check_groups(groups, count)
    classes = _ExplainedClasses(vision_model, target, compare_classes)
    config = replace(config, target=classes.mode, class_subset=restriction(vision_model, class_subset))
    source = classes.assign(read_samples(images, vision_model, labels, annotations))
    first = next(source, None)
    if first is None:
        raise ImageError("there are no images to evaluate with")
    size = first.image.tensor.shape[1], first.image.tensor.shape[2]
    config = with_batch_sizes(config, vision_model, size, batch_size, memory_gb)
    plan = EvaluationPlan(explainers, definitions, image_shape_of(vision_model, size), config, first.label is not None)
    units, start = list[ScoredUnit](), time.perf_counter()
    forwards = plan.forwards_per_image()
    with track_progress(progress, "states") as on_progress:
        counter = ProgressCounter(on_progress, None if count is None or forwards is None else count * forwards)
        for group in batched(chain([first], source), config.images_per_unit):
            unit = score_unit(vision_model, group, replace(plan, config=config), counter)
            config = unit.config  # what ran out of memory once is not tried again
            units.append(unit)
    record = _record(vision_model, plan, units, config)
    record["target"], record["seconds"]["total"] = classes.description, time.perf_counter() - start
    return _table(tuple(explainers), plan, units, record, n_bootstrap, groups)


def _table(
    methods: tuple[str, ...],
    plan: EvaluationPlan,
    units: Sequence[ScoredUnit],
    record: dict[str, Any],
    n_bootstrap: int,
    groups: Sequence[int] | None,
) -> ScoreTable:
    images = tuple(name for unit in units for name in unit.names)
    _check_groups(groups, len(images))
    for cell in units[0].parts:
        check_widths(cell[1], [unit.parts[cell] for unit in units])
    flags = _concatenated([unit.flags for unit in units])
    return ScoreTable(
        images=images,
        methods=methods,
        metrics=tuple(plan.metrics),
        parts=_concatenated([unit.parts for unit in units]),
        definitions=plan.metrics,
        degenerate={
            name: degenerate_counts([codes for (method, _), codes in flags.items() if method == name])
            for name in methods
        },
        confidence=_concatenated([unit.confidence for unit in units]),
        curves={cell: _joined([unit.curves[cell] for unit in units]) for cell in units[0].curves},
        plan=record,
        n_bootstrap=n_bootstrap,
        seed=plan.config.seed,
        groups=None if groups is None else tuple(int(group) for group in groups),
    )


def _concatenated(arrays: Sequence[Mapping[Any, Array]]) -> dict[Any, Array]:
    return {key: np.concatenate([unit[key] for unit in arrays]) for key in arrays[0]}


def _joined(curves: Sequence[Any]) -> dict[str, Curve]:
    return {
        name: Curve(curve.x, np.concatenate([other[name].y for other in curves])) for name, curve in curves[0].items()
    }


def _record(
    model: VisionModel, plan: EvaluationPlan, units: Sequence[ScoredUnit], config: EvaluationConfig
) -> dict[str, Any]:
    """Return how the scores were made; ``config`` has the sizes that were left in the end."""
    states = sum((unit.states for unit in units), Counter[int]())
    audits = [unit.audit for unit in units if unit.audit is not None]
    sizes = {name: getattr(config, name) for name in ("attribution_batch", "forward_batch")}
    return {
        **plan.to_json(),
        **({"memory_ran_out": sizes} if config != plan.config else {}),
        **provenance(model),
        "audit": asdict(reduce(or_, audits)) if audits else None,
        "baselines": plan.baselines,
        "images": sum(len(unit.names) for unit in units),
        "states": sum(states.values()),
        "states_by_kept_tokens": {str(tokens): count for tokens, count in sorted(states.items())},
        "seconds": {"explaining": sum(unit.seconds for unit in units)},
    }


def _check_groups(groups: Sequence[int] | None, images: int | None) -> None:
    if groups is not None and images is not None and len(groups) != images:
        raise ImageError(f"{len(groups)} groups for {images} images")


class _ExplainedClasses:
    """The classes that a caller asks to explain and to compare, one image after the other."""

    def __init__(self, model: VisionModel, target: Any, compare_classes: Any) -> None:
        self.model, self.target = model, "pred" if target is None else plain_target(target)
        if callable(self.target):
            raise TargetError(f"target {self.target!r} is neither pred, label, a class, nor a list of classes")
        self.targets, self.sets = Targets(self.target), ClassSets(compare_classes)
        self.mode = self.target if isinstance(self.target, str) and self.target in ("pred", "label") else "given"
        self.indices: list[int] = []

    @property
    def description(self) -> Any:
        """What goes into the record."""
        return self.target if self.targets.shared else self.indices

    def assign(self, source: Iterator[Sample]) -> Iterator[Sample]:
        """Yield the samples with their classes."""
        total = 0
        for sample in source:
            index: int | None = None
            if self.mode == "given":
                target = self.targets.take([sample.index])
                index = self.model.class_index(target if self.targets.shared else target[0])
                self.indices.append(index)
            rows = class_sets(self.model, 1, self.sets.take([sample.index]))
            yield replace(sample, target=index, compare_classes=None if rows is None else tuple(rows[0].tolist()))
            total += 1
        self.targets.check_exhausted(total)
        self.sets.check_exhausted(total)


def named_metrics(metrics: Any, by_spec: bool = False) -> dict[str, Metric]:
    """Return metrics by the texts that name them, or by their shortest specs."""
    definitions: dict[str, Metric] = {}
    for one in metrics if isinstance(metrics, list | tuple) else [metrics]:
        metric = get_metric(one)
        name = one.strip() if isinstance(one, str) and not by_spec else metric.spec
        if name in definitions:
            raise VitreousError(f"the metric {name} is named twice")
        definitions[name] = metric
    if not definitions:
        raise VitreousError("there is nothing to score by: give at least one metric")
    return definitions
