"""Scores of changed copies: many copies of every image, run in inner batches and never all held at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.passes import Session
from vitreous.passes.runner import refuse_not_finite

__all__ = ["Make", "scores_of_copies", "scores_of_logits", "scores_of_rows"]

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
    batch = len(session.inputs)
    rows = torch.arange(batch * count, device=session.inputs.device)

    def part(start: int, stop: int) -> Tensor:
        return logits(rows[start:stop] % batch, rows[start:stop] // batch)

    named = None if key is None else (key, count)
    return scores_of_rows(session, rows % batch, part, value, named).reshape(count, batch).T


def scores_of_rows(
    session: Session, images: Tensor, logits: Callable[[int, int], Tensor], value: str | None = None, key: Any = None
) -> Tensor:
    """The same for any rows ``[R]``, of ``images [R]``: ``logits(start, stop)`` are those of some of them."""
    target = session.target if value is None else replace(session.target, value=value)
    common = None if key is None else session.common
    if common is not None and key in common:
        return target.rows(images).score(common[key])
    keeps = common is not None and len(images) * max(session.view.classes, 1) * 4 <= _MOST_SHARED

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
