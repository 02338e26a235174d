"""All statistics of a table in one object, and what a reader should know before believing a cell of it.

A method that asks the model about images with parts removed, in the very way in which a metric then removes them, has
seen the exam. That is no mistake, but it is an advantage over methods that have not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitreous.benchmark.ranking import (
    VarianceComponents,
    correlate_metrics,
    rank_methods,
    variance_components,
)
from vitreous.benchmark.significance import CHANCE, LEVEL, PairedTest, compare_methods, pairs_of
from vitreous.errors import VitreousError
from vitreous.methods import Method, get_method
from vitreous.metrics import ImageShape
from vitreous.metrics.base import Metric
from vitreous.metrics.baselines import DROP
from vitreous.metrics.ranking import Array
from vitreous.results import ScoreTable
from vitreous.results.storage import to_plain

SCHEMA = "vitreous.statistics/1"
SHARED: Mapping[str, str] = {
    DROP: "tokens left out",
    "zero_norm": "pixels painted with the mean colour of the training set",
    "mean_channel": "pixels painted with the mean colour of the image",
    "blur_tv": "pixels blurred (Gaussian, 11 pixels)",
}
"""What methods and metrics may have in common, by the name that metrics have for it."""

_FILLS = {"zero": "zero_norm", "mean": "mean_channel", "blur": "blur_tv", "own": ""}

PERTURBS: Mapping[str, str | Mapping[str, str]] = {
    "tis": DROP,
    "refine": DROP,
    "rise": "zero_norm",
    "hsic": "zero_norm",
    "scorecam": "zero_norm",
    "occlusion": _FILLS,
    "lime": _FILLS,
    "kernel_shap": _FILLS,
    "vit_cx": "",
    "ablationcam": "",
    "atman": "",
}
"""What a method shows the model, by its name: a word of ``SHARED``, or one for each value of its ``fill`` (``drop``
leaves tokens out whatever the fill). Empty: something that no metric does (noise, a patch's own mean colour, channels,
attention). A method that is not here asks about the image itself, or follows gradients."""

_SHARES = ("error", "share", "share_of_one")
_EXAMPLE_SHAPE = ImageShape((224, 224), (14, 14))
_TOO_FEW = 50  # images below which it is looked at whether any test could find anything


@dataclass(frozen=True)
class Flag:
    """One thing to know; ``method`` or ``metric`` is empty where it holds for all of them."""

    kind: str
    method: str
    metric: str
    text: str


def shared_perturbation(method: Method, metric: Metric) -> str | None:
    """Say what a method, or a component of it, shares with the perturbation of a metric; ``None`` if nothing."""
    requests = metric.requests(_EXAMPLE_SHAPE).values()
    removals = {name for request in requests for name in request.baselines(_EXAMPLE_SHAPE)}
    shared: dict[str, dict[str, None]] = {}
    for component in method.components():
        baseline = _shown_baseline(component)
        if baseline in removals and baseline in SHARED:
            shared.setdefault(baseline, {})[component.info.name] = None
    return "; ".join(f"{SHARED[baseline]} ({', '.join(names)})" for baseline, names in shared.items()) or None


def _shown_baseline(component: Method) -> str:
    """Return what takes the place of what one method, its components aside, takes away."""
    baseline = PERTURBS.get(component.info.name, "")
    if isinstance(baseline, str):
        return baseline
    return DROP if getattr(component, "drop", False) else baseline[component.fill]  # type: ignore[attr-defined]


def _weak_points(table: ScoreTable, tests: Iterable[PairedTest]) -> list[Flag]:
    """Return degenerate maps, metrics that failed their meta-evaluation, and methods no better than chance."""
    flags = []
    for method in table.methods:
        counts = [f"{n} {kind}" for kind, n in table.degenerate.get(method, {}).items() if n]
        if counts:
            flags.append(Flag("degenerate maps", method, "", f"{', '.join(counts)} of {len(table.images)}"))
    for metric, verdict in table.meta_verdicts.items():
        if verdict is None or verdict.verdict == "not tried":
            flags.append(Flag("trial", "", metric, "no trial has seen this metric"))
        elif verdict.verdict in ("fails", "blind"):
            flags.append(Flag("trial", "", metric, str(verdict)))
    words = {"worse": f"worse than {CHANCE}", "not told apart": f"not told apart from {CHANCE}"}
    for test in tests:
        if test.other == CHANCE and test.word in words:
            flags.append(Flag(f"no better than {CHANCE}", test.one, test.metric, words[test.word]))
    return flags


class RunStatistics:
    """What can be said about a table beside its means: tests, ranks, correlations, seeds and flags.

    Methods are tested against ``CHANCE``, where the table has it, and against ``reference``. ``seeds`` are scores
    ``[seeds, images]`` by method and metric, and then where their variance comes from. ``shared`` are methods that
    perturb images as a metric does. ``notes`` say in words what could not be done, and why.
    """

    def __init__(
        self,
        table: ScoreTable,
        reference: str | None = None,
        seeds: Mapping[tuple[str, str], Array] | None = None,
    ) -> None:
        if not (table.methods and table.metrics and table.images):
            raise VitreousError("a table without methods, metrics or images has no statistics")
        pairs, scores = pairs_of(table.methods, reference), seeds or {}
        self.table, self.reference = table, reference
        self.tests = compare_methods(table, pairs)
        self.ranks = {metric: rank_methods(table, metric) for metric in table.metrics}
        self.correlations = correlate_metrics(table)
        self.seeds, without = _components(scores, table)
        self.shared = [
            Flag("own perturbation", name, label, text)
            for name, method in _methods(table).items()
            for label, metric in table.definitions.items()
            if (text := shared_perturbation(method, metric)) is not None
        ]
        self.flags = _weak_points(table, self.tests)
        self.notes = [*_test_notes(table, self.tests, len(pairs)), *_incomplete_seeds(scores), *without]
        self._tests = {(test.one, test.other, test.metric): test for test in self.tests}

    @property
    def units(self) -> int:
        """How many images, or groups of them, there are."""
        return len(self.table.images) if self.table.groups is None else len(set(self.table.groups))

    def test(self, one: str, other: str, metric: str) -> PairedTest | None:
        """Return the test of a method against chance or the reference, if there is one."""
        return self._tests.get((one, other, metric))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; what is undefined is ``None``."""
        table = self.table
        deviations = [{"method": name, "metric": metric, "sd": sd} for (name, metric), sd in table.seed_sd.items()]
        data: dict[str, Any] = to_plain(
            {
                "schema": SCHEMA,
                "images": len(table.images),
                "units": self.units,
                "methods": table.methods,
                "metrics": table.metrics,
                "chance": CHANCE,
                "reference": self.reference,
                "level": LEVEL,
                "resampling": {"samples": table.n_bootstrap, "seed": table.seed},
                "ranks": self.ranks,
                **({"seed_sd": deviations} if table.seed_sd else {}),
                "tests": [{**asdict(test), "word": test.word} for test in self.tests],
                "correlations": self.correlations,
                "seeds": [{**asdict(c), **{name: getattr(c, name) for name in _SHARES}} for c in self.seeds],
                "shared": self.shared,
                "flags": self.flags,
                "notes": self.notes,
            }
        )
        return data


