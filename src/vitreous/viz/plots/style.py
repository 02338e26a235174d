"""The one style of all figures: sizes, colours, text, axes, titles, legends and files.

Everything is set figure by figure: matplotlib's global settings, its backend and pyplot are left alone, and a user's
own settings do not show. Lengths are in inches; a paper's column has 3.4 of them, its page 7.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vitreous import io as disk
from vitreous.errors import VitreousError, one_line
from vitreous.viz.canvas import INK, SOFT_INK

Figure = Any
"""A ``matplotlib.figure.Figure``; matplotlib is not imported before something is mpl_axis."""

COLUMN, PAGE = 3.4, 7.0
SIZE, SMALL = 7.5, 6.5  # points
FAINT = "#d5d8dd"
FORMATS = (".svg", ".pdf", ".png")
MAX_NAMED_LINES = 6
"""So many lines are named at their ends; more of them in a legend."""
_FAMILY = "DejaVu Sans"  # comes with matplotlib, so that a figure is the same everywhere
_DPI = 300  # of PNG
_SAVING = {"svg.fonttype": "none", "svg.hashsalt": "vitreous", "pdf.fonttype": 42, "savefig.bbox": None}
_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": "Vitreous"},
    ".pdf": {"CreationDate": None, "Creator": "Vitreous", "Producer": None},
    ".png": {"Software": None},
}
_LOCK = threading.Lock()
_LONGEST = 1.5  # inches of a name beside a line
_SAMPLE = 0.22  # inches of a sample of a line in a legend

# Told apart by people with each kind of colour blindness, and dark enough for text on white.
_COLOURS = ("#0072b2", "#d55e00", "#00805a", "#a4448f", "#a87900", "#332288", "#3d93c9", "#882255")
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = ("o", "s", "^", "D")
_CONTROLS: dict[str, tuple[str, Any, str]] = {
    "random": ("#70757e", (0, (4, 2)), "s"),
    "constant": ("#70757e", (0, (1.2, 1.6)), "D"),
    "centre": ("#8d929b", (0, (5, 1.5, 1.2, 1.5)), "^"),
    "edges": ("#8d929b", (0, (8, 2)), "v"),
}


@dataclass(frozen=True)
class LineStyle:
    """How the lines of one method are drawn; those of control methods are thinner."""

    colour: str
    dashes: Any = "solid"
    marker: str = "o"
    is_control: bool = False


def line_styles(methods: Sequence[str]) -> dict[str, LineStyle]:
    """Return a style for every method, in order: eight colours, then the same ones dashed; control methods are grey."""
    styles: dict[str, LineStyle] = {}
    others = [name for name in methods if name not in _CONTROLS]
    for name in methods:
        if name in _CONTROLS:
            styles[name] = LineStyle(*_CONTROLS[name], is_control=True)
        else:
            repeat, colour = divmod(others.index(name), len(_COLOURS))
            repeat %= len(_DASHES)
            styles[name] = LineStyle(_COLOURS[colour], _DASHES[repeat], _MARKERS[repeat])
    return styles


def require() -> None:
    """Complain in one line if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise VitreousError("figures need matplotlib, which is not installed: pip install 'vitreous[plot]'") from None


def to_inches(width: str | float) -> float:
    """Return a width in inches: a number, ``"column"`` or ``"page"``."""
    named = {"column": COLUMN, "page": PAGE}
    if isinstance(width, str):
        if width not in named:
            raise VitreousError(f"width={width!r} is neither column, page nor a number of inches")
        return named[width]
    if not 2 <= width <= 40:
        raise VitreousError(f"width={width} must lie between 2 and 40 inches")
    return float(width)


# -- text ----------------------------------------------------------------------------------------------


def clean(string: str) -> str:
    """Return text that every format can hold: one line, no control characters, no halves of characters."""
    return one_line(str(string).encode("utf-8", "replace").decode("utf-8"))


