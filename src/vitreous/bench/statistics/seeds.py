"""How much of a score's uncertainty comes from seeds, and how much from images.

Scores of S seeds and n images are taken as ``x_si = mean + seed_s + image_i + rest_si``, all three random. The analysis
of variance gives the mean squares and, from what they are expected to be, the three variances (Searle, Casella and
McCulloch 1992): ``rest = MS_rest``, ``seed = (MS_seed - MS_rest) / n``, ``image = (MS_image - MS_rest) / S``. A
negative estimate becomes zero, and is said to have been. The rest holds what a seed does to one image and not to the
others (masks drawn anew for each of them): it too goes away with more seeds.

The numbers of a run with several seeds are those of its ``averaged`` table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitreous.bench.statistics.ranks import blocks
from vitreous.errors import VitreousError
from vitreous.metrics import Metric
from vitreous.metrics.bootstrap import Groups
from vitreous.metrics.curves import Array, Curve
from vitreous.results import Table

__all__ = ["Spread", "averaged", "seed_scores", "spread"]


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
    return {cell: np.stack([table[cell] for table in tables]) for cell in _shared_cells(tables)}


def averaged(tables: Sequence[Table]) -> Table:
    """Return one table whose images have the mean of their scores over seeds; ``tables`` has one for each seed.

    Parts and curves of an image are averaged over the seeds with which it has a score, so that an image that lacks a
    seed still counts. ``seed_sd`` is the standard deviation (S - 1) of the scores that each seed gives to all images;
    so that it holds no difference between images, only those count here that have a score with every seed.
    """
    if len(tables) == 1:
        return tables[0]
    first, cells = tables[0], _shared_cells(tables)
    parts, curves, deviations = {}, {}, {}
    for cell in cells:
        judge, every = first.judges[cell[1]], np.stack([table.parts[cell] for table in tables])
        there = np.stack([~np.isnan(table[cell]) for table in tables])
        parts[cell] = _mean_over_seeds(every, there)
        deviations[cell] = _deviation(judge, every, there)
        curves[cell] = _mean_curves([table.curves.get(cell, {}) for table in tables])
    counts = {name: [table.degenerate.get(name, {}) for table in tables] for name in first.methods}
    return replace(
        first,
        parts=parts,
        curves=curves,
        degenerate={
            name: {
                kind: max(own.get(kind, 0) for own in each) for kind in dict.fromkeys(k for own in each for k in own)
            }
            for name, each in counts.items()
        },
        plan={**first.plan, "seed": [table.plan.get("seed") for table in tables]},
        seed_sd=deviations,
    )


def _shared_cells(tables: Sequence[Table]) -> list[tuple[str, str]]:
    """Return the cells that all tables have; their images must be the same."""
    if any(table.images != tables[0].images for table in tables):
        raise VitreousError("tables of several seeds must have the same images, in the same order")
    return [cell for cell in tables[0].parts if all(cell in table.parts for table in tables)]


def _mean_over_seeds(values: Array, there: Array) -> Array:
    """Return the mean ``[n, P]`` of ``[seeds, n, P]`` over the seeds that are ``there``; NaN where none is."""
    count = there.sum(axis=0)[:, None]
    total = np.where(there[:, :, None], values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0))


def _deviation(judge: Metric, parts: Array, there: Array) -> float:
    """Return the standard deviation over seeds of the score of all images; NaN with fewer than two seeds."""
    begun = there.any(axis=1)  # a seed of which nothing is there yet must not hide the others
    whole = there[begun].all(axis=0)
    if begun.sum() < 2 or not whole.any():
        return math.nan
    cells = [judge.cell(own[whole]) for own in parts[begun]]
    return float(np.std([aggregate(own, np.ones((1, len(own))))[0] for own, aggregate in cells], ddof=1))


def _mean_curves(curves: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    """Return curves by name, those of an image averaged over the seeds that have one of it."""
    found = {}
    for name in dict.fromkeys(name for own in curves for name in own):
        known = [own[name] for own in curves if name in own]
        every = np.stack([curve.y for curve in known])
        found[name] = Curve(known[0].x, _mean_over_seeds(every, ~np.isnan(every).any(axis=2)))
    return found
