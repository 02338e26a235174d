"""The one style of all figures: sizes, inks, text, axes and files.

Everything is said to matplotlib figure by figure: its global settings, its backend and pyplot are left alone, and a
user's own settings do not show. Lengths are in inches; a paper's column has 3.4 of them, its page 7.

What stands around every drawing: a title, a line under it, and names at the ends of lines or in a legend.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vitreous import io as disk
from vitreous.errors import VitreousError, one_line
from vitreous.viz.canvas import INK, SOFT_INK

__all__ = [
    "COLUMN",
    "FAINT",
    "FORMATS",
    "Figure",
    "INK",
    "Look",
    "MOST_DIRECT",
    "PAGE",
    "SIZE",
    "SMALL",
    "SOFT_INK",
    "axes",
    "clean",
    "encoded",
    "head",
    "head_height",
    "height_of",
    "key",
    "key_height",
    "key_width",
    "label",
    "line",
    "looks",
    "names_at_ends",
    "nice",
    "number",
    "page",
    "require",
    "rules",
    "save",
    "shortened",
    "text",
    "ticks",
    "wide",
    "width_of",
    "wrapped",
]

Figure = Any
"""A ``matplotlib.figure.Figure``; matplotlib is not imported before something is drawn."""

COLUMN, PAGE = 3.4, 7.0
SIZE, SMALL = 7.5, 6.5  # points
FAINT = "#d5d8dd"
FORMATS = (".svg", ".pdf", ".png")
_FAMILY = "DejaVu Sans"  # comes with matplotlib, so that a figure is the same everywhere
_DOTS = 300  # per inch, of PNG
_SAVING = {"svg.fonttype": "none", "svg.hashsalt": "vitreous", "pdf.fonttype": 42, "savefig.bbox": None}
_LOCK = threading.Lock()

# Told apart by people with each kind of colour blindness, and dark enough for text on white.
_COLOURS = ("#0072b2", "#d55e00", "#00805a", "#a4448f", "#a87900", "#332288", "#3d93c9", "#882255")
_STROKES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKS = ("o", "s", "^", "D")
_YARDSTICKS: dict[str, tuple[str, Any, str]] = {
    "random": ("#70757e", (0, (4, 2)), "s"),
    "constant": ("#70757e", (0, (1.2, 1.6)), "D"),
    "centre": ("#8d929b", (0, (5, 1.5, 1.2, 1.5)), "^"),
    "edges": ("#8d929b", (0, (8, 2)), "v"),
}


@dataclass(frozen=True)
class Look:
    """How the lines of one method are drawn."""

    colour: str
    stroke: Any = "solid"
    mark: str = "o"
    quiet: bool = False
    """Whether it is there only to be compared with."""


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Return a look for every method, in order: eight colours, then the same ones dashed; yardsticks are grey."""
    found: dict[str, Look] = {}
    taken = 0
    for name in methods:
        if name in _YARDSTICKS:
            found[name] = Look(*_YARDSTICKS[name], quiet=True)
            continue
        round_ = taken // len(_COLOURS) % len(_STROKES)
        found[name] = Look(_COLOURS[taken % len(_COLOURS)], _STROKES[round_], _MARKS[round_])
        taken += 1
    return found


def require() -> None:
    """Complain in one line if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise VitreousError("figures need matplotlib, which is not installed: pip install 'vitreous[plot]'") from None


def width_of(width: str | float) -> float:
    """Return a width in inches: a number, ``"column"`` or ``"page"``."""
    known = {"column": COLUMN, "page": PAGE}
    if isinstance(width, str):
        if width not in known:
            raise VitreousError(f"width={width!r} is neither column, page nor a number of inches")
        return known[width]
    if not 2 <= width <= 40:
        raise VitreousError(f"width={width} must lie between 2 and 40 inches")
    return float(width)


def page(width: float, height: float) -> Figure:
    """Return an empty white figure with a canvas of its own."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Blank

    figure = Blank(figsize=(width, height), dpi=_DOTS, facecolor="white", edgecolor="white", linewidth=0, layout="none")
    FigureCanvasAgg(figure)
    return figure


