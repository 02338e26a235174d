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
from vitreous.methods.ops import upcast
from vitreous.models import VisionModel
from vitreous.tracing import Context, Pass, Record, whole
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


def refuse_whole_grids(name: str, view: VisionModel) -> None:
    """Say why a method that leaves tokens out is not for this model."""
    if not view.can_drop_tokens:
        raise ModelError(f"{name} leaves tokens out, and {view.name} cannot: its layers need the whole grid")


def scored(
    session: Context, name: str, tokens: Tensor, images: Tensor, subsets: Tensor, score: str, half: bool
) -> Tensor:
    """Return the score of every subset ``[S, k]`` of the patches of ``tokens[images]``, from block 0 on.

    ``score`` is the value of the class that is read; ``half`` runs in float16, on a GPU.
    """
    view = session.view

    def logits(start: int, stop: int) -> Tensor:
        keep = subsets[start:stop]
        return view.forward_head(view.forward_blocks(view.select_tokens(tokens[images[start:stop]], keep), keep=keep))

    return scored_rows(session, name, logits, images, score, half)


def scored_rows(session: Context, name: str, logits: Rows, images: Tensor, score: str, half: bool) -> Tensor:
    """Return the score of rows of which ``logits`` gives some at a time; row i is made of image ``images[i]``."""
    view, device = session.view, session.inputs.device
    if half and device.type != "cuda":
        raise ModelError(f"{name}: half=true scores in float16 on a GPU, and the model is on {device}")
    target = replace(session.target, value=score).rows(images)

    def part(start: int, stop: int) -> Tensor:
        found = logits(start, stop)
        if session.tick is not None:
            session.tick(stop - start)
        return target.part(start, stop).score(found)

    with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=half):
        scores = torch.cat(session.inner.run(part, len(images)))
    if half and not torch.isfinite(scores).all():
        raise MapError(f"{name}: scores of {view.name} in float16 are not finite; use half=false")
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


def scores_of_copies(session: Context, count: int, make: Make, value: str | None = None, key: Any = None) -> Tensor:
    """Return the score ``[B, count]`` of each copy of each image: ``value`` of the explained class, or the one asked.

    With a hashable ``key`` that says how copies are made, the logits of one class serve the others that ``var``
    compares. No gradients. Cost: ``count`` forwards per image.
    """
    view = session.view

    def logits(images: Tensor, copies: Tensor) -> Tensor:
        return view.forward_head(view.forward_blocks(view.embed(make(images, copies).to(view.dtype))))

    return scores_of_logits(session, count, logits, value, key)


