"""Maps to pictures: numpy arrays and Pillow images come in, Pillow images and strings go out.

`colormap` says which value gets which colour and draws colour bars, `overlays` put a map on its photograph, `panels`
put many side by side and draw what methods return beside their maps, `canvas` is the page they stand on, in pixels or
as SVG or PDF, and `plots` are figures for papers.
"""

from vitreous.viz.canvas import Sheet, display, encoded, image_sheet, is_picture
from vitreous.viz.colormap import COLOURS, DIVERGING, SEQUENTIAL, Scale, captioned
from vitreous.viz.overlays import cut_out, heatmap, on_photo, overlay, resized
from vitreous.viz.panels import EXTRAS, TILE, Cell, class_colours, owner_overlay, panel, pictures_of, sheet, times_input

__all__ = [
    "COLOURS",
    "DIVERGING",
    "EXTRAS",
    "SEQUENTIAL",
    "TILE",
    "Cell",
    "Scale",
    "Sheet",
    "captioned",
    "class_colours",
    "cut_out",
    "display",
    "encoded",
    "heatmap",
    "image_sheet",
    "is_picture",
    "on_photo",
    "overlay",
    "owner_overlay",
    "panel",
    "pictures_of",
    "resized",
    "sheet",
    "times_input",
]
