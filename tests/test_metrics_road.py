"""The substrate of ROAD against a direct solve in double precision, and what it must reproduce exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.metrics.states import road
from vitreous.models import Preprocess

LINEAR = Preprocess(size=(32, 32), mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0))


def solved(image: Tensor, removed: Tensor) -> Tensor:
    """One equation for every removed pixel, written out and solved directly."""
    places = [tuple(place) for place in removed.nonzero().tolist()]
    number = {place: i for i, place in enumerate(places)}
    matrix, right = np.zeros((len(places), len(places))), np.zeros((len(places), 3))
    for place, i in number.items():
        for down in (-1, 0, 1):
            for across in (-1, 0, 1):
                other = (place[0] + down, place[1] + across)
                if other == place or not all(0 <= c < n for c, n in zip(other, removed.shape, strict=True)):
                    continue
                weight = 1 / 12 if down and across else 1 / 6
                matrix[i, i] += weight
                if other in number:
                    matrix[i, number[other]] -= weight
                else:
                    right[i] += weight * image[:, other[0], other[1]].double().numpy()
    made = image.double().clone()
    for place, values in zip(places, np.linalg.solve(matrix, right), strict=True):
        made[:, place[0], place[1]] = torch.from_numpy(values)
    return made


def photograph(size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randn(1, 3, 6, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")[0]
    return smooth + 0.2 * torch.randn(3, size, size, generator=generator)


def holes(share: float, size: int = 32, seed: int = 2, smooth: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(1, 1, 5 if smooth else size, 5 if smooth else size, generator=generator)
    values = torch.nn.functional.interpolate(values, size=(size, size), mode="bilinear").flatten()
    gone = torch.zeros(size * size, dtype=torch.bool)
    gone[values.argsort(descending=True)[: int(share * size * size)]] = True
    return gone.view(size, size)


@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8, 0.97])
def test_direct_and_iterative(share: float, smooth: bool) -> None:
    image, gone = photograph(), holes(share, smooth=smooth)
    (found,) = road.fill(image, gone[None])
    assert (found.double() - solved(image, gone)).abs().max() < 2e-4
    assert torch.equal(found[:, ~gone], image[:, ~gone]), "known pixels were changed"


def test_states_are_solved_on_their_own() -> None:
    """A state has the same pixels alone and beside one that needs more iterations."""
    image = photograph()
    together = road.fill(image, torch.stack([holes(0.2), holes(0.97), holes(0.6, seed=3)]))
    for i, gone in enumerate([holes(0.2), holes(0.97), holes(0.6, seed=3)]):
        torch.testing.assert_close(road.fill(image, gone[None])[0], together[i], atol=1e-5, rtol=0)


def test_a_linear_gradient_is_reproduced() -> None:
    down, across = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    image = torch.stack([0.1 * down, 0.2 * across - 1, 0.05 * (down + 2 * across)])
    gone = torch.zeros(32, 32, dtype=torch.bool)
    gone[5:20, 8:27] = True
    torch.testing.assert_close(road.fill(image, gone[None])[0], image, atol=2e-4, rtol=0)


def test_one_pixel_left() -> None:
    image = photograph()
    gone = torch.ones(32, 32, dtype=torch.bool)
    gone[7, 11] = False
    (found,) = road.fill(image, gone[None])
    torch.testing.assert_close(found, image[:, 7:8, 11:12].expand_as(image), atol=1e-4, rtol=0)


def test_nothing_left_and_noise() -> None:
    """The mean colour, and noise of 0.01 in pixels, the same whoever the neighbours are."""
    inputs = torch.stack([photograph(128), photograph(128).flip(1)])
    left = road.bare(inputs, LINEAR, 0) - inputs.mean(dim=(2, 3), keepdim=True)
    assert torch.isfinite(left).all()
    for channel, std in enumerate(LINEAR.std):
        assert float(left[:, channel].std()) * std == pytest.approx(0.01, rel=0.02)
        assert abs(float(left[:, channel].mean())) * std < 0.001
    assert torch.equal(road.noise(inputs[1:], LINEAR, 0)[0], road.noise(inputs, LINEAR, 0)[1])
    assert not torch.equal(road.noise(inputs, LINEAR, 1), road.noise(inputs, LINEAR, 0))


def test_srg_on_road() -> None:
    """The whole metric, each state solved directly and scored by the model itself."""
    model: Any = FAMILIES["vit"]()
    view, inputs = vt.view(model), images(model, 2)
    maps = torch.stack([torch.randperm(1024, generator=torch.Generator().manual_seed(i)) for i in range(2)]).float()
    name = "srg(steps=5, substrate=noisy_linear)"
    found = vt.evaluate(view, inputs, {"it": maps.view(2, 32, 32)}, name, baselines=False, samples=5)["it", name]
    noise = road.noise(inputs, view.preprocess, 0)
    for i, image in enumerate(inputs):
        with torch.no_grad():
            scored = int(model(image[None]).argmax())
        areas = []
        for values in (-maps[i], maps[i]):  # the least relevant first, then the most
            order = values.argsort(descending=True)
            curve = []
            for j in range(6):
                gone = torch.zeros(1024, dtype=torch.bool)
                gone[order[: j * 1024 // 5]] = True
                gone = gone.view(32, 32)
                state = image.mean(dim=(1, 2), keepdim=True).expand_as(image) if j == 5 else solved(image, gone).float()
                with torch.no_grad():
                    curve.append(float(model((state + noise[i] * gone)[None]).softmax(1)[0, scored]))
            areas.append(sum((curve[j] + curve[j + 1]) / 2 / 5 for j in range(5)))
        assert found[i] == pytest.approx(areas[0] - areas[1], abs=1e-3)


def test_sparse_maps_are_no_trouble() -> None:
    """Percentile thresholds keep nothing of a map that is mostly zero; ranks always keep what was asked."""
    model: Any = FAMILIES["vit"]()
    inputs = images(model, 3)
    sparse = torch.zeros(3, 32, 32)
    sparse[:, 3, 4] = 1
    table = vt.evaluate(model, inputs, {"it": sparse}, "srg(steps=5, substrate=noisy_linear)", samples=5)
    assert all(np.isfinite(scores).all() for scores in table.scores.values())
    assert not math.isnan(table.mean("it", table.metrics[0]))


def test_an_image_cannot_fade_into_it() -> None:
    with pytest.raises(vt.VitreousError, match="'noisy_linear' depends on what is removed"):
        vt.metric("average_drop(substrate=noisy_linear)")
