"""Data: what people hand in. Pictures, their true classes, what else is known, and how far a long run is."""

from vitreous.datasets.annotations import KINDS, Annotation, load_annotations
from vitreous.datasets.grids import Grids, grids, mosaics
from vitreous.datasets.images import (
    LoadedImage,
    OnError,
    count,
    cut,
    file_digest,
    image_files,
    is_single,
    open_photo,
    pictures,
)
from vitreous.datasets.samples import Sample, how_many, read_samples
from vitreous.progress import Progress

__all__ = [
    "KINDS",
    "Grids",
    "OnError",
    "LoadedImage",
    "Progress",
    "Sample",
    "Annotation",
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
    "load_annotations",
    "read_samples",
]
