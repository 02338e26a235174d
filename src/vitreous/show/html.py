"""One self-contained page: pictures inline, no script, nothing fetched from anywhere."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

# What self-contained means, told to the browser.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfc; --card: #fff; --line: #e2e4e9;
  --ink: #1b1d22; --soft: #5d626c; --mark: #b3432b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14161a; --card: #1c1f25; --line: #31353e;
    --ink: #e7e9ee; --soft: #a0a6b2; --mark: #f08a6c;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", sans-serif;
}
main, footer { max-width: 72rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 3rem); }
header { padding-top: clamp(2rem, 6vw, 4rem); border-bottom: 1px solid var(--line); margin-bottom: 2.5rem; }
h1 { font-size: clamp(1.7rem, 4vw, 2.5rem); line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 0.6rem; }
h1, h2 { text-wrap: balance; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; line-height: 1.3; letter-spacing: -0.01em; margin: 0 0 0.5rem; }
p { max-width: 68ch; margin: 0 0 1rem; overflow-wrap: anywhere; }
header p { color: var(--soft); font-size: 1.1rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.3rem 1.2rem; padding-bottom: 1.2rem; font-size: 0.9rem; }
nav a { color: var(--mark); text-decoration: none; }
nav a:hover { text-decoration: underline; }
section { margin: 0 0 3rem; scroll-margin-top: 1rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1.2rem; align-items: flex-start; margin: 1.2rem 0; }
figure {
  margin: 0; min-width: min(12rem, 100%); max-width: 100%; overflow: hidden;
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
}
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption {
  padding: 0.6rem 0.9rem; color: var(--soft); font-size: 0.875rem; line-height: 1.45;
  overflow-wrap: anywhere; contain: inline-size; /* a long caption wraps instead of widening its figure */
}
.scroll { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.9rem; border-bottom: 1px solid var(--line); text-align: left; }
th { color: var(--soft); font-weight: 600; border-bottom-width: 2px; }
.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: var(--card); }
footer { padding-top: 1.2rem; padding-bottom: 3rem; color: var(--soft); font-size: 0.85rem; }
@media print { nav { display: none; } figure, tr { break-inside: avoid; } }
"""

_NUMBER = re.compile(r"\s*[-+−]?\d[\d,.]*(e[-+]?\d+)?\s*(%|±.*|s|ms)?\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Section:
    """Heading, text (blank lines separate paragraphs), pictures with captions, table (first row = header)."""

    heading: str
    text: str
    images: Sequence[tuple[Image.Image, str]] = ()
    table: Sequence[Sequence[str]] = ()


def png_data_uri(image: Image.Image) -> str:
    """The image as a PNG in a `data:` address."""
    buffer = io.BytesIO()
    plain = image if image.mode in {"1", "L", "LA", "P", "RGB", "RGBA"} else image.convert("RGB")
    plain.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def figure(image: Image.Image, caption: str) -> str:
    """A snippet for notebooks (`_repr_html_`); its style is its own, its text colour the notebook's."""
    text = escape(caption)
    alt = text or "picture"
    picture = f'<img src="{png_data_uri(image)}" alt="{alt}" style="max-width:100%;height:auto">'
    note = f'<figcaption style="font-size:0.85em;opacity:0.75">{text}</figcaption>' if caption else ""
    return f'<figure style="margin:0.5em 0;display:inline-block;max-width:100%">{picture}{note}</figure>'


def report(
    title: str, lead: str, sections: Sequence[Section], footer: str = "", before: str = "", style: str = ""
) -> str:
    """The whole page as one string; every text is escaped, every image is inline and has an alt text.

    `before` is HTML that stands above the sections, `style` what it needs.
    """
    links = "".join(f'<a href="#s{i}">{escape(part.heading)}</a>' for i, part in enumerate(sections, 1))
    body = "\n".join(_section(part, i) for i, part in enumerate(sections, 1))
    end = f"<footer>{escape(footer)}</footer>" if footer else ""
    inside = f"""<header>
<h1>{escape(title)}</h1>
{_paragraphs(lead)}
{f"<nav>{links}</nav>" if len(sections) > 1 else ""}
</header>
{before}
{body}"""
    return page(title, f"{_STYLE}{style}", inside, end)


def page(title: str, style: str, inside: str, after: str = "") -> str:
    """A whole document around what stands inside `main`; it may fetch nothing."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
{inside}
</main>
{after}
</body>
</html>
"""


def _section(part: Section, number: int) -> str:
    pictures = "\n".join(_picture(image, caption, part.heading) for image, caption in part.images)
    blocks = [
        f"<h2>{escape(part.heading)}</h2>",
        _paragraphs(part.text),
        f'<div class="pictures">\n{pictures}\n</div>' if pictures else "",
        _table(part.table) if part.table else "",
    ]
    return f'<section id="s{number}">\n' + "\n".join(block for block in blocks if block) + "\n</section>"


def _picture(image: Image.Image, caption: str, heading: str) -> str:
    note = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    size = f'width="{image.width}" height="{image.height}"'
    alt = escape(caption or heading or "picture")
    return f'<figure><img src="{png_data_uri(image)}" alt="{alt}" {size}>{note}</figure>'


def _paragraphs(text: str) -> str:
    parts = [part.strip() for part in re.split(r"\n\s*\n", text)]
    return "\n".join(f"<p>{escape(part)}</p>" for part in parts if part)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header; a column of numbers is set flush right."""
    head, *body = rows
    width = max(len(row) for row in rows)
    filled = [[row[i] for row in body if i < len(row) and row[i].strip()] for i in range(width)]
    numeric = [bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells) for cells in filled]

    def line(row: Sequence[str], tag: str) -> str:
        padded = [*row, *[""] * (width - len(row))]
        cells = (
            f"<{tag}{' class=number' if flush else ''}>{escape(text)}</{tag}>"
            for text, flush in zip(padded, numeric, strict=True)
        )
        return "<tr>" + "".join(cells) + "</tr>"

    top = f"<thead>{line(head, 'th')}</thead>"
    rest = "\n".join(line(row, "td") for row in body)
    return f'<div class="scroll"><table>{top}\n<tbody>\n{rest}\n</tbody></table></div>'
