"""Panels, read back from their pixels: nothing overlaps, scales are shared as stated."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from PIL import Image, ImageDraw

from vitreous.show import Cell, Scale, overlay, panel
from vitreous.show import text as words
from vitreous.show.panel import _remarks, _scales, _statement  # the statement is drawn, so it is read here

LONG = 'consensus(smooth(integrated_gradients, samples=10, sigma=0.15), var(skipplus(ixg), classes="top:5"))'
TITLES = [
    "a",
    LONG,
    "smooth(integrated_gradients, samples=10, sigma=0.15)",
    "W" * 300,
    "word " * 80,
    "",
    "σ–×é中",
]
RED = (255, 0, 0)


def picture(colour: tuple[int, int, int] = RED, size: tuple[int, int] = (64, 64)) -> Image.Image:
    return Image.new("RGB", size, colour)


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """Half-open intervals where `flags` is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


@pytest.mark.parametrize("tile", [48, 96, 224, 300])
@pytest.mark.parametrize("columns", [1, 3])
def test_tiles_are_whole_and_the_space_between_columns_is_empty(tile: int, columns: int) -> None:
    cells = [Cell(picture(), None, title, note=note) for title in TITLES for note in ("", LONG)]
    rows = [cells[at : at + columns] for at in range(0, len(cells), columns)]
    drawn = np.asarray(panel(rows, caption=LONG * 3, tile=tile))
    red = (drawn == RED).all(axis=-1)
    assert red.sum() == len(cells) * tile * tile, "no text on a tile"

    # every column of the grid keeps its title and notes inside the width of its tile
    across, down = runs(red.any(axis=0)), runs(red.any(axis=1))
    assert [stop - start for start, stop in across] == [tile] * columns
    assert [stop - start for start, stop in down] == [tile] * len(rows)
    grid = drawn[: down[-1][1]]
    between = [(0, across[0][0])] + [(a[1], b[0]) for a, b in pairwise(across)]
    for start, stop in [*between, (across[-1][1], drawn.shape[1])]:
        assert stop > start
        assert (grid[:, start:stop] == 255).all(), "white gutter"
    assert (drawn[[0, -1]] == 255).all(), "white edge"
    assert (drawn[:, [0, -1]] == 255).all(), "white edge"


def test_titles_above_notes_below() -> None:
    bare = np.asarray(panel([[Cell(picture(), None, "")]], tile=96))
    full = np.asarray(panel([[Cell(picture(), None, "Title", note="note")]], tile=96))
    top, bottom = runs((full == RED).all(axis=-1).any(axis=1))[0]
    assert (full[:top] < 128).any(), "ink above"
    assert (full[bottom:] < 128).any(), "ink below"
    assert full.shape[0] > bare.shape[0]
    assert full.shape[1] == bare.shape[1]


def test_pictures_keep_their_shape() -> None:
    drawn = np.asarray(panel([[Cell(picture(size=(100, 50)), None, "wide"), Cell(picture(), None, "square")]], tile=96))
    red = (drawn == RED).all(axis=-1)
    assert red.sum() == 96 * 48 + 96 * 96


def tiles_of(image: Image.Image, columns: int, tile: int) -> list[np.ndarray]:
    """The tiles of a one-row panel without titles and with square pictures."""
    gap = (image.width - columns * tile) // (columns + 1)
    drawn = np.asarray(image)
    top = next(y for y in range(drawn.shape[0]) if (drawn[y, gap : gap + tile] != 255).any())
    lefts = [gap + index * (tile + gap) for index in range(columns)]
    return [drawn[top : top + tile, left : left + tile] for left in lefts]


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
        tiles_of(panel([cells], tile=96), 3, 96),
        [(first, together), (second, together), (other, alone)],
        strict=True,
    ):
        np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, scale)))

    everything = Scale.of([first, second, other])
    assert everything.signed
    for got, map in zip(tiles_of(panel([cells], tile=96, scale="panel"), 3, 96), (first, second, other), strict=True):
        np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, everything)))

    for got, map in zip(tiles_of(panel([cells], tile=96, scale="each"), 3, 96), (first, second, other), strict=True):
        np.testing.assert_array_equal(got, np.asarray(overlay(photo, map, Scale.of([map]))))


def test_a_group_is_signed_if_any_of_its_maps_is() -> None:
    cells = [Cell(picture(), sign * np.ones((2, 2)), "", group=g) for sign, g in ((1, "a"), (-1, "a"), (1, "b"))]
    scales = _scales(cells, 99.0, "group")
    assert scales["a"].signed
    assert not scales["b"].signed


def test_clip_values_and_oddities_are_written_down() -> None:
    sparse, broken = np.zeros((20, 20)), np.ones((2, 2))
    sparse[0, 0], broken[0, 0] = 3.0, np.nan
    cell = Cell(picture(), np.full((2, 2), 0.01234), "")
    assert _remarks(cell, Scale.of([cell.map]), relative=True) == ["1 = 0.0123"]
    assert _remarks(cell, Scale.of([cell.map]), relative=False) == []
    assert _remarks(Cell(picture(), None, ""), None, relative=True) == []
    assert _remarks(Cell(picture(), sparse, ""), Scale.of([sparse]), relative=True) == ["1 = 3 (maximum)"]
    assert _remarks(Cell(picture(), 0 * sparse, ""), Scale.of([0 * sparse]), relative=True) == ["zero everywhere"]
    said = _remarks(Cell(picture(), broken, ""), Scale.of([broken]), relative=False)
    assert said == ["1 of 4 not finite (grey)"]


