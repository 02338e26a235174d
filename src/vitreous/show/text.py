"""Text in pictures: measured before it is drawn, so that nothing overlaps."""

from __future__ import annotations

import bisect
import math
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FINE = 4  # how many times larger letters are drawn
_RULER = ImageDraw.Draw(Image.new("L", (1, 1)))
# Pillow's built-in font has ASCII and little more; these are the other characters people write about maps.
_KNOWN = frozenset("…·±°")
_SPELLED = str.maketrans(
    {"–": "-", "—": "-", "−": "-", "×": "x", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "∞": "inf", "ß": "ss"}
    | {"‘": "'", "’": "'", "“": '"', "”": '"', "•": "·"}
)
_SOFT = re.compile(r"(?<=[_,(=/])(?=.)")  # where a long name such as smooth(integrated_gradients) may be cut


@lru_cache(maxsize=32)
def font(size: int) -> Font:
    """Pillow's built-in face, the one that is there on every machine."""
    return ImageFont.load_default(size=size)


def printable(text: str) -> str:
    """`text` on one line, in characters the font has: accents dropped, Greek letters by name, others "?"."""
    spelled = unicodedata.normalize("NFC", " ".join(text.split())).translate(_SPELLED)
    return "".join(_letter(character) for character in spelled)


def _letter(character: str) -> str:
    if character.isascii() or character in _KNOWN:
        return character
    if re.match(r"GREEK \w+ LETTER \w+$", unicodedata.name(character, "")):
        return unicodedata.name(character).split()[-1].lower()
    parts = unicodedata.normalize("NFKD", character)
    return "".join(part for part in parts if part.isascii()) or "?"


def words(line: str, size: int) -> list[tuple[float, str]]:
    """The words of a line and where each begins. The built-in face has narrow blanks; here they are wide enough."""
    blank, x = 0.3 * size, 0.0
    placed = []
    for word in line.split(" "):
        placed.append((x, word))
        x += font(_FINE * size).getlength(word) / _FINE + blank
    return placed


def width(text: str, size: int) -> int:
    """Width of the text in pixels, ink that reaches out to the left of its starting point included."""
    x, last = words(text, size)[-1]
    ink = _RULER.textbbox((0, 0), last, font=font(_FINE * size))[2] / _FINE
    return math.ceil(_overhang(text, size) + x + ink)


def _overhang(text: str, size: int) -> float:
    return max(0.0, -_RULER.textbbox((0, 0), text.partition(" ")[0], font=font(_FINE * size))[0] / _FINE)


def ascent(size: int) -> float:
    """How far the line that letters stand on lies below the top of a line of text."""
    face = font(_FINE * size)
    return face.getmetrics()[0] / _FINE if isinstance(face, ImageFont.FreeTypeFont) else 0.8 * size


def line_height(size: int) -> int:
    return round(size * 1.3)


def wrap(text: str, size: int, limit: float, lines: int) -> list[str]:
    """`text` in at most `lines` lines no wider than `limit`; an ellipsis ends the last one if there was more.

    Lines break at spaces, those after a "·" first; a word that would leave half of a line empty breaks after
    punctuation, and one without any breaks where the line is full.
    """
    rest = printable(text)
    done: list[str] = []
    while rest and len(done) < lines - 1:
        full = _fitting(rest, size, limit)
        cut = full if full == len(rest) else _break(rest, full)
        done.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*done, shorten(rest, size, limit)] if rest else done


def shorten(text: str, size: int, limit: float) -> str:
    """`text`, or as much of its beginning as fits before an ellipsis."""
    if width(text, size) <= limit:
        return text
    return text[: _fitting(text, size, limit - width("…", size))].rstrip() + "…"


def draw_lines(draw: ImageDraw.ImageDraw, at: tuple[int, int], lines: Sequence[str], size: int, fill: str) -> None:
    """Draw lines under each other from the top left corner `at`, no ink to the left of it."""
    x, y = at
    for line in lines:
        if line:
            draw.bitmap((x, y), _inked(line, size), fill=fill)
        y += line_height(size)


def _inked(line: str, size: int) -> Image.Image:
    """The ink of a line. Drawn large and made small, for small letters are set on whole pixels, and unevenly so."""
    face = font(_FINE * size)
    ink = Image.new("L", (_FINE * width(line, size), 2 * _FINE * size))
    draw = ImageDraw.Draw(ink)
    for place, word in words(line, size):
        draw.text((round(_FINE * (_overhang(line, size) + place)), 0), word, font=face, fill=255)
    return ink.reduce(_FINE)


def _fitting(text: str, size: int, limit: float) -> int:
    """The number of leading characters that fit into `limit` pixels, at least one."""
    if width(text, size) <= limit:
        return len(text)
    return max(1, bisect.bisect_right(range(1, len(text) + 1), limit, key=lambda n: width(text[:n], size)))


def _break(text: str, full: int) -> int:
    space, part = text.rfind(" ", 0, full + 1), text.rfind("· ", 0, full + 1)
    if part > full / 2:
        return part + 1
    if space > full / 2:
        return space
    soft = [match.start() for match in _SOFT.finditer(text, 0, full + 1) if 0 < match.start() <= full]
    return soft[-1] if soft else (space if space > 0 else full)
