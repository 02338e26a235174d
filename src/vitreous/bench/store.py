"""A run on disk: what is wanted, every recorded plan, and one file for each finished unit.

    run.json             the manifest: what is measured, with what
    plans/0001.json      a plan: settings and units; a later plan adds units, and changes none
    units/<id>.npz       what a unit found; numpy alone reads it
    failures/<id>.json   what went wrong with a unit, and how often it was tried

Files appear whole, by one rename. A unit's file that cannot be read is taken for missing, and made again.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous import __version__, disk
from vitreous.bench.units import Setting, Unit
from vitreous.errors import VitreousError

__all__ = ["SCHEMA", "Found", "RecordedPlan", "Store", "packed", "unpacked"]

SCHEMA = "vitreous.run/1"
Found = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""The arrays of a unit, and what is to be said about them."""

_MOST_REASON = 500  # characters
_PATIENCE = 600.0  # seconds: planning opens models
_BROKEN = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


class RecordedPlan:
    """Settings and units as they were decided once; ``revision`` counts from 1.

    ``names`` are those of the pictures by their digests. ``replaces`` are units of earlier plans that these stand for:
    memory ran out, and they are run in smaller parts. ``versions`` are those of the code that planned.
    """

    def __init__(
        self,
        revision: int,
        settings: list[Setting],
        units: list[Unit],
        why: str,
        names: Mapping[str, str],
        replaces: Sequence[str] = (),
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self.revision, self.settings, self.units, self.why = revision, settings, units, why
        self.names, self.replaces, self.versions = dict(names), tuple(replaces), dict(versions or {})

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "vitreous.plan/1",
            "revision": self.revision,
            "why": self.why,
            "versions": self.versions,
            "settings": [setting.to_json() for setting in self.settings],
            "units": [unit.to_json() for unit in self.units],
            "names": self.names,
            "replaces": list(self.replaces),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedPlan:
        settings = [Setting.from_json(each) for each in data["settings"]]
        units = [Unit.from_json(each) for each in data["units"]]
        known = data["names"], data["replaces"], data.get("versions")
        return cls(data["revision"], settings, units, data["why"], *known)


class Store:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._plans: dict[str, RecordedPlan] = {}

    # -- the run -----------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, wanted: Mapping[str, Any], seen: Mapping[str, Any] | None = None) -> Store:
        """Open a run that is there for the same thing, or begin it; a folder that is not ours is refused.

        ``wanted`` may extend what the run's manifest wanted when it was ``seen`` (empty: there was no run): then it is
        refused where another process has written another protocol since, which it does not know of.
        """
        store = cls(path)
        with disk.lock(store.path / "run"):
            known = store.manifest()
            if known is None:
                if any(not each.name.startswith(".vitreous-") for each in store.path.iterdir()):
                    raise VitreousError(f"{path} holds something that is no run of ours; choose another place")
                store._write("run.json", {"schema": SCHEMA, "vitreous": __version__, "wanted": dict(wanted)})
            elif known["wanted"] != (new := json.loads(json.dumps(wanted))):
                protocols = [each.get("protocol") for each in (seen or {}, new)]
                if seen is not None and known["wanted"].get("protocol") not in protocols:
                    raise VitreousError(f"{path} was changed by another command meanwhile: run this one again")
                store._write("run.json", {**known, "wanted": dict(wanted)})  # extended: earlier units stay
        return store

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open a run that is there."""
        store = cls(path)
        if store.manifest() is None:
            raise VitreousError(f"{path} is no run: there is no run.json in it")
        return store

    def manifest(self) -> dict[str, Any] | None:
        """Return what ``run.json`` says; ``None`` where there is none."""
        try:
            data: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise VitreousError(f"{self.path / 'run.json'} cannot be read: {error}") from None
        if data.get("schema") != SCHEMA:
            raise VitreousError(f"{self.path} has the schema {data.get('schema')!r}, not {SCHEMA!r}")
        return data

    # -- plans -------------------------------------------------------------------------------------------

    def plans(self) -> list[RecordedPlan]:
        """Return every plan, the first one first."""
        for file in sorted((self.path / "plans").glob("[0-9]*.json")):
            if file.name not in self._plans:  # what is written is never changed
                try:
                    self._plans[file.name] = RecordedPlan.from_json(json.loads(file.read_text()))
                except (OSError, ValueError, KeyError, TypeError) as error:
                    raise VitreousError(f"{file} cannot be read: {error!r:.200}") from None
        return list(self._plans.values())

    def add_plan(
        self,
        settings: list[Setting],
        units: list[Unit],
        why: str,
        names: Mapping[str, str],
        replaces: Sequence[str] = (),
        versions: Mapping[str, str] | None = None,
    ) -> RecordedPlan:
        """Record a plan under the next number; the caller holds ``planning``."""
        plan = RecordedPlan(len(self.plans()) + 1, settings, units, why, names, replaces, versions)
        self._write(f"plans/{plan.revision:04d}.json", plan.to_json())
        return plan

    @contextmanager
    def planning(self) -> Iterator[list[RecordedPlan]]:
        """Be the only one to add a plan; gives those that are there."""
        with disk.lock(self.path / "planning", patience=_PATIENCE):
            yield self.plans()

    # -- units -------------------------------------------------------------------------------------------

    def _unit(self, unit: str) -> Path:
        return self.path / "units" / f"{unit}.npz"

    def finished(self) -> set[str]:
        """Return the units whose files are there; ``mend`` takes away what cannot be read."""
        return {file.stem for file in (self.path / "units").glob("*.npz")}

    def mend(self) -> list[str]:
        """Remove unit files that are cut short or damaged, so that they are made again; return their ids."""
        broken = [unit for unit in sorted(self.finished()) if self.read(unit) is None]
        for unit in broken:
            with self.claim(unit) as mine:
                if mine:
                    disk.discard(self._unit(unit))
        return broken

    @contextmanager
    def claim(self, unit: str) -> Iterator[bool]:
        """Hold a unit for oneself; gives false where it is finished, or another process has it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(disk.lock(self._unit(unit), patience=0))
            except disk.Busy:
                yield False
                return
            yield self.read(unit) is None

    def write(self, unit: str, arrays: Mapping[str, NDArray[Any]], said: Mapping[str, Any]) -> None:
        """Write what a unit found; the caller holds its claim."""
        disk.write_file(self._unit(unit), packed(arrays, said), overwrite=True, held=True)

    def read(self, unit: str) -> Found | None:
        """Return what a unit found; ``None`` where it is missing, cut short or damaged."""
        try:
            return unpacked(self._unit(unit).read_bytes())
        except _BROKEN:
            return None

    def content(self, unit: str) -> bytes:
        """Return the file of a finished unit as it is."""
        return self._unit(unit).read_bytes()

    def said(self, unit: str) -> dict[str, Any] | None:
        """Return the words of a unit without its arrays."""
        found = self.some(unit, ())
        return None if found is None else found[1]

    def some(self, unit: str, names: Iterable[str]) -> Found | None:
        """Return some arrays of a unit and its words; what else is in it stays on disk."""
        try:
            with np.load(self._unit(unit), allow_pickle=False) as file:
                return {name: file[name] for name in names}, _words(file["said.json"])
        except _BROKEN:
            return None

    @property
    def size(self) -> int:
        """Bytes of all unit files."""
        return sum(file.stat().st_size for file in (self.path / "units").glob("*.npz"))

    # -- failures ----------------------------------------------------------------------------------------

    def note_failure(self, unit: str, reason: str) -> int:
        """Record that a unit failed, and return how often it has."""
        with disk.lock(self.path / "failures" / "note"):
            tries = [*self.failures().get(unit, []), reason[:_MOST_REASON]]
            self._write(f"failures/{unit}.json", {"schema": "vitreous.failure/1", "tries": tries})
        return len(tries)

    def failures(self) -> dict[str, list[str]]:
        """Return why units failed, try by try."""
        found: dict[str, list[str]] = {}
        for file in sorted((self.path / "failures").glob("*.json")):
            with suppress(OSError, ValueError, KeyError):
                found[file.stem] = json.loads(file.read_text())["tries"]
        return found

    def _write(self, name: str, data: Any) -> None:
        text = json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"
        disk.write_file(self.path / name, text.encode(), overwrite=True)


def packed(arrays: Mapping[str, NDArray[Any]], said: Mapping[str, Any]) -> bytes:
    """Return arrays and words as the bytes of one ``.npz`` file."""
    words = np.frombuffer(json.dumps(said, allow_nan=True, default=str).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, **dict(arrays), **{"said.json": words})  # type: ignore[arg-type]
    return file.getvalue()


def unpacked(content: bytes) -> Found:
    """Return the arrays and words of such a file; every member's checksum is verified as it is read."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return arrays, _words(arrays.pop("said.json"))


def _words(stored: NDArray[Any]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(stored.tobytes())
    return said