def _font(size: float, bold: bool = False) -> Any:
    from matplotlib.font_manager import FontProperties

    normal = dict.fromkeys(("style", "variant", "stretch"), "normal")
    return FontProperties(family=_FAMILY, size=size, weight="bold" if bold else "normal", **normal)


def _set_font(artist: Any, size: float, colour: str, bold: bool = False) -> None:
    artist.set_fontproperties(_font(size, bold))
    artist.set(color=colour, usetex=False, parse_math=False)


def text(
    parent: Any,
    x: float,
    y: float,
    string: str,
    size: float = SIZE,
    colour: str = INK,
    bold: bool = False,
    **options: Any,
) -> Any:
    """Write plain text on axes or a figure: a ``$`` is a ``$``."""
    artist = parent.text(x, y, clean(string), **options)
    _set_font(artist, size, colour, bold)
    return artist


def text_width(string: str, size: float = SMALL, bold: bool = False) -> float:
    """Return how wide text will be, in inches."""
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(clean(string), _font(size, bold), ismath=False)
    return float(width) / 72


def widest(strings: Sequence[str], size: float = SMALL) -> float:
    """Return the width of the widest of several texts, in inches."""
    return max((text_width(string, size) for string in strings), default=0.0)


def line_height(size: float = SMALL) -> float:
    """Return the height of a line of text, in inches."""
    return 1.35 * size / 72


def shorten(string: str, limit: float, size: float = SMALL, bold: bool = False) -> str:
    """Return text that is at most so many inches wide: its middle gives way to an ellipsis."""
    string = clean(string)
    if text_width(string, size, bold) <= limit:
        return string
    for length in range(len(string) - 1, 1, -1):
        cut = f"{string[: -(-length // 2)]}…{string[len(string) - length // 2 :]}"
        if text_width(cut, size, bold) <= limit:
            return cut
    return "…"


def wrap(string: str, limit: float, size: float = SMALL) -> list[str]:
    """Return words on lines of at most so many inches."""
    lines: list[str] = []
    for word in string.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= limit:
            lines[-1] = longer
        else:
            lines.append(shorten(word, limit, size))
    return lines


def number(value: float) -> str:
    """Return a number as text: six digits at most, with a true minus."""
    return f"{value:.6g}".replace("-", "−")


# -- figures and axes ----------------------------------------------------------------------------------


