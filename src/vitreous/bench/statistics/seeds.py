"""How much of a score's uncertainty comes from seeds, and how much from images.

Scores of S seeds and n images are taken as ``x_si = mean + seed_s + image_i + rest_si``, all three random. The analysis
of variance gives the mean squares and, from what they are expected to be, the three variances (Searle, Casella and
McCulloch 1992): ``rest = MS_rest``, ``seed = (MS_seed - MS_rest) / n``, ``image = (MS_image - MS_rest) / S``. A
negative estimate becomes zero, and is said to have been. The rest holds what a seed does to one image and not to the
others (masks drawn anew for each of them): it too goes away with more seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.bench.statistics.ranks import blocks
from vitreous.errors import VitreousError
from vitreous.metrics.bootstrap import Groups
from vitreous.metrics.curves import Array
from vitreous.results import Table

__all__ = ["Spread", "seed_scores", "spread"]


@dataclass(frozen=True)
class Spread:
    """The variance of the scores of a method in a metric, by where it comes from.

    ``error`` is the standard error of the mean over all these seeds and images, ``sqrt(seed / S + image / n + rest /
    (S n))``; ``share`` is the part of its square that more seeds would remove, ``(seed / S + rest / (S n)) / error^2``;
    ``share_of_one`` the same for a table of a single seed. NaN where all scores are equal. ``clipped`` names the
    variances whose estimate was below zero. ``images`` counts those (or groups) that have a score with every seed.
    """

    method: str
    metric: str
    seeds: int
    images: int
    mean: float
    seed: float
    image: float
    rest: float
    error: float
    share: float
    share_of_one: float
    clipped: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def spread(scores: Array, method: str = "", metric: str = "", groups: Groups = None) -> Spread:
    """Return where the variance of scores ``[seeds, images]`` comes from; rows of a group are averaged first."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2:
        raise VitreousError(f"scores are [seeds, images], not {list(scores.shape)}")
    finite = np.where(np.isfinite(scores), scores, np.nan)
    units = blocks(finite.T, groups)
    x = units[~np.isnan(units).any(axis=1)].T
    seeds, images = x.shape
    if seeds < 2 or images < 2:
        of = f" of {method} in {metric}" if method else ""
        raise VitreousError(
            f"{seeds} seeds and {images} images with a score in each{of}: variances need two of both, at least"
        )
    whole, by_seed, by_image = x.mean(), x.mean(axis=1, keepdims=True), x.mean(axis=0, keepdims=True)
    of_seed = images * ((by_seed - whole) ** 2).sum() / (seeds - 1)
    of_image = seeds * ((by_image - whole) ** 2).sum() / (images - 1)
    rest = ((x - by_seed - by_image + whole) ** 2).sum() / ((seeds - 1) * (images - 1))
    raw = {"seed": (of_seed - rest) / images, "image": (of_image - rest) / seeds}
    rounding = 1e-24 * float((x**2).mean())  # of numbers that are equal but for their last bits
    seed, image, rest = (0.0 if each < rounding else float(each) for each in (*raw.values(), rest))
    return Spread(
        method=method,
        metric=metric,
        seeds=seeds,
        images=images,
        mean=float(whole),
        seed=seed,
        image=image,
        rest=rest,
        error=math.sqrt(_squared(seed, image, rest, seeds, images)),
        share=_share(seed, image, rest, seeds, images),
        share_of_one=_share(seed, image, rest, 1, images),
        clipped=tuple(name for name, each in raw.items() if each < -rounding),
    )


def _squared(seed: float, image: float, rest: float, seeds: int, images: int) -> float:
    return seed / seeds + image / images + rest / (seeds * images)


def _share(seed: float, image: float, rest: float, seeds: int, images: int) -> float:
    whole = _squared(seed, image, rest, seeds, images)
    return _squared(seed, 0.0, rest, seeds, images) / whole if whole > 0 else math.nan


def seed_scores(tables: Sequence[Table]) -> dict[tuple[str, str], Array]:
    """Return the scores ``[seeds, images]`` of every method and metric that all tables have, one table per seed."""
    if len(tables) < 2:
        raise VitreousError(f"{len(tables)} seed has no variance: there must be tables of at least two")
    first = tables[0]
    for other in tables[1:]:
        if other.images != first.images:
            raise VitreousError("tables of several seeds must have the same images, in the same order")
    cells = [cell for cell in first.parts if all(cell in table.parts for table in tables)]
    return {cell: np.stack([table[cell] for table in tables]) for cell in cells}
