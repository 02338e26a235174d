"""Folders of pictures: bare ones, class folders, and pictures with masks beside them."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.data.sets.kinds import Found, source_kind
from vitreous.data.sets.labels import index_of_wnid
from vitreous.data.sets.listing import content, folder_at, folders, misfit, pictures_below, pictures_in
from vitreous.data.sets.source import Entry
from vitreous.errors import one_line

__all__ = ["class_folders"]

_MASK_ENDS = ("", "_mask", "-mask", ".mask")


@source_kind("folder")
def folder(path: Path) -> Found:
    """Pictures of one folder, without labels."""
    expected = "pictures"
    files = pictures_in(folder_at("folder", path, expected))
    if not files:
        inside = next((each for each in folders(path) if pictures_below(each)), None)
        hint = f"they are in folders inside it such as {one_line(inside.name)}; use imagefolder" if inside else None
        raise misfit("folder", expected, hint or content(path), path)
    return Found([Entry(each.name, each) for each in files])


@source_kind("imagefolder")
def imagefolder(path: Path) -> Found:
    """One folder for each class; its name is the label, a WordNet id or an index."""
    found = class_folders("imagefolder", path, "one folder of pictures for each class")
    names = tuple(each.name for each in folders(path))  # an empty one has its place in the order too
    entries = [
        Entry(file.relative_to(path).as_posix(), file, label=inside.name) for inside, files in found for file in files
    ]
    known = sum(index_of_wnid(name) is not None for name in names)
    return Found(
        entries, names=names, note=f"labels are {len(names)} folders" + (f", {known} of ImageNet" * bool(known))
    )


def class_folders(word: str, path: Path, expected: str) -> list[tuple[Path, list[Path]]]:
    """Return the folders that hold pictures, and these."""
    inside = folders(folder_at(word, path, expected))
    found = [(each, pictures_below(each)) for each in inside]
    if not any(files for _, files in found):
        raise misfit(word, expected, content(path), path)
    return [(each, files) for each, files in found if files]


@source_kind("masks")
def masks(path: Path) -> Found:
    """Pictures with a mask each: ``images/`` and ``masks/`` with equal names, or one beside the other.

    Beside ``x.jpg`` that is ``x.png``, ``x_mask.png``, ``x-mask.png`` or ``x.mask.png``.
    """
    expected = "pictures with a mask each: images/ and masks/, or x.jpg beside x.png or x_mask.png"
    folder_at("masks", path, expected)
    apart = os.path.isdir(path / "images") and os.path.isdir(path / "masks")
    shown = pictures_in(path / "images" if apart else path)
    stems: dict[str, list[Path]] = {}
    for each in pictures_in(path / "masks") if apart else shown:
        if apart or each.suffix.lower() not in (".jpg", ".jpeg"):
            stems.setdefault(each.stem, []).append(each)
    found = {each: _mask_of(each, stems) for each in shown}
    taken = {mask for mask in found.values() if mask is not None}
    bare = [each for each, mask in found.items() if mask is None and each not in taken]
    if bare:
        what = f"{one_line(bare[0].name)} has none" + (f", nor have {len(bare) - 1} others" if len(bare) > 1 else "")
        raise misfit("masks", expected, what, path)
    pairs = [(each, mask) for each, mask in found.items() if mask is not None and each not in taken]
    if not pairs:
        raise misfit("masks", expected, content(path), path)
    return Found([Entry(each.name, each, mask=mask) for each, mask in pairs])


def _mask_of(picture: Path, stems: dict[str, list[Path]]) -> Path | None:
    for end in _MASK_ENDS:
        found = [each for each in stems.get(picture.stem + end, ()) if each != picture]
        if len(found) > 1:
            names = " and ".join(one_line(each.name) for each in found)
            raise misfit(
                "masks", f"one mask for {one_line(picture.name)}", f"{names} are both named like it", picture.parent
            )
        if found:
            return found[0]
    return None
