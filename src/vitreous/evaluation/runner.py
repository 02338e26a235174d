"""The maps of one unit: every method for every class that is asked for, nothing twice.

One unit of judging: a group of pictures, the methods and metrics of a plan, and what comes of them.

A unit is a function of its arguments and of nothing else. A table is a loop over units, on one machine or on many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.datasets import Sample
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.evaluation.config import EvaluationPlan
from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.methods import Method, compute_attributions
from vitreous.metrics import Curve, Evaluation, Evaluator, Maps, Reattribution, Request
from vitreous.metrics.batch_runner import Audit, BatchRunner
from vitreous.metrics.ranking import Array
from vitreous.models import VisionModel
from vitreous.models.submodels import SubModel
from vitreous.tracing import Context, Pass, Target
from vitreous.tracing.memory import InnerBatch
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.targets import class_sets

__all__ = [
    "Cost",
    "Explaining",
    "Judged",
    "Mapped",
    "mapped",
    "unit",
]


@dataclass
class Cost:
    """The seconds of a method for some maps: what it did by itself, and the passes that it shares, each taken whole.

    Their sum is about what it takes alone: a shared pass may do more than one of its methods needs. A result that two
    methods are made of is counted with the first of them.
    """

    own: float = 0.0
    shared: float = 0.0
    maps: int = 0


@dataclass
class Explaining:
    """Explains the pictures of a unit by the methods of its plan, which share their passes."""

    model: VisionModel
    plan: EvaluationPlan
    samples: Sequence[Sample]
    inputs: Tensor
    on_progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        self.inner = InnerBatch(self.plan.config.attribution_batch)
        self.costs = {name: Cost() for name in self.plan.methods}
        sets = [sample.compare_classes for sample in self.samples]
        if None in sets and any(set_ is not None for set_ in sets):
            raise TargetError(f"{self.samples[sets.index(None)].image.name} has no set of classes, but others have")
        self.among = None if None in sets else class_sets(self.model, len(sets), sets)

    def maps(self, classes: Mapping[str, Tensor]) -> dict[str, Maps]:
        """Explain every picture for every class; ``classes`` has one per picture for each mode."""
        passes, rows = _passes(classes)
        values: dict[str, list[Tensor]] = {name: [] for name in self.plan.methods}
        for number, (images, wanted) in enumerate(passes):
            asked = [name for name, how in self.plan.methods.items() if number == 0 or how.class_specific]
            for name, maps in self._explain(self.model, asked, images, self.inputs[images], wanted).items():
                values[name].append(maps)
        everyone = np.arange(len(self.inputs))
        return {
            name: Maps(torch.cat(values[name]), rows if how.class_specific else dict.fromkeys(rows, everyone))
            for name, how in self.plan.methods.items()
        }

    def again(
        self, needs: Mapping[str, Iterable[Reattribution]], classes: Mapping[str, Tensor], looked: Tensor
    ) -> dict[str, dict[tuple[Request, str], Array]]:
        """Explain as the metrics ask for it: other images, another seed, class or model; ``[B, count, h, w]`` each."""
        made: dict[str, dict[tuple[Request, str], Array]] = {name: {} for name in self.plan.methods}
        for mode, wanted in needs.items():
            for need in dict.fromkeys(wanted):
                for name, maps in self._once_more(need, classes[mode], looked).items():
                    made[name][need, mode] = maps
        return made

    def _once_more(self, need: Reattribution, classes: Tensor, looked: Tensor) -> dict[str, Array]:
        seen = self.model if need.under is None else need.under(self.model)
        for name, how in self.plan.methods.items():
            if isinstance(how, ExternalExplainer) and not how.live:
                raise VitreousError(f"{name}: {how.what} cannot be made again, which a metric asks for")
            if isinstance(how, ExternalExplainer) and how.bound and need.under is not None:
                raise VitreousError(f"{name} knows its own model only, a metric asks about another: give a callable")
            if isinstance(how, ExternalExplainer) and isinstance(
                seen, SubModel
            ):  # a callable would get the model it is a part of
                raise VitreousError(
                    f"{name}: a {how.what} cannot be asked about {seen.name} with another head or start"
                )
        inputs, count = self.inputs, need.num_maps
        if need.images is not None:
            inputs = need.images.of(inputs, self.model.preprocess, self.plan.config.seed).flatten(0, 1)
        if need.target != "same":
            others = looked.scatter(1, classes[:, None].to(looked.device), -torch.inf)
            if need.target == "random":
                chance = PRNGKey.of_images(self.plan.config.seed, "other class", self.inputs).uniform(looked.shape[1])
                others = torch.where(others == -torch.inf, -1.0, chance.to(others))
            classes = others.argmax(dim=1)
        images = torch.arange(len(self.inputs)).repeat_interleave(count)
        by_method = self._explain(
            seen, list(self.plan.methods), images, inputs, classes[images.to(classes.device)], need.seed
        )
        return {name: maps.view(-1, count, *maps.shape[1:]).cpu().numpy() for name, maps in by_method.items()}

    def _explain(
        self,
        model: VisionModel,
        names: Sequence[str],
        images: Tensor,
        inputs: Tensor,
        wanted: Tensor,
        seed: int | None = None,
    ) -> dict[str, Tensor]:
        """Return the maps of some methods; ``images`` says which picture each input was made of."""
        plan, by_method = self.plan, dict[str, Tensor]()
        seed = plan.config.seed if seed is None else seed
        hows = {name: plan.methods[name] for name in names}
        own = {name: how for name, how in hows.items() if isinstance(how, Method)}
        if own:
            compare_classes = None if self.among is None else self.among[images]
            aim = Target(
                classes=wanted.cpu(),
                output=plan.config.output,
                class_subset=plan.config.class_subset,
                compare_classes=compare_classes,
            )
            context = Context(model, inputs, aim, seed, self.inner, plan.config.memory_gb, self._alive)
            self._share(context, own)
            for name, method in own.items():
                began = self._now()
                by_method[name] = compute_attributions(context, [method], check=False)[0].map
                self._spent(name, self._now() - began, len(inputs))
        for name, how in hows.items():
            if isinstance(how, ExternalExplainer):
                some = [self.samples[image] for image in images.tolist()]
                began = self._now()
                by_method[name] = how.maps(name, model, some, inputs, wanted)
                self._spent(name, self._now() - began, len(inputs))
                self._alive(len(inputs))
        return by_method

    def _share(self, context: Context, methods: Mapping[str, Method]) -> None:
        """Run every pass that these methods are known to need, equal ones once, and note how long each took.

        As ``prepare`` does it, but one pass at a time: those of the value that is explained first, and what needs no
        backward along with the first.
        """
        kinds: dict[Any, dict[str, list[Pass]]] = {}
        for name, method in methods.items():
            for pass_run in method.passes(context.model):
                kind = (pass_run.output, pass_run.composite) if pass_run.backward else None
                kinds.setdefault(kind, {}).setdefault(name, []).append(pass_run)
        forward = kinds.pop(None, {})
        order = sorted(kinds, key=lambda kind: kind[0] is not None) or [None]
        for name, asks in forward.items():
            kinds.setdefault(order[0], {}).setdefault(name, []).extend(asks)
        for kind in order:
            readers = kinds.get(kind, {})
            began = self._now()
            with torch.autocast(context.inputs.device.type, enabled=False):
                context.prepare([request for asks in readers.values() for request in asks])
            taken = self._now() - began
            for name in readers:
                self._spent(name, taken, shared=len(readers) > 1)

    def _now(self) -> float:
        if self.inputs.is_cuda:
            torch.cuda.synchronize(self.inputs.device)
        return time.perf_counter()

    def _spent(self, name: str, seconds: float, maps: int = 0, shared: bool = False) -> None:
        cost = self.costs[name]
        cost.own += 0.0 if shared else seconds
        cost.shared += seconds if shared else 0.0
        cost.maps += maps

    def _alive(self, inputs: int) -> None:
        """Say that a batch is done, which is a moment to stop at; explaining runs no states."""
        if self.on_progress is not None:
            self.on_progress(0)


def _passes(classes: Mapping[str, Tensor]) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Any]]:
    """Return which images to explain for which classes, nothing twice, and the rows of each mode."""
    passes: list[tuple[Tensor, Tensor]] = []
    rows: dict[str, Any] = {}
    total = 0
    known: dict[str, Tensor] = {}
    for mode, wanted in classes.items():
        mine: Array = np.full(len(wanted), -1)
        for earlier, their in known.items():
            mine = np.where((mine < 0) & (wanted == their).cpu().numpy(), rows[earlier], mine)
        new = np.flatnonzero(mine < 0)
        if len(new):
            mine[new] = total + np.arange(len(new))
            total += len(new)
            images = torch.from_numpy(new)
            passes.append((images, wanted[images.to(wanted.device)]))
        rows[mode], known[mode] = mine, wanted
    return passes, rows


@dataclass(frozen=True, eq=False)
class Judged:
    """What one unit has found; pictures are the first axis of everything.

    ``parts[method, metric]`` ``[n, P]`` is what scores are made of, ``curves`` what they were read from, and ``flags``
    has the code of every map in ``FLAGS``, by method and explained class. ``inner`` and ``at_once`` are the plan's
    ``inner`` and ``states``, or less where memory ran out.
    """

    names: tuple[str, ...]
    maps: Mapping[str, Maps]
    parts: Mapping[tuple[str, str], Array]
    curves: Mapping[tuple[str, str], Mapping[str, Curve]]
    flags: Mapping[tuple[str, str], Array]
    confidence: Mapping[str, Array]
    states: Counter[int]
    audit: Audit | None
    inner: int
    at_once: int
    explaining: float
    """Seconds."""


@dataclass(frozen=True, eq=False)
class Mapped:
    """The maps of one unit, what it took to make them (all, and by method), and the classes they explain, by mode."""

    maps: Mapping[str, Maps]
    classes: Mapping[str, Tensor]
    inner: int
    seconds: float
    costs: Mapping[str, Cost]


def mapped(
    model: VisionModel,
    samples: Sequence[Sample],
    plan: EvaluationPlan,
    modes: Sequence[str] = ("given",),
    on_progress: Callable[[int], None] | None = None,
) -> Mapped:
    """Explain some pictures together and judge nothing: what ``unit`` takes as ``maps``."""
    check_sizes(samples, plan)
    inputs = model.cast(torch.stack([sample.image.tensor for sample in samples]))
    engine = BatchRunner(model, replace(plan.config, precision="float32"), on_progress)
    known = _classes(samples, plan, engine.forward(inputs))
    wanted = {mode: known.get(mode, known["pred"]) for mode in modes}
    began = time.perf_counter()
    explaining = Explaining(model, plan, samples, inputs, on_progress)
    maps = explaining.maps(wanted)
    return Mapped(maps, wanted, explaining.inner.size, time.perf_counter() - began, explaining.costs)


def unit(
    model: VisionModel,
    samples: Sequence[Sample],
    plan: EvaluationPlan,
    on_progress: Callable[[int], None] | None = None,
    maps: Mapping[str, Maps] | None = None,
) -> Judged:
    """Explain and judge some pictures together; with ``maps`` of every method, judge these.

    ``tick`` is called after every inner batch with the number of states that it held (0 while explaining); what it
    raises ends the unit there, and nothing is left behind.
    """
    _check(samples, plan)
    inputs = model.cast(torch.stack([sample.image.tensor for sample in samples]))
    pool = Evaluator(model, list(plan.metrics.values()), plan.image_shape, plan.columns, plan.config, on_progress)
    looked = pool.runner.forward(inputs)
    known = _classes(samples, plan, looked)
    wanted = {mode: known.get(mode, known["pred"]) for mode in pool.modes}
    began = time.perf_counter()
    explaining = Explaining(model, plan, samples, inputs, on_progress)
    maps = explaining.maps(wanted) if maps is None else maps
    again = explaining.again(pool.reattributions, wanted, looked)
    seconds = time.perf_counter() - began
    pool.add(inputs, looked, known, maps, [sample.annotation for sample in samples])
    answers = pool.finish(again)
    some = next(iter(answers.values()))
    parts, curves = _read(plan, answers)
    return Judged(
        names=tuple(sample.image.name for sample in samples),
        maps=maps,
        parts=parts,
        curves=curves,
        flags={(name, mode): answers[name].with_classes(mode).flags for name in plan.methods for mode in pool.modes},
        confidence={
            name: some.with_classes(score_class=name).probability() for name in plan.columns if name != "given"
        },
        states=pool.runner.states,
        audit=pool.runner.audit,
        inner=explaining.inner.size,
        at_once=pool.runner.inner_batch.size,
        explaining=seconds,
    )


def _read(
    plan: EvaluationPlan, answers: Mapping[str, Evaluation]
) -> tuple[dict[tuple[str, str], Array], dict[tuple[str, str], Mapping[str, Curve]]]:
    """Read every metric, the methods side by side: sorting maps takes longer than making many of them."""

    def of(name: str) -> list[tuple[str, str, Array, Mapping[str, Curve]]]:
        judged = plan.metrics.items()
        return [(name, label, *metric.read(answers[name])) for label, metric in judged]

    with ThreadPoolExecutor(thread_name_prefix="vitreous-read") as pool:
        found = [row for rows in pool.map(of, plan.methods) for row in rows]
    return {(n, l): parts for n, l, parts, _ in found}, {(n, l): curves for n, l, _, curves in found}


def _classes(samples: Sequence[Sample], plan: EvaluationPlan, looked: Tensor) -> dict[str, Tensor]:
    """Return the classes of every picture: the predicted, the true and the given ones."""
    known = {"pred": looked.argmax(dim=1)}
    if plan.has_labels:
        known["label"] = _column(samples, "label").to(looked.device)
    target, subset = plan.config.target, plan.config.class_subset
    if target != "pred":
        known["given"] = known["label"] if target == "label" else _column(samples, "target").to(looked.device)
    for name, chosen in known.items():
        if subset is not None and not torch.isin(chosen.cpu(), torch.tensor(subset)).all():
            raise TargetError(f"a {name} class is not among the classes the softmax is restricted to")
    return known


def _column(samples: Sequence[Sample], what: str) -> Tensor:
    for sample in samples:
        if getattr(sample, what) is None:
            raise TargetError(f"{sample.image.name} has no {what}, but other pictures have")
    return torch.tensor([getattr(sample, what) for sample in samples])


def check_sizes(samples: Sequence[Sample], plan: EvaluationPlan) -> None:
    """Refuse a unit without pictures, or with pictures that do not fit its plan."""
    if not samples:
        raise ImageError("there are no pictures to judge with")
    sizes = {tuple(sample.image.tensor.shape[1:]) for sample in samples} | {plan.image_shape.pixels}
    if len(sizes) > 1:
        raise ImageError(f"pictures of different sizes cannot be judged together: {sorted(sizes)}")


def _check(samples: Sequence[Sample], plan: EvaluationPlan) -> None:
    check_sizes(samples, plan)
    if plan.config.target == "label" and not plan.has_labels:
        raise TargetError("target='label' needs the true classes: give labels")
    for label, judge in plan.metrics.items():
        if judge.needs_labels and not plan.has_labels:
            raise TargetError(f"{label} needs the true classes: give labels")
        for kind in judge.annotation_kinds:
            for sample in samples:
                if sample.annotation is None or not sample.annotation.has(kind):
                    raise ImageError(f"{label} needs the {kind} of {sample.image.name}: give truth")
