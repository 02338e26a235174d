"""Pages before they are drawn: images and lines of text at their positions, in pixels or as SVG and PDF; and files.

Text is measured before it is drawn, so that nothing overlaps. In SVG and PDF text stays text, set in Helvetica, as wide
as it was measured.
"""

from __future__ import annotations

import base64
import bisect
import io
import itertools
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitreous.errors import VitreousError

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FINE = 4  # how many times larger letters are drawn
_RULER = ImageDraw.Draw(Image.new("L", (1, 1)))
# Pillow's built-in font has ASCII and little more; these are the other characters people write about maps.
_SUPPORTED = frozenset("…·±°")
_REPLACED = str.maketrans(
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
    normal = unicodedata.normalize("NFC", " ".join(text.split())).translate(_REPLACED)
    return "".join(_letter(character) for character in normal)


def _letter(character: str) -> str:
    if character.isascii() or character in _SUPPORTED:
        return character
    if re.match(r"GREEK \w+ LETTER \w+$", unicodedata.name(character, "")):
        return unicodedata.name(character).split()[-1].lower()
    parts = unicodedata.normalize("NFKD", character)
    return "".join(part for part in parts if part.isascii()) or "?"


def words(line: str, size: int) -> list[tuple[float, str]]:
    """The words of a line and where each begins. The built-in face has narrow blanks; here they are wide enough."""
    texts = line.split(" ")
    advances = [font(_FINE * size).getlength(word) / _FINE + 0.3 * size for word in texts[:-1]]
    return list(zip(itertools.accumulate(advances, initial=0.0), texts, strict=True))


def text_width(text: str, size: int) -> int:
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
    """Return the pixels from one line of text to the next."""
    return round(size * 1.3)


def wrap(text: str, size: int, limit: float, lines: int) -> list[str]:
    """`text` in at most `lines` lines no wider than `limit`; an ellipsis ends the last one if there was more.

    Lines break at spaces, those after a "·" first; a word that would leave half of a line empty breaks after
    punctuation, and one without any breaks where the line is full.
    """
    left = printable(text)
    done: list[str] = []
    while left and len(done) < lines - 1:
        full = _fitting(left, size, limit)
        cut = full if full == len(left) else _break(left, full)
        done.append(left[:cut].rstrip())
        left = left[cut:].lstrip()
    return [*done, shorten(left, size, limit)] if left else done


def shorten(text: str, size: int, limit: float) -> str:
    """`text`, or as much of its beginning as fits before an ellipsis."""
    if text_width(text, size) <= limit:
        return text
    return text[: _fitting(text, size, limit - text_width("…", size))].rstrip() + "…"


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
    ink = Image.new("L", (_FINE * text_width(line, size), 2 * _FINE * size))
    draw = ImageDraw.Draw(ink)
    for place, word in words(line, size):
        draw.text((round(_FINE * (_overhang(line, size) + place)), 0), word, font=face, fill=255)
    return ink.reduce(_FINE)


def _fitting(text: str, size: int, limit: float) -> int:
    """The number of leading characters that fit into `limit` pixels, at least one."""
    if text_width(text, size) <= limit:
        return len(text)
    return max(1, bisect.bisect_right(range(1, len(text) + 1), limit, key=lambda n: text_width(text[:n], size)))


def _break(text: str, full: int) -> int:
    space, part = text.rfind(" ", 0, full + 1), text.rfind("· ", 0, full + 1)
    if part > full / 2:
        return part + 1
    if space > full / 2:
        return space
    soft = [match.start() for match in _SOFT.finditer(text, 0, full + 1) if 0 < match.start() <= full]
    return soft[-1] if soft else (space if space > 0 else full)


INK, SOFT_INK = "#1b1d22", "#5d626c"


@dataclass(frozen=True)
class TextLine:
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
    lines: list[TextLine] = field(default_factory=list)

    def paste(self, picture: Image.Image, at: tuple[int, int]) -> None:
        """Put a picture on the page, its top left corner at `at`."""
        self.pictures.append((*at, picture))

    def write(self, at: tuple[int, int], lines: Sequence[str], size: int, ink: str = INK) -> None:
        """Write lines under each other."""
        x, y = at
        self.lines += [TextLine(x, y + row * line_height(size), text, size, ink) for row, text in enumerate(lines)]

    def put(self, other: Sheet, at: tuple[int, int]) -> None:
        """Put everything of another page on this one."""
        x, y = at
        self.pictures += [(x + left, y + top, picture) for left, top, picture in other.pictures]
        self.lines += [TextLine(x + line.x, y + line.y, line.text, line.size, line.ink) for line in other.lines]

    def image(self) -> Image.Image:
        """The page in pixels."""
        canvas = Image.new("RGB", (self.width, self.height), "white")
        for x, y, picture in self.pictures:
            canvas.paste(picture, (x, y))
        draw = ImageDraw.Draw(canvas)
        for line in self.lines:
            draw_lines(draw, (line.x, line.y), [line.text], line.size, line.ink)
        return canvas


def image_sheet(image: Image.Image) -> Sheet:
    """Return a page with one image and nothing else."""
    return Sheet(*image.size, [(0, 0, image)])


def stacked(parts: Sequence[Sheet], width: int, gap: int) -> Sheet:
    """Pages under each other, with `gap` pixels above, between and below."""
    page = Sheet(width, gap + sum(part.height + gap for part in parts))
    y = gap
    for part in parts:
        page.put(part, (0, y))
        y += part.height + gap
    return page


_POINTS = 0.75  # per pixel: 96 pixels are an inch
# Advance widths of Helvetica, in thousandths of its size, from the blank to the tilde.
_ASCII = (
    "278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556 556 278 278 "
    "584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778 722 667 611 722 667 944 "
    "667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222 500 222 833 556 556 556 556 333 500 "
    "278 556 500 722 500 500 500 334 260 334 584"
)
_WIDTHS = dict(zip(map(chr, range(32, 127)), map(int, _ASCII.split()), strict=True))
_WIDTHS |= {"…": 1000, "·": 278, "±": 584, "°": 400}


def svg(sheet: Sheet) -> bytes:
    """The page as SVG: pictures embedded as PNG, every line a `<text>`."""
    size = f'width="{sheet.width}" height="{sheet.height}" viewBox="0 0 {sheet.width} {sheet.height}"'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    pictures = [
        f'<image x="{x}" y="{y}" width="{image.width}" height="{image.height}" xlink:href="{png_data_uri(image)}"/>'
        for x, y, image in sheet.pictures
    ]
    lines = [
        f'<text x="{line.x}" y="{line.y + ascent(line.size):g}" font-size="{line.size}" fill="{line.ink}" '
        f'textLength="{text_width(line.text, line.size):g}" lengthAdjust="spacingAndGlyphs">{escape(line.text)}</text>'
        for line in sheet.lines
        if line.text
    ]
    body = "\n".join(['<rect width="100%" height="100%" fill="white"/>', *pictures, *lines])
    return f'<svg {names} {size} font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'.encode()


def pdf(sheet: Sheet) -> bytes:
    """The page as PDF of one page: pictures without loss, text in the Helvetica that every reader has."""
    width, height = sheet.width * _POINTS, sheet.height * _POINTS
    names = [f"/P{number} {7 + number} 0 R" for number in range(len(sheet.pictures))]
    marks = [
        f"q {image.width} 0 0 {image.height} {x} {sheet.height - y - image.height} cm /P{number} Do Q"
        for number, (x, y, image) in enumerate(sheet.pictures)
    ]
    marks += [_written(line, sheet.height) for line in sheet.lines if line.text]
    content = f"{_POINTS} 0 0 {_POINTS} 0 0 cm\n".encode() + b"\n".join(mark.encode("cp1252") for mark in marks)
    # how wide letters are: a reader that takes another face for Helvetica keeps to that
    letters = [bytes([code]).decode("cp1252", "replace") for code in range(32, 256)]
    widths = " ".join(str(_WIDTHS.get(letter, 556)) for letter in letters)
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width:g} {height:g}] /Contents 5 0 R "
        f"/Resources << /Font << /F 4 0 R >> /XObject << {' '.join(names)} >> >> >>".encode(),
        f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /FontDescriptor 6 0 R "
        f"/FirstChar 32 /LastChar 255 /Widths [{widths}] >>".encode(),
        _stream("", content),
        b"<< /Type /FontDescriptor /FontName /Helvetica /Flags 32 /ItalicAngle 0 /Ascent 718 /Descent -207 "
        b"/CapHeight 718 /StemV 88 /FontBBox [-166 -225 1000 931] >>",
    ]
    for _, _, image in sheet.pictures:
        head = f"/Type /XObject /Subtype /Image /Width {image.width} /Height {image.height}"
        colours = " /ColorSpace /DeviceRGB /BitsPerComponent 8 "
        parts.append(_stream(head + colours, image.convert("RGB").tobytes()))
    return _file(parts)


