"""Ranks, correlations between metrics, variance from seeds, marks and flags: against scipy and slow loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import vitreous as vt
from families import FAMILIES, images
from paired_scores import created, table
from vitreous.benchmark.ranking import (
    VarianceComponents,
    correlate_metrics,
    critical_difference,
    friedman,
    rank_methods,
    ranks_per_image,
    studentized_range,
    tied_groups,
    variance_components,
)
from vitreous.benchmark.summary import PERTURBS, SHARED, RunStatistics, shared_perturbation
from vitreous.errors import VitreousError
from vitreous.methods.masking import fill_inputs
from vitreous.metrics.baselines import BASELINES, DROP
from vitreous.metrics.bootstrap import resamples
from vitreous.tracing import Context, Target

RNG = np.random.default_rng(1)


def components(scores: Any, groups: Any = None) -> VarianceComponents:
    return variance_components(scores, "tis", "insdel", groups)


# -- ranks -----------------------------------------------------------------------------------------------


def test_ranks_and_friedman_are_scipys() -> None:
    scores = RNG.integers(0, 4, size=(25, 6)).astype(float) + 0.3 * np.arange(6)
    scores[:, 4] = scores[:, 1]
    np.testing.assert_array_equal(ranks_per_image(scores, False), stats.rankdata(scores, axis=1))
    np.testing.assert_array_equal(ranks_per_image(scores), stats.rankdata(-scores, axis=1))
    expected = stats.friedmanchisquare(*scores.T)
    assert friedman(ranks_per_image(scores)) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-9)
    assert friedman(ranks_per_image(np.ones((8, 3)))) == (0.0, 1.0)


def test_two_methods_make_a_sign_test() -> None:
    """With two methods and no ties Friedman's number is (wins - losses)^2 / n."""
    scores = RNG.normal(0.5, 1, size=(30, 1)) * [1, 0]
    wins = int((scores[:, 0] > 0).sum())
    chi_square, p = friedman(ranks_per_image(scores))
    assert chi_square == pytest.approx((2 * wins - 30) ** 2 / 30)
    assert p == pytest.approx(stats.chi2.sf(chi_square, 1))


def test_studentized_range_is_scipys() -> None:
    for count in (2, 3, 7, 20, 50, 120):
        expected = stats.studentized_range.ppf(0.95, count, math.inf)
        assert studentized_range(count) == pytest.approx(expected, rel=1e-6)
    printed = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]  # Demsar 2006, table 5 (a)
    result = [studentized_range(count) / math.sqrt(2) for count in range(2, 11)]
    np.testing.assert_allclose(result, printed, atol=1.1e-3)
    assert critical_difference(5, 30) == pytest.approx(2.728 * math.sqrt(5 * 6 / (6 * 30)), abs=1e-3)


def test_nemenyi_keeps_its_level() -> None:
    """Of five equal methods, the best and the worst are told apart five times in a hundred, or fewer."""
    rng = np.random.default_rng(2)
    critical, far = critical_difference(5, 40), 0
    for _ in range(1000):
        mean = ranks_per_image(rng.normal(size=(40, 5))).mean(axis=0)
        far += float(np.ptp(mean)) >= critical
    assert 0.025 < far / 1000 < 0.065


def test_groups_hold_exactly_the_pairs_that_are_close() -> None:
    names, mean = tuple("abcdef"), (1.0, 1.5, 2.25, 3.0, 3.75, 9.0)
    result = tied_groups(names, mean, 1.5)
    assert result == (("a", "b", "c"), ("c", "d"), ("d", "e"))  # b and d differ by 1.5: that is apart
    for i, one in enumerate(names):
        for j in range(i + 1, len(names)):
            together = any(one in group and names[j] in group for group in result)
            assert together == (mean[j] - mean[i] < 1.5)
    assert tied_groups(names, mean, math.inf) == (names,)
    assert tied_groups(names, mean, 0.1) == ()


