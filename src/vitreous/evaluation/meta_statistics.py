"""What meta-evaluation says about one metric, from the scores it gives to maps of known worth: numbers only, no model.

Scores are turned so that up is better. Metrics that are no mean over images are aggregated anew in every resample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt

import numpy as np

from vitreous.errors import VitreousError
from vitreous.evaluation.meta_maps import CENTRE, DEGRADED, MISPLACED, MIXES, ORACLE, RANDOM
from vitreous.metrics.base import Metric
from vitreous.metrics.bootstrap import Interval, interval, intervals, resampled
from vitreous.metrics.ranking import Array
from vitreous.metrics.similarity import rank_correlation
from vitreous.results.diagnostics import MetricAssessment, Reliability, Step

POWER_IMAGES = 500
POWER = 1.96 + 0.84
"""Deviations that a difference must have for a two-sided 5 % test to see it four times in five."""


@dataclass(frozen=True, eq=False)
class Scores:
    """One metric on the maps of the ladder: ``images[map]`` ``[n]``, and ``resamples[map]`` ``[B]`` of the whole score.

    Up is better; ``overall[map]`` is the score of all images. Images that lack a score of any map are NaN in all.
    """

    images: Mapping[str, Array]
    overall: Mapping[str, float]
    resamples: Mapping[str, Array]

    @classmethod
    def of(cls, metric: Metric, parts: Sequence[Mapping[str, Array]], n_bootstrap: int) -> Scores:
        """Take the parts ``[n, P]`` of every map, once for each seed of the run; seeds are averaged."""
        sign, names = 1.0 if metric.higher_is_better else -1.0, list(parts[0])
        complete: Array = np.logical_and.reduce(
            [np.isfinite(part[name]).all(axis=1) for part in parts for name in names]
        )
        if not complete.any():
            raise VitreousError(f"{metric.spec} has no scene that all maps have a score of")
        per_image, overall, resamples = [], [], []
        for part in parts:
            finite_parts = [np.where(complete[:, None], part[name], np.nan) for name in names]
            cells = [metric.cell(one) for one in finite_parts]
            per_image.append([metric.per_image(one) for one in finite_parts])
            overall.append([float(aggregate(one, np.ones((1, len(one))))[0]) for one, aggregate in cells])
            resamples.append(resampled(cells, n_bootstrap).T)
        images, scores, anew = (
            dict(zip(names, sign * np.mean(over_seeds, axis=0), strict=True))
            for over_seeds in (per_image, overall, resamples)
        )
        return cls(images, {name: float(value) for name, value in scores.items()}, anew)

    @property
    def count(self) -> int:
        """How many images have a score of every map."""
        return int(np.isfinite(next(iter(self.images.values()))).sum())

    def difference(self, better: Sequence[str], worse: Sequence[str]) -> tuple[float, Interval]:
        """Return by how much the mean of some maps exceeds that of others, with its paired 95 % interval."""
        gap = np.mean([self.overall[name] for name in better]) - np.mean([self.overall[name] for name in worse])
        upper = np.mean([self.resamples[name] for name in better], axis=0)
        return float(gap), interval(upper - np.mean([self.resamples[name] for name in worse], axis=0))

    def table(self, names: Sequence[str]) -> Array:
        """Return the scores of images that have them, ``[n, maps]``."""
        rows = np.stack([self.images[name] for name in names], axis=1)
        return np.asarray(rows[np.isfinite(rows).all(axis=1)])


def error_rate(scores: Scores, pairs: Sequence[tuple[str, str]]) -> float:
    """Return the share of images and pairs (better, worse) in the wrong order; equal scores count half."""
    gaps = np.stack([scores.images[one] - scores.images[two] for one, two in pairs])
    gaps = gaps[:, np.isfinite(gaps).all(axis=0)]
    return float(((gaps < 0) + 0.5 * (gaps == 0)).mean()) if gaps.size else float("nan")


def smallest_difference(scores: Scores, chain: Sequence[str]) -> tuple[float, float]:
    """Return the smallest difference that 500 images show four times in five, and its share of the whole span.

    ``2.8 sigma / sqrt(500)``, ``sigma`` the deviation of paired differences between neighbours in the chain (the
    root of the mean square over them), from the bootstrap, so that it holds for scores that are no means too. The span
    is from the first of the chain to the last; where that is not above zero, the share is NaN.
    """
    errors = [np.nanstd(scores.resamples[one] - scores.resamples[two]) for one, two in pairwise(chain)]
    sigma = sqrt(scores.count * float(np.mean(np.square(errors))))
    smallest = POWER * sigma / sqrt(POWER_IMAGES)
    span = float(scores.overall[chain[0]] - scores.overall[chain[-1]])
    return smallest, smallest / span if span > 0 else float("nan")


def truth_correlation(scores: Scores, chain: Sequence[str], n_bootstrap: int) -> tuple[float, Interval, float]:
    """Return the rank correlation of scores with the known order of a chain, the truest first.

    The mean over images with its interval, and that of the scores of all images. An image whose scores are all equal
    tells nothing: it counts as zero.
    """
    order = -np.arange(len(chain), dtype=np.float64)
    table = np.array(scores.table(chain), np.float64).reshape(-1, len(chain))
    per_image = rank_correlation(table, np.tile(order, (len(table), 1)))
    overall = float(rank_correlation(np.array([[scores.overall[name] for name in chain]]), order[None])[0])
    if not len(per_image):
        return float("nan"), Interval(float("nan"), float("nan")), overall
    per_image = np.where(np.isnan(per_image), 0.0, per_image)
    (around,) = intervals(per_image[:, None], samples=n_bootstrap)
    return float(per_image.mean()), around, overall


def agreement(tables: Sequence[Array]) -> float:
    """Return the rank correlation of the same rows ``[n, maps]`` of two runs; the mean over rows and pairs of runs."""
    values = np.array([rank_correlation(one, two) for one, two in combinations(tables, 2)]).flatten()
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def mid_ranks(values: Array) -> Array:
    """Return ranks from 1, equal values at the mean of theirs."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[index])


