"""ImageNet's validation images with their labels, and the two harder sets with 200 of its classes.

ImageNet with masks: ImageNet-S, and the file of ImageNet-Segmentation.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from vitreous.datasets.annotations import Annotation, _numbers
from vitreous.datasets.class_tables import imagenet_subset, index_of_wnid, is_wnid
from vitreous.datasets.dataset import Entry, Found, source_kind
from vitreous.datasets.files import (
    _of_json,
    class_folders,
    content,
    first_there,
    folder_at,
    folders,
    misfit,
    pictures_below,
    pictures_in,
    read_lines,
    table_beside,
)
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, one_line
from vitreous.models import Box

_WORD = "imagenet-val"
_NAME = re.compile(r"ILSVRC2012_val_([0-9]{8})")
_INSIDE = ("val", "validation", "ILSVRC2012_img_val", "ILSVRC/Data/CLS-LOC/val", "Data/CLS-LOC/val")
_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_KITS = ("", "ILSVRC2012_devkit_t12/data", "devkit/data", "data")
_EXPECTED = (
    f"folders of WordNet ids, or ILSVRC2012_val_*.JPEG with the devkit ({_TRUTH} and {_META}), "
    "LOC_val_solution.csv or a JSON table of its name beside it"
)


@source_kind(_WORD)
def imagenet_val(path: Path, boxes: str | Path | None = None) -> Found:
    """The validation images: folders of WordNet ids, or flat with the labels of the devkit, Kaggle or a JSON table.

    ``boxes`` is a folder of the annotations ``ILSVRC2012_val_*.xml``.
    """
    folder_at(_WORD, path, _EXPECTED)
    here = _has_wnids(path) or any(_NAME.match(each.stem) for each in pictures_in(path))
    shown = path if here else first_there(*(path / name for name in _INSIDE)) or path
    if _has_wnids(shown):
        found = wnid_folders(_WORD, shown)
    else:
        found = _flat(path, shown)
    entries = [replace(entry, name=Path(entry.name).name) for entry in found.entries]  # one name in every layout
    if boxes is not None:
        place = folder_at(_WORD, Path(boxes), "ILSVRC2012_val_*.xml")
        entries = [replace(entry, known=partial(_annotated, place, entry)) for entry in entries]
    return replace(found, entries=sorted(entries, key=lambda each: each.name))


@source_kind("imagenet-a")
def imagenet_a(path: Path) -> Found:
    """Natural adversarial examples: 200 folders of WordNet ids; the softmax is restricted to these classes."""
    return _subset("imagenet-a", path)


@source_kind("imagenet-r")
def imagenet_r(path: Path) -> Found:
    """Renditions: 200 folders of WordNet ids; the softmax is restricted to these classes."""
    return _subset("imagenet-r", path)


def _has_wnids(path: Path) -> bool:
    return any(is_wnid(folder.name) for folder in folders(path))


def _subset(word: str, path: Path) -> Found:
    found, classes = wnid_folders(word, path), imagenet_subset(word)
    other = next((entry for entry in found.entries if entry.label not in classes), None)
    if other is not None:
        said = f"{one_line(other.name.partition('/')[0])} is not one of its classes"
        raise misfit(word, "folders of its 200 WordNet ids", said, path)
    return replace(found, classes=classes)


def wnid_folders(word: str, path: Path) -> Found:
    """Find folders of WordNet ids that are classes of ImageNet; the labels are class indices."""
    entries = []
    for folder, files in class_folders(word, path, "folders of WordNet ids such as n01440764"):
        label = index_of_wnid(folder.name)
        if label is None:
            said = f"{one_line(folder.name)} is no WordNet id of ImageNet's thousand classes"
            raise misfit(word, "folders of WordNet ids such as n01440764", said, path)
        entries += [Entry(file.relative_to(path).as_posix(), file, label=label) for file in files]
    return Found(entries, note="labels are folders of WordNet ids")


# -- flat folders ------------------------------------------------------------------------------------------


def _flat(path: Path, shown: Path) -> Found:
    files = [each for each in pictures_in(shown) if _NAME.match(each.stem)]
    if not files:
        raise misfit(_WORD, _EXPECTED, content(shown), shown)
    places = [place for base in dict.fromkeys((path, shown, shown.parent)) for place in (base / kit for kit in _KITS)]
    told = first_there(*(place / _TRUTH for place in places))
    if told is not None:
        meta = first_there(told.parent / _META, *(place / _META for place in places))
        if meta is None:
            raise misfit(_WORD, f"{_META} beside {_TRUTH}", "it is not there", told.parent)
        labels = _devkit(told, meta)
        numbered = [(file, _number(file)) for file in files]
        short = next((each for each, number in numbered if not 0 < number <= len(labels)), None)
        if short is not None:
            raise misfit(_WORD, f"a line for {short.name}", f"it has {len(labels)}", told)
        entries = [Entry(each.name, each, label=labels[number - 1]) for each, number in numbered]
        return Found(entries, note=f"labels of {_TRUTH} by {_META}")
    solution = first_there(*(place / "LOC_val_solution.csv" for place in places))
    if solution is not None:
        return _kaggle(files, solution)
    table = table_beside(shown)
    if table is not None:
        return _table(files, table)
    raise misfit(_WORD, _EXPECTED, f"there are {len(files)} pictures and no labels", shown)


def _number(file: Path) -> int:
    told = _NAME.match(file.stem)
    assert told is not None
    return int(told[1])


def _devkit(truth: Path, meta: Path) -> list[int]:
    """Return the class of every image: the devkit numbers its classes in an order of its own, from 1."""
    order = _synsets(meta)
    labels = []
    for at, line in enumerate(read_lines(_WORD, truth), 1):
        number = int(line) if line.strip().isdecimal() else None
        if number not in order:
            raise misfit(_WORD, "a number of a class in every line", f"line {at} is {line!r:.40}", truth)
        labels.append(order[number])
    return labels


def _synsets(meta: Path) -> dict[int, int]:
    """Return the class index of each of the devkit's numbers."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImageError(
            f"{_WORD}: {meta.name} is read by scipy, which is not installed: pip install scipy (or vitreous[bench])"
        ) from None
    try:
        rows: Any = loadmat(meta, squeeze_me=True, variable_names=["synsets"])["synsets"]
        pairs = [(int(row["ILSVRC2012_ID"]), str(row["WNID"])) for row in rows]
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise ImageError(f"{_WORD}: {meta} cannot be read: {one_line(str(error))[:200]}") from None
    leaves = {number: index_of_wnid(wnid) for number, wnid in pairs}  # the inner nodes of the tree follow after 1000
    return {number: index for number, index in leaves.items() if index is not None}