def axes(figure: Figure, left: float, top: float, width: float, height: float, *, frame: bool = True) -> Any:
    """Return axes at a place in inches from the top left corner: a line at the left, one below, and nothing else."""
    across, down = figure.get_size_inches()
    box = (left / across, 1 - (top + height) / down, width / across, height / down)
    made = figure.add_axes(box, facecolor="none", axisbelow=True)
    made.minorticks_off()
    made.grid(False)
    for side, spine in made.spines.items():
        spine.set(visible=frame and side in ("left", "bottom"), color=SOFT_INK, linewidth=0.6)
    sides = {"bottom": frame, "left": frame, "labelbottom": frame, "labelleft": frame}
    others = {"top": False, "right": False, "labeltop": False, "labelright": False}
    made.tick_params(which="both", direction="out", length=2.5, width=0.6, color=SOFT_INK, pad=2.5, **sides, **others)
    made.margins(0)
    for way in "xy":
        ticks(made, way, (), ())
    return made


def ticks(axes: Any, way: str, places: Sequence[float], names: Sequence[str], size: float = SMALL) -> None:
    """Put ticks at some places of the ``"x"`` or ``"y"`` axis, and nowhere else."""
    axis = {"x": axes.xaxis, "y": axes.yaxis}[way]
    axis.set_ticks(list(places), labels=[clean(name) for name in names])
    for label in axis.get_ticklabels():
        _set(label, size, SOFT_INK)


def label(axes: Any, way: str, words: str) -> None:
    """Say what the ``"x"`` or ``"y"`` axis shows."""
    axis = {"x": axes.xaxis, "y": axes.yaxis}[way]
    axis.labelpad = 3
    axis.label.set_text(clean(words))
    _set(axis.label, SIZE, SOFT_INK)


def text(parent: Any, x: float, y: float, words: str, size: float = SIZE, colour: str = INK, **how: Any) -> Any:
    """Write plain text on axes or a figure: a ``$`` is a ``$``."""
    bold = how.pop("bold", False)
    made = parent.text(x, y, clean(words), **how)
    _set(made, size, colour, bold)
    return made


def _set(made: Any, size: float, colour: str, bold: bool = False) -> None:
    made.set_fontproperties(_font(size, bold))
    made.set(color=colour, usetex=False, parse_math=False)


def _font(size: float, bold: bool = False) -> Any:
    from matplotlib.font_manager import FontProperties

    plain = {"style": "normal", "variant": "normal", "stretch": "normal"}
    return FontProperties(family=_FAMILY, size=size, weight="bold" if bold else "normal", **plain)


def line(axes: Any, x: Any, y: Any, colour: str, thick: float = 0.6, **how: Any) -> None:
    """Draw a line, ``mark`` at every point if one is named; every setting that a user may have changed is said."""
    mark, size, stroke = how.pop("mark", "none"), how.pop("size", 2.6), how.pop("stroke", "solid")
    ends = {"solid_capstyle": "butt", "dash_capstyle": "butt", "solid_joinstyle": "round", "dash_joinstyle": "round"}
    dots = {"marker": mark, "markersize": size, "markeredgewidth": 0, "markerfacecolor": colour, "fillstyle": "full"}
    axes.plot(x, y, color=colour, linewidth=thick, linestyle=stroke, antialiased=True, **{**ends, **dots, **how})


def rules(axes: Any, way: str, places: Sequence[float]) -> None:
    """Draw faint lines across axes, at places of the ``"x"`` or ``"y"`` axis."""
    low, high = axes.get_ylim() if way == "x" else axes.get_xlim()
    for place in places:
        x, y = ([place, place], [low, high]) if way == "x" else ([low, high], [place, place])
        line(axes, x, y, FAINT, 0.4, zorder=0.5, label="_rule", scalex=False, scaley=False)


