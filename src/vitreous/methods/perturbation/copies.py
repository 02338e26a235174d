"""Scores of changed copies: many copies of every image, run in inner batches and never all held at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.passes import Session
from vitreous.passes.runner import refuse_not_finite

__all__ = ["Make", "scores_of_copies"]

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
    target = session.target if value is None else replace(session.target, value=value)
    view, batch, device = session.view, len(session.inputs), session.inputs.device
    known = None if session.common is None or key is None else session.common.get((key, count))
    images = torch.arange(batch, device=device).repeat(count)
    if known is not None:
        return target.rows(images).score(known).reshape(count, batch).T
    fits = batch * count * max(session.view.classes, 1) * 4 <= _MOST_SHARED
    kept: list[Tensor] | None = [] if session.common is not None and key is not None and fits else None

    def part(start: int, stop: int) -> Tensor:
        rows = torch.arange(start, stop, device=device)
        logits = view.finish(view.run(view.embed(make(rows % batch, rows // batch).to(view.dtype))))
        refuse_not_finite(view, logits)
        if session.tick is not None:
            session.tick(stop - start)
        if kept is not None:
            kept.append(logits)
        return target.rows(rows % batch).score(logits)

    with torch.no_grad():
        scores = torch.cat(session.inner.run(part, batch * count))
    if kept is not None and session.common is not None:
        session.common[key, count] = torch.cat(kept)
    return scores.reshape(count, batch).T