def _kaggle(files: list[Path], solution: Path) -> Found:
    """Read lines of a name and, over and over, a WordNet id and a box in pixels."""
    rows = {row[0]: told for row in csv.reader(read_lines(_WORD, solution)) if (told := _solved(row)) is not None}
    lost = next((file for file in files if file.stem not in rows), None)
    if lost is not None:
        raise misfit(_WORD, f"a line for {lost.stem}", "there is none", solution)
    entries = [Entry(file.name, file, label=rows[file.stem][0], boxes=rows[file.stem][1]) for file in files]
    return Found(entries, note=f"labels and boxes of {solution.name}")


def _solved(row: list[str]) -> tuple[int, tuple[Box, ...]] | None:
    words = row[1].split() if len(row) == 2 else []
    label = index_of_wnid(words[0]) if words and len(words) % 5 == 0 else None
    try:
        numbers = [float(word) for at, word in enumerate(words) if at % 5]
    except ValueError:
        return None
    if label is None:
        return None
    return label, tuple((a, b, c, d) for a, b, c, d in zip(*(numbers[at::4] for at in range(4)), strict=True))


def _table(files: list[Path], table: Path) -> Found:
    found = _of_json(_WORD, table)
    rows = {Path(entry.name).stem: entry for entry in found.entries}
    lost = next((file for file in files if file.stem not in rows or rows[file.stem].label is None), None)
    if lost is not None:
        raise misfit(_WORD, f"a label for {lost.name}", "there is none", table)
    return replace(found, entries=[replace(rows[file.stem], path=file) for file in files])


# -- boxes -------------------------------------------------------------------------------------------------

_OBJECT = re.compile(r"<object>(.*?)</object>", re.S)
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def _annotated(folder: Path, entry: Entry, picture: LoadedImage) -> Annotation:
    """Read the boxes of the labelled class when they are asked for: 50,000 small files are not opened beforehand."""
    place = folder / f"{Path(entry.name).stem}.xml"
    text = "\n".join(read_lines(_WORD, place))
    boxes = []
    for told in _OBJECT.findall(text):
        if index_of_wnid(_tag(told, "name", place)) == entry.label:
            left, top, right, bottom = (float(_tag(told, side, place)) for side in _SIDES)
            boxes.append((left, top, right, bottom))
    if not boxes:
        raise ImageError(f"{_WORD}: {place} has no box of the labelled class")
    return Annotation.of_photo(picture, boxes=boxes)


def _tag(text: str, name: str, place: Path) -> str:
    found = re.search(rf"<{name}>\s*([\w.+-]+)\s*</{name}>", text)
    if found is None:
        raise ImageError(f"{_WORD}: an object of {place} has no {name}")
    return found[1]


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
    wnids = [folder.name for folder in folders(masks)]
    numbers = {wnid: number for number, wnid in enumerate(sorted(wnids), 1)} if len(wnids) in _SIZES else {}
    found = wnid_folders(_S, shown)
    by_name = {each.relative_to(masks).with_suffix("").as_posix(): each for each in pictures_below(masks)}
    entries = []
    for entry in found.entries:
        mask = by_name.get(entry.name.rpartition(".")[0])
        if mask is None:
            raise misfit(_S, f"a mask of {one_line(entry.name)}", "there is none", masks)
        number = numbers.get(entry.name.partition("/")[0])
        entries.append(replace(entry, mask=mask, known=partial(_numbered, mask, number)))
    note = f"{found.note}; {len(wnids)} folders of masks"
    return replace(
        found, entries=entries, note=note if numbers else f"{note}, so masks of several classes are left out"
    )


def _numbered(mask: Path, number: int | None, picture: LoadedImage) -> Annotation:
    """The region of the labelled class. Its number is the place of its folder, which a part of the data cannot tell."""
    told = _numbers(mask) % 2**16  # red + 256 green; blue says nothing
    if number is None:
        there = sorted(set(np.unique(told).tolist()) - {0, _IGNORED})
        if len(there) != 1:
            raise ImageError(f"{mask} has the classes {there}, and which is whose only the whole data set tells")
        number = there[0]
    return Annotation.of_photo(picture, told == number, ignore=told == _IGNORED)


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

    def truth(self, place: int, picture: LoadedImage) -> Annotation:
        with self.lock:
            cell = self.file[self.file["value/gt"][place, 0]]
            values = np.asarray(self.file[cell[0, 0]])
        return Annotation.of_photo(picture, values.T != 0)
