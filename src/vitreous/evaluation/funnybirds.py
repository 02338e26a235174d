"""The FunnyBirds protocol: one set of interventions per image, and every method held against it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitreous.datasets import LoadedImage, Sample, batched
from vitreous.errors import VitreousError, VitreousWarning
from vitreous.evaluation.funnybirds_data import FunnyBirdsFolder, FunnyBirdsScenes, Intervention, PartMasks
from vitreous.evaluation.funnybirds_scores import Importances, Interventions, disjoint_pairs
from vitreous.evaluation.plan import EvaluationPlan, explainers_of, image_shape_of, with_batch_sizes
from vitreous.evaluation.runner import Attributor, provenance
from vitreous.metrics import BatchRunner, EvaluationConfig, Maps
from vitreous.metrics.bootstrap import SAMPLES
from vitreous.metrics.ranking import FLAGS, Array, enlarged, flag
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress, ProgressCounter, track_progress
from vitreous.results.funnybirds import FunnyBirdsChecks, FunnyBirdsResult
from vitreous.world import Scene, World

THRESHOLDS = tuple(np.linspace(0.01, 0.50, 80).tolist())
_MODES = ("target", "pred", "one", "other")
_NO_IMAGE = Image.new("RGB", (1, 1))
_ORACLE = "oracle"
_USUAL_SIDE = 256  # pixels, where the dilation is five wide


def dilation_width(side: int, width: int | None = None) -> int:
    """Return how wide the dilation is, in pixels: 5 at a side of 256, in proportion elsewhere, always odd."""
    if width is None:
        return 2 * round(2 * side / _USUAL_SIDE) + 1
    if width < 1 or width % 2 == 0:
        raise VitreousError(f"dilation={width} is not an odd number of pixels, 1 for none")
    if width > 2 * side + 1:
        raise VitreousError(f"dilation={width} is wider than images of {side} pixels")
    return width


class PartReader:
    """Reads the maps of one image: its masks are dilated once for all of them."""

    def __init__(self, parts: PartMasks, count: int, width: int) -> None:
        masks = torch.from_numpy(parts.masks).float()[:, None]
        dilated = torch.nn.functional.max_pool2d(masks, width, stride=1, padding=width // 2)
        self._dilated: Array = dilated.flatten(1).double().numpy()
        self._owners, self._count, self._size = parts.owners, count, parts.masks.shape[1:]

    def importances(self, maps: Array) -> tuple[Array, Array]:
        """Return what maps ``[m, S, S]`` hold inside each part and object ``[m, count]``, and in all ``[m]``.

        Instances of a part are summed. What an image does not have is NaN; so is all of a map that is not finite.
        """
        flat = maps.reshape(len(maps), -1)
        flat = np.where(np.isfinite(flat).all(axis=1, keepdims=True), flat, np.nan)
        belongs = self._owners[:, None] == np.arange(self._count)
        inside = (flat @ self._dilated.T) @ belongs.astype(np.float64)
        inside[:, ~belongs.any(axis=0)] = np.nan
        totals = flat.sum(axis=1)
        inside[np.isnan(totals)] = np.nan
        return inside, totals

    def oracle(self, drops: Array) -> Array:
        """Return maps ``[m, S, S]`` in which each part and object holds its drop ``[m, count]``, and the total is fair.

        The drop is spread over those pixels of its dilated mask that no other mask touches. The other pixels share what
        makes the total the sum of all positive drops, so that negative ones cannot cancel it. What is wholly hidden
        holds nothing.
        """
        once = self._dilated.sum(axis=0) == 1
        maps = np.zeros((len(drops), self._dilated.shape[1]))
        negative = np.zeros(len(drops))
        for owner in np.unique(self._owners):
            core = once & (self._dilated[self._owners == owner].sum(axis=0) == 1)
            if core.any():
                maps[:, core] = drops[:, owner, None] / core.sum()
                negative += np.minimum(drops[:, owner], 0)
        ground = self._dilated.sum(axis=0) == 0
        if ground.any():
            maps[:, ground] = -negative[:, None] / ground.sum()
        return maps.reshape(len(drops), *self._size)


def funnybirds(
    model: VisionModel | nn.Module,
    methods: Any = None,
    scenes: World | Sequence[Scene] | str | Path | FunnyBirdsScenes | None = None,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    fixed: float = 0.1,
    dilation: int | None = None,
    share: float = 0.05,
    oracle: bool = False,
    controls: bool = True,
    n_bootstrap: int = SAMPLES,
    output: str = "logit",
    interpolation: str = "nearest",
    seed: int = 0,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    progress: Progress | bool | None = None,
) -> FunnyBirdsResult:
    """Score methods by what is known about the parts of every image.

    A part is important if the map holds more than a threshold's share of its total inside the part's dilated mask.

    Parameters
    ----------
    model : VisionModel or torch.nn.Module
        A model of the classes of the scenes.
    methods : optional
        As in ``evaluate``.
    scenes : World, sequence of Scene or path, optional
        Scenes of the world, or a folder in the layout of the data set; 50 test scenes by default.
    thresholds : sequence of float
        Shares of the total, from 0 to below 1; 80 from 0.01 to 0.5 by default.
    fixed : float, default 0.1
        The threshold that is reported beside the best one.
    dilation : int, optional
        Of the masks, in pixels; 5 at a side of 256, else in proportion.
    share : float, default 0.05
        What lowers the logit by this share of it matters.
    oracle : bool, default False
        Add maps made of the interventions themselves: what is best is not 1 in every column.
    controls, n_bootstrap, output
        As in ``evaluate``.
    interpolation : {"nearest", "bilinear"}, default "nearest"
        How maps are enlarged to pixels.
    seed, batch_size, memory_gb, progress
        As in ``evaluate``.

    Returns
    -------
    FunnyBirdsResult
        The dimensions of the protocol for each method.

    Notes
    -----
    Cost: 2^parts forwards and one per background object for each image, once for all methods; for each method at most
    four attributions of an image.

    References
    ----------
    R. Hesse, S. Schaub-Meyer and S. Roth, FunnyBirds: A Synthetic Vision Dataset for a Part-Based Analysis of
    Explainable AI Methods, 2023.

    Examples
    --------
    >>> birds = vt.funnybirds(model, ["ixg", "rollout"], vt.world.World(n=2), n_bootstrap=50)
    >>> birds.score("ixg", "acc")
    1.0
    """
    vision_model = wrap(model)
    config = EvaluationConfig(output=output, interpolation=interpolation, seed=seed)  # refused before the work
    explainers = explainers_of(methods, vision_model, controls, output)
    if oracle and _ORACLE in explainers:
        raise VitreousError(f"the method {_ORACLE} is named twice")
    levels = _levels(thresholds, fixed)
    if not 0 < share < 1:
        raise VitreousError(f"share={share} must lie between 0 and 1")
    source = _source(scenes, vision_model)
    size = vision_model.preprocess.size
    config = with_batch_sizes(config, vision_model, size, batch_size, memory_gb)
    plan = EvaluationPlan(explainers, {}, image_shape_of(vision_model, size), config)
    names = (*explainers, *([_ORACLE] if oracle else []))
    run = _Run(vision_model, plan, source, share, dilation_width(source.size, dilation), names)
    with track_progress(progress, "states") as run.counter.progress:
        for start in range(0, len(source.names), config.images_per_unit):
            run.add(range(len(source.names))[start : start + config.images_per_unit])
    return run.result(levels, n_bootstrap, seed)


@dataclass
class _Run:
    """One run, some images at a time; of each, only numbers stay."""

    model: VisionModel
    plan: EvaluationPlan
    source: FunnyBirdsFolder | FunnyBirdsScenes
    share: float
    dilation: int
    methods: tuple[str, ...]

    def __post_init__(self) -> None:
        source, classes, images = self.source, self.model.num_classes, len(self.source.names)
        if classes != len(source.variants):
            raise VitreousError(
                f"{self.model.name} has {classes} classes, not the {len(source.variants)} of {source.description}"
            )
        self.pairs = disjoint_pairs(source.variants)
        self.all_parts, self.count = 2 ** len(source.parts) - 1, len(source.parts) + source.most_objects
        states = sum(self.all_parts + 1 + len(source.objects(image)) for image in range(images))
        self.counter = ProgressCounter(None, states)
        self.runner = BatchRunner(self.model, self.plan.config, self.counter)
        with_parts = np.full((images, self.all_parts + 1, classes), np.nan)
        without = np.full((images, source.most_objects, classes), np.nan)
        self.interventions = Interventions(source.labels, with_parts, without, source.variants, self.share)
        self.values = {name: np.empty((images, len(_MODES), self.count)) for name in self.methods}
        self.totals = {name: np.empty((images, len(_MODES))) for name in self.methods}
        self.flags = {name: np.zeros((images, 2), np.int8) for name in self.methods}
        self.objects_seen, self.explaining, self.start = 0, 0.0, time.perf_counter()

    def add(self, images: range) -> None:
        """Run the interventions of some images, explain them, and read the maps."""
        self._intervene(images)
        interventions = self.interventions.rows(images)
        labels = interventions.labels
        pairs = np.where(self.pairs[labels] < 0, labels[:, None], self.pairs[labels])
        classes = dict(zip(_MODES, (labels, interventions.predicted, pairs[:, 0], pairs[:, 1]), strict=True))
        start = time.perf_counter()
        maps = self._maps(images, classes)
        self.explaining += time.perf_counter() - start
        self._read(images, np.stack([interventions.drops(classes[mode]) for mode in _MODES], axis=1), maps)

    def _intervene(self, images: range) -> None:
        changes = [Intervention(image, subset) for image in images for subset in range(self.all_parts + 1)]
        changes += [
            Intervention(image, self.all_parts, object_) for image in images for object_ in self.source.objects(image)
        ]
        for batch in batched(changes, self.runner.batch_size):
            logits = self.runner.forward(self._inputs(batch)).double().cpu().numpy()
            for change, row in zip(batch, logits, strict=True):
                if change.without < 0:
                    self.interventions.with_parts[change.image, change.parts] = row
                else:
                    self.interventions.without[change.image, change.without] = row

    def _inputs(self, changes: Sequence[Intervention]) -> Tensor:
        """Return images as the model takes them."""
        images, transform = self.source.images(changes).to(self.model.device), self.model.preprocess
        if tuple(images.shape[2:]) != transform.size:
            images = nn.functional.interpolate(images, transform.size, mode="bilinear", antialias=True)
        return self.model.cast(transform.normalize(images))

    def _maps(self, images: range, classes: Mapping[str, Array]) -> dict[str, Maps]:
        changes = [Intervention(image, self.all_parts) for image in images]
        inputs = torch.cat([self._inputs(batch) for batch in batched(changes, self.runner.batch_size)])
        samples = [
            Sample(LoadedImage(tensor, _NO_IMAGE, self.source.names[image]), image)
            for image, tensor in zip(images, inputs, strict=True)
        ]
        attributor = Attributor(self.model, self.plan, samples, self.counter)
        jobs, rows = attributor.jobs(
            {mode: torch.from_numpy(indices).to(self.model.device) for mode, indices in classes.items()}
        )
        maps = attributor.maps(list(attributor.run(jobs)), rows)
        smaller = replace(self.plan.config, attribution_batch=attributor.inner.size)
        self.plan = replace(self.plan, config=smaller)  # what ran out of memory once is not tried again
        return maps

    def _read(self, images: range, drops: Array, maps: Mapping[str, Maps]) -> None:
        size = self.source.size, self.source.size
        arrays = {name: map_.values.double().cpu().numpy() for name, map_ in maps.items()}
        for index, (image, parts) in enumerate(zip(images, self.source.masks(images), strict=True)):
            is_object = parts.owners >= len(self.source.parts)
            self.objects_seen += int(parts.masks[is_object].any(axis=(1, 2)).sum())
            reader = PartReader(parts, self.count, self.dilation)
            for name in self.methods:
                if name in maps:
                    rows = [maps[name].rows[mode][index] for mode in _MODES]
                    fine = enlarged(arrays[name][rows], size, self.plan.config.interpolation)
                else:
                    fine = reader.oracle(drops[index])
                self.values[name][image], self.totals[name][image] = reader.importances(fine)
        for name, map_ in maps.items():
            codes = flag(map_.values).cpu().numpy()
            self.flags[name][images.start : images.stop] = np.stack(
                [codes[map_.rows[mode]] for mode in _MODES[:2]], axis=1
            )

    def result(self, levels: Array, n_bootstrap: int, seed: int) -> FunnyBirdsResult:
        """Put the numbers of all images together."""
        interventions, source = self.interventions, self.source
        if isinstance(source, FunnyBirdsFolder) and any(source.counts) and not self.objects_seen:
            text = (
                "no background object is seen in any part map, so that none is ever important: are these its colours?"
            )
            warnings.warn(text, VitreousWarning, stacklevel=3)
        has_pair = self.pairs[interventions.labels, 0] >= 0
        can_distinguish = interventions.can_distinguish(self.pairs)
        return FunnyBirdsResult(
            images=tuple(source.names),
            methods=self.methods,
            thresholds=levels[:-1],
            fixed=float(levels[-1]),
            accuracy=interventions.accuracy(),
            background=interventions.background(),
            checks={name: self._checks(name, levels) for name in self.methods},
            degenerate={name: self._degenerate(name) for name in self.methods},
            skipped={
                "csdc": int((interventions.accuracy() == 0).sum()),
                "d": int((~interventions.irrelevant().any(axis=1)).sum()),
                "ts, no pair of classes": int((~has_pair).sum()),
                "ts, model does not tell the pair apart": int((has_pair & ~can_distinguish).sum()),
            },
            plan=self._record(),
            n_bootstrap=n_bootstrap,
            seed=seed,
        )

    def _checks(self, name: str, levels: Array) -> FunnyBirdsChecks:
        interventions, values, totals = self.interventions, self.values[name], self.totals[name]
        target, pred, one, other = (Importances(values[:, mode], totals[:, mode]) for mode in range(len(_MODES)))
        curves = [
            interventions.data_check(target, levels),
            interventions.preservation(pred, levels),
            interventions.deletion(pred, levels),
            interventions.distractibility(target, levels),
        ]
        sensitivity = interventions.target_sensitivity(one, other, self.pairs)
        return FunnyBirdsChecks(np.stack(curves, axis=1), interventions.single_deletion(target), sensitivity)

    def _degenerate(self, name: str) -> dict[str, int]:
        codes, totals = self.flags[name], self.totals[name]
        counts = {kind: int((codes == code).any(axis=1).sum()) for code, kind in enumerate(FLAGS) if code}
        return {**counts, "total not positive": int((totals[:, :2] <= 0).any(axis=1).sum())}

    def _record(self) -> dict[str, Any]:
        source, settings = self.source, self.plan.to_json()
        sizes = ("images_per_unit", "attribution_batch", "forward_batch")
        return {
            "scenes": source.description,
            "images": len(source.names),
            "parts": list(source.parts),
            "size": source.size,
            "states": sum(self.runner.states.values()),
            "dilation": self.dilation,
            "share": self.share,
            **{name: settings[name] for name in ("methods", "interpolation", "output", "seed", *sizes)},
            "logits_not_positive": int((self.interventions.unchanged(source.labels) <= 0).sum()),
            **provenance(self.model),
            "seconds": {"total": time.perf_counter() - self.start, "explaining": self.explaining},
        }


def _levels(thresholds: Sequence[float], fixed: float) -> Array:
    """Return the thresholds, and the fixed one behind them."""
    try:
        levels = np.array([*thresholds, fixed], np.float64)
    except (TypeError, ValueError):
        raise VitreousError(f"thresholds={thresholds!r:.60} are not numbers") from None
    if len(levels) < 2 or not ((levels >= 0) & (levels < 1)).all():
        raise VitreousError("thresholds and fixed are shares of a map's total, from 0 to below 1, one or more")
    return levels


def _source(scenes: Any, model: VisionModel) -> FunnyBirdsFolder | FunnyBirdsScenes:
    scenes = World(n=50) if scenes is None else scenes
    if isinstance(scenes, FunnyBirdsFolder | FunnyBirdsScenes):
        return scenes
    if isinstance(scenes, str | Path):
        return FunnyBirdsFolder.of(Path(scenes))
    if isinstance(scenes, World) or (isinstance(scenes, list | tuple) and all(isinstance(s, Scene) for s in scenes)):
        return FunnyBirdsScenes.of(scenes, model.preprocess.size[0], model.device)
    raise VitreousError(f"{scenes!r:.60} is neither a World, nor a list of scenes, nor a folder")
