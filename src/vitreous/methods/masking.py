"""Scores of changed copies of the images: pixels painted over, or tokens left out, in batches that fit into memory.

``score_rows`` is the only place where methods score perturbed copies; everything else here makes the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import MapError, ModelError
from vitreous.methods import ops
from vitreous.models import VisionModel
from vitreous.tracing import Context, Pass, Record, Target, activation_value, upcast
from vitreous.tracing.runner import refuse_not_finite

FILLS = ("own", "zero", "mean", "blur")
"""What is painted over hidden patches: the mean colour of each of them, 0 in normalised space (the mean colour of the
training set), the mean colour of the image, or the image under a Gaussian of 11 pixels and deviation 5."""

TOKENS = Record("resid_pre", activation_value, (0,), grad=False)
"""The tokens that subsets are selected from."""

Rows = Callable[[int, int], Tensor]
"""``(start, stop) -> logits [stop - start, classes]``: runs the model on some of many changed copies."""

Logits = Callable[[Tensor, Tensor], Tensor]
"""``(images [k], changes [k, ...]) -> logits [k, classes]``: runs each of these images with its change."""

_BLUR_RADIUS, _BLUR_SIGMA = 5, 5.0
_MOST_SHARED = 2**30  # bytes of logits that are kept for the other classes of a comparison


def score_rows(
    context: Context, images: Tensor, logits: Rows, output: str | None = None, key: Any = None, half: bool = False
) -> Tensor:
    """Return the score ``[R]`` of changed copies; row r is a copy of image ``images[r]``.

    The score is ``output`` of the explained class, or the output asked for. With a hashable ``key`` that says how the
    copies are made, the logits of one class serve the others that ``var`` compares. ``half`` runs in float16, on a GPU.
    No gradients.
    """
    if len(images) == 0:
        return torch.zeros(0, device=context.inputs.device)
    target = (context.target if output is None else replace(context.target, output=output)).select(images)
    num_bytes = len(images) * max(context.model.num_classes, 1) * 4
    shared = context.shared if key is not None and num_bytes <= _MOST_SHARED else None
    if shared is None:
        return _run_rows(context, len(images), logits, half, target)
    if key not in shared:
        shared[key] = _run_rows(context, len(images), logits, half)
    return target.score(shared[key])


def _run_rows(context: Context, count: int, logits: Rows, half: bool, target: Target | None = None) -> Tensor:
    """Return the scores of all rows, or their logits without a target, in batches that fit into memory."""
    device, name = context.inputs.device, context.model.name
    if half and device.type != "cuda":
        raise ModelError(f"half=true scores in float16 on a GPU, and the model is on {device}")

    def part(start: int, stop: int) -> Tensor:
        rows = logits(start, stop)
        if not half:
            refuse_not_finite(context.model, rows)
        if context.on_progress is not None:
            context.on_progress(stop - start)
        return rows if target is None else target.slice_images(start, stop).score(rows)

    with torch.no_grad(), torch.autocast("cuda", torch.float16, enabled=half):
        results = torch.cat(context.batching.run(part, count))
    if half and not torch.isfinite(results).all():
        raise MapError(f"scores of {name} in float16 are not finite; use half=false")
    return results


def score_copies(context: Context, count: int, logits: Logits, output: str | None = None, key: Any = None) -> Tensor:
    """Return the score ``[B, count]`` of each of ``count`` copies of each image: ``logits(images [k], copies [k])``.

    Neighbouring copies of all images run together, so that a mask which serves all images is made once. Cost: ``count``
    forwards per image.
    """
    batch = len(context.inputs)
    rows = torch.arange(batch * count, device=context.inputs.device)

    def part(start: int, stop: int) -> Tensor:
        return logits(rows[start:stop] % batch, rows[start:stop] // batch)

    scores = score_rows(context, rows % batch, part, output, None if key is None else (key, count))
    return scores.reshape(count, batch).T


def logits_of_inputs(model: VisionModel, inputs: Tensor) -> Tensor:
    """Return the logits of changed inputs."""
    return model.forward_head(model.forward_blocks(model.embed(inputs.to(model.dtype))))


def dropped_logits(context: Context) -> Logits:
    """Return what runs images with only some of their patches, ``subsets [k, n]``, and the prefix."""
    model = context.model
    (tokens,) = context.run_pass(Pass((TOKENS,)))[TOKENS]

    def logits(images: Tensor, subsets: Tensor) -> Tensor:
        return model.forward_head(model.forward_blocks(model.select_tokens(tokens[images], subsets), keep=subsets))

    return logits


def token_records(model: VisionModel, name: str, drop: bool) -> list[Record]:
    """Return the record of what patches are dropped from, where they are; refuse a model that cannot drop them."""
    if drop:
        refuse_undroppable(f"{name}(drop=true)", model)
    return [TOKENS] if drop else []


def refuse_undroppable(name: str, model: VisionModel) -> None:
    """Refuse a model that cannot leave tokens out."""
    if not model.can_drop_tokens:
        raise ModelError(f"{name} leaves tokens out, and {model.name} cannot: its layers need the whole grid")


class DistinctScores(NamedTuple):
    """The scores ``[R]`` of different subsets ``[R, k]`` of images ``[R]``, and which ``row`` each of ``[B, S]`` is."""

    scores: Tensor
    images: Tensor
    subsets: Tensor
    row: Tensor


def score_distinct(context: Context, subsets: Tensor, logits: Logits, output: str, half: bool) -> DistinctScores:
    """Score the subsets of each image, ``[B, S, k]``, equal ones once: ``logits(images [r], subsets [r, k])``."""
    image = torch.arange(len(subsets), device=subsets.device).repeat_interleave(subsets.shape[1])
    rows = torch.cat([image.unsqueeze(1), subsets.flatten(0, 1)], dim=1)
    rows, index = torch.unique(rows, dim=0, return_inverse=True)
    images, distinct = rows[:, 0], rows[:, 1:].contiguous()

    def part(start: int, stop: int) -> Tensor:
        return logits(images[start:stop], distinct[start:stop])

    scores = score_rows(context, images, part, output, half=half)
    return DistinctScores(scores, images, distinct, index.view(subsets.shape[:2]))


def score_subsets(
    context: Context, name: str, visible: Tensor, fill: str, drop: bool, output: str | None = None, key: Any = None
) -> Tensor:
    """Return the score ``[B, S]`` of each image with only the patches of each subset, ``visible [S, n]``.

    With ``drop`` the other tokens leave the sequence, picked after the position embedding, and subsets of one size run
    together; otherwise ``fill`` is painted over them.
    """
    model, visible = context.model, visible.to(context.inputs.device)
    if not drop:
        painted = painted_logits(context, name, fill)
        return score_copies(context, len(visible), lambda images, rows: painted(images, visible[rows]), output, key)
    refuse_undroppable(f"{name}(drop=true)", model)
    sizes, prefix = visible.sum(dim=1), model.num_prefix_tokens
    reads_patches = prefix == 0 or any(rows.start >= prefix for rows in model.pooling.rows)
    if reads_patches and bool((sizes == 0).any()):
        raise ModelError(
            f"{name}: {model.name} reads its answer from the patches, so that it cannot leave all of them out; "
            "use drop=false"
        )
    dropped = dropped_logits(context)
    scores, order = [], []
    for size in sorted(set(sizes.tolist())):
        rows = (sizes == size).nonzero().flatten()
        subsets = first_patches(visible[rows], size)

        def logits(images: Tensor, copies: Tensor, subsets: Tensor = subsets) -> Tensor:
            return dropped(images, subsets[copies])

        scores.append(score_copies(context, len(rows), logits, output, None if key is None else (key, size)))
        order.append(rows)
    return torch.cat(scores, dim=1)[:, torch.cat(order).argsort()]


def first_patches(values: Tensor, count: int) -> Tensor:
    """Return which ``count`` patches of ``[..., n]`` have the largest values; of equal ones the first."""
    values = values.to(torch.uint8) if values.dtype == torch.bool else values
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]


def painted_logits(context: Context, name: str, fill: str) -> Logits:
    """Return what runs images with those patches painted over that are not ``visible [k, n]``."""
    inputs, filled = context.inputs, fill_inputs(context, name, fill)
    prefix, grid = context.model.num_prefix_tokens, context.model.grid(inputs)

    def logits(images: Tensor, visible: Tensor) -> Tensor:
        if inputs.ndim == 3:
            mask = F.pad(visible.bool(), (prefix, 0), value=True).unsqueeze(2)
        else:
            rows, columns = (side_cells(*side).to(visible.device) for side in zip(inputs.shape[2:], grid, strict=True))
            mask = visible.bool()[:, rows[:, None] * grid[1] + columns].unsqueeze(1)
        return logits_of_inputs(context.model, torch.where(mask, inputs[images], filled[images]))

    return logits


def side_cells(size: int, cells: int) -> Tensor:
    """Return which of ``cells`` equal parts of a side each of its ``size`` pixels is in: nearest up-sampling."""
    return torch.arange(size) * cells // size


def masked_size(context: Context) -> tuple[int, int]:
    """Return height and width of what is masked: pixels, or the patches of a sub-network."""
    if context.inputs.ndim == 4:
        return context.inputs.shape[-2], context.inputs.shape[-1]
    return context.model.grid(context.inputs)


def mask_inputs(model: VisionModel, inputs: Tensor, masks: Tensor) -> Tensor:
    """Return images ``[..., C, H, W]`` or tokens ``[..., N, D]`` times masks ``[..., h, w]`` of pixels or patches."""
    if inputs.ndim > masks.ndim:
        return inputs * masks.unsqueeze(-3)
    return inputs * F.pad(masks.flatten(-2), (model.num_prefix_tokens, 0), value=1.0).unsqueeze(-1)


def fill_inputs(context: Context, name: str, fill: str) -> Tensor:
    """Return what takes the place of hidden pixels or tokens, shaped like the inputs."""
    inputs, precise = context.inputs, upcast(context.inputs)
    if fill == "zero":
        return torch.zeros_like(inputs)
    if inputs.ndim == 3:
        if fill != "mean":
            raise ModelError(f"{name}: fill={fill} is for images; the tokens of a sub-network take fill=zero or mean")
        filled = precise[:, context.model.num_prefix_tokens :].mean(dim=1, keepdim=True).expand_as(inputs)
    elif fill == "mean":
        filled = precise.mean(dim=(2, 3), keepdim=True).expand_as(inputs)
    elif fill == "own":
        sides = zip(inputs.shape[2:], context.model.grid(inputs), strict=True)
        rows, columns = (F.one_hot(side_cells(*side)).to(precise) for side in sides)
        area = rows.sum(dim=0)[:, None] * columns.sum(dim=0)
        filled = rows @ (rows.T @ precise @ columns / area) @ columns.T
    else:
        filled = _blurred(name, precise)
    return filled.to(inputs.dtype)


def _blurred(name: str, images: Tensor) -> Tensor:
    """Blur with a Gaussian of 11 pixels and deviation 5, reflected at the borders, one axis after the other."""
    radius, channels = _BLUR_RADIUS, images.shape[1]
    if min(images.shape[2:]) <= radius:
        raise ModelError(f"{name}: fill=blur needs images of more than {radius} pixels, got {list(images.shape[2:])}")
    kernel = ops.gaussian_kernel(_BLUR_SIGMA, radius).to(images)
    padded = F.pad(images, (radius,) * 4, mode="reflect")
    rows = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(rows, kernel.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
