"""What a metric may request: perturbed images, maps computed again, and annotations.

For one map and one baseline there are two families of states: the top-ranked pixels *removed* (deletion, MoRF, positive
perturbation) or *kept* (insertion; and, since removing the n - k least relevant leaves the k most relevant, LeRF too).
With nothing removed a state is the image itself, with everything removed the baseline: both are shared by all maps, and
what does not depend on a map (masks, other images, random orders) by all methods.

A request says how many states it takes, whether all methods share them, and queues them. Equal ones are answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.metrics.perturb import ImageShape as ImageShape
from vitreous.metrics.perturb import OrderWriter, copies, masked, on
from vitreous.metrics.ranking import Array, enlarged, order, sound, token_map
from vitreous.models import Preprocess, VisionModel
from vitreous.tracing.prng import PRNGKey

if TYPE_CHECKING:
    from vitreous.metrics.batch_runner import BatchRunner
    from vitreous.metrics.evaluation import AnswerTable
    from vitreous.metrics.perturb import ImageBatch

Span = tuple[int, int]
Removal = tuple[str, str, bool, Span]
"""One state along an order: unit, baseline, whether the span is kept, and the span."""

CLEAN = "clean"
"""One end of a curve, the image itself; the other one is the bare baseline. All maps share both."""


class Request:
    """Something that a metric requests; a frozen, hashable value, so that equal ones are answered once."""

    by: str = "image"
    """What the answer depends on: a ``"map"``, or the ``"image"`` alone, perhaps in a ``"random"`` order."""
    num_maps: int = 0
    """How many maps of each image have to be computed again."""
    annotation: str | None = None
    """What has to be known about every image."""

    @property
    def is_shared(self) -> bool:
        """Whether the answer does not depend on a map, so that it is the same for all methods."""
        return self.by != "map"

    def states(self, image_shape: ImageShape) -> frozenset[Hashable]:
        """Return the states to run, for each map or, where they are shared, for each image; the clean image aside."""
        return frozenset((self, index) for index in range(getattr(self, "n", 0)))

    def count(self, image_shape: ImageShape) -> int | None:
        """Return how many states there are; ``None`` if that depends on the image."""
        return len(self.states(image_shape))

    def baselines(self, image_shape: ImageShape) -> Mapping[str, bool]:
        """Return what takes the place of removed pixels, and whether some state is nothing else."""
        return {}

    def removals(self, image_shape: ImageShape) -> frozenset[Removal]:
        """Return the states along the order of a map, which are run once for all requests."""
        return frozenset()

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        """Queue the states of some images, of their maps unless shared, and note where the answers will stand."""


def num_states(requests: Iterable[Request], image_shape: ImageShape, shared: bool) -> int:
    """Return how many different states some requests have for each map, or, if ``shared``, for each image."""
    states = (request.states(image_shape) for request in requests if request.is_shared == shared)
    return len(frozenset[Hashable]().union(*states))


@dataclass(frozen=True)
class RankedRemoval(Request):
    """States along an order of the pixels: the ranks ``start .. stop - 1`` of each span are kept or removed.

    Parameters
    ----------
    unit : str
        ``"pixel"``, ``"region:8"`` (pixels, in squares of eight that go together), ``"token"`` (removed from the
        sequence) or ``"blend:relu"``: one state, the image faded into the baseline by the map itself, scaled as the
        word after the colon says.
    baseline : str
        What takes the place of removed pixels.
    keep : bool
        Whether the spans are kept and all else is removed, or the reverse.
    spans : tuple of (int, int)
        The ranks of each state, first to last plus one.
    by : str, default "map"
        Whose order it is: the ``"map"``'s, or a ``"random"`` one of the image.
    """

    unit: str
    baseline: str
    keep: bool
    spans: tuple[Span, ...]
    by: str = "map"

    def __post_init__(self) -> None:
        if self.by not in ("map", "random"):
            raise VitreousError(f"an order is that of the map or random, not {self.by!r}")

    @classmethod
    def deletion(cls, baseline: str, counts: Iterable[int], unit: str = "pixel", by: str = "map") -> RankedRemoval:
        """The top-ranked ``counts`` are removed."""
        return cls(unit, baseline, False, tuple((0, count) for count in counts), by)

    @classmethod
    def insertion(cls, baseline: str, counts: Iterable[int], unit: str = "pixel", by: str = "map") -> RankedRemoval:
        """Only the top-ranked ``counts`` are there."""
        return cls(unit, baseline, True, tuple((0, count) for count in counts), by)

    @classmethod
    def bands(cls, baseline: str, edges: Iterable[int], unit: str = "pixel", by: str = "map") -> RankedRemoval:
        """The ranks from one edge to the next are removed, and nothing else."""
        return cls(unit, baseline, False, tuple(pairwise(edges)), by)

    @classmethod
    def blend(cls, baseline: str, normalization: str) -> RankedRemoval:
        """The image times the map scaled to 0 .. 1, plus the baseline times the rest."""
        return cls(f"blend:{normalization}", baseline, True, ((0, 1),))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many are kept or removed in each state."""
        return tuple(stop - start for start, stop in self.spans)

    def size(self, image_shape: ImageShape) -> int:
        """Return how many pixels or tokens there are to rank."""
        return image_shape.num_tokens if self.unit == "token" else image_shape.num_pixels

    def end(self, span: Span, image_shape: ImageShape) -> str | None:
        """Return which end of the curve a span is, if it is one: the clean image, or the baseline's name."""
        if self.unit.startswith("blend:"):
            return None
        size, (start, stop) = self.size(image_shape), span
        if not 0 <= start <= stop <= size:
            raise VitreousError(f"{start} .. {stop} {self.unit}s are outside 0..{size}")
        left = stop - start if self.keep else size - (stop - start)
        if left == 0 and self.unit == "token":
            raise VitreousError("a state without any token cannot be run; keep at least one")
        return CLEAN if left == size else self.baseline if left == 0 else None

    def removals(self, image_shape: ImageShape) -> frozenset[Removal]:
        spans = (span for span in self.spans if self.end(span, image_shape) is None)
        return frozenset((self.unit, self.baseline, self.keep, span) for span in spans)

    def states(self, image_shape: ImageShape) -> frozenset[Hashable]:
        removals = self.removals(image_shape)
        return frozenset((self, removal) for removal in removals) if self.is_shared else frozenset(removals)

    def baselines(self, image_shape: ImageShape) -> Mapping[str, bool]:
        ends = {self.end(span, image_shape) for span in self.spans}
        return {self.baseline: self.baseline in ends} if ends - {CLEAN} else {}

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        """Note where the answers stand; of a random order, queue the states too: those of a map are merged first."""
        if maps is None:
            layout, size = RemovalLayout([self], images.image_shape), len(images.inputs)
            grid = images.image_shape.tokens if self.unit == "token" else images.image_shape.pixels
            values = PRNGKey.of_images(images.seed, "order", images.inputs).uniform(*grid)
            starts = runner.reserve(size, layout.length)[:, 0] if layout.length else np.zeros(size, np.int64)
            enqueue_orders(runner, images, values, np.arange(size), [layout] * size, starts)
            table.add("slots", self._slots(images, [layout] * size, starts), self)
        else:
            table.add("slots", self._slots(images, maps.layouts, maps.starts), self, maps.explain_class)

    def _slots(self, images: ImageBatch, layouts: Sequence[RemovalLayout], starts: Array) -> Array:
        """Return where the answers stand, ``[B, J]``, in blocks of these layouts that begin at ``starts`` ``[B]``."""
        states = [(self.unit, self.baseline, self.keep, span) for span in self.spans]
        positions = {layout: [layout.position.get(state, -1) for state in states] for layout in set(layouts)}
        slots: Array = starts[:, None] + np.array([positions[layout] for layout in layouts]).reshape(len(starts), -1)
        for column, span in enumerate(self.spans):
            if (end := self.end(span, images.image_shape)) is not None:
                slots[:, column] = images.ends[end]
        return slots


