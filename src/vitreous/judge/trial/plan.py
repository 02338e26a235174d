"""Which runs a trial takes: every seed, other substrates, maps that are made again, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.errors import VitreousError, one_line
from vitreous.judge.trial.ladder import MIXES
from vitreous.judge.trial.verdict import CORE
from vitreous.metrics import Drawn, Explained, Geometry, Images, Masks, Metric, States, metric
from vitreous.metrics import metrics as all_metrics
from vitreous.metrics.states.layout import Layout

__all__ = ["Course", "courses", "judges_of", "refusal"]

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
    substrates: Mapping[str, str] = field(default_factory=dict)

    def states(self, geometry: Geometry) -> int:
        """Return how many states each scene takes, if the explained class is the true one."""
        needs = list(dict.fromkeys(need for judge in self.judges.values() for need in judge.needs(geometry)))
        own = Layout([need for need in needs if isinstance(need, States) and need.by == "map"], geometry).length
        own += sum(need.count for need in needs if isinstance(need, Drawn) and need.by == "map")
        shared = sum(need.count for need in needs if isinstance(need, Masks | Images))
        shared += sum(need.count for need in needs if isinstance(need, Drawn) and need.by != "map")
        orders = [need for need in needs if isinstance(need, States) and need.by != "map"]
        return 1 + shared + sum(Layout([need], geometry).length for need in orders) + own * len(self.maps)


def judges_of(given: Any) -> dict[str, Metric]:
    """Return the metrics that are to be tried, by their shortest spelling; all that there are, if none is named."""
    several = [info.name for info in all_metrics()] if given is None else given
    several = several if isinstance(several, list | tuple) else [several]
    judges = {}
    for each in several:
        judge = metric(each)
        if judge.spelling in judges:
            raise VitreousError(f"the metric {judge.spelling} is named twice")
        judges[judge.spelling] = judge
    if not judges:
        raise VitreousError("there is nothing to try: give at least one metric")
    return judges


def refusal(judge: Metric, geometry: Geometry) -> str | None:
    """Return why maps of scenes cannot put a metric on trial, or ``None`` where they can."""
    try:
        needs = judge.needs(geometry)
    except VitreousError as error:
        return f"cannot be run here: {one_line(str(error))}"
    again = [need for need in needs if isinstance(need, Explained)]
    if any(need.under is not None for need in again):
        return "compares maps of two models; a map of the scene has no second model"
    if any(need.target != "same" for need in again):
        return "compares maps of two classes; a map of the scene has one"
    if any(need.images is None for need in again):
        return "compares maps of two seeds; a map of the scene has none"
    return None


def courses(judges: Mapping[str, Metric], geometry: Geometry, seeds: int, substrates: int) -> Iterator[Course]:
    """Yield the runs: the first seed with all maps, the others and other substrates without the mixes."""
    again = {
        label: any(isinstance(need, Explained) for need in judge.needs(geometry)) for label, judge in judges.items()
    }
    for made_again in (False, True):
        some = {label: judge for label, judge in judges.items() if again[label] is made_again}
        if some:
            yield Course(some, (*CORE, *MIXES), 0, made_again)
            yield from (Course(some, CORE, seed, made_again) for seed in range(1, seeds))
    changed = {label: _changed(judge, substrates) for label, judge in judges.items() if not again[label]}
    for turn in range(substrates):
        others = {label: each[turn] for label, each in changed.items() if turn < len(each)}
        if others:
            names = {label: name for label, (name, _) in others.items()}
            yield Course({label: judge for label, (_, judge) in others.items()}, CORE, substrates=names)


def _asks_again(judge: Metric, geometry: Geometry) -> bool:
    return any(isinstance(need, Explained) for need in judge.needs(geometry))


def _changed(judge: Metric, count: int) -> list[tuple[str, Metric]]:
    """Return the metric on other substrates, as many as there are up to ``count``; none, if it puts nothing in."""
    names = [name for name in judge.settings if name == "substrate" or name.endswith("_substrate")]
    own = {judge.settings[name] for name in names}
    made: list[tuple[str, Metric]] = []
    for other in SUBSTRATES:
        if names and other not in own and len(made) < count:
            try:
                made.append((other, type(judge)(**{**judge.settings, **dict.fromkeys(names, other)})))
            except VitreousError:  # a substrate that this metric does not take
                continue
    return made
