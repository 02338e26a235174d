"""Marks and flags: what a reader should know before believing a cell of the table.

A method that asks the model about images with parts removed, in the very way in which a metric then removes them, has
seen the exam. That is no mistake, but it is an advantage over methods that have not.

All statistics of a table in one object, as plain data and as rows of text.

One model on one data set with everything that is said about it: table, statistics, and what a paper printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vitreous.benchmark.collect import Gathered
from vitreous.benchmark.protocol import Protocol, Published
from vitreous.benchmark.ranking import Correlation, Ranks, Spread, correlations, ranked, spread
from vitreous.benchmark.significance import LEVEL, Compared, compared, pairs_of
from vitreous.errors import VitreousError, nearest
from vitreous.methods import Method
from vitreous.methods import get_method as method_of
from vitreous.metrics import ImageShape, Metric
from vitreous.metrics.baselines import DROP
from vitreous.metrics.curves import Array
from vitreous.registry.defaults import CONTROLS
from vitreous.results import ScoreTable
from vitreous.results.storage import plain

__all__ = [
    "Finding",
    "Flag",
    "PERTURBS",
    "SCHEMA",
    "SHARED",
    "RunStatistics",
    "flags",
    "marks",
    "own_perturbation",
]

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

_USUAL = ImageShape((224, 224), (14, 14))
_NOT_FINE = ("fails", "blind")


@dataclass(frozen=True)
class Flag:
    """One thing to know; ``method`` or ``metric`` is empty where it holds for all of them."""

    kind: str
    method: str
    metric: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


def own_perturbation(method: Method, metric: Metric) -> str | None:
    """Say what a method, or a part of it, shares with the perturbation of a metric; ``None`` if nothing."""
    removed = _removals(metric)
    shared: dict[str, list[str]] = {}
    for part in method.components():
        what = _perturbed(part)
        if what in removed:
            shared.setdefault(what, []).append(part.info.name)
    told = [f"{SHARED[what]} ({', '.join(dict.fromkeys(names))})" for what, names in shared.items()]
    return "; ".join(told) or None


def _perturbed(part: Method) -> str:
    """Return what one method, its parts aside, shows the model."""
    known = PERTURBS.get(part.info.name, "")
    if isinstance(known, str):
        return known
    return DROP if getattr(part, "drop", False) else known[part.fill]  # type: ignore[attr-defined]


def _removals(metric: Metric) -> set[str]:
    """Return what takes the place of what a metric removes, in all its states."""
    requests = metric.requests(_USUAL).values()
    return set().union(*(request.baselines(_USUAL) for request in requests)) & set(SHARED)


def marks(methods: Mapping[str, Method], metrics: Mapping[str, Metric]) -> tuple[Flag, ...]:
    """Return a mark for every method and metric that share a perturbation."""
    found = (
        (name, label, own_perturbation(how, judge)) for name, how in methods.items() for label, judge in metrics.items()
    )
    return tuple(Flag("own perturbation", name, label, text) for name, label, text in found if text is not None)


def flags(table: ScoreTable, tests: Iterable[Compared] = (), chance: str = "random") -> tuple[Flag, ...]:
    """Return what is wrong or weak: degenerate maps, metrics that failed their trial, methods no better than chance."""
    return (*_degenerate(table), *_trials(table), *_no_better(tests, chance))


def _degenerate(table: ScoreTable) -> Sequence[Flag]:
    counts = {name: {kind: n for kind, n in table.degenerate.get(name, {}).items() if n} for name in table.methods}
    return [
        Flag(
            "degenerate maps",
            name,
            "",
            ", ".join(f"{n} {kind}" for kind, n in own.items()) + f" of {len(table.images)}",
        )
        for name, own in counts.items()
        if own
    ]


def _trials(table: ScoreTable) -> Sequence[Flag]:
    found = []
    for name, told in table.trial.items():
        if told is None or told.verdict == "not tried":
            found.append(Flag("trial", "", name, "no trial has seen this metric"))
        elif told.verdict in _NOT_FINE:
            found.append(Flag("trial", "", name, str(told)))
    return found


def _no_better(tests: Iterable[Compared], chance: str) -> Sequence[Flag]:
    words = {"worse": f"worse than {chance}", "not told apart": f"not told apart from {chance}"}
    return [
        Flag(f"no better than {chance}", each.one, each.metric, words[each.word])
        for each in tests
        if each.other == chance and each.word in words
    ]


SCHEMA = "vitreous.statistics/1"


@dataclass(frozen=True, eq=False)
class RunStatistics:
    """What can be said about a table beside its means: tests, ranks, correlations, seeds, marks and flags.

    ``notes`` say in words what could not be done, and why.
    """

    table: ScoreTable
    reference: str | None
    chance: str
    tests: tuple[Compared, ...]
    ranks: Mapping[str, Ranks]
    correlations: tuple[Correlation, ...]
    seeds: tuple[Spread, ...]
    marks: tuple[Flag, ...]
    flags: tuple[Flag, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        table: ScoreTable,
        reference: str | None = None,
        *,
        chance: str = "random",
        seeds: Mapping[tuple[str, str], Array] | None = None,
        methods: Mapping[str, Method] | None = None,
    ) -> RunStatistics:
        """Compute them all.

        Methods are tested against ``chance``, where the table has it, and against ``reference``. ``seeds`` are scores
        ``[seeds, images]`` by method and metric (``seed_scores``). ``methods`` are those behind the names, for the
        marks; without them, what the table's plan says.
        """
        if not (table.methods and table.metrics and table.images):
            raise VitreousError("a table without methods, metrics or images has no statistics")
        pairs = pairs_of(table.methods, chance, reference)
        tests = tuple(compared(table, pairs))
        spreads, unknown = _spreads(seeds or {}, table)
        known = _methods(table) if methods is None else dict(methods)
        return cls(
            table=table,
            reference=reference,
            chance=chance,
            tests=tests,
            ranks={metric: ranked(table, metric) for metric in table.metrics},
            correlations=correlations(table),
            seeds=spreads,
            marks=marks(known, table.judges),
            flags=flags(table, tests, chance),
            notes=(*_notes(table, tests, pairs, chance), *_incomplete(seeds or {}), *unknown),
        )

    @property
    def units(self) -> int:
        """How many images, or groups of them, there are."""
        return len(self.table.images) if self.table.groups is None else len(set(self.table.groups))

    @cached_property
    def _tests(self) -> dict[tuple[str, str, str], Compared]:
        return {(each.one, each.other, each.metric): each for each in self.tests}

    def test(self, one: str, other: str, metric: str) -> Compared | None:
        """Return the test of a method against chance or the reference, if there is one."""
        return self._tests.get((one, other, metric))

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; what is undefined is ``None``."""
        each = {name: getattr(self, name) for name in ("tests", "correlations", "seeds", "marks", "flags")}
        data = {
            "schema": SCHEMA,
            "images": len(self.table.images),
            "units": self.units,
            "methods": self.table.methods,
            "metrics": self.table.metrics,
            "chance": self.chance,
            "reference": self.reference,
            "level": LEVEL,
            "resampling": {"samples": self.table.samples, "seed": self.table.seed},
            "ranks": {metric: own.to_json() for metric, own in self.ranks.items()},
            **({"seed_sd": self._deviations} if self.table.seed_sd else {}),
            **{name: [one.to_json() for one in many] for name, many in each.items()},
            "notes": self.notes,
        }
        plainly: dict[str, Any] = plain(data)
        return plainly

    @property
    def _deviations(self) -> list[dict[str, Any]]:
        """Return the standard deviation between the means of single seeds, cell by cell."""
        return [{"method": name, "metric": metric, "sd": sd} for (name, metric), sd in self.table.seed_sd.items()]

    # -- rows for printing, a head first -----------------------------------------------------------------

    def rows(self, metric: str) -> list[list[str]]:
        """Return one row per method: score, spread of seeds, mean rank, and how it compares with the others."""
        if metric not in self.ranks:
            raise VitreousError(f"no metric {metric!r} in these statistics")
        others = list(dict.fromkeys(each.other for each in self.tests))
        several = bool(self.table.seed_sd)
        head = ["method", "score", *(["between seeds"] if several else []), "mean rank"]
        for other in others:
            head += [f"less {other}", "corrected p", "z", "detectable", f"than {other}"]
        rows = []
        for name in self.table.methods:
            row = [name, _digits(self.table.mean(name, metric))]
            row += [_digits(self.table.seed_sd[name, metric])] if several else []
            row.append(_digits(self.ranks[metric].of(name), 2))
            for other in others:
                row += _cells(self.test(name, other, metric))
            rows.append(row)
        return [head, *rows]

    def correlation_rows(self) -> list[list[str]]:
        """Return one row per pair of metrics."""
        head = ["metric", "metric", "rank correlation", "95 % interval", "methods"]
        body = [
            [c.one, c.other, _digits(c.value, 2), _between(c.low, c.high, 2), str(c.methods)] for c in self.correlations
        ]
        return [head, *body]

    def seed_rows(self) -> list[list[str]]:
        """Return one row per method and metric whose seeds are known: deviations, and the share of the seeds."""
        head = ["method", "metric", "seeds", "images", "sd of seeds", "sd of images", "sd of the rest"]
        head += ["standard error", "share of seeds", "with one seed", "clipped at zero"]
        body = []
        for s in self.seeds:
            sizes = [_digits(math.sqrt(each)) for each in (s.seed, s.image, s.rest)]
            shares = [_percent(each) for each in (s.share, s.share_of_one)]
            numbers = [*sizes, _digits(s.error), *shares]
            body.append([s.method, s.metric, str(s.seeds), str(s.images), *numbers, ", ".join(s.clipped)])
        return [head, *body]

    def flag_rows(self) -> list[list[str]]:
        """Return one row per mark and flag."""
        return [["what", "method", "metric", "why"]] + [
            [each.kind, each.method or "all", each.metric or "all", each.text] for each in (*self.marks, *self.flags)
        ]


