"""The files of a run, read with care: whatever is in its folder, and whatever that says, nothing outside is opened.

A folder may come from anywhere. Links that lead out of it, names that climb, devices, packed members that would unfold
to more than the disk holds: such a file counts as damaged, and everything else is shown.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vitreous.bench.store import Found, RecordedPlan, Store
from vitreous.errors import VitreousError, one_line

__all__ = ["Guarded"]

_ID = re.compile(r"[0-9a-f]{16,64}")
_MOST_WORDS = 256 * 2**20  # bytes of a manifest or plan
_MOST_ARRAYS = 4 * 2**30  # bytes of a unit's file


class Guarded(Store):
    """A run that is only read, and only inside its folder. ``damaged`` are the files that could not be."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path).resolve())
        self.damaged: set[str] = set()
        self._whole: set[str] = set()

    @property
    def state(self) -> tuple[Any, ...]:
        """What changes when a run goes on, found without opening a file."""
        return tuple(_look(self.path / name) for name in ("run.json", "plans", "units") if self._own(self.path / name))

    def manifest(self) -> dict[str, Any] | None:
        file = self.path / "run.json"
        if os.path.lexists(file):
            self._check(file, _MOST_WORDS)
        found = super().manifest()
        if found is not None and not isinstance(found.get("wanted"), dict):
            raise VitreousError("run.json does not say what was wanted")
        return found

    def plans(self) -> list[RecordedPlan]:
        """Return the plans that can be read; a damaged one takes its units with it, and no other's."""
        folder = self.path / "plans"
        for file in sorted(folder.glob("[0-9]*.json")) if self._own(folder) else ():
            if file.name not in self._plans and f"plans/{file.name}" not in self.damaged:
                try:
                    self._check(file, _MOST_WORDS)
                    self._plans[file.name] = _plan(file)
                except Exception:  # foreign words can break a reader anywhere
                    self.damaged.add(f"plans/{file.name}")
        return list(self._plans.values())

    def read(self, unit: str) -> Found | None:
        return self._tried(unit, super().read)

    def some(self, unit: str, names: Iterable[str]) -> Found | None:
        wanted = tuple(names)
        return self._tried(unit, lambda each: super(Guarded, self).some(each, wanted), bool(wanted))

    def _tried(self, unit: str, read: Callable[[str], Found | None], picky: bool = False) -> Found | None:
        """Read a unit; ``picky``: it may be fine and only lack what is asked for."""
        try:
            found = read(unit)
        except (MemoryError, TypeError, AttributeError, RecursionError):  # a header that promises what is not there
            found = None
        if found is None and not picky and _ID.fullmatch(unit) and os.path.lexists(self.path / "units" / f"{unit}.npz"):
            self.damaged.add(f"units/{unit}.npz")
        return found

    def _unit(self, unit: str) -> Path:
        """Return the file of a unit; what is refused is an ``OSError``, as if it could not be opened."""
        if not _ID.fullmatch(unit):
            raise PermissionError("a unit is called by its digest")
        file = super()._unit(unit)
        if unit not in self._whole and os.path.lexists(file):
            self._check(file, _MOST_ARRAYS)
            with zipfile.ZipFile(file) as packed:
                if any(member.compress_type != zipfile.ZIP_STORED for member in packed.infolist()):
                    raise PermissionError("units are not compressed")  # so that none is larger than its file
            self._whole.add(unit)
        return file

    def _own(self, path: Path) -> bool:
        """Whether a path stays inside the folder, links and all."""
        return Path(os.path.realpath(path)).is_relative_to(self.path)

    def _check(self, file: Path, most: int) -> None:
        """Refuse what lies elsewhere, is no plain file, or is too large."""
        if not self._own(file):
            raise PermissionError(f"{file.name} leads out of the folder")
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise PermissionError(f"{file.name} is no plain file, or too large")


def _plan(file: Path) -> RecordedPlan:
    plan = RecordedPlan.from_json(json.loads(file.read_text()))
    settings = range(len(plan.settings))
    if not all(unit.setting in settings and _ID.fullmatch(unit.id) for unit in plan.units):
        raise VitreousError(f"{one_line(file.name)} names units that cannot be")
    return plan


def _look(path: Path) -> tuple[int, ...]:
    """Return number, size and last change of a file, or of the files of a folder."""
    try:
        if not path.is_dir():
            found = path.stat()
            return 1, found.st_size, found.st_mtime_ns
        with os.scandir(path) as files:
            some = [each.stat(follow_symlinks=False) for each in files]
    except OSError:
        return ()
    return len(some), sum(each.st_size for each in some), max((each.st_mtime_ns for each in some), default=0)
