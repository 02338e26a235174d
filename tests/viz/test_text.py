"""Text in pictures: it fits, nothing is lost, and words are apart."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageDraw

from panels import TITLES, runs
from vitreous.viz import canvas as words


@pytest.mark.parametrize("size", [10, 11, 12, 13, 14, 16, 20])
def test_words_are_apart(size: int) -> None:
    """The gap between words is wider than any gap between letters, however small the text."""
    line = "maps of one group share a scale"
    page = Image.new("L", (400, 40))
    words.draw_lines(ImageDraw.Draw(page), (5, 5), [line], size, "white")
    inked = runs(np.asarray(page).max(axis=0) > 60)
    gaps = sorted((b[0] - a[1] for a, b in pairwise(inked)), reverse=True)
    between, inside = gaps[: line.count(" ")], gaps[line.count(" ") :]
    assert len(between) == 6
    assert min(between) >= 3
    assert min(between) > max(inside)


def test_width_is_what_is_drawn() -> None:
    for line in ("one two three", "jjj fff", "x", "a b"):
        page = Image.new("L", (300, 40))
        words.draw_lines(ImageDraw.Draw(page), (10, 5), [line], 14, "white")
        box = page.getbbox()
        assert box is not None
        assert box[2] - 10 == pytest.approx(words.text_width(line, 14), abs=1)


@pytest.mark.parametrize("text", TITLES)
@pytest.mark.parametrize("limit", [30, 100, 224])
@pytest.mark.parametrize("lines", [1, 2, 24])
def test_wrapped_lines_fit_and_lose_nothing_silently(text: str, limit: int, lines: int) -> None:
    wrapped = words.wrap(text, 14, limit, lines)
    assert len(wrapped) <= lines
    assert all(words.text_width(line, 14) <= limit for line in wrapped)
    replacement = "".join(wrapped).replace(" ", "")
    result = words.printable(text).replace(" ", "")
    assert replacement == result or (replacement.endswith("…") and result.startswith(replacement[:-1]))


def test_wrapping_prefers_spaces_then_punctuation() -> None:
    assert words.wrap("smooth(integrated_gradients, samples=10, sigma=0.15)", 14, 224, 2) == [
        "smooth(integrated_gradients,",
        "samples=10, sigma=0.15)",
    ]
    assert words.wrap("log-probability · 1 = 0.25", 14, 150, 2) == ["log-probability ·", "1 = 0.25"]
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
