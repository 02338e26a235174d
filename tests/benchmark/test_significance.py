"""Paired tests of a benchmark, against scipy and explicit resampling; and the whole summary, down to one image."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import vitreous as vt
from paired_scores import created, table
from vitreous.benchmark.significance import compare_methods, holm, minimum_detectable, pairs_of, swap_p_values
from vitreous.benchmark.summary import RunStatistics
from vitreous.errors import VitreousError
from vitreous.metrics.bootstrap import clustered_error

RNG = np.random.default_rng(0)


# -- pieces ----------------------------------------------------------------------------------------------


def test_holm_by_its_definition() -> None:
    """The smallest of m p-values times m, the next times m - 1, never below one before."""
    p = np.array([0.01, 0.04, 0.03, 0.005, 0.5, 0.03])
    for value, corrected in zip(p, holm(p), strict=True):
        steps = [min(1.0, other * (len(p) - index)) for index, other in enumerate(sorted(p)) if other <= value]
        assert corrected == pytest.approx(max(steps))
    np.testing.assert_allclose(holm(np.array([0.01, 0.02, 0.03])), [0.03, 0.04, 0.04])
    assert holm(np.array([])).shape == (0,)


def test_swaps_are_scipys_permutation_test() -> None:
    gaps = RNG.normal(0.4, 1, size=(9, 3))
    expected = [
        stats.permutation_test(
            (column, np.zeros(9)),
            lambda x, y, axis: (x - y).mean(axis=axis),
            permutation_type="samples",
            n_resamples=math.inf,
            vectorized=True,
        ).pvalue
        for column in gaps.T
    ]
    np.testing.assert_allclose(swap_p_values(gaps, samples=256), expected)


def test_swaps_of_signed_ranks_are_the_wilcoxon_test() -> None:
    gaps = RNG.normal(0.5, 1, size=12)
    signed = np.sign(gaps) * stats.rankdata(np.abs(gaps))
    assert swap_p_values(signed[:, None])[0] == pytest.approx(stats.wilcoxon(gaps, method="exact").pvalue)


def test_random_swaps_come_near_all_of_them() -> None:
    gaps = RNG.normal(0.3, 1, size=(14, 4))
    every, several = swap_p_values(gaps, samples=2**13), swap_p_values(gaps, samples=4000, seed=3)
    np.testing.assert_allclose(several, every, atol=4 * 0.5 / math.sqrt(4000))
    assert (several != every).any()
    assert swap_p_values(np.full((40, 1), 0.1), samples=999)[0] == 1 / 1000  # never zero


def test_groups_are_swapped_whole_and_nan_left_out() -> None:
    gaps, groups = RNG.normal(0.5, 1, size=11), [3, 3, 3, 1, 1, 7, 7, 7, 7, 2, 5]
    gaps[[4, 10]] = math.nan
    observed, sums = abs(np.nansum(gaps)), [np.nansum(gaps[np.array(groups) == g]) for g in sorted(set(groups))]
    signs = list(itertools.product((-1, 1), repeat=len(sums)))
    expected = np.mean([abs(np.dot(sign, sums)) >= observed - 1e-12 for sign in signs])
    assert swap_p_values(gaps[:, None], groups)[0] == pytest.approx(expected)


def test_ties_everywhere_tell_nothing_apart() -> None:
    """Rounding must not order what is equal: 0.1 + 0.2 - 0.3 is not quite zero."""
    assert swap_p_values(np.array([[0.1], [0.2], [-0.3]]))[0] == 1
    assert swap_p_values(np.zeros((30, 1)))[0] == 1
    complete = np.random.default_rng(6).integers(-3, 6, size=(10, 20))
    np.testing.assert_array_equal(swap_p_values(complete * 0.1), swap_p_values(complete))
    assert swap_p_values(np.array([[2.0]]))[0] == 1  # one image


def test_clustered_error_by_hand_and_by_resampling() -> None:
    gaps, groups = RNG.normal(size=10), [0, 0, 0, 4, 4, 2, 2, 2, 9, 7]
    mean, total = gaps.mean(), 0.0
    for group in set(groups):
        total += sum(gap - mean for gap, own in zip(gaps, groups, strict=True) if own == group) ** 2
    assert clustered_error(gaps, groups) == pytest.approx(math.sqrt(5 / 4 * total) / 10)
    assert clustered_error(gaps) == pytest.approx(gaps.std(ddof=1) / math.sqrt(10))
    twice = clustered_error(np.repeat(gaps, 2), np.repeat(np.arange(10), 2))
    assert twice == pytest.approx(clustered_error(gaps))  # the same images again are no new ones
    assert math.isnan(clustered_error(gaps, [1] * 10))
    with pytest.raises(VitreousError, match="3 groups for 10 images"):
        clustered_error(gaps, [1, 2, 3])


def test_false_alarms_with_groups() -> None:
    """Rows that share an image: five in a hundred where groups are known, many more where they are not."""
    rng = np.random.default_rng(4)
    gaps = np.repeat(rng.normal(size=(10, 400)), 6, axis=0) + rng.normal(0, 0.5, size=(60, 400))
    spec, ignored = swap_p_values(gaps, np.repeat(np.arange(10), 6), 512), swap_p_values(gaps, samples=512)
    assert 0.02 < (spec < 0.05).mean() < 0.08
    assert (ignored < 0.05).mean() > 0.3


def test_detectable_differences_are_found_four_times_in_five() -> None:
    rng, n, deviation = np.random.default_rng(5), 60, 1.7
    least = minimum_detectable(deviation / math.sqrt(n))
    assert least == pytest.approx(2.801585 * deviation / math.sqrt(n))
    result = stats.ttest_1samp(rng.normal(least, deviation, size=(4000, n)), 0, axis=1).pvalue < 0.05
    assert result.mean() == pytest.approx(0.8, abs=0.025)
    assert math.isnan(minimum_detectable(0.0))


# -- on a table ------------------------------------------------------------------------------------------


def test_pairs_are_against_chance_and_one_reference() -> None:
    methods = ("a", "random", "b", "c")
    chance = [("a", "random"), ("b", "random"), ("c", "random")]
    assert pairs_of(methods) == pairs_of(methods, reference="random") == chance
    assert pairs_of(methods, reference="b") == [*chance, ("a", "b"), ("c", "b")]
    assert pairs_of(("a", "b"), reference="b") == [("a", "b")]
    assert pairs_of(("a", "b")) == []


@pytest.mark.parametrize("groups", [None, tuple(np.arange(40) // 4)])
def test_differences_are_those_of_the_table(groups: Any) -> None:
    scores = created(40, groups=groups)
    scores.parts["ixg", "insdel"][3] = math.nan
    pairs = pairs_of(scores.methods, reference="generic")
    for item in compare_methods(scores, pairs, ["insdel"]):
        expected = scores.difference(item.one, item.other, "insdel")
        result = (item.difference, item.lower, item.upper)
        np.testing.assert_allclose(result, (expected.mean, expected.low, expected.high), atol=1e-12)
        assert item.images == expected.images == (39 if item.one == "ixg" else 40)
        assert (item.units, item.family) == (item.images if groups is None else 10, 5)
        assert item.z == pytest.approx(scores.z(item.one, "insdel", item.other))
        gaps = scores[item.one, "insdel"] - scores[item.other, "insdel"]
        assert item.error == pytest.approx(clustered_error(gaps, groups))
        assert item.detectable == pytest.approx(minimum_detectable(item.error))


def test_words_follow_the_direction_of_the_metric() -> None:
    result = RunStatistics(created(60), reference="generic")
    for metric, sign in (("insdel", 1), ("deletion", -1)):
        best = result.test("ixg", "random", metric)
        assert best is not None
        assert best.difference * sign > 0
        assert (best.word, best.stars) == ("better", "**")  # 5 tests, 1,000 swaps: no p below 5 / 1,001
        contrast = result.test("rollout", "generic", metric)
        assert contrast is not None
        assert contrast.word == "worse"
        same = result.test("rollout", "random", metric)
        assert same is not None
        assert (same.word, same.stars) == ("not told apart", "")
        own = [test for test in result.tests if test.metric == metric]
        np.testing.assert_allclose([item.corrected for item in own], holm(np.array([item.p for item in own])))


def test_scores_that_are_no_means_swap_their_parts() -> None:
    """Mean IoU is a ratio of sums: every swap aggregates anew."""
    draws = np.random.default_rng(8)
    counts = {name: draws.integers(1, 30, size=(6, 4)).astype(float) for name in ("ixg", "random")}
    for count in counts.values():
        count[:, 1] += count[:, 0]
        count[:, 3] += count[:, 2]
    counts["ixg"][:, 3] -= counts["ixg"][:, 2] // 2
    scores = table({(name, "mean_iou"): count for name, count in counts.items()})
    (result,) = compare_methods(scores, [("ixg", "random")])

    def score(rows: Any) -> float:
        total = np.sum(rows, axis=0)
        return float((total[0] / total[1] + total[2] / total[3]) / 2)

    def gap(swap: Any) -> float:
        one = [(counts["random"] if s else counts["ixg"])[i] for i, s in enumerate(swap)]
        other = [(counts["ixg"] if s else counts["random"])[i] for i, s in enumerate(swap)]
        return score(one) - score(other)

    every = [abs(gap(swap)) for swap in itertools.product((0, 1), repeat=6)]
    assert result.difference == pytest.approx(gap([0] * 6))
    assert result.p < 0.5
    assert result.p == pytest.approx(np.mean([item >= every[0] - 1e-12 for item in every]))
    expected = scores.difference("ixg", "random", "mean_iou")
    assert (result.lower, result.upper) == (expected.low, expected.high)
    assert result.error == pytest.approx((result.upper - result.lower) / 4, rel=0.3)


# -- the whole -------------------------------------------------------------------------------------------


def test_everything_as_plain_data() -> None:
    scores = created(30, ("insdel", "deletion", "average_gain"))
    seeds = {("ixg", "insdel"): RNG.normal(size=(3, 30)), ("generic", "insdel"): RNG.normal(size=(1, 30))}
    result = RunStatistics(scores, "generic", seeds=seeds)
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["schema"] == "vitreous.statistics/1"
    assert len(data["tests"]) == 3 * 5
    assert len(data["correlations"]) == 3
    assert {item["word"] for item in data["tests"]} <= {"better", "worse", "not told apart"}
    assert [item["method"] for item in data["seeds"]] == ["ixg"]
    assert any("1 seeds and 30 images" in note for note in data["notes"])
    assert any("Holm over the tests of a metric, 5" in note for note in data["notes"])
    with pytest.raises(VitreousError, match="no method 'ixh'"):
        RunStatistics(scores, "ixh")


def nan(n: int) -> Any:
    return np.full(n, math.nan)


@pytest.mark.parametrize(
    "cells",
    [
        {("ixg", "insdel"): [0.5], ("random", "insdel"): [0.1], ("generic", "insdel"): [0.3]},
        {("ixg", "insdel"): [0.5, 0.1, 0.3]},
        {("random", "insdel"): [0.5, 0.1, 0.3]},
        {("ixg", "insdel"): [0.5, 0.1, 0.3], ("random", "insdel"): [0.4, 0.1, 0.2]},
        {("ixg", "insdel"): nan(4), ("random", "insdel"): np.ones(4), ("generic", "insdel"): np.ones(4)},
        {("ixg", "insdel"): nan(2), ("random", "insdel"): nan(2)},
        {("ixg", "insdel"): [1, math.nan], ("random", "insdel"): [math.nan, 1]},
        {(name, metric): np.ones(5) for name in ("ixg", "random", "generic") for metric in ("insdel", "deletion")},
    ],
    ids=["one image", "one method", "chance alone", "two methods", "no score", "no scores", "none shared", "all tied"],
)
def test_small_and_odd_tables_have_statistics(cells: Any) -> None:
    scores = table(cells)
    result = RunStatistics(scores, reference=scores.methods[0])
    json.dumps(result.to_json(), allow_nan=False)
    assert set(result.ranks) == set(scores.metrics)
    for test in result.tests:
        shared = not np.isnan(scores[test.one, test.metric] - scores[test.other, test.metric]).all()
        assert test.word == ("not told apart" if shared else "not tested")
        assert math.isnan(test.lower) == math.isnan(test.upper) == (test.units < 2)  # one image has no interval


def test_few_images_are_said_to_be_few() -> None:
    few, more = (RunStatistics(created(n, ("insdel",))) for n in (6, 30))
    assert any("insdel: 6 images are too few for 3 tests" in note for note in few.notes)
    assert not any("too few" in note for note in more.notes)
    assert not [test for test in few.tests if test.word != "not told apart"]
    no_chance = RunStatistics(table({("ixg", "insdel"): RNG.normal(size=9), ("generic", "insdel"): np.ones(9)}))
    assert no_chance.tests == []
    assert any("no method 'random'" in note for note in no_chance.notes)


def test_a_table_without_anything_is_refused() -> None:
    empty = vt.ScoreTable((), ("ixg",), (), {}, {}, {"ixg": {}}, {})
    with pytest.raises(VitreousError, match="without methods, metrics or images"):
        RunStatistics(empty)


def test_numbers_do_not_depend_on_the_global_generator() -> None:
    scores = created(40)
    torch.manual_seed(1)
    first = RunStatistics(scores, "generic").to_json()
    torch.manual_seed(2)
    assert RunStatistics(scores, "generic").to_json() == first
