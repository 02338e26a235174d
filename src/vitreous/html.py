"""Pages: Jinja templates in which every text is escaped, with one style sheet and pictures inside the page."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from vitreous.viz.canvas import png_data_uri
from vitreous.viz.colormap import gradient

_TEMPLATES = Path(__file__).parent / "templates"
_NUMBER = re.compile(r"\s*[-+−]?\d[\d,.]*(e[-+]?\d+)?\s*(%|±.*|s|ms)?\s*", re.IGNORECASE)


def render(template: str, /, **context: Any) -> str:
    """Return a template of ``vitreous/templates`` with these values; whatever is no template text is escaped."""
    return _ENVIRONMENT.get_template(template).render(context)


# -- filters -------------------------------------------------------------------------------------------


def percent(probability: float) -> str:
    """Return a probability as text: 52 %, 3.1 %, 0.02 %, under 0.01 %."""
    share = printed(probability)
    if share == 0 and probability > 0:
        return "under 0.01 %"
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %" if share >= 1 else f"{share:.2f} %"


def printed(probability: float) -> float:
    """Return the number of percent that is printed: whoever compares two of them sees what a reader sees."""
    share = 100 * probability
    return round(share, 0 if share >= 10 else 1 if share >= 1 else 2) if share >= 0.01 else 0.0


def as_sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def number(value: float, digits: int = 3) -> str:
    """Return a number with a true minus, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def interval(low: float, upper: float, digits: int = 3) -> str:
    """Return both ends as text; nothing where there is no interval."""
    return "" if math.isnan(low) else f"{number(low, digits)} to {number(upper, digits)}"


def duration(seconds: float) -> str:
    """Return seconds as text: 4.2 s, 3.0 min, 2.5 h."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def jpeg_data_uri(image: Image.Image, side: int = 176) -> str:
    """Return a thumbnail with this longer side as a JPEG in a ``data:`` address."""
    ratio = side / max(image.size)
    size = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
    buffer = io.BytesIO()
    image.convert("RGB").resize(size, Image.Resampling.LANCZOS).save(buffer, "JPEG", quality=86, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def paragraphs(text: str) -> list[str]:
    """Return what blank lines separate."""
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def numeric_columns(rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns of a table hold only numbers; the first row is the header, rows may be short."""
    columns = [
        [row[column] for row in rows[1:] if column < len(row) and row[column].strip()]
        for column in range(max(len(row) for row in rows))
    ]
    return [bool(column) and all(_NUMBER.fullmatch(cell) for cell in column) for column in columns]


def sha256(script: str) -> str:
    """Return the digest by which a Content-Security-Policy allows a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _source(name: str) -> Markup:
    """Return a style sheet or a script of the templates as it is."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


_ENVIRONMENT = Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    loader=FileSystemLoader(_TEMPLATES),
)
_ENVIRONMENT.globals["source"] = _source
_ENVIRONMENT.filters |= {
    "duration": duration,
    "gradient": gradient,
    "interval": interval,
    "jpeg": jpeg_data_uri,
    "number": number,
    "numeric_columns": numeric_columns,
    "paragraphs": paragraphs,
    "percent": percent,
    "png": png_data_uri,
    "sha256": sha256,
}


# -- pages ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """Heading, text (blank lines separate paragraphs), pictures with captions, table (first row = header)."""

    heading: str
    text: str
    images: Sequence[tuple[Image.Image, str]] = ()
    table: Sequence[Sequence[str]] = ()


def figure(image: Image.Image, caption: str) -> str:
    """Return a picture with its caption for a notebook."""
    return render("figure.html", image=image, caption=caption)


def report(title: str, lead: str, sections: Sequence[Section], footer: str = "", before: str = "") -> str:
    """Return a page of sections; ``before`` is HTML that stands above them."""
    return render("sections.html", title=title, lead=lead, sections=sections, footer=footer, before=before)


@dataclass(frozen=True)
class Legend:
    """What the two ends of a colour scale mean."""

    lowest: str
    highest: str
    signed: bool = True


@dataclass(frozen=True)
class Panel:
    """A picture with a heading, what it shows and its legend."""

    heading: str
    text: str
    picture: Image.Image
    legend: Legend | None = None
    note: str = ""
    keys: Sequence[tuple[str, str]] = ()
    """Colours such as ``#c2201f`` and what they stand for."""


@dataclass(frozen=True)
class Tried:
    """A changed picture and what the model says about exactly this one."""

    picture: Image.Image
    caption: str
    probability: str
    change: str = ""
    """``"less"``, ``"more"`` or nothing: how it is coloured."""
    note: str = ""
    """What it is held against."""


@dataclass(frozen=True)
class WhyPage:
    """Everything on the page, in the order in which it is read."""

    title: str
    lead: str
    map: Panel
    photo: Image.Image
    says: Sequence[tuple[str, float]]
    tried: Sequence[Tried]
    tried_text: str
    others: Sequence[Panel]
    trust_text: str
    trust: Sequence[Mapping[str, str]]
    """Findings about the map: a word, the verdict and a sentence."""
    command: str
    settings: str

    def html(self) -> str:
        """Return the page."""
        return render("why.html", title=self.title, page=self, level="h1")

    def body(self, level: str = "h1") -> str:
        """Return what stands between the tags of ``main``, its title as a heading of some level."""
        return render("why_body.html", page=self, level=level)
