"""Scores of token subsets: the model on a few patches of an image, many subsets of many images in one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vitreous.errors import MapError, ModelError
from vitreous.models import View
from vitreous.passes import Session

__all__ = ["Rows", "refuse_whole_grids", "scored", "scored_rows", "with_places"]

Rows = Callable[[int, int], Tensor]
"""``(start, stop) -> logits [stop - start, classes]`` of some of many rows."""


def refuse_whole_grids(name: str, view: View) -> None:
    """Say why a method that leaves tokens out is not for this model."""
    if not view.drops_tokens:
        raise ModelError(f"{name} leaves tokens out, and {view.name} cannot: its layers need the whole grid")


def scored(
    session: Session, name: str, tokens: Tensor, images: Tensor, subsets: Tensor, score: str, half: bool
) -> Tensor:
    """Return the score of every subset ``[S, k]`` of the patches of ``tokens[images]``, from block 0 on.

    ``score`` is the value of the class that is read; ``half`` runs in float16, on a GPU.
    """
    view = session.view

    def logits(start: int, stop: int) -> Tensor:
        keep = subsets[start:stop]
        return view.finish(view.run(view.pick(tokens[images[start:stop]], keep), keep=keep))

    return scored_rows(session, name, logits, images, score, half)


def scored_rows(session: Session, name: str, logits: Rows, images: Tensor, score: str, half: bool) -> Tensor:
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
