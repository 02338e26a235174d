"""Baselines of one's own for expected gradients: tensors, images, folders; who they are is what they hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from families_cnn import FAMILIES as CNNS
from vitreous.benchmark.methods import mark_of, method_of
from vitreous.datasets import pictures
from vitreous.errors import ImageError, ModelError, SpecError
from vitreous.methods.integrated_gradients import Background

TARGET = 2
SHAP = vt.get_method("gradient_shap(samples=6)")


def own(background: Any, samples: int = 6) -> Any:
    return replace(vt.get_method(f"gradient_shap(samples={samples})"), background=background)


@pytest.fixture(scope="module")
def model() -> Any:
    return FAMILIES["vit"]().double()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def starts(model: Any, method: Any, x: Tensor, baselines: Tensor) -> list[int]:
    """Which baseline each path begins at: every point that enters lies on the line from one of them to the image."""
    points: list[Tensor] = []
    hook = model.patch_embed.register_forward_hook(lambda _, given, __: points.append(given[0].detach().clone()))
    try:
        method.attribute(model, x, TARGET)
    finally:
        hook.remove()
    entered = torch.cat(points)[-len(x) * method.samples :].double()
    found = []
    for number, point in enumerate(entered):
        image = x[number // method.samples]
        way, to_point = image - baselines, point - baselines
        share = (way * to_point).flatten(1).sum(dim=1) / way.flatten(1).square().sum(dim=1)
        off = (to_point - share.view(-1, 1, 1, 1) * way).flatten(1).norm(dim=1)
        assert off.min() < 1e-6
        assert 0 <= share[off.argmin()] < 1
        found.append(int(off.argmin()))
    return found


def test_paths_begin_at_the_baselines_that_were_given(model: Any) -> None:
    x, baselines = images(model, 2), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    found = starts(model, own(baselines, 20), x, baselines)
    assert set(found) == {0, 1, 2, 3}
    alone = starts(model, own(baselines, 20), x[1:], baselines)
    assert alone == found[20:]  # what is drawn does not depend on the neighbours


def test_one_baseline_that_is_given_is_that_of_integrated_gradients(model: Any) -> None:
    """The mean over many random points of the path from one baseline is the integral along it."""
    x = images(model, 1)
    grey = torch.full((3, 32, 32), 0.2, dtype=torch.float64)
    found = own(grey, 600).attribute(model, x, TARGET)
    with torch.no_grad():
        change = (model(x) - model(grey[None]))[:, TARGET]
    torch.testing.assert_close(found.sum(dim=(1, 2)), change, rtol=0.1, atol=0.02)
    exact = vt.get_method("integrated_gradients(steps=100, baseline=0.2)").attribute(model, x, TARGET)
    assert torch.corrcoef(torch.stack([found.flatten(), exact.flatten()]))[0, 1] > 0.98


def test_images_are_prepared_as_explain_prepares_them(photos: Path) -> None:
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, img_size=64)
    with Image.open(photos / "1.png") as opened:
        picture = opened.convert("RGB")
    kinds: list[Any] = [
        photos / "1.png",
        str(photos / "1.png"),
        picture,
        np.asarray(picture),
        [picture],
        [photos / "1.png"],
    ]
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    kinds.append(next(iter(pictures(picture, model))).tensor)
    maps = [own(kind).attribute(model, x, TARGET) for kind in kinds]
    for map_ in maps[1:]:
        torch.testing.assert_close(map_, maps[0])
    assert not torch.allclose(maps[0], SHAP.attribute(model, x, TARGET))


def test_a_method_is_another_if_its_baselines_are(photos: Path) -> None:
    baselines = torch.randn(4, 3, 32, 32)
    same, other = own(baselines), own(baselines.clone())
    assert same == other
    assert hash(same) == hash(other)
    assert same.fingerprint == other.fingerprint
    changed = baselines.clone()
    changed[3, 0, 0, 0] += 1e-3
    for another in (changed, baselines[:3], baselines.flip(0)):
        assert own(another) != same
        assert own(another).fingerprint != same.fingerprint
    baselines.zero_()  # what was given is copied
    assert own(other.background).fingerprint == same.fingerprint
    assert same.fingerprint != SHAP.fingerprint

    spec = f"gradient_shap(samples=6, background='{photos}')"
    before = mark_of(spec, method_of(spec))
    assert before == mark_of(spec, method_of(spec))
    pixels = np.zeros((40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(photos / "2.png")
    assert mark_of(spec, method_of(spec)) != before  # a run does not go on with other baselines


def test_a_folder_is_spelled_and_recorded(photos: Path) -> None:
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, img_size=64)
    method: Any = vt.get_method(f"gradient_shap(samples=3, background='{photos}')")
    assert vt.get_method(method.spelling) == method
    assert method.settings["background"] == str(photos)
    assert method.settings["baselines"] == str(Background(photos))
    assert str(Background(photos)).startswith("3 images (")
    explanation = vt.explain(model, photos / "0.png", method=method)
    assert f"3 images ({Background(photos).digest[:12]})" in json.dumps(explanation.manifest(), default=str)
    table = vt.evaluate(model, photos / "0.png", [method.spelling], "gini", controls=False, n_bootstrap=1)
    assert table.methods == (method.spelling,)  # the path in it is no folder of maps


def test_without_a_word_nothing_has_changed(model: Any) -> None:
    assert vt.get_method("gradient_shap").settings["background"] == "normal"
    assert "baselines" not in vt.get_method("gradient_shap").settings
    assert vt.get_method("gradient_shap(background=scenes)").spec == "gradient_shap(background=scenes)"


@pytest.mark.parametrize(
    ("background", "error", "why"),
    [
        (torch.zeros(2, 3, 16, 16), ModelError, r"baseline \d is \[3, 16, 16\] for .*, the input is \[3, 32, 32\]"),
        (torch.zeros(32, 32), SpecError, r"finite numbers \[K, C, H, W\] or \[C, H, W\], got float32 \[32, 32\]"),
        (torch.full((3, 32, 32), torch.nan), SpecError, "finite numbers"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), SpecError, "got uint8"),
        ([], SpecError, "there are no baselines"),
        (3.0, SpecError, "is none of normal, scenes, a picture or folder"),
        ("grey", ImageError, "no such file: grey"),
        (torch.zeros(0, 3, 32, 32), SpecError, "there are no baselines"),
    ],
    ids=["size", "dimensions", "nan", "bytes", "empty", "number", "word", "none"],
)
def test_what_is_no_baseline_is_refused(model: Any, background: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        own(background).attribute(model, images(model, 1), TARGET)


def test_tokens_have_no_baselines_of_images(model: Any) -> None:
    with pytest.raises(ModelError, match="needs images, not the tokens"):
        vt.get_method("plus(gradient_shap(background=scenes))").attribute(model, images(model, 1))


def test_convolutional_networks_take_them_too() -> None:
    network = CNNS["resnet"]()
    x = images(network, 2)
    found = own(x.flip(0) * 0.5).attribute(network, x, TARGET)
    assert torch.isfinite(found).all()
    assert not torch.allclose(found, SHAP.attribute(network, x, TARGET))
