"""The baseline of ROAD against a direct solve in double precision, and what it must reproduce exactly."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from metric_probe import Probe
from reference_inpainting import solved
from vitreous.metrics import GivenMasks, Masks
from vitreous.metrics.baselines import BASELINES, inpaint, noise
from vitreous.models import Preprocess

LINEAR = Preprocess(size=(32, 32), mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0))


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


def shapes(kind: str, size: int) -> Tensor:
    """Values whose largest are removed first, as explainers make them and as nobody would."""
    generator = torch.Generator().manual_seed(3)
    if kind in ("smooth", "blob", "sparse", "patches"):
        cells = {"smooth": max(4, size // 16), "blob": 3, "sparse": max(4, size // 16), "patches": size // 8}[kind]
        coarse = torch.randn(1, 1, cells, cells, generator=generator)
        mode = "nearest" if kind == "patches" else "bilinear"
        values = torch.nn.functional.interpolate(coarse, size=(size, size), mode=mode)[0, 0]
        tied = values.clamp(min=0.4) if kind == "sparse" else values
        return tied + 1e-6 * torch.rand(size, size, generator=generator)
    down, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    if kind == "lines":
        return (columns % 9 != 4).float() * 10 + torch.rand(size, size, generator=generator)
    if kind == "chequers":
        return ((down + columns) % 2).float() * 10 + torch.rand(size, size, generator=generator)
    if kind == "corner":
        return (down + columns).float()
    return torch.rand(size, size, generator=generator)


SHAPES = ("smooth", "blob", "sparse", "patches", "lines", "chequers", "corner", "random")


@pytest.mark.parametrize("size", [32, 57, pytest.param(224, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SHAPES)
def test_direct_and_iterative(kind: str, size: int) -> None:
    """Both orders of removal at every fraction of the papers, and nearly everything; the range of the image is 1."""
    image, values = photograph(size), shapes(kind, size)
    image = (image - image.min()) / (image.max() - image.min())
    order = values.flatten().argsort(descending=True)
    gone = torch.zeros(10, size * size, dtype=torch.bool)
    for row, share in enumerate((0.2, 0.4, 0.6, 0.8, 0.99)):
        gone[2 * row, order[: int(share * size**2)]] = True
        gone[2 * row + 1, order[-int(share * size**2) :]] = True
    gone = gone.view(10, size, size)
    actual = inpaint(image * ~gone[:, None], gone)
    for row in range(10):
        gap = (actual[row].double() - solved(image, gone[row])).abs().max()
        assert gap < 2e-3, f"{kind}, state {row}: {gap:.1e}"
        assert torch.equal(actual[row][:, ~gone[row]], image[:, ~gone[row]]), "known pixels were changed"


def test_states_are_solved_on_their_own() -> None:
    """A state has the same pixels alone and beside one that needs more iterations."""
    image = photograph()
    masks = torch.stack([holes(0.2), holes(0.97), holes(0.6, seed=3), torch.zeros(32, 32, dtype=torch.bool)])
    together = inpaint(image * ~masks[:, None], masks)
    for i, gone in enumerate(masks):
        torch.testing.assert_close(inpaint((image * ~gone)[None], gone[None])[0], together[i], atol=1e-5, rtol=0)
    assert torch.equal(together[3], image), "nothing was missing"


def test_a_linear_gradient_is_reproduced() -> None:
    down, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    image = torch.stack([0.1 * down, 0.2 * columns - 1, 0.05 * (down + 2 * columns)])
    gone = torch.zeros(32, 32, dtype=torch.bool)
    gone[5:20, 8:27] = True
    torch.testing.assert_close(inpaint((image * ~gone)[None], gone[None])[0], image, atol=2e-4, rtol=0)


def test_one_pixel_left() -> None:
    image = photograph()
    gone = torch.ones(32, 32, dtype=torch.bool)
    gone[7, 11] = False
    (actual,) = inpaint((image * ~gone)[None], gone[None])
    torch.testing.assert_close(actual, image[:, 7:8, 11:12].expand_as(image), atol=1e-4, rtol=0)


def test_nothing_left_and_noise() -> None:
    """The mean colour, and noise of 0.01 in pixels, the same whoever the neighbours are."""
    inputs = torch.stack([photograph(128), photograph(128).flip(1)])
    left = BASELINES["noisy_linear"].make(inputs, LINEAR, 0) - inputs.mean(dim=(2, 3), keepdim=True)
    assert torch.isfinite(left).all()
    for channel, std in enumerate(LINEAR.std):
        assert float(left[:, channel].std()) * std == pytest.approx(0.01, rel=0.02)
        assert abs(float(left[:, channel].mean())) * std < 0.001
    assert torch.equal(noise(inputs[1:], LINEAR, 0)[0], noise(inputs, LINEAR, 0)[1])
    assert not torch.equal(noise(inputs, LINEAR, 1), noise(inputs, LINEAR, 0))


def test_srg_on_road() -> None:
    """The whole metric, each state solved directly and scored by the model itself."""
    model: Any = FAMILIES["vit"]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    maps = torch.stack([torch.randperm(1024, generator=torch.Generator().manual_seed(i)) for i in range(2)]).float()
    name = "srg(steps=5, baseline=noisy_linear)"
    actual = vt.evaluate(vision_model, inputs, {"it": maps.view(2, 32, 32)}, name, controls=False, n_bootstrap=5)[
        "it", name
    ]
    own_noise = noise(inputs, vision_model.preprocess, 0)
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
                    curve.append(float(model((state + own_noise[i] * gone)[None]).softmax(1)[0, scored]))
            areas.append(sum((curve[j] + curve[j + 1]) / 2 / 5 for j in range(5)))
        assert actual[i] == pytest.approx(areas[0] - areas[1], abs=1e-3)


def test_everything_masked_is_the_mean_colour() -> None:
    """A mask may take every pixel; then there is nothing to fill in from."""
    model: Any = FAMILIES["vit"]()
    vision_model, inputs = vt.wrap(model), images(model, 2)
    every = np.stack([np.ones((4, 4), bool), np.eye(4, dtype=bool)])
    need = Masks("noisy_linear", GivenMasks.of(every), 2)
    probe = Probe(asked=[need])
    vt.evaluate(vision_model, inputs, {"it": torch.rand(2, 4, 4)}, [probe], controls=False, n_bootstrap=1)
    actual = probe.heard[0].log_probability(need)
    blank = BASELINES["noisy_linear"].make(inputs, vision_model.preprocess, 0)
    gone = torch.eye(4, dtype=torch.bool).repeat_interleave(8, 0).repeat_interleave(8, 1)
    own_noise = noise(inputs, vision_model.preprocess, 0)
    with torch.no_grad():
        best = model(inputs).argmax(dim=1)
        for i in range(2):
            filled_in = solved(inputs[i], gone).float() + own_noise[i] * gone
            for state, picture in enumerate((blank[i], filled_in)):
                expected = float(model(picture[None]).log_softmax(dim=1)[0, best[i]])
                assert actual[i, state] == pytest.approx(expected, abs=2e-3)


def test_sparse_maps_are_no_trouble() -> None:
    """Percentile thresholds keep nothing of a map that is mostly zero; ranks always keep what was asked."""
    model: Any = FAMILIES["vit"]()
    inputs = images(model, 3)
    sparse = torch.zeros(3, 32, 32)
    sparse[:, 3, 4] = 1
    table = vt.evaluate(model, inputs, {"it": sparse}, "srg(steps=5, baseline=noisy_linear)", n_bootstrap=5)
    assert all(np.isfinite(scores).all() for scores in table.scores.values())
    assert not math.isnan(table.mean("it", table.metrics[0]))


def test_an_image_cannot_fade_into_it() -> None:
    with pytest.raises(vt.VitreousError, match="'noisy_linear' depends on what is removed"):
        vt.get_metric("average_drop(baseline=noisy_linear)")


KERNELS = """
import torch
from vitreous.metrics import _inpainting_triton as fused
from vitreous.metrics.baselines import verify_kernels

verify_kernels(fused, torch.device("cpu"))
rougher = fused.rougher
fused.rougher = lambda values, on: rougher(values, on) * 1.001
try:
    verify_kernels(fused, torch.device("cpu"))
except AssertionError:
    pass
else:
    raise SystemExit("a kernel that is off was not noticed")
"""


def test_the_kernel_of_a_gpu_says_the_same() -> None:
    """Run by Triton's interpreter, in a process of its own: it has to be switched on before Triton is imported."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", KERNELS], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
