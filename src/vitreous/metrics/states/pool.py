"""One pool of states for all metrics and methods: what is asked for is laid out, queued, run once and handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import MapError, TargetError, VitreousError
from vitreous.metrics.base import Metric
from vitreous.metrics.curves import Array
from vitreous.metrics.states import road
from vitreous.metrics.states.engine import Engine, Found, Write
from vitreous.metrics.states.need import CLEAN, Geometry, Layout, Need, Run
from vitreous.metrics.states.rank import FLAGS, TIES, flag, order, pixel_ranks, scaled, sound, token_map
from vitreous.metrics.states.substrate import SUBSTRATES, substrate_images
from vitreous.models import View

__all__ = ["Answers", "Maps", "Pool"]

_NONFINITE = FLAGS.index("nonfinite")


@dataclass(frozen=True)
class Maps:
    """The maps of one method for a chunk of images: ``values`` ``[R, h, w]`` and, for each explained class
    (``"given"``, ``"pred"``, ``"label"``), which row belongs to which image."""

    values: Tensor
    rows: Mapping[str, Array]


@dataclass
class _Told:
    """Where the answers about one method stand, chunk after chunk."""

    starts: dict[str, list[Array]] = field(default_factory=dict)
    layouts: dict[str, list[Array]] = field(default_factory=dict)
    flags: dict[str, list[Array]] = field(default_factory=dict)


class Answers:
    """What the engine found about the maps of one method: all that a metric reads. Images are the first axis."""

    def __init__(self, pool: Pool, told: _Told, found: Found) -> None:
        self.geometry = pool.geometry
        self._found, self._columns = found, pool.columns
        self._clean = np.concatenate(pool.clean_slots)
        self._full = {name: np.concatenate(slots) for name, slots in pool.full_slots.items()}
        self._classes = np.concatenate(pool.classes)
        self._layouts = pool.layouts
        join = {mode: np.concatenate(parts) for mode, parts in told.starts.items()}
        self._starts, self._flags = join, {mode: np.concatenate(parts) for mode, parts in told.flags.items()}
        self._kinds = {mode: np.concatenate(parts) for mode, parts in told.layouts.items()}

    def __len__(self) -> int:
        return len(self._clean)

    def flags(self, explain: str) -> Array:
        """Return the code of each map in ``FLAGS``."""
        return self._flags[explain]

    def log_probability(self, need: Need, explain: str, score: str) -> Array:
        """Return ``log P`` of the scored class in each state of ``need``, ``[B, J]``; NaN where a map was left out."""
        slots, left_out = self._slots(need, explain)
        values: Array = self._found.log_probability[slots, self._column(score, explain)].astype(np.float64)
        values[left_out] = np.nan
        return values

    def correct(self, need: Need, explain: str) -> Array:
        """Return 1 where the arg-max is the true class and 0 elsewhere, ``[B, J]``; NaN where a map was left out."""
        slots, left_out = self._slots(need, explain)
        truth = self._classes[:, self._column("label", explain)]
        values: Array = (self._found.arg_max[slots] == truth[:, None]).astype(np.float64)
        values[left_out] = np.nan
        return values

    def clean(self, score: str, explain: str = "given") -> Array:
        """Return ``log P`` of the scored class for the images themselves, ``[B]``."""
        values: Array = self._found.log_probability[self._clean, self._column(score, explain)].astype(np.float64)
        return values

    def _column(self, score: str, explain: str) -> int:
        wanted = explain if score == "explained" else score
        if wanted == "given" and "given" not in self._columns:
            wanted = "pred"
        if wanted not in self._columns:
            raise TargetError(f"there is no {wanted!r} class to score: give labels")
        return self._columns.index(wanted)

    def _slots(self, need: Need, explain: str) -> tuple[Array, Array]:
        starts, kinds = self._starts[explain], self._kinds[explain]
        slots = np.zeros((len(starts), len(need.counts)), np.int64)
        for kind in np.unique(kinds):
            mine = kinds == kind
            places = self._layouts[kind].places(need)
            slots[mine] = starts[mine, None] + places
            for column, place in enumerate(places):
                if place < 0:
                    slots[mine, column] = (self._clean if place == CLEAN else self._full[need.substrate])[mine]
        return slots, starts < 0


class Pool:
    """Collects images and maps chunk by chunk, and answers all metrics about all methods at the end.

    ``columns`` are the scored classes that every state is read for: ``"pred"``, and ``"label"`` or ``"given"``.
    """

    def __init__(
        self,
        view: View,
        metrics: Sequence[Metric],
        geometry: Geometry,
        columns: Sequence[str],
        *,
        batch: int | None = None,
        precision: str = "float32",
        only: Tensor | None = None,
        upsample: str = "bilinear",
        ties: str = "random",
        nonfinite: str = "exclude",
        seed: int = 0,
        tick: Callable[[int], None] | None = None,
    ) -> None:
        for name, given, choices in (
            ("upsample", upsample, ("bilinear", "nearest")),
            ("ties", ties, TIES),
            ("nonfinite", nonfinite, ("exclude", "lowest", "raise")),
        ):
            if given not in choices:
                raise VitreousError(f"{name}={given!r} is not one of {', '.join(choices)}")
        self.view, self.geometry, self.columns = view, geometry, tuple(columns)
        self.upsample, self.ties, self.nonfinite, self.seed = upsample, ties, nonfinite, seed
        self.engine = Engine(view, batch, precision, only, tick)
        self.layouts: list[Layout] = []
        self.clean_slots: list[Array] = []
        self.full_slots: dict[str, list[Array]] = {}
        self.classes: list[Array] = []
        self._needs: dict[str, list[Need]] = {}
        for metric in metrics:
            self._needs.setdefault(metric.explain, []).extend(metric.needs(geometry))
        self._kinds: dict[frozenset[str], int] = {}
        self._told: dict[str, _Told] = {}
        self._next = 0
        self._plain: dict[str, Tensor] = {}
        everything = Layout([need for needs in self._needs.values() for need in needs], geometry)
        self.substrates = sorted({run.substrate for run in everything.runs} | everything.substrates)
        self._bare = sorted(everything.substrates)
        self._counts: dict[tuple[int, ...], Tensor] = {}

    @property
    def modes(self) -> tuple[str, ...]:
        """Which explained classes the metrics ask maps for."""
        return tuple(sorted(self._needs))

    def states_per_map(self) -> int:
        """How many states one map of every explained class needs."""
        return self.layouts[self._kind(frozenset(self._needs))].length

    # -- one chunk -------------------------------------------------------------------------------------

    def add(self, inputs: Tensor, looked: Tensor, classes: Mapping[str, Tensor], maps: Mapping[str, Maps]) -> None:
        """Queue a chunk: images, their log-probabilities (of ``engine.look``), scored classes, maps by method."""
        with torch.no_grad():
            inputs = self.view.cast(inputs)
            scored = torch.stack([classes[name].to(inputs.device) for name in self.columns], dim=1)
            self.classes.append(scored.cpu().numpy())
            self.clean_slots.append(self._take(len(inputs)))
            self.engine.record(looked, scored, self.clean_slots[-1])
            images = self._images(inputs)
            for name in self._bare:
                self._add_bare(name, images[name], inputs, scored)
            values = {name: each.values.detach().to(inputs.device) for name, each in maps.items()}
            values = {name: each if each.dtype == torch.float64 else each.float() for name, each in values.items()}
            codes = torch.cat([flag(each) for each in values.values()]).cpu().numpy()  # one wait for all methods
            chunk = _Chunk(inputs, images, scored)
            for name in maps:
                mine, codes = codes[: len(values[name])], codes[len(values[name]) :]
                self._add_maps(name, Maps(values[name], maps[name].rows), mine, chunk)

    def finish(self) -> dict[str, Answers]:
        """Run what is left and return the answers of each method."""
        found = self.engine.finish()
        return {name: Answers(self, told, found) for name, told in self._told.items()}

    def _images(self, inputs: Tensor) -> dict[str, Tensor]:
        images = {}
        for name in self.substrates:
            if name in SUBSTRATES:
                images[name] = substrate_images(name, inputs, self.view.preprocess, self.seed)
        return images

    def _add_bare(self, name: str, images: Tensor, inputs: Tensor, scored: Tensor) -> None:
        slots = self._take(len(inputs))
        self.full_slots.setdefault(name, []).append(slots)
        if SUBSTRATES[name].constant:  # one forward for the whole data set
            if name not in self._plain:
                self._plain[name] = self.engine.look(images.expand(1, *inputs.shape[1:]))
            self.engine.record(self._plain[name].expand(len(inputs), -1), scored, slots)
        else:

            def write(out: Tensor, start: int, stop: int) -> None:
                out.copy_(images[start:stop])

            self.engine.images(write, self.geometry.pixels, scored, slots)

    def _add_maps(self, name: str, maps: Maps, codes: Array, chunk: _Chunk) -> None:
        if self.nonfinite == "raise" and (codes == _NONFINITE).any():
            bad = int((codes == _NONFINITE).sum())
            raise MapError(f"{name} gave values that are not finite for {bad} of {len(codes)} maps")
        owner = np.full(len(codes), -1)
        modes: list[set[str]] = [set() for _ in codes]
        for mode, rows in maps.rows.items():
            owner[rows] = np.arange(len(rows))
            for row in rows:
                modes[row].add(mode)
        kinds = np.array([self._kind(frozenset(each)) for each in modes])
        left_out = (codes == _NONFINITE) & (self.nonfinite == "exclude")
        lengths = np.array([self.layouts[kind].length for kind in kinds]) * ~left_out
        starts = np.where(left_out, -1, self._next + np.cumsum(lengths) - lengths)
        self._next += int(lengths.sum())
        told = self._told.setdefault(name, _Told())
        for mode, rows in maps.rows.items():
            told.starts.setdefault(mode, []).append(starts[rows])
            told.layouts.setdefault(mode, []).append(kinds[rows])
            told.flags.setdefault(mode, []).append(codes[rows])
        good = np.flatnonzero(~left_out)
        if len(good):
            codes_there = torch.from_numpy(codes[good]).to(maps.values.device)
            values = sound(maps.values[torch.from_numpy(good).to(maps.values.device)], codes_there)
            self._queue(values, owner[good], kinds[good], starts[good], chunk)

    def _queue(self, values: Tensor, owner: Array, kinds: Array, starts: Array, chunk: _Chunk) -> None:
        """Queue the states of these maps: images one map after the other, token states one count after the other."""
        size, needed = self.geometry.pixels, [self.layouts[kind] for kind in np.unique(kinds)]
        pixels = blends = None
        if any(layout.uses("pixel") for layout in needed):
            pixels = pixel_ranks(values, size, self.upsample, self.ties, self.seed)
        if any(layout.uses("blend") for layout in needed):
            blends = scaled(values, size)
        for row, (image, kind, start) in enumerate(zip(owner.tolist(), kinds.tolist(), starts.tolist(), strict=True)):
            for run in self.layouts[kind].runs:
                slots = np.arange(start + run.start, start + run.start + len(run.counts))
                if run.unit == "pixel" and pixels is not None:
                    write = self._select(run, pixels[row], chunk, image)
                elif run.unit == "blend" and blends is not None:
                    write = _fade(blends[row], chunk, run.substrate, image)
                else:
                    continue
                self.engine.images(write, size, chunk.scored[image], slots)
        for kind in np.unique(kinds):
            runs = [run for run in self.layouts[kind].runs if run.unit == "token"]
            if runs:
                self._queue_tokens(runs, values, owner, starts, np.flatnonzero(kinds == kind), chunk)

    def _queue_tokens(
        self, runs: Iterable[Run], values: Tensor, owner: Array, starts: Array, mine: Array, chunk: _Chunk
    ) -> None:
        if chunk.tokens is None:
            chunk.tokens = self.engine.embed(chunk.inputs)
        device = values.device
        some = values[torch.from_numpy(mine).to(device)]
        ranked = order(token_map(some, self.view, chunk.inputs).flatten(1), self.ties, self.seed)
        rows = torch.from_numpy(owner[mine]).to(device)
        for run in runs:
            for place, count in enumerate(run.counts):
                keep = (ranked[:, :count] if run.keep else ranked[:, count:]).sort(dim=1).values
                slots = starts[mine] + run.start + place
                self.engine.tokens(chunk.tokens, rows, keep, chunk.scored[rows], slots)

    def _select(self, run: Run, ranks: Tensor, chunk: _Chunk, image: int) -> Write:
        """Return what writes ``rank < count ? top : rest`` for the counts of a run."""
        if run.counts not in self._counts:
            counts = torch.tensor(run.counts, dtype=torch.int32, device=ranks.device)
            self._counts[run.counts] = counts.view(-1, 1, 1, 1)
        counts, picture = self._counts[run.counts], chunk.inputs[image]
        if SUBSTRATES[run.substrate].imputes:
            if chunk.noise is None:
                chunk.noise = road.noise(chunk.inputs, self.view.preprocess, self.seed)
            return _impute(picture, chunk.noise[image], ranks, counts, run.keep)
        other = chunk.substrate(run.substrate, image)
        top, rest = (picture, other) if run.keep else (other, picture)

        def write(out: Tensor, start: int, stop: int) -> None:
            torch.where(ranks < counts[start:stop], top, rest, out=out)

        return write

    def _kind(self, modes: frozenset[str]) -> int:
        """Return the number of the layout for a map that explains these classes at once."""
        if modes not in self._kinds:
            self._kinds[modes] = len(self.layouts)
            self.layouts.append(Layout([need for mode in sorted(modes) for need in self._needs[mode]], self.geometry))
        return self._kinds[modes]

    def _take(self, count: int) -> Array:
        self._next += count
        return np.arange(self._next - count, self._next)


@dataclass
class _Chunk:
    """The images of a chunk and what is made of them once."""

    inputs: Tensor
    images: Mapping[str, Tensor]
    scored: Tensor
    tokens: Tensor | None = None
    noise: Tensor | None = None

    def substrate(self, name: str, image: int) -> Tensor:
        images = self.images[name]
        return images[0] if len(images) == 1 else images[image]


def _fade(weights: Tensor, chunk: _Chunk, substrate: str, image: int) -> Write:
    """Return what writes the image faded into the substrate by the map."""

    def write(out: Tensor, start: int, stop: int) -> None:
        out.copy_(
            torch.lerp(
                chunk.substrate(substrate, image).expand_as(chunk.inputs[image]),
                chunk.inputs[image],
                weights.to(chunk.inputs),
            )
        )

    return write


def _impute(picture: Tensor, noise: Tensor, ranks: Tensor, counts: Tensor, keep: bool) -> Write:
    """Return what fills the removed pixels in from those that are left."""

    def write(out: Tensor, start: int, stop: int) -> None:
        gone = (ranks >= counts[start:stop]) if keep else (ranks < counts[start:stop])
        torch.addcmul(road.fill(picture, gone[:, 0]), noise, gone.to(noise.dtype), out=out)

    return write