def clean(words: str) -> str:
    """Return text that every format can hold: one line, no control characters, no halves of characters."""
    return one_line(str(words).encode("utf-8", "replace").decode("utf-8"))


def wide(words: str, size: float = SIZE, bold: bool = False) -> float:
    """Return how wide text will be, in inches."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(clean(words), _font(size, bold), ismath=False)
    return float(width) / 72


def height_of(size: float = SIZE) -> float:
    """Return the height of a line of text, in inches."""
    return 1.35 * size / 72


def shortened(words: str, limit: float, size: float = SIZE, bold: bool = False) -> str:
    """Return text that is at most so many inches wide: its middle gives way to an ellipsis."""
    words = clean(words)
    if wide(words, size, bold) <= limit:
        return words
    for kept in range(len(words) - 1, 1, -1):
        cut = f"{words[: -(-kept // 2)]}…{words[len(words) - kept // 2 :]}"
        if wide(cut, size, bold) <= limit:
            return cut
    return "…"


def nice(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``: steps of 1, 2, 2.5 or 5 times a power of ten, at most so many."""
    if not high > low:
        return [low]
    rough = (high - low) / max(1, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [round(place * step, 12) for place in range(first, last + 1)]
    return [low, high]


def number(value: float) -> str:
    """Return a number as text: six digits at most, with a true minus."""
    return f"{value:.6g}".replace("-", "−")


@contextmanager
def _as_text() -> Iterator[None]:
    """Let vector files hold text as text. matplotlib has only global settings for that: these few, while it writes."""
    import matplotlib

    with _LOCK:
        before = {name: matplotlib.rcParams[name] for name in _SAVING}
        matplotlib.rcParams.update(_SAVING)
        try:
            yield
        finally:
            matplotlib.rcParams.update(before)


def encoded(figure: Figure, path: str | Path) -> Callable[[BinaryIO], object]:
    """Return what writes a figure into an open file, in the format that the end of ``path`` asks for.

    The same figure gives the same bytes: no date, no random names.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise VitreousError(f"could not write {path}: a figure must end in one of {', '.join(FORMATS)}")
    metadata: dict[str, dict[str, Any]] = {
        ".svg": {"Date": None, "Creator": "Vitreous"},
        ".pdf": {"CreationDate": None, "Creator": "Vitreous", "Producer": None},
        ".png": {"Software": None},
    }
    held = io.BytesIO()
    with _as_text():
        figure.savefig(
            held,
            format=suffix[1:],
            dpi=_DOTS,
            metadata=metadata[suffix],
            facecolor="white",
            edgecolor="white",
            transparent=False,
        )
    data = held.getvalue()
    if suffix == ".svg":  # narrower faces first where the one that was measured is missing
        data = data.replace(f"'{_FAMILY}'".encode(), f"'{_FAMILY}', Helvetica, Arial, sans-serif".encode())
    return lambda file: file.write(data)


def save(figure: Figure, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a figure as ``.svg``, ``.pdf`` or ``.png``, whole or not at all."""
    disk.check_file(path, overwrite)
    disk.write_file(path, encoded(figure, path), overwrite=overwrite)
    return Path(path)


MOST_DIRECT = 6
"""So many lines are named at their ends; more of them in a legend."""
_LONGEST = 1.5  # inches of a name beside a line
_STROKE = 0.22  # inches of a sample of a line in a legend


def wrapped(words: str, limit: float, size: float = SMALL) -> list[str]:
    """Return words on lines of at most so many inches."""
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and wide(longer, size) <= limit:
            lines[-1] = longer
        else:
            lines.append(shortened(word, limit, size))
    return lines


def head_height(title: str, note: str, width: float) -> float:
    """Return the inches that title and note take."""
    lines = len(wrapped(note, width - 0.1)) if note else 0
    return (height_of(SIZE) if title else 0.0) + lines * height_of(SMALL) + (0.06 if title or note else 0.0)


def head(figure: Figure, title: str, note: str) -> None:
    """Write the title, and the note under it, at the top left."""
    width, height = figure.get_size_inches()
    top, left = 0.03, 0.05 / width
    if title:
        words = shortened(title, width - 0.1, SIZE, True)
        text(figure, left, 1 - top / height, words, bold=True, ha="left", va="top")
        top += height_of(SIZE)
    for line in wrapped(note, width - 0.1) if note else ():
        text(figure, left, 1 - top / height, line, SMALL, SOFT_INK, ha="left", va="top")
        top += height_of(SMALL)


def names_at_ends(
    axes: Any, ends: Sequence[tuple[str, Look, float, float]], width: float, height: float, size: float = SMALL
) -> None:
    """Write the name of every line to the right of axes of ``wide`` times ``high`` inches.

    ``ends`` has name, look, the last value and the mean of each line. Names keep clear of each other; lines that end
    in one place are named in the order of their means.
    """
    low, top = axes.get_ylim()
    step = height_of(size) / height
    place = {name: (last - low) / (top - low) for name, _, last, _ in ends}
    order = sorted(ends, key=lambda end: (round(place[end[0]] / step), end[3]))
    spread = _apart([place[end[0]] for end in order], step)
    for (name, look, _, _), at in zip(order, spread, strict=True):
        how: dict[str, Any] = {"transform": axes.transAxes, "ha": "left", "va": "center", "clip_on": False}
        text(axes, 1 + 0.05 / width, at, shortened(name, _LONGEST, size), size, look.colour, **how)


def _apart(places: Sequence[float], step: float) -> list[float]:
    """Return places, in order, moved until neighbours are a step apart: blocks that collide share their middle."""
    blocks: list[list[float]] = []  # sum of the wishes for the first of a block, and how many stand in it
    for place in places:
        blocks.append([place, 1])
        while len(blocks) > 1:
            (wish, many), (last, few) = blocks[-2:]
            if wish / many + many * step <= last / few:
                break
            blocks[-2:] = [[wish + last - few * many * step, many + few]]
    apart = [wish / many + number * step for wish, many in blocks for number in range(int(many))]
    lowest = step / 2  # below that are the numbers of the x axis
    for at, place in enumerate(apart):
        apart[at] = max(place, lowest)
        lowest = apart[at] + step
    return apart


def key_width(names: Sequence[str], size: float = SMALL) -> float:
    """Return the inches that names beside lines take."""
    return max((wide(shortened(name, _LONGEST, size), size) for name in names), default=0.0)


def _columns(names: Sequence[str], width: float) -> int:
    each = key_width(names) + _STROKE + 0.2
    return max(1, min(len(names), int((width - 0.1) / each)))


def key_height(names: Sequence[str], width: float) -> float:
    """Return the inches that a legend takes."""
    return -(-len(names) // _columns(names, width)) * height_of(SMALL) + 0.06


def key(figure: Figure, look: Mapping[str, Look], names: Sequence[str], line: bool = True) -> None:
    """Draw a legend along the lower edge of a figure, column by column."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    columns = _columns(names, width)
    rows = -(-len(names) // columns)
    each = key_width(names) + _STROKE + 0.2
    for at, name in enumerate(names):
        left = 0.05 + (at // rows) * each
        up = (rows - at % rows - 0.5) * height_of(SMALL) + 0.03
        sample: dict[str, Any] = {"color": look[name].colour, "linewidth": 1.2, "linestyle": look[name].stroke}
        sample |= {"marker": "none", "solid_capstyle": "butt", "dash_capstyle": "butt"}
        if not line:
            sample |= {"linestyle": "none", "marker": look[name].mark, "markersize": 3.2, "markeredgewidth": 0}
        across = [left / width, (left + _STROKE) / width] if line else [(left + _STROKE / 2) / width]
        figure.add_artist(Line2D(across, [up / height] * len(across), **sample))
        words = shortened(name, _LONGEST, SMALL)
        text(figure, (left + _STROKE + 0.05) / width, up / height, words, SMALL, INK, ha="left", va="center_baseline")
