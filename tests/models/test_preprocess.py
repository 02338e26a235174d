"""What a model sees: a definition of our own, the installed timm's transform, and where its crop lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from timm.data.transforms import ResizeKeepRatio
from torchvision import transforms

import vitreous as vt
from vitreous.errors import ImageError, ModelError
from vitreous.models import Preprocess
from vitreous.models.preprocess import Transform, as_preprocess, match

SIZES = [(97, 61), (61, 97), (64, 64), (33, 32), (5, 7), (1, 1), (300, 8), (8, 300), (640, 481)]
INPUTS = [(32, 32), (33, 33), (48, 32), (30, 70)]


def photograph(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def config(**changes: Any) -> dict[str, Any]:
    """What timm builds a transform from."""
    usual = {"interpolation": "bicubic", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 0.875}
    return {**usual, "crop_mode": "center", **changes}


def slowly(recipe: Preprocess, photo: Image.Image) -> np.ndarray[Any, Any]:
    """The definition of a ``Preprocess``, one pixel after the other once the photograph is resized."""
    height, width = (int(side / recipe.crop + 1e-9) for side in recipe.size)
    scale = {
        "center": max(width / photo.width, height / photo.height),
        "border": min(width / photo.width, height / photo.height),
    }.get(recipe.mode)
    columns = width if scale is None else max(1, round(photo.width * scale))
    down = height if scale is None else max(1, round(photo.height * scale))
    if recipe.mode == "center" and height == width:  # rounded down, unlike the rest
        columns = width if photo.width <= photo.height else int(width * photo.width / photo.height)
        down = height if photo.height <= photo.width else int(height * photo.height / photo.width)
    resized = np.asarray(photo.resize((columns, down), getattr(Image.Resampling, recipe.interpolation.upper())))
    left, top = (
        round((long - short) / 2) if long >= short else -((short - long) // 2)
        for long, short in zip((columns, down), recipe.size[::-1], strict=True)
    )
    out = np.empty((*recipe.size, 3), np.uint8)
    for y in range(recipe.size[0]):
        for x in range(recipe.size[1]):
            inside = 0 <= y + top < down and 0 <= x + left < columns
            out[y, x] = resized[y + top, x + left] if inside else [round(255 * value) for value in recipe.mean]
    return out


# -- a definition of our own -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_data_has_a_definition_that_moves_with_no_library(mode: str, interpolation: str) -> None:
    for size in INPUTS:
        for crop in (0.875, 0.9, 1.0):
            recipe = Preprocess(size=size, crop=crop, mode=mode, interpolation=interpolation)
            for photo in (photograph(*item) for item in SIZES):
                assert np.array_equal(np.asarray(recipe.resize_and_crop(photo)[0]), slowly(recipe, photo)), (
                    size,
                    crop,
                    photo.size,
                )


# -- timm's --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop", [0.875, 0.9, 1.0])
@pytest.mark.parametrize("size", INPUTS)
def test_timms_configuration_makes_timms_pixels(mode: str, crop: float, size: tuple[int, int]) -> None:
    """The installed timm's own transform, whatever it does to an input that is not square."""
    asked = config(input_size=(3, *size), crop_mode=mode, crop_pct=crop)
    transform, recipe = create_transform(**asked, is_training=False), as_preprocess(asked)
    for width, height in SIZES:
        if (
            mode == "border"
            and min(round(side * min(size) / crop / max(width, height)) for side in (width, height)) < 1
        ):
            continue  # so thin that timm itself would resize it to nothing
        photo = photograph(width, height)
        tensor, seen, box = recipe.inputs(photo)
        assert tensor.equal(transform(photo)), (width, height)
        assert recipe.to_tensor(seen).equal(tensor)
        assert seen.size == (size[1], size[0])
        assert box == recipe.resize_and_crop(photo)[1]


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(40, 40), (40, 56)])
def test_interpolations_and_colours(interpolation: str, mode: str, size: tuple[int, int]) -> None:
    asked = config(input_size=(3, *size), crop_mode=mode, interpolation=interpolation, crop_pct=0.95)
    asked |= {"mean": (0.1, 0.5, 0.9), "std": (0.5, 0.25, 0.7)}
    photo, transform = photograph(90, 70), create_transform(**asked, is_training=False)
    assert as_preprocess(asked).inputs(photo)[0].equal(transform(photo))


@pytest.mark.parametrize("size", [64, (48, 80)])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_base_patch16_siglip_224"])
def test_a_views_preprocess_is_its_models(name: str, size: Any) -> None:
    model = timm.create_model(name, img_size=size, embed_dim=24, num_heads=3, depth=1, num_classes=5)
    sides = (size, size) if isinstance(size, int) else size
    transform = create_transform(**{**resolve_model_data_config(model), "input_size": (3, *sides)}, is_training=False)
    recipe = vt.wrap(model).preprocess
    for photo in (photograph(*item) for item in SIZES):
        assert recipe.inputs(photo)[0].equal(transform(photo))


