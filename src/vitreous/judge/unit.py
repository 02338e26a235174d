"""One unit of judging: a group of pictures, the methods and metrics of a plan, and what comes of them.

A unit is a function of its arguments and of nothing else. A table is a loop over units, on one machine or on many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitreous.data import Sample
from vitreous.errors import ImageError, TargetError
from vitreous.judge.explaining import Cost, Explaining
from vitreous.judge.plan import Plan
from vitreous.metrics import Answers, Curve, Maps, Pool, TruthOf
from vitreous.metrics.curves import Array
from vitreous.metrics.states.audit import Audit
from vitreous.metrics.states.engine import Engine
from vitreous.models import View

__all__ = ["Judged", "Mapped", "mapped", "unit"]


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
    view: View,
    samples: Sequence[Sample],
    plan: Plan,
    modes: Sequence[str] = ("given",),
    tick: Callable[[int], None] | None = None,
) -> Mapped:
    """Explain some pictures together and judge nothing: what ``unit`` takes as ``maps``."""
    check_sizes(samples, plan)
    inputs = view.cast(torch.stack([sample.picture.tensor for sample in samples]))
    only = None if plan.only is None else torch.tensor(plan.only)
    engine = Engine(view, plan.states, "float32", only, tick, plan.memory, plan.geometry.pixels)
    known = _classes(samples, plan, engine.look(inputs))
    wanted = {mode: known.get(mode, known["pred"]) for mode in modes}
    began = time.perf_counter()
    explaining = Explaining(view, plan, samples, inputs, tick)
    maps = explaining.maps(wanted)
    return Mapped(maps, wanted, explaining.inner.size, time.perf_counter() - began, explaining.costs)


def unit(
    view: View,
    samples: Sequence[Sample],
    plan: Plan,
    tick: Callable[[int], None] | None = None,
    maps: Mapping[str, Maps] | None = None,
) -> Judged:
    """Explain and judge some pictures together; with ``maps`` of every method, judge these.

    ``tick`` is called after every inner batch with the number of states that it held (0 while explaining); what it
    raises ends the unit there, and nothing is left behind.
    """
    _check(samples, plan)
    inputs = view.cast(torch.stack([sample.picture.tensor for sample in samples]))
    only = None if plan.only is None else torch.tensor(plan.only)
    pool = Pool(
        view,
        list(plan.metrics.values()),
        plan.geometry,
        plan.columns,
        batch=plan.states,
        precision=plan.precision,
        only=only,
        upsample=plan.upsample,
        ties=plan.ties,
        nonfinite=plan.nonfinite,
        seed=plan.seed,
        tick=tick,
    )
    looked = pool.engine.look(inputs)
    known = _classes(samples, plan, looked)
    wanted = {mode: known.get(mode, known["pred"]) for mode in pool.modes}
    began = time.perf_counter()
    explaining = Explaining(view, plan, samples, inputs, tick)
    maps = explaining.maps(wanted) if maps is None else maps
    again = explaining.again(pool.explained, wanted, looked)
    seconds = time.perf_counter() - began
    pool.add(inputs, looked, known, maps, [sample.truth for sample in samples])
    answers = pool.finish(again)
    some = next(iter(answers.values()))
    parts, curves = _read(plan, answers)
    return Judged(
        names=tuple(sample.picture.name for sample in samples),
        maps=maps,
        parts=parts,
        curves=curves,
        flags={(name, mode): answers[name].flags(mode) for name in plan.methods for mode in pool.modes},
        confidence={name: np.exp(some.clean(name)) for name in plan.columns if name != "given"},
        states=pool.engine.states,
        audit=pool.engine.audit,
        inner=explaining.inner.size,
        at_once=pool.engine.inner.size,
        explaining=seconds,
    )


def _read(
    plan: Plan, answers: Mapping[str, Answers]
) -> tuple[dict[tuple[str, str], Array], dict[tuple[str, str], Mapping[str, Curve]]]:
    """Read every metric, the methods side by side: sorting maps takes longer than making many of them."""

    def of(name: str) -> list[tuple[str, str, Array, Mapping[str, Curve]]]:
        judged = plan.metrics.items()
        return [(name, l, m.checked_parts(answers[name]), m.checked_curves(answers[name])) for l, m in judged]

    with ThreadPoolExecutor(thread_name_prefix="vitreous-read") as pool:
        found = [each for rows in pool.map(of, plan.methods) for each in rows]
    return {(n, l): parts for n, l, parts, _ in found}, {(n, l): curves for n, l, _, curves in found}


def _classes(samples: Sequence[Sample], plan: Plan, looked: Tensor) -> dict[str, Tensor]:
    """Return the classes of every picture: the predicted, the true and the given ones."""
    known = {"pred": looked.argmax(dim=1)}
    if plan.labelled:
        known["label"] = _column(samples, "label").to(looked.device)
    if plan.explained != "pred":
        known["given"] = known["label"] if plan.explained == "label" else _column(samples, "target").to(looked.device)
    for name, chosen in known.items():
        if plan.only is not None and not torch.isin(chosen.cpu(), torch.tensor(plan.only)).all():
            raise TargetError(f"a {name} class is not among the classes the softmax is restricted to")
    return known


def _column(samples: Sequence[Sample], what: str) -> Tensor:
    for sample in samples:
        if getattr(sample, what) is None:
            raise TargetError(f"{sample.picture.name} has no {what}, but other pictures have")
    return torch.tensor([getattr(sample, what) for sample in samples])


def check_sizes(samples: Sequence[Sample], plan: Plan) -> None:
    """Refuse a unit without pictures, or with pictures that do not fit its plan."""
    if not samples:
        raise ImageError("there are no pictures to judge with")
    sizes = {tuple(sample.picture.tensor.shape[1:]) for sample in samples} | {plan.geometry.pixels}
    if len(sizes) > 1:
        raise ImageError(f"pictures of different sizes cannot be judged together: {sorted(sizes)}")


def _check(samples: Sequence[Sample], plan: Plan) -> None:
    check_sizes(samples, plan)
    if plan.explained == "label" and not plan.labelled:
        raise TargetError("target='label' needs the true classes: give labels")
    for label, judge in plan.metrics.items():
        if judge.needs_labels and not plan.labelled:
            raise TargetError(f"{label} needs the true classes: give labels")
        for need in judge.needs(plan.geometry):
            if isinstance(need, TruthOf):
                for sample in samples:
                    if sample.truth is None or not sample.truth.has(need.kind):
                        raise ImageError(f"{label} needs the {need.kind} of {sample.picture.name}: give truth")
