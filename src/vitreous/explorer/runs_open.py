"""A run while someone looks at it: read when it is first asked for, and again when it has gone on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from vitreous import View
from vitreous.bench.gather import gather
from vitreous.bench.report.finding import Finding
from vitreous.bench.report.page import lead, state
from vitreous.errors import VitreousError, one_line
from vitreous.explorer.runs_part import Part
from vitreous.explorer.runs_pictures import Data, photos_of
from vitreous.explorer.runs_store import Guarded
from vitreous.explorer.runs_table import table
from vitreous.explorer.wire import Refused
from vitreous.models import Snapshot

__all__ = ["Opened", "Run"]

_RESTS, _SHARE = 3.0, 10.0  # seconds between two looks at a folder; times as long as reading it took
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Opened:
    """A run as it was at one moment."""

    title: str
    parts: tuple[Part, ...]
    damaged: tuple[str, ...]

    def part(self, number: int) -> Part:
        if number >= len(self.parts):
            raise Refused(404, f"this run has {len(self.parts)} parts, counted from 0; there is no {number}")
        return self.parts[number]

    @cached_property
    def table(self) -> dict[str, Any]:
        """Everything that the first page of a run shows."""
        findings = [part.finding for part in self.parts]
        tables = [table(part, number) for number, part in enumerate(self.parts)]
        return {
            "title": self.title,
            "lead": lead(findings),
            "state": state(findings),
            "notes": self._notes,
            "parts": tables,
        }

    @property
    def _notes(self) -> list[str]:
        if not self.damaged:
            return []
        some, more = ", ".join(self.damaged[:_SHOWN]), len(self.damaged) - _SHOWN
        many = f"{some}{f' and {more} more' if more > 0 else ''}"
        return [f"Damaged, and left out: {many}. The command that made the run makes damaged units again."]


class Run:
    """A folder that was named at the start."""

    def __init__(self, path: Path, data: Data = None, views: Mapping[str, View] | None = None) -> None:
        self.path, self.data, self.views = path, data, views or {}
        self._guard = Lock()
        self._opened: Opened | None = None
        self._state: tuple[Any, ...] = ()
        self._next = 0.0

    @property
    def title(self) -> str:
        """What the run is called, without reading more than its first file."""
        try:
            return _title(_manifest(Guarded(self.path)), self.path)
        except Exception:  # what is wrong is said when it is opened
            return one_line(self.path.name)

    def opened(self) -> Opened:
        """Return the run as it is now, or was a moment ago; what cannot be read is one line."""
        with self._guard:
            if self._opened is None or time.monotonic() >= self._next:
                self._refresh()
            assert self._opened is not None
            return self._opened

    def _refresh(self) -> None:
        store, began = Guarded(self.path), time.monotonic()
        now = store.state
        if self._opened is None or now != self._state:
            try:
                self._opened = self._read(store)
            except Exception as error:  # a foreign folder can break a reader anywhere
                self._opened = None
                raise Refused(409, f"{self.path.name}: {_reason(error)}") from None
        took = time.monotonic() - began
        self._state, self._next = now, time.monotonic() + max(_RESTS, _SHARE * took)

    def _read(self, store: Guarded) -> Opened:
        manifest = _manifest(store)
        protocol = store.protocol()
        plans = store.plans()
        photos = photos_of(protocol, manifest["wanted"], plans, self.data)
        known = {label: each for label, each in photos.items() if not isinstance(each, str)}
        findings = [Finding.of(each, protocol) for each in gather(store, known)]
        if not findings:
            raise VitreousError("there is no plan for what its run.json asks for: start the run again")
        parts = []
        for each in findings:
            own = photos.get(each.gathered.data, "the run has no such data set")
            parts.append(Part(each, store, plans, own, self._loaded(each)))
            parts[-1].facts  # noqa: B018 - read now, so that all damage is known
        opened = Opened(_title(manifest, self.path), tuple(parts), tuple(sorted(store.damaged)))
        opened.table  # noqa: B018 - what cannot be told is told here, once
        return opened

    def _loaded(self, finding: Finding) -> tuple[str, View] | None:
        """Return the loaded model with the weights of this part."""
        own = finding.gathered.setting.fingerprint
        return next((each for each in self.views.items() if str(Snapshot(each[1]).recent) == own), None)


def _manifest(store: Guarded) -> dict[str, Any]:
    manifest = store.manifest()
    if manifest is None:
        raise VitreousError("this folder is no run: there is no run.json in it")
    return manifest


def _title(manifest: Mapping[str, Any], path: Path) -> str:
    title = manifest["wanted"]["protocol"]["title"]
    return one_line(title)[:200] if isinstance(title, str) and title else one_line(path.name)


def _reason(error: Exception) -> str:
    if isinstance(error, VitreousError):
        return one_line(str(error))[:300]
    return one_line(f"this run cannot be read: {type(error).__name__} {error}")[:300]
