"""Pages for papers: SVG and PDF in which text is text. It is set in Helvetica, as wide as it was measured."""

from __future__ import annotations

import zlib
from html import escape

from PIL import ImageColor

from .html import png_data_uri
from .sheet import Line, Sheet
from .text import ascent, width

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
        f'<image x="{x}" y="{y}" width="{each.width}" height="{each.height}" xlink:href="{png_data_uri(each)}"/>'
        for x, y, each in sheet.pictures
    ]
    lines = [
        f'<text x="{line.x}" y="{line.y + ascent(line.size):g}" font-size="{line.size}" fill="{line.ink}" '
        f'textLength="{width(line.text, line.size):g}" lengthAdjust="spacingAndGlyphs">{escape(line.text)}</text>'
        for line in sheet.lines
        if line.text
    ]
    body = "\n".join(['<rect width="100%" height="100%" fill="white"/>', *pictures, *lines])
    return f'<svg {names} {size} font-family="Helvetica, Arial, sans-serif">\n{body}\n</svg>\n'.encode()


def pdf(sheet: Sheet) -> bytes:
    """The page as PDF of one page: pictures without loss, text in the Helvetica that every reader has."""
    across, down = sheet.width * _POINTS, sheet.height * _POINTS
    names = [f"/P{number} {7 + number} 0 R" for number in range(len(sheet.pictures))]
    marks = [
        f"q {each.width} 0 0 {each.height} {x} {sheet.height - y - each.height} cm /P{number} Do Q"
        for number, (x, y, each) in enumerate(sheet.pictures)
    ]
    marks += [_written(line, sheet.height) for line in sheet.lines if line.text]
    content = f"{_POINTS} 0 0 {_POINTS} 0 0 cm\n".encode() + b"\n".join(mark.encode("cp1252") for mark in marks)
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {across:g} {down:g}] /Contents 5 0 R "
        f"/Resources << /Font << /F 4 0 R >> /XObject << {' '.join(names)} >> >> >>".encode(),
        _font(),
        _stream("", content),
        b"<< /Type /FontDescriptor /FontName /Helvetica /Flags 32 /ItalicAngle 0 /Ascent 718 /Descent -207 "
        b"/CapHeight 718 /StemV 88 /FontBBox [-166 -225 1000 931] >>",
    ]
    for _, _, each in sheet.pictures:
        head = f"/Type /XObject /Subtype /Image /Width {each.width} /Height {each.height}"
        colours = " /ColorSpace /DeviceRGB /BitsPerComponent 8 "
        parts.append(_stream(head + colours, each.convert("RGB").tobytes()))
    return _file(parts)


def _written(line: Line, height: int) -> str:
    """One line of text, stretched from its own width to the one it was given room for."""
    own = sum(_WIDTHS.get(letter, 556) for letter in line.text) * line.size / 1000
    stretch = 100 * width(line.text, line.size) / own
    red, green, blue = (level / 255 for level in ImageColor.getrgb(line.ink)[:3])
    known = line.text.encode("cp1252", "replace").decode("cp1252")
    text = known.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    place = f"{line.x} {height - line.y - ascent(line.size):g} Td"
    return f"BT {red:.3f} {green:.3f} {blue:.3f} rg /F {line.size} Tf {stretch:.2f} Tz {place} ({text}) Tj ET"


def _font() -> bytes:
    """Helvetica, and how wide its letters are: a reader that takes another face for it keeps to that."""
    letters = [bytes([code]).decode("cp1252", "replace") for code in range(32, 256)]
    wide = " ".join(str(_WIDTHS.get(letter, 556)) for letter in letters)
    named = "/Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /FontDescriptor 6 0 R"
    return f"<< {named} /FirstChar 32 /LastChar 255 /Widths [{wide}] >>".encode()


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
