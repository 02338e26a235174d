"""Colour maps and scales, against definitions written out here a second time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitreous.viz.colormap import COLOURS, DIVERGING, JET, SEQUENTIAL, Scale, colourise, from_oklab, to_oklab


def oklab(red: int, green: int, blue: int) -> tuple[float, float, float]:
    """OKLab of one 8-bit colour, in plain arithmetic."""
    r, g, b = (
        (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4) for v in (red / 255, green / 255, blue / 255)
    )
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    medium = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def table(colours: np.ndarray) -> np.ndarray:
    return np.array([oklab(*map(int, colour)) for colour in colours])


def test_oklab_published_values_and_round_trip() -> None:
    assert to_oklab(np.ones(3)) == pytest.approx([1, 0, 0], abs=1e-4)
    assert to_oklab(np.array([1.0, 0, 0])) == pytest.approx([0.628, 0.2249, 0.1258], abs=1e-3)
    colours = np.random.default_rng(0).random((50, 3))
    np.testing.assert_allclose(from_oklab(to_oklab(colours)), colours, atol=1e-5)


@pytest.mark.parametrize("name", ["sequential", "diverging", "jet"])
def test_tables_are_256_rgb_bytes(name: str) -> None:
    assert COLOURS[name].shape == (256, 3)
    assert COLOURS[name].dtype == np.uint8


def test_sequential_lightness_rises_evenly_from_dark_to_bright() -> None:
    lightness = table(SEQUENTIAL)[:, 0]
    assert (np.diff(lightness) > 0).all()
    assert lightness[0] < 0.2
    assert lightness[-1] > 0.9
    np.testing.assert_allclose(lightness, np.linspace(lightness[0], lightness[-1], 256), atol=0.005)


def test_diverging_is_neutral_at_zero_and_symmetric_about_it() -> None:
    lab = table(DIVERGING)
    chroma = np.hypot(lab[:, 1], lab[:, 2])
    assert len(set(DIVERGING[128].tolist())) == 1, "the centre is a grey"
    for step in range(128):
        cold, warm = lab[128 - step], lab[128 + step]
        assert cold[0] == pytest.approx(warm[0], abs=0.005), "same lightness either side"
        assert chroma[128 - step] == pytest.approx(chroma[128 + step], abs=0.01)
    assert (np.diff(lab[128:, 0]) < 0).all(), "darker and darker away from zero"
    assert (DIVERGING[:120, 2] > DIVERGING[:120, 0]).all(), "cold side is blue"
    assert (DIVERGING[136:, 0] > DIVERGING[136:, 2]).all(), "warm side is red"


def test_jet_ends_and_middle() -> None:
    assert JET[0].tolist() == [0, 0, 128]
    assert JET[255].tolist() == [128, 0, 0]
    assert JET[127][1] == 255


def test_limit_is_the_percentile_of_all_maps_together() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal((14, 14)), 10 * rng.standard_normal((7, 9)).astype(np.float32)
    everything = sorted([abs(float(v)) for v in first.ravel()] + [abs(float(v)) for v in second.ravel()])
    place = 0.95 * (len(everything) - 1)
    low = math.floor(place)
    expected = everything[low] + (place - low) * (everything[low + 1] - everything[low])
    scale = Scale.of([first, second], percentile=95)
    assert scale.limit == pytest.approx(expected)
    assert scale.signed
    assert scale.percentile == 95
    assert scale == Scale.of([second, first], percentile=95)


def test_limit_falls_back_to_maximum_then_to_one_and_says_so() -> None:
    sparse = np.zeros((20, 20))
    sparse[3, 4] = -0.25
    scale = Scale.of([sparse])
    assert (scale.limit, scale.signed, scale.percentile) == (0.25, True, 100.0)
    assert "maximum of |value| = 0.25" in scale.caption()
    for nothing in ([np.zeros((3, 3))], [], [np.full((2, 2), np.nan)]):
        zero = Scale.of(nothing)
        assert (zero.limit, zero.signed) == (1.0, False)
        assert "percentile" not in zero.caption()


def test_non_finite_values_do_not_count() -> None:
    map = np.array([[1.0, 2.0], [3.0, 4.0]])
    broken = np.concatenate([map, [[np.nan, -np.inf]]])
    assert Scale.of([broken]) == Scale.of([map])


def test_signed_follows_the_values_unless_given() -> None:
    assert not Scale.of([np.ones((2, 2))]).signed
    assert Scale.of([np.ones((2, 2)), -np.ones((2, 2))]).signed
    assert Scale.of([np.ones((2, 2))], signed=True).signed
    assert not Scale.of([-np.ones((2, 2))], signed=False).signed


def test_unit_clips() -> None:
    map = np.array([[-5.0, -1.0, 0.0, 1.0, 5.0, np.nan, np.inf]])
    np.testing.assert_array_equal(Scale(2.0, True).unit(map), [[-1, -0.5, 0, 0.5, 1, np.nan, np.nan]])
    np.testing.assert_array_equal(Scale(2.0, False).unit(map), [[0, 0, 0, 0.5, 1, np.nan, np.nan]])
    np.testing.assert_array_equal(Scale(3.0, False, low=-1.0).unit(map), [[0, 0, 0.25, 0.5, 1, np.nan, np.nan]])
    assert Scale(1e-300, True).unit(np.array([[1e300, -1e300]])).tolist() == [[1, -1]]


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (
            Scale(0.0123, True, 99.0),
            "diverging, zero-centred, clipped at the 99th percentile of |value| = 0.0123",
        ),
        (
            Scale(12345.0, False, 99.5),
            "sequential from 0, clipped at the 99.5th percentile of |value| = 1.23e+04",
        ),
        (Scale(1.0, False, 91.0), "sequential from 0, clipped at the 91st percentile of |value| = 1"),
        (Scale(1.0, False, 11.0), "sequential from 0, clipped at the 11th percentile of |value| = 1"),
        (
            Scale(0.5, False, 99.0, 0.3, 5.0),
            "sequential, shown from the 5th percentile = 0.3, clipped at the 99th percentile of value = 0.5",
        ),
        (Scale(0.5, True), "diverging, zero-centred, strongest colour at |value| = 0.5"),
    ],
)
def test_caption(scale: Scale, text: str) -> None:
    assert scale.caption() == text


def test_colourise_picks_the_right_entries() -> None:
    signed = colourise(np.array([[0.0, -7.0, 7.0, 1.0, np.nan, np.inf]]), Scale(2.0, True))[0]
    assert signed.dtype == np.uint8
    assert signed[0].tolist() == DIVERGING[128].tolist()
    assert signed[1].tolist() == DIVERGING[0].tolist() == DIVERGING[1].tolist()
    assert signed[2].tolist() == DIVERGING[255].tolist()
    assert signed[3].tolist() == DIVERGING[128 + 64].tolist()
    assert signed[4].tolist() == signed[5].tolist() == [128, 128, 128]

    reference = colourise(np.array([[0.0, 2.0, 9.0, -1.0]], np.float16), Scale(2.0, False))[0]
    assert reference.tolist() == SEQUENTIAL[[0, 255, 255, 0]].tolist()

    assert colourise(np.zeros((1, 1)), Scale(1.0, False), "diverging")[0, 0].tolist() == DIVERGING[128].tolist()
    jet = colourise(np.array([[-1.0, 1.0]]), Scale(1.0, True), "jet")[0]
    assert jet.tolist() == JET[[0, 255]].tolist()


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_bad_limit(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        Scale(limit, True)
    with pytest.raises(ValueError, match="limit"):
        Scale(limit, False, low=3.0)
    with pytest.raises(ValueError, match="centred on zero"):
        Scale(5.0, True, low=3.0)


@pytest.mark.parametrize(("constant", "begins"), [(0.0, False), (0.04, False), (0.5, True), (100.0, True)])
def test_a_large_constant_is_left_out(constant: float, begins: bool) -> None:
    """Below the 5th percentile everything looks alike; a map without such a constant begins at zero."""
    map = constant + np.linspace(0, 1, 400).reshape(20, 20)
    scale = Scale.of([map])
    assert bool(scale.floor) is begins
    if begins:
        assert (scale.low, scale.limit) == (np.percentile(map, 5), np.percentile(map, 99))
        assert scale.unit(map).min() == 0
        assert scale.unit(map).max() == 1
        assert scale.begins == "shown from the 5th percentile"
    else:
        assert (scale.low, scale.begins) == (0.0, "")


def test_maps_that_are_the_same_everywhere_or_signed_begin_at_zero() -> None:
    assert Scale.of([np.full((3, 3), 7.0)]).low == 0
    assert Scale.of([np.full((3, 3), -7.0)], signed=False).low == 0
    assert Scale.of([np.linspace(-1, 9, 100)]).low == 0
    turned = Scale.of([np.linspace(-1, 9, 101)], percentile=100, signed=False)
    assert (turned.low, turned.limit) == (pytest.approx(-0.5), 9.0)


def test_bad_arguments_name_themselves() -> None:
    with pytest.raises(ValueError, match="'viridis'"):
        colourise(np.ones((2, 2)), Scale(1.0, False), "viridis")
    for percentile in (0, 101, math.nan):
        with pytest.raises(ValueError, match="percentile"):
            Scale.of([np.ones((2, 2))], percentile=percentile)
