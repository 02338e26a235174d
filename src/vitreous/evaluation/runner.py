"""One unit of evaluation: a group of images, the methods and metrics of a plan, and what comes of them.

A unit is a function of its arguments and of nothing else. A table is a loop over units, on one machine or on many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitreous import __version__
from vitreous.datasets import Sample
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.evaluation.plan import EvaluationPlan, Explainer, ExternalExplainer
from vitreous.methods import Method, compute_attributions
from vitreous.metrics import Curve, Evaluation, EvaluationConfig, Evaluator, Maps, Reattribution, Request
from vitreous.metrics.batch_runner import Audit, BatchRunner
from vitreous.metrics.ranking import FLAGS, Array
from vitreous.models import VisionModel
from vitreous.models.submodels import SubModel
from vitreous.tracing import Context, Pass, Target
from vitreous.tracing.memory import InnerBatch
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.targets import class_sets

# -- attributions --------------------------------------------------------------------------------------


@dataclass
class Cost:
    """The seconds of a method for some maps: what it did by itself, and the passes that it shares, each taken whole.

    Their sum is about what it takes alone: a shared pass may do more than one of its methods needs. A result that two
    methods are made of is counted with the first of them.
    """

    own: float = 0.0
    shared: float = 0.0
    maps: int = 0


class _Job(NamedTuple):
    """Some methods to run on inputs, each made of one of the unit's images, for one class each."""

    model: VisionModel
    methods: Mapping[str, Explainer]
    images: Tensor
    inputs: Tensor
    classes: Tensor
    seed: int


