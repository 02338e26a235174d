"""The numbers of a trial against the same written out slowly, against scipy, and against published values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from vitreous.errors import VitreousError
from vitreous.evaluation.meta_statistics import (
    Scores,
    agreement,
    error_rate,
    krippendorff,
    mid_ranks,
    smallest_difference,
    truth_correlation,
)
from vitreous.metrics import get_metric
from vitreous.metrics.base import Metric
from vitreous.metrics.bootstrap import difference, mean
from vitreous.metrics.similarity import rank_correlation

# Four observers and twelve units, Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability".
_ = math.nan
OBSERVED = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
        [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
    ]
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def slow_alpha(ratings: np.ndarray) -> float:
    """By the coincidence matrix, pair by pair."""
    units = [[v for v in column if not math.isnan(v)] for column in ratings.T]
    units = [unit for unit in units if len(unit) > 1]
    values = sorted({v for unit in units for v in unit})
    together = {(a, b): 0.0 for a in values for b in values}
    for unit in units:
        for i, a in enumerate(unit):
            for j, b in enumerate(unit):
                if i != j:
                    together[a, b] += 1 / (len(unit) - 1)
    count = {a: sum(together[a, b] for b in values) for a in values}
    total = sum(count.values())

    def far(a: float, b: float) -> float:
        low, upper = min(a, b), max(a, b)
        return (sum(count[v] for v in values if low <= v <= upper) - (count[a] + count[b]) / 2) ** 2

    seen = sum(together[a, b] * far(a, b) for a in values for b in values)
    chance = sum(count[a] * count[b] * far(a, b) for a in values for b in values) / (total - 1)
    return 1 - seen / chance


def test_alpha_of_the_published_example() -> None:
    assert krippendorff(OBSERVED) == pytest.approx(0.815, abs=5e-4)
    assert krippendorff(OBSERVED) == pytest.approx(slow_alpha(OBSERVED), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_alpha_of_random_ranks_with_holes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratings = rng.integers(1, 6, (7, 9)).astype(float)
    ratings[rng.random(ratings.shape) < 0.3] = np.nan
    assert krippendorff(ratings) == pytest.approx(slow_alpha(ratings), abs=1e-12)


def test_alpha_at_its_ends() -> None:
    same = np.tile([1.0, 2, 3, 4], (6, 1))
    assert krippendorff(same) == pytest.approx(1)
    assert krippendorff(np.stack([same[0], same[0][::-1]])) < 0
    assert math.isnan(krippendorff(np.full((4, 5), 2.5)))
    assert math.isnan(krippendorff(np.full((4, 5), np.nan)))
    assert math.isnan(krippendorff(np.empty((0, 5))))


def test_ranks_and_their_correlation(rng: np.random.Generator) -> None:
    for _ in range(20):
        one, two = rng.integers(0, 5, (2, 8)).astype(float)
        np.testing.assert_allclose(mid_ranks(one), stats.rankdata(one))
        assert rank_correlation(one[None], two[None])[0] == pytest.approx(
            stats.spearmanr(one, two).statistic, abs=1e-12
        )
    assert math.isnan(rank_correlation(np.ones((1, 4)), np.arange(4.0)[None])[0])
    assert math.isnan(rank_correlation(np.array([[1, np.nan, 2]]), np.arange(3.0)[None])[0])


# -- scores --------------------------------------------------------------------------------------------


@dataclass
class Ratio(Metric):
    """A share of sums, not a mean of shares."""

    higher_is_better = False

    def per_image(self, parts: np.ndarray) -> np.ndarray:
        return parts[:, 0] / parts[:, 1]

    def aggregate(self, parts: np.ndarray, weights: np.ndarray) -> np.ndarray:
        there = np.where(np.isnan(parts), 0, parts)
        return (weights @ there[:, 0]) / (weights @ there[:, 1])


def scores(table: np.ndarray, names: str = "abc", metric: str = "insertion") -> Scores:
    return Scores.of(get_metric(metric), [{n: table[:, [i]] for i, n in enumerate(names)}], 2000)


def test_a_difference_is_the_paired_one_of_the_library(rng: np.random.Generator) -> None:
    table = rng.normal(size=(40, 3)) + np.array([0.3, 0.1, 0])
    gap, around = scores(table).difference("a", "b")
    expected = difference(table[:, 0], table[:, 1], samples=2000)
    assert (gap, *around) == pytest.approx((expected.mean, expected.low, expected.high), abs=1e-12)
    down, _ = scores(table, metric="deletion").difference("a", "b")
    assert down == pytest.approx(-gap)
    group, around = scores(table).difference("a", "bc")
    expected = difference(table[:, 0], table[:, 1:].mean(axis=1), samples=2000)
    assert (group, *around) == pytest.approx((expected.mean, expected.low, expected.high), abs=1e-12)


def test_scores_that_are_no_means_are_aggregated_anew(rng: np.random.Generator) -> None:
    parts = [{name: rng.uniform(1, 2, (30, 2)) for name in "ab"} for _ in range(2)]
    result = Scores.of(Ratio(), parts, 500)
    ratio = Ratio()
    item = [difference(one["a"], one["b"], ratio.aggregate, samples=500) for one in parts]
    gap, _ = result.difference("a", "b")
    assert gap == pytest.approx(-np.mean([d.mean for d in item]))
    expected = -np.mean([one["a"][:, 0] / one["a"][:, 1] for one in parts], axis=0)
    np.testing.assert_allclose(result.images["a"], expected)


def test_an_image_without_one_score_has_none(rng: np.random.Generator) -> None:
    table = rng.normal(size=(10, 3))
    table[4, 1] = np.nan
    result = scores(table)
    assert result.count == 9
    remaining = np.delete(table, 4, axis=0)
    assert result.difference("a", "c")[0] == pytest.approx(float((remaining[:, 0] - remaining[:, 2]).mean()))
    assert len(result.table("abc")) == 9
    with pytest.raises(VitreousError, match="insertion has no scene"):
        scores(np.full((4, 3), np.nan))


def test_error_rate_counts_ties_half(rng: np.random.Generator) -> None:
    table = rng.integers(0, 3, (25, 3)).astype(float)
    pairs = [("a", "b"), ("b", "c")]
    wrong = 0.0
    for row in table:
        for one, two in pairs:
            first, second = row["abc".index(one)], row["abc".index(two)]
            wrong += 1.0 if first < second else 0.5 if first == second else 0.0
    assert error_rate(scores(table), pairs) == pytest.approx(wrong / 50)
    flipped = {n: table[:, [i]] for i, n in enumerate("abc")}
    assert error_rate(Scores.of(get_metric("deletion"), [flipped], 1), pairs) == pytest.approx(1 - wrong / 50)


def test_the_smallest_difference(rng: np.random.Generator) -> None:
    table = rng.normal(size=(60, 3)) * 0.1 + [1.0, 0.6, 0.0]
    deviations = [np.std(table[:, i] - table[:, i + 1]) for i in (0, 1)]
    expected = 2.8 * math.sqrt(np.mean(np.square(deviations))) / math.sqrt(500)
    smallest, share = smallest_difference(scores(table), "abc")
    assert smallest == pytest.approx(expected, rel=0.05)
    assert share == pytest.approx(smallest / (table[:, 0] - table[:, 2]).mean())
    assert math.isnan(smallest_difference(scores(table), "cba")[1])


def test_correlation_with_the_truth(rng: np.random.Generator) -> None:
    table = rng.normal(size=(20, 3)) * 0.5 + np.array([1.0, 0.5, 0.0])
    table[3] = 7
    item = [0.0 if i == 3 else stats.spearmanr(row, [3, 2, 1]).statistic for i, row in enumerate(table)]
    result, around, complete = truth_correlation(scores(table), "abc", 1000)
    assert result == pytest.approx(np.mean(item))
    assert around[0] < result < around[1]
    assert complete == 1


def test_agreement_between_runs(rng: np.random.Generator) -> None:
    tables = [rng.normal(size=(12, 3)) for _ in range(3)]
    pairs = list(combinations(tables, 2))
    item = np.mean([stats.spearmanr(x, y).statistic for a, b in pairs for x, y in zip(a, b, strict=True)])
    assert agreement(tables) == pytest.approx(item)
    assert math.isnan(agreement([np.ones((2, 3)), tables[0][:2]]))
    assert get_metric("insertion").cell(tables[0])[1] is mean
