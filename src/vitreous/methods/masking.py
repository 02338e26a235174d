"""Scores of token subsets: the model on a few patches of an image, many subsets of many images in one batch.

Scores of changed copies: many copies of every image, run in inner batches and never all held at once.

Sets of patches: what the model says when it sees only these, the others painted over or left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, ModelError
from vitreous.models import VisionModel
from vitreous.tracing import Context, Pass, Record, activation_value, upcast
from vitreous.tracing.runner import refuse_not_finite

__all__ = [
    "FILLS",
    "Make",
    "Rows",
    "asks_of_sets",
    "cell_of",
    "filling",
    "refuse_whole_grids",
    "scored",
    "scored_rows",
    "scores_of_copies",
    "scores_of_logits",
    "scores_of_rows",
    "scores_of_sets",
    "with_places",
]

Rows = Callable[[int, int], Tensor]
"""``(start, stop) -> logits [stop - start, classes]`` of some of many rows."""


def refuse_whole_grids(name: str, model: VisionModel) -> None:
    """Say why a method that leaves tokens out is not for this model."""
    if not model.can_drop_tokens:
        raise ModelError(f"{name} leaves tokens out, and {model.name} cannot: its layers need the whole grid")


def scored(
    context: Context, name: str, tokens: Tensor, images: Tensor, subsets: Tensor, score: str, half: bool
) -> Tensor:
    """Return the score of every subset ``[S, k]`` of the patches of ``tokens[images]``, from block 0 on.

    ``score`` is the value of the class that is read; ``half`` runs in float16, on a GPU.
    """
    model = context.model

    def logits(start: int, stop: int) -> Tensor:
        keep = subsets[start:stop]
        return model.forward_head(
            model.forward_blocks(model.select_tokens(tokens[images[start:stop]], keep), keep=keep)
        )

    return scored_rows(context, name, logits, images, score, half)


def scored_rows(context: Context, name: str, logits: Rows, images: Tensor, score: str, half: bool) -> Tensor:
    """Return the score of rows of which ``logits`` gives some at a time; row i is made of image ``images[i]``."""
    model, device = context.model, context.inputs.device
    if half and device.type != "cuda":
        raise ModelError(f"{name}: half=true scores in float16 on a GPU, and the model is on {device}")
    target = replace(context.target, output=score).select(images)

    def part(start: int, stop: int) -> Tensor:
        found = logits(start, stop)
        if context.on_progress is not None:
            context.on_progress(stop - start)
        return target.slice_images(start, stop).score(found)

    with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=half):
        scores = torch.cat(context.batching.run(part, len(images)))
    if half and not torch.isfinite(scores).all():
        raise MapError(f"{name}: scores of {model.name} in float16 are not finite; use half=false")
    return scores


def with_places(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return image and patches of every different sample of ``[B, masks, k]``, and where each of them stands."""
    batch, masks, _ = samples.shape
    image = torch.arange(batch, device=samples.device).repeat_interleave(masks)
    rows = torch.cat([image.unsqueeze(1), samples.flatten(0, 1)], dim=1)
    different, back = torch.unique(rows, dim=0, return_inverse=True)
    return different[:, 0], different[:, 1:].contiguous(), back


Make = Callable[[Tensor, Tensor], Tensor]
"""``(images [k], copies [k]) -> inputs [k, ...]``: which image, and which of its copies. A slice of a run has
neighbouring copies of all images, so that a mask which serves all images is drawn once."""

_MOST_SHARED = 2**30
"""Bytes of logits that are kept for the other classes of a comparison."""


def scores_of_copies(context: Context, count: int, make: Make, output: str | None = None, key: Any = None) -> Tensor:
    """Return the score ``[B, count]`` of each copy of each image: ``value`` of the explained class, or the one asked.

    With a hashable ``key`` that says how copies are made, the logits of one class serve the others that ``var``
    compares. No gradients. Cost: ``count`` forwards per image.
    """
    model = context.model

    def logits(images: Tensor, copies: Tensor) -> Tensor:
        return model.forward_head(model.forward_blocks(model.embed(make(images, copies).to(model.dtype))))

    return scores_of_logits(context, count, logits, output, key)