@dataclass
class Attributor:
    """Explains the images of a unit by the methods of its plan, which share their passes."""

    model: VisionModel
    plan: EvaluationPlan
    samples: Sequence[Sample]
    on_progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self.inputs = self.model.cast(torch.stack([sample.image.tensor for sample in self.samples]))
        self.inner = InnerBatch(self.plan.config.attribution_batch)
        self.costs = {name: Cost() for name in self.plan.methods}
        sets = [sample.compare_classes for sample in self.samples]
        if None in sets and any(classes is not None for classes in sets):
            raise TargetError(f"{self.samples[sets.index(None)].image.name} has no set of classes, but others have")
        self.compare_classes = None if None in sets else class_sets(self.model, len(sets), sets)

    def jobs(self, classes: Mapping[str, Tensor]) -> tuple[list[_Job], dict[str, Array]]:
        """Return what explains every image for every class, nothing twice, and the rows of each mode.

        ``classes`` has one class per image for each mode.
        """
        jobs: list[_Job] = []
        rows: dict[str, Array] = {}
        total = 0
        for mode, wanted in classes.items():
            own: Array = np.full(len(wanted), -1)
            for earlier in rows:
                own = np.where((own < 0) & (wanted == classes[earlier]).cpu().numpy(), rows[earlier], own)
            new = np.flatnonzero(own < 0)
            if len(new):
                own[new] = total + np.arange(len(new))
                total += len(new)
                images, methods = torch.from_numpy(new), self.plan.methods
                if jobs:
                    methods = {name: method for name, method in methods.items() if method.class_specific}
                chosen = wanted[images.to(wanted.device)]
                jobs.append(_Job(self.model, methods, images, self.inputs[images], chosen, self.plan.config.seed))
            rows[mode] = own
        return jobs, rows

    def maps(self, results: Sequence[Mapping[str, Tensor]], rows: Mapping[str, Array]) -> dict[str, Maps]:
        """Put the results of ``jobs`` together."""
        same = dict.fromkeys(rows, np.arange(len(self.inputs)))
        return {
            name: Maps(
                torch.cat([result[name] for result in results if name in result]),
                rows if method.class_specific else same,
            )
            for name, method in self.plan.methods.items()
        }

    def reattribution_jobs(
        self, requests: Mapping[str, Iterable[Reattribution]], classes: Mapping[str, Tensor], logits: Tensor
    ) -> dict[tuple[Reattribution, str], _Job]:
        """Return what metrics ask to be explained again: other images, another seed, class or model."""
        return {
            (request, mode): self._reattribution_job(request, classes[mode], logits)
            for mode, requests_of_mode in requests.items()
            for request in requests_of_mode
        }

    def _reattribution_job(self, request: Reattribution, classes: Tensor, logits: Tensor) -> _Job:
        model = self.model if request.under is None else request.under(self.model)
        for name, method in self.plan.methods.items():
            if isinstance(method, ExternalExplainer):
                _refuse_reattribution(name, method, request, model)
        inputs, config = self.inputs, self.plan.config
        if request.images is not None:
            inputs = request.images.of(inputs, self.model.preprocess, config.seed).flatten(0, 1)
        if request.target != "same":
            others = logits.scatter(1, classes[:, None].to(logits.device), -torch.inf)
            if request.target == "random":
                random = PRNGKey.of_images(config.seed, "other class", self.inputs).uniform(logits.shape[1])
                others = torch.where(others == -torch.inf, -1.0, random.to(others))
            classes = others.argmax(dim=1)
        images = torch.arange(len(self.inputs)).repeat_interleave(request.num_maps)
        seed = config.seed if request.seed is None else request.seed
        return _Job(model, self.plan.methods, images, inputs, classes[images.to(classes.device)], seed)

    def run(self, jobs: Iterable[_Job]) -> Iterator[dict[str, Tensor]]:
        """Yield the maps of each job by method."""
        for job in jobs:
            maps: dict[str, Tensor] = {}
            own = {name: method for name, method in job.methods.items() if isinstance(method, Method)}
            if own:
                context = self._context(job)
                for names, passes in _pass_groups(job.model, own):
                    began = self._now()
                    with torch.autocast(context.inputs.device.type, enabled=False):
                        context.prepare(passes)
                    taken = self._now() - began
                    for name in names:
                        self._spend(name, taken, shared=len(names) > 1)
                for name, method in own.items():
                    began = self._now()
                    (attribution,) = compute_attributions(context, [method], check=False)
                    maps[name] = attribution.map
                    self._spend(name, self._now() - began, len(job.inputs))
            for name, external in job.methods.items():
                if isinstance(external, ExternalExplainer):
                    began = self._now()
                    samples = [self.samples[image] for image in job.images.tolist()]
                    maps[name] = external.maps(name, job.model, samples, job.inputs, job.classes)
                    self._spend(name, self._now() - began, len(job.inputs))
                    self._tick(len(job.inputs))
            yield maps

    def _context(self, job: _Job) -> Context:
        config = self.plan.config
        target = Target(
            classes=job.classes.cpu(),
            output=config.output,
            class_subset=config.class_subset,
            compare_classes=None if self.compare_classes is None else self.compare_classes[job.images],
        )
        return Context(job.model, job.inputs, target, job.seed, self.inner, config.memory_gb, self._tick)

    def _now(self) -> float:
        if self.inputs.is_cuda:
            torch.cuda.synchronize(self.inputs.device)
        return time.perf_counter()

    def _spend(self, name: str, seconds: float, maps: int = 0, shared: bool = False) -> None:
        cost = self.costs[name]
        cost.own += 0.0 if shared else seconds
        cost.shared += seconds if shared else 0.0
        cost.maps += maps

    def _tick(self, inputs: int) -> None:
        """Report that a batch is done, which is a moment to stop at; explaining runs no states."""
        if self.on_progress is not None:
            self.on_progress(0)


def _refuse_reattribution(name: str, method: ExternalExplainer, request: Reattribution, model: VisionModel) -> None:
    """Refuse to ask an explanation from elsewhere what it cannot answer."""
    if not method.live:
        raise VitreousError(f"{name}: {method.description} cannot be made again, which a metric asks for")
    if method.bound and request.under is not None:
        raise VitreousError(f"{name} knows its own model only, a metric asks about another: give a callable")
    if isinstance(model, SubModel):  # a callable would get the model it is a part of
        raise VitreousError(
            f"{name}: a {method.description} cannot be asked about {model.name} with another head or start"
        )


