"""The one style of all figures: sizes, inks, text, axes and files.

Everything is said to matplotlib figure by figure: its global settings, its backend and pyplot are left alone, and a
user's own settings do not show. Lengths are in inches; a paper's column has 3.4 of them, its page 7.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vitreous import disk
from vitreous.errors import VitreousError, one_line

from ..sheet import INK, SOFT_INK

__all__ = [
    "COLUMN",
    "FAINT",
    "FORMATS",
    "INK",
    "PAGE",
    "SIZE",
    "SMALL",
    "SOFT_INK",
    "Figure",
    "Look",
    "axes",
    "clean",
    "encoded",
    "height_of",
    "label",
    "line",
    "looks",
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
