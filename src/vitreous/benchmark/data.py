"""One data set of a protocol: its images, what its methods mean, and the configuration of every model on it.

Images are known by what they are: bytes, label and annotation, never their place in a list. Methods are specs, folders
of maps and callables; an external one that fails on some images must not take the rest of a long run along.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitreous.world  # noqa: F401 - it registers its scenes and models
from vitreous.benchmark.protocol import ModelSpec, Protocol
from vitreous.benchmark.units import RunConfig, digest_of
from vitreous.code_digest import code_digest, is_unknown
from vitreous.datasets import DataSource, Entry, Sample, file_digest, open_source
from vitreous.errors import ImageError, ModelChangedError, SpecError, VitreousError, nearest, one_line
from vitreous.evaluation.plan import Explainer, ExternalExplainer, named, with_batch_sizes
from vitreous.methods import Method
from vitreous.metrics import EvaluationConfig, get_metric
from vitreous.models import Preprocess, VisionModel
from vitreous.models.preprocess import OWN
from vitreous.registry.defaults import CONTROLS

_UNIT_ON_CPU = 8  # images of a unit: a unit is what is lost when a run is stopped, and what workers share


# -- methods -------------------------------------------------------------------------------------------------


def is_import(text: str) -> bool:
    """Whether a method is a callable to be imported, written ``package.module:name``."""
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def parse_explainer(text: str, imports: Collection[str] = ()) -> Explainer:
    """Return what a spec, a folder of maps, or a callable as ``package.module:name`` stands for.

    A callable is imported only if it is one of ``imports``, those that the user has named: the files of a run name
    callables too, and may be from anybody.
    """
    if is_import(text):
        if text not in imports:
            raise SpecError(f"{one_line(text)} is code to import, which this command does not name")
        return named({text: _imported(text)})[text]
    (explainer,) = named([text]).values()
    return explainer


def _imported(text: str) -> Any:
    module, _, name = text.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{text} is no callable that can be imported: {error}") from None


def explainer_digest(text: str, explainer: Explainer) -> str:
    """Return a digest of what a method is made of: its parameters, the maps of a folder, the code of a callable."""
    if isinstance(explainer, Method):
        return explainer.fingerprint
    if not explainer.live:
        return digest_of([[file.name, file_digest(str(file))] for file in sorted(Path(text).glob("*.npy"))])
    code = code_digest(_imported(text))
    return code if is_unknown(code) else digest_of([text, code])


def checked_explainer(explainer: Explainer) -> Explainer:
    """Return a method as it is if it is ours, or else one that notes where it fails."""
    if not isinstance(explainer, ExternalExplainer):
        return explainer
    return CheckedExplainer(**{f.name: getattr(explainer, f.name) for f in dataclasses.fields(ExternalExplainer)})


@dataclass(frozen=True, eq=False)
class CheckedExplainer(ExternalExplainer):
    """Images on which it fails, asked for by themselves, have a map of NaN; ``failed`` says why, by their names.

    Where it fails on all that it is asked about, the error is raised: then it is the method, and no image.
    """

    failed: dict[str, str] = field(default_factory=dict)

    def maps(self, name: str, model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Tensor:
        """Return maps ``[B, h, w]``, all at once or, if that fails, one by one."""
        try:
            return super().maps(name, model, samples, inputs, classes)
        except (torch.OutOfMemoryError, ModelChangedError):
            raise
        except Exception as error:
            first = error
        maps: list[Tensor | None] = [None] * len(samples)
        failed: dict[str, str] = {}
        for at, sample in enumerate(samples):
            try:
                maps[at] = super().maps(name, model, [sample], inputs[at : at + 1], classes[at : at + 1])
            except (torch.OutOfMemoryError, ModelChangedError):
                raise
            except Exception as error:
                failed[sample.image.name] = one_line(f"{type(error).__name__}: {error}")[:300]
        example = next((map for map in maps if map is not None), None)
        if example is None:
            raise first
        self.failed.update(failed)
        return torch.cat([torch.full_like(example, torch.nan) if map is None else map for map in maps])


# -- images --------------------------------------------------------------------------------------------------


class SourceImages:
    """The images of a source by their digests."""

    def __init__(self, source: DataSource) -> None:
        self.source = source

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """One digest for each entry, in order; every file is read once, none is decoded."""
        digests = tuple(digest_of_entry(entry) for entry in self.source.entries)
        if len(set(digests)) < len(digests):
            again = next(i for i, digest in enumerate(digests) if digest in digests[:i])
            raise VitreousError(f"{self.source.name}: {self.source.entries[again].name} is there twice")
        return digests

    @cached_property
    def indices(self) -> dict[str, int]:
        return {digest: index for index, digest in enumerate(self.digests)}

    def entry(self, digest: str) -> Entry:
        """Return what is known about an image without opening it."""
        if digest not in self.indices:
            raise VitreousError(f"picture {digest} of this run is not in {self.source.name} any more: was it changed?")
        return self.source.entries[self.indices[digest]]

    def sample(self, digest: str, model: VisionModel) -> Sample:
        self.entry(digest)
        return self.source.sample(model, self.indices[digest])


@dataclass(frozen=True)
class ImageSource:
    """Where the images of a run come from, and models to prepare them; either may be missing, and ``why`` says so."""

    lookups: Mapping[str, Any]
    model: Callable[[RunConfig], VisionModel] | None = None
    why: str = ""

    def image(self, config: RunConfig, digest: str) -> Image.Image:
        """Return an image as the model sees it."""
        lookup = self.lookups[config.data]
        entry = lookup.entry(digest)
        if entry.source is not None and self.model is not None:
            model = self.model(config)
            return model.preprocess.to_image(lookup.sample(digest, model).image.tensor)
        is_own = config.preprocess["mode"] == OWN
        preprocess = self.model(config).preprocess if is_own and self.model is not None else _preprocess(config)
        photo = entry.open()
        return preprocess.to_image(photo) if isinstance(photo, Tensor) else preprocess.resize_and_crop(photo)[0]


def _preprocess(config: RunConfig) -> Preprocess:
    """Return a run's preprocessing as data; that of a ``Transform`` crops the same image, up to its rounding."""
    recorded = ((f.name, config.preprocess[f.name]) for f in dataclasses.fields(Preprocess))
    data: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in recorded}
    if len(data["mean"]) != 3 or data["crop"] <= 0:
        raise VitreousError(f"{config.label}: the run does not say how pictures are prepared for it")
    return Preprocess(**data)


