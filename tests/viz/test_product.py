"""Map times input: what is bright, what is black, what is written, and where the picture is found."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from PIL import Image

import vitreous as vt
from families import FAMILIES, images
from vitreous import viz as show
from vitreous.viz.panels import above_zero, before_and_after


def photo(size: int = 4) -> Image.Image:
    numbers = np.random.default_rng(0).integers(0, 256, (size, size, 3))
    return Image.fromarray(numbers.astype(np.uint8))


def test_pixels_are_multiplied_by_what_is_above_zero():
    map = np.array([[4.0, 2.0, 1.0, 0.0], [-4.0, 0.5, 8.0, -0.1], [0.0] * 4, [3.0] * 4])
    product = np.asarray(show.times_input(photo(), map, show.Scale(4.0, signed=False)))
    pixels = np.asarray(photo())
    for row in range(4):
        for column in range(4):
            light = min(max(map[row, column] / 4, 0), 1)
            assert product[row, column].tolist() == [round(light * int(pixel)) for pixel in pixels[row, column]]


def test_cells_are_clipped_before_they_are_enlarged():
    """A cell far below zero takes nothing away from its neighbour."""
    one, other = (show.times_input(photo(8), np.array([[1.0, low]]), show.Scale(1.0, False)) for low in (0.0, -9.0))
    assert one.tobytes() == other.tobytes()
    light = np.asarray(one, float) / np.maximum(np.asarray(photo(8), float), 1)
    assert np.allclose(light[:, 0], 1, atol=0.02)
    assert np.asarray(one)[:, 7].max() == 0
    assert (np.diff(light.mean(axis=(0, 2))) <= 0.02).all()


def test_the_scale_begins_at_zero_also_on_a_large_constant():
    flat = np.linspace(90, 100, 101)[None]
    assert show.Scale.of([flat]).low > 0
    assert above_zero(flat).low == 0
    assert above_zero(flat).limit == pytest.approx(99.9)
    assert above_zero(np.array([[-5.0, 0.0]])).limit == 1


def test_what_is_not_finite_is_black():
    product = np.asarray(show.times_input(photo(), np.array([[np.nan, 1.0]]), show.Scale(1.0, False)))
    assert product[:, :2].max() == 0
    assert np.array_equal(product[:, 2:], np.asarray(photo())[:, 2:])


def test_scales_are_written(monkeypatch):
    seen, text = [], []
    room = importlib.import_module("vitreous.viz.panels")
    monkeypatch.setattr(room, "panel", lambda rows, caption, tile: seen.extend(rows[0]) or text.append(caption))
    before_and_after(photo(), np.array([[2.0, -3.0]]), np.array([[0.0, -1.0]]), ("one", "two"), "mine", 64)
    assert [item.title for item in seen] == ["what the model saw", "one", "two"]
    assert seen[1].note == "full brightness from 1.98 (99th percentile)"
    assert seen[2].note == "nothing above zero"
    assert seen[1].image.tobytes() == show.times_input(photo(), np.array([[2.0, -3.0]])).tobytes()
    assert np.asarray(seen[2].image).max() == 0
    assert text[0].startswith("mine. Pixels times the part of the map above zero")


def test_explanations_have_it(tmp_path, monkeypatch):
    model = vt.wrap(FAMILIES["vit"](), class_names=["ash", "birch", "cedar", "elm", "fir"])
    e = vt.explain(model, images(model, 3), "var(ixg, classes='birch,fir')", target="ash")[1]
    assert e.extra_images == ("owners", "times_input")
    picture = e.extra_image("times_input", tile=96)
    assert "Map times input" in e._repr_html_()
    saved = e.save(tmp_path / "e")
    assert (saved / "times_input.png").exists()
    assert vt.Explanation.load(saved).extra_image("times_input", tile=96).tobytes() == picture.tobytes()
    explanation = vt.explain(model, images(model, 1)[0], "ixg")
    with pytest.raises(vt.VitreousError, match=r"var\(ixg\)"):
        explanation.extra_image("times_input")

    maps = []
    room = importlib.import_module("vitreous.viz.panels")
    monkeypatch.setattr(room, "before_and_after", lambda image, *others: maps.extend(others))
    e.extra_image("times_input", tile=96)
    before, after, titles, caption, tile = maps
    assert np.array_equal(after, e.map.numpy())
    alone = vt.explain(model, images(model, 3), "ixg", target="ash")[1]
    assert np.allclose(before, alone.map.numpy(), atol=1e-6)
    assert titles == ("ash: the base alone", "ash: with var")
    assert (caption, tile) == (e.source_line, 96)