@dataclass(frozen=True, eq=False)
class MapBatch:
    """The maps of one method that explain one kind of class, ``[B, h, w]``, their flags, and where their answers stand.

    The states of map b are those of ``layouts[b]``, and their answers begin at ``starts[b]``.
    """

    explain_class: str
    values: Tensor
    flags: Array
    left_out: Array
    layouts: Sequence[RemovalLayout]
    starts: Array


class RemovalLayout:
    """The states that some requests have along one order, each once, and the position of each among them.

    ``runs`` are states that differ in their span only, and the position of the first.
    """

    def __init__(self, requests: Iterable[Request], image_shape: ImageShape) -> None:
        states = sorted(frozenset[Removal]().union(*(request.removals(image_shape) for request in requests)))
        self.position = {state: position for position, state in enumerate(states)}
        self.length = len(states)
        self.runs = []
        for (unit, baseline, keep), group in groupby(states, key=lambda state: state[:3]):
            spans = tuple(span for *_, span in group)
            run = RankedRemoval(unit, baseline, keep, spans)
            self.runs.append((run, self.position[unit, baseline, keep, spans[0]]))


def enqueue_orders(
    runner: BatchRunner,
    images: ImageBatch,
    values: Tensor,
    owners: Array,
    layouts: Sequence[RemovalLayout],
    starts: Array,
) -> None:
    """Queue the states of some orders: images one map after the other, token states one span after the other.

    ``values`` ``[R, h, w]`` are ranked; row r belongs to image ``owners[r]``, has the states of ``layouts[r]`` and its
    answers stand from ``starts[r]`` on.
    """
    config, size = runner.config, images.image_shape.pixels
    writer = OrderWriter(images, values, config.interpolation, config.tie_breaking, config.seed)
    for row, (image, layout, start) in enumerate(zip(owners.tolist(), layouts, starts.tolist(), strict=True)):
        for run, position in layout.runs:
            if run.unit != "token":
                slots = start + position + np.arange(len(run.spans))
                runner.add_images(writer.write(run, row, image), size, images.scored[image], slots)
    for layout in dict.fromkeys(layouts):
        runs = [(run, position) for run, position in layout.runs if run.unit == "token"]
        if not runs:
            continue
        own = np.array([row for row, other in enumerate(layouts) if other is layout])
        ranked = token_map(values[on(own, values)], runner.model, images.inputs).flatten(1)
        ranked, rows = order(ranked, config.tie_breaking, config.seed), on(owners[own], values)
        for run, first in runs:
            for position, (low, stop) in enumerate(run.spans, first):
                inside, outside = ranked[:, low:stop], torch.cat([ranked[:, :low], ranked[:, stop:]], dim=1)
                keep = (inside if run.keep else outside).sort(dim=1).values
                runner.add_tokens(images.tokens(runner), rows, keep, images.scored[rows], starts[own] + position)