def _written(line: TextLine, height: int) -> str:
    """One line of text, stretched from its own width to the one it was given room for."""
    own = sum(_WIDTHS.get(letter, 556) for letter in line.text) * line.size / 1000
    stretch = 100 * text_width(line.text, line.size) / own
    red, green, blue = (level / 255 for level in ImageColor.getrgb(line.ink)[:3])
    text = line.text.encode("cp1252", "replace").decode("cp1252")
    text = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    place = f"{line.x} {height - line.y - ascent(line.size):g} Td"
    return f"BT {red:.3f} {green:.3f} {blue:.3f} rg /F {line.size} Tf {stretch:.2f} Tz {place} ({text}) Tj ET"


def _stream(head: str, data: bytes) -> bytes:
    packed = zlib.compress(data)
    return f"<< {head}/Length {len(packed)} /Filter /FlateDecode >>\nstream\n".encode() + packed + b"\nendstream"


def _file(parts: list[bytes]) -> bytes:
    """Objects, counted from 1, and the table of where each begins."""
    written, places = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"), []
    for number, part in enumerate(parts, 1):
        places.append(len(written))
        written += f"{number} 0 obj\n".encode() + part + b"\nendobj\n"
    start = len(written)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    written += f"xref\n0 {len(parts) + 1}\n0000000000 65535 f \n{table}".encode()
    written += f"trailer\n<< /Size {len(parts) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(written)