def _pass_groups(model: VisionModel, methods: Mapping[str, Method]) -> list[tuple[list[str], list[Pass]]]:
    """Return the passes that these methods are known to need, those that run together in one group, and who needs them.

    Those of the output that is explained come first; what needs no backward rides along with the first group.
    """
    groups: dict[Any, dict[str, list[Pass]]] = {}
    for name, method in methods.items():
        for one in method.passes(model):
            kind = (one.output, one.composite) if one.backward else None
            groups.setdefault(kind, {}).setdefault(name, []).append(one)
    forward = groups.pop(None, {})
    order = sorted(groups, key=lambda kind: kind[0] is not None) or [None]
    for name, passes in forward.items():
        groups.setdefault(order[0], {}).setdefault(name, []).extend(passes)
    by_method = [groups.get(kind, {}) for kind in order]
    return [(list(group), [one for passes in group.values() for one in passes]) for group in by_method]


# -- units ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoredUnit:
    """The scores of one unit; images are the first axis of everything.

    ``parts[method, metric]`` ``[n, P]`` is what scores are made of, ``curves`` what they were read from, and ``flags``
    has the code of every map in ``FLAGS``, by method and explained class. ``config`` is that of the plan, with smaller
    batches where memory ran out; ``seconds`` are those of explaining.
    """

    names: tuple[str, ...]
    parts: Mapping[tuple[str, str], Array]
    curves: Mapping[tuple[str, str], Mapping[str, Curve]]
    flags: Mapping[tuple[str, str], Array]
    confidence: Mapping[str, Array]
    states: Counter[int]
    audit: Audit | None
    config: EvaluationConfig
    seconds: float


@dataclass(frozen=True, eq=False)
class AttributedUnit:
    """The maps of one unit, what it took to make them (all, and by method), and the classes they explain, by mode."""

    maps: Mapping[str, Maps]
    classes: Mapping[str, Tensor]
    config: EvaluationConfig
    seconds: float
    costs: Mapping[str, Cost]


def attribute_unit(
    model: VisionModel,
    samples: Sequence[Sample],
    plan: EvaluationPlan,
    modes: Sequence[str] = ("given",),
    on_progress: Callable[[int], None] | None = None,
) -> AttributedUnit:
    """Explain some images together and score nothing: what ``score_unit`` takes as ``maps``."""
    _check_sizes(samples, plan)
    attributor = Attributor(model, plan, samples, on_progress)
    runner = BatchRunner(model, replace(plan.config, precision="float32"), on_progress)
    classes = _classes(samples, plan, runner.forward(attributor.inputs))
    wanted = {mode: classes.get(mode, classes["pred"]) for mode in modes}
    start = time.perf_counter()
    jobs, rows = attributor.jobs(wanted)
    maps = attributor.maps(list(attributor.run(jobs)), rows)
    config = replace(plan.config, attribution_batch=attributor.inner.size)
    return AttributedUnit(maps, wanted, config, time.perf_counter() - start, attributor.costs)


def score_unit(
    model: VisionModel,
    samples: Sequence[Sample],
    plan: EvaluationPlan,
    on_progress: Callable[[int], None] | None = None,
    maps: Mapping[str, Maps] | None = None,
) -> ScoredUnit:
    """Explain and score some images together; with ``maps`` of every method, score these.

    ``on_progress`` is called after every inner batch with the number of states that it held (0 while explaining); what
    it raises ends the unit there, and nothing is left behind.
    """
    _check(samples, plan)
    attributor = Attributor(model, plan, samples, on_progress)
    evaluator = Evaluator(model, list(plan.metrics.values()), plan.image_shape, plan.columns, plan.config, on_progress)
    logits = evaluator.runner.forward(attributor.inputs)
    classes = _classes(samples, plan, logits)
    wanted = {mode: classes.get(mode, classes["pred"]) for mode in evaluator.modes}
    start = time.perf_counter()
    if maps is None:
        jobs, rows = attributor.jobs(wanted)
        maps = attributor.maps(list(attributor.run(jobs)), rows)
    again = attributor.reattribution_jobs(evaluator.reattributions, wanted, logits)
    explained: dict[str, dict[tuple[Request, str], Array]] = {name: {} for name in plan.methods}
    for (request, mode), result in zip(again, attributor.run(again.values()), strict=True):
        for name, values in result.items():
            shape = (-1, request.num_maps, *values.shape[1:])
            explained[name][request, mode] = values.view(shape).cpu().numpy()
    seconds = time.perf_counter() - start
    evaluator.add(attributor.inputs, logits, classes, maps, [sample.annotation for sample in samples])
    answers = evaluator.finish(explained)
    first = next(iter(answers.values()))
    cells = _read(plan, answers)
    return ScoredUnit(
        names=tuple(sample.image.name for sample in samples),
        parts={cell: parts for cell, (parts, _) in cells.items()},
        curves={cell: curves for cell, (_, curves) in cells.items()},
        flags={(name, mode): answers[name].with_classes(mode).flags for name in plan.methods for mode in wanted},
        confidence={
            name: first.with_classes(score_class=name).probability() for name in plan.columns if name != "given"
        },
        states=evaluator.runner.states,
        audit=evaluator.runner.audit,
        config=replace(
            plan.config, attribution_batch=attributor.inner.size, forward_batch=evaluator.runner.inner_batch.size
        ),
        seconds=seconds,
    )


