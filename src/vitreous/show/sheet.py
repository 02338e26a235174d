"""A page before it is drawn: pictures and lines of text at their places. Drawn in pixels, or written as SVG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image, ImageDraw

from .text import draw_lines, line_height

INK, SOFT_INK = "#1b1d22", "#5d626c"


@dataclass(frozen=True)
class Line:
    """One line of text, its top left corner in pixels."""

    x: int
    y: int
    text: str
    size: int
    ink: str


@dataclass(eq=False)
class Sheet:
    """A white page of `width` times `height` pixels. What stands on it stays apart, so that text stays text."""

    width: int
    height: int
    pictures: list[tuple[int, int, Image.Image]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def paste(self, picture: Image.Image, at: tuple[int, int]) -> None:
        """Put a picture on the page, its top left corner at `at`."""
        self.pictures.append((*at, picture))

    def write(self, at: tuple[int, int], lines: Sequence[str], size: int, ink: str = INK) -> None:
        """Write lines under each other."""
        x, y = at
        self.lines += [Line(x, y + row * line_height(size), text, size, ink) for row, text in enumerate(lines)]

    def put(self, other: Sheet, at: tuple[int, int]) -> None:
        """Put everything of another page on this one."""
        x, y = at
        self.pictures += [(x + left, y + top, picture) for left, top, picture in other.pictures]
        self.lines += [Line(x + line.x, y + line.y, line.text, line.size, line.ink) for line in other.lines]

    def image(self) -> Image.Image:
        """The page in pixels."""
        canvas = Image.new("RGB", (self.width, self.height), "white")
        for x, y, picture in self.pictures:
            canvas.paste(picture, (x, y))
        draw = ImageDraw.Draw(canvas)
        for line in self.lines:
            draw_lines(draw, (line.x, line.y), [line.text], line.size, line.ink)
        return canvas


def bare(picture: Image.Image) -> Sheet:
    """A page with one picture and nothing else."""
    return Sheet(*picture.size, [(0, 0, picture)])


def stacked(parts: Sequence[Sheet], width: int, gap: int) -> Sheet:
    """Pages under each other, with `gap` pixels above, between and below."""
    page = Sheet(width, gap + sum(part.height + gap for part in parts))
    y = gap
    for part in parts:
        page.put(part, (0, y))
        y += part.height + gap
    return page
