"""Difficulty bins: any score by the model's confidence in the clean image (CoIBA).

Confidence bounds what insertion minus deletion can reach, so bins compare images, not explanations: ``relative``
divides every score by the confidence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitreous.errors import VitreousError
from vitreous.metrics.bootstrap import SAMPLES, Groups, Interval, intervals
from vitreous.metrics.bootstrap import members as units
from vitreous.metrics.curves import Array

__all__ = ["THIN", "Bin", "bins"]

THIN = 20
"""A bin with fewer images says little."""


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies in ``low .. high``; the upper end belongs to the last bin only.

    ``count`` images have a score; mean and interval are NaN where none has.
    """

    low: float
    high: float
    count: int
    mean: float
    interval: Interval

    @property
    def thin(self) -> bool:
        """Whether there are too few images to rely on."""
        return self.count < THIN

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"thin": self.thin}


def bins(
    scores: Array,
    confidence: Array,
    count: int = 20,
    by: str = "width",
    *,
    relative: bool = False,
    samples: int = SAMPLES,
    seed: int = 0,
    groups: Groups = None,
) -> list[Bin]:
    """Return ``count`` bins of equal ``width`` over 0 .. 1, or of equal ``mass`` (as many images in each).

    Bins of equal mass cut the images in order of confidence; where there are fewer images than bins, one each. Images
    of a group that fall into one bin are resampled together.
    """
    scores, confidence = np.asarray(scores, np.float64), np.asarray(confidence, np.float64)
    if count < 1:
        raise VitreousError(f"{count} bins are too few")
    if scores.shape != confidence.shape or scores.ndim != 1:
        raise VitreousError(f"{scores.shape} scores and {confidence.shape} confidences do not belong together")
    if not ((confidence >= 0) & (confidence <= 1)).all():
        raise VitreousError("confidences must lie between 0 and 1")
    if relative:
        scores = np.divide(scores, confidence, out=np.full_like(scores, np.nan), where=confidence > 0)
    if by == "width":
        edges = np.linspace(0, 1, count + 1)
        which = np.minimum((confidence * count).astype(int), count - 1)
        members = [(edges[i], edges[i + 1], np.flatnonzero(which == i)) for i in range(count)]
    elif by == "mass":
        order = np.argsort(confidence, kind="stable")
        parts = [part for part in np.array_split(order, min(count, len(order))) if len(part)]
        members = [(confidence[part[0]], confidence[part[-1]], part) for part in parts]
    else:
        raise VitreousError(f"by={by!r} is not one of width, mass")
    member = None if groups is None else units(len(scores), groups)
    return [
        _bin(float(low), float(high), scores[part], member if member is None else member[part], samples, seed)
        for low, high, part in members
    ]


def _bin(low: float, high: float, scores: Array, member: Array | None, samples: int, seed: int) -> Bin:
    there = scores[~np.isnan(scores)]
    groups = None if member is None else member[~np.isnan(scores)].tolist()
    if not len(there):
        nothing = float("nan")
        return Bin(low, high, 0, nothing, Interval(nothing, nothing))
    (interval,) = intervals(there[:, None], samples=samples, seed=seed, groups=groups)
    return Bin(low, high, len(there), float(there.mean()), interval)