def _methods(table: ScoreTable) -> dict[str, Method]:
    """Return the methods of ours behind the names of a table; external ones are not known to query anything."""
    methods = {}
    for name, record in table.plan.get("methods", {}).items():
        try:
            if name in table.methods and "spec" in record:
                methods[name] = get_method(record["spec"])
        except VitreousError:  # a table of other times, or of a plugin that is not here
            continue
    return methods


def _components(
    seeds: Mapping[tuple[str, str], Array], table: ScoreTable
) -> tuple[list[VarianceComponents], list[str]]:
    """Return where the variance of each cell comes from, and why some cells have no answer."""
    components, notes = [], []
    for (method, metric), scores in seeds.items():
        try:
            components.append(variance_components(scores, method, metric, table.groups))
        except VitreousError as error:
            notes.append(str(error))
    return components, notes


def _incomplete_seeds(seeds: Mapping[tuple[str, str], Array]) -> list[str]:
    """Say how many images lack the score of some seed, where others have it."""
    missing = {cell: np.isnan(scores) for cell, scores in seeds.items()}
    counts = {cell: int((gaps.any(axis=0) & ~gaps.all(axis=0)).sum()) for cell, gaps in missing.items()}
    cells = [cell for cell, count in counts.items() if count]
    if not cells:
        return []
    most = max(cells, key=lambda cell: counts[cell])
    lack = f"{len(cells)} of {len(seeds)} cells have images that lack the score of some seed"
    worst = f"at most {counts[most]} of {len(seeds[most][0])} ({', '.join(most)})"
    return [f"{lack}, {worst}: these count with the mean over the seeds that are there"]


def _weak_metrics(table: ScoreTable, tests: Iterable[PairedTest]) -> dict[tuple[int, int], list[str]]:
    """Return the metrics of which no test can find anything, by the number of images and of tests.

    The smallest p-value of n images is 2 ** (1 - n).
    """
    weak: dict[tuple[int, int], list[str]] = {}
    for metric in table.metrics:
        units = {test.units: test.family for test in tests if test.metric == metric and test.family}
        if units and all(n < _TOO_FEW and family * 2.0 ** (1 - n) >= LEVEL for n, family in units.items()):
            weak.setdefault((max(units), max(units.values())), []).append(metric)
    return weak


def _test_notes(table: ScoreTable, tests: Iterable[PairedTest], pairs: int) -> list[str]:
    """Say which tests there are, and which could not be."""
    notes = []
    if CHANCE not in table.methods:
        notes.append(f"no method {CHANCE!r} in this table: nothing is tested against it")
    if pairs:
        notes.append(f"p-values are corrected by Holm over the tests of a metric, {pairs} at most")
    noun = "images" if table.groups is None else "groups of images"
    for (count, family), names in _weak_metrics(table, tests).items():
        subject = "all metrics" if len(table.metrics) == len(names) > 1 else ", ".join(names)
        notes.append(f"{subject}: {count} {noun} are too few for {family} tests to tell anything apart at 5 %")
    return notes
