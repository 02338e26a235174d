"""Preprocessing as people have it: what becomes data is the same transform, what cannot is used as it is."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torchvision import transforms
from torchvision.models import Swin_V2_T_Weights, ViT_B_16_Weights, ViT_L_16_Weights
from torchvision.transforms import v2

import vitreous as vt
from families import FAMILIES
from vitreous.errors import ImageError, ModelError, VitreousWarning
from vitreous.models.preprocess import Transform, as_preprocess
from zoo import EVERY

NORMAL = transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
SIZES = [(97, 61), (61, 97), (64, 64), (640, 481)]


def photograph(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


DATA: dict[str, Callable[[Image.Image], Any]] = {
    "timm, centre": create_transform((3, 48, 48), is_training=False, interpolation="bicubic", crop_pct=0.9),
    "timm, squash": create_transform((3, 48, 48), is_training=False, crop_mode="squash", crop_pct=0.9),
    "resize and crop": transforms.Compose(
        [transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor(), NORMAL]
    ),
    "both sides": transforms.Compose([transforms.Resize((40, 56)), transforms.ToTensor(), NORMAL]),
    "no colours": transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()]),
    "nested": transforms.Compose(
        [transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64)]), transforms.ToTensor(), NORMAL]
    ),
    "version 2": v2.Compose(
        [v2.Resize(72, v2.InterpolationMode.BICUBIC), v2.CenterCrop(64), v2.ToImage(), v2.ToDtype(torch.float32, True)]
    ),
    "torchvision's ViT": ViT_B_16_Weights.DEFAULT.transforms(),
    "torchvision's Swin": Swin_V2_T_Weights.DEFAULT.transforms(),
    "torchvision's large ViT": ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1.transforms(),
}


@pytest.mark.parametrize("form", DATA)
def test_what_can_be_data_becomes_data(form: str) -> None:
    settings = as_preprocess(DATA[form])
    assert type(settings) is vt.Preprocess
    for size in SIZES:
        photo = photograph(*size)
        torch.testing.assert_close(settings.inputs(photo)[0], DATA[form](photo), rtol=0, atol=1e-5)


CALLABLES: dict[str, Callable[[Image.Image], Any]] = {
    "border": create_transform((3, 48, 48), is_training=False, crop_mode="border", crop_pct=0.9),
    "resized as a tensor": v2.Compose(
        [v2.ToImage(), v2.Resize(72), v2.CenterCrop(64), v2.ToDtype(torch.float32, True), v2.Normalize([0.5], [0.5])]
    ),
    "one corner": lambda photo: NORMAL(transforms.functional.to_tensor(photo.resize((80, 80)).crop((0, 0, 64, 64)))),
    "a table of arrays": lambda photo: {
        "pixel_values": [np.asarray(photo.resize((32, 32)), np.float32).transpose(2, 0, 1) / 127.5 - 1]
    },
}


PLACES = {  # of 97 x 61 pixels
    "border": (3.66, -12.94, 91.51, 75.79),  # to 53 x 33, cut from 2 and -7
    "resized as a tensor": (21.27, 3.39, 75.73, 57.61),  # to 114 x 72, cut from 25 and 4
    "one corner": (0, 0, 77.6, 48.8),
    "a table of arrays": (0, 0, 97, 61),
}


@pytest.mark.parametrize("form", CALLABLES)
def test_any_other_callable_is_used_as_it_is(form: str) -> None:
    settings = as_preprocess(CALLABLES[form])
    assert isinstance(settings, Transform)
    assert settings.mode == ("center" if form == "resized as a tensor" else "own")
    photo = photograph(97, 61)
    tensor, seen, box = settings.inputs(photo)
    built = CALLABLES[form](photo)
    built = torch.from_numpy(built["pixel_values"][0]) if isinstance(built, dict) else built
    assert tensor.equal(torch.Tensor(built))
    assert box == pytest.approx(PLACES[form], abs=0.1)
    torch.testing.assert_close(settings.to_tensor(seen), tensor, rtol=0, atol=0.02)  # up to bytes


def test_size_and_colours_of_a_callable_are_found() -> None:
    settings = as_preprocess(CALLABLES["one corner"])
    assert settings.size == (64, 64)
    assert settings.mean == pytest.approx((0.5, 0.4, 0.3), abs=1e-5)
    assert settings.std == pytest.approx((0.2, 0.25, 0.3), abs=1e-5)
    assert repr(settings) == repr(as_preprocess(CALLABLES["one corner"]))  # results are known by it
    other = as_preprocess(lambda photo: NORMAL(transforms.functional.to_tensor(photo.resize((64, 64)))))
    assert other != settings
    assert repr(other) != repr(settings)


def test_timms_configuration() -> None:
    config = resolve_model_data_config(
        {"input_size": (3, 48, 48), "crop_pct": 0.9, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    )
    settings, by_timm = as_preprocess(config), create_transform(**config, is_training=False)
    for size in SIZES:
        photo = photograph(*size)
        assert settings.inputs(photo)[0].equal(by_timm(photo))


def test_an_image_processor() -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.ViTImageProcessor(size={"height": 40, "width": 40}, image_mean=[0.1, 0.2, 0.3])
    settings = as_preprocess(processor)
    assert (settings.size, settings.mean, settings.mode) == ((40, 40), (0.1, 0.2, 0.3), "squash")


def corner(photo: Image.Image) -> torch.Tensor:
    return NORMAL(transforms.functional.to_tensor(photo.crop((0, 0, 32, 32))))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["vit", "tv_vit", "tv_swin", "swin"] + [n for n in ("hf_vit",) if n in EVERY])
def test_explained_through_a_callable(tmp_path: Path, name: str) -> None:
    """The model gets what the callable makes; the map is drawn on that, and on the photograph where it was cut out."""
    photo = photograph(64, 48)
    photo.save(tmp_path / "a.png")
    model = vt.wrap(EVERY[name](), preprocess=corner)
    by_path, by_tensor = vt.explain(model, tmp_path / "a.png", "ixg"), vt.explain(model, corner(photo), "ixg")
    assert by_path.map.equal(by_tensor.map)
    assert by_path.box == pytest.approx((0, 0, 32, 32), abs=0.1)
    assert by_path.image.tobytes() == photo.crop((0, 0, 32, 32)).tobytes()
    assert by_path.overlay().size == (32, 32)
    assert by_path.overlay(original=True).size == (64, 48)
    by_path.save(tmp_path / "out")
    assert (tmp_path / "out" / "overlay.png").is_file()
    assert vt.check(by_path).tests


def test_without_a_known_place_nothing_is_drawn_on_the_photograph() -> None:
    model = vt.wrap(FAMILIES["vit"](), preprocess=lambda photo: corner(photo).flip(2))
    e = vt.explain(model, photograph(64, 48), "ixg")
    assert e.box is None
    with pytest.raises(ImageError, match="its place in it is not known"):
        e.overlay(original=True)


def test_a_transform_is_not_changed_by_its_fields() -> None:
    """It would go on making what its function makes, and say otherwise."""
    settings = as_preprocess(corner)
    with pytest.raises(ModelError, match="a Transform does what its function does"):
        replace(settings, mean=(0.0, 0.0, 0.0))


def test_a_transform_travels() -> None:
    """To another process, with all that it knows of itself."""
    settings = as_preprocess(corner)
    for other in (pickle.loads(pickle.dumps(settings)), copy.deepcopy(settings)):
        assert other == settings
        assert repr(other) == repr(settings)
        assert other.inputs(photograph(64, 48))[0].equal(corner(photograph(64, 48)))
    assert json.loads(json.dumps(settings.to_json()))["digest"] == settings.digest


def test_margins_are_no_part_of_the_colours() -> None:
    """A small picture in a large frame: most of the input is neither black nor white."""
    padded = transforms.Compose([transforms.Resize((20, 20)), transforms.ToTensor(), NORMAL, transforms.Pad(22)])
    settings = Transform(padded)
    assert settings.mean == pytest.approx((0.5, 0.4, 0.3), abs=1e-5)
    assert settings.std == pytest.approx((0.2, 0.25, 0.3), abs=1e-5)
    assert settings.region(200, 100) == pytest.approx((-220, -110, 420, 210), abs=1)


def test_a_random_transform_has_no_place() -> None:
    flipping = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = [Transform(flipping) for _ in range(8)]
    random = [settings for settings in built if settings.is_random]  # half of them are caught by two calls
    assert random
    assert all(settings.region(100, 80) is None for settings in random)


def test_a_failure_on_one_photograph_names_it() -> None:
    def picky(photo: Image.Image) -> torch.Tensor:
        return corner(photo) if photo.width > 60 else torch.zeros(3, 0, 0) / 0 @ torch.zeros(7)

    settings = Transform(picky)
    with pytest.raises(ImageError, match="preprocess fails on a picture of 50 x 40 pixels"):
        settings.inputs(photograph(50, 40))


def test_load_takes_it_too() -> None:
    options = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    value = {"input_size": (3, 32, 32), "crop_pct": 1.0}
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, preprocess=value, **options)
    assert (model.preprocess.size, model.preprocess.crop) == ((32, 32), 1.0)


def test_a_random_transform_is_warned_about() -> None:
    training = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor(), NORMAL])
    with pytest.warns(VitreousWarning, match="another input of the same picture each time"):
        assert as_preprocess(training).size == (32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (*DATA.values(), *CALLABLES.values()):
            as_preprocess(function)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, r"preprocess: a int is none; give a vt\.Preprocess"),
        ({"size": 224}, r"preprocess: \['size'\] holds none of crop_mode, crop_pct, input_size"),
        ({"mean": 0.5}, r"preprocess: the configuration cannot be read"),
        (lambda photo: photo, r"makes a Image, not a tensor \[3, H, W\]"),
        (transforms.PILToTensor(), r"makes \[3, 300, 431\] of torch\.uint8, not floats"),
        (transforms.ToTensor(), r"inputs of several sizes, .* resize and crop to one"),
        (transforms.Compose([transforms.Resize(40), transforms.ToTensor()]), "several sizes"),
        (lambda photo: torch.zeros(3, 8, 8), "no brighter input of a white picture"),
        (lambda photo: 1 / 0, "fails on a PIL image: division by zero"),
    ],
)
def test_refusals(value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        vt.wrap(FAMILIES["vit"](), preprocess=value)
    assert "\n" not in str(caught.value)


def test_a_callable_that_breaks_its_size_later() -> None:
    def fickle(photo: Image.Image) -> torch.Tensor:
        side = 32 if min(photo.size) > 100 else 16
        return transforms.functional.to_tensor(photo.resize((side, side)))

    model = vt.wrap(FAMILIES["vit"](), preprocess=fickle)
    with pytest.raises(ImageError, match=r"makes \[3, 16, 16\] of a picture of 64 x 48 pixels, but \[3, 32, 32\]"):
        vt.explain(model, photograph(64, 48), "ixg")