def new_figure(width: float, height: float, title: str, note: str) -> tuple[Figure, float]:
    """Return a white figure with a title and a note above ``height`` inches, and the inches that these take."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Blank

    lines = wrap(note, width - 0.1) if note else []
    top = (line_height(SIZE) if title else 0.0) + len(lines) * line_height() + (0.06 if title or note else 0.0)
    size = (width, top + height)
    figure = Blank(figsize=size, dpi=_DPI, facecolor="white", edgecolor="white", linewidth=0, layout="none")
    FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    down = 0.03
    if title:
        string = shorten(title, width - 0.1, SIZE, True)
        text(figure, 0.05 / width, 1 - down / height, string, bold=True, ha="left", va="top")
        down += line_height(SIZE)
    for string in lines:
        text(figure, 0.05 / width, 1 - down / height, string, SMALL, SOFT_INK, ha="left", va="top")
        down += line_height()
    return figure, top


def axes(figure: Figure, left: float, top: float, width: float, height: float, *, frame: str = "left bottom") -> Any:
    """Return axes at a place in inches from the top left corner, with lines at some of its sides and nothing else."""
    size = figure.get_size_inches()
    box = (left / size[0], 1 - (top + height) / size[1], width / size[0], height / size[1])
    ax = figure.add_axes(box, facecolor="none", axisbelow=True)
    ax.minorticks_off()
    ax.grid(False)
    for side, spine in ax.spines.items():
        spine.set(visible=side in frame, color=SOFT_INK, linewidth=0.6)
    sides = {f"{prefix}{side}": bool(frame) for side in ("bottom", "left") for prefix in ("", "label")}
    others = {f"{prefix}{side}": False for side in ("top", "right") for prefix in ("", "label")}
    ax.tick_params(which="both", direction="out", length=2.5, width=0.6, color=SOFT_INK, pad=2.5, **sides, **others)
    ax.margins(0)
    for axis in "xy":
        ticks(ax, axis, (), ())
    return ax


def ticks(ax: Any, axis: str, positions: Sequence[float], names: Sequence[str] | None = None) -> None:
    """Put ticks at some positions of the ``"x"`` or ``"y"`` axis, and nowhere else; their numbers where not named."""
    names = [number(position) for position in positions] if names is None else names
    mpl_axis = {"x": ax.xaxis, "y": ax.yaxis}[axis]
    mpl_axis.set_ticks(list(positions), labels=[clean(name) for name in names])
    for tick_label in mpl_axis.get_ticklabels():
        _set_font(tick_label, SMALL, SOFT_INK)


def label(ax: Any, axis: str, string: str) -> None:
    """Say what the ``"x"`` or ``"y"`` axis shows."""
    mpl_axis = {"x": ax.xaxis, "y": ax.yaxis}[axis]
    mpl_axis.labelpad = 3
    mpl_axis.label.set_text(clean(string))
    _set_font(mpl_axis.label, SIZE, SOFT_INK)


def line(
    ax: Any,
    x: Any,
    y: Any,
    colour: str,
    width: float = 0.6,
    marker: str = "none",
    dashes: Any = "solid",
    **options: Any,
) -> None:
    """Draw a line; every setting that a user may have changed is set."""
    ends = {"solid_capstyle": "butt", "dash_capstyle": "butt", "solid_joinstyle": "round", "dash_joinstyle": "round"}
    dots = {"marker": marker, "markersize": 2.6, "markeredgewidth": 0, "markerfacecolor": colour, "fillstyle": "full"}
    ax.plot(x, y, color=colour, linewidth=width, linestyle=dashes, antialiased=True, **{**ends, **dots, **options})


def ruled_ticks(ax: Any, axis: str) -> None:
    """Put round numbers on the ``"x"`` or ``"y"`` axis, and a faint line across the axes at each."""
    spans = ax.get_xlim(), ax.get_ylim()
    span, ends = spans if axis == "x" else spans[::-1]
    positions = nice_ticks(*span)
    ticks(ax, axis, positions)
    for position in positions:
        x, y = ([position] * 2, ends) if axis == "x" else (ends, [position] * 2)
        line(ax, x, y, FAINT, 0.4, zorder=0.5, label="_rule", scalex=False, scaley=False)


def nice_ticks(lower: float, upper: float, most: int = 5) -> list[float]:
    """Return at most so many round numbers in a range: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if not upper > lower:
        return [lower]
    power = 10.0 ** math.floor(math.log10((upper - lower) / max(1, most - 1)))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        first, last = math.ceil(lower / step - 1e-9), math.floor(upper / step + 1e-9)
        if last - first + 1 <= most:
            return [round(index * step, 12) for index in range(first, last + 1)]
    return [lower, upper]


# -- names of lines ------------------------------------------------------------------------------------


def names_at_ends(
    ax: Any, ends: Sequence[tuple[str, float, float]], styles: Mapping[str, LineStyle], width: float, height: float
) -> None:
    """Write the name of every line to the right of axes of so many inches.

    ``ends`` has name, the last value and the mean of each line. Names keep clear of each other; lines that end
    in one place are named in the order of their means.
    """
    lower, top = ax.get_ylim()
    step = line_height() / height
    position = {name: (last - lower) / (top - lower) for name, last, _ in ends}
    names = [name for name, _, _ in sorted(ends, key=lambda end: (round(position[end[0]] / step), end[2]))]
    options: dict[str, Any] = {"transform": ax.transAxes, "ha": "left", "va": "center", "clip_on": False}
    for name, y in zip(names, _apart([position[name] for name in names], step), strict=True):
        text(ax, 1 + 0.05 / width, y, shorten(name, _LONGEST), SMALL, styles[name].colour, **options)


