"""What a map gives to known parts: the share on one of them, and the order of all of them against the model's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

import vitreous as vt
from vitreous.world import World

WORLD = World(n=6, start=3, shortcut=True)


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.load("world-shortcut")


def scored(model: vt.VisionModel, methods: Any, **options: Any) -> vt.ScoreTable:
    asked: dict[str, Any] = {"annotations": list(WORLD.annotations()), "controls": False, "n_bootstrap": 10} | options
    return vt.evaluate(model, list(WORLD.images()), methods, ["shortcut"], **asked)


def maps(fine: bool) -> Tensor:
    size = 128 if fine else 16
    return torch.randn(len(WORLD), size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_every_pixel_again(model: vt.VisionModel) -> None:
    values = maps(True)
    table = scored(model, {"noise": values})
    seen = 0
    for image, (truth, score) in enumerate(zip(WORLD.annotations(), table["noise", "shortcut"], strict=True)):
        if "marker" not in truth.parts:
            assert np.isnan(score)
            continue
        inside = total = 0.0
        for row in range(128):
            for column in range(128):
                value = max(0.0, float(values[image, row, column]))
                total += value
                inside += value * bool(truth.parts["marker"][row, column])
        assert score == pytest.approx(inside / total)
        seen += 1
    assert 0 < seen < len(WORLD)
    assert table.mean("noise", "shortcut") == pytest.approx(np.nanmean(table["noise", "shortcut"]))


def test_golden(model: vt.VisionModel) -> None:
    """The marker itself scores 1, a constant map the marker's share of the picture, a negative map and nothing 0."""
    marker = torch.stack(
        [torch.from_numpy(truth.parts.get("marker", np.ones((128, 128)))).double() for truth in WORLD.annotations()]
    )
    marked = np.array(["marker" in truth.parts for truth in WORLD.annotations()])
    argument = {"marker": marker, "flat": torch.ones(6, 16, 16), "minus": -marker, "zero": torch.zeros(6, 16, 16)}
    argument["nan"] = torch.full((6, 16, 16), torch.nan)
    table = scored(model, argument)
    assert table["marker", "shortcut"][marked] == pytest.approx(1)
    area = marker.mean(dim=(1, 2)).numpy()[marked]
    assert table["flat", "shortcut"][marked] == pytest.approx(area)
    assert (table["minus", "shortcut"][marked] == 0).all()
    assert (table["zero", "shortcut"][marked] == 0).all()
    assert np.isnan(table["nan", "shortcut"]).all()


def test_scale_changes_nothing_and_ignored_pixels_do_not_count(model: vt.VisionModel) -> None:
    values = maps(False)
    table = scored(model, {"noise": values, "louder": values * 7})
    np.testing.assert_allclose(table["louder", "shortcut"], table["noise", "shortcut"])
    half = np.zeros((128, 128), bool)
    half[:, :64] = True
    visible = [vt.Annotation(item.mask, item.boxes, item.parts, half) for item in WORLD.annotations()]
    flat = scored(model, {"flat": torch.ones(6, 128, 128)}, annotations=visible)["flat", "shortcut"]
    for truth, score in zip(WORLD.annotations(), flat, strict=True):
        if "marker" in truth.parts:
            assert score == pytest.approx((truth.parts["marker"] & ~half).sum() / (~half).sum())


def test_another_part_and_bad_words(model: vt.VisionModel) -> None:
    spec = "shortcut(part=tail)"
    table = vt.evaluate(
        model,
        list(WORLD.images()),
        {"flat": torch.ones(6, 16, 16)},
        [spec],
        annotations=list(WORLD.annotations()),
        n_bootstrap=5,
    )
    areas = [truth.parts["tail"].mean() for truth in WORLD.annotations()]
    assert table["flat", spec] == pytest.approx(areas)
    assert vt.get_metric("shortcut").annotation_kinds == ("parts",)
    assert vt.get_metric("shortcut").higher_is_better
    with pytest.raises(vt.VitreousError, match="part='' is not the name of a part"):
        vt.get_metric("shortcut(part='')")
    with pytest.raises(vt.VitreousError, match="shortcut needs the parts of"):
        scored(model, "random", annotations=None)