def test_a_table_is_ranked_best_first_whatever_the_direction() -> None:
    scores = created(50)
    for metric in ("insdel", "deletion"):
        result = rank_methods(scores, metric)
        stacked = np.stack([scores[name, metric] for name in scores.methods], axis=1)
        own = stats.rankdata(-stacked if metric == "insdel" else stacked, axis=1).mean(axis=0)
        assert [result.of(name) for name in scores.methods] == pytest.approx(list(own))
        assert list(result.mean) == sorted(result.mean)
        assert result.methods[0] == "ixg"
        assert (result.blocks, result.dropped, result.left_out) == (50, 0, ())
        assert result.p == pytest.approx(stats.friedmanchisquare(*stacked.T).pvalue, rel=1e-6)
        assert any({"random", "rollout"} <= set(group) for group in result.groups)
        assert not any({"ixg", "random"} <= set(group) for group in result.groups)


def test_groups_are_blocks_and_gaps_are_dropped() -> None:
    groups = np.array([0, 0, 1, 1, 1, 2, 3, 3])
    cells = {(name, "insdel"): RNG.normal(size=8) for name in ("ixg", "generic", "random")}
    cells["rollout", "insdel"] = np.full(8, math.nan)
    cells["generic", "insdel"][5] = math.nan
    result = rank_methods(table(cells, tuple(groups)), "insdel")
    assert (result.blocks, result.dropped, result.left_out) == (3, 1, ("rollout",))
    names = ("ixg", "generic", "random")
    means = np.array([[cells[name, "insdel"][groups == g].mean() for name in names] for g in (0, 1, 3)])
    expected = stats.rankdata(-means, axis=1).mean(axis=0)
    assert [result.of(name) for name in names] == pytest.approx(list(expected))
    assert math.isnan(result.of("rollout"))


def test_nothing_is_told_apart_unless_friedman_is_sure() -> None:
    """Here two mean ranks differ by more than the critical difference, and p is 0.058."""
    rows = [[4, 1, 3, 2, 1], [5, 5, 3, 1, 2], [2, 4, 5, 0, 0], [0, 0, 5, 1, 0], [0, 0, 5, 5, 0], [4, 4, 5, 5, 4]]
    scores = dict(zip("abcde", np.array(rows, float).T, strict=True))
    result = rank_methods(table({(name, "insdel"): score for name, score in scores.items()}), "insdel")
    assert result.mean[-1] - result.mean[0] > result.critical
    assert result.p == pytest.approx(0.058, abs=1e-3)
    assert result.groups == (result.methods,)


# -- correlation between metrics -------------------------------------------------------------------------


