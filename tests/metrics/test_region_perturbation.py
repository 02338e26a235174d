"""Squares removed one after the other and pictures that come back, again with loops and the model itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.metrics import RankedRemoval
from vitreous.metrics.perturb import perturbed
from vitreous.metrics.ranking import unit_ranks
from vitreous.tracing.prng import PRNGKey


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def x(model: Any) -> Tensor:
    return images(model, 3)


@pytest.fixture(scope="module")
def maps() -> Tensor:
    return torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(6))


def probability(model: Any, image: Tensor, scored: int) -> float:
    with torch.no_grad():
        return float(model(image[None]).softmax(dim=1)[0, scored])


def squares(values: Tensor, side: int) -> list[tuple[int, int]]:
    """The corners of the squares, the largest mean first."""
    corners = [(r, c) for r in range(0, 32, side) for c in range(0, 32, side)]
    return sorted(corners, key=lambda at: -float(values[at[0] : at[0] + side, at[1] : at[1] + side].mean()))


def curve_without(model: Any, image: Tensor, order: list[tuple[int, int]], side: int, counts: list[int]) -> list[float]:
    with torch.no_grad():
        scored = int(model(image[None]).argmax())
    actual = []
    for count in counts:
        built = image.clone()
        for r, c in order[:count]:
            built[:, r : r + side, c : c + side] = image.mean(dim=(1, 2))[:, None, None]
        actual.append(probability(model, built, scored))
    return actual


def scores(model: Any, x: Tensor, maps: Any, name: str, **options: Any) -> np.ndarray:
    return vt.evaluate(model, x, {"it": maps}, name, controls=False, n_bootstrap=3, **options)["it", name]


@pytest.mark.parametrize("side", [4, 8, 16])
@pytest.mark.parametrize("order", ["morf", "lerf"])
def test_region_perturbation(model: Any, x: Tensor, maps: Tensor, side: int, order: str) -> None:
    actual = scores(model, x, maps, f"region_perturbation(region={side}, steps=4, order={order})")
    regions = (32 // side) ** 2
    counts = [0, regions // 4, regions // 2, 3 * regions // 4, regions]
    for image, values, score in zip(x, maps, actual, strict=True):
        ranked = squares(values if order == "morf" else -values, side)
        curve = curve_without(model, image, ranked, side, counts)
        assert score == pytest.approx(sum(curve[0] - p for p in curve) / 5, abs=1e-5)


def test_selectivity(model: Any, x: Tensor, maps: Tensor) -> None:
    """Steps that do not divide the number of squares: the last one is shorter, and so is its trapezoid."""
    actual = scores(model, x, maps, "selectivity(steps=3)")
    counts = [0, 6, 12, 16]
    for image, values, score in zip(x, maps, actual, strict=True):
        curve = curve_without(model, image, squares(values, 8), 8, counts)
        expected = sum((counts[j + 1] - counts[j]) / 16 * (curve[j] + curve[j + 1]) / 2 for j in range(3))
        assert score == pytest.approx(expected, abs=1e-5)
    assert not vt.get_metric("selectivity").higher_is_better


def test_random_order(model: Any, x: Tensor, maps: Tensor) -> None:
    """One order of the image's own for all methods, NaN where a map has no score; whole squares go."""
    name = "region_perturbation(steps=4, order=random)"
    sick = maps.clone()
    sick[1, 2, 3] = float("nan")
    table = vt.evaluate(model, x, {"a": maps, "b": sick}, name, controls=False, n_bootstrap=3)
    np.testing.assert_array_equal(table["a", name][[0, 2]], table["b", name][[0, 2]])
    assert np.isnan(table["b", name][1])
    assert table.plan["states"] == 3 * (3 + 1 + 1), "once for both methods"
    key = PRNGKey.of_images(0, "order", x).uniform(32, 32)
    for image, values, score in zip(x, key, table["a", name], strict=True):
        curve = curve_without(model, image, squares(values, 8), 8, [0, 4, 8, 12, 16])
        assert score == pytest.approx(sum(curve[0] - p for p in curve) / 5, abs=1e-5)


def test_a_map_on_just_these_cells_is_taken_as_it_is(model: Any, x: Tensor) -> None:
    coarse = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))
    full = coarse.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    name = "region_perturbation(steps=5)"
    np.testing.assert_array_equal(scores(model, x, coarse, name), scores(model, x, full, name))
    other = "region_perturbation(region=16, steps=4)"
    broad = scores(model, x, coarse, other, interpolation="nearest")
    np.testing.assert_array_equal(broad, scores(model, x, full, other))


def test_ranks_of_squares() -> None:
    values = torch.arange(16.0).view(1, 4, 4)
    ranks = unit_ranks(values, (4, 4), "region:2", "bilinear", "raster", 0)[0]
    assert ranks.tolist() == [[12, 13, 8, 9], [14, 15, 10, 11], [4, 5, 0, 1], [6, 7, 2, 3]]
    with pytest.raises(vt.VitreousError, match="4 x 4 pixels cannot be cut into squares of 3 pixels"):
        unit_ranks(values, (4, 4), "region:3", "bilinear", "raster", 0)


def test_the_states_can_be_looked_at(model: Any, x: Tensor, maps: Tensor) -> None:
    built = perturbed(vt.wrap(model), x, maps, RankedRemoval.deletion("zero_norm", [64 * 5], "region:8"))[:, 0]
    gone = (built == 0).all(dim=1).view(3, 4, 8, 4, 8).float().mean(dim=(2, 4))
    assert ((gone == 0) | (gone == 1)).all()
    assert (gone.sum(dim=(1, 2)) == 5).all()


def test_regions_that_do_not_fit(model: Any, x: Tensor, maps: Tensor) -> None:
    with pytest.raises(vt.VitreousError, match="32 x 32 pixels cannot be cut into squares of 9 pixels"):
        scores(model, x, maps, "region_perturbation(region=9)")
    with pytest.raises(vt.VitreousError, match="region=0 must be at least 1"):
        vt.get_metric("selectivity(region=0)")
    with pytest.raises(vt.VitreousError, match="order='luck' is not one of morf, lerf, random"):
        vt.get_metric("region_perturbation(order=luck)")
    assert not vt.get_metric("region_perturbation(order=lerf)").higher_is_better


def test_monotonicity(model: Any, x: Tensor, maps: Tensor) -> None:
    actual = scores(model, x, maps, "monotonicity(steps=8, baseline=zero_norm)")
    for image, values, score in zip(x, maps, actual, strict=True):
        with torch.no_grad():
            scored = int(model(image[None]).argmax())
        order, curve = values.flatten().argsort(descending=True), []
        for j in range(9):
            keep = torch.zeros(1024)
            keep[order[: 128 * j]] = 1
            curve.append(probability(model, image * keep.view(32, 32), scored))
        assert score == pytest.approx(sum(curve[j + 1] >= curve[j] for j in range(8)) / 8)


def test_monotonicity_costs_nothing_beside_insertion(model: Any, x: Tensor, maps: Tensor) -> None:
    def states(*names: str) -> int:
        return int(vt.evaluate(model, x, {"a": maps}, list(names), controls=False, n_bootstrap=1).plan["states"])

    assert states("insertion", "monotonicity") == states("insertion")
    assert states("region_perturbation", "selectivity") == states("selectivity") == 3 * (15 + 1 + 1)
