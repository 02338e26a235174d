"""Doing a unit: load the model once, read the images, explain or score, and describe the result.

Units are known by what they measure, not by the code that measures. So a run that another version goes on with keeps
what it has and adds to it; that this happened is said when it does, and unit by unit in the report: plans and units
record the version of Vitreous and of what it runs with.
"""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitreous import __version__
from vitreous.benchmark.data import CheckedExplainer, checked_explainer, explainer_digest
from vitreous.benchmark.plan import CellKey, map_cell
from vitreous.benchmark.unit_file import Arrays, UnitResult
from vitreous.benchmark.units import RunConfig, Unit
from vitreous.code_digest import is_unknown
from vitreous.datasets import Sample
from vitreous.errors import ImageError, TargetError, VitreousError, one_line
from vitreous.evaluation.plan import EvaluationPlan, Explainer, image_shape_of
from vitreous.evaluation.runner import ScoredUnit, attribute_unit, score_unit
from vitreous.methods import Method
from vitreous.metrics import Maps, get_metric
from vitreous.models import ModelIdentity, VisionModel
from vitreous.tracing.targets import probabilities

_PACKAGES = ("datasets", "evaluation", "methods", "metrics", "models", "registry", "tracing", "world")
"""Where a change of the code can change a number."""

Read = Callable[[str], "UnitResult | None"]
"""The result of a unit by its id, if it is there."""


# -- provenance ----------------------------------------------------------------------------------------------


def versions(explainers: Mapping[str, Explainer] | None = None) -> dict[str, str]:
    """Return the version of Vitreous, of torch, and of the packages that external methods come from."""
    by_package = {"vitreous": _own_version(), "torch": str(torch.__version__)}
    for text, explainer in (explainers or {}).items():
        for package in _packages(text, explainer):
            version = getattr(sys.modules.get(package), "__version__", None)
            with suppress(metadata.PackageNotFoundError, ValueError):  # it may not say
                by_package[package] = str(metadata.version(package) if version is None else version)
    return by_package


@cache
def _own_version() -> str:
    """The version with a digest of the code: between two releases, it alone tells that something changed."""
    root, digest = Path(__file__).parents[1], hashlib.blake2b(digest_size=4)
    missing = [package for package in _PACKAGES if not (root / package).is_dir()]
    if missing:  # one that was renamed must not be left out silently
        raise VitreousError(f"the code in {root} lacks {missing[0]}, by which runs know versions apart")
    for file in sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes().replace(b"\r\n", b"\n"))
    return f"{__version__} ({digest.hexdigest()})"


def _packages(text: str, explainer: Explainer) -> set[str]:
    """Return the packages that a method is from, but for our own."""
    if isinstance(explainer, Method):
        modules = {type(component).__module__ for component in explainer.components()}
    else:
        modules = {text.partition(":")[0]} if explainer.live else set()
    return {module.partition(".")[0] for module in modules} - {"vitreous"}


def other_versions(units: Iterable[Mapping[str, str]], here: Mapping[str, str]) -> str:
    """Return in a line which finished units are from other versions than those here; nothing where none is.

    ``units`` are the versions that finished units record. Another torch is no other version: it changes last digits,
    as devices do.
    """
    counts = Counter(
        (package, version)
        for recorded in units
        for package, version in recorded.items()
        if package != "torch" and version != here.get(package, version)
    )
    done = [f"{count} units were done by {package} {version}" for (package, version), count in counts.items()]
    now = ", ".join(f"{package} {here[package]}" for package in dict.fromkeys(package for package, _ in counts))
    return f"{', '.join(done)}, and what is left will be by {now}" if done else ""


# -- what is not as it was planned with ----------------------------------------------------------------------


def _refuse_other_code(label: str, planned: str, here: str) -> None:
    if here != planned and not is_unknown(planned):
        text = "is not what this run was planned with: its code, files or parameters are others here"
        raise VitreousError(f"{label} {text}; give every worker the same ones, or start the run again")


def refuse_other_model(config: RunConfig, identity: ModelIdentity, advice: str) -> None:
    """Refuse a model that differs in more than its code from the one that a run has under this label."""
    planned = ModelIdentity.parse(config.fingerprint)
    difference = identity.differences(planned, code=False)
    if difference and not planned.structure:
        difference = "another identity (an earlier version of Vitreous knew less of a model)"
    if difference:
        raise VitreousError(f"{config.label} has {difference} than this run was begun with; {advice}")