def _methods(table: ScoreTable) -> dict[str, Method]:
    """Return the methods of ours behind the names of a table; those of others are not known to query anything."""
    found = {}
    for name, how in table.plan.get("methods", {}).items():
        try:
            if name in table.methods and "spec" in how:
                found[name] = method_of(how["spec"])
        except VitreousError:  # a table of other times, or of a plugin that is not here
            continue
    return found


def _spreads(seeds: Mapping[tuple[str, str], Array], table: ScoreTable) -> tuple[tuple[Spread, ...], list[str]]:
    found, notes = [], []
    for (method, metric), scores in seeds.items():
        table[method, metric]
        try:
            found.append(spread(scores, method, metric, table.groups))
        except VitreousError as error:
            notes.append(str(error))
    return tuple(found), notes


def _incomplete(seeds: Mapping[tuple[str, str], Array]) -> list[str]:
    """Say how many images lack the score of some seed, where others have it."""
    lacking = {cell: _lacks_a_seed(scores) for cell, scores in seeds.items()}
    cells = [cell for cell, lacks in lacking.items() if lacks.any()]
    if not cells:
        return []
    method, metric = max(cells, key=lambda cell: int(lacking[cell].sum()))
    most, images = int(lacking[method, metric].sum()), len(lacking[method, metric])
    text = (
        f"{len(cells)} of {len(seeds)} cells have images that lack the score of some seed, at most {most} of {images}"
    )
    return [f"{text} ({method}, {metric}): these count with the mean over the seeds that are there"]