def degenerate_counts(codes: Sequence[Array]) -> dict[str, int]:
    """Return how many maps are constant, zero or not finite, by their codes: of one explained class, the most."""
    return {kind: max(int((column == code).sum()) for column in codes) for code, kind in enumerate(FLAGS) if code}


def provenance(model: VisionModel) -> dict[str, Any]:
    """Return what else can change the last digits of a score."""
    return {
        "model": model.name,
        "device": model.device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "versions": {"vitreous": __version__, "torch": torch.__version__},
    }


def _read(
    plan: EvaluationPlan, answers: Mapping[str, Evaluation]
) -> dict[tuple[str, str], tuple[Array, Mapping[str, Curve]]]:
    """Read every metric, the methods side by side: sorting maps takes longer than making many of them."""

    def read(name: str) -> dict[tuple[str, str], tuple[Array, Mapping[str, Curve]]]:
        return {(name, label): metric.read(answers[name]) for label, metric in plan.metrics.items()}

    with ThreadPoolExecutor(thread_name_prefix="vitreous-read") as pool:
        return {cell: values for row in pool.map(read, plan.methods) for cell, values in row.items()}


def _classes(samples: Sequence[Sample], plan: EvaluationPlan, logits: Tensor) -> dict[str, Tensor]:
    """Return the classes of every image: the predicted, the true and the given ones."""
    classes = {"pred": logits.argmax(dim=1)}
    target, subset = plan.config.target, plan.config.class_subset
    if plan.has_labels:
        classes["label"] = _column(samples, "label").to(logits.device)
    if target != "pred":
        classes["given"] = classes["label"] if target == "label" else _column(samples, "target").to(logits.device)
    for name, indices in classes.items():
        if subset is not None and not torch.isin(indices.cpu(), torch.tensor(subset)).all():
            raise TargetError(f"a {name} class is not among the classes the softmax is restricted to")
    return classes


def _column(samples: Sequence[Sample], name: str) -> Tensor:
    for sample in samples:
        if getattr(sample, name) is None:
            raise TargetError(f"{sample.image.name} has no {name}, but other images have")
    return torch.tensor([getattr(sample, name) for sample in samples])


def _check_sizes(samples: Sequence[Sample], plan: EvaluationPlan) -> None:
    """Refuse a unit without images, or with images that do not fit its plan."""
    if not samples:
        raise ImageError("there are no images to evaluate with")
    sizes = {tuple(sample.image.tensor.shape[1:]) for sample in samples} | {plan.image_shape.pixels}
    if len(sizes) > 1:
        raise ImageError(f"images of different sizes cannot be evaluated together: {sorted(sizes)}")


def _check(samples: Sequence[Sample], plan: EvaluationPlan) -> None:
    _check_sizes(samples, plan)
    if plan.config.target == "label" and not plan.has_labels:
        raise TargetError("target='label' needs the true classes: give labels")
    for label, metric in plan.metrics.items():
        if metric.needs_labels and not plan.has_labels:
            raise TargetError(f"{label} needs the true classes: give labels")
        for kind in metric.annotation_kinds:
            for sample in samples:
                if sample.annotation is None or not sample.annotation.has(kind):
                    raise ImageError(f"{label} needs the {kind} of {sample.image.name}: give annotations")