@dataclass(frozen=True)
class Masks(Request):
    """States in which masks are removed that do not depend on a map: given ones, or drawn for each image.

    Parameters
    ----------
    baseline : str
        What takes the place of removed pixels.
    draw : callable
        Gets the random key of the images and the image shape, and returns ``[B, n, h, w]``, true where something is
        removed, on the pixels or any coarser grid.
    n : int
        How many masks there are for each image.
    unit : str, default "pixel"
        With ``"token"``, masks are on the token grid, and the tokens leave the sequence.
    """

    baseline: str
    draw: Callable[[PRNGKey, ImageShape], Tensor]
    n: int
    unit: str = "pixel"

    def baselines(self, image_shape: ImageShape) -> Mapping[str, bool]:
        return {self.baseline: False}

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        removed = self.draw(PRNGKey.of_images(images.seed, "masks", images.inputs), images.image_shape)
        removed = removed.to(images.inputs.device)
        slots = runner.reserve(*removed.shape[:2])
        table.add("masks", removed.cpu().numpy(), self)
        table.add("slots", slots, self)
        for image, masks in enumerate(removed):
            if self.unit == "token":
                row = torch.tensor([image], device=removed.device)
                for index, mask in enumerate(masks):
                    keep = (~mask.flatten()).nonzero().flatten()[None]
                    runner.add_tokens(images.tokens(runner), row, keep, images.scored[row], slots[image, [index]])
            else:
                write = masked(images, image, self.baseline, masks)
                runner.add_images(write, images.image_shape.pixels, images.scored[image], slots[image])


@dataclass(frozen=True)
class WithoutParts(Request):
    """The image without each annotated part that is visible in it, its pixels replaced by the baseline.

    As many states as the image has such parts; all methods share them.
    """

    baseline: str
    annotation = "parts"

    def count(self, image_shape: ImageShape) -> None:
        return None

    def baselines(self, image_shape: ImageShape) -> Mapping[str, bool]:
        return {self.baseline: False}

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        rows = np.empty(len(images.annotations), object)
        for image, annotation in enumerate(images.annotations):
            visible = {name: np.asarray(mask, bool) for name, mask in annotation.parts.items() if np.any(mask)}
            slots = runner.reserve(len(visible))
            rows[image] = dict(zip(visible, slots.tolist(), strict=True))
            if visible:
                masks = torch.from_numpy(np.stack(list(visible.values()))).to(images.inputs.device)
                write = masked(images, image, self.baseline, masks)
                runner.add_images(write, images.image_shape.pixels, images.scored[image], slots)
        table.add("parts", rows, self)


@dataclass(frozen=True)
class GivenMasks:
    """Masks that are the same for all images: hashable, whatever their size."""

    data: bytes
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, masks: Any) -> GivenMasks:
        """Take an array ``[n, h, w]``, true where something is removed."""
        array = np.ascontiguousarray(np.asarray(masks, bool))
        if array.ndim != 3:
            raise VitreousError(f"masks are [n, h, w], not {list(array.shape)}")
        return cls(array.tobytes(), array.shape)

    def __call__(self, key: PRNGKey, image_shape: ImageShape) -> Tensor:
        array = np.frombuffer(self.data, bool).reshape(self.shape)
        return torch.from_numpy(array.copy()).expand(len(key.keys), *self.shape).to(key.keys.device)


