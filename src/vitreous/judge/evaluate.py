"""``evaluate``: many pictures, methods and metrics to one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous import __version__
from vitreous.data import Picture, Progress, cut, how_many, labelled
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.judge.foreign import Foreign, explain_chunk, named
from vitreous.methods import Method, method
from vitreous.metrics import Geometry, Metric, Pool, metric
from vitreous.metrics.bootstrap import SAMPLES
from vitreous.models import View, view
from vitreous.passes import Target, Targets, plain_target
from vitreous.passes.random import check_seed
from vitreous.results import Table
from vitreous.words import defaults

__all__ = ["evaluate"]


def evaluate(
    model: View | nn.Module,
    data: Any,
    methods: Any = defaults.JUDGED,
    metrics: Sequence[str | Metric] | str | Metric = defaults.METRICS,
    *,
    labels: Any = None,
    target: Any = "pred",
    baselines: bool = True,
    value: str = "logit",
    classes: Sequence[int] | None = None,
    precision: str = "float32",
    batch: int | None = None,
    upsample: str = "bilinear",
    ties: str = "random",
    nonfinite: str = "exclude",
    samples: int = SAMPLES,
    seed: int = 0,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Table:
    """Judge methods by metrics over pictures; return per-image scores, means and bootstrap intervals.

    ``data``: paths, pictures or preprocessed tensors, or an iterable of ``(image, label)``; ``labels``: the true
    classes, in order or by picture name. ``methods``: spellings, callables ``(model, inputs, classes) -> maps``,
    attribution objects, folders of ``.npy`` maps, tensors of maps, or a mapping of names to such. ``target``: the
    explained class, ``"pred"``, ``"label"``, a class or one per image; metrics may have their own. ``classes``
    restricts the softmax. ``precision``: ``"float16"`` and ``"bfloat16"`` are audited against float32. ``batch``:
    states at once.
    """
    looked_at, hows, judges = view(model), named(methods), _metrics(metrics)
    Target(value=value), check_seed(seed)  # bad words before the work
    if baselines:
        hows = {**hows, **{name: method(name) for name in defaults.BASELINES if name not in hows}}
    names = sorted(hows)  # run in one order whatever the caller's: the batches, and so the numbers, are the same
    only = None if classes is None else torch.as_tensor(list(classes), dtype=torch.int64)
    run = _Run(looked_at, {name: hows[name] for name in names}, judges, target, value, seed, memory)
    settings: dict[str, Any] = {
        "batch": batch, "precision": precision, "upsample": upsample, "ties": ties, "nonfinite": nonfinite, "seed": seed
    }  # fmt: skip
    run.score(labelled(data, labels, looked_at), settings, only, progress, how_many(data))
    return run.table(tuple(hows), samples, settings | {"classes": None if only is None else only.tolist()})


class _Run:
    """One evaluation, chunk by chunk."""

    def __init__(
        self,
        looked_at: View,
        hows: Mapping[str, Method | Foreign],
        judges: Mapping[str, Metric],
        target: Any,
        value: str,
        seed: int,
        memory: float | None,
    ) -> None:
        self.view, self.hows, self.judges = looked_at, hows, judges
        self.target, self.value, self.seed, self.memory = plain_target(target), value, seed, memory
        self.targets, self.given = Targets(target), list[int]()
        self.names: list[str] = []
        self.explaining = self.total = 0.0

    def score(
        self,
        source: Iterator[tuple[Picture, int | None]],
        settings: Mapping[str, Any],
        only: Tensor | None,
        progress: Progress | None,
        total: int | None,
    ) -> None:
        began = time.perf_counter()
        first = next(source, None)
        if first is None:
            raise ImageError("there are no pictures to judge with")
        labelled = first[1] is not None
        self._check(labelled)
        inputs = first[0].tensor[None]
        self.geometry = Geometry((inputs.shape[2], inputs.shape[3]), self.view.grid(inputs))
        given = not (self.target is None or (isinstance(self.target, str) and self.target == "pred"))
        columns = ["pred", *(["label"] if labelled else []), *(["given"] if given else [])]
        self.pool = Pool(self.view, list(self.judges.values()), self.geometry, columns, only=only, **settings)
        self.pool.engine.tick = self._ticker(progress, total)
        for chunk in cut(chain([first], source), self.pool.engine.batch):
            self._chunk([picture for picture, _ in chunk], [label for _, label in chunk], only)
        self.targets.finish(len(self.names))
        self.answers = self.pool.finish()
        self.total = time.perf_counter() - began

    def _chunk(self, shown: list[Picture], labels: list[int | None], only: Tensor | None) -> None:
        sizes = {tuple(picture.tensor.shape[1:]) for picture in shown}
        if sizes != {self.geometry.pixels}:
            raise ImageError(f"pictures of different sizes cannot be judged together: {sorted(sizes)}")
        inputs = self.view.cast(torch.stack([picture.tensor for picture in shown]))
        looked = self.pool.engine.look(inputs)
        known = {"pred": looked.argmax(dim=1)}
        if "label" in self.pool.columns:
            if None in labels:
                raise TargetError(f"{shown[labels.index(None)].name} has no label, but other pictures have")
            known["label"] = torch.tensor(labels, device=inputs.device)
        if "given" in self.pool.columns:
            known["given"] = self._given(len(shown), known).to(inputs.device)
        for name, chosen in known.items():
            if only is not None and not torch.isin(chosen.cpu(), only).all():
                raise TargetError(f"a {name} class is not among the classes the softmax is restricted to")
        wanted = {mode: known.get(mode, known["pred"]) for mode in self.pool.modes}
        began = time.perf_counter()
        maps = explain_chunk(
            self.view,
            self.hows,
            shown,
            inputs,
            wanted,
            value=self.value,
            seed=self.seed,
            memory=self.memory,
            at=len(self.names),
        )
        self.explaining += time.perf_counter() - began
        self.pool.add(inputs, looked, known, maps)
        self.names += [picture.name for picture in shown]

    def table(self, methods: tuple[str, ...], samples: int, settings: Mapping[str, Any]) -> Table:
        scores, degenerate = {}, {}
        for name in methods:
            counts: dict[str, int] = {}
            for label, judge in self.judges.items():
                fresh = judge.fresh()
                fresh.update(self.answers[name])
                found = fresh.compute()
                scores[name, label] = found.scores
                counts = {kind: max(n, counts.get(kind, 0)) for kind, n in found.degenerate.items()}
            degenerate[name] = counts
        some = next(iter(self.answers.values()))
        sure: dict[str, Any] = {name: np.exp(some.clean(name)) for name in self.pool.columns if name != "given"}
        return Table(
            images=tuple(self.names),
            methods=methods,
            metrics=tuple(self.judges),
            scores=scores,
            higher_is_better={label: judge.higher_is_better for label, judge in self.judges.items()},
            degenerate=degenerate,
            confidence=sure,
            plan=self._plan(settings),
            samples=samples,
            seed=self.seed,
        )

    def _plan(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        engine, audit = self.pool.engine, self.pool.engine.audit
        return {
            **settings,
            "batch": engine.batch,
            "model": self.view.name,
            "device": self.view.device.type,
            "dtype": str(self.view.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "audit": None if audit is None else audit.to_json(),
            "target": self.target if self.targets.shared else self.given,
            "value": self.value,
            "substrates": self.pool.substrates,
            "images": len(self.names),
            "states": sum(engine.states.values()),
            "states_by_kept_tokens": {str(kept): n for kept, n in sorted(engine.states.items())},
            "methods": {
                name: {"spelling": how.spelling, **how.settings} if isinstance(how, Method) else {"what": how.what}
                for name, how in self.hows.items()
            },
            "metrics": {label: {"spelling": m.spelling, **m.settings} for label, m in self.judges.items()},
            "seconds": {"total": self.total, "explaining": self.explaining},
            "versions": {"vitreous": __version__, "torch": torch.__version__},
        }

    def _given(self, batch: int, known: Mapping[str, Tensor]) -> Tensor:
        """Return the classes the caller asked to explain, for the next ``batch`` pictures."""
        if isinstance(self.target, str) and self.target == "label":
            return known["label"]
        asked = self.targets.at(range(len(self.names), len(self.names) + batch))
        if callable(asked):
            raise TargetError(f"target {asked!r} is neither pred, label, a class, nor a list of classes")
        found = [self.view.class_index(each) for each in ([asked] * batch if self.targets.shared else asked)]
        self.given += found
        return torch.tensor(found)

    def _check(self, labelled: bool) -> None:
        for label, judge in self.judges.items():
            if judge.needs_labels and not labelled:
                raise TargetError(f"{label} needs the true classes: give labels")
        if self.target == "label" and not labelled:
            raise TargetError("target='label' needs the true classes: give labels")

    def _ticker(self, progress: Progress | None, images: int | None) -> Callable[[int], None] | None:
        if progress is None:
            return None
        done, total = 0, None
        if images is not None and len(self.pool.modes) == 1:
            total = images * (1 + len(self.hows) * self.pool.states_per_map())

        def tick(states: int) -> None:
            nonlocal done
            done += states
            progress(done, total)

        return tick


def _metrics(given: Any) -> dict[str, Metric]:
    several = given if isinstance(given, list | tuple) else [given]
    found: dict[str, Metric] = {}
    for each in several:
        judge = metric(each)
        name = each.strip() if isinstance(each, str) else judge.spelling
        if name in found:
            raise VitreousError(f"the metric {name} is named twice")
        found[name] = judge
    if not found:
        raise VitreousError("there is nothing to judge by: give at least one metric")
    return found
