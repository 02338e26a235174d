"""Which of a user's words a method does not follow: said once, before the work.

``evaluate``: many pictures, methods and metrics to one table.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from vitreous import __version__
from vitreous.datasets import Sample, batched, count_images, read_samples
from vitreous.errors import ImageError, TargetError, VitreousError, VitreousWarning
from vitreous.evaluation.config import EvaluationPlan, image_shape_of, with_batch_sizes
from vitreous.evaluation.explainers import named
from vitreous.evaluation.runner import Judged, unit
from vitreous.methods import Method, get_method, recommended_method
from vitreous.metrics import EvaluationConfig, Metric, get_metric
from vitreous.metrics.base import check_widths
from vitreous.metrics.batch_runner import Audit
from vitreous.metrics.bootstrap import SAMPLES
from vitreous.metrics.ranking import FLAGS, Curve
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress, track_progress
from vitreous.registry import defaults
from vitreous.registry.defaults import display_name
from vitreous.results import ScoreTable
from vitreous.tracing import Targets, plain_target
from vitreous.tracing.targets import ClassSets, check_output, class_sets, restriction

__all__ = [
    "evaluate",
    "heeded",
]


def heeded(hows: Sequence[Method], target: Any, output: str | None) -> None:
    """Warn of a value that some methods replace by their own, and of a class that cannot change their maps.

    ``target`` and ``value`` are as the user gave them; what was not given is not warned about.
    """
    if output is not None:
        check_output(output)
        own = {how.spec: how.outputs(output) for how in hows if how.outputs(output) != (output,)}
        if own:
            told = ", ".join(f"{display_name(name)} explains {' and '.join(values)}" for name, values in own.items())
            _warn(f"output={output!r} is not what is explained: {told}, whatever is asked for")
    target = plain_target(target)
    if target is not None and not (isinstance(target, str) and target == "pred"):
        blind = [display_name(how.spec) for how in hows if not how.class_specific]
        if blind:
            verb = "knows" if len(blind) == 1 else "know"
            _warn(f"{', '.join(blind)} {verb} no class: the map is the same for any target")


def _warn(text: str) -> None:
    """Warn at the line that called the library, so that Python tells it once for each of them."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "vitreous":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, VitreousWarning, stacklevel=level)