def scores_of_logits(session: Context, count: int, logits: Make, value: str | None = None, key: Any = None) -> Tensor:
    """The same for whoever runs the model itself: ``(images [k], copies [k]) -> logits [k, classes]``."""
    batch = len(session.inputs)
    rows = torch.arange(batch * count, device=session.inputs.device)

    def part(start: int, stop: int) -> Tensor:
        return logits(rows[start:stop] % batch, rows[start:stop] // batch)

    named = None if key is None else (key, count)
    return scores_of_rows(session, rows % batch, part, value, named).reshape(count, batch).T


def scores_of_rows(
    session: Context, images: Tensor, logits: Callable[[int, int], Tensor], value: str | None = None, key: Any = None
) -> Tensor:
    """The same for any rows ``[R]``, of ``images [R]``: ``logits(start, stop)`` are those of some of them."""
    target = session.target if value is None else replace(session.target, value=value)
    common = None if key is None else session.common
    if common is not None and key in common:
        return target.rows(images).score(common[key])
    keeps = common is not None and len(images) * max(session.view.num_classes, 1) * 4 <= _MOST_SHARED

    def part(start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        found = logits(start, stop)
        refuse_not_finite(session.view, found)
        scores = target.rows(images[start:stop]).score(found)
        if session.tick is not None:
            session.tick(stop - start)
        return scores, found if keeps else None

    with torch.no_grad():
        parts = session.inner.run(part, len(images))
    if common is not None and keeps and parts:
        common[key] = torch.cat([found for _, found in parts if found is not None])
    empty = torch.zeros(0, device=images.device)
    return torch.cat([scores for scores, _ in parts]) if parts else empty


FILLS = ("own", "zero", "mean", "blur")
"""What is painted over hidden patches: the mean colour of each of them, 0 in normalised space (the mean colour of the
training set), the mean colour of the image, or the image under a Gaussian of 11 pixels and deviation 5."""

_TOKENS = Pass((Record("input", whole, (0,)),))


def asks_of_sets(name: str, view: VisionModel, drop: bool) -> tuple[Pass, ...]:
    """Return the pass that sets of tokens are picked from; refuse a model that cannot leave tokens out."""
    if drop:
        refuse_whole_grids(f"{name}(drop=true)", view)
    return (_TOKENS,) if drop else ()


def scores_of_sets(
    session: Context, name: str, kept: Tensor, fill: str, drop: bool, value: str | None = None, key: Any = None
) -> Tensor:
    """Return the score ``[B, S]`` of each image with only the patches of each set, ``kept [S, n]``.

    With ``drop`` the other tokens leave the sequence, picked after the position embedding, and sets of one size run
    together; otherwise ``fill`` is painted over them. ``value`` and ``key`` as for ``scores_of_copies``.
    """
    kept = kept.to(session.inputs.device)
    if drop:
        return _without(session, name, kept, value, key)
    inputs, filled = session.inputs, filling(session, name, fill)
    if inputs.ndim == 3:
        shown = F.pad(kept, (session.view.num_prefix_tokens, 0), value=True).unsqueeze(2)
    else:
        high, wide = session.view.grid(inputs)
        rows, columns = cell_of(inputs.shape[2], high).to(kept.device), cell_of(inputs.shape[3], wide).to(kept.device)
        places = rows[:, None] * wide + columns

    def make(images: Tensor, copies: Tensor) -> Tensor:
        seen = shown[copies] if inputs.ndim == 3 else kept[copies][:, places].unsqueeze(1)
        return torch.where(seen, inputs[images], filled[images])

    return scores_of_copies(session, len(kept), make, value, key)


def cell_of(size: int, cells: int) -> Tensor:
    """Return which of ``cells`` equal parts of a side each of its ``size`` places is in: nearest up-sampling."""
    return torch.arange(size) * cells // size


def filling(session: Context, name: str, fill: str) -> Tensor:
    """Return what takes the place of hidden pixels or tokens, shaped like the inputs."""
    inputs = session.inputs
    if fill == "zero":
        return torch.zeros_like(inputs)
    if inputs.ndim == 3:
        if fill != "mean":
            raise ModelError(f"{name}: fill={fill} is for images; the tokens of a sub-network take fill=zero or mean")
        mean = upcast(inputs[:, session.view.num_prefix_tokens :]).mean(dim=1, keepdim=True)
        return mean.to(inputs.dtype).expand_as(inputs)
    precise = upcast(inputs)
    if fill == "mean":
        painted = precise.mean(dim=(2, 3), keepdim=True).expand_as(inputs)
    elif fill == "own":
        high, wide = (cell_of(*sides) for sides in zip(inputs.shape[2:], session.view.grid(inputs), strict=True))
        down, across = (F.one_hot(cells).to(precise) for cells in (high, wide))
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


def _without(session: Context, name: str, kept: Tensor, value: str | None, key: Any) -> Tensor:
    """Return the scores of sets whose other tokens are left out; sets of one size are one stack."""
    view = session.view
    refuse_whole_grids(f"{name}(drop=true)", view)
    (tokens,) = session.trace(_TOKENS)[_TOKENS.keeps[0]]
    sizes = kept.sum(dim=1)
    if bool((sizes == 0).any()):
        _refuse_no_patches(name, view)
    found: list[tuple[Tensor, Tensor]] = []
    for size in sorted(set(sizes.tolist())):
        mine = (sizes == size).nonzero().flatten()
        sets = kept[mine].to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :size]

        def logits(images: Tensor, copies: Tensor, sets: Tensor = sets) -> Tensor:
            keep = sets[copies]
            return view.forward_head(view.forward_blocks(view.select_tokens(tokens[images], keep), keep=keep))

        shared = None if key is None else (key, size)
        found.append((mine, scores_of_logits(session, len(mine), logits, value, shared)))
    order = torch.cat([mine for mine, _ in found])
    return torch.cat([scores for _, scores in found], dim=1)[:, order.argsort()]


def _refuse_no_patches(name: str, view: VisionModel) -> None:
    """Refuse to leave all patches out of a model that reads its answer from patches."""
    if view.num_prefix_tokens == 0 or any(rows.start >= view.num_prefix_tokens for rows in view.pooling.rows):
        why = f"{view.name} reads its answer from the patches"
        raise ModelError(f"{name}: {why}, so that it cannot leave all of them out; use drop=false")
