"""The files of a run, read with care: whatever is in its folder, and whatever that says, nothing outside is opened.

A folder may come from anywhere. A store refuses names that climb, devices and members larger than their file; here, so
are links that lead out of the folder. Such a file counts as damaged, and everything else is shown. A run's own files
say where its images were: that is shown, and never followed. Images come from places that were named at the start;
scenes of the world are rendered and need none.
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
from vitreous.benchmark.data import DatasetRun, ImageSource, Options, SourceImages, digest_of_entry
from vitreous.benchmark.protocol import Protocol
from vitreous.benchmark.store import Store
from vitreous.benchmark.unit_file import UnitResult
from vitreous.benchmark.units import RecordedPlan, RunConfig, is_digest
from vitreous.datasets import DataSource, Entry
from vitreous.errors import VitreousError, one_line
from vitreous.models import VisionModel
from vitreous.viz.canvas import png_bytes
from vitreous.web import Refused
from vitreous.web.session import Recent

Data = str | Mapping[str, str] | None
"""Where images are: one place, or one for each label of a data set."""

_SPLIT = re.compile(r"[\w-]{1,100}")
_MOST_IMAGES = 1_000_000
_MOST_SIDE = 4096
_MOST_BYTES = 64 * 2**20
_MOST_DRAWN = 400
_one = Lock()  # one image at a time: twenty-four are asked for at once, and each may be large


class SafeStore(Store):
    """A run that is only read, and only inside its folder. ``damaged`` are the files that could not be."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path).resolve())
        self.damaged: set[str] = set()

    @property
    def state(self) -> tuple[Any, ...]:
        """What changes when a run goes on, without opening a file."""
        paths = [self.path / name for name in ("run.json", "plans", "units")]
        return tuple(_file_state(path) for path in paths if self._is_inside(path))

    def manifest(self) -> dict[str, Any] | None:
        self._check(self.path / "run.json")
        return super().manifest()

    def plans(self) -> list[RecordedPlan]:
        """Return the plans that can be read; a damaged one takes its units with it, and no other's."""
        folder = self.path / "plans"
        for file in sorted(folder.glob("[0-9]*.json")) if self._is_inside(folder) else ():
            if file.name not in self._plans and f"plans/{file.name}" not in self.damaged:
                try:
                    self._check(file)
                    self._plans[file.name] = self._read_plan(file.name)
                except Exception:  # words from elsewhere can break a reader anywhere
                    self.damaged.add(f"plans/{file.name}")
        return list(self._plans.values())

    def read(self, unit: str) -> UnitResult | None:
        return self._try(unit, super().read)

    def read_arrays(self, unit: str, names: Iterable[str]) -> UnitResult | None:
        wanted, read = tuple(names), super().read_arrays
        return self._try(unit, lambda unit: read(unit, wanted), may_lack=bool(wanted))

    def _try(self, unit: str, read: Callable[[str], UnitResult | None], may_lack: bool = False) -> UnitResult | None:
        """Read a unit; ``may_lack``: it may be fine and only lack what is asked for."""
        try:
            result = read(unit)
        except (VitreousError, OSError):  # it cannot be opened here
            result, may_lack = None, False
        name = f"units/{unit}.npz"
        if result is None and not may_lack and is_digest(unit) and os.path.lexists(self.path / name):
            self.damaged.add(name)
        return result

    def _unit(self, unit: str) -> Path:
        file = super()._unit(unit)
        self._check(file)
        return file

    def _is_inside(self, path: Path) -> bool:
        """Whether a path stays inside the folder, links and all."""
        return Path(os.path.realpath(path)).is_relative_to(self.path)

    def _check(self, file: Path) -> None:
        if os.path.lexists(file) and not self._is_inside(file):
            raise VitreousError(f"{file.name} leads out of the folder")


def _file_state(path: Path) -> tuple[int, ...]:
    """Return number, size and last change of a file, or of the files of a folder."""
    try:
        if not path.is_dir():
            stats = [path.stat()]
        else:
            with os.scandir(path) as files:
                stats = [file.stat(follow_symlinks=False) for file in files]
    except OSError:
        return ()
    return len(stats), sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