def scores_of_logits(context: Context, count: int, logits: Make, output: str | None = None, key: Any = None) -> Tensor:
    """The same for whoever runs the model itself: ``(images [k], copies [k]) -> logits [k, classes]``."""
    batch = len(context.inputs)
    rows = torch.arange(batch * count, device=context.inputs.device)

    def part(start: int, stop: int) -> Tensor:
        return logits(rows[start:stop] % batch, rows[start:stop] // batch)

    named = None if key is None else (key, count)
    return scores_of_rows(context, rows % batch, part, output, named).reshape(count, batch).T


def scores_of_rows(
    context: Context, images: Tensor, logits: Callable[[int, int], Tensor], output: str | None = None, key: Any = None
) -> Tensor:
    """The same for any rows ``[R]``, of ``images [R]``: ``logits(start, stop)`` are those of some of them."""
    target = context.target if output is None else replace(context.target, output=output)
    common = None if key is None else context.shared
    if common is not None and key in common:
        return target.select(images).score(common[key])
    keeps = common is not None and len(images) * max(context.model.num_classes, 1) * 4 <= _MOST_SHARED

    def part(start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        found = logits(start, stop)
        refuse_not_finite(context.model, found)
        scores = target.select(images[start:stop]).score(found)
        if context.on_progress is not None:
            context.on_progress(stop - start)
        return scores, found if keeps else None

    with torch.no_grad():
        parts = context.batching.run(part, len(images))
    if common is not None and keeps and parts:
        common[key] = torch.cat([found for _, found in parts if found is not None])
    empty = torch.zeros(0, device=images.device)
    return torch.cat([scores for scores, _ in parts]) if parts else empty


FILLS = ("own", "zero", "mean", "blur")
"""What is painted over hidden patches: the mean colour of each of them, 0 in normalised space (the mean colour of the
training set), the mean colour of the image, or the image under a Gaussian of 11 pixels and deviation 5."""

_TOKENS = Pass((Record("resid_pre", activation_value, (0,), grad=False),))


def asks_of_sets(name: str, model: VisionModel, drop: bool) -> tuple[Pass, ...]:
    """Return the pass that sets of tokens are picked from; refuse a model that cannot leave tokens out."""
    if drop:
        refuse_whole_grids(f"{name}(drop=true)", model)
    return (_TOKENS,) if drop else ()


def scores_of_sets(
    context: Context, name: str, kept: Tensor, fill: str, drop: bool, output: str | None = None, key: Any = None
) -> Tensor:
    """Return the score ``[B, S]`` of each image with only the patches of each set, ``kept [S, n]``.

    With ``drop`` the other tokens leave the sequence, picked after the position embedding, and sets of one size run
    together; otherwise ``fill`` is painted over them. ``value`` and ``key`` as for ``scores_of_copies``.
    """
    kept = kept.to(context.inputs.device)
    if drop:
        return _without(context, name, kept, output, key)
    inputs, filled = context.inputs, filling(context, name, fill)
    if inputs.ndim == 3:
        shown = F.pad(kept, (context.model.num_prefix_tokens, 0), value=True).unsqueeze(2)
    else:
        height, width = context.model.grid(inputs)
        rows, columns = (
            cell_of(inputs.shape[2], height).to(kept.device),
            cell_of(inputs.shape[3], width).to(kept.device),
        )
        places = rows[:, None] * width + columns

    def make(images: Tensor, copies: Tensor) -> Tensor:
        seen = shown[copies] if inputs.ndim == 3 else kept[copies][:, places].unsqueeze(1)
        return torch.where(seen, inputs[images], filled[images])

    return scores_of_copies(context, len(kept), make, output, key)


def cell_of(size: int, cells: int) -> Tensor:
    """Return which of ``cells`` equal parts of a side each of its ``size`` places is in: nearest up-sampling."""
    return torch.arange(size) * cells // size


def filling(context: Context, name: str, fill: str) -> Tensor:
    """Return what takes the place of hidden pixels or tokens, shaped like the inputs."""
    inputs = context.inputs
    if fill == "zero":
        return torch.zeros_like(inputs)
    if inputs.ndim == 3:
        if fill != "mean":
            raise ModelError(f"{name}: fill={fill} is for images; the tokens of a sub-network take fill=zero or mean")
        mean = upcast(inputs[:, context.model.num_prefix_tokens :]).mean(dim=1, keepdim=True)
        return mean.to(inputs.dtype).expand_as(inputs)
    precise = upcast(inputs)
    if fill == "mean":
        painted = precise.mean(dim=(2, 3), keepdim=True).expand_as(inputs)
    elif fill == "own":
        height, width = (cell_of(*sides) for sides in zip(inputs.shape[2:], context.model.grid(inputs), strict=True))
        down, across = (F.one_hot(cells).to(precise) for cells in (height, width))
        area = down.sum(dim=0)[:, None] * across.sum(dim=0)
        painted = down @ (down.T @ precise @ across / area) @ across.T
    else:
        painted = _blurred(name, precise)
    return painted.to(inputs.dtype)


def _blurred(name: str, images: Tensor) -> Tensor:
    """A Gaussian of 11 pixels and deviation 5, reflected at the borders, one axis after the other."""
    reach = 5
    if min(images.shape[2:]) <= reach:
        raise ModelError(f"{name}: fill=blur needs images of more than {reach} pixels, got {list(images.shape[2:])}")
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / 5.0) ** 2)
    line = (line / line.sum()).to(images)
    channels = images.shape[1]
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    down = F.conv2d(padded, line.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(down, line.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def _without(context: Context, name: str, kept: Tensor, output: str | None, key: Any) -> Tensor:
    """Return the scores of sets whose other tokens are left out; sets of one size are one stack."""
    model = context.model
    refuse_whole_grids(f"{name}(drop=true)", model)
    (tokens,) = context.run_pass(_TOKENS)[_TOKENS.records[0]]
    sizes = kept.sum(dim=1)
    if bool((sizes == 0).any()):
        _refuse_no_patches(name, model)
    found: list[tuple[Tensor, Tensor]] = []
    for size in sorted(set(sizes.tolist())):
        mine = (sizes == size).nonzero().flatten()
        sets = kept[mine].to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :size]

        def logits(images: Tensor, copies: Tensor, sets: Tensor = sets) -> Tensor:
            keep = sets[copies]
            return model.forward_head(model.forward_blocks(model.select_tokens(tokens[images], keep), keep=keep))

        shared = None if key is None else (key, size)
        found.append((mine, scores_of_logits(context, len(mine), logits, output, shared)))
    order = torch.cat([mine for mine, _ in found])
    return torch.cat([scores for _, scores in found], dim=1)[:, order.argsort()]


def _refuse_no_patches(name: str, model: VisionModel) -> None:
    """Refuse to leave all patches out of a model that reads its answer from patches."""
    if model.num_prefix_tokens == 0 or any(rows.start >= model.num_prefix_tokens for rows in model.pooling.rows):
        why = f"{model.name} reads its answer from the patches"
        raise ModelError(f"{name}: {why}, so that it cannot leave all of them out; use drop=false")