def test_a_networks_preprocess_is_its_models() -> None:
    model = timm.create_model("resnet10t", num_classes=5)
    model.image_size = (64, 96)
    transform = create_transform(**{**resolve_model_data_config(model), "input_size": (3, 64, 96)}, is_training=False)
    photo = photograph(123, 80)
    assert vt.wrap(model).preprocess.inputs(photo)[0].equal(transform(photo))


# -- versions of a library that do other than they are asked --------------------------------------------


def test_a_filter_that_a_library_takes_instead_is_named() -> None:
    """timm before 1.0.21 made rectangular crops with a bilinear filter, whichever was asked for."""
    asked = Preprocess(size=(40, 56), mean=(0.5,) * 3, std=(0.5,) * 3, crop=1.0)
    steps = [ResizeKeepRatio((40, 56), interpolation="bilinear"), transforms.CenterCrop((40, 56))]
    transform = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    recipe = match(transform, asked)
    assert recipe == replace(asked, interpolation="bilinear")
    assert recipe.inputs(photograph(97, 61))[0].equal(transform(photograph(97, 61)))


def rounded(photo: Image.Image, long: Callable[[float], int], left: Callable[[float], int]) -> torch.Tensor:
    """The centre crop of 56 out of 64 pixels, as libraries have it: what is no whole pixel is rounded somehow."""
    scale = 64 / min(photo.size)
    resized = photo.resize(tuple(64 if side == min(photo.size) else long(side * scale) for side in photo.size), 3)
    columns, down = (left((side - 56) / 2) for side in resized.size)
    return transforms.functional.to_tensor(resized.crop((columns, down, columns + 56, down + 56)))


def half_up(value: float) -> int:
    return math.floor(value + 0.5)


@pytest.mark.parametrize("left", [round, math.floor, math.ceil, half_up])
@pytest.mark.parametrize("long", [int, round, math.ceil])
def test_rounding_of_another_kind_is_noticed(long: Callable[[float], int], left: Callable[[float], int]) -> None:
    """Most pictures do not show it: a side cut at a fraction of a pixel, half a pixel beside the crop."""
    data = Preprocess(size=(56, 56), mean=(0.0,) * 3, std=(1.0,) * 3, crop=0.875)
    recipe = match(partial(rounded, long=long, left=left), data)
    assert (recipe == data) == (long is int and left is round)
    for size in ((61, 47), (47, 61), (53, 52)):
        assert recipe.inputs(photograph(*size))[0].equal(rounded(photograph(*size), long, left))


def shifted(photo: Image.Image, by: int) -> torch.Tensor:
    """The centre crop of 40 out of 50 pixels, but some pixels to the right of the centre."""
    resized = transforms.functional.resize(photo, 50, transforms.InterpolationMode.BICUBIC)
    left, top = round((resized.width - 40) / 2) + by, round((resized.height - 40) / 2)
    return transforms.functional.to_tensor(resized.crop((left, top, left + 40, top + 40)))


@pytest.mark.parametrize(("by", "mode"), [(0, "center"), (1, "center"), (10, "own")])
def test_another_crop_than_expected_is_used_as_it_is(by: int, mode: str) -> None:
    """The pixels are those of the transform, and so is their place: not those of data that should have described it."""
    asked = Preprocess(size=(40, 40), mean=(0.0,) * 3, std=(1.0,) * 3, crop=0.8)
    recipe = match(partial(shifted, by=by), asked)
    assert (recipe == asked) == (by == 0)
    assert isinstance(recipe, Transform) == (by != 0)
    assert recipe.mode == mode
    for width, height in ((100, 70), (333, 500)):
        tensor, seen, box = recipe.inputs(photograph(width, height))
        assert tensor.equal(shifted(photograph(width, height), by))
        assert recipe.to_tensor(seen).equal(tensor)
        left, top, right, bottom = asked.region(width, height)
        step = (right - left) / 40
        assert box == pytest.approx((left + by * step, top, right + by * step, bottom), abs=0.1 * step)


# -- geometry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "photo", "box"),
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
def test_boxes_worked_out_on_paper(recipe: Preprocess, photo: tuple[int, int], box: tuple[float, ...]) -> None:
    assert recipe.resize_and_crop(Image.new("RGB", photo))[1] == pytest.approx(box)


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
    recipe = Preprocess(size=size, mode=mode, crop=0.9, mean=(0.0, 0.0, 0.0), interpolation="bilinear")
    seen, (x0, y0, x1, y1) = recipe.resize_and_crop(Image.fromarray(pixels))
    light = np.asarray(seen, np.float64)[..., 0] / 255
    columns, down = (x1 - x0) / size[1], (y1 - y0) / size[0]
    x = x0 + columns * np.average(np.arange(size[1]) + 0.5, weights=light.sum(axis=0))
    y = y0 + down * np.average(np.arange(size[0]) + 0.5, weights=light.sum(axis=1))
    assert (x, y) == pytest.approx((left + block / 2, top + block / 2), abs=0.25)
    assert light.sum() * columns * down == pytest.approx(block**2, rel=0.01)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("mode", ["center", "squash", "border"])
