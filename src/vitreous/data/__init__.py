"""Data: what people hand in. Pictures, their true classes, and how far a long run is."""

from vitreous.data.batches import cut
from vitreous.data.pictures import OnError, Picture, count, file_digest, image_files, is_single, open_photo, pictures
from vitreous.data.progress import Progress
from vitreous.data.sources import how_many, labelled

__all__ = [
    "OnError",
    "Picture",
    "Progress",
    "count",
    "cut",
    "file_digest",
    "how_many",
    "image_files",
    "is_single",
    "labelled",
    "open_photo",
    "pictures",
]
