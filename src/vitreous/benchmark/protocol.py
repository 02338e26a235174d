"""Protocol files: models, images, methods, metrics and the numbers of a paper's table, as one small TOML file.

``shipped()`` names those that come along, ``read`` takes one of these names or a path. What a value may be stands with
its field; ``protocol_io`` checks a file to the last word before anything runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, nearest, one_line
from vitreous.registry import choices_of
from vitreous.registry.citations import PAPERS

SCHEMA = "vitreous.protocol/1"
REQUIRES = {
    "weights": "weights that are not public; hand in your own with --checkpoint LABEL=FILE",
    "data": "a data set that is not public",
    "training": "models that are trained first",
}
_AXES = ("methods", "metrics", "models", "data")
_FOLDER = Path(__file__).parent / "protocols"


def checked(default: Any, **rules: Any) -> Any:
    """Return a field with a default and rules, which ``protocol_io.Checker`` holds its values against."""
    return field(default=default, metadata=rules)


def _source_names() -> Collection[str]:
    import vitreous.world  # noqa: F401 - it registers its scenes
    from vitreous.datasets import source_names

    return source_names()


def _figures() -> Collection[str]:
    from vitreous.results.table_plots import KINDS

    return KINDS


def _config_choices() -> Mapping[str, Collection[str]]:
    from vitreous.metrics import EvaluationConfig

    return choices_of(EvaluationConfig)


@dataclass(frozen=True)
class ModelSpec:
    """A model of the table: what the paper calls it, what ``vt.load`` does, and how images are prepared for it.

    ``resize`` is the side that images are brought to before ``size`` is cut out, ``crop`` how: ``center`` (the
    shorter side), ``squash`` (both sides) or ``border`` (the longer one). What is left out is the model's own.
    ``methods`` are the labels of the rows it has, all where it is empty; ``requires`` is what it needs beforehand.
    """

    label: str = field(metadata={"label": True})
    name: str
    checkpoint: str | None = None
    size: int | None = checked(None, least=1)
    resize: int | None = checked(None, least=1)
    crop: str | None = checked(None, choices=("center", "squash", "border"))
    interpolation: str | None = checked(None, choices=("nearest", "bilinear", "bicubic", "lanczos"))
    mean: tuple[float, ...] = checked((), channels=True)
    std: tuple[float, ...] = checked((), channels=True)
    methods: tuple[str, ...] = ()
    requires: tuple[str, ...] = checked((), choices=REQUIRES)


@dataclass(frozen=True)
class DataSpec:
    """Images: where they come from, how many (0: all) and which.

    ``path`` is a folder, a file or a name, where the source has no place of its own, ``names`` a text file for
    ``choose = "listed"``. ``class_subset = "own"`` restricts the softmax to the classes of the data set.
    ``least_confidence`` leaves out, for each model, images to whose true class it gives a lower probability. ``models``
    and ``metrics`` are what of the protocol belongs to these images, all where they are empty.
    """

    source: str = field(metadata={"choices": _source_names})
    label: str = checked("", label=True)
    images: int = checked(0, least=0)
    choose: str = checked("first", choices=("first", "random", "per-class", "listed"))
    seed: int = checked(0, least=0)
    path: str | None = None
    split: str | None = None
    names: str | None = None
    class_subset: str | None = checked(None, choices=("own",))
    least_confidence: float | None = checked(None, probability=True)
    models: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvaluationSpec:
    """What is measured and how; ``reference`` is the row that others are tested against.

    ``target`` is the explained class, unless a metric has its own: ``pred``, ``label``, or ``given`` by the data. The
    other settings are those of ``EvaluationConfig``; sizes that are left out follow from device and memory.
    """

    metrics: tuple[str, ...] = field(metadata={"filled": True})
    target: str = checked("pred", choices=lambda: _config_choices()["target"])
    seeds: tuple[int, ...] = checked((0,), filled=True, least=0, unique=True)
    reference: str | None = None
    controls: bool = True
    output: str = checked("logit", choices=lambda: _config_choices()["output"])
    precision: str = checked("float32", choices=lambda: _config_choices()["precision"])
    interpolation: str = checked("bilinear", choices=lambda: _config_choices()["interpolation"])
    tie_breaking: str = checked("random", choices=lambda: _config_choices()["tie_breaking"])
    nan_policy: str = checked("exclude", choices=lambda: _config_choices()["nan_policy"])
    images_per_unit: int | None = checked(None, least=1)
    batch_size: int | None = checked(None, least=1)
    memory_gb: float | None = checked(None, above=0)


@dataclass(frozen=True)
class ReportLayout:
    """The table of all models together: what stands in its rows and columns; and the figures of a report."""

    rows: str = checked("methods", choices=_AXES)
    columns: tuple[str, ...] = checked(("models", "metrics"), choices=_AXES)
    figures: tuple[str, ...] = checked((), choices=_figures)


@dataclass(frozen=True)
class Published:
    """A printed cell. ``value`` is in the metric's own unit, ``printed`` the number as it stands in the paper.

    ``gain`` is a printed change in percent against the row ``over``. Without a value, ``source`` says where the paper
    shows it ("figure only"); model and method may then be empty, which means all.
    """

    metric: str
    model: str = ""
    method: str = ""
    data: str = ""
    value: float | None = None
    printed: float | None = None
    error: float | None = None
    gain: float | None = None
    over: str | None = None
    source: str | None = None


@dataclass(frozen=True)
class Protocol:
    """A protocol as it was read. ``data`` is its first data set, ``also`` are others of the same table.

    ``methods`` are specs by the label of their row; ``absent`` are rows of the paper that have none here, with the
    reason. ``requires`` is what all of it needs before it can run: words of ``REQUIRES``.
    """

    name: str
    title: str
    models: tuple[ModelSpec, ...] = field(metadata={"filled": True})
    data: DataSpec
    evaluation: EvaluationSpec
    methods: Mapping[str, str] = field(metadata={"filled": True})
    paper: str | None = checked(None, choices=PAPERS)
    table: str | None = None
    note: str | None = None
    requires: tuple[str, ...] = checked((), choices=REQUIRES)
    also: tuple[DataSpec, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    layout: ReportLayout = ReportLayout()
    published: tuple[Published, ...] = ()

    @property
    def datasets(self) -> tuple[DataSpec, ...]:
        return (self.data, *self.also)

    @property
    def cells(self) -> tuple[Published, ...]:
        """The printed cells, without those that the paper only draws."""
        return tuple(cell for cell in self.published if cell.value is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        """What must be there before anything of it can run: nothing, where one of the models can."""
        if self.requires or all(model.requires for model in self.models):
            words = (*self.requires, *(word for model in self.models for word in model.requires))
            return tuple(dict.fromkeys(words))
        return ()

    def with_weights(self, labels: Collection[str]) -> Protocol:
        """Return it for one who hands in weights for some models, by their labels: these require none any more.

        Where all of it requires weights, only these models can run.
        """
        if not any(model.label in labels for model in self.models):
            return self
        common = tuple(word for word in self.requires if word == "weights")
        models = tuple(
            replace(model, requires=tuple(word for word in model.requires if word != "weights"))
            if model.label in labels
            else replace(model, requires=tuple(dict.fromkeys((*model.requires, *common))))
            for model in self.models
        )
        return replace(self, models=models, requires=tuple(word for word in self.requires if word != "weights"))

    def runnable(self) -> Protocol:
        """Return it with the models that can run; refuse where there is none."""
        if self.missing:
            needs = "; ".join(f"{word}: {REQUIRES[word]}" for word in self.missing)
            raise VitreousError(f"{self.name} cannot run here, it requires {needs}")
        return with_models(self, tuple(model for model in self.models if not model.requires))

    def methods_of(self, model: ModelSpec) -> dict[str, str]:
        """Return the specs of the rows that a model has, by their labels."""
        return {label: spec for label, spec in self.methods.items() if not model.methods or label in model.methods}

    def per_dataset(self) -> tuple[Protocol, ...]:
        """Return one protocol per data set, each with its own models, metrics and cells, and nothing in ``also``."""
        return tuple(
            replace(
                self,
                data=data,
                also=(),
                models=tuple(model for model in self.models if not data.models or model.label in data.models),
                evaluation=replace(self.evaluation, metrics=data.metrics or self.evaluation.metrics),
                published=tuple(cell for cell in self.published if cell.data == data.label),
            )
            for data in self.datasets
        )

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as plain data."""
        return {"schema": SCHEMA, **json.loads(json.dumps(asdict(self)))}