def krippendorff(ratings: Array) -> float:
    """Return Krippendorff's ordinal alpha of ratings ``[raters, units]``, NaN where one is missing.

    ``1 - observed / expected``: one for perfect agreement, zero for chance. Distances are squared differences between
    the ranks of the values among all ratings. NaN where all ratings are equal, for then there is nothing to agree upon.
    """
    ratings = np.asarray(ratings, np.float64)
    rated: Array = np.isfinite(ratings)
    rated = rated & (rated.sum(axis=0) > 1)
    total = int(rated.sum())
    if total < 2:
        return float("nan")
    values = np.zeros_like(ratings)
    values[rated] = mid_ranks(ratings[rated])
    counts = rated.sum(axis=0)
    spread = counts * (values**2).sum(axis=0) - values.sum(axis=0) ** 2
    observed = float((spread[counts > 1] / (counts[counts > 1] - 1)).sum()) / total
    expected = (total * float((values**2).sum()) - float(values.sum()) ** 2) / (total * (total - 1))
    return 1 - observed / expected if expected > 1e-12 * max(1.0, float((values**2).max())) else float("nan")


GROUPS: Mapping[str, tuple[str, ...]] = {
    "oracle": (ORACLE,),
    "worse oracles": DEGRADED,
    "centre": (CENTRE,),
    "random": RANDOM,
    "misplaced": (MISPLACED,),
}
CORE = tuple(name for names in GROUPS.values() for name in names)
STEPS = (
    ("oracle", "worse oracles"),
    ("worse oracles", "centre"),
    ("centre", "random"),
    ("worse oracles", "misplaced"),
)
"""What a metric must see, the truer group first. Without the last, one that likes few pixels would pass."""
PAIRS = tuple((one, two) for better, worse in STEPS for one in GROUPS[better] for two in GROUPS[worse])
"""Every pair of maps from these groups, the truer one first."""

