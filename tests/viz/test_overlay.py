"""Up-sampling against torch, blending, and the place of a map on the original photograph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.viz.colormap import SEQUENTIAL, Scale, colourise
from vitreous.viz.overlays import heatmap, on_photo, overlay, upsample

SIZES = [
    ((14, 14), (224, 224)),
    ((14, 14), (225, 301)),
    ((7, 5), (64, 93)),
    ((1, 1), (9, 4)),
    ((3, 8), (8, 3)),
]


def photograph(width: int = 64, height: int = 48) -> Image.Image:
    return Image.fromarray(np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8))


def by_torch(map: np.ndarray, size: tuple[int, int], mode: str, **options: bool) -> np.ndarray:
    tensor = torch.from_numpy(map).double()[None, None]
    return torch.nn.functional.interpolate(tensor, size=(size[1], size[0]), mode=mode, **options)[0, 0].numpy()


@pytest.mark.parametrize(("shape", "size"), SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bilinear_is_torch_interpolate(shape: tuple[int, int], size: tuple[int, int], dtype: type) -> None:
    map = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    result = upsample(map, size)
    assert result.shape == (size[1], size[0])
    np.testing.assert_allclose(result, by_torch(map, size, "bilinear", align_corners=False), atol=1e-5)


@pytest.mark.parametrize(("shape", "size"), SIZES)
def test_nearest_is_torch_nearest_exact(shape: tuple[int, int], size: tuple[int, int]) -> None:
    map = np.random.default_rng(0).standard_normal(shape)
    np.testing.assert_array_equal(upsample(map, size, "nearest"), by_torch(map, size, "nearest-exact"))


def test_shrinking_averages() -> None:
    map = np.random.default_rng(0).standard_normal((64, 48))
    expected = by_torch(map, (12, 16), "bilinear", align_corners=False, antialias=True)
    np.testing.assert_allclose(upsample(map, (12, 16)), expected, atol=1e-5)


@pytest.mark.parametrize("factor", [1e-60, 1e60])
def test_precision_is_relative_to_the_map(factor: float) -> None:
    map = np.random.default_rng(0).standard_normal((6, 6))
    np.testing.assert_allclose(upsample(map * factor, (30, 30)) / factor, upsample(map, (30, 30)), atol=1e-6)


def test_non_finite_cells_stay_in_their_place() -> None:
    map = np.full((4, 4), 2.0)
    map[1, 2] = np.nan
    result = upsample(map, (16, 16))
    missing = np.zeros((16, 16), bool)
    missing[4:8, 8:12] = True
    np.testing.assert_array_equal(np.isnan(result), missing)
    np.testing.assert_allclose(result[~missing], 2.0)
    assert np.isnan(upsample(np.full((2, 2), np.inf), (5, 5))).all()


def test_heatmap_interpolates_values_not_colours() -> None:
    map = np.array([[-1.0, 1.0]])
    scale = Scale(1.0, True)
    picture = heatmap(map, scale, (8, 4))
    assert picture.size == (8, 4)
    expected = colourise(by_torch(map, (8, 4), "bilinear", align_corners=False), scale)
    np.testing.assert_array_equal(np.asarray(picture), expected)


def test_overlay_keeps_size_and_mode() -> None:
    for mode in ("RGB", "L", "RGBA"):
        picture = overlay(photograph().convert(mode), np.eye(3), Scale(1.0, False))
        assert (picture.size, picture.mode) == ((64, 48), "RGB")


def test_alpha_zero_is_the_photograph_and_alpha_one_the_colour() -> None:
    photo, map = photograph(), np.random.default_rng(0).standard_normal((3, 4))
    for signed in (True, False):
        untouched = overlay(photo, map, Scale(1.0, signed), alpha=0.0)
        np.testing.assert_array_equal(np.asarray(untouched), np.asarray(photo))
        full = overlay(photo, np.ones((3, 4)), Scale(1.0, signed), alpha=1.0)
        np.testing.assert_array_equal(
            np.asarray(full), np.asarray(heatmap(np.ones((1, 1)), Scale(1.0, signed), (64, 48)))
        )


def test_signed_overlay_shows_the_photograph_where_neutral() -> None:
    """Zero keeps light and shade exactly, only colour fades; the change grows with |value|."""
    grey = photograph().convert("L").convert("RGB")
    np.testing.assert_array_equal(np.asarray(overlay(grey, np.zeros((2, 2)), Scale(1.0, True))), np.asarray(grey))
    before = np.asarray(grey, float)
    for sign in (-1, 1):
        distance = [
            np.abs(np.asarray(overlay(grey, np.full((2, 2), sign * value), Scale(1.0, True)), float) - before).mean()
            for value in (0.0, 0.1, 0.3, 0.6, 1.0)
        ]
        assert distance == sorted(distance)
        assert distance[-1] > 40


def test_unsigned_overlay_dims_cold_and_lights_hot() -> None:
    photo = photograph()
    cold = np.asarray(overlay(photo, np.zeros((2, 2)), Scale(1.0, False)), float)
    hot = np.asarray(overlay(photo, np.ones((2, 2)), Scale(1.0, False)), float)
    original = np.asarray(photo, float)
    assert cold.mean() < 0.65 * original.mean()
    assert hot.mean() > original.mean()
    # a weighted sum with a grey: what is left of the photograph's colour is constant over the picture
    assert np.ptp(cold - cold.mean(axis=-1, keepdims=True), axis=(0, 1)).max() <= 2


def hottest(picture: Image.Image) -> tuple[float, float]:
    """Centre (x, y) of the pixels that have the strongest sequential colour."""
    near = np.abs(np.asarray(picture, int) - SEQUENTIAL[255].astype(int)).sum(axis=-1) <= 6
    assert near.any()
    rows, columns = np.nonzero(near)
    return float(columns.mean() + 0.5), float(rows.mean() + 0.5)


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 300, 200),
        (50, 0, 250, 200),
        (20.5, 33.25, 260.75, 120.5),
        (-40, -20, 340, 260),
        (100, 10, 140, 190),
    ],
)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_on_photo_puts_a_hot_cell_where_the_model_saw_it(box: tuple[float, float, float, float], mode: str) -> None:
    map = np.zeros((7, 10))
    row, column = 4, 3
    map[row, column] = 1.0
    photo = Image.new("RGB", (300, 200), (60, 90, 120))
    picture = on_photo(photo, map, box, Scale(0.7 if mode == "bilinear" else 1.0, False), alpha=1.0, mode=mode)
    assert picture.size == photo.size
    left, top, right, bottom = box
    x, y = left + (column + 0.5) * (right - left) / 10, top + (row + 0.5) * (bottom - top) / 7
    result = hottest(picture)
    assert result[0] == pytest.approx(x, abs=1.0)
    assert result[1] == pytest.approx(y, abs=1.0)


def test_on_photo_of_the_whole_photograph_is_the_overlay() -> None:
    photo, map = photograph(), np.random.default_rng(0).standard_normal((5, 7))
    scale = Scale.of([map])
    result = on_photo(photo, map, (0, 0, 64, 48), scale)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(overlay(photo, map, scale)))


def test_on_photo_of_an_inner_box_is_the_overlay_of_the_crop() -> None:
    photo, map = photograph(), np.random.default_rng(0).standard_normal((5, 7))
    scale = Scale.of([map])
    box = (10, 6, 50, 40)
    picture = on_photo(photo, map, box, scale)
    np.testing.assert_array_equal(np.asarray(picture.crop(box)), np.asarray(overlay(photo.crop(box), map, scale)))


def test_on_photo_of_a_fractional_box_samples_at_pixel_centres() -> None:
    """Against bilinear sampling written out: clamp the cell coordinate, mix the four neighbours."""
    map = np.random.default_rng(2).random((4, 6))
    left, top, right, bottom = box = (3.3, 2.6, 40.9, 33.2)
    scale = Scale(1.0, False)
    picture = np.asarray(on_photo(photograph(48, 36), map, box, scale, alpha=1.0), int)
    for x, y in [(3, 3), (4, 20), (22, 17), (40, 32), (30, 3)]:
        u = np.clip((x + 0.5 - left) / (right - left) * 6 - 0.5, 0, 5)
        v = np.clip((y + 0.5 - top) / (bottom - top) * 4 - 0.5, 0, 3)
        i, j = min(int(v), 2), min(int(u), 4)
        upper = map[i, j] * (1 - u + j) + map[i, j + 1] * (u - j)
        lower = map[i + 1, j] * (1 - u + j) + map[i + 1, j + 1] * (u - j)
        value = upper * (1 - v + i) + lower * (v - i)
        expected = overlay(photograph(48, 36).crop((x, y, x + 1, y + 1)), np.full((1, 1), value), scale, alpha=1.0)
        assert np.abs(picture[y, x] - np.asarray(expected, int)[0, 0]).max() <= 1


def test_on_photo_dims_the_outside_and_outlines_the_box() -> None:
    photo = Image.new("RGB", (100, 80), (200, 120, 40))
    picture = np.asarray(on_photo(photo, np.zeros((3, 3)), (20, 0, 70, 60), Scale(1.0, True)), int)
    outside = picture[70, 90]
    assert outside.sum() < 0.65 * (200 + 120 + 40), "dim"
    assert np.ptp(outside) < 0.3 * 160, "nearly grey"
    assert (picture[:60, 19] == 255).all(), "left edge of the box"
    assert (picture[:60, 70] == 255).all(), "right edge"
    assert (picture[60, 19:71] == 255).all(), "lower edge"
    assert not (picture[0, 25:65] == 255).all(axis=-1).any(), "no line along the border of the photograph"


def test_bad_input_names_itself() -> None:
    photo, scale = photograph(), Scale(1.0, False)
    with pytest.raises(ValueError, match=r"\[1, 3, 3\]"):
        upsample(np.ones((1, 3, 3)), (4, 4))
    with pytest.raises(ValueError, match="size"):
        upsample(np.ones((3, 3)), (0, 4))
    with pytest.raises(ValueError, match="'cubic'"):
        upsample(np.ones((3, 3)), (4, 4), "cubic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha"):
        overlay(photo, np.ones((3, 3)), scale, alpha=1.5)
    with pytest.raises(ValueError, match="left < right"):
        on_photo(photo, np.ones((3, 3)), (10, 0, 10, 20), scale)
    with pytest.raises(ValueError, match="covers no pixel of a photograph of 64 x 48"):
        on_photo(photo, np.ones((3, 3)), (70, 0, 90, 20), scale)