def test_correlations_are_scipys_with_explicit_resamples() -> None:
    names, metrics = (*"abcdefghijk", "saliency"), ("insdel", "deletion", "average_gain")
    level = dict(zip(names, RNG.normal(size=12), strict=True))
    cells = {(name, m): RNG.normal(level[name], 1.0, size=20) for name in names for m in metrics}
    cells["saliency", "average_gain"][:] = math.nan
    cells["a", "insdel"][:6] = math.nan
    groups = tuple(np.arange(20) // 2)
    scores = table(cells, groups, samples=200)
    signs = {"insdel": 1, "deletion": -1, "average_gain": 1}
    (weights,) = resamples(20, 200, 0, groups)
    for correlation in correlate_metrics(scores):
        own = [name for name in names if not (correlation.other == "average_gain" and name == "saliency")]

        def value(weight: Any, pair: Any = correlation, own: Any = own) -> float:
            means = [
                [
                    signs[m] * np.average(x[~np.isnan(x)], weights=weight[~np.isnan(x)])
                    for x in (cells[name, m] for name in own)
                ]
                for m in (pair.one, pair.other)
            ]
            return float(stats.spearmanr(*means).statistic)

        assert correlation.methods == len(own)
        assert correlation.value == pytest.approx(value(np.ones(20)))
        expected = np.quantile([value(weight) for weight in weights], [0.025, 0.975])
        np.testing.assert_allclose((correlation.lower, correlation.upper), expected)


def test_two_methods_have_no_correlation() -> None:
    cells = {(name, m): RNG.normal(size=9) for name in ("ixg", "random") for m in ("insdel", "deletion")}
    (result,) = correlate_metrics(table(cells))
    assert result.methods == 2
    assert math.isnan(result.value)
    assert math.isnan(result.lower)
    assert correlate_metrics(table({("ixg", "insdel"): np.ones(3)})) == ()


# -- seeds -----------------------------------------------------------------------------------------------


def test_variances_by_loops() -> None:
    x = RNG.normal(size=(4, 1)) + RNG.normal(size=(1, 7)) + RNG.normal(size=(4, 7))
    result = components(x)
    complete = sum(x[s, i] for s in range(4) for i in range(7)) / 28
    of_seed = sum(7 * (x[s].mean() - complete) ** 2 for s in range(4)) / 3
    of_image = sum(4 * (x[:, i].mean() - complete) ** 2 for i in range(7)) / 6
    others = sum((x[s, i] - x[s].mean() - x[:, i].mean() + complete) ** 2 for s in range(4) for i in range(7)) / 18
    seed, image = max(0.0, (of_seed - others) / 7), max(0.0, (of_image - others) / 4)
    assert (result.seed, result.image, result.residual) == pytest.approx((seed, image, others))
    squared = seed / 4 + image / 7 + others / 28
    assert result.error == pytest.approx(math.sqrt(squared))
    assert result.share == pytest.approx((seed / 4 + others / 28) / squared)
    assert result.share_of_one == pytest.approx((seed + others / 7) / (seed + image / 7 + others / 7))
    assert (result.method, result.metric, result.seeds, result.images) == ("tis", "insdel", 4, 7)


def test_variances_are_found_again() -> None:
    """On average over many experiments: variances 0.5, 2 and 1."""
    rng, total, raw = np.random.default_rng(3), np.zeros(3), []
    for _ in range(600):
        x = rng.normal(0, 0.5**0.5, (5, 1)) + rng.normal(0, 2**0.5, (1, 30)) + rng.normal(size=(5, 30))
        result = components(x)
        total += (result.seed, result.image, result.residual)
        raw.append(result.mean)
    np.testing.assert_allclose(total / 600, (0.5, 2.0, 1.0), rtol=0.1)
    assert np.var(raw) == pytest.approx(0.5 / 5 + 2 / 30 + 1 / 150, rel=0.2)


def test_seeds_that_change_nothing_have_no_share() -> None:
    still = components(np.tile(RNG.normal(size=9) * 0.1, (3, 1)))
    assert (still.seed, still.residual, still.share, still.share_of_one, still.clipped) == (0, 0, 0, 0, ())
    assert math.isnan(components(np.full((3, 4), 0.1)).share)
    crossed = components(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert (crossed.seed, crossed.image, crossed.clipped) == (0, 0, ("seed", "image"))
    assert crossed.share == 1


def test_seeds_of_groups_and_of_images_without_a_score() -> None:
    x = RNG.normal(size=(3, 8))
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    assert components(x, groups=groups).image == pytest.approx(components((x[:, ::2] + x[:, 1::2]) / 2).image)
    x[1, 4] = math.nan
    assert components(x).images == 7
    assert components(x).residual == pytest.approx(components(np.delete(x, 4, axis=1)).residual)
    with pytest.raises(VitreousError, match="1 seeds and 7 images"):
        components(x[1:2])
    with pytest.raises(VitreousError, match="3 seeds and 1 images with a score in each of tis in insdel"):
        components(x[:, :1])


# -- marks and flags -------------------------------------------------------------------------------------

TOKENS, MEAN, OWN, BLUR = (SHARED[what] for what in (DROP, "zero_norm", "mean_channel", "blur_tv"))


@pytest.mark.parametrize(
    ("method", "metric", "expected"),
    [
        ("tis", "token_deletion_accuracy", f"{TOKENS} (tis)"),
        ("tis", "deletion", None),
        ("refine(ixg)", "token_insertion_aopc", f"{TOKENS} (refine)"),
        ("rise", "deletion", f"{MEAN} (rise)"),
        ("rise", "deletion(baseline=black)", None),
        ("rise", "insertion", None),
        ("rise", "insdel", f"{MEAN} (rise)"),
        ("scorecam", "average_drop", f"{MEAN} (scorecam)"),
        ("hsic", "mu_fidelity", f"{MEAN} (hsic)"),
        ("occlusion", "deletion", f"{MEAN} (occlusion)"),
        ("occlusion(fill=mean)", "deletion", None),
        ("occlusion(fill=mean)", "region_perturbation", f"{OWN} (occlusion)"),
        ("occlusion(fill=mean)", "part_correlation", f"{OWN} (occlusion)"),
        ("occlusion(fill=blur)", "deletion@tis", f"{BLUR} (occlusion)"),
        ("occlusion(fill=blur)", "insertion", None),
        ("occlusion(drop=true)", "deletion", None),
        ("occlusion(drop=true)", "token_deletion_accuracy", f"{TOKENS} (occlusion)"),
        ("kernel_shap(drop=true)", "infidelity(unit=token)", f"{TOKENS} (kernel_shap)"),
        ("lime", "deletion", None),
        ("lime(fill=zero)", "deletion", f"{MEAN} (lime)"),
        ("vit_cx", "deletion", None),
        ("ixg", "deletion", None),
        ("consensus(ixg, rise, occlusion)", "deletion", f"{MEAN} (rise, occlusion)"),
        ("refine(tis)", "token_deletion_accuracy", f"{TOKENS} (refine, tis)"),
        ("smooth(generic)", "deletion", None),
        ("rise", "pointing_game", None),
        ("rise", "gini", None),
    ],
)
def test_own_perturbation(method: str, metric: str, expected: str | None) -> None:
    assert shared_perturbation(vt.get_method(method), vt.get_metric(metric)) == expected


def test_every_method_that_perturbs_is_declared() -> None:
    spec = {method.name for method in vt.list_methods()}
    assert set(PERTURBS) <= spec
    assert {method.name for method in vt.list_methods() if method.family in ("perturbation", "sampling")} <= set(
        PERTURBS
    )
    assert set(SHARED) <= {*BASELINES, DROP}


@pytest.mark.parametrize("fill", ["zero", "mean", "blur"])
def test_fills_are_the_baselines_that_they_are_called(fill: str) -> None:
    model = vt.wrap(FAMILIES["vit"]())
    inputs = images(model, 2)
    declared = PERTURBS["occlusion"]
    assert not isinstance(declared, str)
    painted = fill_inputs(Context(model, inputs, Target.of(model, 2)), "occlusion", fill)
    expected = BASELINES[declared[fill]].make(inputs, model.preprocess, 0)
    torch.testing.assert_close(painted, expected.expand_as(inputs))


def test_flags_of_a_table() -> None:
    scores = created(40, ("insdel", "deletion"))
    cells = {cell: parts[:, 0] for cell, parts in scores.parts.items()}
    strange = {**{name: {} for name in scores.methods}, "generic": {"constant": 3, "zero": 0, "nonfinite": 1}}
    plan = {"methods": {"ixg": {"spec": "rise"}, "generic": {"what": "a function"}, "rollout": {"spec": "?"}}}
    result = RunStatistics(table(cells, degenerate=strange, plan=plan))
    messages = {(flag.kind, flag.method, flag.metric): flag.text for flag in result.flags}
    assert messages["degenerate maps", "generic", ""] == "3 constant, 1 nonfinite of 40"
    assert messages["no better than random", "rollout", "insdel"] == "not told apart from random"
    assert ("no better than random", "ixg", "insdel") not in messages
    bad = {
        name for name, v in scores.meta_verdicts.items() if v is None or v.verdict in ("fails", "blind", "not tried")
    }
    assert {metric for kind, _, metric in messages if kind == "trial"} == bad
    assert {(mark.method, mark.metric) for mark in result.shared} == {("ixg", "insdel"), ("ixg", "deletion")}


def test_of_an_evaluation() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    metrics = ["deletion(steps=4)", "token_deletion_aopc"]
    scores = vt.evaluate(model, images(model, 5), ["occlusion", "ixg"], metrics, n_bootstrap=200)
    result = RunStatistics(scores, "ixg")
    assert [(mark.method, mark.metric) for mark in result.shared] == [("occlusion", "deletion(steps=4)")]
    assert result.test("occlusion", "ixg", metrics[0]) is not None
    assert result.units == 5
