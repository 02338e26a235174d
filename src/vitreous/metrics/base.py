"""The contract of a metric: which states it needs, and how a score is read out of them.

Every metric by name, with what there is to know about it as data; spelled as methods are.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from vitreous.code_digest import code_digest, is_external
from vitreous.errors import MapError, SpecError, VitreousError, one_line
from vitreous.metrics.bootstrap import Cell, mean
from vitreous.metrics.curves import Array, Curve
from vitreous.metrics.evaluation import Layout
from vitreous.metrics.ranking import FLAGS
from vitreous.metrics.requests import (
    AnnotationRequest,
    Images,
    ImageShape,
    Masks,
    RankedRemoval,
    Reattribution,
    RenderedStates,
    Request,
    WithoutParts,
)
from vitreous.registry import (
    Paper,
    Parameter,
    Registry,
    check_choice,
    find_papers,
    format_value,
    parameters_of,
    parse_spec,
)

if TYPE_CHECKING:
    from vitreous.metrics.evaluation import Evaluation
    from vitreous.metrics.verdicts import Verdict

__all__ = [
    "MetricInfo",
    "Metric",
    "MetricResult",
    "as_parts",
    "check_widths",
    "find",
    "get_metric",
    "list_metrics",
    "register_metric",
]

_USUAL = ImageShape((224, 224), (14, 14))


@dataclass(frozen=True)
class MetricResult:
    """What one metric has collected: ``parts`` ``[n, P]`` per image, and what is known about the maps behind them.

    Images whose map was left out have NaN; they are counted, and no mean sees them.
    """

    metric: Metric
    parts: Array
    flags: Array

    @property
    def scores(self) -> Array:
        """One number per image."""
        return self.metric.per_image(self.parts)

    @property
    def mean(self) -> float:
        """The score of all images together; NaN if none has one."""
        return float(self.metric.aggregate(self.parts, np.ones((1, len(self.parts))))[0])

    @property
    def degenerate(self) -> dict[str, int]:
        """How many maps were constant, zero or not finite."""
        return {name: int((self.flags == code).sum()) for code, name in enumerate(FLAGS) if code}


@dataclass
class Metric:
    """Base of all metrics; subclasses are dataclasses whose fields are the parameters.

    A metric says what it ``needs`` (states, masks, other images, maps made again, truth) and how scores are ``read``
    from the answers: one number per image, or several parts that it then ``aggregate`` s itself (a ratio of sums, a
    correlation, an average precision). It collects as torchmetrics do: ``update`` with answers, ``compute``, ``reset``,
    ``merge`` with another of the same parameters.

    ``explain`` is the class that the maps explain: ``given`` (what the caller asked for), ``pred`` or ``label``.
    ``score`` is the class whose probability is read: ``pred``, ``label`` or ``explained``.
    """

    explain_class: str = dataclasses.field(default="given", kw_only=True)
    score_class: str = dataclasses.field(default="pred", kw_only=True)

    info: ClassVar[MetricInfo]
    higher_is_better: ClassVar[bool] = True
    needs_correctness: ClassVar[bool] = False
    """Whether correctness is read, so that true classes are needed whatever is scored."""
    x_axis: ClassVar[str] = "share"
    """What its curves run over, where that is not how much of the image is gone."""
    can_exclude_images: ClassVar[bool] = False
    """Whether its protocol leaves images out, the same ones for every map: they have no score."""

    def __post_init__(self) -> None:
        check_choice("explain_class", self.explain_class, ("given", "pred", "label"))
        check_choice("score_class", self.score_class, ("pred", "label", "explained"))
        self.check()
        self.reset()

    def check(self) -> None:
        """Refuse parameters that mean nothing."""

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        """Return what this metric reads."""
        raise VitreousError(f"{self.info.name} must define needs")

    def score(self, answers: Evaluation) -> Array:
        """Return one score per image, ``[B]``, or its parts ``[B, P]``; NaN where the map was left out."""
        raise VitreousError(f"{self.info.name} must define read")

    def curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        """Return the curves that the score is read from, by name; most metrics of removal have one."""
        return {}

    def per_image(self, parts: Array) -> Array:
        """Return one number per image from its parts: the first of them."""
        first: Array = parts[:, 0]
        return first

    def aggregate(self, parts: Array, weights: Array) -> Array:
        """Return the score of all images ``[r]``, for each row of weights ``[r, n]`` (resamples, or ones).

        Here the weighted mean over the images that have a score.
        """
        return mean(self.per_image(parts)[:, None], weights)

    def cell(self, parts: Array) -> Cell:
        """Return what the bootstrap resamples."""
        if type(self).aggregate is Metric.aggregate:
            return self.per_image(parts)[:, None], mean
        return parts, self.aggregate

    # -- what is read, checked -------------------------------------------------------------------------

    def checked_parts(self, answers: Evaluation) -> Array:
        """Return what ``read`` returns as ``[B, P]``; refuse what is not a real number, or a row of them, per image."""
        value = self.score(answers)
        try:
            array = np.asarray(value)
            is_real = array.dtype.kind in "fiub"
        except Exception as error:  # whatever an array-like object does, such as a tensor on a GPU
            raise MapError(f"{self.spec}: read returned no array ({one_line(str(error))[:200]})") from None
        if not is_real or array.ndim not in (1, 2) or 0 in array.shape[1:]:
            kind = f"{list(array.shape)} of {array.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise MapError(f"{self.spec}: read returned {kind}; scores are real numbers [B], or parts [B, P]")
        if len(array) != len(answers):
            raise MapError(f"{self.spec}: read returned {len(array)} scores for {len(answers)} images")
        parts = as_parts(array)
        if is_external(type(self)):
            self._check_aggregates(parts)
        return parts

    def _check_aggregates(self, parts: Array) -> None:
        checks: list[tuple[str, int, Callable[[], Array]]] = [
            ("per_image", len(parts), lambda: self.per_image(parts.copy())),
            ("aggregate", 2, lambda: self.aggregate(parts.copy(), np.ones((2, len(parts))))),
        ]
        for name, count, compute in checks:
            with np.errstate(all="ignore"):
                shape = list(np.shape(compute()))
            if shape != [count]:
                raise MapError(f"{self.spec}: {name} returned the shape {shape}, not [{count}]")

    def checked_curves(self, answers: Evaluation) -> Mapping[str, Curve]:
        """Return what ``curves`` returns; refuse a line that is not ``[B, J]`` over its ``[J]`` fractions."""
        curves = self.curves(answers)
        for name, curve in curves.items():
            if np.shape(curve.y) != (len(answers), *np.shape(curve.x)) or np.ndim(curve.x) != 1:
                shapes = f"{list(np.shape(curve.y))} over {list(np.shape(curve.x))}"
                raise MapError(f"{self.spec}: curve {name!r} is {shapes}; it must be [{len(answers)}, J] over [J]")
        return curves

    # -- collecting ------------------------------------------------------------------------------------

    def update(self, answers: Evaluation) -> None:
        """Take in the answers about some maps."""
        parts = self.checked_parts(answers)
        check_widths(self.spec, [*self._parts[:1], parts])
        self._parts.append(parts)
        self._flags.append(np.asarray(answers.flags(self.explain_class)))

    def compute(self) -> MetricResult:
        """Return the scores of everything taken in so far."""
        if not self._parts:
            raise MapError(f"{self.spec} has seen no maps yet")
        return MetricResult(self, np.concatenate(self._parts), np.concatenate(self._flags))

    def reset(self) -> None:
        """Forget everything taken in."""
        self._parts: list[Array] = []
        self._flags: list[Array] = []

    def merge(self, other: Metric) -> None:
        """Take in what another metric has collected, after one's own."""
        if other.spec != self.spec:
            raise SpecError(f"{self.spec} cannot be merged with {other.spec}")
        self._parts += other._parts
        self._flags += other._flags

    # -- facts -----------------------------------------------------------------------------------------

    @property
    def needs_labels(self) -> bool:
        """Whether true classes have to be known."""
        return self.needs_correctness or "label" in (self.explain_class, self.score_class)

    def num_forwards(self, image_shape: ImageShape = _USUAL) -> int:
        """How many states of its own each map needs; the clean image and bare substrates are shared by all."""
        needs = self.requests(image_shape)
        own = Layout(
            [need for need in needs if isinstance(need, RankedRemoval) and need.by == "map"], image_shape
        ).length
        return own + sum(need.count for need in needs if isinstance(need, RenderedStates) and need.by == "map")

    def num_shared_forwards(self, image_shape: ImageShape = _USUAL) -> int:
        """How many states each image needs beside the clean one, once for all methods."""
        needs = set(self.requests(image_shape))
        orders = [need for need in needs if isinstance(need, RankedRemoval) and need.by != "map"]
        others = [need.count for need in needs if isinstance(need, Masks | Images)]
        others += [need.count for need in needs if isinstance(need, RenderedStates) and need.by != "map"]
        return sum(Layout([need], image_shape).length for need in orders) + sum(others)

    @property
    def needs_parts(self) -> bool:
        """Whether each image needs a state more for every part that is known of it, once for all methods."""
        return any(isinstance(need, WithoutParts) for need in self.requests(_USUAL))

    def num_reattributions(self, image_shape: ImageShape = _USUAL) -> int:
        """How many further maps of each image have to be made."""
        return sum(need.count for need in set(self.requests(image_shape)) if isinstance(need, Reattribution))

    @property
    def annotation_kinds(self) -> tuple[str, ...]:
        """What has to be known about every picture."""
        return tuple(need.kind for need in self.requests(_USUAL) if isinstance(need, AnnotationRequest))

    @property
    def spec(self) -> str:
        """The shortest spelling that gives this metric again."""
        given = [(p.name, getattr(self, p.name), p.default) for p in self.info.parameters]
        parts = [f"{name}={format_value(value)}" for name, value, default in given if value != default]
        return self.info.name + (f"({', '.join(parts)})" if parts else "")

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter with its value."""
        return {parameter.name: getattr(self, parameter.name) for parameter in self.info.parameters}

    @property
    def code(self) -> str:
        """A digest of the code of a metric from elsewhere; nothing for those of Vitreous, whose spellings suffice."""
        return code_digest(type(self)) if is_external(type(self)) else ""

    def clone(self) -> Metric:
        """Return the same metric with nothing taken in."""
        return type(self)(**self.settings)

    def __str__(self) -> str:
        return self.spec


def check_widths(name: str, parts: Sequence[Array]) -> None:
    """Refuse parts of different lengths: another batch of images must be read in the same way."""
    widths = sorted({array.shape[1] for array in parts})
    if len(widths) > 1:
        raise MapError(f"{name} returned {' and '.join(map(str, widths))} parts for images of one table")


def as_parts(read: Array) -> Array:
    """Return what a metric has read as ``[n, P]``."""
    array = np.asarray(read, np.float64)
    return array[:, None] if array.ndim == 1 else array


M = TypeVar("M", bound=type[Metric])


@dataclass(frozen=True)
class MetricInfo:
    """One line of ``vitreous metrics``."""

    name: str
    family: str
    factory: type[Metric]
    aliases: tuple[str, ...] = ()
    papers: tuple[Paper, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    example: str = ""
    """Words that show how a required parameter is given; there is none so far."""
    builds_on: tuple[Paper, ...] = ()
    """Papers whose ideas it uses without being proposed there: it is our own."""

    @property
    def summary(self) -> str:
        """The first line of the metric's docstring."""
        return inspect.cleandoc(self.factory.__doc__ or "").splitlines()[0]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The metric's own parameters first, those of all metrics last."""
        return parameters_of(self.factory, MetricInfo=MetricInfo)

    @property
    def higher_is_better(self) -> bool:
        """The direction, with the parameters left as they are."""
        return self.factory().higher_is_better

    @property
    def needs_labels(self) -> bool:
        """Whether true classes have to be known, with the parameters left as they are."""
        return self.factory().needs_labels

    @property
    def annotation_kinds(self) -> tuple[str, ...]:
        """What has to be known about every picture: ``mask``, ``boxes``, ``parts`` or any ``region``."""
        return self.factory().annotation_kinds

    @property
    def num_reattributions(self) -> int:
        """Further maps of each image that have to be made, for a model of twelve blocks."""
        return self.factory().num_reattributions()

    @property
    def needs_parts(self) -> bool:
        """Whether all methods share a state more for every known part of an image."""
        return self.factory().needs_parts

    @property
    def num_shared_forwards(self) -> int:
        """States of each image that all methods share."""
        return self.factory().num_shared_forwards()

    @property
    def verdict(self) -> Verdict | None:
        """What the shipped trial found about it; ``None`` if no trial has seen it."""
        from vitreous.metrics.verdicts import verdict

        return verdict(self.factory())

    @property
    def num_forwards(self) -> int:
        """States of its own per image and method, at 224 x 224 pixels in 14 x 14 patches."""
        return self.factory().num_forwards()