@dataclass(frozen=True)
class RandomMasks:
    """Masks of a ``share`` of the cells of a grid, the token grid unless ``cells`` says otherwise.

    Drawn for every image by its content.
    """

    n: int
    share: float
    cells: tuple[int, int] | None = None

    def __call__(self, key: PRNGKey, image_shape: ImageShape) -> Tensor:
        height, width = self.cells or image_shape.tokens
        removed = round(self.share * height * width)
        bits = key.bits(self.n, height * width)
        return (bits.argsort(dim=2, stable=True).argsort(dim=2) < removed).view(-1, self.n, height, width)


@dataclass(frozen=True)
class Images(Request):
    """Other images made from an image: noisy, shifted, combined. ``make`` returns ``[B, n, 3, H, W]``."""

    name: str
    make: Callable[[Tensor, Preprocess, PRNGKey], Tensor]
    n: int

    def of(self, inputs: Tensor, preprocess: Preprocess, seed: int) -> Tensor:
        """Make them."""
        return self.make(inputs, preprocess, PRNGKey.of_images(seed, f"images {self.name}", inputs))

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        others = self.of(images.inputs, runner.model.preprocess, images.seed)
        slots = runner.reserve(*others.shape[:2])
        table.add("slots", slots, self)
        for image, copied in enumerate(others):
            runner.add_images(copies(copied), images.image_shape.pixels, images.scored[image], slots[image])


@dataclass(frozen=True)
class Measured(Request):
    """One number for each of some other images beside the image that it was made from: a distance, say.

    ``measure`` gets the model, the images ``[B, 3, H, W]`` and what was made from them ``[B, n, 3, H, W]``, and returns
    ``[B, n]``.
    """

    images: Images
    measure: Callable[[VisionModel, Tensor, Tensor], Tensor]

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        others = self.images.of(images.inputs, runner.model.preprocess, images.seed)
        numbers = self.measure(runner.model, images.inputs, others)
        table.add("numbers", numbers.double().cpu().numpy(), self)


@dataclass(frozen=True)
class RenderedStates(Request):
    """States that are drawn in 8 bits outside the model, in threads, with a number for each: its size on disk, say.

    ``draw`` gets the image ``[H, W, 3]`` in uint8, the map at its pixels ``[H, W]`` (``None`` with ``by="image"``, for
    states that all methods share) and a random number of the image, and returns images ``[n, H, W, 3]`` in uint8 and
    numbers ``[n]``.
    """

    draw: Callable[[Array, Array | None, int], tuple[Array, Array]]
    n: int
    by: str = "map"

    def enqueue(self, runner: BatchRunner, images: ImageBatch, maps: MapBatch | None, table: AnswerTable) -> None:
        is_drawn, mode = np.ones(len(images.inputs), bool), None
        if maps is not None:
            is_drawn, mode = ~maps.left_out, maps.explain_class
            ranked = sound(maps.values.double().cpu(), torch.from_numpy(maps.flags))
            fine = enlarged(ranked.numpy(), images.image_shape.pixels, runner.config.interpolation)
        slots, numbers = np.zeros((len(is_drawn), self.n), np.int64), np.full((len(is_drawn), self.n), np.nan)
        slots[is_drawn] = runner.reserve(int(is_drawn.sum()), self.n)
        table.add("slots", slots, self, mode)
        table.add("numbers", numbers, self, mode)  # filled in by the time all is done
        keys = PRNGKey.of_images(images.seed, "drawn", images.inputs).keys.tolist()
        for image in np.flatnonzero(is_drawn).tolist():
            picture = np.asarray(runner.model.preprocess.to_image(images.inputs[image]))
            task = (self.draw, picture, None if maps is None else fine[image], keys[image] % 2**63)
            runner.renderer.add(task, images.scored[image], slots[image], numbers[image])


@dataclass(frozen=True)
class Reattribution(Request):
    """Maps of the evaluated method, computed again: of other images, with another seed or class, or on another model.

    Parameters
    ----------
    images : Images, optional
        Other images to explain.
    under : callable, optional
        Takes the model and returns the one to explain instead (a shuffled head, randomised weights).
    seed : int, optional
        Another seed.
    target : str, default "same"
        The class that is explained: ``"same"``, the ``"runner-up"``, or a ``"random"`` other one of each image.
    """

    images: Images | None = None
    under: Callable[[VisionModel], VisionModel] | None = None
    seed: int | None = None
    target: str = "same"
    by = "map"

    @property
    def num_maps(self) -> int:  # type: ignore[override]
        return 1 if self.images is None else self.images.n


@dataclass(frozen=True)
class AnnotationRequest(Request):
    """What is known about an image: its ``"mask"``, ``"boxes"``, ``"parts"``, or a ``"region"`` from any of them."""

    kind: str

    @property
    def annotation(self) -> str:  # type: ignore[override]
        return self.kind
