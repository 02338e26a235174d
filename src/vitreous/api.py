"""The words users type: ``load``, ``view``, ``explain``, ``compare``, ``method``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import nn

from vitreous.datasets import LoadedImage, OnError, batched, count_images, is_single_image, load_images
from vitreous.errors import ImageError, TargetError, VitreousError
from vitreous.evaluation.checks import check
from vitreous.evaluation.evaluate import heeded
from vitreous.methods import (
    Attribution,
    Method,
    compute_attributions,
    get_method,
    list_methods,
    recommended_method,
    to_grid,
)
from vitreous.metrics import list_metrics
from vitreous.models import Snapshot, VisionModel, list_models, load, register_adapter, wrap
from vitreous.progress import Progress, track_progress
from vitreous.registry import check_memory, defaults
from vitreous.registry.spec import split_specs
from vitreous.results import Comparison, Explanation, Identity, Origin, Prediction, Question
from vitreous.tracing import Context, Target, Targets, TargetSpec
from vitreous.tracing.memory import InnerBatch, budget_bytes
from vitreous.tracing.targets import ClassSets
from vitreous.world.models import ADAPTER as WORLD

# What the rooms below are handed: the bundled models their names, explanations their judge.
register_adapter(WORLD)
Explanation.checker = staticmethod(check)

__all__ = [
    "compare",
    "explain",
    "get_method",
    "iter_explanations",
    "list_methods",
    "list_metrics",
    "list_models",
    "load",
    "question",
    "wrap",
]

_MOST_AT_ONCE = 32


def explain(
    model: VisionModel | nn.Module,
    images: Any,
    method: str | Method | None = None,
    target: TargetSpec = None,
    *,
    contrast: TargetSpec = None,
    output: str | None = None,
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    effort: str | None = None,
    grid: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """Explain one picture (one ``Explanation``) or many (a list of them).

    ``images``: a path, a folder, a PIL image, an array, preprocessed tensors ``[B, 3, H, W]``, a data loader, or a list
    of such. ``method``: a spelling; where none is named, ``effort`` says what it may cost: ``"quick"``, the default,
    ``"careful"`` or ``"best"`` (see ``vt.effort``). ``target``: a class index or label, one per image in a list, a
    callable on the logits, or ``None`` for the prediction. ``against``: explain the target rather than these classes.
    ``value``: ``"logit"`` (the default), ``"prob"`` or ``"logprob"``. ``classes`` restricts the softmax, the prediction
    and sets of probable classes to some. ``among``: the classes that ``var`` compares, one list for all images or one
    for each. ``grid``: ``"token"`` or ``"pixel"`` instead of the method's own. ``memory`` is a budget in GiB.
    ``progress``: a function of done and total, or ``True`` for a bar on standard error.

    A ``value`` that the method does not follow, and a ``target`` that cannot change its map, are warned about.
    """
    explanations = list(
        iter_explanations(
            model,
            images,
            method,
            target,
            contrast=contrast,
            output=output,
            class_subset=class_subset,
            compare_classes=compare_classes,
            effort=effort,
            grid=grid,
            seed=seed,
            batch_size=batch_size,
            memory_gb=memory_gb,
            progress=progress,
        )
    )
    return explanations[0] if is_single_image(images) else explanations


def iter_explanations(
    model: VisionModel | nn.Module,
    images: Any,
    method: str | Method | None = None,
    target: TargetSpec = None,
    *,
    contrast: TargetSpec = None,
    output: str | None = None,
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    effort: str | None = None,
    grid: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
    on_error: OnError | None = None,
) -> Iterator[Explanation]:
    """Yield explanations as they are made, so that long runs can be written down on the way.

    A file that cannot be read is an error. With ``on_error``, it is called with the path and the error instead, and the
    other pictures go on, each with its own target.
    """
    check_memory(memory_gb)
    vision_model = wrap(model)
    how = _method(method, effort, vision_model)
    heeded([how], target, output)
    if batch_size is not None and batch_size < 1:
        raise VitreousError(f"batch_size={batch_size} must be at least 1")
    total = count_images(images)
    targets, sets, done = Targets(target, total), ClassSets(compare_classes, total), 0
    inner: InnerBatch | None = None
    source, at_once = _Numbered(images, vision_model, on_error), batch_size or _at_once(vision_model, how, memory_gb)
    with track_progress(progress, "explaining") as tell:
        for numbered in batched(source, at_once):
            places, batch = [place for place, _ in numbered], [picture for _, picture in numbered]
            asked = (
                targets.take(places),
                contrast,
                "logit" if output is None else output,
                class_subset,
                sets.take(places),
            )
            context = _session(
                vision_model, batch, Target.of(vision_model, len(batch), *asked), seed, memory_gb, grid, inner
            )
            inner = context.batching  # what ran out of memory once is not tried again
            if tell is not None:
                context.on_progress = _Ticker(tell, done, len(batch), total, how.num_forwards(vision_model))
            (answered,) = compute_attributions(context, [how])
            done = places[-1] + 1
            if tell is not None:
                tell(done, total)
            origin = Origin(ref(model), how)
            yield from _explanations(context, vision_model.snapshot(), vision_model, batch, origin, answered, grid)
    targets.check_exhausted(source.place)
    sets.check_exhausted(source.place)


def question(
    model: VisionModel | nn.Module,
    method: str | Method | None = None,
    target: int | str | None = None,
    *,
    contrast: TargetSpec = None,
    output: str | None = None,
    class_subset: Sequence[int | str] | None = None,
    effort: str | None = None,
    grid: str | None = None,
    seed: int = 0,
) -> Question:
    """Return what ``explain`` with these arguments would be an answer to: see ``Archive.find``."""
    vision_model = wrap(model)
    aim = Target.of(vision_model, 1, target, contrast, "logit" if output is None else output, class_subset)
    if aim.function is not None:
        raise TargetError("a callable target has no identity; ask for a class")
    explained = None if aim.classes is None else int(aim.classes[0])
    rivals = () if aim.contrast is None else tuple(aim.contrast[0].tolist())
    how = _method(method, effort, vision_model)
    return Question.of(vision_model, how, explained, rivals, aim.output, aim.class_subset, grid=grid, seed=seed)


def compare(
    model: VisionModel | nn.Module,
    image: Any,
    methods: str | Method | Sequence[str | Method] | None = None,
    target: Any = None,
    *,
    effort: str | None = None,
    contrast: TargetSpec = None,
    output: str | None = None,
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Sequence[int | str] | None = None,
    seed: int = 0,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> Comparison:
    """Explain one picture with several methods, their passes shared; a list of targets gives one row each.

    ``methods``: a list, one, or a text of several with commas between them. Without them: some well-known ones, and
    what ``effort`` means for this model. Both may be given.
    """
    check_memory(memory_gb)
    vision_model = wrap(model)
    named: list[str | Method] = []
    given = defaults.comparison_methods(vision_model.has_residual_stream) if methods is None else methods
    for each in (given,) if isinstance(given, str | Method) else given:
        named += (split_specs(each) or [each]) if isinstance(each, str) else [each]
    hows = [_method(each, None, vision_model) for each in named]
    if methods is None or effort is not None:
        hows.append(_method(None, effort, vision_model))
    found_pictures = list(islice(load_images(image, vision_model), 2))
    if len(found_pictures) != 1:
        raise ImageError("compare takes one picture, got several")
    picture, targets = found_pictures[0], Targets(target).all()
    if not hows or not targets:
        raise VitreousError("there is nothing to compare: give at least one method and one target")
    if methods is not None:
        heeded(hows, None, output)  # a tile of a method that knows no class names none
    rows, snapshot = [], vision_model.snapshot()
    work = sum(how.num_forwards(vision_model) for how in hows)
    with track_progress(progress, "comparing") as tell:
        for done, each in enumerate(targets):
            aim = Target.of(
                vision_model, 1, each, contrast, "logit" if output is None else output, class_subset, compare_classes
            )
            context = _session(vision_model, [picture], aim, seed, memory_gb)
            if tell is not None:
                context.on_progress = _Ticker(tell, done, 1, len(targets), work)
            answers = compute_attributions(context, hows)
            rows.append(
                [
                    _explanations(context, snapshot, vision_model, [picture], Origin(ref(model), how), one, None)[0]
                    for how, one in zip(hows, answers, strict=True)
                ]
            )
            if tell is not None:
                tell(done + 1, len(targets))
    return Comparison(rows)


def _at_once(model: VisionModel, how: Method, memory_gb: float | None) -> int:
    """How many pictures to explain together: as many as have room for their results, and no more than 32."""
    height, width = model.preprocess.size if how.grid == "pixel" else model.grid()
    bytes_each = how.num_maps(model) * height * width * 4
    return max(1, min(_MOST_AT_ONCE, int(budget_bytes(model.device, memory_gb) / bytes_each)))


class _Numbered(Iterator[tuple[int, LoadedImage]]):
    """Yields every picture with its place in the source; one that cannot be read keeps its place."""

    def __init__(self, images: Any, model: VisionModel, on_error: OnError | None) -> None:
        self.place, self.on_error = 0, on_error
        self.pictures = load_images(images, model, None if on_error is None else self._lost)

    def __next__(self) -> tuple[int, LoadedImage]:
        picture = next(self.pictures)
        self.place += 1
        return self.place - 1, picture

    def _lost(self, path: Path, error: ImageError) -> None:
        self.place += 1
        if self.on_error is not None:
            self.on_error(path, error)


def _method(spelled: str | Method | None, step: str | None, model: VisionModel) -> Method:
    """Return the method that is named, or else the one for some effort."""
    if spelled is not None and step is not None:
        raise VitreousError(f"give a method or an effort, not both: {spelled} and {step}")
    return get_method(recommended_method("quick" if step is None else step, model) if spelled is None else spelled)


class _Ticker:
    """What a session calls after each inner batch: inputs run become images done, this batch's at most.

    More work may turn up on the way (``expect``); what was told is never taken back.
    """

    def __init__(self, progress: Progress, done: int, batch: int, total: int | None, forwards: float) -> None:
        self.progress, self.done, self.batch, self.total = progress, done, batch, total
        self.run, self.work, self.share = 0, batch * forwards, 0.0

    def __call__(self, inputs: int) -> None:
        self.run += inputs
        self.share = max(self.share, min(1.0, self.run / self.work))
        self.progress(self.done + self.batch * self.share, self.total)

    def expect(self, inputs: int) -> None:
        self.work += inputs


def _session(
    model: VisionModel,
    batch: Sequence[LoadedImage],
    aim: Target,
    seed: int = 0,
    memory_gb: float | None = None,
    grid: str | None = None,
    inner: InnerBatch | None = None,
) -> Context:
    sizes = {tuple(picture.tensor.shape) for picture in batch}
    if len(sizes) > 1:
        raise ImageError(f"tensors of different sizes cannot be explained together: {sorted(sizes)}")
    inputs = torch.stack([picture.tensor for picture in batch])
    return Context(model, inputs, aim, seed, inner, memory_gb, grid=grid)


def _explanations(
    context: Context,
    snapshot: Snapshot,
    model: VisionModel,
    batch: Sequence[LoadedImage],
    origin: Origin,
    answered: Attribution,
    grid: str | None,
) -> list[Explanation]:
    target, how = context.target, origin.method
    maps = to_grid(answered.map, grid, model, context.inputs).cpu()
    probabilities = context.probabilities.cpu()
    best = probabilities.argmax(dim=1)
    asked = None
    if target.function is None:
        asked = Question.of(
            model, how, None, (), target.output, target.class_subset, grid=grid, seed=context.seed, snapshot=snapshot
        )
    made = []
    for i, picture in enumerate(batch):
        explained = None if target.classes is None else int(target.classes[i])
        predicted = int(best[i])
        extras = {name: value[i].cpu().clone() for name, value in answered.extras.items()}
        rivals = () if target.contrast is None else tuple(target.contrast[i].tolist())
        compare_classes = (
            () if target.compare_classes is None else tuple(c for c in target.compare_classes[i].tolist() if c >= 0)
        )
        name = getattr(target.function, "__name__", "callable") if explained is None else model.label(explained)
        made.append(
            Explanation(
                map=maps[i].clone(),
                target=explained,
                label=name,
                probability=None if explained is None else float(probabilities[i, explained]),
                method=how.spec,
                settings=how.settings,
                seed=context.seed,
                model=model.name,
                prediction=Prediction(predicted, model.label(predicted), float(probabilities[i, predicted])),
                image=picture.image,
                name=picture.name,
                output="callable" if target.function is not None else " and ".join(how.outputs(target.output)),
                asked=target.output,
                identity=None
                if asked is None
                else Identity(
                    replace(asked, contrast=rivals, compare_classes=compare_classes), picture.digest, explained
                ),
                class_subset=target.class_subset or (),
                compare_classes=compare_classes,
                contrast=rivals,
                contrast_classes=tuple(model.label(rival) for rival in rivals),
                extras=extras,
                class_names=tuple(model.label(c) for c in extras["classes"].tolist() if c >= 0)
                if "classes" in extras
                else (),
                box=picture.box,
                source=None if picture.path is None else str(picture.path),
                original_image=picture.original,
                origin=origin,
            )
        )
    return made
