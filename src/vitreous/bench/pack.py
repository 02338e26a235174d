"""A run as one file, to carry it from machine to machine: packed where units were done, unpacked where it is reported.

The file is a zip archive of the run's own files. It needs numpy alone, as the units do.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from vitreous import disk
from vitreous.bench.planning import wanted_units
from vitreous.bench.store import Store, unpacked
from vitreous.errors import VitreousError

__all__ = ["pack", "unpack"]

_OURS = re.compile(r"run\.json|plans/[0-9]{4,9}\.json|units/[0-9a-f]{8,64}\.npz|failures/[0-9a-f]{8,64}\.json")
_MOST = 2**31  # bytes of one member: a unit is some megabytes
_BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def pack(folder: str | Path, file: str | Path, *, maps: bool = True, overwrite: bool = False) -> Path:
    """Write what a run has so far into one file.

    Without ``maps`` it holds the scores alone, a small part of it: enough for a report without pictures, and to go on
    where nothing more is asked of the same maps.
    """
    store = Store.open(folder)
    kept = [Path("run.json"), *_inside(store.path, "plans"), *_inside(store.path, "failures")]
    judging = {unit.id for _, unit in wanted_units(store.plans()) if unit.judges}
    kept += [each for each in _inside(store.path, "units") if maps or each.stem in judging]

    def write(out: BinaryIO) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for each in kept:
                archive.write(store.path / each, each.as_posix())

    return disk.write_file(file, write, overwrite=overwrite)


def unpack(file: str | Path, folder: str | Path) -> Store:
    """Put the units of such a file into a new run, or beside those that the same run has here; nothing is replaced."""
    place = Path(folder)
    try:
        with zipfile.ZipFile(file) as archive:
            names = [each for each in archive.infolist() if not each.is_dir()]
            strange = next((each.filename for each in names if not _OURS.fullmatch(each.filename)), None)
            if strange is not None or "run.json" not in archive.namelist():
                raise VitreousError(f"{file} is no packed run: {strange or 'it has no run.json'!r}")
            order = sorted(names, key=lambda each: (not each.filename.startswith("run"), each.filename))
            for each in order:  # the manifest first: another run's units are refused before anything is written
                if each.file_size > _MOST:
                    raise VitreousError(f"{file}: {each.filename} is larger than any file of a run")
                _put(place, each.filename, archive.read(each), file)
    except VitreousError:
        raise
    except _BROKEN as error:
        raise VitreousError(f"{file} cannot be unpacked: {error}") from None
    return Store.open(place)


def _put(place: Path, name: str, content: bytes, file: str | Path) -> None:
    """Write one member, unless it is there; a plan or manifest that is there must be the same."""
    if name.endswith(".npz"):
        unpacked(content)  # what is damaged is refused here
    there = place / name
    if not there.exists():
        if name == "run.json" and place.is_dir() and any(place.iterdir()):
            raise VitreousError(f"{place} holds something that is no run of ours; choose another place")
        disk.write_file(there, content)
    elif name.startswith(("run", "plans")) and there.read_bytes() != content:
        raise VitreousError(f"{place} is another run than that of {file}: {name} differs")


def _inside(folder: Path, name: str) -> list[Path]:
    found = sorted(each.relative_to(folder) for each in (folder / name).glob("*") if each.is_file())
    return [each for each in found if _OURS.fullmatch(each.as_posix())]
