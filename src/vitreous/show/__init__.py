"""Maps to pictures: numpy arrays and Pillow images come in, Pillow images and strings go out.

`colour` says which value gets which colour, `overlay` puts a map on its photograph, `panel` puts many side by
side, `extras` knows a picture for what a method returns beside its map, `html` makes a page of them.
"""

from .colour import COLOURS, DIVERGING, JET, SEQUENTIAL, Scale, colourise
from .extras import EXTRAS, draws_extra, pictures_of
from .files import encoded
from .html import Section, figure, png_data_uri, report
from .overlay import heatmap, on_photo, overlay, upsample
from .owners import class_colours, owner_overlay, owners
from .panel import Cell, panel

__all__ = [
    "COLOURS",
    "DIVERGING",
    "EXTRAS",
    "JET",
    "SEQUENTIAL",
    "Cell",
    "Scale",
    "Section",
    "class_colours",
    "colourise",
    "draws_extra",
    "encoded",
    "figure",
    "heatmap",
    "on_photo",
    "overlay",
    "owner_overlay",
    "owners",
    "panel",
    "pictures_of",
    "png_data_uri",
    "report",
    "upsample",
]
