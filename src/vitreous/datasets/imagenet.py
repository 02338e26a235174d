"""ImageNet: the validation images, the harder sets with 200 of its classes, and the sets with masks."""

from __future__ import annotations

import csv
import importlib
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from vitreous.datasets.annotations import Annotation, read_mask
from vitreous.datasets.catalog import Listing, register_source
from vitreous.datasets.class_tables import imagenet_subset, index_of_wnid, is_wnid
from vitreous.datasets.dataset import Entry
from vitreous.datasets.files import (
    check_folder,
    class_folders,
    describe,
    first_existing,
    folders_in,
    images_below,
    images_in,
    misfit,
    read_lines,
    read_table,
    table_beside,
)
from vitreous.datasets.images import LoadedImage
from vitreous.errors import ImageError, one_line
from vitreous.models import Box

_VAL = "imagenet-val"
_NAME = re.compile(r"ILSVRC2012_val_([0-9]{8})")
_SUBFOLDERS = ("val", "validation", "ILSVRC2012_img_val", "ILSVRC/Data/CLS-LOC/val", "Data/CLS-LOC/val")
_LABELS, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
_KITS = ("", "ILSVRC2012_devkit_t12/data", "devkit/data", "data")
_EXPECTED = (
    f"folders of WordNet ids, or ILSVRC2012_val_*.JPEG with the devkit ({_LABELS} and {_META}), "
    "LOC_val_solution.csv or a JSON table of its name beside it"
)


@register_source(_VAL)
def imagenet_val(path: Path, boxes: str | Path | None = None) -> Listing:
    """The validation images: folders of WordNet ids, or flat with the labels of the devkit, Kaggle or a JSON table.

    ``boxes`` is a folder of the annotations ``ILSVRC2012_val_*.xml``.
    """
    check_folder(_VAL, path, _EXPECTED)
    folder = path
    if not _has_wnids(path) and not any(_NAME.match(file.stem) for file in images_in(path)):
        folder = first_existing(*(path / name for name in _SUBFOLDERS)) or path
    listing = wnid_folders(_VAL, folder) if _has_wnids(folder) else _flat(path, folder)
    entries = [replace(entry, name=Path(entry.name).name) for entry in listing.entries]  # one name in every layout
    if boxes is not None:
        xml = check_folder(_VAL, Path(boxes), "ILSVRC2012_val_*.xml")
        entries = [replace(entry, annotate=partial(_xml_annotation, xml, entry)) for entry in entries]
    return replace(listing, entries=sorted(entries, key=lambda entry: entry.name))


@register_source("imagenet-a")
def imagenet_a(path: Path) -> Listing:
    """Natural adversarial examples: 200 folders of WordNet ids; the softmax is restricted to these classes."""
    return _subset("imagenet-a", path)


@register_source("imagenet-r")
def imagenet_r(path: Path) -> Listing:
    """Renditions: 200 folders of WordNet ids; the softmax is restricted to these classes."""
    return _subset("imagenet-r", path)


def _has_wnids(path: Path) -> bool:
    return any(is_wnid(folder.name) for folder in folders_in(path))


def _subset(source: str, path: Path) -> Listing:
    listing, classes = wnid_folders(source, path), imagenet_subset(source)
    other = next((entry for entry in listing.entries if entry.label not in classes), None)
    if other is not None:
        actual = f"{one_line(other.name.partition('/')[0])} is not one of its classes"
        raise misfit(source, "folders of its 200 WordNet ids", actual, path)
    return replace(listing, classes=classes)


def wnid_folders(source: str, path: Path) -> Listing:
    """List folders of WordNet ids that are classes of ImageNet; the labels are class indices."""
    expected = "folders of WordNet ids such as n01440764"
    entries = []
    for folder, files in class_folders(source, path, expected):
        label = index_of_wnid(folder.name)
        if label is None:
            actual = f"{one_line(folder.name)} is no WordNet id of ImageNet's thousand classes"
            raise misfit(source, expected, actual, path)
        entries += [Entry(file.relative_to(path).as_posix(), file, label=label) for file in files]
    return Listing(entries, note="labels are folders of WordNet ids")


# -- flat folders ------------------------------------------------------------------------------------------


def _flat(path: Path, folder: Path) -> Listing:
    files = [file for file in images_in(folder) if _NAME.match(file.stem)]
    if not files:
        raise misfit(_VAL, _EXPECTED, describe(folder), folder)
    places = [base / kit for base in dict.fromkeys((path, folder, folder.parent)) for kit in _KITS]
    labels, solution = (
        first_existing(*(place / name for place in places)) for name in (_LABELS, "LOC_val_solution.csv")
    )
    if labels is not None:
        return _with_devkit(files, labels, first_existing(labels.parent / _META, *(place / _META for place in places)))
    if solution is not None:
        return _with_solution(files, solution)
    if (table := table_beside(folder)) is None:
        raise misfit(_VAL, _EXPECTED, f"there are {len(files)} images and no labels", folder)
    return _with_table(files, table)


