"""Figures for papers: matplotlib, one quiet style, vector files in which text is text.

Each function takes plain numbers or pictures and returns a ``matplotlib.figure.Figure``; ``save`` writes one. The
figures of a table are at ``Table.plot``.
"""

from vitreous.viz.plots.charts import Line, Mean, Panel, bars, bins, histogram, lines
from vitreous.viz.plots.image_grids import cascade, matrix, radar, strips
from vitreous.viz.plots.style import COLUMN, FORMATS, PAGE, Figure, Look, encoded, looks, require, save

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