FAMILIES = (
    "faithfulness",
    "token removal",
    "randomisation",
    "robustness",
    "complexity",
    "ground truth",
    "localisation",
)
"""The order of families in tables; families of other packages come last."""

SHELF: Registry[MetricInfo] = Registry("metric", "vitreous.metrics", FAMILIES)


def register_metric(
    name: str,
    *,
    family: str,
    papers: tuple[str | Paper, ...] = (),
    aliases: tuple[str, ...] = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    builds_on: tuple[str | Paper, ...] = (),
) -> Callable[[M], M]:
    """Give a metric class its name; used as a decorator on a dataclass.

    ``papers`` propose it, ``builds_on`` are those whose ideas it uses without being proposed there: keys of
    ``papers.PAPERS`` or ``Paper`` objects of one's own.
    """

    def decorate(make: M) -> M:
        info = MetricInfo(
            name, family, make, aliases, find_papers(papers), presets or {}, builds_on=find_papers(builds_on)
        )
        SHELF.add(info)
        make.info = info
        return make

    return decorate


def find(name: str) -> MetricInfo:
    """Return the metric called ``name`` or one of its aliases."""
    return SHELF.find(name)


def list_metrics() -> list[MetricInfo]:
    """Return all metrics, family by family."""
    return SHELF.all()


def get_metric(spec: str | Metric) -> Metric:
    """Return the metric that a spelling means; a metric is returned as it is."""
    made: Metric = parse_spec(spec, Metric, SHELF)
    return made
