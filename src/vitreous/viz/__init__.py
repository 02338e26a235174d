"""Maps to pictures: numpy arrays and Pillow images come in, Pillow images and strings go out.

`colour` says which value gets which colour, `legend` puts that into words, `overlay` puts a map on its photograph,
`panel` puts many side by side on a `sheet`, `vector` writes that as SVG or PDF, `extras` knows a picture for what a
method returns beside its map, `html` makes a page of them.
"""

from vitreous.viz.canvas import Sheet, bare, display, encoded, is_picture
from vitreous.viz.colormap import COLOURS, DIVERGING, JET, SEQUENTIAL, Scale, colourise
from vitreous.viz.legend import captioned
from vitreous.viz.overlay import cut_out, heatmap, on_photo, overlay, resized, upsample
from vitreous.viz.panel import (
    EXTRAS,
    TILE,
    Cell,
    class_colours,
    owner_overlay,
    owners,
    panel,
    pictures_of,
    renders_extra,
    sheet,
    times_input,
)

__all__ = [
    "COLOURS",
    "DIVERGING",
    "EXTRAS",
    "JET",
    "SEQUENTIAL",
    "TILE",
    "Cell",
    "Scale",
    "Sheet",
    "bare",
    "captioned",
    "class_colours",
    "colourise",
    "cut_out",
    "display",
    "renders_extra",
    "encoded",
    "heatmap",
    "is_picture",
    "on_photo",
    "overlay",
    "owner_overlay",
    "owners",
    "panel",
    "pictures_of",
    "resized",
    "sheet",
    "times_input",
    "upsample",
]
