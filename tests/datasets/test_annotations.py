"""What is known about pictures: regions of any kind, trimaps, part maps, and their way into the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from families import FAMILIES
from vitreous.datasets import LoadedImage, load_images
from vitreous.datasets.annotations import photo_size
from vitreous.errors import ImageError


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


def photo(model: vt.VisionModel, height: int = 60, width: int = 100) -> LoadedImage:
    """A photograph that is white in rows 20..39 and columns 40..69."""
    visible = np.zeros((height, width, 3), np.uint8)
    visible[20:40, 40:70] = 255
    return next(iter(load_images(Image.fromarray(visible), model)))


def white(picture: LoadedImage) -> Any:
    return np.asarray(picture.image)[..., 0] > 127


def square(value: int = 1, other: int = 0, height: int = 60, width: int = 100) -> Any:
    numbers = np.full((height, width), other)
    numbers[20:40, 40:70] = value
    return numbers


# -- regions -----------------------------------------------------------------------------------------------


def test_region_is_the_mask_else_the_boxes_else_the_parts() -> None:
    mask, left, right = (np.zeros((8, 8), bool) for _ in range(3))
    mask[1, 1] = left[2, 2] = right[3, 3] = True
    every = vt.Annotation(mask, ((0, 0, 2, 1),), {"left": left, "right": right})
    assert np.argwhere(every.region()).tolist() == [[1, 1]]
    assert np.argwhere(every.region("boxes")).tolist() == [[0, 0], [0, 1]]
    assert np.argwhere(every.region("parts")).tolist() == [[2, 2], [3, 3]]
    assert np.argwhere(vt.Annotation(boxes=((0, 0, 2, 1),)).region(size=(8, 8))).tolist() == [[0, 0], [0, 1]]
    assert np.argwhere(vt.Annotation(parts={"left": left}).region()).tolist() == [[2, 2]]


def test_a_pixel_is_in_a_box_if_its_centre_is() -> None:
    truth = vt.Annotation(boxes=((1.5, 0.4, 3.49, 1.6), (0, 3, 0.2, 4)))
    actual = truth.region(size=(4, 5))
    for row in range(4):
        for column in range(5):
            assert actual[row, column] == (1.5 <= column + 0.5 < 3.49 and 0.4 <= row + 0.5 < 1.6)


@pytest.mark.parametrize(
    ("truth", "has"),
    [
        (vt.Annotation(), ()),
        (vt.Annotation(np.zeros((2, 2))), ("mask", "region")),
        (vt.Annotation(boxes=((0, 0, 1, 1),)), ("boxes", "region")),
        (vt.Annotation(parts={"a": np.ones((2, 2))}), ("parts", "region")),
        (vt.Annotation(ignore=np.ones((2, 2))), ()),
    ],
)
def test_what_is_there(truth: vt.Annotation, has: tuple[str, ...]) -> None:
    assert tuple(kind for kind in ("mask", "boxes", "parts", "region") if truth.has(kind)) == has


def test_no_region() -> None:
    with pytest.raises(ImageError, match="no mask, boxes or parts are known"):
        vt.Annotation().region()
    with pytest.raises(ImageError, match="no boxes"):
        vt.Annotation(np.ones((2, 2))).region("boxes")
    with pytest.raises(ImageError, match="no size of its own"):
        vt.Annotation(boxes=((0, 0, 1, 1),)).region()
    with pytest.raises(vt.VitreousError, match="kind='nose' is not one of any, mask, boxes, parts"):
        vt.Annotation(np.ones((2, 2))).region("nose")


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (
            vt.Annotation(np.ones((2, 2)), ignore=np.ones((2, 3))),
            r"the ignore of it is \[2, 3\], the model sees \[2, 2\]",
        ),
        (vt.Annotation(parts={"wing": np.ones(4)}), r"the wing of it is \[4\]"),
        (
            vt.Annotation(boxes=((3, 0, 1, 1),)),
            r"a box of it is \(3, 0, 1, 1\); it must be \(left, top, right, bottom\)",
        ),
        (vt.Annotation(boxes=((0, 0, 1),)), "a box of it"),  # type: ignore[arg-type]
        (vt.Annotation(boxes=((0, 0, float("nan"), 1),)), "a box of it"),
    ],
)
def test_what_makes_no_sense_is_refused(truth: vt.Annotation, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        truth.check("it", (2, 2))


# -- photographs -------------------------------------------------------------------------------------------


def test_a_trimap_follows_the_crop(model: vt.VisionModel) -> None:
    picture = photo(model)
    numbers = square(1, 2)
    numbers[18:20, 38:72] = 3
    truth = vt.Annotation.of_trimap(picture, numbers)
    assert (truth.mask == white(picture)).mean() > 0.97
    assert truth.ignore is not None
    assert truth.ignore.any()
    assert not (truth.ignore & truth.mask).any()
    ignored = np.flatnonzero(truth.ignore.any(axis=1))
    assert ignored.max() < np.flatnonzero(truth.mask.any(axis=1)).min(), "the border lies above"
    turned = vt.Annotation.of_trimap(picture, numbers, inside=2, outside=1)
    assert (turned.mask == ~(truth.mask | truth.ignore)).all()


def test_part_maps(model: vt.VisionModel) -> None:
    picture = photo(model)
    numbers = square(7)
    numbers[20:40, 55:70] = 9
    truth = vt.Annotation.of_parts(picture, numbers, {"left": 7, "right": 9, "beak": 4}, ignore=0)
    assert list(truth.parts) == ["left", "right", "beak"]
    assert ((truth.parts["left"] | truth.parts["right"]) == truth.region()).all()
    assert not truth.parts["beak"].any()
    assert truth.ignore is not None
    assert (truth.ignore == ~truth.region()).all()
    assert (truth.region() == white(picture)).mean() > 0.97


def test_boxes_that_the_crop_leaves_out_are_known_to_be_absent(model: vt.VisionModel) -> None:
    picture = photo(model)
    gone = vt.Annotation.of_photo(picture, boxes=[(0, 0, 4, 4)])
    assert gone.boxes == ()
    assert gone.has("region")
    assert not gone.region().any()
    assert not vt.Annotation.of_photo(picture).has("region")
    assert vt.Annotation.of_photo(picture, boxes=[]).has("region")


def test_padding_is_no_object(model: vt.VisionModel) -> None:
    """Where the photograph is made smaller than the input, what is put around it is outside."""
    from dataclasses import replace

    model.preprocess, before = replace(model.preprocess, mode="border", crop=1.0), model.preprocess
    try:
        picture = photo(model, 60, 100)
    finally:
        model.preprocess = before
    assert picture.box is not None
    assert picture.box[1] < 0
    truth = vt.Annotation.of_photo(picture, np.ones((60, 100)))
    rows = np.flatnonzero(truth.mask.all(axis=1))
    assert (len(rows), truth.mask.sum()) == (19, 19 * 32)
    trimap = vt.Annotation.of_trimap(picture, np.ones((60, 100), int))
    assert not trimap.ignore.any()
    assert (trimap.mask == truth.mask).all()


def test_upright_photographs(model: vt.VisionModel, tmp_path: Path) -> None:
    """A mask is as large as the photograph that is seen, whichever way the camera was held."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (100, 60)).save(tmp_path / "turned.jpg", exif=exif)
    (picture,) = load_images(tmp_path / "turned.jpg", model)
    assert photo_size(picture) == (60, 100)
    assert vt.Annotation.of_photo(picture, np.ones((100, 60))).mask.all()
    with pytest.raises(ImageError, match=r"the mask of turned.jpg is \[60, 100\], the photograph is \[100, 60\]"):
        vt.Annotation.of_photo(picture, np.ones((60, 100)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: vt.Annotation.of_photo(p, np.ones((6, 10))), r"the mask of image is \[6, 10\], the photograph"),
        (lambda p: vt.Annotation.of_photo(p, ignore=np.ones(3)), r"the ignore of image is \[3\]"),
        (lambda p: vt.Annotation.of_photo(p, boxes=[(1, 2, 3)]), "a box of image"),
        (lambda p: vt.Annotation.of_photo(p, boxes=["abcd"]), "a box of image is 'abcd'"),
        (
            lambda p: vt.Annotation.of_trimap(p, np.ones((60, 100))),
            "the trimap of image holds float64, not whole numbers",
        ),
        (lambda p: vt.Annotation.of_trimap(p, np.ones((60, 100), int), 1, 1), "both inside and outside"),
        (lambda p: vt.Annotation.of_parts(p, np.ones((60, 100), int), {}), "have no names"),
        (
            lambda p: vt.Annotation.of_parts(p, np.ones((60, 100), int), {"a": 1}, 1),
            "both as a part and as what to ignore",
        ),
    ],
)
def test_bad_photographs(model: vt.VisionModel, make: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        make(photo(model))


def test_tensors_are_no_photographs(model: vt.VisionModel) -> None:
    import torch

    (picture,) = load_images(torch.zeros(3, 32, 32), model)
    for make in (
        lambda: vt.Annotation.of_photo(picture, np.ones((32, 32))),
        lambda: vt.Annotation.of_photo(picture, boxes=[(0, 0, 1, 1)]),
        lambda: vt.Annotation.of_trimap(picture, np.ones((32, 32), int)),
        lambda: photo_size(picture),
    ):
        with pytest.raises(ImageError, match="input-0 is no photograph"):
            make()
