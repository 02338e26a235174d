"""The contract of a metric: which states it requests, and how a score is read from the answers.

Every metric is registered by name, with what is known about it as data; its specs are written as those of methods are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from vitreous import registry
from vitreous.code_digest import code_digest, is_external
from vitreous.errors import MapError, SpecError, VitreousError, one_line
from vitreous.metrics.baselines import check_baseline
from vitreous.metrics.bootstrap import Cell, mean
from vitreous.metrics.evaluation import Evaluation
from vitreous.metrics.ranking import FLAGS, Array, Curve
from vitreous.metrics.requests import ImageShape, Request, num_states

if TYPE_CHECKING:
    from vitreous.metrics.verdicts import Verdict

_USUAL_SHAPE = ImageShape((224, 224), (14, 14))


def odd_number(default: int) -> Any:
    """Return a field that takes an odd number: the rows and columns of a kernel."""
    return registry.checked(default, _check_odd, 1)


def baseline_name(default: str, fades: bool = False) -> Any:
    """Return a field that takes the name of a baseline of images, perhaps one that an image can fade into."""
    return registry.checked(default, check_baseline, fades)


def _check_odd(name: str, value: int, minimum: int) -> None:
    registry.check_at_least(name, value, minimum)
    if value % 2 == 0:
        raise SpecError(f"{name}={value} must be odd")


@dataclass(frozen=True)
class MetricResult:
    """What one metric has collected: ``parts`` ``[n, P]`` per image, and the ``flags`` of the maps behind them.

    Images whose map was left out have NaN; they are counted, and no mean includes them.
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

    A metric names its ``requests`` (perturbed images, masks, other images, maps computed again, annotations) and reads
    a ``score`` from the answers: one number per image, or several parts that it then ``aggregate`` s itself (a ratio of
    sums, a correlation, an average precision). It collects as torchmetrics do: ``update`` with an evaluation,
    ``compute``, ``reset``, ``merge`` with another of the same parameters.

    Parameters
    ----------
    explain_class : str, default "given"
        The class that the maps explain: ``"given"`` (what the caller chose as target), ``"pred"`` or ``"label"``.
    score_class : str, default "pred"
        The class whose probability is read: ``"pred"``, ``"label"`` or ``"explained"``.
    """

    explain_class: str = registry.choice("given", "pred", "label", kw_only=True)
    score_class: str = registry.choice("pred", "label", "explained", kw_only=True)

    info: ClassVar[MetricInfo]
    higher_is_better: ClassVar[bool] = True
    x_axis: ClassVar[str] = "share"
    """What its curves run over, where that is not how much of the image is removed."""
    can_exclude_images: ClassVar[bool] = False
    """Whether its protocol leaves images out, the same ones for every map: they have no score."""

    def __post_init__(self) -> None:
        registry.check_parameters(self)
        self.check()
        self.reset()

    def check(self) -> None:
        """Refuse combinations of parameters that mean nothing."""

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        """Return what this metric reads, by names of its own.

        Parameters
        ----------
        image_shape : ImageShape
            Rows and columns of the pixels and of the patch tokens.

        Returns
        -------
        dict of str to Request
            Nothing, for a metric that reads the maps alone.
        """
        return {}

    def score(self, evaluation: Evaluation) -> Array:
        """Return one score per image, ``[B]``, or its parts ``[B, P]``; NaN where the map was left out.

        Parameters
        ----------
        evaluation : Evaluation
            The answers to ``requests``, by their names, and the maps.
        """
        raise VitreousError(f"{self.info.name} must define score")

    def curves(self, evaluation: Evaluation) -> Mapping[str, Curve]:
        """Return the curves that the score is read from, by name; most metrics of removal have one."""
        return {}

    def per_image(self, parts: Array) -> Array:
        """Return one number per image from its parts: the first of them."""
        return np.asarray(parts[:, 0])

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

    # -- reading, checked ------------------------------------------------------------------------------

    def read(self, evaluation: Evaluation) -> tuple[Array, Mapping[str, Curve]]:
        """Return the parts ``[B, P]`` of every score and the curves behind them; refuse what is neither."""
        requests = self.requests(evaluation.image_shape)
        own = evaluation.with_classes(self.explain_class, self.score_class, requests)
        curves = self.curves(own)
        for name, curve in curves.items():
            if np.shape(curve.y) != (len(own), *np.shape(curve.x)) or np.ndim(curve.x) != 1:
                shapes = f"{list(np.shape(curve.y))} over {list(np.shape(curve.x))}"
                raise MapError(f"{self.spec}: curve {name!r} is {shapes}; it must be [{len(own)}, J] over [J]")
        return self._checked(self.score(own), len(own)), curves

    def _checked(self, value: Any, images: int) -> Array:
        try:
            array = np.asarray(value)
        except Exception as error:  # whatever an array-like object does, such as a tensor on a GPU
            raise MapError(f"{self.spec}: score returned no array ({one_line(str(error))[:200]})") from None
        if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or 0 in array.shape[1:]:
            kind = f"{list(array.shape)} of {array.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise MapError(f"{self.spec}: score returned {kind}; scores are real numbers [B], or parts [B, P]")
        if len(array) != images:
            raise MapError(f"{self.spec}: score returned {len(array)} scores for {images} images")
        parts = as_parts(array)
        if is_external(type(self)):
            self._check_shape("per_image", [images], parts.copy())
            self._check_shape("aggregate", [2], parts.copy(), np.ones((2, images)))
        return parts

    def _check_shape(self, name: str, expected: list[int], *arguments: Array) -> None:
        with np.errstate(all="ignore"):
            shape = list(np.shape(getattr(self, name)(*arguments)))
        if shape != expected:
            raise MapError(f"{self.spec}: {name} returned the shape {shape}, not {expected}")

    # -- collecting ------------------------------------------------------------------------------------

    def update(self, evaluation: Evaluation) -> None:
        """Collect the scores of some maps."""
        parts, _ = self.read(evaluation)
        check_widths(self.spec, [*self._parts[:1], parts])
        self._parts.append(parts)
        self._flags.append(np.asarray(evaluation.with_classes(self.explain_class).flags))

    def compute(self) -> MetricResult:
        """Return the scores of everything collected so far."""
        if not self._parts:
            raise MapError(f"{self.spec} has seen no maps yet")
        return MetricResult(self, np.concatenate(self._parts), np.concatenate(self._flags))

    def reset(self) -> None:
        """Forget everything collected."""
        self._parts: list[Array] = []
        self._flags: list[Array] = []

    def merge(self, other: Metric) -> None:
        """Add what another metric has collected, after one's own."""
        if other.spec != self.spec:
            raise SpecError(f"{self.spec} cannot be merged with {other.spec}")
        self._parts += other._parts
        self._flags += other._flags

    # -- facts -----------------------------------------------------------------------------------------

    @property
    def needs_labels(self) -> bool:
        """Whether true classes have to be known."""
        return "label" in (self.explain_class, self.score_class)

    def num_forwards(self, image_shape: ImageShape = _USUAL_SHAPE) -> int:
        """How many states of its own each map takes; the clean image and bare baselines are shared by all."""
        return num_states(self.requests(image_shape).values(), image_shape, shared=False)

    def num_shared_forwards(self, image_shape: ImageShape = _USUAL_SHAPE) -> int:
        """How many states each image takes beside the clean one, once for all methods."""
        return num_states(self.requests(image_shape).values(), image_shape, shared=True)

    @property
    def needs_parts(self) -> bool:
        """Whether each image takes one more state for every part that is annotated, once for all methods."""
        return any(request.count(_USUAL_SHAPE) is None for request in self.requests(_USUAL_SHAPE).values())

    def num_reattributions(self, image_shape: ImageShape = _USUAL_SHAPE) -> int:
        """How many further maps of each image have to be computed."""
        return sum(request.num_maps for request in set(self.requests(image_shape).values()))

    @property
    def annotation_kinds(self) -> tuple[str, ...]:
        """What has to be known about every image: ``mask``, ``boxes``, ``parts`` or any ``region``."""
        return tuple(r.annotation for r in self.requests(_USUAL_SHAPE).values() if r.annotation is not None)

    @property
    def spec(self) -> str:
        """The shortest spec that gives this metric again."""
        values = [(p.name, getattr(self, p.name), p.default) for p in self.info.parameters]
        parts = [f"{name}={registry.format_value(value)}" for name, value, default in values if value != default]
        return self.info.name + (f"({', '.join(parts)})" if parts else "")

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter with its value."""
        return {parameter.name: getattr(self, parameter.name) for parameter in self.info.parameters}

    @property
    def code(self) -> str:
        """A digest of the code of a metric of another package; nothing for those of Vitreous, whose specs suffice."""
        return code_digest(type(self)) if is_external(type(self)) else ""

    def clone(self) -> Metric:
        """Return the same metric with nothing collected."""
        return type(self)(**self.settings)

    def __str__(self) -> str:
        return self.spec


def check_widths(name: str, parts: Sequence[Array]) -> None:
    """Refuse parts of different lengths: another batch of images must be read in the same way."""
    widths = sorted({array.shape[1] for array in parts})
    if len(widths) > 1:
        raise MapError(f"{name} returned {' and '.join(map(str, widths))} parts for images of one table")


def as_parts(scores: Array) -> Array:
    """Return what a metric has read as ``[n, P]``."""
    array = np.asarray(scores, np.float64)
    return array[:, None] if array.ndim == 1 else array


M = TypeVar("M", bound=type[Metric])


@dataclass(frozen=True)
class MetricInfo:
    """One line of ``vitreous metrics``; ``builds_on`` are papers whose ideas it uses without being proposed there."""

    name: str
    family: str
    factory: type[Metric]
    aliases: tuple[str, ...] = ()
    papers: tuple[registry.Paper, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    builds_on: tuple[registry.Paper, ...] = ()
    example: ClassVar[str] = ""  # no metric has a required parameter

    @property
    def summary(self) -> str:
        """The first line of the metric's docstring."""
        return inspect.cleandoc(self.factory.__doc__ or "").splitlines()[0]

    @property
    def parameters(self) -> tuple[registry.Parameter, ...]:
        """The metric's own parameters first, those of all metrics last."""
        return registry.parameters_of(self.factory, MetricInfo=MetricInfo)

    @property
    def default(self) -> Metric:
        """The metric with all parameters left as they are: its direction, its costs, what it needs."""
        return self.factory()

    @property
    def verdict(self) -> Verdict | None:
        """What the shipped meta-evaluation says about it; ``None`` if it was in none."""
        from vitreous.metrics.verdicts import verdict

        return verdict(self.default)


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

