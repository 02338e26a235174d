"""The bootstrap and the difficulty bins, against loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from vitreous.errors import VitreousError
from vitreous.metrics import bins, difference, intervals
from vitreous.metrics.bootstrap import mean, resampled
from vitreous.tracing.prng import PRNGKey

RNG = np.random.default_rng(0)


def test_resamples_are_means_of_drawn_images() -> None:
    """The same draws, one resample at a time."""
    scores = RNG.normal(size=(30, 2))
    scores[3, 1] = math.nan
    draws = PRNGKey.of(7, "bootstrap")
    sampled = np.concatenate([draws.at(number).below(30, 30).numpy() for number in range(200)])
    expected = np.array([[np.nanmean(scores[item, column]) for column in range(2)] for item in sampled])
    np.testing.assert_allclose(resampled([(column[:, None], mean) for column in scores.T], 200, seed=7), expected)


def test_groups_are_drawn_together() -> None:
    """A resample of grids takes all cells of each; with a group for every image nothing changes."""
    scores, groups = RNG.normal(size=(12, 1)), [5, 5, 9, 9, 9, 1, 1, 1, 1, 7, 7, 7]
    order = [1, 5, 7, 9]
    draws = PRNGKey.of(3, "bootstrap")
    expected = []
    for number in range(100):
        cells: list[float] = []
        for unit in draws.at(number).below(4, 4)[0].tolist():
            cells += [score for score, group in zip(scores[:, 0], groups, strict=True) if group == order[unit]]
        expected.append(np.mean(cells))
    np.testing.assert_allclose(resampled([(scores, mean)], 100, seed=3, groups=groups)[:, 0], expected)
    alone = resampled([(scores, mean)], 50, groups=range(12))
    np.testing.assert_allclose(alone, resampled([(scores, mean)], 50))
    with pytest.raises(VitreousError, match="3 groups for 12 images"):
        resampled([(scores, mean)], 5, groups=[1, 2, 3])


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.metrics import bootstrap

    scores = RNG.normal(size=(12, 1))
    full = resampled([(scores, mean)], 100)
    monkeypatch.setattr(bootstrap, "_BLOCK", 12 * 7)
    np.testing.assert_allclose(resampled([(scores, mean)], 100), full)


def test_interval_of_a_normal_mean() -> None:
    scores = RNG.normal(2, 1, size=(400, 1))
    ((low, upper),) = intervals(scores)
    error = scores.std(ddof=1) / 20
    assert low == pytest.approx(scores.mean() - 1.96 * error, abs=0.02)
    assert upper == pytest.approx(scores.mean() + 1.96 * error, abs=0.02)
    ((narrow, _),) = intervals(scores, level=0.5)
    assert narrow > low


def test_paired_difference_sees_what_two_intervals_do_not() -> None:
    base = RNG.normal(0, 5, size=200)
    better = base + RNG.normal(0.2, 0.5, size=200)
    gap = difference(better, base)
    assert 0 < gap.low < gap.mean < gap.high
    assert gap.p < 0.001
    (one, other) = intervals(np.stack([better, base], axis=1))
    assert one.low < other.high, "unpaired, the two overlap"
    nothing = difference(base, base)
    assert (nothing.mean, nothing.low, nothing.high, nothing.p) == (0, 0, 0, 1)
    base[:3] = math.nan
    assert difference(better, base).images == 197


@pytest.mark.parametrize("units", [1, 2, 3, 6, 12])
def test_few_units_prove_little(units: int) -> None:
    """All gaps on one side: of all ways to turn their signs, two do that. Rows of a group are one unit."""
    gaps = RNG.uniform(1, 2, size=units)
    alike = [abs(sum(signs)) == units for signs in itertools.product((-1, 1), repeat=units)]
    floor = sum(alike) / len(alike)
    assert difference(gaps, np.zeros(units)).p == pytest.approx(max(floor, 2 / 10_001))
    thrice = np.repeat(gaps, 3)
    grouped = difference(thrice, np.zeros(3 * units), groups=np.repeat(np.arange(units), 3).tolist())
    assert grouped.p == pytest.approx(max(floor, 2 / 10_001))
    lost = np.append(thrice, math.nan)  # what has no score is no unit
    groups = [*np.repeat(np.arange(units), 3).tolist(), units]
    assert difference(lost, np.zeros(3 * units + 1), groups=groups).p == grouped.p


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: intervals(np.ones((3, 1)), level=1.0), "level=1.0"),
        (lambda: resampled([(np.ones((0, 1)), mean)]), "no scores"),
        (lambda: bins(np.ones(3), np.ones(3), 0), "0 bins"),
        (lambda: bins(np.ones(3), np.ones(2)), "do not belong together"),
        (lambda: bins(np.ones(1), np.array([1.5])), "between 0 and 1"),
        (lambda: bins(np.ones(1), np.ones(1), by="luck"), "by='luck' is not one of width, mass"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        call()


def test_bins_of_equal_width() -> None:
    confidence = np.array([0.0, 0.049, 0.05, 0.5, 0.95, 1.0, 0.999])
    scores = np.array([1.0, 3.0, 5.0, math.nan, 2.0, 4.0, 6.0])
    actual = bins(scores, confidence, samples=100)
    assert len(actual) == 20
    assert [(b.low, b.high) for b in actual] == [pytest.approx((i / 20, (i + 1) / 20)) for i in range(20)]
    counts = {i: b.count for i, b in enumerate(actual) if b.count}
    assert counts == {0: 2, 1: 1, 19: 3}  # the last bin is closed; the image without a score counts nowhere
    assert actual[0].mean == 2
    assert actual[19].mean == 4
    assert 2 <= actual[19].interval[0] <= actual[19].interval[1] <= 6
    assert math.isnan(actual[10].mean)
    assert actual[19].thin


def test_bins_of_equal_mass() -> None:
    confidence = RNG.random(103)
    scores = RNG.normal(size=103)
    actual = bins(scores, confidence, 20, "mass", samples=50)
    assert sorted({b.count for b in actual}) == [5, 6]
    assert sum(b.count for b in actual) == 103
    order = np.argsort(confidence)
    assert actual[0].mean == pytest.approx(scores[order[:6]].mean())
    assert all(a.high <= b.low for a, b in itertools.pairwise(actual))
    assert len(bins(scores[:3], confidence[:3], 20, "mass", samples=10)) == 3
    assert not bins(np.ones(40), np.linspace(0, 1, 40), 2, "mass", samples=10)[0].thin


def test_groups_of_a_bin_are_resampled_together() -> None:
    """Three times the same images, told so, are as sure as once; each bin is the interval of its own rows."""
    scores, confidence = RNG.normal(size=20), RNG.random(20)
    once = bins(scores, confidence, 2, samples=200)
    groups = np.repeat(np.arange(20), 3)
    thrice = bins(np.repeat(scores, 3), np.repeat(confidence, 3), 2, samples=200, groups=groups.tolist())
    assert [item.interval for item in thrice] == [pytest.approx(item.interval) for item in once]
    for item, low in zip(once, (0.0, 0.5), strict=True):
        own = scores[(confidence >= low) & (confidence < low + 0.5)]
        assert item.interval == pytest.approx(intervals(own[:, None], samples=200)[0])
    with pytest.raises(VitreousError, match="3 groups for 20 images"):
        bins(scores, confidence, groups=[1, 2, 3])


def test_relative_scores() -> None:
    (only,) = bins(np.array([0.2, 0.1, 9.0]), np.array([0.4, 0.1, 0.0]), 1, relative=True, samples=10)
    assert only.count == 2
    assert only.mean == pytest.approx((0.5 + 1) / 2)