# -- units ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A unit with all that is needed to run it anywhere, as plain data.

    ``names`` are those of its images; ``units_of_maps`` says which earlier unit has each map that it reads.
    """

    unit: Unit
    config: RunConfig
    revision: int
    names: Mapping[str, str]
    units_of_maps: Mapping[CellKey, str] = field(default_factory=dict)

    @property
    def reads(self) -> set[str]:
        """The units that must be finished before."""
        return set(self.units_of_maps.values())

    def smaller_batches(self, info: Mapping[str, Any]) -> RunConfig | None:
        """Return the configuration with which memory would have been enough, where it was not."""
        planned = {name: self.config.batch_sizes[name] for name in ("attribution_batch", "forward_batch")}
        sizes = {name: min(info.get(name, size), size) for name, size in planned.items()}
        return None if sizes == planned else self.config.with_batch_sizes(**sizes)


def modes_of(config: RunConfig, unit: Unit) -> tuple[str, ...]:
    """Return the kinds of class whose maps a scoring unit reads."""
    return tuple(dict.fromkeys(get_metric(config.metrics[label]).explain_class for label in unit.metrics))


@dataclass
class Worker:
    """Runs units, one after the other; keeps the last model.

    ``sample`` reads an image by data set, name and digest; ``load`` gives the model that a configuration names,
    ``explainer`` what a spec of a method stands for.
    """

    sample: Callable[[str, str, str, VisionModel], Sample]
    load: Callable[[RunConfig], VisionModel]
    explainer: Callable[[str], Explainer]
    _model: tuple[str, VisionModel] | None = field(default=None, init=False)
    _checked: set[tuple[str, str]] = field(default_factory=set, init=False)

    def run(self, job: Job, read: Read) -> UnitResult:
        """Return the result of a unit; ``read`` gives those of earlier units. Threads are those of the plan."""
        config, threads = job.config, torch.get_num_threads()
        self._check_code(config, job.unit)
        model = self.model(config)
        torch.set_num_threads(config.threads)
        began = time.perf_counter()
        try:
            arrays, info = self._score(job, read) if job.unit.is_scoring else self._attribute(job)
        finally:
            torch.set_num_threads(threads)
        is_cuda = model.device.type == "cuda"
        specs = [config.methods[label] for label in job.unit.methods]
        facts = {
            "unit": job.unit.to_json(),
            "specs": specs,
            "revision": job.revision,
            "seconds": time.perf_counter() - began,
            "device": model.device.type,
            "hardware": torch.cuda.get_device_name(model.device) if is_cuda else platform.machine(),
            "threads": config.threads,
            "versions": versions({spec: self.explainer(spec) for spec in specs}),
        }
        return UnitResult(arrays, {**facts, **info})

    def _check_code(self, config: RunConfig, unit: Unit) -> None:
        """Refuse other methods and metrics than this unit was planned with, such as on a machine of a cluster."""
        for label in unit.methods:
            spec, planned = config.made_of(label)
            if (spec, planned) not in self._checked:  # once: files of maps are read for it
                _refuse_other_code(label, planned, explainer_digest(spec, self.explainer(spec)))
                self._checked.add((spec, planned))
        for label in unit.metrics:
            _refuse_other_code(label, config.metric_digest(label), get_metric(config.metrics[label]).code)

    def model(self, config: RunConfig) -> VisionModel:
        """Return the model of a configuration, which must be the one that was planned with."""
        if self._model is None or self._model[0] != config.fingerprint:
            self._model = None  # the old one goes before the new one comes
            model = self.load(config)
            planned = ModelIdentity.parse(config.fingerprint)
            refuse_other_model(config, model.identity, "give every worker the same model, or start the run again")
            if not planned.has_unknown_code:
                _refuse_other_code(config.label, planned.code, model.identity.code)
            self._model = config.fingerprint, model
        return self._model[1]

    def _attribute(self, job: Job) -> tuple[Arrays, dict[str, Any]]:
        """Make the maps of some methods."""
        model, methods = self.model(job.config), job.unit.methods
        samples, unreadable = self._samples(job, job.unit.images)
        uncertain = self._uncertain(job, samples)
        samples = {image: sample for image, sample in samples.items() if image not in uncertain}
        info: dict[str, Any] = {"images": list(samples), "unreadable": unreadable, "uncertain": uncertain}
        if not samples:
            return {}, info
        plan = self._plan(job, model)
        result = attribute_unit(model, list(samples.values()), plan, job.unit.modes)
        arrays: Arrays = {f"classes/{mode}": indices.cpu().numpy() for mode, indices in result.classes.items()}
        for number, label in enumerate(methods):
            maps = result.maps[label]
            arrays[f"maps/{number}"] = maps.values.detach().float().cpu().numpy()
            arrays |= {f"rows/{number}/{mode}": np.asarray(rows, np.int32) for mode, rows in maps.rows.items()}
        return arrays, {
            **info,
            "names": [sample.image.name for sample in samples.values()],
            "attribution_batch": result.config.attribution_batch,
            "costs": [dataclasses.asdict(result.costs[label]) for label in methods],
            "failed": _failures(plan),
        }

    def _score(self, job: Job, read: Read) -> tuple[Arrays, dict[str, Any]]:
        """Evaluate stored maps."""
        model, stored = self.model(job.config), _StoredMaps(read, job)
        samples, unreadable = self._samples(job, [image for image in job.unit.images if stored.has(image)])
        info: dict[str, Any] = {
            "images": list(samples),
            "unreadable": {**stored.left_out("unreadable"), **unreadable},
            "uncertain": stored.left_out("uncertain"),
        }
        if not samples:
            return {}, info
        plan = self._plan(job, model)
        maps = {label: stored.maps(label, list(samples)) for label in job.unit.methods}
        result = score_unit(model, list(samples.values()), plan, maps=maps)
        return _score_arrays(job.unit, result), {
            **info,
            "names": list(result.names),
            "attribution_batch": result.config.attribution_batch,
            "forward_batch": result.config.forward_batch,
            "forwards": {str(rows): count for rows, count in result.states.items()},
            "audit": None if result.audit is None else dataclasses.asdict(result.audit),
            "failed": _failures(plan),
        }

    def _samples(self, job: Job, images: Sequence[str]) -> tuple[dict[str, Sample], dict[str, str]]:
        """Return the images that can be read by their digests, and why the others cannot."""
        samples, unreadable = {}, {}
        model, data = self.model(job.config), job.config.data
        for image in images:
            try:
                samples[image] = self.sample(data, job.names[image], image, model)
            except ImageError as error:
                unreadable[image] = str(error)
            except TargetError as error:
                raise TargetError(f"{one_line(job.names[image])}: {error}") from None
        return samples, unreadable

    def _uncertain(self, job: Job, samples: Mapping[str, Sample]) -> dict[str, str]:
        """Return the images to whose true class the model gives less than is asked for, with the reason."""
        config, model, uncertain = job.config, self.model(job.config), dict[str, str]()
        least = config.least_confidence
        if least is None:
            return {}
        for image, sample in samples.items():
            if sample.label is None:
                raise VitreousError(f"least_confidence needs the true class of {sample.image.name}: give labels")
            logits = model.logits(model.cast(sample.image.tensor[None]))
            probability = float(probabilities(logits, config.evaluation.class_subset)[0, sample.label])
            if probability < least:
                uncertain[image] = f"{model.label(sample.label)} has {probability:.2g}, less than {least:g}"
        return uncertain

    def _plan(self, job: Job, model: VisionModel) -> EvaluationPlan:
        config = job.config
        return EvaluationPlan(
            {label: checked_explainer(self.explainer(config.methods[label])) for label in job.unit.methods},
            {label: get_metric(config.metrics[label]) for label in job.unit.metrics},
            image_shape_of(model, config.size),
            dataclasses.replace(config.evaluation, seed=job.unit.seed),
            config.has_labels,
        )


def _failures(plan: EvaluationPlan) -> dict[str, dict[str, str]]:
    """Return where external methods failed, by method and image."""
    checked = ((name, method) for name, method in plan.methods.items() if isinstance(method, CheckedExplainer))
    return {name: explainer.failed for name, explainer in checked if explainer.failed}


class _StoredMaps:
    """The maps that a scoring unit needs, wherever they were made."""

    def __init__(self, read: Read, job: Job) -> None:
        self.read, self.job = read, job
        self.modes = modes_of(job.config, job.unit)
        self._results: dict[str, UnitResult] = {}

    def _result(self, image: str, label: str, mode: str) -> UnitResult:
        job = self.job
        unit = job.units_of_maps[map_cell(job.config, job.unit.seed, image, label, mode)]
        if unit not in self._results:
            result = self.read(unit)
            if result is None:
                raise VitreousError(f"the maps of {label} cannot be read: unit {unit}; run again to make them anew")
            self._results[unit] = result
        return self._results[unit]

    def _info(self, image: str) -> dict[str, Any]:
        return self._result(image, self.job.unit.methods[0], self.modes[0]).info

    def has(self, image: str) -> bool:
        """Whether an image could be read and was not left out when it was explained."""
        return image in self._info(image)["images"]

    def left_out(self, reason: str) -> dict[str, str]:
        """Return why some images of the unit have no map."""
        reasons = {image: self._info(image).get(reason, {}).get(image) for image in self.job.unit.images}
        return {image: str(text) for image, text in reasons.items() if text is not None}

    def maps(self, label: str, images: Sequence[str]) -> Maps:
        """Return the maps of a method, each mode after the other."""
        values: list[NDArray[Any]] = []
        rows: dict[str, NDArray[Any]] = {}
        for mode in self.modes:
            rows[mode] = np.arange(len(images)) + len(values)
            for image in images:
                arrays, info = self._result(image, label, mode)
                number = info["specs"].index(self.job.config.methods[label])  # its row may have had another label
                row = arrays[f"rows/{number}/{mode}"][info["images"].index(image)]
                values.append(arrays[f"maps/{number}"][row])
        return Maps(torch.from_numpy(np.stack(values)), rows)


def _score_arrays(unit: Unit, result: ScoredUnit) -> Arrays:
    arrays: Arrays = {f"confidence/{name}": np.asarray(values) for name, values in result.confidence.items()}
    for (method, mode), codes in result.flags.items():
        arrays[f"flags/{unit.methods.index(method)}/{mode}"] = np.asarray(codes)
    for i, method in enumerate(unit.methods):
        for j, metric in enumerate(unit.metrics):
            arrays[f"parts/{i}/{j}"] = np.asarray(result.parts[method, metric])
            for number, (name, curve) in enumerate(result.curves[method, metric].items()):
                arrays[f"curve/{i}/{j}/{number}/{name}/x"] = np.asarray(curve.x)
                arrays[f"curve/{i}/{j}/{number}/{name}/y"] = np.asarray(curve.y, np.float32)
    return arrays