def test_a_faithful_map_shows_the_shortcut(model: vt.VisionModel) -> None:
    """The model is known to look at the marker: what removal finds there, a random map does not."""
    table = scored(model, ["generic", "random"])
    assert table.mean("generic", "shortcut") > 3 * table.mean("random", "shortcut")


# -- part_correlation ----------------------------------------------------------------------------------


def correlated(seen: vt.VisionModel, methods: Any, metric: str = "part_correlation", **options: Any) -> vt.ScoreTable:
    asked: dict[str, Any] = {"annotations": list(PLAIN.annotations()), "controls": False, "n_bootstrap": 10} | options
    return vt.evaluate(seen, list(PLAIN.images()), methods, [metric], **asked)


PLAIN = World(n=4, start=40)


@pytest.mark.parametrize("output", ["logit", "log_probability"])
def test_part_by_part(model: vt.VisionModel, output: str) -> None:
    """Each part painted over in turn, the model called directly, ranks by scipy."""
    values = torch.randn(4, 128, 128, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    name = f"part_correlation(output={output})"
    table = correlated(model, {"noise": values}, name)
    for image, (picture, truth) in enumerate(zip(PLAIN.images(), PLAIN.annotations(), strict=True)):
        x = model.preprocess.to_tensor(picture)
        with torch.no_grad():
            complete = model.module(x[None])[0]
            best, argument, lost = int(complete.argmax()), [], []
            for mask in truth.parts.values():
                if not mask.any():
                    continue
                painted = torch.where(torch.from_numpy(mask), x.mean(dim=(1, 2), keepdim=True), x)
                left = model.module(painted[None])[0]
                one, other = (complete, left) if output == "logit" else (complete.log_softmax(0), left.log_softmax(0))
                lost.append(float(one[best] - other[best]))
                argument.append(float(values[image][torch.from_numpy(mask)].sum()))
        assert table["noise", name][image] == pytest.approx(spearmanr(argument, lost)[0], abs=1e-6)


def test_a_map_of_the_losses_is_perfect_and_further_methods_are_free(model: vt.VisionModel) -> None:
    def oracle(module: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        maps = []
        for x, label in zip(inputs, classes, strict=True):
            truth = visible[tuple(x[:, ::16, ::16].flatten().tolist())]
            sampled = torch.zeros(128, 128, dtype=torch.float64)
            with torch.no_grad():
                complete = module(x[None])[0, label]
                for mask in map(torch.from_numpy, truth.parts.values()):
                    if mask.any():
                        painted = torch.where(mask, x.mean(dim=(1, 2), keepdim=True), x)
                        sampled[mask] = float(complete - module(painted[None])[0, label]) / int(mask.sum())
            maps.append(sampled)
        return torch.stack(maps)

    inputs = [model.preprocess.to_tensor(picture) for picture in PLAIN.images()]
    pairs = zip(inputs, PLAIN.annotations(), strict=True)
    visible = {tuple(x[:, ::16, ::16].flatten().tolist()): truth for x, truth in pairs}
    one = correlated(model, {"oracle": oracle})
    assert one["oracle", "part_correlation"] == pytest.approx(np.ones(4))
    two = correlated(model, {"oracle": oracle, "ixg": "ixg", "flat": "constant"})
    parts = sum(mask.any() for truth in PLAIN.annotations() for mask in truth.parts.values())
    assert one.plan["states"] == two.plan["states"] == 4 + parts


def test_few_parts_and_nothing_given(model: vt.VisionModel) -> None:
    few = [vt.Annotation(parts={"a": np.eye(128, dtype=bool), "b": np.tri(128, k=-60) > 0})] * 4
    assert np.isnan(correlated(model, "ixg", annotations=few)["ixg", "part_correlation"]).all()
    assert np.isfinite(correlated(model, "ixg", "part_correlation(least=2)", annotations=few).scores.popitem()[1]).all()
    flat = correlated(model, {"zero": torch.zeros(4, 16, 16)})
    assert (flat["zero", "part_correlation"] == 0).all()
    with pytest.raises(vt.VitreousError, match="least=1 must be at least 2"):
        vt.get_metric("part_correlation(least=1)")
    with pytest.raises(vt.VitreousError, match="needs the parts of"):
        correlated(model, "ixg", annotations=None)