def shipped() -> list[str]:
    """Return the names of the protocols that come along."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def read(name_or_path: str | Path) -> Protocol:
    """Read a protocol that comes along, by its name, a file of one's own, or the JSON file that a report wrote."""
    from vitreous.benchmark.protocol_io import read_json_file, read_toml_file  # which know what is defined here

    names = shipped()
    if isinstance(name_or_path, str) and name_or_path in names:
        return read_toml_file(_FOLDER / f"{name_or_path}.toml")
    path = Path(name_or_path)
    if not path.is_file():
        text = one_line(repr(str(name_or_path)))[:200]
        raise VitreousError(f"{text} is no file and no protocol that comes along{nearest(str(name_or_path), names)}")
    return read_json_file(path) if path.suffix == ".json" else read_toml_file(path)


def replace_model(protocol: Protocol, name: str, size: int | None = None) -> Protocol:
    """Return the same protocol with another model, by any name that ``vt.load`` knows.

    It prepares images as its own weights want, in another ``size`` if one is given. Rows and data sets are those of
    the model with the most rows, of those that can run. Published cells stay as they are: they are those of others.
    """
    like = _fullest(protocol)
    data, *also = [replace(d, models=()) for d in protocol.datasets if not d.models or like.label in d.models]
    needs = tuple(word for word in protocol.requires if word not in ("weights", "training"))
    model = ModelSpec(label=name, name=name, size=size, methods=like.methods)
    return replace(protocol, models=(model,), data=data, also=tuple(also), requires=needs)


def add_model(protocol: Protocol, model: str | ModelSpec, size: int | None = None) -> Protocol:
    """Return the same protocol with one more model, by its name or its spec; rows and data as for ``replace_model``."""
    like = _fullest(protocol)
    if isinstance(model, str):
        model = ModelSpec(label=model, name=model, size=size, methods=like.methods)
    label = model.label
    data, *also = (
        replace(d, models=(*d.models, label)) if like.label in d.models and label not in d.models else d
        for d in protocol.datasets
    )
    return replace(protocol, models=(*protocol.models, model), data=data, also=tuple(also))


def _fullest(protocol: Protocol) -> ModelSpec:
    """Return the model with the most rows, of those that can run."""
    ready = [model for model in protocol.models if not model.requires] or list(protocol.models)
    return max(ready, key=lambda model: len(model.methods) or math.inf)


def with_models(protocol: Protocol, models: tuple[ModelSpec, ...]) -> Protocol:
    """Return a protocol with some of its models, and the data sets that belong to them."""
    labels = [model.label for model in models]
    datasets = [data for data in protocol.datasets if not data.models or set(labels) & set(data.models)]
    if not datasets:
        raise VitreousError(f"{protocol.name} has no data for {', '.join(labels)}")
    return replace(protocol, models=models, data=datasets[0], also=tuple(datasets[1:]))
