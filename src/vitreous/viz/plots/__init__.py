"""Figures for papers: matplotlib, one quiet style, vector files in which text is text.

Each function takes plain numbers or images and returns a ``matplotlib.figure.Figure``; ``save`` writes one. The
figures of a table are at ``ScoreTable.plot``.
"""

from vitreous.viz.plots.charts import LinePanel, Mean, Series, bars, bins, histogram, lines
from vitreous.viz.plots.image_grids import cascade, matrix, radar, strips
from vitreous.viz.plots.style import COLUMN, FORMATS, PAGE, Figure, LineStyle, encoded, line_styles, require, save

__all__ = [
    "COLUMN",
    "FORMATS",
    "PAGE",
    "Figure",
    "LinePanel",
    "LineStyle",
    "Mean",
    "Series",
    "bars",
    "bins",
    "cascade",
    "encoded",
    "histogram",
    "line_styles",
    "lines",
    "matrix",
    "radar",
    "require",
    "save",
    "strips",
]
