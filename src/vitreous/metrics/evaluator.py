"""States drawn beside the model: threads draw the next pictures while the model looks at the last ones.

Threads do, and no processes are needed: Qhull, the evaluation of its triangles and the encoder of WebP let go of the
interpreter while they work. Another thread was never held up for more than 8 ms while one triangulated for 170 ms or
packed a picture for 115 ms (scipy 1.17, Pillow, 224 x 224 pixels).

What was drawn is shown to the model in the order in which it was asked for, whichever thread was first. At most
``_AHEAD`` pictures per thread are in the making or waiting. After an error, anyone's, nothing more is begun.

One pool of states for all metrics and methods: what is asked for is laid out, queued, run once and handed out.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.errors import MapError, VitreousError
from vitreous.metrics.base import Metric
from vitreous.metrics.baselines import SUBSTRATES
from vitreous.metrics.batch_runner import BatchRunner
from vitreous.metrics.config import EvaluationConfig
from vitreous.metrics.curves import Array
from vitreous.metrics.evaluation import CLEAN, Common, Evaluation, Layout, Run, Told, baselines_of
from vitreous.metrics.perturb import Chunk, fade, masked, select
from vitreous.metrics.ranking import FLAGS, enlarged, flag, order, scaled, sound, token_map, unit_ranks
from vitreous.metrics.requests import (
    Images,
    ImageShape,
    Masks,
    Measured,
    RankedRemoval,
    Reattribution,
    RenderedStates,
    Request,
    WithoutParts,
)
from vitreous.models import VisionModel
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "Drawing",
    "Maps",
    "Evaluator",
]

_AHEAD = 2  # what is drawn and not yet seen takes memory


class Drawing:
    """Hands pictures and maps to threads, and what they drew to the engine, in the order in which it was asked for."""

    def __init__(self, model: VisionModel, engine: BatchRunner, common: Common, seed: int) -> None:
        self.model, self.engine, self.common, self.seed = model, engine, common, seed
        self.threads = max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        self._stop: Callable[[], Any] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[tuple[Array, Array]], RenderedStates, Tensor, Array, Array]] = deque()

    def queue(
        self,
        need: RenderedStates,
        chunk: Chunk,
        maps: Array | None,
        images: Array,
        slots: Array,
        facts: Array | None = None,
    ) -> Array:
        """Have the states of some images drawn; return their numbers ``[B, count]``, which are there once all is done.

        ``maps`` ``[n, H, W]`` belong to ``images`` ``[n]`` of the chunk, ``slots`` ``[n, count]`` to their states.
        """
        facts = np.full((len(chunk.inputs), need.count), np.nan) if facts is None else facts
        keys = PRNGKey.of_images(self.seed, "drawn", chunk.inputs).keys.tolist()
        try:
            for row, image in enumerate(images.tolist()):
                picture = np.asarray(self.model.preprocess.to_image(chunk.inputs[image]))
                own = None if maps is None else maps[row]
                drawn = self._threads().submit(need.draw, picture, own, keys[image] % 2**63)
                self._waiting.append((drawn, need, chunk.scored[image], slots[row], facts[image]))
                self._look(_AHEAD * self.threads)
        except BaseException:  # an interruption too
            self.close()
            raise
        return facts

    def finish(self) -> None:
        """Wait for what is still being drawn."""
        try:
            self._look(0)
        finally:
            self.close()

    def close(self) -> None:
        """Begin nothing more, and let the threads go."""
        self._waiting.clear()
        self._pool = None
        if self._stop is not None:
            self._stop()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "vitreous-draw")
            # also where an error elsewhere means that nobody finishes this
            self._stop = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool

    def _look(self, left: int) -> None:
        """Show the engine what was drawn, the oldest first, until only so many are waiting."""
        while len(self._waiting) > left:
            drawn, need, scored, slots, facts = self._waiting.popleft()
            pictures, numbers = drawn.result()
            expected = (need.count, *self.common.image_shape.pixels, 3)
            if pictures.shape != expected or pictures.dtype != np.uint8 or len(numbers) != need.count:
                given = f"{pictures.dtype} {list(pictures.shape)} and {len(numbers)} numbers"
                raise VitreousError(f"states are drawn in uint8 {list(expected)}, one number each; got {given}")
            facts[:] = numbers
            inputs = torch.stack([self.model.preprocess.to_tensor(Image.fromarray(image)) for image in pictures])

            def write(out: Tensor, start: int, stop: int, inputs: Tensor = inputs) -> None:
                out.copy_(inputs[start:stop])

            self.engine.images(write, self.common.image_shape.pixels, scored, slots)


_NONFINITE = FLAGS.index("nonfinite")


@dataclass(frozen=True)
class Maps:
    """The maps of one method for some images: ``values`` ``[R, h, w]`` and, for each explained class
    (``"given"``, ``"pred"``, ``"label"``), which row belongs to which image."""

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
        config: EvaluationConfig = EvaluationConfig(),  # noqa: B008 - frozen
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.image_shape, self.columns, self.config = model, image_shape, tuple(columns), config
        self.engine = BatchRunner(model, config, on_progress)
        self.layouts: list[Layout] = []
        self.common = Common(image_shape, self.columns, self.layouts, config.interpolation)
        self.drawing = Drawing(model, self.engine, self.common, config.seed)
        self._needs: dict[str, list[RankedRemoval]] = {}
        self._shared: dict[Request, None] = {}
        self.explained: dict[str, list[Reattribution]] = {}
        """Maps that metrics want to be made again, by the class that they explain."""
        self._drawn: dict[str, dict[RenderedStates, None]] = {}
        for metric in metrics:
            mine = self._needs.setdefault(metric.explain_class, [])
            for need in metric.requests(image_shape):
                if isinstance(need, RankedRemoval) and need.by == "map":
                    mine.append(need)
                elif isinstance(need, Reattribution):
                    self.explained.setdefault(metric.explain_class, []).append(need)
                elif isinstance(need, RenderedStates) and need.by == "map":
                    self._drawn.setdefault(metric.explain_class, {})[need] = None
                elif isinstance(need, Masks | Images | RankedRemoval | Measured | RenderedStates | WithoutParts):
                    self._shared[need] = None
        self._kinds: dict[frozenset[str], int] = {}
        self._told: dict[str, Told] = {}
        self._next = 0
        self._plain: dict[str, Tensor] = {}
        every = [need for needs in self._needs.values() for need in needs]
        every += [need for need in self._shared if isinstance(need, RankedRemoval)]
        self.baselines = baselines_of([*every, *self._shared], image_shape)
        self._fully_removed = sorted(Layout(every, image_shape).baselines)
        self._spans: dict[tuple[tuple[int, int], ...], Tensor] = {}

    @property
    def modes(self) -> tuple[str, ...]:
        """Which explained classes the metrics ask maps for."""
        return tuple(sorted(self._needs))

    def states_per_map(self) -> int:
        """How many states one map of every explained class needs."""
        return self.layouts[self._kind(frozenset(self._needs))].length

    # -- some images -----------------------------------------------------------------------------------

    def add(
        self,
        inputs: Tensor,
        looked: Tensor,
        classes: Mapping[str, Tensor],
        maps: Mapping[str, Maps],
        truth: Sequence[Any] = (),
    ) -> None:
        """Queue images, their log-probabilities (of ``engine.look``), scored classes, maps by method, and truth."""
        with torch.no_grad():
            inputs = self.model.cast(inputs)
            scored = torch.stack([classes[name].to(inputs.device) for name in self.columns], dim=1)
            common = self.common
            common.classes.append(scored.cpu().numpy())
            common.clean.append(self._take(len(inputs)))
            common.truth += list(truth) or [None] * len(inputs)
            self.engine.record(looked, scored, common.clean[-1])
            chunk = Chunk.of(self.model, inputs, self.baselines, scored, self.config.seed)
            for name in self._fully_removed:
                self._add_bare(name, chunk.images[name], inputs, scored)
            for need in self._shared:
                if isinstance(need, WithoutParts):
                    self._add_parts(need, chunk, truth)
                else:
                    self._add_shared(need, chunk)
            values = {name: map_.values.detach().to(inputs.device) for name, map_ in maps.items()}
            values = {name: value if value.dtype == torch.float64 else value.float() for name, value in values.items()}
            codes = torch.cat([flag(value) for value in values.values()]).cpu().numpy()  # one wait for all methods
            for name in maps:
                mine, codes = codes[: len(values[name])], codes[len(values[name]) :]
                self._add_maps(name, Maps(values[name], maps[name].rows), mine, chunk)

    def finish(
        self, explained: Mapping[str, Mapping[tuple[Request, str], Array]] | None = None
    ) -> dict[str, Evaluation]:
        """Run what is left and return the answers of each method; ``explained`` are the maps made again, by method."""
        self.drawing.finish()
        readings, again = self.engine.finish(), explained or {}
        return {name: Evaluation(self.common, told, readings, again.get(name)) for name, told in self._told.items()}

    def _add_bare(self, name: str, images: Tensor, inputs: Tensor, scored: Tensor) -> None:
        slots = self._take(len(inputs))
        self.common.full.setdefault(name, []).append(slots)
        if SUBSTRATES[name].constant:  # one forward for all images
            if name not in self._plain:
                self._plain[name] = self.engine.look(images.expand(1, *inputs.shape[1:]))
            self.engine.record(self._plain[name].expand(len(inputs), -1), scored, slots)
        else:

            def write(out: Tensor, start: int, stop: int) -> None:
                out.copy_(images[start:stop])

            self.engine.images(write, self.image_shape.pixels, scored, slots)

    # -- states that no map has a part in --------------------------------------------------------------

    def _add_shared(self, need: Request, chunk: Chunk) -> None:
        if isinstance(need, Measured):
            made = need.images.of(chunk.inputs, self.model.preprocess, self.config.seed)
            found = need.measure(self.engine.model, chunk.inputs, made)
            self.common.measured.setdefault(need, []).append(found.double().cpu().numpy())
            return
        if isinstance(need, RankedRemoval):
            slots = self._random_order(need, chunk)
        elif isinstance(need, RenderedStates):
            slots = self._take(len(chunk.inputs) * need.count).reshape(-1, need.count)
            facts = self.drawing.queue(need, chunk, None, np.arange(len(slots)), slots)
            self.common.facts.setdefault(need, []).append(facts)
        elif isinstance(need, Masks):
            slots = self._add_masks(need, chunk)
        else:
            assert isinstance(need, Images)
            made = need.of(chunk.inputs, self.model.preprocess, self.config.seed)
            slots = self._take(made.shape[0] * made.shape[1]).reshape(made.shape[:2])
            for image in range(len(made)):
                self.engine.images(_copied(made[image]), self.image_shape.pixels, chunk.scored[image], slots[image])
        self.common.shared.setdefault(need, []).append(slots)

    def _add_parts(self, need: WithoutParts, chunk: Chunk, truth: Sequence[Any]) -> None:
        rows = self.common.parts.setdefault(need, [])
        for image, known in enumerate(truth):
            seen = {name: np.asarray(mask, bool) for name, mask in known.parts.items() if np.any(mask)}
            slots = self._take(len(seen))
            rows.append(dict(zip(seen, slots.tolist(), strict=True)))
            if seen:
                gone = torch.from_numpy(np.stack(list(seen.values()))).to(chunk.inputs.device)
                write = masked(chunk, image, need.baseline, gone)
                self.engine.images(write, self.image_shape.pixels, chunk.scored[image], slots)

    def _add_masks(self, need: Masks, chunk: Chunk) -> Array:
        gone = need.draw(PRNGKey.of_images(self.config.seed, "masks", chunk.inputs), self.image_shape).to(
            chunk.inputs.device
        )
        self.common.masks.setdefault(need, []).append(gone.cpu().numpy())
        slots = self._take(gone.shape[0] * gone.shape[1]).reshape(gone.shape[:2])
        if need.unit == "token":
            tokens = self._tokens(chunk)
            for image, masks in enumerate(gone):
                for place, mask in enumerate(masks):
                    keep = (~mask.flatten()).nonzero().flatten()[None]
                    row = torch.tensor([image], device=keep.device)
                    self.engine.tokens(tokens, row, keep, chunk.scored[row], slots[image, place : place + 1])
        else:
            for image, masks in enumerate(gone):
                write = masked(chunk, image, need.baseline, masks)
                self.engine.images(write, self.image_shape.pixels, chunk.scored[image], slots[image])
        return slots

    def _random_order(self, need: RankedRemoval, chunk: Chunk) -> Array:
        """Queue states in a random order of each image's own."""
        layout, batch = Layout([need], self.image_shape), len(chunk.inputs)
        starts = self._take(batch * layout.length)[:: max(1, layout.length)] if layout.length else np.zeros(batch, int)
        draws = PRNGKey.of_images(self.config.seed, "order", chunk.inputs)
        key = draws.uniform(*(self.image_shape.tokens if need.unit == "token" else self.image_shape.pixels))
        self._queue(key, np.arange(batch), [layout] * batch, starts, chunk)
        places = layout.places(need)
        slots: Array = starts[:, None] + places
        for column, place in enumerate(places):
            if place < 0:
                ends = self.common.clean if place == CLEAN else self.common.full[need.baseline]
                slots[:, column] = ends[-1]
        return slots

    # -- maps ------------------------------------------------------------------------------------------

    def _add_maps(self, name: str, maps: Maps, codes: Array, chunk: Chunk) -> None:
        if self.config.nan_policy == "raise" and (codes == _NONFINITE).any():
            bad = int((codes == _NONFINITE).sum())
            raise MapError(f"{name} gave values that are not finite for {bad} of {len(codes)} maps")
        owner = np.full(len(codes), -1)
        modes: list[set[str]] = [set() for _ in codes]
        for mode, rows in maps.rows.items():
            owner[rows] = np.arange(len(rows))
            for row in rows:
                modes[row].add(mode)
        kinds = np.array([self._kind(frozenset(each)) for each in modes])
        left_out = (codes == _NONFINITE) & (self.config.nan_policy == "exclude")
        lengths = np.array([self.layouts[kind].length for kind in kinds]) * ~left_out
        starts = np.where(left_out, -1, self._next + np.cumsum(lengths) - lengths)
        self._next += int(lengths.sum())
        told, home = self._told.setdefault(name, Told()), maps.values.cpu().numpy()
        for mode, rows in maps.rows.items():
            told.starts.setdefault(mode, []).append(starts[rows])
            told.layouts.setdefault(mode, []).append(kinds[rows])
            told.flags.setdefault(mode, []).append(codes[rows])
            told.maps.setdefault(mode, []).append(home[rows])
        good = np.flatnonzero(~left_out)
        for mode, drawn in self._drawn.items():
            for need in drawn:
                self._add_drawn(need, mode, told, maps, codes, left_out, chunk)
        if len(good):
            codes_there = torch.from_numpy(codes[good]).to(maps.values.device)
            values = sound(maps.values[torch.from_numpy(good).to(maps.values.device)], codes_there)
            layouts = [self.layouts[kind] for kind in kinds[good]]
            self._queue(values, owner[good], layouts, starts[good], chunk)

    def _add_drawn(
        self, need: RenderedStates, mode: str, told: Told, maps: Maps, codes: Array, left_out: Array, chunk: Chunk
    ) -> None:
        rows = maps.rows[mode]
        slots, facts = np.zeros((len(rows), need.count), np.int64), np.full((len(rows), need.count), np.nan)
        there = np.flatnonzero(~left_out[rows])
        slots[there] = self._take(len(there) * need.count).reshape(-1, need.count)
        some = maps.values[torch.from_numpy(rows[there]).to(maps.values.device)].double().cpu()
        ranked = sound(some, torch.from_numpy(codes[rows[there]])).numpy()
        fine = enlarged(ranked, self.image_shape.pixels, self.config.interpolation)
        self.drawing.queue(need, chunk, fine, there, slots[there], facts)
        told.drawn.setdefault((need, mode), []).append(slots)
        told.facts.setdefault((need, mode), []).append(facts)

    def _queue(self, values: Tensor, owner: Array, layouts: Sequence[Layout], starts: Array, chunk: Chunk) -> None:
        """Queue the states of these orders: images one map after the other, token states one span after the other."""
        size, different = self.image_shape.pixels, list(dict.fromkeys(layouts))
        units = sorted({run.unit for layout in different for run in layout.runs} - {"token"})
        blends = {unit: scaled(values, size, unit[6:]) for unit in units if unit.startswith("blend:")}
        ordered = [unit for unit in units if unit not in blends]
        ranks = {
            unit: unit_ranks(values, size, unit, self.config.interpolation, self.config.tie_breaking, self.config.seed)
            for unit in ordered
        }
        for row, (image, layout, start) in enumerate(zip(owner.tolist(), layouts, starts.tolist(), strict=True)):
            for run in layout.runs:
                slots = np.arange(start + run.start, start + run.start + len(run.spans))
                if run.unit in ranks:
                    mine = ranks[run.unit]
                    write = select(chunk, image, run.baseline, run.keep, self._span(run, mine), mine[row])
                elif run.unit in blends:
                    write = fade(blends[run.unit][row], chunk, run.baseline, image)
                else:
                    continue
                self.engine.images(write, size, chunk.scored[image], slots)
        for layout in different:
            runs = [run for run in layout.runs if run.unit == "token"]
            if runs:
                places = np.array([place for place, each in enumerate(layouts) if each is layout])
                self._queue_tokens(runs, values, owner, starts, places, chunk)

    def _queue_tokens(
        self, runs: Iterable[Run], values: Tensor, owner: Array, starts: Array, mine: Array, chunk: Chunk
    ) -> None:
        tokens, device = self._tokens(chunk), values.device
        some = values[torch.from_numpy(mine).to(device)]
        ranked = order(token_map(some, self.model, chunk.inputs).flatten(1), self.config.tie_breaking, self.config.seed)
        rows = torch.from_numpy(owner[mine]).to(device)
        for run in runs:
            for place, (low, high) in enumerate(run.spans):
                inside, outside = ranked[:, low:high], torch.cat([ranked[:, :low], ranked[:, high:]], dim=1)
                keep = (inside if run.keep else outside).sort(dim=1).values
                slots = starts[mine] + run.start + place
                self.engine.tokens(tokens, rows, keep, chunk.scored[rows], slots)

    def _tokens(self, chunk: Chunk) -> Tensor:
        if chunk.tokens is None:
            chunk.tokens = self.engine.embed(chunk.inputs)
        return chunk.tokens

    def _span(self, run: Run, like: Tensor) -> Tensor:
        if run.spans not in self._spans:
            self._spans[run.spans] = torch.tensor(run.spans, dtype=torch.int32, device=like.device)
        return self._spans[run.spans]

    def _kind(self, modes: frozenset[str]) -> int:
        """Return the number of the layout for a map that explains these classes at once."""
        if modes not in self._kinds:
            self._kinds[modes] = len(self.layouts)
            self.layouts.append(
                Layout([need for mode in sorted(modes) for need in self._needs[mode]], self.image_shape)
            )
        return self._kinds[modes]

    def _take(self, count: int) -> Array:
        self._next += count
        return np.arange(self._next - count, self._next)


def _copied(images: Tensor) -> Callable[[Tensor, int, int], None]:
    def write(out: Tensor, start: int, stop: int) -> None:
        out.copy_(images[start:stop])

    return write