def digest_of_entry(entry: Entry) -> str:
    """Return the digest of an image: of its bytes, name, label and annotation."""
    facts = [entry.name, entry.label, entry.boxes, entry.is_relative, entry.group, entry.compare_classes]
    if entry.source is not None:
        facts += [entry.build_steps, _digest_of_ingredients(entry.source)]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16)
    for path in (entry.path if entry.opener is None else None, entry.mask):
        if path is not None:
            digest.update(_digest_of_file(path).encode())
    if entry.opener is not None:
        try:
            digest.update(np.ascontiguousarray(np.asarray(entry.open())).tobytes())
        except ImageError:
            digest.update(b"unreadable")  # the reason is given when it is asked for
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _digest_of_ingredients(source: DataSource) -> str:
    """Return one digest of all images that grids are made of: each grid may have any of them."""
    digest = hashlib.blake2b(digest_size=16)
    for entry in source.entries:
        digest.update(digest_of_entry(entry).encode())
    return digest.hexdigest()


def _digest_of_file(path: object) -> str:
    try:
        return file_digest(str(path))
    except ImageError:
        return "unreadable"


@dataclass(frozen=True)
class Options:
    """How a run is done here. ``data`` is where its images are, one place or one for each label of a data set."""

    data: str | Mapping[str, str] | None = None
    device: str = "auto"
    threads: int = 1
    memory_gb: float | None = None
    images: int | None = None
    checkpoint: Mapping[str, str] | None = None
    """Files of weights by the label of a model, where no hub can be reached."""

    def path(self, label: str) -> str | None:
        """Return where the images of a data set are, if it was said."""
        return self.data.get(label) if isinstance(self.data, Mapping) else self.data

    def to_json(self) -> dict[str, Any]:
        return {"data": self.data, "images": self.images, "checkpoint": dict(self.checkpoint or {})}


