"""Maps to pictures: numpy arrays and Pillow images come in, Pillow images and strings go out.

`colour` says which value gets which colour, `overlay` puts a map on its photograph, `panel` puts many side by
side, `html` makes a page of them.
"""

from .colour import COLOURS, DIVERGING, JET, SEQUENTIAL, Scale, colourise
from .html import Section, figure, png_data_uri, report
from .overlay import heatmap, on_photo, overlay, upsample
from .panel import Cell, panel

__all__ = [
    "COLOURS",
    "DIVERGING",
    "JET",
    "SEQUENTIAL",
    "Cell",
    "Scale",
    "Section",
    "colourise",
    "figure",
    "heatmap",
    "on_photo",
    "overlay",
    "panel",
    "png_data_uri",
    "report",
    "upsample",
]
