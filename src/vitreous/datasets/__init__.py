"""Data: images, their true classes, annotations, and the public data sets."""

from vitreous.datasets import coco, files, funnybirds, grids, imagenet, public  # noqa: F401 - they register sources
from vitreous.datasets.annotations import ANNOTATION_KINDS, Annotation
from vitreous.datasets.catalog import Listing, open_source, register_source, source_names
from vitreous.datasets.dataset import DataSource, Entry, Sample, read_samples
from vitreous.datasets.files import load_annotations
from vitreous.datasets.grids import Grids, make_grids, make_mosaics
from vitreous.datasets.images import (
    LoadedImage,
    OnError,
    batched,
    count_images,
    file_digest,
    image_files,
    is_single_image,
    load_images,
    open_image,
)

__all__ = [
    "ANNOTATION_KINDS",
    "Annotation",
    "DataSource",
    "Entry",
    "Grids",
    "Listing",
    "LoadedImage",
    "OnError",
    "Sample",
    "batched",
    "count_images",
    "file_digest",
    "image_files",
    "is_single_image",
    "load_annotations",
    "load_images",
    "make_grids",
    "make_mosaics",
    "open_image",
    "open_source",
    "read_samples",
    "register_source",
    "source_names",
]