def _lacks_a_seed(scores: Array) -> Array:
    """Return which images of ``[seeds, images]`` have a score with some seeds, and none with others."""
    missing = np.isnan(scores)
    return np.asarray(missing.any(axis=0) & ~missing.all(axis=0))


def _notes(table: ScoreTable, tests: tuple[Compared, ...], pairs: list[tuple[str, str]], chance: str) -> list[str]:
    """Say which tests there are, and which could not be."""
    notes = []
    if chance not in table.methods:
        notes.append(f"no method {chance!r} in this table: nothing is tested against it")
    if pairs:
        notes.append(f"p-values are corrected by Holm over the tests of a metric, {len(pairs)} at most")
    weak: dict[tuple[int, int], list[str]] = {}
    for metric in table.metrics:
        own = [each for each in tests if each.metric == metric and each.family]
        family = max((each.family for each in own), default=0)
        few = [each for each in own if each.units < 50 and family * 2.0 ** (1 - each.units) >= LEVEL]
        if few and len(few) == len(own):
            weak.setdefault((max(each.units for each in few), family), []).append(metric)
    what = "images" if table.groups is None else "groups of images"
    for (units, family), names in weak.items():
        whose = "all metrics" if len(table.metrics) == len(names) > 1 else ", ".join(names)
        notes.append(f"{whose}: {units} {what} are too few for {family} tests to tell anything apart at 5 %")
    return notes