class RunImages(SourceImages):
    """The images of one data set by the digests that the run knows them by; each is compared before it is shown."""

    def __init__(self, source: DataSource, names: Mapping[str, str]) -> None:
        super().__init__(source)
        self._digest_of_name = {name: digest for digest, name in names.items()}
        self._pngs: Recent[bytes] = Recent(_MOST_DRAWN)

    @cached_property
    def indices(self) -> dict[str, int]:
        digests = self._digest_of_name
        return {digests[entry.name]: i for i, entry in enumerate(self.source.entries) if entry.name in digests}

    @cached_property
    def digests(self) -> tuple[str, ...]:
        return tuple(self.indices)

    @cached_property
    def class_names(self) -> Sequence[str]:
        """The names of classes, where labels are their indices."""
        return self.source.names if all(isinstance(entry.label, int) for entry in self.source.entries) else ()

    def png(self, config: RunConfig, digest: str, model: VisionModel | None = None) -> bytes:
        """Return an image as the model sees it; ``model`` is that model, where it is loaded: grids are made for it."""

        def draw() -> bytes:
            self._compare(digest)
            if max(config.size) > _MOST_SIDE or max(config.preprocess["size"]) > _MOST_SIDE:
                raise Refused(404, f"pictures of {config.size} pixels are not drawn")
            with _one:
                source = ImageSource({config.data: self}, None if model is None else lambda _: model)
                return png_bytes(source.image(config, digest).convert("RGB"), compress_level=3)

        return self._pngs.get_or_make(digest, draw)

    def photo(self, digest: str) -> bytes:
        """Return the image itself: the bytes of its file, or a PNG of what is rendered."""
        entry = self._compare(digest)
        if entry.opener is None and entry.path is not None:
            if entry.path.stat().st_size > _MOST_BYTES:
                raise Refused(413, f"{entry.name} has more than {_MOST_BYTES // 2**20} MiB")
            return disk.read_file(entry.path, _MOST_BYTES)
        with _one:
            image = entry.open()
        if not isinstance(image, Image.Image):
            raise Refused(404, f"{entry.name} is an input of the model and no photograph")
        return png_bytes(image.convert("RGB"), compress_level=3)

    def _compare(self, digest: str) -> Entry:
        entry = self.entry(digest)
        with _one:
            if digest_of_entry(entry) != digest:
                raise Refused(404, f"{entry.name} has changed since this run was made: picture, label or truth")
        return entry


def find_images(
    protocol: Protocol, wanted: Mapping[str, Any], plans: Sequence[RecordedPlan], data: Data
) -> dict[str, RunImages | str]:
    """Return the images of every data set by its label, or a sentence that says why there are none."""
    images_by_label: dict[str, RunImages | str] = {}
    for part in protocol.per_dataset():
        label = part.data.label
        try:
            source = _open_source(part, Options(data=data).path(label), wanted.get("images"))
            images = RunImages(source, _names(plans, label))
        except Exception as error:  # a protocol from elsewhere can break a reader anywhere
            is_plain = isinstance(error, VitreousError | OSError)
            images_by_label[label] = one_line(str(error) if is_plain else f"{type(error).__name__} {error}")[:300]
        else:
            other = f"the pictures of {part.data.source} are not those of this run"
            images_by_label[label] = images if images.digests else other
    return images_by_label


def _names(plans: Sequence[RecordedPlan], label: str) -> dict[str, str]:
    """Return the names of the images of a data set, by their digests."""
    units = [(plan, unit) for plan in plans for unit in plan.units]
    # none: a later data set of the same images, of which nothing had to be planned
    own = [(plan, unit) for plan, unit in units if plan.config_of(unit).data == label] or units
    return {digest: plan.names[digest] for plan, unit in own for digest in unit.images if digest in plan.names}


def _open_source(part: Protocol, place: str | None, images: Any) -> DataSource:
    """Open a source at a place that was named at the start; of what the run says, only words and numbers count."""
    spec = part.data
    if spec.source == "world":
        place = None
    elif place is None:
        raise VitreousError("the pictures are not at hand: say where they are with --data when you start")
    elif not Path(place).expanduser().exists():
        raise VitreousError(f"there is nothing at {place}")
    if spec.split is not None and not _SPLIT.fullmatch(spec.split):
        raise VitreousError(f"{spec.split!r:.60} is no split")
    count = spec.images if images is None else images
    if type(count) is not int or not 0 <= count <= _MOST_IMAGES:
        raise VitreousError(f"{count!r:.60} is no number of pictures")
    if spec.choose == "listed":  # the list is a file of the run's choosing: take all, names say which are meant
        spec, count = replace(spec, choose="first"), 0
    spec = replace(spec, path=None, names=None, images=count)
    return DatasetRun(replace(part, data=spec), Options(data=place)).images.source
