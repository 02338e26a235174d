"""Images to explanations: ``explain``, ``iter_explanations`` and ``compare``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import torch
from torch import nn

from vitreous.datasets import LoadedImage, OnError, batched, count_images, is_single_image, load_images
from vitreous.errors import ImageError, VitreousError
from vitreous.evaluation.plan import warn_ignored
from vitreous.methods import Attribution, Method, compute_attributions, get_method, resolve_method, to_grid
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress, track_progress
from vitreous.registry import check_at_least, check_memory, defaults
from vitreous.registry.spec import split_specs
from vitreous.results import ClassProbability, Comparison, Explanation, ExplanationRequest, Origin, ResultIdentity
from vitreous.tracing import Context, Target, Targets, TargetSpec, plain_target
from vitreous.tracing.memory import InnerBatch, budget_bytes
from vitreous.tracing.targets import ClassSets

_MAX_BATCH = 32
FINGERPRINT_DIGITS = 12
"""Of a fingerprint, where people read it."""


def explain(
    model: VisionModel | nn.Module,
    images: Any,
    method: str | Method | None = None,
    target: TargetSpec = None,
    *,
    effort: str | None = None,
    contrast: TargetSpec = None,
    output: str = "logit",
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    grid: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> Any:
    """Explain one image, or many.

    Warns of an output that the method does not follow, and of a target that cannot change its map.

    Parameters
    ----------
    model : VisionModel or torch.nn.Module
        The model to look into.
    images : path, PIL.Image.Image, array, Tensor, loader or sequence of such
        What to explain: a file, a folder, an image, an array ``[H, W, 3]``, preprocessed tensors ``[3, H, W]`` or
        ``[B, 3, H, W]``, a data loader, or a list of such.
    method : str or Method, optional
        A spec such as ``"skipplus(decompx)"``; that of ``effort`` by default.
    target : int, str, sequence or callable, optional
        What is explained: a class by index or name, one per image in a list, or a function of the logits; the
        predicted class by default.
    effort : {"quick", "careful", "best"}, optional
        What it may cost where no method is named; ``"quick"`` by default.
    contrast : int, str or sequence, optional
        Explain the target rather than these classes.
    output : {"logit", "prob", "logprob"}, default "logit"
        What is explained of the class.
    class_subset : sequence of int or str, optional
        The classes that the softmax, the prediction and sets of probable classes are restricted to.
    compare_classes : sequence, optional
        The classes that ``var`` compares: one list for all images, or one for each.
    grid : {"token", "pixel"}, optional
        Where the map is wanted: pixels are summed into patches, patches interpolated; the method's own by default.
    seed : int, default 0
        Of everything random.
    batch_size : int, optional
        Images at once; 32, or as many as fit, by default.
    memory_gb : float, optional
        A budget in GiB.
    progress : callable or bool, optional
        A function of done and total images, or ``True`` for a bar on standard error.

    Returns
    -------
    Explanation or list of Explanation
        One for one image, a list for many.

    Raises
    ------
    VitreousError
        Where something asked for cannot be meant, or an image cannot be read.

    Notes
    -----
    Cost: that of the method, see ``Method.cost``.

    Examples
    --------
    >>> e = vt.explain(model, image, "ixg")
    >>> e.map.shape
    torch.Size([16, 16])
    >>> [one.target for one in vt.explain(model, images[:2], "ixg", target=[3, 4])]
    [3, 4]
    """
    generator = iter_explanations(
        model,
        images,
        method,
        target,
        effort=effort,
        contrast=contrast,
        output=output,
        class_subset=class_subset,
        compare_classes=compare_classes,
        grid=grid,
        seed=seed,
        batch_size=batch_size,
        memory_gb=memory_gb,
        progress=progress,
    )
    explanations = list(generator)
    return explanations[0] if is_single_image(images) else explanations


def iter_explanations(
    model: VisionModel | nn.Module,
    images: Any,
    method: str | Method | None = None,
    target: TargetSpec = None,
    *,
    effort: str | None = None,
    contrast: TargetSpec = None,
    output: str = "logit",
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Any = None,
    grid: str | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
    on_error: OnError | None = None,
) -> Iterator[Explanation]:
    """Yield explanations as they are made, so that a long run can be saved on the way.

    Nothing happens, and nothing is checked, before the first one is asked for.

    Parameters
    ----------
    model, images, method, target
        As in ``explain``.
    effort, contrast, output, class_subset, compare_classes, grid, seed, batch_size, memory_gb, progress
        As in ``explain``.
    on_error : callable, optional
        Called with the path and the error of a file that cannot be read; the other images go on, each with its own
        target. By default such a file is an error.

    Yields
    ------
    Explanation
        One for each image.

    Examples
    --------
    >>> [e.name for e in vt.iter_explanations(model, images[:2], "ixg", batch_size=1)]
    ['image-0', 'image-1']
    """
    check_memory(memory_gb)
    if batch_size is not None:
        check_at_least("batch_size", batch_size, 1)
    vision_model = wrap(model)
    chosen = resolve_method(method, effort, vision_model)
    warn_ignored([chosen], target, output)
    total, done = count_images(images), 0
    targets, sets = Targets(target, total), ClassSets(compare_classes, total)
    inner: InnerBatch | None = None
    numbers = itertools.count()  # of the images in the source; one that cannot be read keeps its number

    def skip(path: Path, error: ImageError) -> None:
        next(numbers)
        if on_error is not None:
            on_error(path, error)

    loaded = load_images(images, vision_model, None if on_error is None else skip)
    source = ((image, next(numbers)) for image in loaded)
    with track_progress(progress, "explaining") as on_progress:
        for numbered in batched(source, batch_size or _batch_size(vision_model, chosen, memory_gb)):
            batch, indices = [image for image, _ in numbered], [number for _, number in numbered]
            spec = Target.of(
                vision_model, len(batch), targets.take(indices), contrast, output, class_subset, sets.take(indices)
            )
            context = Context(vision_model, _stacked(batch), spec, seed, inner, memory_gb, grid=grid)
            inner = context.batching  # what ran out of memory once is not tried again
            if on_progress is not None:
                context.on_progress = _Ticker(on_progress, done, len(batch), total, chosen.num_forwards(vision_model))
            (attribution,) = compute_attributions(context, [chosen])
            done = indices[-1] + 1
            if on_progress is not None:
                on_progress(done, total)
            origin = Origin(ref(model), chosen, vision_model.snapshot())
            yield from explanations_of(context, batch, vision_model, origin, attribution, grid)
    num_images = next(numbers)
    targets.check_exhausted(num_images)
    sets.check_exhausted(num_images)


def compare(
    model: VisionModel | nn.Module,
    image: Any,
    methods: str | Method | Sequence[str | Method] | None = None,
    target: Any = None,
    *,
    effort: str | None = None,
    contrast: TargetSpec = None,
    output: str = "logit",
    class_subset: Sequence[int | str] | None = None,
    compare_classes: Sequence[int | str] | None = None,
    seed: int = 0,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> Comparison:
    """Explain one image with several methods, their passes shared.

    Parameters
    ----------
    model : VisionModel or torch.nn.Module
        The model to look into.
    image : path, PIL.Image.Image, array or Tensor
        One image.
    methods : str, Method or sequence of such, optional
        Specs; one text may name several with commas between them. By default some well-known ones, and what ``effort``
        means for this model.
    target : int, str, sequence or callable, optional
        As in ``explain``; a list gives one row for each.
    effort : {"quick", "careful", "best"}, optional
        Adds the method of this effort.
    contrast, output, class_subset, compare_classes, seed, memory_gb, progress
        As in ``explain``.

    Returns
    -------
    Comparison
        One row per target, one column per method.

    Notes
    -----
    Cost: equal passes of all methods run once.

    Examples
    --------
    >>> compared = vt.compare(model, image, "rollout, ixg", target=[3, 4])
    >>> [[e.method for e in row] for row in compared.rows]
    [['rollout', 'ixg'], ['rollout', 'ixg']]
    """
    check_memory(memory_gb)
    vision_model = wrap(model)
    chosen = _compared_methods(vision_model, methods, effort)
    images, targets = list(itertools.islice(load_images(image, vision_model), 2)), Targets(target).all()
    if len(images) != 1:
        raise ImageError("compare takes one image, got several")
    if not chosen or not targets:
        raise VitreousError("there is nothing to compare: give at least one method and one target")
    if methods is not None:
        warn_ignored(chosen, None, output)  # a tile of a method that knows no class names none
    rows, snapshot = [], vision_model.snapshot()
    forwards = sum(method.num_forwards(vision_model) for method in chosen)
    with track_progress(progress, "comparing") as on_progress:
        for done, one in enumerate(targets):
            spec = Target.of(vision_model, 1, one, contrast, output, class_subset, compare_classes)
            context = Context(vision_model, _stacked(images), spec, seed, memory_gb=memory_gb)
            if on_progress is not None:
                context.on_progress = _Ticker(on_progress, done, 1, len(targets), forwards)
            attributions = compute_attributions(context, chosen)
            rows.append(
                [
                    explanations_of(context, images, vision_model, Origin(ref(model), method, snapshot), attribution)[0]
                    for method, attribution in zip(chosen, attributions, strict=True)
                ]
            )
            if on_progress is not None:
                on_progress(done + 1, len(targets))
    return Comparison(rows)


def _compared_methods(model: VisionModel, methods: Any, effort: str | None) -> list[Method]:
    named = defaults.comparison_methods(model.has_residual_stream) if methods is None else methods
    chosen: list[Method] = []
    for one in (named,) if isinstance(named, str | Method) else named:
        specs = (split_specs(one) or [one]) if isinstance(one, str) else [one]
        chosen += [resolve_method(spec, None, model) for spec in specs]
    if methods is None or effort is not None:
        chosen.append(resolve_method(None, effort, model))
    return chosen


def explanations_of(
    context: Context,
    images: Sequence[LoadedImage],
    model: VisionModel,
    origin: Origin,
    attribution: Attribution,
    grid: str | None = None,
) -> list[Explanation]:
    """Return the explanation of each image of a context."""
    target, method = context.target, origin.method
    maps = to_grid(attribution.map, grid, model, context.inputs).cpu()
    probabilities = context.probabilities.cpu()
    best = probabilities.argmax(dim=1).tolist()
    extras = {name: value.cpu() for name, value in attribution.extras.items()}
    outputs = "callable" if target.function else " and ".join(method.outputs(target.output))

    def class_at(image: int, index: int) -> ClassProbability:
        return ClassProbability(index, model.label(index), float(probabilities[image, index]))

    is_class, explanations = target.function is None, []
    for i, image in enumerate(images):
        identity = ResultIdentity.of(model, method, target, i, grid, context.seed, origin.snapshot)
        compared = extras["classes"][i] if "classes" in extras else torch.empty(0)
        explanations.append(
            Explanation(
                map=maps[i].clone(),
                request=ExplanationRequest(
                    model=model.name,
                    method=method.spec,
                    settings=method.settings,
                    seed=context.seed,
                    requested_output=target.output,
                    contrast=identity.contrast,
                    contrast_classes=tuple(map(model.label, identity.contrast)),
                    class_subset=identity.class_subset or (),
                    compare_classes=identity.compare_classes,
                ),
                explained=class_at(i, identity.target)
                if identity.target is not None
                else ClassProbability(None, getattr(target.function, "__name__", "callable"), None),
                prediction=class_at(i, best[i]),
                image=image.image,
                name=image.name,
                output=outputs,
                extras={name: value[i].clone() for name, value in extras.items()},
                class_names=tuple(map(model.label, compared[compared >= 0].tolist())),
                box=image.box,
                source=None if image.path is None else str(image.path),
                original_image=image.original,
                origin=origin,
                key=identity if is_class else None,
                image_digest=image.digest if is_class else "",
            )
        )
    return explanations


def _stacked(images: Sequence[LoadedImage]) -> torch.Tensor:
    sizes = {tuple(image.tensor.shape) for image in images}
    if len(sizes) > 1:
        raise ImageError(f"tensors of different sizes cannot be explained together: {sorted(sizes)}")
    return torch.stack([image.tensor for image in images])


def _batch_size(model: VisionModel, method: Method, memory_gb: float | None) -> int:
    """Return how many images to explain together: as many as have room for their results, and no more than 32."""
    height, width = model.preprocess.size if method.grid == "pixel" else model.grid()
    bytes_per_image = method.num_maps(model) * height * width * 4
    return max(1, min(_MAX_BATCH, int(budget_bytes(model.device, memory_gb) / bytes_per_image)))


class _Ticker:
    """What a context calls after each inner batch: inputs run become images done, this batch's at most.

    More work may turn up on the way (``expect``); what was reported is never taken back.
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