Parts = Mapping[str, Array]
"""What a metric has of every image ``[n, P]``, by map."""


def assess(
    label: str,
    metric: Metric,
    seeds: Sequence[Parts],
    baselines: Mapping[str, Parts],
    n_bootstrap: int,
) -> MetricAssessment:
    """Return the verdict on a metric from its parts in every seed (the first with all maps) and on other baselines."""
    core = [{name: seed[name] for name in CORE} for seed in seeds]
    scores = Scores.of(metric, core, n_bootstrap)
    mixed = Scores.of(metric, [{name: seeds[0][name] for name in MIXES}], n_bootstrap)
    single = [Scores.of(metric, [parts], 1) for parts in core]
    others = [Scores.of(metric, [parts], 1) for parts in baselines.values()]
    required = [_step(scores, better, worse, required=True) for better, worse in STEPS]
    pairs = [*((ORACLE, name) for name in DEGRADED), *((name, CENTRE) for name in DEGRADED)]
    reported = [_step(scores, better, worse) for better, worse in pairs]
    verdict, why = _verdict(required, reported)
    smallest, share = smallest_difference(mixed, MIXES)
    truth, (truth_low, truth_high), overall = truth_correlation(mixed, MIXES, n_bootstrap)
    return MetricAssessment(
        metric=label,
        family=metric.info.family,
        verdict=verdict,
        why=why,
        images=scores.count,
        higher_is_better=metric.higher_is_better,
        steps=(*required, *reported),
        scores={
            name: value if metric.higher_is_better else -value
            for name, value in {**scores.overall, **mixed.overall}.items()
        },
        error_rate=error_rate(scores, PAIRS),
        alpha=krippendorff(np.array([mid_ranks(row) for row in scores.table(CORE)]).reshape(-1, len(CORE))),
        over_seeds=_reliability(single, tuple(f"seed {number}" for number in range(len(single)))),
        over_baselines=_reliability([single[0], *others], ("its own", *baselines)),
        smallest=smallest,
        smallest_share=share,
        truth=truth,
        truth_low=truth_low,
        truth_high=truth_high,
        truth_overall=overall,
    )


def not_tried(label: str, metric: Metric, why: str) -> MetricAssessment:
    """Return the row of a metric that was not tried: marked, not hidden."""
    return MetricAssessment(label, metric.info.family, "not tried", why, higher_is_better=metric.higher_is_better)


def _step(scores: Scores, better: str, worse: str, required: bool = False) -> Step:
    """Return how two groups of maps compare, or two maps."""
    ones, others = ((GROUPS[name] if required else (name,)) for name in (better, worse))
    gap, around = scores.difference(ones, others)
    return Step(better, worse, gap, *around, required)


def _verdict(required: Sequence[Step], reported: Sequence[Step]) -> tuple[str, str]:
    wrong = [step for step in required if step.holds is False]
    unseen = [step for step in required if step.holds is None]
    if wrong:
        return "fails", "; ".join(f"ranks {step.worse} above {step.better}" for step in wrong)
    if unseen:
        return "blind", "; ".join(f"cannot tell {step.better} from {step.worse}" for step in unseen)
    turned = [f"{step.worse} above {step.better}" for step in reported if step.holds is False]
    return "passes", "every step seen" + (f", though it ranks {', '.join(turned)}" if turned else "")


def _reliability(scores: Sequence[Scores], runs: tuple[str, ...]) -> Reliability | None:
    if len(scores) < 2:
        return None
    orders = [np.array([[score.overall[name] for name in CORE]]) for score in scores]
    images = [np.stack([score.images[name] for name in CORE], axis=1) for score in scores]
    return Reliability(agreement(orders), agreement(images), runs)