def png_bytes(image: Image.Image, **options: Any) -> bytes:
    """Return the image as a PNG, small unless ``options`` of Pillow say otherwise."""
    buffer = io.BytesIO()
    supported = image if image.mode in {"1", "L", "LA", "P", "RGB", "RGBA"} else image.convert("RGB")
    supported.save(buffer, format="PNG", **(options or {"optimize": True}))
    return buffer.getvalue()


def png_data_uri(image: Image.Image, **options: Any) -> str:
    """Return the image as a PNG in a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(image, **options)).decode("ascii")


_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
_VECTORS = {".svg": svg, ".pdf": pdf}


def is_picture(path: str | Path) -> bool:
    """Whether a path ends like a picture."""
    return Path(path).suffix.lower() in {**_FORMATS, **_VECTORS}


def encoded(picture: Image.Image | Sheet, path: str | Path | None = None) -> Callable[[BinaryIO], object]:
    """What writes the picture into an open file: as PNG, or in the format that the end of `path` asks for.

    A page can be written as SVG or PDF too, with its text as text.
    """
    suffix = ".png" if path is None else Path(path).suffix.lower()
    if isinstance(picture, Sheet) and suffix in _VECTORS:
        data = _VECTORS[suffix](picture)
        return lambda file: file.write(data)
    if suffix not in _FORMATS:
        choices = [*_FORMATS, *(_VECTORS if isinstance(picture, Sheet) else ())]
        raise VitreousError(f"could not write {path}: it must end in one of {', '.join(choices)}")
    image = picture.image() if isinstance(picture, Sheet) else picture
    return lambda file: image.save(file, format=_FORMATS[suffix])


def display(image: Image.Image) -> None:
    """Show a picture: in a notebook in place, elsewhere in the system's image viewer."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        image.show()
    else:
        display(image) if get_ipython() is not None else image.show()