def test_a_measured_place_is_that_of_the_formula(mode: str, interpolation: str) -> None:
    """To a tenth of a pixel of the input, but for the nearest filter, which takes half a pixel for a whole one."""
    for size in ((64, 64), (48, 80)):
        data = Preprocess(size=size, mode=mode, crop=0.9, interpolation=interpolation)
        function = create_transform(
            (3, *size), is_training=False, crop_mode=mode, crop_pct=0.9, interpolation=interpolation
        )
        measured = Transform(function)
        assert measured.mode == "own"
        for width, height in ((300, 200), (200, 300), (97, 61), (1200, 900), (400, 100), (20, 24)):
            box, message = measured.region(width, height), data.region(width, height)
            assert box is not None
            for index, side in enumerate((*size[::-1], *size[::-1])):
                step = (message[index % 2 + 2] - message[index % 2]) / side  # of one pixel of the input
                within = max(step, 1) if interpolation == "nearest" else 0.1 * max(step, 1)
                assert box[index] == pytest.approx(message[index], abs=within), (size, width, height)


BENT: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": lambda photo: photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "upside down": lambda photo: photo.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    "on its side": lambda photo: photo.transpose(Image.Transpose.ROTATE_90),
    "turned": lambda photo: photo.rotate(8),
    "slanted": lambda photo: photo.transform(photo.size, Image.Transform.AFFINE, (1, 0.1, 0, 0, 1, 0)),
    "shrunk to nothing": lambda photo: photo.resize((1, 1)),
    "to what is light": lambda photo: photo.crop(photo.convert("L").point(lambda v: 255 * (v > 128)).getbbox()),
}


@pytest.mark.parametrize("change", BENT)
def test_what_is_no_plain_crop_has_no_place(change: str) -> None:
    """Rather no place than a wrong one."""
    recipe = Transform(lambda photo: transforms.functional.to_tensor(BENT[change](photo).resize((48, 40))))
    assert recipe.region(200, 150) is None
    assert recipe.resize_and_crop(photograph(200, 150))[1] == (0, 0, 200, 150)


@pytest.mark.parametrize("colours", ["grey", "swapped", "dim", "coarse"])
def test_colours_do_not_move_a_crop(colours: str) -> None:
    def function(photo: Image.Image) -> torch.Tensor:
        seen = photo.crop((20, 10, 120, 90)).resize((50, 40))
        array = np.asarray(seen.convert("L").convert("RGB") if colours == "grey" else seen, np.float32) / 255
        array = array[..., ::-1] if colours == "swapped" else array * 0.6 + 0.1 if colours == "dim" else array
        array = (array * 128).round() / 128 if colours == "coarse" else array  # something is lost
        return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))

    assert Transform(function).region(160, 130) == pytest.approx((20, 10, 120, 90), abs=0.5)


def test_a_photograph_too_small_to_measure_has_no_place() -> None:
    recipe = Transform(lambda photo: transforms.functional.to_tensor(photo.resize((48, 40))))
    assert recipe.region(5, 300) is None
    assert recipe.inputs(photograph(1, 1))[2] is None


def test_border_fills_with_the_mean_colour() -> None:
    recipe = Preprocess(size=(50, 50), crop=1.0, mode="border", mean=(0.2, 0.4, 0.6))
    seen, _ = recipe.resize_and_crop(Image.new("RGB", (100, 40), "white"))
    assert seen.getpixel((25, 2)) == (51, 102, 153)
    assert seen.getpixel((25, 25)) == (255, 255, 255)


# -- and back ------------------------------------------------------------------------------------------


def test_a_tensor_gives_its_picture_again() -> None:
    recipe = Preprocess(size=(48, 40))
    seen, _ = recipe.resize_and_crop(photograph(90, 70))
    assert recipe.to_image(recipe.to_tensor(seen)).tobytes() == seen.tobytes()
    far = recipe.to_image(torch.tensor([-100.0, 0.0, 100.0]).view(3, 1, 1).expand(3, 2, 2).double())
    assert far.getpixel((0, 0)) == (0, round(0.456 * 255), 255)


def test_other_modes_are_brought_to_rgb() -> None:
    recipe, grey = Preprocess(size=(8, 8)), photograph(20, 20).convert("L")
    assert recipe.resize_and_crop(grey)[0].tobytes() == recipe.resize_and_crop(grey.convert("RGB"))[0].tobytes()
    assert recipe.to_tensor(grey.resize((8, 8))).shape == (3, 8, 8)


def test_refusals() -> None:
    with pytest.raises(ModelError, match=r"'wobbly'.*bicubic"):
        Preprocess(interpolation="wobbly")
    with pytest.raises(ModelError, match=r"'middle'.*center, squash, border"):
        Preprocess(mode="middle")
    with pytest.raises(ImageError, match=r"1 x 4000 .*long and thin"):
        Preprocess().resize_and_crop(Image.new("RGB", (1, 4000)))
    with pytest.raises(ImageError, match="0 x 5"):
        Preprocess().resize_and_crop(Image.new("RGB", (0, 5)))
    squashed, _ = replace(Preprocess(), mode="squash").resize_and_crop(Image.new("RGB", (1, 4000)))
    assert squashed.size == (224, 224)