def test_statement_says_percentile_and_rule() -> None:
    one = {"": Scale(0.5, True, 99.0)}
    two = {"a": Scale(0.5, True, 95.0), "b": Scale(0.1, False, 95.0)}
    assert "clipped at the 99th percentile of |value| = 0.5" in _statement(one, 99.0, "group")
    assert "maps of one group share a scale; 1 is the group's clip value, the 95th" in _statement(two, 95.0, "group")
    assert "every map has its own scale; 1 is the map's clip value, the 95th" in _statement(two, 95.0, "each")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every line of text that a panel draws, in order."""
    lines: list[str] = []

    def listening(draw: ImageDraw.ImageDraw, at: tuple[int, int], drawn: list[str], size: int, fill: str) -> None:
        lines.extend(drawn)
        words.draw_lines(draw, at, drawn, size, fill)

    # by way of sys.modules, because the name `vitreous.show.panel` is the function
    monkeypatch.setattr(sys.modules["vitreous.show.panel"], "draw_lines", listening)
    return lines


def test_several_groups_have_relative_bars_and_notes(said: list[str]) -> None:
    maps = {"a": np.full((2, 2), 0.25), "b": np.full((2, 2), -4.0)}
    panel([[Cell(picture(), map, name, note="why", group=name) for name, map in maps.items()]])
    assert said[:4] == ["a", "1 = 0.25 · why", "b", "1 = 4 · why"]
    assert said[4:8] == ["unsigned maps: value / clip value", "0", "0.5", "1"]
    assert said[8:12] == ["signed maps: value / clip value", "-1", "0", "1"]


@pytest.mark.parametrize("rule", ["group", "panel"])
def test_one_scale_has_a_raw_bar(said: list[str], rule: Literal["group", "panel"]) -> None:
    maps = [np.full((2, 2), 4.0), np.full((2, 2), -4.0)]
    groups = ["", ""] if rule == "group" else ["a", "b"]
    cells = [Cell(picture(), map, "t", group=group) for map, group in zip(maps, groups, strict=True)]
    panel([cells], caption="What it is.", scale=rule)
    assert said[:6] == ["t", "t", "signed maps: value", "-4", "0", "4"]
    assert said[6] == "What it is."
    assert "clipped at the 99th percentile of |value| = 4" in " ".join(said[7:])


def bars(image: Image.Image, tile: int) -> int:
    """How many bands of a one-column panel are colour from side to side: its tiles and its colour bars."""
    gap = (image.width - tile) // 2
    strip = np.asarray(image)[:, gap : gap + tile]
    return len(runs((strip != 255).any(axis=-1).mean(axis=1) > 0.99))


def test_one_colour_bar_per_kind() -> None:
    plain, signed = np.eye(3), np.eye(3) - 0.5
    photo = picture((20, 30, 40))

    def column(*maps: np.ndarray | None) -> Image.Image:
        return panel([[Cell(photo, map, "", group=str(i))] for i, map in enumerate(maps)], tile=96)

    assert bars(column(None), 96) == 1 + 0
    assert bars(column(plain), 96) == 1 + 1
    assert bars(column(plain, plain), 96) == 2 + 1
    assert bars(column(plain, signed, plain), 96) == 3 + 2


def test_ragged_and_empty_rows() -> None:
    cell = Cell(picture(), None, "t")
    drawn = np.asarray(panel([[cell], [], [cell, cell, cell]], tile=96))
    assert (drawn == RED).all(axis=-1).sum() == 4 * 96 * 96


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


@pytest.mark.parametrize("text", TITLES)
@pytest.mark.parametrize("limit", [30, 100, 224])
@pytest.mark.parametrize("lines", [1, 2, 24])
def test_wrapped_lines_fit_and_lose_nothing_silently(text: str, limit: int, lines: int) -> None:
    wrapped = words.wrap(text, 14, limit, lines)
    assert len(wrapped) <= lines
    assert all(words.width(line, 14) <= limit for line in wrapped)
    kept = "".join(wrapped).replace(" ", "")
    whole = words.printable(text).replace(" ", "")
    assert kept == whole or (kept.endswith("…") and whole.startswith(kept[:-1]))


def test_wrapping_prefers_spaces_then_punctuation() -> None:
    assert words.wrap("smooth(integrated_gradients, samples=10, sigma=0.15)", 14, 224, 2) == [
        "smooth(integrated_gradients,",
        "samples=10, sigma=0.15)",
    ]
    assert words.wrap("smooth(integrated_gradients)", 14, 150, 2) == ["smooth(integrated_", "gradients)"]

    assert words.wrap("a smooth(integrated_gradients)", 14, 150, 2) == ["a smooth(integrated_", "gradients)"]


@pytest.mark.parametrize("limit", range(20, 60, 3))
def test_no_ink_beside_the_line(limit: int) -> None:
    for text in (*TITLES, "jjj fff jjj fff", "s" * 40):
        lines = words.wrap(text, 10, limit, 3)
        page = Image.new("L", (100, 60))
        words.draw_lines(ImageDraw.Draw(page), (20, 5), lines, 10, "white")
        ink = page.getbbox()
        assert ink is None or (ink[0] >= 20 and ink[2] <= 20 + limit)


def test_printable_spells_what_the_font_lacks() -> None:
    assert words.printable("  σ = 0.1\n– é × 中 … ± ") == "sigma = 0.1 - e x ? … ±"
