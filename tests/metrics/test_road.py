"""ROAD's scores, each state solved directly in double precision and shown to the model itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from reference_inpainting import solved
from vitreous.metrics.baselines import noise

LABELS = [0, 3]


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]()


@pytest.fixture(scope="module")
def inputs(model: Any) -> Tensor:
    return images(model, 2)


def ranked_maps() -> Tensor:
    orders = [torch.randperm(1024, generator=torch.Generator().manual_seed(seed)) for seed in (4, 5)]
    return torch.stack(orders).float().view(2, 32, 32)


def actual(model: Any, inputs: Tensor, maps: Any, *names: str, **options: Any) -> vt.ScoreTable:
    options.setdefault("labels", LABELS)
    return vt.evaluate(model, inputs, {"it": maps}, list(names), controls=False, n_bootstrap=5, **options)


def logits_without(model: Any, inputs: Tensor, maps: Tensor, steps: int) -> list[list[Tensor]]:
    """For each image, the logits with 1/steps, 2/steps ... of the pixels gone, the largest value first."""
    own_noise = noise(inputs, vt.wrap(model).preprocess, 0)
    curves = []
    for image, values, field in zip(inputs, maps, own_noise, strict=True):
        order, curve = values.flatten().argsort(descending=True), []
        for j in range(1, steps):
            gone = torch.zeros(1024, dtype=torch.bool)
            gone[order[: 1024 * j // steps]] = True
            gone = gone.view(32, 32)
            with torch.no_grad():
                curve.append(model((solved(image, gone).float() + field * gone)[None])[0])
        curves.append(curve)
    return curves


@pytest.mark.parametrize("preset", ["", "@coiba"])
def test_both_orders_and_their_difference(model: Any, inputs: Tensor, preset: str) -> None:
    maps = ranked_maps()
    names = [f"road_morf{preset}", f"road_lerf{preset}", f"road{preset}"]
    table = actual(model, inputs, maps, *names)
    most, least = logits_without(model, inputs, maps, 5), logits_without(model, inputs, -maps, 5)
    for i, image in enumerate(inputs):
        with torch.no_grad():
            scored = LABELS[i] if preset else int(model(image[None]).argmax())
        morf, lerf = (float(np.mean([float(item.softmax(0)[scored]) for item in curve[i]])) for curve in (most, least))
        assert table["it", names[0]][i] == pytest.approx(morf, abs=1e-3)
        assert table["it", names[1]][i] == pytest.approx(lerf, abs=1e-3)
        assert table["it", names[2]][i] == pytest.approx(lerf - morf, abs=1e-3)


def test_accuracy(model: Any, inputs: Tensor) -> None:
    """Against the true class, from 10 to 90 %, as the authors recommend."""
    maps = ranked_maps()
    table = actual(model, inputs, maps, "road_morf@rong", "road_lerf@rong", "road@coiba(by=accuracy)")
    right = [[[int(item.argmax()) == LABELS[i] for item in curve] for i, curve in enumerate(logits_without(
        model, inputs, sign * maps, 10))] for sign in (1, -1)]  # fmt: skip
    np.testing.assert_allclose(table["it", "road_morf@rong"], np.mean(right[0], axis=1))
    np.testing.assert_allclose(table["it", "road_lerf@rong"], np.mean(right[1], axis=1))
    curve = table.curve("it", "road_lerf@rong")
    np.testing.assert_allclose(curve.x, [j / 10 for j in range(1, 10)])
    np.testing.assert_array_equal(curve.y, right[1])
    assert set(np.unique(table["it", "road@coiba(by=accuracy)"] * 4)) <= set(range(-4, 5))


def test_a_fraction_is_what_is_removed_in_both_orders(model: Any, inputs: Tensor) -> None:
    """The least relevant 20 % of a map are the most relevant 20 % of its negative."""
    maps = ranked_maps()
    table = vt.evaluate(model, inputs, {"a": maps, "b": -maps}, ["road"], controls=False, n_bootstrap=5)
    for one, other in (
        ("least relevant first", "most relevant first"),
        ("most relevant first", "least relevant first"),
    ):
        a, b = table.curve("a", "road", one), table.curve("b", "road", other)
        np.testing.assert_allclose(a.x, [0.2, 0.4, 0.6, 0.8])
        np.testing.assert_allclose(a.y, b.y, atol=2e-4)


@pytest.mark.parametrize("kind", ["sparse", "constant", "zero", "two values"])
def test_ties_are_no_trouble(model: Any, inputs: Tensor, kind: str) -> None:
    maps = torch.zeros(2, 32, 32)
    if kind == "sparse":
        maps[:, 3, 4] = 1
    elif kind == "constant":
        maps += 0.3
    elif kind == "two values":
        maps[:, :5] = -1
    table = actual(model, inputs, maps, "road_morf", "road_lerf", "road")
    for name in table.metrics:
        assert np.isfinite(table["it", name]).all()
    assert (np.abs(table["it", "road"]) <= 1).all()


def test_labels_are_needed_for_accuracy_only(model: Any, inputs: Tensor) -> None:
    assert not vt.get_metric("road").needs_labels
    assert vt.get_metric("road(by=accuracy)").needs_labels
    assert vt.get_metric("road_morf@rong").needs_labels
    assert vt.get_metric("road@coiba").needs_labels, "it explains the label"
    with pytest.raises(vt.VitreousError, match="needs the true classes"):
        actual(model, inputs, ranked_maps(), "road@rong", labels=None)


def test_directions_states_and_names(model: Any, inputs: Tensor) -> None:
    assert not vt.get_metric("road_morf").higher_is_better
    assert vt.get_metric("road_lerf").higher_is_better
    assert vt.get_metric("delta_road") == vt.get_metric("road")
    both = actual(model, inputs, ranked_maps(), "road_morf", "road_lerf").plan["states"]
    assert both == 2 * (8 + 1)
    assert actual(model, inputs, ranked_maps(), "road", "road(by=accuracy)", "road_morf").plan["states"] == both


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("steps=1", "steps=1 must be at least 2"), ("by=luck", "by='luck' is not one of probability, accuracy")],
)
def test_bad_parameters(wrong: str, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        vt.get_metric(f"road({wrong})")
