"""Which code made a number: the version of Vitreous and of what it runs with, as plans and units record them.

Units are known by what they measure, not by the code that measures. So a run that another version goes on with keeps
what it has and adds to it; that this happened is said when it does, and told unit by unit in the report.

Doing a unit: load the model once, read the pictures, explain or judge, and write down what was found.
"""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous import __version__
from vitreous.benchmark.changes import check_code, check_model
from vitreous.benchmark.methods import Careful, careful
from vitreous.benchmark.plan import Cell, map_cell
from vitreous.benchmark.unit_file import Found
from vitreous.benchmark.units import RunConfig, Unit
from vitreous.datasets import Sample
from vitreous.errors import ImageError, TargetError, VitreousError, one_line
from vitreous.evaluation.config import EvaluationPlan, image_shape_of
from vitreous.evaluation.explainers import ExternalExplainer
from vitreous.evaluation.runner import Judged, mapped, unit
from vitreous.methods import Method
from vitreous.metrics import EvaluationConfig, Maps, get_metric
from vitreous.models import VisionModel
from vitreous.tracing.targets import probabilities

__all__ = [
    "Job",
    "Pictures",
    "Worker",
    "mixed",
    "modes_of",
    "versions",
]

_PACKAGES = ("datasets", "evaluation", "methods", "metrics", "models", "registry", "tracing", "world")
"""Where a change of the code can change a number."""


def versions(hows: Mapping[str, Method | ExternalExplainer] | None = None) -> dict[str, str]:
    """Return the version of Vitreous, of torch, and of the packages that methods of others come from."""
    found = {"vitreous": _own(), "torch": str(torch.__version__)}
    for text, how in (hows or {}).items():
        for package in _packages(text, how):
            offered = _offered(package)
            if offered is not None:
                found[package] = offered
    return found


@cache
def _own() -> str:
    """The version with a digest of the code: between two releases, it alone tells that something changed."""
    root, told = Path(__file__).parents[1], hashlib.blake2b(digest_size=4)
    for package in _PACKAGES:  # one that was renamed must not be left out silently
        assert (root / package).is_dir(), package
    for file in sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py")):
        told.update(file.relative_to(root).as_posix().encode() + file.read_bytes().replace(b"\r\n", b"\n"))
    return f"{__version__} ({told.hexdigest()})"


def _packages(text: str, how: Method | ExternalExplainer) -> set[str]:
    """Return the packages that a method is from, but for our own."""
    if isinstance(how, Method):
        places = {type(part).__module__ for part in how.components()}
    else:
        places = {text.partition(":")[0]} if how.live else set()
    return {place.partition(".")[0] for place in places} - {"vitreous"}


def _offered(package: str) -> str | None:
    """Return the version that a package says it has, if it says any."""
    told = getattr(sys.modules.get(package), "__version__", None)
    if told is None:
        try:
            told = metadata.version(package)
        except (metadata.PackageNotFoundError, ValueError):
            return None
    return str(told)


def mixed(units: Iterable[Mapping[str, Any] | None], here: Mapping[str, str]) -> str:
    """Return in a line which finished units are from other versions than those here; nothing where none is.

    ``units`` are what finished units say. Another torch is no other version: it changes last digits, as devices do.
    """
    known = Counter(
        (package, version)
        for said in units
        for package, version in (said or {}).get("versions", {}).items()
        if package != "torch" and version != here.get(package, version)
    )
    told = [f"{count} units were done by {package} {version}" for (package, version), count in known.items()]
    now = ", ".join(f"{package} {here[package]}" for package in dict.fromkeys(package for package, _ in known))
    return f"{', '.join(told)}, and what is left will be by {now}" if told else ""


Arrays = dict[str, NDArray[Any]]
Read = Callable[[str], "Found | None"]
"""What the unit of an id found, if it is there."""


