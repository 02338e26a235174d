"""Localisation against definitions written out pixel by pixel, and against numbers known beforehand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from reference_localization import SLOW, pixels, slow_counts
from vitreous.errors import SpecError

OURS = [info for info in vt.list_metrics() if info.family == "localisation"]


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


def scores(model: vt.VisionModel, maps: Any, truths: Any, *metrics: str, **options: Any) -> vt.ScoreTable:
    maps = torch.as_tensor(np.asarray(maps))
    settings: dict[str, Any] = {"controls": False, "n_bootstrap": 1, "labels": [0] * len(maps)} | options
    return vt.evaluate(model, images(model, len(maps)), {"it": maps}, list(metrics), annotations=truths, **settings)


def score(model: vt.VisionModel, values: Any, region: Any, metric: str, ignore: Any = None) -> float:
    truth = vt.Annotation(np.asarray(region), ignore=ignore)
    return float(scores(model, torch.as_tensor(np.asarray(values))[None], [truth], metric)["it", metric][0])


def regions(count: int) -> list[vt.Annotation]:
    """Blobs of several sizes, with some pixels of which nobody knows."""
    rng = np.random.default_rng(5)
    rows, columns = np.mgrid[:32, :32]
    actual = []
    for number in range(count):
        down, dx, radius = rng.uniform(4, 28), rng.uniform(4, 28), rng.uniform(3, 12)
        mask = np.hypot(rows - down, columns - dx) < radius
        actual.append(vt.Annotation(mask, ignore=rng.random((32, 32)) < 0.15 if number % 2 else None))
    return actual


def every_map(size: int) -> Tensor:
    """Signed values, values with many ties, a sparse map, a positive one, a constant, a negative constant, zero."""
    rng = np.random.default_rng(size)
    noise = rng.normal(size=(4, size, size))
    noise[1] = noise[1].round()
    noise[1, 0, 0] += 0.123  # no value is the mean
    noise[2] = np.where(rng.random((size, size)) < 0.2, np.abs(noise[2]), 0)
    noise[3] = rng.random((size, size)) ** 3
    flat = np.stack([np.full((size, size), value) for value in (0.3, -0.3, 0.0)])
    return torch.from_numpy(np.concatenate([noise, flat])).float()


@pytest.mark.parametrize("size", [32, 4])
@pytest.mark.parametrize("metric", SLOW)
def test_against_loops(model: vt.VisionModel, metric: str, size: int) -> None:
    maps, truths = every_map(size), regions(7)
    actual = scores(model, maps, truths, metric)["it", metric]
    fine = pixels(maps, "nearest" if metric == "average_precision" else "bilinear")
    for values, constant in ((fine[4], 0.3), (fine[5], -0.3)):
        values[:] = np.float32(constant)  # interpolated by weights, a constant is not quite one
    expected = [
        SLOW[metric](values, truth.mask, np.ones((32, 32)) if truth.ignore is None else ~truth.ignore)
        for values, truth in zip(fine, truths, strict=True)
    ]
    np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_a_region_is_compared_with_the_blurred_map_only_where_that_is_asked_for(model: vt.VisionModel) -> None:
    """One positive pixel covers itself, or a square of eleven; the presets say which of both VAR means."""
    values, region = np.full((32, 32), -0.5), np.zeros((32, 32), bool)
    values[15, 15], region[10:21, 10:21] = 1, True
    assert score(model, values, region, "region_iou") == score(model, values, region, "region_iou@var") == 1 / 121
    assert score(model, values, region, "region_iou@var_text") == 1
    assert score(model, values, region, "region_recall(kernel=5)") == 25 / 121
    for name in ("region_iou", "region_precision", "region_recall", "region_f1"):
        assert vt.get_metric(f"{name}@var_text") == vt.get_metric(f"{name}(kernel=11, sigma=2.0)")
    for wrong in ("kernel=4", "kernel=0", "sigma=0"):
        with pytest.raises(SpecError, match=wrong.partition("=")[0]):
            vt.get_metric(f"region_iou({wrong})")


def test_every_metric_has_a_reference() -> None:
    assert {vt.get_metric(spec).info.name for spec in SLOW} == {info.name for info in OURS}


def test_ties_by_a_seeded_key(model: vt.VisionModel) -> None:
    """Of equal values the key decides: a fair draw of whole numbers, the same again, whose mean is the expected."""
    truth, values = regions(1), np.zeros((1, 32, 32), np.float32)
    values[0, :2] = 1
    size = int(truth[0].mask.sum())
    expected = scores(model, values, truth, "rra")["it", "rra"][0]
    names = [f"rra(tie_breaking=random, seed={seed})" for seed in range(40)]
    table = scores(model, values, truth, *names)
    item = np.array([table["it", name][0] for name in names])
    assert item[7] == scores(model, values, truth, names[7])["it", names[7]][0]
    assert np.allclose(item * size, (item * size).round())
    assert len(set(item)) > 3
    assert abs(item.mean() - expected) < 4 * item.std() / math.sqrt(40)


# -- golden numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["pixel_accuracy", "ap", "map", "miou", "rma", "rra", "pointing_game", "iou", "f1"])
def test_the_mask_itself_is_perfect(model: vt.VisionModel, metric: str) -> None:
    (truth,) = regions(1)
    assert score(model, truth.mask.astype(np.float32), truth.mask, metric) == pytest.approx(1)


@pytest.mark.parametrize(("share", "iou", "f1"), [(0.25, 0.25, 0.40), (0.5, 0.5, 2 / 3)])
def test_the_whole_image(model: vt.VisionModel, share: float, iou: float, f1: float) -> None:
    region = np.zeros((32, 32), bool)
    region[: round(32 * share)] = True
    complete = np.ones((32, 32), np.float32)
    wanted = {"region_iou": iou, "region_f1": f1, "region_precision": share, "region_recall": 1.0, "ra": share}
    wanted |= {"ap": share, "rma": share, "rra": share, "ehr": share, "energy": share, "auroc": 0.5, "map": 0.5}
    wanted |= {"pixel_accuracy": 1 - share, "miou": (1 - share) / 2, "pointing_game": share, "top_k": share}
    for metric, value in wanted.items():
        assert score(model, complete, region, metric) == pytest.approx(value, abs=1e-12), metric


def test_a_random_half(model: vt.VisionModel) -> None:
    """A quarter of the image, half of which is called: IoU 0.20, F1 0.333."""
    region = np.zeros((32, 32), bool)
    region[:16, :16] = True
    half = np.where((np.arange(32)[:, None] + np.arange(32)) % 2, 1, -1).astype(np.float32)
    assert score(model, half, region, "region_iou") == pytest.approx(0.20)
    assert score(model, half, region, "region_f1") == pytest.approx(1 / 3)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_uniform_map_on_a_grid(model: vt.VisionModel, rows: int) -> None:
    cell = np.zeros((32, 32), bool)
    cell[: 32 // rows, : 32 // rows] = True
    assert score(model, np.full((4, 4), 0.2, np.float32), cell, "grid_pointing_game") == pytest.approx(1 / rows**2)
    assert score(model, np.full((4, 4), 1e-12, np.float32), cell, "grid_pointing_game") == 0
    tiny = score(model, np.full((4, 4), 1e-12, np.float32), cell, "grid_pointing_game(least=0)")
    assert tiny == pytest.approx(1 / rows**2)


@pytest.mark.parametrize(
    "metric", ["ap", "auroc", "rra", "pointing_game", "top_k(k=50)", "map", "miou", "iou(binarise=otsu)"]
)
def test_shift_and_scale_change_nothing(model: vt.VisionModel, metric: str) -> None:
    maps, truths = every_map(32)[:4].double(), regions(4)
    one = scores(model, maps, truths, metric)["it", metric]
    np.testing.assert_allclose(scores(model, maps * 8 + 3, truths, metric)["it", metric], one, atol=1e-3)


# -- edges -------------------------------------------------------------------------------------------------

DEFINED_WHEN_EMPTY = {"pixel_accuracy", "mean_iou", "mean_ap"}


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.name)
def test_empty_regions_have_no_score(model: vt.VisionModel, info: Any) -> None:
    values = every_map(32)[0]
    actual = score(model, values, np.zeros((32, 32), bool), info.name)
    assert math.isnan(actual) == (info.name not in DEFINED_WHEN_EMPTY)
    if info.name == "pixel_accuracy":
        assert actual == slow_counts(values.numpy(), np.zeros((32, 32)), np.ones((32, 32)))[2] / 1024


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.name)
def test_full_regions(model: vt.VisionModel, info: Any) -> None:
    """All mass is inside; ranks have nothing to be compared with, and the game cannot be lost."""
    values = every_map(32)[3]
    actual = score(model, values, np.ones((32, 32), bool), info.name)
    if info.name in ("localisation_auc", "pointing_game"):
        assert math.isnan(actual)
    elif info.name in DEFINED_WHEN_EMPTY:
        assert 0 < actual < 1
    else:
        assert actual == pytest.approx(1)


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.name)
def test_nothing_is_counted_where_all_is_ignored(model: vt.VisionModel, info: Any) -> None:
    truths = [*regions(3), vt.Annotation(np.ones((32, 32)), ignore=np.ones((32, 32), bool))]
    table = scores(model, every_map(32)[:4], truths, info.name)
    assert np.isnan(table["it", info.name]).tolist() == [False, False, False, True]
    alone = scores(model, every_map(32)[:3], truths[:3], info.name)
    assert table.mean("it", info.name) == pytest.approx(alone.mean("it", info.name))


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.name)
def test_maps_without_numbers_have_no_score(model: vt.VisionModel, info: Any) -> None:
    maps = every_map(32)
    maps[1, 3, 3] = math.nan
    actual = scores(model, maps, regions(7), info.name)["it", info.name]
    assert np.isnan(actual).tolist() == [False, True, False, False, False, False, False]
    maps[2, 0, 0] = math.inf
    remaining = scores(model, maps, regions(7), info.name, nan_policy="lowest")["it", info.name]
    for sick, worst in ((maps[1], min), (maps[2], max)):
        sick[~sick.isfinite()] = worst(sick[sick.isfinite()].tolist())
    expected = scores(model, maps, regions(7), info.name)["it", info.name]
    np.testing.assert_array_equal(remaining, expected)


def test_large_regions_are_left_out(model: vt.VisionModel) -> None:
    maps, truths = every_map(32)[:3], []
    for rows in (15, 16, 17):
        mask = np.zeros((32, 32), bool)
        mask[:rows] = True
        truths.append(vt.Annotation(mask))
    actual = scores(model, maps, truths, "pointing_game@tis")["it", "pointing_game@tis"]
    assert np.isnan(actual).tolist() == [False, True, True]


def test_ignored_pixels_cannot_be_pointed_at(model: vt.VisionModel) -> None:
    values, mask, ignore = np.zeros((32, 32), np.float32), np.zeros((32, 32), bool), np.zeros((32, 32), bool)
    values[0, 0], values[9, 9], mask[9, 9], ignore[0, 0] = 5, 3, True, True
    assert score(model, values, mask, "pointing_game") == 0
    assert score(model, values, mask, "pointing_game", ignore) == 1


@pytest.mark.parametrize(
    ("metric", "kind"), [("ap(region=boxes)", "boxes"), ("ap(region=parts)", "parts"), ("ap", "mask")]
)
def test_which_region(model: vt.VisionModel, metric: str, kind: str) -> None:
    part = np.zeros((32, 32), bool)
    part[5:9, 2:20] = True
    truth = vt.Annotation(regions(1)[0].mask, ((4, 4, 12, 20),), {"wing": part, "beak": part.T})
    values = every_map(32)[:1]
    expected = SLOW["average_precision"](values[0].numpy(), truth.region(kind, (32, 32)), np.ones((32, 32)))
    assert scores(model, values, [truth], metric)["it", metric][0] == pytest.approx(expected)
    with pytest.raises(vt.VitreousError, match="needs the boxes of input-0: give annotations"):
        scores(model, values, [vt.Annotation(part)], "ap(region=boxes)")


# -- ratios of sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["pixel_accuracy", "mean_iou"])
def test_data_sets_are_ratios_of_sums(model: vt.VisionModel, metric: str) -> None:
    """Over all images and over every resample: sums first, then the ratio."""
    maps, truths = every_map(32), regions(7)
    truths[2] = vt.Annotation(np.ones((32, 32)), ignore=np.ones((32, 32), bool))
    table = scores(model, maps, truths, metric)
    scorer = vt.get_metric(metric)
    counts = np.array(
        [
            slow_counts(m.double().numpy(), t.mask, np.ones((32, 32)) if t.ignore is None else ~t.ignore)
            for m, t in zip(maps, truths, strict=True)
        ]
    )

    def ratio(rows: Any) -> float:
        tp, fp, tn, fn = counts[rows].sum(axis=0)
        if metric == "pixel_accuracy":
            return float((tp + tn) / (tp + fp + tn + fn))
        return float((tp / (tp + fp + fn) + tn / (tn + fp + fn)) / 2)

    assert table.mean("it", metric) == pytest.approx(ratio(list(range(7))))
    assert table.mean("it", metric) != pytest.approx(np.nanmean(table["it", metric]), abs=1e-4)
    parts, rng = table.parts["it", metric], np.random.default_rng(0)
    draws = rng.integers(0, 7, size=(50, 7))
    weights = np.stack([np.bincount(draw, minlength=7) for draw in draws]).astype(float)
    np.testing.assert_allclose(scorer.aggregate(parts, weights), [ratio(draw.tolist()) for draw in draws])
    nothing = np.zeros((1, 7))
    nothing[0, 2] = 3
    assert np.isnan(scorer.aggregate(parts, nothing)).all()


# -- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ap(region=nose)", "region='nose' is not one of any, mask, boxes, parts"),
        ("ap(interpolation=lanczos)", "interpolation='lanczos'"),
        ("pointing_game(tie_breaking=last)", "tie_breaking='last'"),
        ("pointing_game(tolerance=-1)", "tolerance=-1"),
        ("pointing_game(largest=0)", "largest=0"),
        ("energy(energy=square)", "energy='square'"),
        ("rma(of=negative)", "of='negative'"),
        ("ra(kernel=4)", "kernel=4 must be odd"),
        ("ra(sigma=0)", "sigma=0"),
        ("iou(binarise=half)", "binarise='half' is not one of positive, mean, otsu, quantile"),
        ("rra(tie_breaking=first)", "tie_breaking='first'"),
        ("top_k(k=0)", "k=0 must be at least 1"),
        ("ehr(base=1)", "base=1.0 must be at most 0.99"),
        ("ehr(by=area)", "by='area'"),
        ("gridpg(least=-1)", "least=-1"),
    ],
)
def test_bad_parameters(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        vt.get_metric(spec)


@pytest.mark.parametrize("info", OURS, ids=lambda info: info.name)
def test_facts(info: Any) -> None:
    scorer = vt.get_metric(info.name)
    assert scorer.higher_is_better
    assert scorer.annotation_kinds == ("region",)
    assert scorer.num_forwards() == scorer.num_shared_forwards() == scorer.num_reattributions() == 0


def test_truth_is_asked_for_by_name(model: vt.VisionModel) -> None:
    with pytest.raises(vt.VitreousError, match="iou needs the region of input-0: give annotations"):
        scores(model, every_map(4)[:1], None, "iou")
