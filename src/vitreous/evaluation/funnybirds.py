"""From maps to what they find in each part: sums inside dilated masks. And the map of an oracle.

``funnybirds``: one set of interventions per image, every explainer read against it.
"""

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

from vitreous import __version__
from vitreous.datasets import LoadedImage, Sample, batched
from vitreous.errors import VitreousError, VitreousWarning
from vitreous.evaluation.config import EvaluationPlan, image_shape_of, with_batch_sizes
from vitreous.evaluation.evaluate import heeded
from vitreous.evaluation.explainers import named
from vitreous.evaluation.funnybirds_data import Change, Folder, Scenes, Seen, Source
from vitreous.evaluation.funnybirds_scores import Importances, Interventions, disjoint_pairs
from vitreous.evaluation.runner import Explaining
from vitreous.methods import Method, get_method, recommended_method
from vitreous.metrics import BatchRunner, EvaluationConfig, Maps
from vitreous.metrics.bootstrap import SAMPLES
from vitreous.metrics.ranking import FLAGS, Array, enlarged, flag
from vitreous.models import VisionModel, wrap
from vitreous.progress import Progress, track_progress
from vitreous.registry import defaults
from vitreous.results.funnybirds import Found, FunnyBirdsResult
from vitreous.world import Scene, World

__all__ = [
    "Reader",
    "THRESHOLDS",
    "funnybirds",
    "window",
]

_USUAL = 256  # pixels, where the window is five wide


def window(size: int, given: int | None = None) -> int:
    """Return how wide the dilation is, in pixels: 5 at a side of 256, in proportion elsewhere, always odd."""
    if given is None:
        return 2 * round(2 * size / _USUAL) + 1
    if given < 1 or given % 2 == 0:
        raise VitreousError(f"dilation={given} is not an odd number of pixels, 1 for none")
    if given > 2 * size + 1:
        raise VitreousError(f"dilation={given} is wider than images of {size} pixels")
    return given


