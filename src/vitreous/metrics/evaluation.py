"""From requests to answers: images and maps are collected, all states run, and the answers of each method handed out.

An ``Evaluator`` queues what metrics request; an ``Evaluation`` is what is known about the maps of one method once all
states have been run: all that a metric reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import MapError, TargetError, VitreousError
from vitreous.metrics.baselines import BASELINES
from vitreous.metrics.batch_runner import BatchRunner, EvaluationConfig, Readings
from vitreous.metrics.perturb import ImageBatch, ImageShape, copies, on
from vitreous.metrics.ranking import NONFINITE, Array, enlarged, finite, flag, patched, sound
from vitreous.metrics.requests import (
    CLEAN,
    MapBatch,
    RemovalLayout,
    Request,
    enqueue_orders,
)
from vitreous.models import VisionModel

if TYPE_CHECKING:
    from vitreous.metrics.base import Metric

T = TypeVar("T")
Key = tuple[str, Hashable, str | None]


class AnswerTable:
    """Where the answers stand: for every request and explained class, a row for each image, in their order."""

    def __init__(self) -> None:
        self._rows: dict[Key, list[Array]] = defaultdict(list)

    def add(self, kind: str, rows: Array, request: Hashable = None, explain_class: str | None = None) -> None:
        """Append what is known of the next images."""
        self._rows[kind, request, explain_class].append(rows)

    def arrays(self) -> dict[Key, Array]:
        """Return everything, of all images together."""
        return {key: np.concatenate(rows) for key, rows in self._rows.items()}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The answers about the maps of one method. Images are the first axis of everything.

    A metric gets it with its own requests, which it names as it did in ``requests``, and with its own choice of
    classes: ``explain_class``, which the maps explain, and ``score_class``, whose probability is read. An image whose
    map was left out has NaN everywhere.
    """

    arrays: Mapping[Key, Array]
    readings: Readings
    image_shape: ImageShape
    columns: Sequence[str]
    interpolation: str = "bilinear"
    explain_class: str = "given"
    score_class: str = "pred"
    requests: Mapping[str, Request] = field(default_factory=dict)
    _computed: dict[Hashable, Any] = field(default_factory=dict)

    def with_classes(
        self, explain_class: str = "given", score_class: str = "pred", requests: Mapping[str, Request] | None = None
    ) -> Evaluation:
        """Return the same answers, read for other classes and requests."""
        return replace(self, explain_class=explain_class, score_class=score_class, requests=requests or {})

    def computed(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what ``compute`` returns, computed once for all metrics that use the same key."""
        if key not in self._computed:
            self._computed[key] = compute()
        value: T = self._computed[key]
        return value

    def __len__(self) -> int:
        return len(self.arrays["clean", None, None])

    # -- maps and annotations --------------------------------------------------------------------------

    @property
    def flags(self) -> Array:
        """The code of each map in ``FLAGS``, ``[B]``."""
        return self.arrays["flags", None, self.explain_class]

    @property
    def left_out(self) -> Array:
        """Which maps were left out, ``[B]``."""
        return self.arrays["left out", None, self.explain_class]

    @property
    def raw_maps(self) -> Array:
        """The maps as the method returned them, ``[B, h, w]``."""
        return self.arrays["maps", None, self.explain_class]

    def maps(self, grid: str = "own", interpolation: str | None = None) -> Array:
        """Return the values of the maps in float64, finite, or NaN everywhere where a map was left out.

        ``grid`` is the map's ``own``, or ``pixel`` (enlarged as the configuration says, or by ``interpolation``), or
        ``token``, where the pixels of a patch are summed.
        """

        def compute() -> Array:
            maps = finite(self.raw_maps.astype(np.float64))
            maps[self.left_out] = np.nan
            if grid == "pixel":
                maps = enlarged(maps, self.image_shape.pixels, interpolation or self.interpolation)
            elif grid == "token" and maps.shape[1:] != self.image_shape.tokens:
                maps = patched(enlarged(maps, self.image_shape.pixels, "bilinear"), self.image_shape.tokens)
            maps.flags.writeable = False  # all metrics read the same array
            return maps

        return self.computed(("maps", self.explain_class, grid, interpolation), compute)

    def reattributions(self, request: str | Request) -> Array:
        """Return the maps that were computed again, ``[B, n, h, w]``."""
        return self._array("maps", request)

    @property
    def annotations(self) -> Array:
        """What is known about each image: an array of ``vitreous.Annotation``."""
        return self.arrays["annotations", None, None]

    def masks(self, request: str | Request) -> Array:
        """Return the masks that were removed, ``[B, n, h, w]``, true where something was."""
        return self._array("masks", request)

    def numbers(self, request: str | Request) -> Array:
        """Return the numbers that were measured, or came with rendered states, ``[B, n]``."""
        return self._array("numbers", request)

    # -- states ----------------------------------------------------------------------------------------

    def log_probability(self, request: str | Request | None = None) -> Array:
        """Return ``log P`` of the scored class in each state of a request, ``[B, J]``.

        Without a request, that of the images themselves, ``[B]``; the same holds for probabilities and logits.
        """
        return self._read(self.readings.log_probability, request)

    def probability(self, request: str | Request | None = None) -> Array:
        """Return ``P`` of the scored class in each state of a request, ``[B, J]``, or of the images."""
        return np.asarray(np.exp(self.log_probability(request)))

    def logit(self, request: str | Request | None = None) -> Array:
        """Return the logit of the scored class in each state, or of the images; of one-logit heads, half of it."""
        return self._read(self.readings.logit, request)

    def correct(self, request: str | Request, score_class: str = "label") -> Array:
        """Return 1 where the arg-max is the true (or scored) class and 0 elsewhere, ``[B, J]``."""
        slots, left_out = self._slots(request)
        expected = self.arrays["classes", None, None][:, self._column(score_class)]
        values: Array = (self.readings.arg_max[slots] == expected[:, None]).astype(np.float64)
        values[left_out] = np.nan
        return values

    def fraction(self, request: str | Request) -> Array:
        """Return the share of pixels or tokens that is kept or removed in each state, ``[J]``."""
        removal: Any = self._request(request)
        return np.asarray(np.array(removal.counts) / removal.size(self.image_shape))

    def loss(self, request: str | Request, output: str = "logit") -> Array:
        """Return by how much the scored class's ``logit`` or ``probability`` is lower in each state, ``[B, J]``."""
        read = getattr(self, output)
        return np.asarray(read()[:, None] - read(request))

    def loss_without_parts(self, request: str | Request, output: str = "logit") -> list[dict[str, float]]:
        """Return by how much the ``logit`` or ``log_probability`` is lower without each part of each image."""
        readings, column = getattr(self.readings, output), self._column(self.score_class)
        rows = zip(self._read(readings, None), self._array("parts", request), strict=True)
        return [{part: float(own - float(readings[slot, column])) for part, slot in row.items()} for own, row in rows]

    # -- where they stand ------------------------------------------------------------------------------

    def _read(self, readings: Array, request: str | Request | None) -> Array:
        column = self._column(self.score_class)
        if request is None:
            return np.asarray(readings[self.arrays[CLEAN, None, None], column], np.float64)
        slots, left_out = self._slots(request)
        values: Array = readings[slots, column].astype(np.float64)
        values[left_out] = np.nan
        return values

    def _slots(self, request: str | Request) -> tuple[Array, Array]:
        """Return where the answers stand, ``[B, J]``, and for which images there are none."""
        slots = self._array("slots", request)
        return slots, np.zeros(len(slots), bool) if self._request(request).is_shared else self.left_out

    def _request(self, request: str | Request) -> Request:
        return self.requests[request] if isinstance(request, str) else request

    def _array(self, kind: str, request: str | Request) -> Array:
        value = self._request(request)
        key = (kind, value, None if value.is_shared else self.explain_class)
        if key not in self.arrays:
            raise VitreousError(f"a metric reads {kind} of {value!r:.80}, which it did not request")
        return self.arrays[key]

    def _column(self, score_class: str) -> int:
        name = self.explain_class if score_class == "explained" else score_class
        if name == "given" and "given" not in self.columns:
            name = "pred"
        if name not in self.columns:
            raise TargetError(f"there is no {name!r} class to score: give labels")
        return self.columns.index(name)


@dataclass(frozen=True)
class Maps:
    """The maps ``[R, h, w]`` of one method for some images.

    For each explained class (``"given"``, ``"pred"``, ``"label"``) it says which row belongs to which image.
    """

    values: Tensor
    rows: Mapping[str, Array]


class Evaluator:
    """Collects images and maps, and answers all metrics about all methods at the end.

    ``columns`` are the scored classes that every state is read for: ``"pred"``, and ``"label"`` or ``"given"``.
    """

    def __init__(
        self,
        model: VisionModel,
        metrics: Sequence[Metric],
        image_shape: ImageShape,
        columns: Sequence[str],
        config: EvaluationConfig | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.columns, self.config = model, tuple(columns), config or EvaluationConfig()
        self.image_shape, self.runner = image_shape, BatchRunner(model, self.config, on_progress)
        self.by_class: dict[str, dict[Request, None]] = {}
        """What depends on maps, each once, by the class that they explain."""
        self.shared: dict[Request, None] = {}
        for metric in metrics:
            own = self.by_class.setdefault(metric.explain_class, {})
            for request in metric.requests(image_shape).values():
                (self.shared if request.is_shared else own)[request] = None
        requests = chain(self.shared, *self.by_class.values())
        baselines = [pair for request in requests for pair in request.baselines(image_shape).items()]
        self._baselines = sorted(dict(baselines))
        self._fully_removed = sorted({name for name, is_fully_removed in baselines if is_fully_removed})
        self._shared_answers = AnswerTable()
        self._by_method: dict[str, AnswerTable] = {}
        self._constant: dict[str, Tensor] = {}

    @property
    def modes(self) -> tuple[str, ...]:
        """Which explained classes the metrics need maps of."""
        return tuple(sorted(self.by_class))

    @property
    def reattributions(self) -> dict[str, list[Any]]:
        """The maps that metrics want to be computed again, by the class that they explain."""
        by_class = self.by_class.items()
        return {mode: [request for request in requests if request.num_maps] for mode, requests in by_class}

    def add(
        self,
        inputs: Tensor,
        logits: Tensor,
        classes: Mapping[str, Tensor],
        maps: Mapping[str, Maps],
        annotations: Sequence[Any] = (),
    ) -> None:
        """Queue images, their logits (of ``runner.forward``), scored classes, maps by method, and annotations."""
        with torch.no_grad():
            inputs = self.model.cast(inputs)
            scored = torch.stack([classes[name].to(inputs.device) for name in self.columns], dim=1)
            images = ImageBatch(self.model, inputs, scored, self._baselines, self.config.seed, annotations)
            slots, facts = self.runner.reserve(len(inputs)), np.empty(len(inputs), object)
            facts[:] = list(annotations) or [None] * len(inputs)
            images.ends[CLEAN] = slots
            self._shared_answers.add(CLEAN, slots)
            self._shared_answers.add("classes", scored.cpu().numpy())
            self._shared_answers.add("annotations", facts)
            self.runner.record(logits, scored, slots)
            for baseline in self._fully_removed:
                self._add_fully_removed(baseline, images)
            for request in self.shared:
                request.enqueue(self.runner, images, None, self._shared_answers)
            values = {name: one.values.detach().to(inputs.device) for name, one in maps.items()}
            values = {name: value if value.dtype == torch.float64 else value.float() for name, value in values.items()}
            flags = torch.cat([flag(value) for value in values.values()]).cpu().numpy()  # one wait for all methods
            for name, value in values.items():
                own, flags = flags[: len(value)], flags[len(value) :]
                self._add_maps(name, Maps(value, maps[name].rows), own, images)

    def finish(
        self, reattributions: Mapping[str, Mapping[tuple[Request, str], Array]] | None = None
    ) -> dict[str, Evaluation]:
        """Run what is left and return the answers of each method.

        ``reattributions`` are the maps that were computed again, by method.
        """
        readings, shared = self.runner.finish(), self._shared_answers.arrays()
        evaluations = {}
        for name, table in self._by_method.items():
            again = (reattributions or {}).get(name, {})
            arrays: dict[Key, Array] = {("maps", request, mode): maps for (request, mode), maps in again.items()}
            arrays |= shared | table.arrays()
            interpolation = self.config.interpolation
            evaluations[name] = Evaluation(arrays, readings, self.image_shape, self.columns, interpolation)
        return evaluations

    def _add_fully_removed(self, baseline: str, images: ImageBatch) -> None:
        bare_images, shape = images.baselines[baseline], images.inputs.shape
        slots = self.runner.reserve(len(images.inputs))
        images.ends[baseline] = slots
        if BASELINES[baseline].constant:  # one forward for all images
            if baseline not in self._constant:
                self._constant[baseline] = self.runner.forward(bare_images.expand(1, *shape[1:]))
            self.runner.record(self._constant[baseline].expand(shape[0], -1), images.scored, slots)
        else:
            self.runner.add_images(copies(bare_images), self.image_shape.pixels, images.scored, slots)

    def _add_maps(self, name: str, maps: Maps, flags: Array, images: ImageBatch) -> None:
        invalid = flags == NONFINITE
        if self.config.nan_policy == "raise" and invalid.any():
            raise MapError(f"{name} gave values that are not finite for {invalid.sum()} of {len(flags)} maps")
        left_out = invalid & (self.config.nan_policy == "exclude")
        table = self._by_method.setdefault(name, AnswerTable())
        owners, layouts = self._layouts(maps)
        lengths = np.array([layout.length for layout in layouts]) * ~left_out
        starts = np.where(left_out, -1, self.runner.num_slots + np.cumsum(lengths) - lengths)
        self.runner.reserve(int(lengths.sum()))
        values = maps.values.cpu().numpy()
        for mode, requests in self.by_class.items():
            rows = maps.rows[mode]
            table.add("flags", flags[rows], None, mode)
            table.add("left out", left_out[rows], None, mode)
            table.add("maps", values[rows], None, mode)
            of_class, own = maps.values[on(rows, maps.values)], [layouts[row] for row in rows]
            batch = MapBatch(mode, of_class, flags[rows], left_out[rows], own, starts[rows])
            for request in requests:
                request.enqueue(self.runner, images, batch, table)
        good = np.flatnonzero(~left_out)
        if len(good):
            ranked = sound(maps.values[on(good, maps.values)], on(flags[good], maps.values))
            enqueue_orders(self.runner, images, ranked, owners[good], [layouts[row] for row in good], starts[good])

    def _layouts(self, maps: Maps) -> tuple[Array, list[RemovalLayout]]:
        """Return for every map the image it belongs to, and its states: those of all classes that it explains."""
        owners = np.full(len(maps.values), -1)
        modes = [frozenset[str]()] * len(owners)
        for mode, rows in maps.rows.items():
            owners[rows] = np.arange(len(rows))
            for row in rows:
                modes[row] |= {mode}
        layouts = {
            explained: RemovalLayout(chain(*(self.by_class[mode] for mode in explained)), self.image_shape)
            for explained in set(modes)
        }
        return owners, [layouts[explained] for explained in modes]