class Pictures(Protocol):
    """Where the pictures of a run come from; each is known by a digest of its content, label and truth."""

    def sample(self, data: str, name: str, digest: str, model: VisionModel) -> Sample:
        """Read one picture of a data set; an ``ImageError`` says why it cannot be."""


@dataclass(frozen=True)
class Job:
    """A unit with all that is needed to run it anywhere, as plain data.

    ``names`` are those of its pictures; ``where`` says which earlier unit has each map that it reads.
    """

    unit: Unit
    setting: RunConfig
    revision: int
    names: Mapping[str, str]
    where: Mapping[Cell, str] = field(default_factory=dict)

    @property
    def reads(self) -> set[str]:
        """The units that must be finished before."""
        return set(self.where.values())

    def smaller(self, said: Mapping[str, Any]) -> RunConfig | None:
        """Return the setting with which memory would have been enough, where it was not."""
        sizes = {name: min(said.get(name, size), size) for name, size in self._sizes.items()}
        return None if sizes == self._sizes else dataclasses.replace(self.setting, **sizes)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"attribution_batch": self.setting.attribution_batch, "forward_batch": self.setting.forward_batch}


@dataclass
class Worker:
    """Runs units, one after the other; keeps the last model loaded.

    ``load`` makes the view that a setting names, ``how`` what its methods are. ``tick`` is told of every inner batch.
    """

    pictures: Pictures
    load: Callable[[RunConfig], VisionModel]
    how: Callable[[RunConfig, str], Any]
    on_progress: Callable[[int], None] | None = None
    _view: tuple[str, VisionModel] | None = field(default=None, init=False)
    _checked: set[tuple[str, ...]] = field(default_factory=set, init=False)

    def found(self, job: Job, read: Read) -> Found:
        """Return what a unit finds; ``read`` gives what earlier units found. Threads are those of the plan."""
        setting, before = job.setting, torch.get_num_threads()
        self._check(setting, job.unit)
        model = self.view(setting)
        torch.set_num_threads(setting.threads)
        began = time.perf_counter()
        try:
            stored = _Stored(read, job)
            arrays, said = self._judged(job, stored) if job.unit.judges else self._mapped(job)
        finally:
            torch.set_num_threads(before)
        facts = {
            "unit": job.unit.to_json(),
            "spellings": [setting.methods[name] for name in job.unit.methods],
            "revision": job.revision,
            "seconds": time.perf_counter() - began,
            "device": model.device.type,
            "hardware": torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else platform.machine(),
            "threads": setting.threads,
            "versions": versions({setting.methods[name]: self.how(setting, name) for name in job.unit.methods}),
        }
        return arrays, {**facts, **said}

    def _check(self, setting: RunConfig, piece: Unit) -> None:
        """Refuse other code than this unit was planned with: looked at once, since files of maps are read for it."""
        key = (
            *(setting.method_digests[name] for name in piece.methods),
            *(setting.metric_digest(name) for name in piece.metrics),
        )
        if key not in self._checked:
            check_code(setting, piece, self.how)
            self._checked.add(key)

    def view(self, setting: RunConfig) -> VisionModel:
        """Return the model of a setting, which must be the one that was planned with."""
        if self._view is None or self._view[0] != setting.fingerprint:
            self._view = None  # the old one goes before the new one comes
            loaded = self.load(setting)
            check_model(setting, loaded.identity)
            self._view = setting.fingerprint, loaded
        return self._view[1]

    # -- explaining --------------------------------------------------------------------------------------

    def _mapped(self, job: Job) -> tuple[Arrays, dict[str, Any]]:
        model, piece = self.view(job.setting), job.unit
        samples, there, unreadable = self._samples(job, piece.pictures)
        arrays: Arrays = {}
        samples, there, unsure = self._sure(job, samples, there)
        said: dict[str, Any] = {"pictures": there, "unreadable": unreadable, "unsure": unsure}
        if samples:
            plan = self._plan(job.setting, piece, model, ())
            found = mapped(model, samples, plan, piece.modes, self.on_progress)
            for number, name in enumerate(piece.methods):
                maps = found.maps[name]
                arrays[f"maps/{number}"] = maps.values.detach().float().cpu().numpy()
                for mode, rows in maps.rows.items():
                    arrays[f"rows/{number}/{mode}"] = np.asarray(rows, np.int32)
            arrays |= {f"classes/{mode}": each.cpu().numpy() for mode, each in found.classes.items()}
            said |= {"names": [sample.picture.name for sample in samples], "inner": found.inner}
            said |= {"explaining": found.seconds, "costs": [dataclasses.asdict(found.costs[n]) for n in piece.methods]}
            said["raised"] = _raised(plan)
        return arrays, said

    # -- judging -----------------------------------------------------------------------------------------

    def _judged(self, job: Job, stored: _Stored) -> tuple[Arrays, dict[str, Any]]:
        model, piece = self.view(job.setting), job.unit
        plan = self._plan(job.setting, piece, model, piece.metrics)
        readable = [picture for picture in piece.pictures if stored.has(picture)]
        samples, there, unreadable = self._samples(job, readable)
        missing = {what: stored.left_out(what, piece.pictures) for what in ("unreadable", "unsure")}
        said: dict[str, Any] = {"pictures": there, **missing, "unreadable": {**missing["unreadable"], **unreadable}}
        if not samples:
            return {}, said
        maps = {name: stored.maps(name, there) for name in piece.methods}
        judged = unit(model, samples, plan, self.on_progress, maps)
        return _arrays(piece, judged), {**said, **_words(judged), "raised": _raised(plan)}

    def _samples(self, job: Job, pictures: Sequence[str]) -> tuple[list[Sample], list[str], dict[str, str]]:
        """Return the pictures that can be read, their digests, and why the others cannot."""
        samples, there, unreadable = [], [], {}
        model, data = self.view(job.setting), job.setting.data
        for picture in pictures:
            try:
                samples.append(self.pictures.sample(data, job.names[picture], picture, model))
                there.append(picture)
            except ImageError as error:
                unreadable[picture] = str(error)
            except TargetError as error:
                raise TargetError(f"{one_line(job.names[picture])}: {error}") from None
        return samples, there, unreadable

    def _sure(
        self, job: Job, samples: list[Sample], there: list[str]
    ) -> tuple[list[Sample], list[str], dict[str, str]]:
        """Return the pictures to whose true class the model gives enough, their digests, and why the others go."""
        setting, model, unsure = job.setting, self.view(job.setting), dict[str, str]()
        if setting.least_confidence is None or not samples:
            return samples, there, unsure
        for sample, picture in zip(samples, there, strict=True):
            if sample.label is None:
                raise VitreousError(f"least_confidence needs the true class of {sample.picture.name}: give labels")
            logits = model.logits(model.cast(sample.picture.tensor[None]))
            chance = float(probabilities(logits, setting.class_subset)[0, sample.label])
            if chance < setting.least_confidence:
                unsure[picture] = (
                    f"{model.label(sample.label)} has {chance:.2g}, less than {setting.least_confidence:g}"
                )
        kept = [at for at, picture in enumerate(there) if picture not in unsure]
        return [samples[at] for at in kept], [there[at] for at in kept], unsure

    def _plan(self, setting: RunConfig, piece: Unit, model: VisionModel, metrics: Sequence[str]) -> EvaluationPlan:
        config = EvaluationConfig(
            target=setting.target,
            output=setting.output,
            class_subset=setting.class_subset,
            precision=setting.precision,
            interpolation=setting.interpolation,
            tie_breaking=setting.tie_breaking,
            nan_policy=setting.nan_policy,
            seed=piece.seed,
            memory_gb=setting.memory_gb,
            images_per_unit=setting.images_per_unit,
            attribution_batch=setting.attribution_batch,
            forward_batch=setting.forward_batch,
        )
        return EvaluationPlan(
            {name: careful(self.how(setting, name)) for name in piece.methods},
            {name: get_metric(setting.metrics[name]) for name in metrics},
            image_shape_of(model, setting.size),
            config,
            setting.has_labels,
        )


