"""A run as one file, to carry it from machine to machine: packed where units were done, unpacked where it is reported.

The file is a zip archive of the run's own files. It needs numpy alone, as the units do. Such a file may be from
anybody: it is unpacked beside its place, no more than its size allows, and checked before any of it is put there.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import BinaryIO

from vitreous import io as disk
from vitreous.benchmark.plan import wanted_units
from vitreous.benchmark.store import Store, read_bytes
from vitreous.errors import VitreousError, one_line

_MEMBER = re.compile(r"run\.json|plans/[0-9]{4,9}\.json|units/[0-9a-f]{32}\.npz|failures/[0-9a-f]{32}\.json")
_MOST_MEMBER = 2**31  # bytes: a unit is some megabytes
_MOST_TEXT = 2**30
_MOST_MEMBERS = 2**21
_FREE = 2**25  # bytes that may come of any file; beyond them, so many times its size:
_MOST_RATIO = 100
_PIECE = 2**20
_LINK = 0o120000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def pack(folder: str | Path, file: str | Path, *, maps: bool = True, overwrite: bool = False) -> Path:
    """Write what a run has so far into one file; units with damaged content are left out.

    Without ``maps`` it holds the scores alone, a small part of it: enough for a report without images, and to go on
    where nothing more is asked of the same maps.
    """
    store = Store.open(folder)
    scoring = {unit.id for _, unit in wanted_units(store.plans()) if unit.is_scoring}
    units = [unit for unit in sorted(store.finished()) if maps or unit in scoring]

    def write(out: BinaryIO) -> None:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name in _text_files(store):
                archive.writestr(_member(name), read_bytes(store.path / name, _MOST_TEXT))
            for unit in units:
                if store.read(unit) is not None:
                    archive.writestr(_member(f"units/{unit}.npz"), store.content(unit))

    return disk.write_file(file, write, overwrite=overwrite)


def _text_files(store: Store) -> list[str]:
    plans = [f"plans/{plan.revision:04d}.json" for plan in store.plans()]
    return ["run.json", *plans, *(f"failures/{unit}.json" for unit in store.failures())]


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)  # of no date: the same run is the same file
    member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
    return member


def unpack(file: str | Path, folder: str | Path) -> Store:
    """Put the units of such a file into a new run, or beside those that the same run has here; nothing is replaced.

    A new folder appears whole or not at all; nothing is put into a run that is there before all of it is checked.
    """
    path = Path(folder)
    with disk.new_folder(path) as draft:
        _extract(file, draft)
        staged = Store.open(draft.path)
        _check(staged, file)
        if path.is_dir() and os.listdir(path):
            _merge(staged, Store(path), file)
    return Store.open(path)


def _extract(file: str | Path, draft: disk.Draft) -> None:
    """Write the members of a file into a draft, in pieces, and no more than it says and may hold."""
    try:
        with disk.open_file(file) as opened, zipfile.ZipFile(opened) as archive:
            room = _FREE + _MOST_RATIO * os.fstat(opened.fileno()).st_size
            for member in _members(archive, file, room):
                with archive.open(member) as content:
                    draft.write(member.filename, lambda out: shutil.copyfileobj(content, out, _PIECE))
    except VitreousError:
        raise
    except OSError as error:
        raise VitreousError(one_line(f"{file} cannot be unpacked: {error.strerror or error}")) from None
    except Exception as error:  # foreign bytes can break a reader anywhere
        raise VitreousError(one_line(f"{file} cannot be unpacked: {error or type(error).__name__}"[:300])) from None


def _members(archive: zipfile.ZipFile, file: str | Path, room: int) -> list[zipfile.ZipInfo]:
    """Return the members of a packed run; what is none, or would unfold to more than it may, is refused."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    names = {member.filename for member in members}
    strange = [member for member in members if _is_odd(member)]
    if strange or "run.json" not in names:
        raise VitreousError(f"{file} is no packed run: {strange[0].filename if strange else 'it has no run.json'!r}")
    if len(names) < len(members) or len(members) > _MOST_MEMBERS:
        raise VitreousError(f"{file} is no packed run: it has {len(members)} members of {len(names)} names")
    largest = max(members, key=lambda member: member.file_size)
    if largest.file_size > _MOST_MEMBER:
        raise VitreousError(f"{file}: {largest.filename} is larger than any file of a run")
    total = sum(member.file_size for member in members)
    if total > room:
        raise VitreousError(f"{file} would unfold to {total} bytes, which is more than {_MOST_RATIO} times its size")
    return members


def _is_odd(member: zipfile.ZipInfo) -> bool:
    """Whether a member is no file of a run, encrypted, a link, or packed in a way that ours are not."""
    is_link = (member.external_attr >> 16) & 0o170000 == _LINK
    is_strange = not _MEMBER.fullmatch(member.filename) or bool(member.flag_bits & 1)
    return is_strange or is_link or member.compress_type not in _METHODS


def _check(store: Store, file: str | Path) -> None:
    """Refuse a packed run of which anything cannot be read: manifest, plans, failures, units."""
    try:
        store.plans(), store.failures()
        damage = next(store.damage(), None)
    except VitreousError as error:
        text = str(error).replace(f"{store.path}{os.sep}", "")
        raise VitreousError(f"{file} cannot be unpacked: {text}") from None
    if damage is not None:
        raise VitreousError(f"{file} cannot be unpacked: units/{damage[0]}.npz is damaged: {damage[1]}")


def _merge(staged: Store, store: Store, file: str | Path) -> None:
    """Add what a run lacks; it must be the same run, and is held so that it stays so meanwhile."""
    if store.manifest() is None:
        raise VitreousError(f"{store.path} holds something that is no run of ours; choose another place")
    with store.planning():
        texts = {name: read_bytes(staged.path / name, _MOST_TEXT) for name in _text_files(staged)}
        for name, text in texts.items():
            is_there, is_failure = (store.path / name).exists(), name.startswith("failures/")
            if is_there and not is_failure and read_bytes(store.path / name, _MOST_TEXT) != text:
                raise VitreousError(f"{store.path} is another run than that of {file}: {name} differs")
        for name, text in texts.items():
            if not (store.path / name).exists():
                disk.write_file(store.path / name, text)
        for unit in sorted(staged.finished()):
            with store.claim(unit) as is_mine:
                if is_mine:
                    store.put(unit, staged.content(unit))