class Reader:
    """Reads the maps of one image: ``masks`` are dilated once for all of them."""

    def __init__(self, seen: Seen, slots: int, width: int) -> None:
        height, across = seen.masks.shape[1:]
        masks = torch.from_numpy(seen.masks).float()[:, None]
        grown = torch.nn.functional.max_pool2d(masks, width, stride=1, padding=width // 2)
        self._grown: Array = grown.flatten(1).double().numpy()
        self._owners, self._slots, self._size = seen.owners, slots, (height, across)

    def importances(self, maps: Array) -> tuple[Array, Array]:
        """Return what maps ``[m, S, S]`` hold inside each part and object ``[m, slots]``, and in all ``[m]``.

        Instances of a part are summed; places without an owner are NaN.
        """
        flat = maps.reshape(len(maps), -1)
        belongs = self._owners[:, None] == np.arange(self._slots)
        inside = (flat @ self._grown.T) @ belongs.astype(np.float64)
        inside[:, ~belongs.any(axis=0)] = np.nan
        totals = flat.sum(axis=1)
        inside[np.isnan(totals)] = np.nan
        return inside, totals

    def oracle(self, falls: Array) -> Array:
        """Return maps ``[m, S, S]`` in which each part and object holds its fall ``[m, slots]``, and the total is fair.

        The fall is spread over those pixels of its dilated mask that no other mask touches. The other pixels share what
        makes the total the sum of all positive falls, so that negative ones cannot cancel it. What is wholly hidden
        holds nothing.
        """
        once = self._grown.sum(axis=0) == 1
        maps = np.zeros((len(falls), self._grown.shape[1]))
        shown = np.zeros(len(falls))
        for owner in np.unique(self._owners):
            core = once & (self._grown[self._owners == owner].sum(axis=0) == 1)
            if core.any():
                maps[:, core] = falls[:, owner, None] / core.sum()
                shown += np.minimum(falls[:, owner], 0)
        nobody = self._grown.sum(axis=0) == 0
        if nobody.any():
            maps[:, nobody] = -shown[:, None] / nobody.sum()
        return maps.reshape(len(falls), *self._size)


THRESHOLDS = tuple(np.linspace(0.01, 0.50, 80).tolist())
_MODES = ("target", "pred", "one", "other")
_NOTHING = Image.new("RGB", (1, 1))
_ORACLE = "oracle"


def funnybirds(
    model: VisionModel | nn.Module,
    methods: Any = None,
    scenes: World | Sequence[Scene] | str | Path | Source | None = None,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    fixed: float = 0.1,
    dilation: int | None = None,
    share: float = 0.05,
    interpolation: str = "nearest",
    output: str | None = None,
    oracle: bool = False,
    controls: bool = True,
    batch_size: int | None = None,
    memory_gb: float | None = None,
    n_bootstrap: int = SAMPLES,
    seed: int = 0,
    progress: Progress | bool | None = None,
) -> FunnyBirdsResult:
    """Judge methods by what is known about the parts of every image (Hesse, Schaub-Meyer and Roth, ICCV 2023).

    ``scenes``: a ``World``, a list of scenes, or a folder in the layout of the data set; without them, 50 test scenes.
    ``methods`` are as in ``evaluate``. A part is important if the map holds more than a threshold's share of its total
    inside the part's mask, dilated by ``dilation`` pixels (5 at a side of 256, else in proportion). ``fixed`` is the
    threshold reported beside the best one. What lowers the logit by ``share`` of it matters. ``oracle`` adds maps made
    of the interventions themselves: what is best is not 1 in every column.

    Cost: 2^parts forwards and one per background object for each image, once for all methods; for each method at most
    four explanations of an image.
    """
    vision_model = wrap(model)
    hows = named(
        (recommended_method("quick", vision_model), *defaults.evaluation_methods(vision_model.has_residual_stream))
        if methods is None
        else methods
    )
    heeded([how for how in hows.values() if isinstance(how, Method)], None, output)
    output = "logit" if output is None else output
    config = EvaluationConfig(output=output, interpolation=interpolation, seed=seed)  # bad words before the work
    if controls:
        hows = {**hows, **{name: get_method(name) for name in defaults.CONTROLS if name not in hows}}
    if oracle and _ORACLE in hows:
        raise VitreousError(f"the method {_ORACLE} is named twice")
    levels = _levels(thresholds, fixed)
    if not 0 < share < 1:
        raise VitreousError(f"share={share} must lie between 0 and 1")
    source = _source(scenes, vision_model)
    size = vision_model.preprocess.size
    config = with_batch_sizes(config, vision_model, size, batch_size, memory_gb)
    plan = EvaluationPlan(hows, {}, image_shape_of(vision_model, size), config)
    run = _Run(vision_model, plan, source, share, window(source.size, dilation), interpolation, oracle)
    with track_progress(progress, "states") as tell:
        run.tell = tell
        for group in batched(range(len(source.names)), plan.config.images_per_unit):
            run.take(range(group[0], group[-1] + 1))
    return run.result(tuple(hows), levels, n_bootstrap, seed)


@dataclass
class _Run:
    """One run, some images at a time; of each, only numbers stay."""

    view: VisionModel
    plan: EvaluationPlan
    source: Source
    share: float
    wide: int
    upsample: str
    oracle: bool
    tell: Progress | None = None

    def __post_init__(self) -> None:
        source = self.source
        if self.view.num_classes != len(source.variants):
            known = len(source.variants)
            raise VitreousError(
                f"{self.view.name} has {self.view.num_classes} classes, not the {known} of {source.what}"
            )
        self.pairs = disjoint_pairs(source.variants)
        self.engine = BatchRunner(self.view, self.plan.config, self._tick)
        self.facts: list[Interventions] = []
        self.found: dict[str, list[dict[str, Importances]]] = {}
        self.flags: dict[str, list[Array]] = {}
        self.objects_seen, self.done, self.explaining, self.began = 0, 0, 0.0, time.perf_counter()
        self.total = sum(2 ** len(source.parts) + len(source.objects(i)) for i in range(len(source.names)))

    @property
    def slots(self) -> int:
        return len(self.source.parts) + self.source.most_objects

    def _tick(self, states: int) -> None:
        self.done += states
        if self.tell is not None and states:
            self.tell(self.done, self.total)

    def take(self, images: range) -> None:
        """Run the interventions of some images, explain them, and read the maps."""
        facts = self._interventions(images)
        labels, predicted = facts.labels, facts.predicted
        pairs = np.where(self.pairs[labels] < 0, labels[:, None], self.pairs[labels])
        classes = dict(zip(_MODES, (labels, predicted, pairs[:, 0], pairs[:, 1]), strict=True))
        began = time.perf_counter()
        maps = self._maps(images, classes)
        self.explaining += time.perf_counter() - began
        self._read(images, facts, classes, maps)
        self.facts.append(facts)

    def _interventions(self, images: range) -> Interventions:
        source, everything = self.source, 2 ** len(self.source.parts) - 1
        changes = [Change(image, kept) for image in images for kept in range(everything + 1)]
        changes += [Change(image, everything, place) for image in images for place in source.objects(image)]
        kept = np.full((len(images), everything + 1, self.view.num_classes), np.nan)
        without = np.full((len(images), source.most_objects, self.view.num_classes), np.nan)
        for some in batched(changes, self.engine.batch_size):
            logits = self.engine.forward(self._inputs(some)).double().cpu().numpy()
            for change, row in zip(some, logits, strict=True):
                place = change.image - images.start
                if change.without < 0:
                    kept[place, change.kept] = row
                else:
                    without[place, change.without] = row
        return Interventions(source.labels[images.start : images.stop], kept, without, source.variants, self.share)

    def _inputs(self, changes: Sequence[Change]) -> Tensor:
        """Return images as the model takes them."""
        pictures, how = self.source.images(changes).to(self.view.device), self.view.preprocess
        if tuple(pictures.shape[2:]) != how.size:
            pictures = nn.functional.interpolate(pictures, how.size, mode="bilinear", antialias=True)
        return self.view.cast(how.normalize(pictures))

    def _maps(self, images: range, classes: Mapping[str, Array]) -> dict[str, Maps]:
        everything = 2 ** len(self.source.parts) - 1
        clean = [
            self._inputs(some) for some in batched([Change(i, everything) for i in images], self.engine.batch_size)
        ]
        inputs = torch.cat(clean)
        samples = [
            Sample(LoadedImage(input_, _NOTHING, self.source.names[image]), image)
            for image, input_ in zip(images, inputs, strict=True)
        ]
        explaining = Explaining(self.view, self.plan, samples, inputs, self._tick)
        wanted = {mode: torch.from_numpy(of).to(self.view.device) for mode, of in classes.items()}
        made = explaining.maps(wanted)
        smaller = replace(self.plan.config, attribution_batch=explaining.inner.size)
        self.plan = replace(self.plan, config=smaller)  # too much once is not tried again
        return made

    def _read(
        self, images: range, facts: Interventions, classes: Mapping[str, Array], maps: Mapping[str, Maps]
    ) -> None:
        side = (self.source.size, self.source.size)
        names = [*maps, *([_ORACLE] if self.oracle else [])]
        values = {name: np.empty((len(images), len(_MODES), self.slots)) for name in names}
        totals = {name: np.empty((len(images), len(_MODES))) for name in names}
        own = {name: map_.values.double().cpu().numpy() for name, map_ in maps.items()}
        falls = np.stack([facts.drops(classes[mode]) for mode in _MODES], axis=1)
        for place, seen in enumerate(self.source.seen(images)):
            self.objects_seen += int(seen.masks[seen.owners >= len(self.source.parts)].any(axis=(1, 2)).sum())
            reader = Reader(seen, self.slots, self.wide)
            for name in names:
                if name in maps:
                    rows = [maps[name].rows[mode][place] for mode in _MODES]
                    fine = enlarged(own[name][rows], side, self.upsample)
                else:
                    fine = reader.oracle(falls[place])
                values[name][place], totals[name][place] = reader.importances(_finite(fine))
        for name in names:
            read = {mode: Importances(values[name][:, m], totals[name][:, m]) for m, mode in enumerate(_MODES)}
            self.found.setdefault(name, []).append(read)
            self.flags.setdefault(name, []).append(_flags(maps.get(name), len(images)))

    def result(self, methods: tuple[str, ...], levels: Array, samples: int, seed: int) -> FunnyBirdsResult:
        """Put the numbers of all images together."""
        facts = Interventions(
            np.concatenate([fact.labels for fact in self.facts]),
            np.concatenate([fact.kept for fact in self.facts]),
            np.concatenate([fact.without for fact in self.facts]),
            self.source.variants,
            self.share,
        )
        if isinstance(self.source, Folder) and any(self.source.counts) and not self.objects_seen:
            text = (
                "no background object is seen in any part map, so that none is ever important: are these its colours?"
            )
            warnings.warn(text, VitreousWarning, stacklevel=3)
        names = (*methods, *([_ORACLE] if self.oracle else []))
        pairs, apart = self.pairs[facts.labels, 0] >= 0, facts.told_apart(self.pairs)
        return FunnyBirdsResult(
            images=tuple(self.source.names),
            methods=names,
            thresholds=levels[:-1],
            fixed=float(levels[-1]),
            accuracy=facts.accuracy(),
            background=facts.background(),
            found={name: self._found(name, facts, levels) for name in names},
            degenerate={name: self._degenerate(name) for name in names},
            skipped={
                "csdc": int((facts.accuracy() == 0).sum()),
                "d": int((~facts.irrelevant().any(axis=1)).sum()),
                "ts, no pair of classes": int((~pairs).sum()),
                "ts, model does not tell the pair apart": int((pairs & ~apart).sum()),
            },
            plan=self._record(facts),
            samples=samples,
            seed=seed,
        )

    def _joined(self, name: str, mode: str) -> Importances:
        parts = [each[mode] for each in self.found[name]]
        return Importances(np.concatenate([p.values for p in parts]), np.concatenate([p.totals for p in parts]))

    def _found(self, name: str, facts: Interventions, levels: Array) -> Found:
        target, pred, one, other = (self._joined(name, mode) for mode in _MODES)
        curves = [
            facts.data_check(target, levels),
            facts.preservation(pred, levels),
            facts.deletion(pred, levels),
            facts.distractibility(target, levels),
        ]
        return Found(
            np.stack(curves, axis=1),
            facts.single_deletion(target),
            facts.target_sensitivity(one, other, self.pairs),
        )

    def _degenerate(self, name: str) -> dict[str, int]:
        codes = np.concatenate(self.flags[name])
        counts = {kind: int((codes == code).any(axis=1).sum()) for code, kind in enumerate(FLAGS) if code}
        vacuous = self._joined(name, "target").vacuous | self._joined(name, "pred").vacuous
        return {**counts, "total not positive": int(vacuous.sum())}

    def _record(self, facts: Interventions) -> dict[str, Any]:
        plan, source = self.plan, self.source
        whole = facts.whole(facts.labels)
        return {
            "model": self.view.name,
            "scenes": source.what,
            "images": len(source.names),
            "parts": list(source.parts),
            "size": source.size,
            "states": sum(self.engine.states.values()),
            "methods": plan.to_json()["methods"],
            "dilation": self.wide,
            "share": self.share,
            "interpolation": self.upsample,
            "output": plan.config.output,
            "seed": plan.config.seed,
            "images_per_unit": plan.config.images_per_unit,
            "attribution_batch": plan.config.attribution_batch,
            "forward_batch": plan.config.forward_batch,
            "logits_not_positive": int((whole <= 0).sum()),
            "device": self.view.device.type,
            "dtype": str(self.view.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "seconds": {"total": time.perf_counter() - self.began, "explaining": self.explaining},
            "versions": {"vitreous": __version__, "torch": torch.__version__},
        }


def _flags(maps: Maps | None, count: int) -> Array:
    """Return the codes of the maps of the true and the predicted class, ``[n, 2]``."""
    if maps is None:
        return np.zeros((count, 2), np.int8)
    codes = flag(maps.values).cpu().numpy()
    return np.stack([codes[maps.rows[mode]] for mode in _MODES[:2]], axis=1)


def _finite(maps: Array) -> Array:
    """Return maps with NaN everywhere where anything is not finite: such a map is left out."""
    bad = ~np.asarray(np.isfinite(maps).all(axis=(1, 2)))
    return np.where(bad[:, None, None], np.nan, maps)


def _levels(thresholds: Sequence[float], fixed: float) -> Array:
    """Return the thresholds, and the fixed one behind them."""
    try:
        levels = np.array([*thresholds, fixed], np.float64)
    except (TypeError, ValueError):
        raise VitreousError(f"thresholds={thresholds!r:.60} are not numbers") from None
    if len(levels) < 2 or not ((levels >= 0) & (levels < 1)).all():
        raise VitreousError("thresholds and fixed are shares of a map's total, from 0 to below 1, one or more")
    return levels


def _source(given: Any, model: VisionModel) -> Source:
    if given is None:
        given = World(n=50)
    if isinstance(given, str | Path):
        return Folder.of(Path(given))
    if isinstance(given, World) or (isinstance(given, list | tuple) and all(isinstance(e, Scene) for e in given)):
        return Scenes.of(given, model.preprocess.size[0], model.device)
    if all(hasattr(given, name) for name in ("variants", "seen", "most_objects")):
        source: Source = given
        return source
    raise VitreousError(f"{given!r:.60} is neither a World, nor a list of scenes, nor a folder")
