"""Data: what people hand in. Pictures, their true classes, what else is known, and how far a long run is."""

from vitreous.data.batches import cut
from vitreous.data.grids import Grids, grids, mosaics
from vitreous.data.known import read_regions
from vitreous.data.pictures import OnError, Picture, count, file_digest, image_files, is_single, open_photo, pictures
from vitreous.data.progress import Progress
from vitreous.data.sources import Sample, how_many, read_samples
from vitreous.data.truth import KINDS, Truth

__all__ = [
    "KINDS",
    "Grids",
    "OnError",
    "Picture",
    "Progress",
    "Sample",
    "Truth",
    "count",
    "cut",
    "file_digest",
    "grids",
    "how_many",
    "image_files",
    "is_single",
    "mosaics",
    "open_photo",
    "pictures",
    "read_regions",
    "read_samples",
]