def _cells(test: Compared | None) -> list[str]:
    if test is None:
        return ["", "", "", "", ""]
    gap = f"{_digits(test.difference)} {_between(test.low, test.high)}".strip()
    corrected = "" if math.isnan(test.corrected) else f"{test.corrected:.2g}"
    return [gap, corrected, _digits(test.z, 1), _digits(test.detectable), f"{test.word} {test.stars}".strip()]


def _digits(value: float, digits: int = 4) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _between(low: float, high: float, digits: int = 4) -> str:
    return "" if math.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


@dataclass(frozen=True, eq=False)
class Finding:
    """What was gathered, and the row that others are tested against."""

    gathered: Gathered
    protocol: Protocol
    reference: str | None

    @classmethod
    def of(cls, gathered: Gathered, protocol: Protocol, reference: str | None = None) -> Finding:
        """Take the reference that is asked for, or else the protocol's, where this model has that row."""
        known = gathered.table.methods
        if reference is not None and reference not in known:
            raise VitreousError(f"reference {reference!r} is no row of {gathered.label}{nearest(reference, known)}")
        usual = protocol.evaluation.reference
        return cls(gathered, protocol, reference or (usual if usual in known else None))

    @property
    def table(self) -> ScoreTable:
        return self.gathered.table

    @property
    def name(self) -> str:
        """The model, and the data where there are several sets."""
        return f"{self.gathered.label} on {self.gathered.data}" if self.gathered.data else self.gathered.label

    @property
    def empty(self) -> bool:
        return not (self.table.images and self.table.metrics)

    @cached_property
    def statistics(self) -> RunStatistics:
        return RunStatistics.of(self.table, self.reference, seeds=self.gathered.of_seeds)

    @cached_property
    def published(self) -> Mapping[tuple[str, str], Published]:
        """The printed cells of this model and data set, by method and metric."""
        own = (cell for cell in self.protocol.cells if cell.model == self.gathered.label)
        return {(c.method, c.metric): c for c in own if c.data == self.gathered.data}

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The methods that are no yardsticks."""
        return tuple(name for name in self.table.methods if name not in CONTROLS)

    def digits(self, metric: str) -> int:
        """Return how many decimals tell the scores of a metric apart: three digits of the largest."""
        means = [abs(self.table.mean(name, metric)) for name in self.table.methods]
        most = max((mean for mean in means if mean > 0), default=1.0)
        return min(6, max(1, 2 - math.floor(math.log10(most))))

    def order(self, metric: str) -> list[str]:
        """Return the methods that are no yardsticks and have a score, by mean rank."""
        return [name for name in self.statistics.ranks[metric].methods if name in self.rows]