def python_call(function: str, model: VisionModel, e: Explanation, arguments: Mapping[str, Any]) -> str:
    """Return a call that makes an explanation again; below it what each name stands for that cannot be written out.

    A model is loaded as it was, as long as its weights are those that were loaded; otherwise it is one in hand, known
    by its fingerprint.
    """
    weights = (e.identity or {}).get("weights", "")[:FINGERPRINT_DIGITS]
    name, notes = "model", [f"model: a {type(model.module).__name__} of your own, fingerprint {weights}"]
    if model.load_recipe is not None and model.load_recipe.holds(model.module):
        name, notes = model.load_recipe.code()
        if model.load_recipe.is_random:
            notes = [*notes, f"the weights are random: these have the fingerprint {weights}"]
    words = [name, repr(e.source)]
    if e.source is None:
        words[1], notes = "image", [*notes, "image: the image in hand"]
    for keyword, value in {**arguments, "target": _plain_target(arguments["target"], e)}.items():
        if isinstance(value, Method) and get_method(value.spec) != value:
            words.append(f"{keyword}={keyword}")
            notes.append(f"{keyword}: your own, {value.spec}")
        elif value is not None and (keyword, value) != ("seed", 0):
            words.append(f"{keyword}={getattr(value, 'spec', value)!r}")
    return "\n".join([f"vt.{function}({', '.join(words)})", *(f"# {note}" for note in notes)])


def _plain_target(target: Any, e: Explanation) -> int | str | None:
    """Return a target as it is written; of a list the class that was explained."""
    simplified = plain_target(target)
    return simplified if isinstance(simplified, int | str | None) else e.target