def _apart(positions: Sequence[float], step: float) -> list[float]:
    """Return positions, in order, moved until neighbours are a step apart: blocks that collide share their middle."""
    blocks: list[list[float]] = []  # sum of the wishes for the first of a block, and how many stand in it
    for position in positions:
        blocks.append([position, 1])
        while len(blocks) > 1:
            (wish, many), (last, few) = blocks[-2:]
            if wish / many + many * step <= last / few:
                break
            blocks[-2:] = [[wish + last - few * many * step, many + few]]
    apart = [wish / many + index * step for wish, many in blocks for index in range(int(many))]
    lowest = step / 2  # below that are the numbers of the x axis
    for index, position in enumerate(apart):
        apart[index] = max(position, lowest)
        lowest = apart[index] + step
    return apart


def names_width(names: Sequence[str]) -> float:
    """Return the inches that names beside lines take."""
    return widest([shorten(name, _LONGEST) for name in names])


def _columns(names: Sequence[str], width: float) -> tuple[int, float]:
    """Return the columns of a legend, and how wide one is."""
    column = names_width(names) + _SAMPLE + 0.2
    return max(1, min(len(names), int((width - 0.1) / column))), column


def legend_height(names: Sequence[str], width: float) -> float:
    """Return the inches that a legend takes."""
    return -(-len(names) // _columns(names, width)[0]) * line_height() + 0.06


def legend(figure: Figure, styles: Mapping[str, LineStyle], names: Sequence[str], lines: bool = True) -> None:
    """Draw a legend along the lower edge of a figure, column by column, with samples of lines or of markers."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    columns, column = _columns(names, width)
    rows = -(-len(names) // columns)
    for index, name in enumerate(names):
        left, style = 0.05 + (index // rows) * column, styles[name]
        up = ((rows - index % rows - 0.5) * line_height() + 0.03) / height
        sample: dict[str, Any] = {"linestyle": style.dashes, "marker": "none"}
        if not lines:
            sample = {"linestyle": "none", "marker": style.marker, "markersize": 3.2, "markeredgewidth": 0}
        sample |= {"color": style.colour, "linewidth": 1.2, "solid_capstyle": "butt", "dash_capstyle": "butt"}
        x = [left / width, (left + _SAMPLE) / width] if lines else [(left + _SAMPLE / 2) / width]
        figure.add_artist(Line2D(x, [up] * len(x), **sample))
        x_text = (left + _SAMPLE + 0.05) / width
        text(figure, x_text, up, shorten(name, _LONGEST), SMALL, ha="left", va="center_baseline")


# -- files ---------------------------------------------------------------------------------------------


def encoded(figure: Figure, path: str | Path) -> Callable[[BinaryIO], object]:
    """Return what writes a figure into an open file, in the format that the end of ``path`` asks for.

    The same figure gives the same bytes: no date, no random names.
    """
    import matplotlib

    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise VitreousError(f"could not write {path}: a figure must end in one of {', '.join(FORMATS)}")
    buffer, white = io.BytesIO(), {"facecolor": "white", "edgecolor": "white", "transparent": False}
    # matplotlib has only global settings for text as text in vector files: these few, while it writes
    with _LOCK, matplotlib.rc_context(_SAVING):
        figure.savefig(buffer, format=suffix[1:], dpi=_DPI, metadata=_METADATA[suffix], **white)
    data = buffer.getvalue()
    if suffix == ".svg":  # narrower faces first where the one that was measured is missing
        data = data.replace(f"'{_FAMILY}'".encode(), f"'{_FAMILY}', Helvetica, Arial, sans-serif".encode())
    return lambda file: file.write(data)


def save(figure: Figure, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a figure as ``.svg``, ``.pdf`` or ``.png``, whole or not at all."""
    disk.check_file(path, overwrite)
    disk.write_file(path, encoded(figure, path), overwrite=overwrite)
    return Path(path)
