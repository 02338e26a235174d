"""The files of a run, read with care: whatever is in its folder, and whatever that says, nothing outside is opened.

A folder may come from anywhere. A store refuses names that climb, devices and members larger than their file; here, so
are links that lead out of the folder. Such a file counts as damaged, and everything else is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vitreous.bench.store import Found, RecordedPlan, Store
from vitreous.bench.units import is_digest
from vitreous.errors import VitreousError

__all__ = ["Guarded"]


class Guarded(Store):
    """A run that is only read, and only inside its folder. ``damaged`` are the files that could not be."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path).resolve())
        self.damaged: set[str] = set()

    @property
    def state(self) -> tuple[Any, ...]:
        """What changes when a run goes on, found without opening a file."""
        return tuple(_look(self.path / name) for name in ("run.json", "plans", "units") if self._own(self.path / name))

    def manifest(self) -> dict[str, Any] | None:
        if os.path.lexists(self.path / "run.json"):
            self._check(self.path / "run.json")
        return super().manifest()

    def plans(self) -> list[RecordedPlan]:
        """Return the plans that can be read; a damaged one takes its units with it, and no other's."""
        folder = self.path / "plans"
        for file in sorted(folder.glob("[0-9]*.json")) if self._own(folder) else ():
            if file.name not in self._plans and f"plans/{file.name}" not in self.damaged:
                try:
                    self._check(file)
                    self._plans[file.name] = self._read_plan(file.name)
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
        except (VitreousError, OSError):  # it cannot be opened here
            found, picky = None, False
        if found is None and not picky and is_digest(unit) and os.path.lexists(self.path / "units" / f"{unit}.npz"):
            self.damaged.add(f"units/{unit}.npz")
        return found

    def _unit(self, unit: str) -> Path:
        file = super()._unit(unit)
        if os.path.lexists(file):
            self._check(file)
        return file

    def _own(self, path: Path) -> bool:
        """Whether a path stays inside the folder, links and all."""
        return Path(os.path.realpath(path)).is_relative_to(self.path)

    def _check(self, file: Path) -> None:
        """Refuse what lies elsewhere."""
        if not self._own(file):
            raise VitreousError(f"{file.name} leads out of the folder")


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
