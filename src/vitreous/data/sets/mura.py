"""MURA: radiographs whose study is positive (abnormal) or negative by the name of its folder."""

from __future__ import annotations

import re
from pathlib import Path

from vitreous.data.sets.kinds import Found, source_kind
from vitreous.data.sets.listing import content, first_there, folder_at, misfit, pictures_below
from vitreous.data.sets.source import Entry
from vitreous.errors import one_line

__all__: list[str] = []

_STUDY = re.compile(r"(?:^|.*/)patient([0-9]+)/study[0-9]+_(positive|negative)/[^/]+", re.S)
_EXPECTED = "MURA-v1.1: valid/XR_*/patient*/study*_positive or _negative/image*.png"


@source_kind("mura")
def mura(path: Path, split: str = "valid") -> Found:
    """MURA-v1.1, the validation split unless ``split`` or the path says ``train``; groups are patients.

    Labels are 0 (negative) and 1 (positive).
    """
    folder_at("mura", path, _EXPECTED)
    root = first_there(path / "MURA-v1.1" / split, path / split) or path
    if root is path and first_there(path / "MURA-v1.1", path / "train", path / "valid"):  # the other split is no answer
        raise misfit("mura", _EXPECTED.replace("valid", split), content(path), path)
    entries = []
    for each in pictures_below(root):
        name = each.relative_to(root).as_posix()
        told = _STUDY.fullmatch(name)
        if told is None:
            raise misfit("mura", _EXPECTED, f"it holds {one_line(name)}", root)
        entries.append(Entry(name, each, label=int(told[2] == "positive"), group=int(told[1])))
    if not entries:
        raise misfit("mura", _EXPECTED, content(root), root)
    return Found(entries, names=("negative", "positive"), note=f"labels are names of studies, split {root.name}")