def _with_table(files: list[Path], table: Path) -> Listing:
    listing = read_table(_VAL, table)
    rows = {Path(entry.name).stem: entry for entry in listing.entries if entry.label is not None}
    _check_rows(files, rows, "a label for {0.name}", table)
    return replace(listing, entries=[replace(rows[file.stem], path=file) for file in files])


def _check_rows(files: Iterable[Path], rows: Iterable[str], expected: str, table: Path) -> None:
    for file in files:
        if file.stem not in rows:
            raise misfit(_VAL, expected.format(file), "there is none", table)


def _with_devkit(files: list[Path], labels: Path, meta: Path | None) -> Listing:
    """Take the class of every image: the devkit numbers its classes in an order of its own, from 1."""
    if meta is None:
        raise misfit(_VAL, f"{_META} beside {_LABELS}", "it is not there", labels.parent)
    order = _class_indices(meta)
    classes = []
    for number, line in enumerate(read_lines(_VAL, labels), 1):
        code = int(line) if line.strip().isdecimal() else None
        if code not in order:
            raise misfit(_VAL, "a number of a class in every line", f"line {number} is {line!r:.40}", labels)
        classes.append(order[code])
    entries = []
    for file in files:
        number = int(file.stem[len("ILSVRC2012_val_") :][:8])
        if not 0 < number <= len(classes):
            raise misfit(_VAL, f"a line for {file.name}", f"it has {len(classes)}", labels)
        entries.append(Entry(file.name, file, label=classes[number - 1]))
    return Listing(entries, note=f"labels of {_LABELS} by {_META}")


def _class_indices(meta: Path) -> dict[int, int]:
    """Return the class index of each of the devkit's numbers."""
    try:
        from scipy.io import loadmat
    except ImportError:
        raise ImageError(
            f"{_VAL}: {meta.name} is read by scipy, which is not installed: pip install scipy (or vitreous[bench])"
        ) from None
    try:
        rows: Any = loadmat(meta, squeeze_me=True, variable_names=["synsets"])["synsets"]
        pairs = [(int(row["ILSVRC2012_ID"]), str(row["WNID"])) for row in rows]
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise ImageError(f"{_VAL}: {meta} cannot be read: {one_line(str(error))[:200]}") from None
    leaves = {number: index_of_wnid(wnid) for number, wnid in pairs}  # the inner nodes of the tree follow after 1000
    return {number: index for number, index in leaves.items() if index is not None}


def _with_solution(files: list[Path], solution: Path) -> Listing:
    """Read Kaggle's lines of a name and, over and over, a WordNet id and a box in pixels."""
    rows = {row[0]: parsed for row in csv.reader(read_lines(_VAL, solution)) if (parsed := _parse_solution(row))}
    _check_rows(files, rows, "a line for {0.stem}", solution)
    entries = [Entry(file.name, file, label=rows[file.stem][0], boxes=rows[file.stem][1]) for file in files]
    return Listing(entries, note=f"labels and boxes of {solution.name}")


def _parse_solution(row: list[str]) -> tuple[int, tuple[Box, ...]] | None:
    words = row[1].split() if len(row) == 2 else []
    label = index_of_wnid(words[0]) if words and len(words) % 5 == 0 else None
    try:
        sides = [float(word) for at, word in enumerate(words) if at % 5]
    except ValueError:
        return None
    if label is None:
        return None
    return label, tuple((a, b, c, d) for a, b, c, d in zip(*(sides[at::4] for at in range(4)), strict=True))


def _xml_annotation(folder: Path, entry: Entry, image: LoadedImage) -> Annotation:
    """Read the boxes of the labelled class when they are needed: 50,000 small files are not opened beforehand."""
    path = folder / f"{Path(entry.name).stem}.xml"

    def value(text: str, tag: str) -> str:
        match = re.search(rf"<{tag}>\s*([\w.+-]+)\s*</{tag}>", text)
        if match is None:
            raise ImageError(f"{_VAL}: an object of {path} has no {tag}")
        return match[1]

    boxes = []
    for text in re.findall(r"<object>(.*?)</object>", "\n".join(read_lines(_VAL, path)), re.S):
        if index_of_wnid(value(text, "name")) == entry.label:
            left, top, right, bottom = (float(value(text, side)) for side in ("xmin", "ymin", "xmax", "ymax"))
            boxes.append((left, top, right, bottom))
    if not boxes:
        raise ImageError(f"{_VAL}: {path} has no box of the labelled class")
    return Annotation.of_photo(image, boxes=boxes)


# -- masks -------------------------------------------------------------------------------------------------

