"""ImageNet with masks: ImageNet-S, and the file of ImageNet-Segmentation."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.known import _numbers
from vitreous.data.pictures import Picture
from vitreous.data.sets.imagenet import wnid_folders
from vitreous.data.sets.kinds import Found, source_kind
from vitreous.data.sets.labels import index_of_wnid
from vitreous.data.sets.listing import content, folder_at, folders, misfit, pictures_below
from vitreous.data.sets.source import Entry
from vitreous.data.truth import Truth
from vitreous.errors import ImageError, one_line

__all__: list[str] = []

_S, _SEGMENTATION = "imagenet-s", "imagenet-segmentation"
_IGNORED = 1000
_SIZES = (50, 300, 919)
_EXPECTED_S = "validation/ and validation-segmentation/, both with folders of WordNet ids"
_EXPECTED_FILE = "the file gtsegs_ijcv.mat (HDF5, with value/img, value/gt and value/id)"


@source_kind(_S)
def imagenet_s(path: Path, split: str = "validation") -> Found:
    """ImageNet-S: pictures and masks that number the classes as red + 256 green; 0 is other, 1000 is ignored."""
    folder_at(_S, path, _EXPECTED_S)
    shown, masks = path / split, path / f"{split}-segmentation"
    if not os.path.isdir(shown) or not os.path.isdir(masks):
        raise misfit(_S, _EXPECTED_S.replace("validation", split), content(path), path)
    wnids = [each.name for each in folders(masks)]
    numbers = {wnid: number for number, wnid in enumerate(sorted(wnids), 1)} if len(wnids) in _SIZES else {}
    found = wnid_folders(_S, shown)
    by_name = {each.relative_to(masks).with_suffix("").as_posix(): each for each in pictures_below(masks)}
    entries = []
    for each in found.entries:
        mask = by_name.get(each.name.rpartition(".")[0])
        if mask is None:
            raise misfit(_S, f"a mask of {one_line(each.name)}", "there is none", masks)
        number = numbers.get(each.name.partition("/")[0])
        entries.append(replace(each, mask=mask, known=partial(_numbered, mask, number)))
    note = f"{found.note}; {len(wnids)} folders of masks"
    return replace(
        found, entries=entries, note=note if numbers else f"{note}, so masks of several classes are left out"
    )


def _numbered(mask: Path, number: int | None, picture: Picture) -> Truth:
    """The region of the labelled class. Its number is the place of its folder, which a part of the data cannot tell."""
    told = _numbers(mask) % 2**16  # red + 256 green; blue says nothing
    if number is None:
        there = sorted(set(np.unique(told).tolist()) - {0, _IGNORED})
        if len(there) != 1:
            raise ImageError(f"{mask} has the classes {there}, and which is whose only the whole data set tells")
        number = there[0]
    return Truth.of_photo(picture, told == number, ignore=told == _IGNORED)


@source_kind(_SEGMENTATION)
def imagenet_segmentation(path: Path) -> Found:
    """ImageNet-Segmentation (Guillaumin et al.): 4,276 images and masks in one HDF5 file; needs h5py."""
    place = path / "gtsegs_ijcv.mat" if os.path.isdir(path) else path
    if not os.path.isfile(place):
        raise misfit(
            _SEGMENTATION, _EXPECTED_FILE, content(path) if os.path.isdir(path) else "there is no such file", path
        )
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise ImageError(
            f"{_SEGMENTATION}: {place.name} is read by h5py, which is not installed: pip install h5py"
        ) from None
    try:
        file = h5py.File(place, "r")
    except OSError as error:
        raise misfit(
            _SEGMENTATION, _EXPECTED_FILE, f"it is no HDF5 file: {one_line(str(error))[:100]}", place
        ) from None
    lost = next((name for name in ("value/img", "value/gt", "value/id") if name not in file), None)
    if lost is not None:
        raise misfit(_SEGMENTATION, _EXPECTED_FILE, f"it has no {lost}", place)
    return Found(list(_Segments(file).entries()), note="labels are the WordNet ids in the file")


class _Segments:
    """Reads one picture or mask at a time; HDF5 is not made for threads. Its arrays are those of MATLAB, turned."""

    def __init__(self, file: Any) -> None:
        self.file, self.lock = file, Lock()

    def entries(self) -> list[Entry]:
        found = []
        for place in range(len(self.file["value/img"])):
            codes = np.asarray(self.file[self.file["value/id"][place, 0]]).ravel()
            name = "".join(map(chr, codes.tolist()))
            wnid = name.partition("_")[0]
            index = index_of_wnid(wnid)
            label = wnid if index is None else index
            shown, known = partial(self.picture, place), partial(self.truth, place)
            found.append(Entry(f"{place:04d}-{name}", label=label, opener=shown, known=known))
        return found

    def picture(self, place: int) -> Image.Image:
        with self.lock:
            values = np.asarray(self.file[self.file["value/img"][place, 0]])
        return Image.fromarray(np.ascontiguousarray(values.transpose(2, 1, 0).astype(np.uint8))).convert("RGB")

    def truth(self, place: int, picture: Picture) -> Truth:
        with self.lock:
            cell = self.file[self.file["value/gt"][place, 0]]
            values = np.asarray(self.file[cell[0, 0]])
        return Truth.of_photo(picture, values.T != 0)
