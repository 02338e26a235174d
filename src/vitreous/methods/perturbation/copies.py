"""Scores of changed copies: many copies of every image, run in inner batches and never all held at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.passes import Session
from vitreous.passes.runner import refuse_not_finite

__all__ = ["Make", "scores_of_copies", "scores_of_logits"]

Make = Callable[[Tensor, Tensor], Tensor]
"""``(images [k], copies [k]) -> inputs [k, ...]``: which image, and which of its copies. A slice of a run has
neighbouring copies of all images, so that a mask which serves all images is drawn once."""

_MOST_SHARED = 2**30
"""Bytes of logits that are kept for the other classes of a comparison."""


def scores_of_copies(session: Session, count: int, make: Make, value: str | None = None, key: Any = None) -> Tensor:
    """Return the score ``[B, count]`` of each copy of each image: ``value`` of the explained class, or the one asked.

    With a hashable ``key`` that says how copies are made, the logits of one class serve the others that ``var``
    compares. No gradients. Cost: ``count`` forwards per image.
    """
    view = session.view

    def logits(images: Tensor, copies: Tensor) -> Tensor:
        return view.finish(view.run(view.embed(make(images, copies).to(view.dtype))))

    return scores_of_logits(session, count, logits, value, key)


def scores_of_logits(session: Session, count: int, logits: Make, value: str | None = None, key: Any = None) -> Tensor:
    """The same for whoever runs the model itself: ``(images [k], copies [k]) -> logits [k, classes]``."""
    target = session.target if value is None else replace(session.target, value=value)
    view, batch, device = session.view, len(session.inputs), session.inputs.device
    common = None if key is None else session.common
    if common is not None and (key, count) in common:
        images = torch.arange(batch, device=device).repeat(count)
        return target.rows(images).score(common[key, count]).reshape(count, batch).T
    keeps = common is not None and batch * count * max(view.classes, 1) * 4 <= _MOST_SHARED

    def part(start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        rows = torch.arange(start, stop, device=device)
        found = logits(rows % batch, rows // batch)
        refuse_not_finite(view, found)
        scores = target.rows(rows % batch).score(found)
        if session.tick is not None:
            session.tick(stop - start)
        return scores, found if keeps else None

    with torch.no_grad():
        parts = session.inner.run(part, batch * count)
    if common is not None and keeps:
        common[key, count] = torch.cat([found for _, found in parts if found is not None])
    return torch.cat([scores for scores, _ in parts]).reshape(count, batch).T
