"""Maps to pictures: numpy arrays and Pillow images come in, Pillow images and strings go out.

`colour` says which value gets which colour, `legend` puts that into words, `overlay` puts a map on its photograph,
`panel` puts many side by side on a `sheet`, `vector` writes that as SVG or PDF, `extras` knows a picture for what a
method returns beside its map, `html` makes a page of them.
"""

from .colour import COLOURS, DIVERGING, JET, SEQUENTIAL, Scale, colourise
from .extras import EXTRAS, draws_extra, pictures_of
from .files import encoded, is_picture
from .html import Section, figure, png_data_uri, report
from .legend import captioned
from .overlay import cut_out, heatmap, on_photo, overlay, resized, upsample
from .owners import class_colours, owner_overlay, owners
from .panel import TILE, Cell, panel, sheet
from .product import times_input
from .screen import display
from .sheet import Sheet, bare

__all__ = [
    "COLOURS",
    "DIVERGING",
    "EXTRAS",
    "JET",
    "SEQUENTIAL",
    "TILE",
    "Cell",
    "Scale",
    "Section",
    "Sheet",
    "bare",
    "captioned",
    "class_colours",
    "colourise",
    "cut_out",
    "display",
    "draws_extra",
    "encoded",
    "figure",
    "heatmap",
    "is_picture",
    "on_photo",
    "overlay",
    "owner_overlay",
    "owners",
    "panel",
    "pictures_of",
    "png_data_uri",
    "report",
    "resized",
    "sheet",
    "times_input",
    "upsample",
]
