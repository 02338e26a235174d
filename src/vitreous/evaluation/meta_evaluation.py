"""Which runs a trial takes: every seed, other substrates, maps that are made again, and what they cost.

``trial``: every metric judges maps whose worth is known, and is judged by that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitreous import __version__
from vitreous.errors import VitreousError, one_line
from vitreous.evaluation.config import forwards_per_image
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.meta_maps import CENTRE, MIXES, ORACLE, STRENGTHS, Known, Recalled, closeness, known, ladder
from vitreous.evaluation.meta_statistics import CORE, Parts, judged, set_aside
from vitreous.methods import compute_attributions, get_method, to_grid
from vitreous.metrics import ImageShape, Metric, Reattribution, get_metric
from vitreous.metrics import list_metrics as all_metrics
from vitreous.models import VisionModel, wrap
from vitreous.models.registry import device_of
from vitreous.progress import Progress, track_progress
from vitreous.registry import check_at_least
from vitreous.results.diagnostics import MetaEvaluation, Tried
from vitreous.tracing import Context, Target
from vitreous.world.models import ADAPTER

__all__ = [
    "Course",
    "courses",
    "judges_of",
    "refusal",
    "meta_evaluate",
]

SUBSTRATES = ("black", "zero_norm", "mean_channel", "blur_tv", "uniform_norm")
"""Tried in this order, those that a metric has already left out."""


@dataclass(frozen=True, eq=False)
class Course:
    """One evaluation: some metrics, some maps, one seed. ``substrates`` names what each metric puts in, if not its own.

    With ``again``, maps are handed in as explainers that can be asked about other images.
    """

    judges: Mapping[str, Metric]
    maps: tuple[str, ...]
    seed: int = 0
    again: bool = False
    baselines: Mapping[str, str] = field(default_factory=dict)

    def states(self, image_shape: ImageShape) -> int:
        """Return how many states each scene takes, if the explained class is the true one."""
        requests = [request for metric in self.judges.values() for request in metric.requests(image_shape).values()]
        return forwards_per_image(requests, image_shape, len(self.maps))


def judges_of(given: Any) -> dict[str, Metric]:
    """Return the metrics that are to be tried, by their shortest spelling; all that there are, if none is named."""
    several = [info.name for info in all_metrics()] if given is None else given
    several = several if isinstance(several, list | tuple) else [several]
    judges = {}
    for each in several:
        judge = get_metric(each)
        if judge.spec in judges:
            raise VitreousError(f"the metric {judge.spec} is named twice")
        judges[judge.spec] = judge
    if not judges:
        raise VitreousError("there is nothing to try: give at least one metric")
    return judges


def refusal(judge: Metric, image_shape: ImageShape) -> str | None:
    """Return why maps of scenes cannot put a metric on trial, or ``None`` where they can."""
    try:
        needs = judge.requests(image_shape).values()
    except VitreousError as error:
        return f"cannot be run here: {one_line(str(error))}"
    again = [need for need in needs if isinstance(need, Reattribution)]
    if any(need.under is not None for need in again):
        return "compares maps of two models; a map of the scene has no second model"
    if any(need.target != "same" for need in again):
        return "compares maps of two classes; a map of the scene has one"
    if any(need.images is None for need in again):
        return "compares maps of two seeds; a map of the scene has none"
    return None


def courses(judges: Mapping[str, Metric], image_shape: ImageShape, seeds: int, baselines: int) -> Iterator[Course]:
    """Yield the runs: the first seed with all maps, the others and other substrates without the mixes."""
    again = {label: judge.num_reattributions(image_shape) > 0 for label, judge in judges.items()}
    for made_again in (False, True):
        some = {label: judge for label, judge in judges.items() if again[label] is made_again}
        if some:
            yield Course(some, (*CORE, *MIXES), 0, made_again)
            yield from (Course(some, CORE, seed, made_again) for seed in range(1, seeds))
    changed = {label: _changed(judge, baselines) for label, judge in judges.items() if not again[label]}
    for turn in range(baselines):
        others = {label: each[turn] for label, each in changed.items() if turn < len(each)}
        if others:
            names = {label: name for label, (name, _) in others.items()}
            yield Course({label: judge for label, (_, judge) in others.items()}, CORE, baselines=names)


def _asks_again(judge: Metric, image_shape: ImageShape) -> bool:
    return judge.num_reattributions(image_shape) > 0


def _changed(judge: Metric, count: int) -> list[tuple[str, Metric]]:
    """Return the metric on other substrates, as many as there are up to ``count``; none, if it puts nothing in."""
    names = [name for name in judge.settings if name == "baseline" or name.endswith("_baseline")]
    own = {judge.settings[name] for name in names}
    made: list[tuple[str, Metric]] = []
    for other in SUBSTRATES:
        if names and other not in own and len(made) < count:
            try:
                made.append((other, type(judge)(**{**judge.settings, **dict.fromkeys(names, other)})))
            except VitreousError:  # a substrate that this metric does not take
                continue
    return made


SAMPLES = 2000
_log = logging.getLogger(__name__)


def meta_evaluate(
    metrics: Sequence[str | Metric] | str | Metric | None = None,
    *,
    model: str | VisionModel | nn.Module = "world",
    scenes: int = 24,
    seeds: int = 2,
    baselines: int = 2,
    output: str = "logit",
    start: int = 0,
    shortcut: bool = False,
    device: str = "auto",
    batch_size: int | None = None,
    memory_gb: float | None = None,
    precision: str = "float32",
    n_bootstrap: int = SAMPLES,
    progress: Progress | bool | None = None,
) -> MetaEvaluation:
    """Put metrics on trial in the world, where the truth is known; all of them, unless some are named.

    Each metric judges the same maps of ``scenes`` test scenes: the oracle (what removing each thing really costs the
    model, by ``value`` ``"logit"`` or ``"prob"``), the oracle made worse in known ways, the centre and random maps. It
    passes if it sees that order. ``seeds`` runs differ in ties, masks and noise; metrics that put something in the
    place of removed pixels are tried on further ``substrates``. ``start``: the first scene; ``shortcut``: scenes with a
    marker. ``samples`` of the bootstrap. What it will cost is logged before the work.
    """
    for name, number, least in (("scenes", scenes, 2), ("seeds", seeds, 1), ("baselines", baselines, 0)):
        check_at_least(name, number, least)
    vision_model = _bundled(model, device) if isinstance(model, str) else wrap(model)
    judges = judges_of(metrics)
    with track_progress(progress, "states") as tell:
        begun = time.perf_counter()
        scenery = known(vision_model, scenes, start, output, shortcut)
        court = _Court(
            vision_model,
            scenery,
            n_bootstrap,
            {"batch_size": batch_size, "memory_gb": memory_gb, "precision": precision},
            tell,
        )
        fit, aside = court.sorted_out(judges)
        plan = list(courses(fit, court.image_shape, seeds, baselines)) if fit else []
        court.announce(plan)
        tables = [(course, court.hold(course)) for course in plan]
    rows = {**aside, **{label: court.verdict(label, judge, tables) for label, judge in fit.items()}}
    return MetaEvaluation(
        tuple(rows[label] for label in judges),
        len(scenery),
        scenery.left_out,
        court.closeness,
        {
            "model": vision_model.name,
            "device": vision_model.device.type,
            "value": output,
            "start": start,
            "shortcut": shortcut,
            "seeds": seeds,
            "substrates": baselines,
            "precision": precision,
            "samples": n_bootstrap,
            "strengths": {kind: list(pair) for kind, pair in STRENGTHS.items()},
            "states": court.done,
            "forwards_for_the_oracle": scenery.forwards,
            "seconds": time.perf_counter() - begun,
            "versions": {"vitreous": __version__, "torch": torch.__version__},
        },
    )


@dataclass
class _Court:
    """The scenes and their maps, before which all metrics come."""

    view: VisionModel
    scenes: Known
    samples: int
    how: Mapping[str, Any]
    tell: Progress | None
    done: int = 0
    total: int | None = None
    maps: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        side, tokens = self.scenes.owner.shape[-1], self.view.grid(self.scenes.inputs[:1])
        self.image_shape = ImageShape((side, side), tokens, self.view.depth)
        self.maps = ladder(self.scenes, tokens)
        self.maps[CENTRE] = self._centre().expand(len(self.scenes), -1, -1)
        self.closeness = closeness({name: self.maps[name] for name in (*CORE, *MIXES)})
        self.recalled = {name: Recalled(name, self.scenes, tokens) for name in self.maps if name != CENTRE}

    def sorted_out(self, judges: Mapping[str, Metric]) -> tuple[dict[str, Metric], dict[str, Tried]]:
        """Return the metrics that can be tried, after a rehearsal on one scene, and rows for those that cannot."""
        why: dict[str, str] = {}
        for label, judge in judges.items():
            reason = refusal(judge, self.image_shape)
            if reason is not None:
                why[label] = reason
        fit = {label: judge for label, judge in judges.items() if label not in why}
        for course in courses(fit, self.image_shape, 1, 0) if fit else ():
            if self._rehearsed(course.judges, course.again) is not None:
                for label, judge in course.judges.items():
                    reason = self._rehearsed({label: judge}, course.again)
                    if reason is not None:
                        why[label] = f"cannot be run here: {reason}"
        aside = {label: set_aside(label, judges[label], reason) for label, reason in why.items()}
        return {label: judge for label, judge in judges.items() if label not in aside}, aside

    def announce(self, plan: Sequence[Course]) -> None:
        """Log what the trial will cost, at the speed of a few forwards."""
        few, begun = self.scenes.inputs[:16], time.perf_counter()
        with torch.no_grad():
            self.view.logits(few).cpu()
        rate = len(few) / (time.perf_counter() - begun)
        self.total = sum(course.states(self.image_shape) for course in plan) * len(self.scenes)
        labels = {label for course in plan for label in course.judges}
        _log.info(
            "trial of %d metrics on %d scenes: about %s forwards, %s at %.0f a second",
            len(labels),
            len(self.scenes),
            f"{self.total:,}",
            _spoken(self.total / rate),
            rate,
        )

    def hold(self, course: Course) -> dict[str, Parts]:
        """Run one course; return the parts of every map, by metric."""
        source: Mapping[str, Any] = {**self.recalled, CENTRE: CENTRE} if course.again else self.maps
        given = {name: source[name] for name in course.maps}
        before = self.done

        def follow(done: float, total: int | None) -> None:
            self.done = before + int(done)
            if self.tell is not None:
                self.tell(self.done, None if self.total is None else max(self.total, self.done))

        table = self._evaluated(course.judges, given, slice(None), course.seed, follow)
        names = {label: judge.spec for label, judge in course.judges.items()}
        return {label: {name: table.parts[name, names[label]] for name in course.maps} for label in names}

    def verdict(self, label: str, judge: Metric, tables: Sequence[tuple[Course, Mapping[str, Parts]]]) -> Tried:
        """Return what the runs say about one metric."""
        mine = [(course, parts[label]) for course, parts in tables if label in parts]
        seeds = [parts for course, parts in mine if not course.baselines]
        others = {course.baselines[label]: parts for course, parts in mine if course.baselines}
        try:
            return judged(label, judge, seeds, others, self.samples)
        except VitreousError as error:
            return set_aside(label, judge, str(error))

    def _rehearsed(self, judges: Mapping[str, Metric], again: bool) -> str | None:
        """Try metrics on one map of one scene; return what goes wrong."""
        given = {ORACLE: (self.recalled if again else self.maps)[ORACLE]}
        try:
            self._evaluated(judges, given, slice(1), 0, None)
        except Exception as error:  # whatever is wrong with one metric, the others go on
            return one_line(str(error) if isinstance(error, VitreousError) else f"{type(error).__name__}: {error}")[
                :200
            ]
        return None

    def _evaluated(
        self,
        judges: Mapping[str, Metric],
        given: Mapping[str, Any],
        which: slice,
        seed: int,
        follow: Progress | None,
    ) -> Any:
        return evaluate(
            self.view,
            self.scenes.inputs[which].cpu(),
            dict(given),
            list({judge.spec: judge for judge in judges.values()}.values()),
            labels=self.scenes.labels[which],
            annotations=self.scenes.annotations[which],
            controls=False,
            seed=seed,
            progress=follow,
            **self.how,
        )

    def _centre(self) -> Tensor:
        context = Context(self.view, self.scenes.inputs[:1], Target(classes=torch.zeros(1, dtype=torch.int64)))
        (found,) = compute_attributions(context, [get_method(CENTRE)])
        return to_grid(found.map, "pixel", self.view, context.inputs).float().cpu()


def _bundled(name: str, device: str) -> VisionModel:
    return wrap(ADAPTER.load(name).to(device_of(device)), name=name)


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(1, round(seconds))} seconds"
    return f"about {seconds / 60:.0f} minutes" if seconds < 5400 else f"about {seconds / 3600:.1f} hours"
