"""Panels, read back from their pixels: nothing overlaps, scales are shared as stated."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from panels import LONG, TITLES, runs
from vitreous.viz import TILE, Cell, Scale, overlay, panel, sheet
from vitreous.viz.canvas import font
from vitreous.viz.colormap import statement
from vitreous.viz.panels import _remarks, _scales

RED = (255, 0, 0)


def picture(colour: tuple[int, int, int] = RED, size: tuple[int, int] = (64, 64)) -> Image.Image:
    return Image.new("RGB", size, colour)


@pytest.mark.parametrize("tile", [48, 96, 224, 300])
@pytest.mark.parametrize("columns", [1, 3])
def test_tiles_are_whole_and_the_space_between_columns_is_empty(tile: int, columns: int) -> None:
    cells = [Cell(picture(), None, title, note=note) for title in TITLES for note in ("", LONG)]
    rows = [cells[at : at + columns] for at in range(0, len(cells), columns)]
    image = np.asarray(panel(rows, caption=LONG * 3, tile=tile))
    red = (image == RED).all(axis=-1)
    assert red.sum() == len(cells) * tile * tile, "no text on a tile"

    # every column of the grid keeps its title and notes inside the width of its tile
    width, down = runs(red.any(axis=0)), runs(red.any(axis=1))
    assert [stop - start for start, stop in width] == [tile] * columns
    assert [stop - start for start, stop in down] == [tile] * len(rows)
    grid = image[: down[-1][1]]
    between = [(0, width[0][0])] + [(a[1], b[0]) for a, b in pairwise(width)]
    for start, stop in [*between, (width[-1][1], image.shape[1])]:
        assert stop > start
        assert (grid[:, start:stop] == 255).all(), "white gutter"
    assert (image[[0, -1]] == 255).all(), "white edge"
    assert (image[:, [0, -1]] == 255).all(), "white edge"


def test_titles_above_notes_below() -> None:
    image = np.asarray(panel([[Cell(picture(), None, "")]], tile=96))
    full = np.asarray(panel([[Cell(picture(), None, "Title", note="note")]], tile=96))
    top, bottom = runs((full == RED).all(axis=-1).any(axis=1))[0]
    assert (full[:top] < 128).any(), "ink above"
    assert (full[bottom:] < 128).any(), "ink below"
    assert full.shape[0] > image.shape[0]
    assert full.shape[1] == image.shape[1]


def test_pictures_keep_their_shape() -> None:
    image = np.asarray(panel([[Cell(picture(size=(100, 50)), None, "wide"), Cell(picture(), None, "square")]], tile=96))
    red = (image == RED).all(axis=-1)
    assert red.sum() == 96 * 48 + 96 * 96


def tiles_of(image: Image.Image, columns: int, tile: int) -> list[np.ndarray]:
    """The tiles of a one-row panel without titles and with square pictures."""
    gap = (image.width - columns * tile) // (columns + 1)
    sample = np.asarray(image)
    top = next(y for y in range(sample.shape[0]) if (sample[y, gap : gap + tile] != 255).any())
    lefts = [gap + index * (tile + gap) for index in range(columns)]
    return [sample[top : top + tile, left : left + tile] for left in lefts]


def test_cells_of_a_group_share_a_scale() -> None:
    rng = np.random.default_rng(0)
    first, second, other = rng.random((4, 4)), 5 * rng.random((4, 4)), 1000 * rng.standard_normal((4, 4))
    photo = picture((90, 120, 150), (96, 96))
    cells = [
        Cell(photo, first, "", group="a"),
        Cell(photo, second, "", group="a"),
        Cell(photo, other, "", group="b"),
    ]

    together, alone = Scale.of([first, second]), Scale.of([other])
    for got, (map, scale) in zip(
        tiles_of(panel([cells], tile=96, scale="group"), 3, 96),
        [(first, together), (second, together), (other, alone)],
        strict=True,
    ):
        np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, scale)))

    everything = Scale.of([first, second, other])
    assert everything.signed
    for got, map in zip(tiles_of(panel([cells], tile=96, scale="panel"), 3, 96), (first, second, other), strict=True):
        np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, everything)))

    for got, map in zip(tiles_of(panel([cells], tile=96), 3, 96), (first, second, other), strict=True):
        np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, Scale.of([map]))))


def test_a_group_is_signed_if_any_of_its_maps_is() -> None:
    cells = [Cell(picture(), sign * np.ones((2, 2)), "", group=g) for sign, g in ((1, "a"), (-1, "a"), (1, "b"))]
    scales = _scales(cells, 99.0, "group")
    assert scales["a"].signed
    assert not scales["b"].signed


def test_maps_of_one_group_have_one_kind_of_colours_on_scales_of_their_own() -> None:
    values = ((1, "a"), (-5, "a"), (3, "b"), (2, ""), (-2, ""))
    cells = [Cell(picture(), factor * np.ones((2, 2)), "", group=group) for factor, group in values]
    scales = list(_scales(cells, 99.0, "each").values())
    assert [scale.limit for scale in scales] == [1, 5, 3, 2, 2]
    assert [scale.signed for scale in scales] == [True, True, False, False, True]


def test_clip_values_and_oddities_are_written_down() -> None:
    sparse, broken = np.zeros((20, 20)), np.ones((2, 2))
    sparse[0, 0], broken[0, 0] = 3.0, np.nan
    cell = Cell(picture(), np.full((2, 2), 0.01234), "")
    assert _remarks(cell, Scale.of([cell.map]), is_relative=True) == ["1 = 0.0123"]
    assert _remarks(cell, Scale.of([cell.map]), is_relative=False) == []
    assert _remarks(Cell(picture(), None, ""), None, is_relative=True) == []
    assert _remarks(Cell(picture(), sparse, ""), Scale.of([sparse]), is_relative=True) == ["1 = 3 (maximum)"]
    assert _remarks(Cell(picture(), 0 * sparse, ""), Scale.of([0 * sparse]), is_relative=True) == ["zero everywhere"]
    remarks = _remarks(Cell(picture(), broken, ""), Scale.of([broken]), is_relative=False)
    assert remarks == ["1 of 4 not finite (grey)"]


def test_statement_says_percentile_and_rule() -> None:
    one = [Scale(0.5, True, 99.0)]
    two = [Scale(0.5, True, 95.0), Scale(0.1, False, 95.0)]
    assert "clipped at the 99th percentile of |value| = 0.5" in statement(one, 99.0, "each")
    own = statement(two, 95.0, "each")
    assert "Every map has its own scale: strongest patch = 1, like all from the 95th percentile" in own
    assert "Maps of one group share a scale: strongest patch = 1" in statement(two, 95.0, "group")
    assert "strongest patch = 1; the value" in statement(two, 100.0, "each")
    assert "5th percentile." not in own
    above = [*two, Scale(0.9, False, 95.0, 0.6, 5.0)]
    assert "large constant, or whose sign says nothing, are shown from the 5th percentile" in statement(
        above, 95, "each"
    )


def lines_of(*args: object, **look: object) -> list[str]:
    """Every line of text of a panel, in order."""
    return [line.text for line in sheet(*args, **look).lines]  # type: ignore[arg-type]


def test_several_scales_have_relative_bars_and_notes() -> None:
    maps = {"a": np.full((2, 2), 0.25), "b": np.full((2, 2), -4.0)}
    lines = lines_of([[Cell(picture(), map, name, note="why") for name, map in maps.items()]])
    assert lines[:4] == ["a", "why · 1 = 0.25", "b", "why · 1 = 4"]
    assert lines[4:9] == ["little", "much", "0", "0.5", "1"]
    assert lines[9:14] == ["against", "for", "-1", "0", "1"]


@pytest.mark.parametrize("rule", ["group", "panel"])
def test_one_scale_has_a_raw_bar(rule: Literal["group", "panel"]) -> None:
    maps = [np.full((2, 2), 4.0), np.full((2, 2), -4.0)]
    groups = ["", ""] if rule == "group" else ["a", "b"]
    cells = [Cell(picture(), map, "t", group=group) for map, group in zip(maps, groups, strict=True)]
    lines = lines_of([cells], caption="What it is.", scale=rule)
    assert lines[:7] == ["t", "t", "against", "for", "-4", "0", "4"]
    assert lines[7] == "What it is."
    assert "clipped at the 99th percentile of |value| = 4" in " ".join(lines[8:])


def test_a_map_on_a_large_constant_says_where_its_colours_begin() -> None:
    hazy, expected = 10 + np.arange(100.0).reshape(10, 10) / 100, np.arange(100.0).reshape(10, 10)
    lines = lines_of([[Cell(picture(), hazy, "hazy"), Cell(picture(), expected, "plain")]])
    assert lines[1].endswith("shown from the 5th percentile")
    assert "percentile" not in lines[3]
    assert lines[4:9] == ["little", "much", "0", "0.5", "1"]
    assert lines[9:13] == ["little", "much", "5th percentile", "1"]
    got = tiles_of(panel([[Cell(picture(), hazy, "")]], tile=96), 1, 96)[0]
    coldest, hottest = got[0, 0].astype(int), got[-1, -1].astype(int)
    assert np.abs(coldest - hottest).max() > 60, "no haze: the whole range of colours is used"


def test_a_sign_that_means_nothing_is_not_for_or_against() -> None:
    map = np.linspace(-3, 5, 100).reshape(10, 10)
    lines = lines_of([[Cell(picture(), map, "t", signed=False)]])
    assert "against" not in lines
    assert lines[2:4] == ["little", "much"]
    scale = Scale.of([map], signed=False)
    photo = picture((90, 120, 150), (96, 96))
    got = tiles_of(panel([[Cell(photo, map, "", signed=False)]], tile=96), 1, 96)[0]
    np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, scale)))


def test_rows_have_headings() -> None:
    cell = Cell(picture(), None, "t")
    lines = lines_of([[cell, cell], [], [cell]], titles=["Why tiger cat? 0.12", "nothing", ""])
    assert lines == ["Why tiger cat? 0.12", "t", "t", "t"]
    image = np.asarray(panel([[cell]], tile=96, titles=["Why?"]))
    assert (image == RED).all(axis=-1).sum() == 96 * 96
    with pytest.raises(ValueError, match="2 titles do not fit 1 rows"):
        panel([[cell]], titles=["a", "b"])


def test_tiles_and_text_are_large_enough_to_read() -> None:
    assert TILE >= 320
    map = np.linspace(-1, 1, 16).reshape(4, 4)
    rows = [[Cell(picture(), map, "title", note="note"), Cell(picture(), map**2, "title")]]
    for tile in (48, 96, TILE):
        assert min(line.size for line in sheet(rows, "caption", tile=tile).lines) >= 12
    page = sheet(rows, "caption")
    assert all(max(item.size) == TILE for _, _, item in page.pictures[:2])


def test_zoom_doubles_everything() -> None:
    map = np.linspace(-1, 1, 16).reshape(4, 4)
    rows = [[Cell(picture(), map, "title", note="note")]]
    once, twice = sheet(rows, "caption", titles=["row"]), sheet(rows, "caption", titles=["row"], zoom=2)
    assert twice.width == pytest.approx(2 * once.width, rel=0.02)
    sizes = {line.text: line.size for line in once.lines}
    for line in twice.lines:
        assert line.text not in sizes or line.size == pytest.approx(2 * sizes[line.text], abs=1)
    assert font(12) is not font(24)
    with pytest.raises(ValueError, match="zoom"):
        panel(rows, zoom=0)
    with pytest.raises(ValueError, match="not 2; zoom=2 multiplies all sizes"):
        panel(rows, scale=2)  # type: ignore[arg-type]


def bars(image: Image.Image, tile: int) -> int:
    """How many bands of a one-column panel are colour from side to side: its tiles and its colour bars."""
    gap = (image.width - tile) // 2
    strip = np.asarray(image)[:, gap : gap + tile]
    return len(runs((strip != 255).any(axis=-1).mean(axis=1) > 0.99))


def test_one_colour_bar_per_kind() -> None:
    expected, signed = np.eye(3), np.eye(3) - 0.5
    photo = picture((20, 30, 40))

    def column(*maps: np.ndarray | None) -> Image.Image:
        return panel([[Cell(photo, map, "", group=str(i))] for i, map in enumerate(maps)], tile=96)

    assert bars(column(None), 96) == 1 + 0
    assert bars(column(expected), 96) == 1 + 1
    assert bars(column(expected, expected), 96) == 2 + 1
    assert bars(column(expected, signed, expected), 96) == 3 + 2


def test_ragged_and_empty_rows() -> None:
    cell = Cell(picture(), None, "t")
    image = np.asarray(panel([[cell], [], [cell, cell, cell]], tile=96))
    assert (image == RED).all(axis=-1).sum() == 4 * 96 * 96


def test_deterministic() -> None:
    rows = [[Cell(picture(), np.arange(9.0).reshape(3, 3) - 4, LONG, note="n")]]
    assert panel(rows, LONG).tobytes() == panel(rows, LONG).tobytes()


def test_bad_input_names_itself() -> None:
    with pytest.raises(ValueError, match="at least one cell"):
        panel([[]])
    with pytest.raises(ValueError, match="'row'"):
        panel([[Cell(picture(), None, "")]], scale="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tile"):
        panel([[Cell(picture(), None, "")]], tile=10)