class DatasetRun:
    """One data set of a protocol, with the models and metrics that belong to it."""

    def __init__(self, protocol: Protocol, options: Options) -> None:
        self.protocol, self.options = protocol, options

    @property
    def label(self) -> str:
        return self.protocol.data.label

    @cached_property
    def images(self) -> SourceImages:
        spec = self.protocol.data
        options: dict[str, Any] = {} if spec.split is None else {"split": spec.split}
        source = open_source(
            spec.source,
            self.options.path(spec.label) or spec.path,
            images=spec.images if self.options.images is None else self.options.images,
            choose=spec.choose,
            seed=spec.seed,
            listed=spec.names,
            **options,
        )
        return SourceImages(source)

    @cached_property
    def names(self) -> dict[str, str]:
        """The names of the images by their digests; every file is read for it."""
        entries = self.images.source.entries
        return {digest: entry.name for digest, entry in zip(self.images.digests, entries, strict=True)}

    @property
    def listed(self) -> list[list[Any]]:
        """Which images are wanted and the groups of those that have one, for those who cannot open them."""
        return [list(self.images.digests), list(self.images.source.groups or ())]

    @cached_property
    def indices(self) -> dict[str, int]:
        """Where in the source each name is; nothing is read for it."""
        return {entry.name: index for index, entry in enumerate(self.images.source.entries)}

    def sample(self, name: str, digest: str, model: VisionModel) -> Sample:
        """Read an image, which must be the one that was planned with."""
        source, index = self.images.source, self.indices.get(name)
        if index is None or digest_of_entry(source.entries[index]) != digest:
            raise self.changed(name)
        return source.sample(model, index)

    def changed(self, name: str) -> VitreousError:
        """Return the error of an image that is not the one that was planned with."""
        text, source = one_line(name), self.images.source.name
        if name in self.indices:
            return VitreousError(f"{text} of {source} has changed since this run was planned: picture, label or truth")
        return VitreousError(f"{text}, which this run was planned with, is not among the pictures of {source} any more")

    def config(self, spec: ModelSpec, model: VisionModel) -> RunConfig:
        """Fix every number of the units of one model."""
        evaluation, source = self.protocol.evaluation, self.images.source
        size = (model.preprocess.size[0], model.preprocess.size[1])
        methods = self.protocol.methods_of(spec)
        methods |= {name: name for name in CONTROLS if evaluation.controls and name not in methods}
        metrics = {text: get_metric(text) for text in evaluation.metrics}
        own = self.protocol.methods.values()  # what only the files of a run name is not imported
        return RunConfig(
            label=spec.label,
            data=self.label,
            model=dataclasses.asdict(spec),
            fingerprint=model.fingerprint,
            dtype=str(model.dtype).removeprefix("torch."),
            device=model.device.type,
            size=size,
            preprocess=model.preprocess.to_json(),
            methods=methods,
            method_digests={label: explainer_digest(row, parse_explainer(row, own)) for label, row in methods.items()},
            metrics={label: metric.spec for label, metric in metrics.items()},
            metric_digests={label: metric.code for label, metric in metrics.items() if metric.code},
            modes=tuple(sorted({metric.explain_class for metric in metrics.values()})),
            has_labels=source.has_labels,
            least_confidence=self.protocol.data.least_confidence,
            threads=self.options.threads,
            evaluation=self._evaluation(model, size),
        )

    def _evaluation(self, model: VisionModel, size: tuple[int, int]) -> EvaluationConfig:
        """Return the protocol's evaluation with the sizes that this device and its memory allow."""
        spec, source = self.protocol.evaluation, self.images.source
        config = EvaluationConfig(
            target=spec.target,
            output=spec.output,
            class_subset=source.classes if self.protocol.data.class_subset == "own" else None,
            precision=spec.precision if model.device.type == "cuda" else "float32",
            interpolation=spec.interpolation,
            tie_breaking=spec.tie_breaking,
            nan_policy=spec.nan_policy,
        )
        memory_gb = spec.memory_gb if self.options.memory_gb is None else self.options.memory_gb
        config = with_batch_sizes(config, model, size, spec.batch_size, memory_gb)
        most = _UNIT_ON_CPU if model.device.type == "cpu" else config.images_per_unit
        return dataclasses.replace(config, images_per_unit=spec.images_per_unit or min(config.images_per_unit, most))


def check_labels(options: Options, protocols: Sequence[Protocol]) -> None:
    """Refuse places and weights for labels that no model or data set of these protocols has."""
    models = list(dict.fromkeys(model.label for protocol in protocols for model in protocol.models))
    datasets = list(dict.fromkeys(data.label for protocol in protocols for data in protocol.datasets))
    places = options.data if isinstance(options.data, Mapping) else {}
    _check_labels("checkpoint", "model", options.checkpoint or {}, models, protocols[0].name)
    _check_labels("data", "data set", places, datasets, protocols[0].name)


def _check_labels(option: str, noun: str, labels: Collection[str], options: Sequence[str], protocol: str) -> None:
    for label in labels:
        if label not in options:
            text = f"--{option} {one_line(label)}=…: {protocol} has no {noun} {one_line(repr(label))}"
            if options == [""]:
                raise VitreousError(f"{text}, only one without a label: give --data PATH")
            raise VitreousError(f"{text}; there is {', '.join(map(one_line, options))}{nearest(label, options)}")
