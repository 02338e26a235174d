"""The files of a run, read with care: whatever is in its folder, and whatever that says, nothing outside is opened.

A folder may come from anywhere. A store refuses names that climb, devices and members larger than their file; here, so
are links that lead out of the folder. Such a file counts as damaged, and everything else is shown.

The pictures of a run, from places that were named at the start.

A run's own files say where its pictures were. That is shown, and never followed: a folder from elsewhere must not make
this server read. Scenes of the world are rendered and need no place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image

from vitreous import io as disk
from vitreous.benchmark.data import DatasetRun, ImageSource, Options, digest_of_entry
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import UnitResult
from vitreous.benchmark.units import RecordedPlan, RunConfig, is_digest
from vitreous.datasets import DataSource, Entry, Sample
from vitreous.errors import VitreousError, one_line
from vitreous.models import VisionModel
from vitreous.viz.canvas import png_bytes
from vitreous.web.security import Refused

__all__ = [
    "Data",
    "Guarded",
    "Photos",
    "photos_of",
]


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

    def read(self, unit: str) -> UnitResult | None:
        return self._tried(unit, super().read)

    def read_arrays(self, unit: str, names: Iterable[str]) -> UnitResult | None:
        wanted = tuple(names)
        return self._tried(unit, lambda each: super(Guarded, self).read_arrays(each, wanted), bool(wanted))

    def _tried(self, unit: str, read: Callable[[str], UnitResult | None], picky: bool = False) -> UnitResult | None:
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
            some = [file.stat(follow_symlinks=False) for file in files]
    except OSError:
        return ()
    return len(some), sum(each.st_size for each in some), max((each.st_mtime_ns for each in some), default=0)


Data = str | Mapping[str, str] | None
"""Where pictures are: one place, or one for each label of a data set."""

_WORD = re.compile(r"[\w-]{1,100}")
_MOST_IMAGES = 1_000_000
_MOST_SIDE = 4096
_MOST_BYTES = 64 * 2**20
_KEPT = 400
_one = Lock()  # one picture at a time: twenty-four are asked for at once, and each may be large


class Photos:
    """The pictures of one data set by the digests that the run knows them by; each is compared before it is shown."""

    def __init__(self, source: DataSource, names: Mapping[str, str]) -> None:
        self.source = source
        known = {name: digest for digest, name in names.items()}
        self._entries = {known[entry.name]: entry for entry in source.entries if entry.name in known}
        self._drawn: dict[str, bytes] = {}

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(self._entries)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words for classes, where labels are their numbers."""
        return self.source.names if all(isinstance(each.label, int) for each in self.source.entries) else ()

    def entry(self, digest: str) -> Entry:
        """Return what is known about a picture without opening it."""
        if digest not in self._entries:
            raise VitreousError(f"this picture is not in {self.source.name} any more")
        return self._entries[digest]

    def sample(self, digest: str, model: VisionModel) -> Sample:
        """Return a picture as an input of a model."""
        return self.source.sample(model, self.source.entries.index(self.entry(digest)))

    def png(self, setting: RunConfig, digest: str, model: VisionModel | None = None) -> bytes:
        """Return a picture as the model sees it; ``view`` is that model, where it is loaded: grids are made for it."""
        if digest not in self._drawn:
            self._compare(digest)
            seen = _seen(self, setting, digest, model)
            self._drawn = {**dict(list(self._drawn.items())[1 - _KEPT :]), digest: png_bytes(seen)}
        return self._drawn[digest]

    def photo(self, digest: str) -> bytes:
        """Return the picture itself: the bytes of its file, or a PNG of what is rendered."""
        entry = self.entry(digest)
        self._compare(digest)
        if entry.opener is None and entry.path is not None:
            if entry.path.stat().st_size > _MOST_BYTES:
                raise Refused(413, f"{entry.name} has more than {_MOST_BYTES // 2**20} MiB")
            return disk.read_file(entry.path, _MOST_BYTES)
        with _one:
            opened = entry.open()
        if not isinstance(opened, Image.Image):
            raise Refused(404, f"{entry.name} is an input of the model and no photograph")
        return png_bytes(opened)

    def _compare(self, digest: str) -> None:
        entry = self.entry(digest)
        with _one:
            if digest_of_entry(entry) != digest:
                raise Refused(404, f"{entry.name} has changed since this run was made: picture, label or truth")


def _seen(photos: Photos, setting: RunConfig, digest: str, model: VisionModel | None) -> Image.Image:
    if max(setting.size) > _MOST_SIDE or max(setting.preprocess["size"]) > _MOST_SIDE:
        raise Refused(404, f"pictures of {setting.size} pixels are not drawn")
    with _one:
        return ImageSource({setting.data: photos}, None if model is None else lambda _: model).image(setting, digest)


def photos_of(
    protocol: Protocol, wanted: Mapping[str, Any], plans: Sequence[RecordedPlan], data: Data
) -> dict[str, Photos | str]:
    """Return the pictures of every data set by its label, or a sentence that says why there are none."""
    given = wanted.get("images")
    found: dict[str, Photos | str] = {}
    for part in protocol.per_dataset():
        label = part.data.label
        place = Options(data=data).path(label)
        try:
            opened = Photos(_source(part, place, given), _names(plans, label))
        except Exception as error:  # a foreign protocol can break a reader anywhere
            known = isinstance(error, VitreousError | OSError)
            found[label] = one_line(str(error) if known else f"{type(error).__name__} {error}")[:300]
        else:
            found[label] = opened if opened.digests else f"the pictures of {part.data.source} are not those of this run"
    return found


def _names(plans: Sequence[RecordedPlan], label: str) -> dict[str, str]:
    """Return the names of the pictures of a data set, by their digests."""
    every = [(plan, unit) for plan in plans for unit in plan.units]
    units = [(plan, unit) for plan, unit in every if plan.config_of(unit).data == label]
    units = units or every  # a later data set of the same pictures: nothing of it had to be planned
    return {picture: plan.names[picture] for plan, unit in units for picture in unit.images if picture in plan.names}


def _source(part: Protocol, place: str | None, images: Any) -> DataSource:
    """Open a source at a place that was named at the start; of what the run says, only words and numbers count."""
    spec = part.data
    if spec.source != "world" and place is None:
        raise VitreousError("the pictures are not at hand: say where they are with --data when you start")
    if spec.source != "world" and not Path(str(place)).expanduser().exists():
        raise VitreousError(f"there is nothing at {place}")
    if spec.split is not None and not _WORD.fullmatch(spec.split):
        raise VitreousError(f"{spec.split!r:.60} is no split")
    wanted = spec.images if images is None else images
    if type(wanted) is not int or not 0 <= wanted <= _MOST_IMAGES:
        raise VitreousError(f"{wanted!r:.60} is no number of pictures")
    listed = spec.choose == "listed"  # the list is a file of the run's choosing: take all, names tell which are meant
    plain = replace(
        spec,
        path=None,
        names=None,
        choose="first" if listed else spec.choose,
        images=0 if listed else wanted,
    )
    place = None if spec.source == "world" else place
    return DatasetRun(replace(part, data=plain), Options(data=place)).images.source