_S, _SEGMENTATION = "imagenet-s", "imagenet-segmentation"
_IGNORED = 1000
_SIZES = (50, 300, 919)
_EXPECTED_S = "validation/ and validation-segmentation/, both with folders of WordNet ids"
_EXPECTED_FILE = "the file gtsegs_ijcv.mat (HDF5, with value/img, value/gt and value/id)"


@register_source(_S)
def imagenet_s(path: Path, split: str = "validation") -> Listing:
    """ImageNet-S: images and masks that number the classes as red + 256 green; 0 is other, 1000 is ignored."""
    check_folder(_S, path, _EXPECTED_S)
    images, masks = path / split, path / f"{split}-segmentation"
    if not os.path.isdir(images) or not os.path.isdir(masks):
        raise misfit(_S, _EXPECTED_S.replace("validation", split), describe(path), path)
    wnids = sorted(folder.name for folder in folders_in(masks))
    numbers = {wnid: number for number, wnid in enumerate(wnids, 1)} if len(wnids) in _SIZES else {}
    listing = wnid_folders(_S, images)
    by_name = {mask.relative_to(masks).with_suffix("").as_posix(): mask for mask in images_below(masks)}
    entries = []
    for entry in listing.entries:
        mask = by_name.get(entry.name.rpartition(".")[0])
        if mask is None:
            raise misfit(_S, f"a mask of {one_line(entry.name)}", "there is none", masks)
        annotate = partial(_class_annotation, mask, numbers.get(entry.name.partition("/")[0]))
        entries.append(replace(entry, mask=mask, annotate=annotate))
    note = f"{listing.note}; {len(wnids)} folders of masks"
    return replace(
        listing, entries=entries, note=note if numbers else f"{note}, so masks of several classes are left out"
    )


def _class_annotation(mask: Path, number: int | None, image: LoadedImage) -> Annotation:
    """The region of the labelled class. Its number is the place of its folder, which a part of the data cannot tell."""
    numbers = read_mask(mask) % 2**16  # red + 256 green; blue says nothing
    if number is None:
        classes = sorted(set(np.unique(numbers).tolist()) - {0, _IGNORED})
        if len(classes) != 1:
            raise ImageError(f"{mask} has the classes {classes}, and which is whose only the whole data set tells")
        number = classes[0]
    return Annotation.of_photo(image, numbers == number, ignore=numbers == _IGNORED)


@register_source(_SEGMENTATION)
def imagenet_segmentation(path: Path) -> Listing:
    """ImageNet-Segmentation (Guillaumin et al.): 4,276 images and masks in one HDF5 file; needs h5py."""
    file = path / "gtsegs_ijcv.mat" if os.path.isdir(path) else path
    if not os.path.isfile(file):
        actual = describe(path) if os.path.isdir(path) else "there is no such file"
        raise misfit(_SEGMENTATION, _EXPECTED_FILE, actual, path)
    try:
        content = importlib.import_module("h5py").File(file, "r")
    except ImportError:
        raise ImageError(
            f"{_SEGMENTATION}: {file.name} is read by h5py, which is not installed: pip install h5py"
        ) from None
    except OSError as error:
        raise misfit(_SEGMENTATION, _EXPECTED_FILE, f"it is no HDF5 file: {one_line(str(error))[:100]}", file) from None
    missing = next((name for name in ("value/img", "value/gt", "value/id") if name not in content), None)
    if missing is not None:
        raise misfit(_SEGMENTATION, _EXPECTED_FILE, f"it has no {missing}", file)
    return Listing(_Segments(content).entries(), note="labels are the WordNet ids in the file")


class _Segments:
    """Reads one image or mask at a time; HDF5 is not made for threads. Its arrays are those of MATLAB, transposed."""

    def __init__(self, file: Any) -> None:
        self.file, self.lock = file, Lock()

    def entries(self) -> list[Entry]:
        entries = []
        for index in range(len(self.file["value/img"])):
            codes = np.asarray(self.file[self.file["value/id"][index, 0]]).ravel()
            name = "".join(map(chr, codes.tolist()))
            wnid = name.partition("_")[0]
            label = index_of_wnid(wnid)
            opener, annotate = partial(self.image, index), partial(self.annotate, index)
            entries.append(
                Entry(f"{index:04d}-{name}", label=wnid if label is None else label, opener=opener, annotate=annotate)
            )
        return entries

    def image(self, index: int) -> Image.Image:
        with self.lock:
            values = np.asarray(self.file[self.file["value/img"][index, 0]])
        return Image.fromarray(np.ascontiguousarray(values.transpose(2, 1, 0).astype(np.uint8))).convert("RGB")

    def annotate(self, index: int, image: LoadedImage) -> Annotation:
        with self.lock:
            cell = self.file[self.file["value/gt"][index, 0]]
            values = np.asarray(self.file[cell[0, 0]])
        return Annotation.of_photo(image, values.T != 0)