REGISTRY: registry.Registry[MetricInfo] = registry.Registry("metric", "vitreous.metrics", FAMILIES)


def register_metric(
    name: str,
    *,
    family: str,
    papers: tuple[str | registry.Paper, ...] = (),
    aliases: tuple[str, ...] = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    builds_on: tuple[str | registry.Paper, ...] = (),
) -> Callable[[M], M]:
    """Register a metric class under a name; used as a decorator on a dataclass.

    Parameters
    ----------
    name : str
        What it is called in specs.
    family : str
        Under which heading tables show it.
    papers : tuple of str or Paper
        Those that propose it: keys of ``vitreous.registry.PAPERS`` or ``Paper`` objects.
    aliases : tuple of str
        Other names.
    presets : dict of str to dict
        Parameters by the name that follows ``@``.
    builds_on : tuple of str or Paper
        Papers whose ideas it uses without being proposed there.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from vitreous.metrics.base import REGISTRY
    >>> @vt.register_metric("peak", family="complexity")
    ... @dataclass
    ... class Peak(vt.Metric):
    ...     def score(self, evaluation):
    ...         return evaluation.maps().max(axis=(1, 2))
    >>> vt.evaluate(model, images[:2], "ixg", "peak", n_bootstrap=10, controls=False)["ixg", "peak"].shape
    (2,)
    >>> del REGISTRY.by_name["peak"]
    """
    proposed_by, related = registry.find_papers(papers), registry.find_papers(builds_on)

    def decorate(factory: M) -> M:
        info = MetricInfo(name, family, factory, aliases, proposed_by, presets or {}, related)
        REGISTRY.add(info)
        factory.info = info
        return factory

    return decorate


def list_metrics() -> list[MetricInfo]:
    """Return all metrics, family by family.

    Returns
    -------
    list of MetricInfo
        What each is called, its paper, its parameters and presets.

    Examples
    --------
    >>> [info.name for info in vt.list_metrics() if info.family == "complexity"]
    ['gini', 'entropy', 'effective_complexity']
    """
    return REGISTRY.all()


def get_metric(spec: str | Metric) -> Metric:
    """Return the metric of a spec; a metric is returned as it is.

    Parameters
    ----------
    spec : str or Metric
        A name, with a preset and parameters if wanted: ``"deletion@tis(steps=8)"``.

    Examples
    --------
    >>> vt.get_metric("deletion(baseline=black, steps=8)").num_forwards()
    7
    """
    metric: Metric = registry.parse_spec(spec, Metric, REGISTRY)
    return metric
