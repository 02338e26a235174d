"""Figures for papers: matplotlib, one quiet style, vector files in which text is text.

Each function takes plain numbers or pictures and returns a ``matplotlib.figure.Figure``; ``save`` writes one. The
figures of a table are at ``Table.plot``.
"""

from .bars import Mean, bars, bins, histogram
from .curves import Line, Panel, lines
from .matrix import matrix
from .radar import radar
from .strips import cascade, strips
from .style import COLUMN, FORMATS, PAGE, Figure, Look, encoded, looks, require, save

__all__ = [
    "COLUMN",
    "FORMATS",
    "PAGE",
    "Figure",
    "Line",
    "Look",
    "Mean",
    "Panel",
    "bars",
    "bins",
    "cascade",
    "encoded",
    "histogram",
    "lines",
    "looks",
    "matrix",
    "radar",
    "require",
    "save",
    "strips",
]
