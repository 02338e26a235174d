"""The evaluation transform against timm's own, and where its crop lies in the photograph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config

import vitreous as vt
from vitreous import Preprocess
from vitreous.errors import ImageError, ModelError

SIZES = [(97, 61), (61, 97), (64, 64), (33, 32), (5, 7), (1, 1), (300, 8), (8, 300), (640, 481)]
INPUTS = [(32, 32), (33, 33), (48, 32), (30, 70)]


def photograph(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def by_timm(how: Preprocess, photo: Image.Image) -> torch.Tensor:
    transform = create_transform(
        input_size=(3, *how.size),
        is_training=False,
        interpolation=how.interpolation,
        mean=how.mean,
        std=how.std,
        crop_pct=how.crop,
        crop_mode=how.mode,
    )
    return transform(photo)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
@pytest.mark.parametrize("size", INPUTS)
def test_is_timms_transform(mode: str, crop: float, size: tuple[int, int]) -> None:
    how = Preprocess(size=size, crop=crop, mode=mode)
    for width, height in SIZES:
        if (
            mode == "border"
            and min(round(side * min(size) / crop / max(width, height)) for side in (width, height)) < 1
        ):
            continue  # so thin that timm itself would resize it to nothing
        photo = photograph(width, height)
        seen, _ = how.see(photo)
        assert seen.size == (size[1], size[0])
        assert how.tensor(seen).equal(by_timm(how, photo)), (width, height)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(40, 40), (40, 56)])
def test_interpolations_and_colours(interpolation: str, mode: str, size: tuple[int, int]) -> None:
    mean, std = (0.1, 0.5, 0.9), (0.5, 0.25, 0.7)
    how = Preprocess(size=size, mean=mean, std=std, interpolation=interpolation, crop=0.95, mode=mode)
    photo = photograph(90, 70)
    assert how.tensor(how.see(photo)[0]).equal(by_timm(how, photo))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_base_patch16_siglip_224"])
def test_a_views_preprocess_is_its_models(name: str) -> None:
    model = timm.create_model(name, img_size=64, embed_dim=24, num_heads=3, depth=1, num_classes=5)
    transform = create_transform(**{**resolve_model_data_config(model), "input_size": (3, 64, 64)}, is_training=False)
    photo, how = photograph(123, 80), vt.view(model).preprocess
    assert how.tensor(how.see(photo)[0]).equal(transform(photo))


# -- geometry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "photo", "box"),
    [
        (Preprocess(size=(224, 224)), (512, 512), (32, 32, 480, 480)),
        (Preprocess(size=(100, 100), crop=1.0), (1000, 500), (250, 0, 750, 500)),
        (Preprocess(size=(100, 100), crop=1.0), (500, 1000), (0, 250, 500, 750)),
        (Preprocess(size=(100, 50), crop=1.0), (300, 200), (100, 0, 200, 200)),
        (Preprocess(size=(100, 100), crop=1.0, mode="squash"), (1000, 500), (0, 0, 1000, 500)),
        (Preprocess(size=(90, 90), crop=0.9, mode="squash"), (1000, 500), (50, 25, 950, 475)),
        (Preprocess(size=(100, 100), crop=1.0, mode="border"), (1000, 500), (0, -250, 1000, 750)),
        (Preprocess(size=(100, 100), crop=1.0, mode="border"), (500, 1000), (-250, 0, 750, 1000)),
    ],
)
def test_boxes_worked_out_on_paper(how: Preprocess, photo: tuple[int, int], box: tuple[float, ...]) -> None:
    assert how.see(Image.new("RGB", photo))[1] == pytest.approx(box)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
@pytest.mark.parametrize("photo", [(1000, 700), (611, 907)])
@pytest.mark.parametrize("place", [(0.5, 0.5), (0.35, 0.4), (0.55, 0.54)])
def test_a_marker_lies_where_the_box_says(
    mode: str, size: tuple[int, int], photo: tuple[int, int], place: tuple[float, float]
) -> None:
    """The centre and the area of a white block, found in the crop and carried back through the box."""
    width, height = photo
    block, left, top = 60, round(place[0] * width), round(place[1] * height)
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[top : top + block, left : left + block] = 255
    how = Preprocess(size=size, mode=mode, crop=0.9, mean=(0.0, 0.0, 0.0), interpolation="bilinear")
    seen, (x0, y0, x1, y1) = how.see(Image.fromarray(pixels))
    light = np.asarray(seen, np.float64)[..., 0] / 255
    across, down = (x1 - x0) / size[1], (y1 - y0) / size[0]
    x = x0 + across * np.average(np.arange(size[1]) + 0.5, weights=light.sum(axis=0))
    y = y0 + down * np.average(np.arange(size[0]) + 0.5, weights=light.sum(axis=1))
    assert (x, y) == pytest.approx((left + block / 2, top + block / 2), abs=0.25)
    assert light.sum() * across * down == pytest.approx(block**2, rel=0.01)


def test_border_fills_with_the_mean_colour() -> None:
    how = Preprocess(size=(50, 50), crop=1.0, mode="border", mean=(0.2, 0.4, 0.6))
    seen, _ = how.see(Image.new("RGB", (100, 40), "white"))
    assert seen.getpixel((25, 2)) == (51, 102, 153)
    assert seen.getpixel((25, 25)) == (255, 255, 255)


# -- and back ------------------------------------------------------------------------------------------


def test_a_tensor_gives_its_picture_again() -> None:
    how = Preprocess(size=(48, 40))
    seen, _ = how.see(photograph(90, 70))
    assert how.picture(how.tensor(seen)).tobytes() == seen.tobytes()
    far = how.picture(torch.tensor([-100.0, 0.0, 100.0]).view(3, 1, 1).expand(3, 2, 2).double())
    assert far.getpixel((0, 0)) == (0, round(0.456 * 255), 255)


def test_other_modes_are_brought_to_rgb() -> None:
    how, grey = Preprocess(size=(8, 8)), photograph(20, 20).convert("L")
    assert how.see(grey)[0].tobytes() == how.see(grey.convert("RGB"))[0].tobytes()
    assert how.tensor(grey.resize((8, 8))).shape == (3, 8, 8)


def test_refusals() -> None:
    with pytest.raises(ModelError, match=r"'wobbly'.*bicubic"):
        Preprocess(interpolation="wobbly")
    with pytest.raises(ModelError, match=r"'middle'.*center, squash, border"):
        Preprocess(mode="middle")
    with pytest.raises(ImageError, match=r"1 x 4000 .*long and thin"):
        Preprocess().see(Image.new("RGB", (1, 4000)))
    with pytest.raises(ImageError, match="0 x 5"):
        Preprocess().see(Image.new("RGB", (0, 5)))
    squashed, _ = replace(Preprocess(), mode="squash").see(Image.new("RGB", (1, 4000)))
    assert squashed.size == (224, 224)
