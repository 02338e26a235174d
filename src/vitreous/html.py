"""One self-contained page: pictures inline, no script, nothing fetched from anywhere.

The page that answers one question: why did it say that? For readers who have never heard of attribution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

from vitreous.viz.canvas import png_data_uri
from vitreous.viz.colormap import gradient

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


STYLE = """
:root {
  color-scheme: light dark; --ink: #1b1d22; --soft: #5d636e; --line: #e4e6eb; --page: #fbfbfc; --card: #fff;
  --for: #c2201f; --against: #1c56c9; --good: #1c7a4a; --weak: #96560a; --bad: #c2201f; --rest: #c9ced8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #eceef2; --soft: #a2a9b5; --line: #2b2f37; --page: #121418; --card: #1a1d22;
    --for: #ff7b6e; --against: #7aa5ff; --good: #57c08c; --weak: #e0a458; --bad: #ff7b6e; --rest: #4a505b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 34px; line-height: 1.15; margin: 0 0 8px; letter-spacing: -0.01em; text-wrap: balance; }
h2 { font-size: 20px; line-height: 1.3; margin: 0 0 4px; }
h1, h2, p, b, li { overflow-wrap: anywhere; }
.lead { color: var(--soft); font-size: 18px; margin: 0 0 28px; max-width: 46em; }
.grid { display: grid; gap: 20px; align-items: start; }
.two { grid-template-columns: minmax(0, 1.35fr) minmax(0, 1fr); }
.even { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.three { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 18px; min-width: 0; }
.card img { width: 100%; height: auto; border-radius: 10px; display: block; }
.note { color: var(--soft); font-size: 14px; margin: 10px 0 0; }
h2 + .note { margin: 0 0 12px; }
.bar { display: grid; grid-template-columns: minmax(0, 9.5em) minmax(0, 1fr) 3.6em; gap: 10px; align-items: center;
  margin: 9px 0; font-size: 15px; }
.bar i { display: block; height: 12px; min-width: 2px; border-radius: 6px; background: var(--rest); }
.bar.on i { background: var(--for); }
.bar span { text-align: right; font-variant-numeric: tabular-nums; color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 10px; font-size: 14px; color: var(--soft);
  margin-top: 12px; }
.legend u { flex: 1; min-width: 60px; max-width: 220px; height: 10px; border-radius: 5px; }
.legend s { display: inline-block; width: 14px; height: 14px; border-radius: 4px; vertical-align: -2px; }
.big { font-size: 30px; font-weight: 650; font-variant-numeric: tabular-nums; }
.big.less { color: var(--against); } .big.more { color: var(--for); }
section { margin-top: 36px; }
ul { list-style: none; padding: 0; margin: 10px 0 0; }
li { padding: 12px 0; border-top: 1px solid var(--line); display: grid;
  grid-template-columns: minmax(6.5em, max-content) minmax(0, 1fr); gap: 14px; }
li:first-child { border: 0; }
.tag { font-weight: 650; } .good { color: var(--good); } .weak { color: var(--weak); } .bad { color: var(--bad); }
pre { font: 14px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; background: var(--card); white-space: pre-wrap;
  overflow-wrap: anywhere; border: 1px solid var(--line); border-radius: 10px; padding: 14px; margin: 8px 0 0; }
@media (max-width: 760px) {
  .two, .even, .three { grid-template-columns: minmax(0, 1fr); }
  h1 { font-size: 27px; } main { padding: 24px 16px 60px; }
}
@media print { .card { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Legend:
    """What the two ends of a colour scale mean."""

    low: str
    high: str
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
    chance: str
    change: str = ""
    """``"less"``, ``"more"`` or nothing: how it is coloured."""
    note: str = ""
    """What it is held against."""


@dataclass(frozen=True)
class Trust:
    """One finding about a map: a word, its verdict and a sentence."""

    word: str
    verdict: str
    sentence: str


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
    trust: Sequence[Trust]
    command: str
    settings: str

    def html(self) -> str:
        """Return one self-contained page: every text escaped, every picture inline and with words for it."""
        return page(self.title, STYLE, self.body())

    def body(self, heading: str = "h1") -> str:
        """Return what stands between the tags of ``main``, its title as a heading of some level."""
        cards = [_panel(other) for other in self.others]
        if len(cards) % 2:
            cards.append(self._trust())
        both = "\n".join(cards)
        below = f'<section><div class="grid even">\n{both}\n</div></section>' if cards else ""
        if len(self.others) % 2 == 0:
            below += f"\n<section>{self._trust()}</section>"
        pictures = "\n".join(_tried(each) for each in self.tried)
        head = f'<h2>Put to the test</h2><p class="note">{escape(self.tried_text)}</p>'
        test = f'<section>{head}\n<div class="grid three">\n{pictures}\n</div></section>'
        return f"""<{heading}>{escape(self.title)}</{heading}>
<p class="lead">{escape(self.lead)}</p>
<div class="grid two">
{_panel(self.map)}
<div class="grid">
<div class="card">{_image(self.photo, "the picture as the model sees it")}</div>
<div class="card"><h2>What it says</h2>
{self._says()}</div>
</div>
</div>
{test if self.tried else ""}
{below}
<section><h2>Again</h2><pre>{escape(self.command)}</pre><p class="note">{escape(self.settings)}</p></section>"""

    def _says(self) -> str:
        most = max((chance for _, chance in self.says), default=0.0) or 1.0
        return "\n".join(
            f'<div class="bar{" on" if place == 0 else ""}"><b>{escape(label)}</b>'
            f'<i style="width:{100 * chance / most:.1f}%"></i><span>{percent(chance)}</span></div>'
            for place, (label, chance) in enumerate(self.says)
        )

    def _trust(self) -> str:
        lines = "\n".join(
            f'<li><span class="tag {escape(each.verdict)}">{escape(each.word)}</span>'
            f"<span>{escape(each.sentence)}</span></li>"
            for each in self.trust
        )
        head = f'<h2>Can this map be trusted?</h2><p class="note">{escape(self.trust_text)}</p>'
        return f'<div class="card">{head}<ul>\n{lines}\n</ul></div>'


def percent(chance: float) -> str:
    """Return a probability in words that a table can hold: 52 %, 3.1 %, 0.02 %, under 0.01 %."""
    share = printed(chance)
    if share == 0 and chance > 0:
        return "under 0.01 %"
    return f"{share:.0f} %" if share >= 10 or share == 0 else f"{share:.1f} %" if share >= 1 else f"{share:.2f} %"


def printed(chance: float) -> float:
    """Return the number of percent that is printed: whoever compares two of them sees what a reader sees."""
    share = 100 * chance
    return round(share, 0 if share >= 10 else 1 if share >= 1 else 2) if share >= 0.01 else 0.0


def _image(picture: Image.Image, words: str) -> str:
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img src="{png_data_uri(picture)}" alt="{escape(words)}" {size}>'


def _panel(panel: Panel) -> str:
    head = f"<h2>{escape(panel.heading)}</h2>" if panel.heading else ""
    text = f'<p class="note">{escape(panel.text)}</p>' if panel.text else ""
    legend = "" if panel.legend is None else _legend(panel.legend)
    note = f'<p class="note">{escape(panel.note)}</p>' if panel.note else ""
    keys = "".join(f'<span><s style="background:{escape(c)}"></s> {escape(words)}</span>' for c, words in panel.keys)
    legend += f'<div class="legend">{keys}</div>' if keys else ""
    return f'<div class="card">{head}{text}{_image(panel.picture, panel.heading or panel.note)}{legend}{note}</div>'


def _legend(legend: Legend) -> str:
    ramp = f'<u style="background:{gradient(legend.signed)}"></u>'
    return f'<div class="legend">{escape(legend.low)} {ramp} {escape(legend.high)}</div>'


def _tried(each: Tried) -> str:
    number = f'<div class="big {each.change}">{escape(each.chance)}</div>'
    words = f'<p class="note">{escape(each.caption)}</p>'
    note = f'<p class="note">{escape(each.note)}</p>' if each.note else ""
    return f'<div class="card">{_image(each.picture, each.caption)}{words}{number}{note}</div>'