def evaluate(
    model: VisionModel | nn.Module,
    data: Any,
    methods: Any = None,
    metrics: Sequence[str | Metric] | str | Metric = defaults.METRICS,
    *,
    labels: Any = None,
    annotations: Any = None,
    target: Any = "pred",
    controls: bool = True,
    output: str | None = None,
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    groups: Sequence[int] | None = None,
    precision: str = "float32",
    batch_size: int | None = None,
    interpolation: str = "bilinear",
    tie_breaking: str = "random",
    nan_policy: str = "exclude",
    n_bootstrap: int = SAMPLES,
    seed: int = 0,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> ScoreTable:
    """Judge methods by metrics over pictures; return per-image scores, means and bootstrap intervals.

    ``data``: paths, pictures or preprocessed tensors, or an iterable of ``(image, label)``; ``labels``: the true
    classes, in order or by picture name; ``truth``: masks, boxes and parts (``vt.Annotation``), in order, by name or as
    a function of the picture. ``methods``: spellings, callables ``(model, inputs, classes) -> maps``, attribution
    objects, folders of ``.npy`` maps, tensors of maps, or a mapping of names to such; without them, what ``explain``
    does and ``generic``. ``target``: the explained class,
    ``"pred"``, ``"label"``, a class or one per image; metrics may have their own. ``classes`` restricts the softmax, of
    explainers too; ``among`` gives every image a set of classes to compare (``var``), one list or one for each.
    ``groups`` numbers the pictures that belong together (the cells of a grid): the bootstrap draws them as one.
    ``precision``: ``"float16"`` and ``"bfloat16"`` are audited against float32. ``batch``: states at once. ``memory``:
    a budget in GiB. ``progress``: a function of done and total states, or ``True`` for a bar on standard error.
    """
    vision_model, judges = wrap(model), _metrics(metrics)
    hows = named(
        (recommended_method("quick", vision_model), *defaults.evaluation_methods(vision_model.has_residual_stream))
        if methods is None
        else methods
    )
    heeded([how for how in hows.values() if isinstance(how, Method)], None, output)
    output = "logit" if output is None else output
    config = EvaluationConfig(  # bad words before the work
        output=output,
        precision=precision,
        interpolation=interpolation,
        tie_breaking=tie_breaking,
        nan_policy=nan_policy,
        seed=seed,
    )
    if controls:
        hows = {**hows, **{name: get_method(name) for name in defaults.CONTROLS if name not in hows}}
    _check_groups(groups, count_images(data))
    class_indices = restriction(vision_model, class_subset)
    aims = _Aims(vision_model, target, compare_classes)
    source = aims.aimed(read_samples(data, vision_model, labels, annotations))
    first = next(source, None)
    if first is None:
        raise ImageError("there are no pictures to judge with")
    size = (first.image.tensor.shape[1], first.image.tensor.shape[2])
    config = with_batch_sizes(
        replace(config, target=aims.explained, class_subset=class_indices), vision_model, size, batch_size, memory_gb
    )
    plan = EvaluationPlan(hows, judges, image_shape_of(vision_model, size), config, first.label is not None)
    with track_progress(progress, "states") as tell:
        run = _Run(vision_model, plan, tell, count_images(data))
        for group in batched(chain([first], source), plan.config.images_per_unit):
            run.judge(group)
    return run.table(tuple(hows), n_bootstrap, aims.said, groups)


class _Run:
    """One evaluation, unit by unit; of each, only the numbers stay."""

    def __init__(self, model: VisionModel, plan: EvaluationPlan, progress: Progress | None, total: int | None) -> None:
        self.view, self.plan, self.first = model, plan, plan
        self.done: list[Judged] = []
        self.on_progress = _ticker(plan, progress, total)
        self.began = time.perf_counter()

    def judge(self, group: Sequence[Sample]) -> None:
        judged = unit(self.view, group, self.plan, self.on_progress)
        sizes: dict[str, Any] = {"attribution_batch": judged.inner, "forward_batch": judged.at_once}
        self.plan = replace(self.plan, config=replace(self.plan.config, **sizes))  # too much once is not tried again
        self.done.append(replace(judged, maps={}))

    def table(
        self, methods: tuple[str, ...], samples: int, target: Any, groups: Sequence[int] | None = None
    ) -> ScoreTable:
        plan, done = self.plan, self.done
        _check_groups(groups, sum(len(each.names) for each in done))
        cells = [(name, label) for name in methods for label in plan.metrics]
        for cell in cells:
            check_widths(cell[1], [each.parts[cell] for each in done])
        parts = {cell: np.concatenate([each.parts[cell] for each in done]) for cell in cells}
        return ScoreTable(
            images=tuple(name for each in done for name in each.names),
            methods=methods,
            metrics=tuple(plan.metrics),
            parts=parts,
            judges=plan.metrics,
            degenerate={name: self._degenerate(name) for name in methods},
            confidence={name: np.concatenate([each.confidence[name] for each in done]) for name in done[0].confidence},
            curves={cell: _joined([each.curves[cell] for each in done]) for cell in cells},
            plan=self._record(target),
            samples=samples,
            seed=plan.config.seed,
            groups=None if groups is None else tuple(int(group) for group in groups),
        )

    def _degenerate(self, name: str) -> dict[str, int]:
        """Return how many maps of a method were constant, zero or not finite: of one explained class, the most."""
        modes = [mode for method, mode in self.done[0].flags if method == name]
        codes = [np.concatenate([each.flags[name, mode] for each in self.done]) for mode in modes]
        return {kind: max(int((c == code).sum()) for c in codes) for code, kind in enumerate(FLAGS) if code}

    def _record(self, target: Any) -> dict[str, Any]:
        states = sum((each.states for each in self.done), Counter[int]())
        audit: Audit | None = None
        for each in self.done:
            audit = each.audit if audit is None else audit | each.audit
        sizes = {name: getattr(self.plan.config, name) for name in ("attribution_batch", "forward_batch")}
        shrunk = self.plan.config != self.first.config
        return {
            **self.first.to_json(),
            **({"memory_ran_out": sizes} if shrunk else {}),
            "model": self.view.name,
            "device": self.view.device.type,
            "dtype": str(self.view.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "audit": None if audit is None else asdict(audit),
            "target": target,
            "baselines": self.plan.baselines,
            "images": sum(len(each.names) for each in self.done),
            "states": sum(states.values()),
            "states_by_kept_tokens": {str(kept): n for kept, n in sorted(states.items())},
            "seconds": {
                "total": time.perf_counter() - self.began,
                "explaining": sum(each.explaining for each in self.done),
            },
            "versions": {"vitreous": __version__, "torch": torch.__version__},
        }


def _check_groups(groups: Sequence[int] | None, images: int | None) -> None:
    if groups is not None and images is not None and len(groups) != images:
        raise ImageError(f"{len(groups)} groups for {images} pictures")


class _Aims:
    """The classes that a caller asks to explain and to compare, one picture after the other."""

    def __init__(self, model: VisionModel, target: Any, compare_classes: Any) -> None:
        self.view, self.target, self.targets = model, plain_target(target), Targets(target)
        word = self.target if isinstance(self.target, str) else None
        self.explained = word if word in ("pred", "label") else "pred" if self.target is None else "given"
        if callable(self.target):
            raise TargetError(f"target {self.target!r} is neither pred, label, a class, nor a list of classes")
        self.sets = ClassSets(compare_classes)
        self.given: list[int] = []

    @property
    def said(self) -> Any:
        """What goes into the record."""
        return self.target if self.targets.shared else self.given

    def aimed(self, source: Iterator[Sample]) -> Iterator[Sample]:
        total = 0
        for sample in source:
            index: int | None = None
            if self.explained == "given":
                word = self.targets.take([sample.index])
                index = self.view.class_index(word if self.targets.shared else word[0])
                self.given.append(index)
            yield replace(sample, target=index, compare_classes=self._set(sample))
            total += 1
        self.targets.check_exhausted(total)
        self.sets.check_exhausted(total)

    def _set(self, sample: Sample) -> tuple[int, ...] | None:
        rows = class_sets(self.view, 1, self.sets.take([sample.index]))
        return None if rows is None else tuple(rows[0].tolist())


def _joined(curves: Sequence[Any]) -> dict[str, Curve]:
    return {
        name: Curve(curve.x, np.concatenate([each[name].y for each in curves])) for name, curve in curves[0].items()
    }


def _ticker(plan: EvaluationPlan, progress: Progress | None, images: int | None) -> Callable[[int], None] | None:
    if progress is None:
        return None
    each = plan.forwards_per_image()
    done, total = 0, None if images is None or each is None else images * each

    def on_progress(states: int) -> None:
        nonlocal done
        done += states
        if states:
            progress(done, total)

    return on_progress


def _metrics(given: Any) -> dict[str, Metric]:
    several = given if isinstance(given, list | tuple) else [given]
    judges: dict[str, Metric] = {}
    for each in several:
        judge = get_metric(each)
        name = each.strip() if isinstance(each, str) else judge.spec
        if name in judges:
            raise VitreousError(f"the metric {name} is named twice")
        judges[name] = judge
    if not judges:
        raise VitreousError("there is nothing to judge by: give at least one metric")
    return judges