def _raised(plan: EvaluationPlan) -> dict[str, dict[str, str]]:
    """Return where methods of others failed, by method and picture."""
    return {name: how.raised for name, how in plan.methods.items() if isinstance(how, Careful) and how.raised}


def modes_of(setting: RunConfig, piece: Unit) -> tuple[str, ...]:
    """Return the kinds of class whose maps a judging unit reads."""
    return tuple(dict.fromkeys(get_metric(setting.metrics[name]).explain_class for name in piece.metrics))


@dataclass
class _Stored:
    """The maps that a judging unit needs, wherever they were made."""

    read: Read
    job: Job
    _files: dict[str, Found] = field(default_factory=dict)

    def _file(self, picture: str, name: str, mode: str) -> Found:
        place = self.job.where[map_cell(self.job.setting, self.job.unit.seed, picture, name, mode)]
        if place not in self._files:
            found = self.read(place)
            if found is None:
                raise VitreousError(f"the maps of {name} cannot be read: unit {place}; run again to make them anew")
            self._files[place] = found
        return self._files[place]

    def _first(self, picture: str) -> dict[str, Any]:
        return self._file(picture, self.job.unit.methods[0], self._modes[0])[1]

    def has(self, picture: str) -> bool:
        """Whether a picture could be read and was not left out when it was explained."""
        return picture in self._first(picture)["pictures"]

    def left_out(self, what: str, pictures: Sequence[str]) -> dict[str, str]:
        """Return why some of these pictures have no map."""
        found = {picture: self._first(picture).get(what, {}).get(picture) for picture in pictures}
        return {picture: str(reason) for picture, reason in found.items() if reason is not None}

    @cached_property
    def _modes(self) -> tuple[str, ...]:
        return modes_of(self.job.setting, self.job.unit)

    def maps(self, name: str, pictures: Sequence[str]) -> Maps:
        """Return the maps of a method, each mode after the other."""
        values: list[NDArray[Any]] = []
        rows: dict[str, NDArray[Any]] = {}
        for mode in self._modes:
            rows[mode] = np.arange(len(pictures)) + len(values)
            for picture in pictures:
                arrays, said = self._file(picture, name, mode)
                number = said["spellings"].index(self.job.setting.methods[name])  # its row may have had another label
                row = arrays[f"rows/{number}/{mode}"][said["pictures"].index(picture)]
                values.append(arrays[f"maps/{number}"][row])
        return Maps(torch.from_numpy(np.stack(values)), rows)


def _arrays(piece: Unit, judged: Judged) -> Arrays:
    arrays: Arrays = {f"confidence/{name}": np.asarray(each) for name, each in judged.confidence.items()}
    for i, name in enumerate(piece.methods):
        for mode in {mode for method, mode in judged.flags if method == name}:
            arrays[f"flags/{i}/{mode}"] = np.asarray(judged.flags[name, mode])
        for j, label in enumerate(piece.metrics):
            arrays[f"parts/{i}/{j}"] = np.asarray(judged.parts[name, label])
            for number, (curve, drawn) in enumerate(judged.curves[name, label].items()):
                arrays[f"curve/{i}/{j}/{number}/{curve}/x"] = np.asarray(drawn.x)
                arrays[f"curve/{i}/{j}/{number}/{curve}/y"] = np.asarray(drawn.y, np.float32)
    return arrays


def _words(judged: Judged) -> dict[str, Any]:
    return {
        "names": list(judged.names),
        "inner": judged.inner,
        "states": judged.at_once,
        "ran": {str(kept): count for kept, count in judged.states.items()},
        "audit": None if judged.audit is None else judged.audit.to_json(),
    }
