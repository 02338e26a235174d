"""One model on one data set, and each column and cell of its table: what report, explorer and notebook show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vitreous.benchmark.collect import RunScores
from vitreous.benchmark.protocol import Protocol, Published
from vitreous.benchmark.significance import CHANCE
from vitreous.benchmark.summary import RunStatistics
from vitreous.errors import VitreousError, nearest
from vitreous.registry.defaults import CONTROLS
from vitreous.results import ScoreTable


@dataclass(frozen=True)
class ScoreCell:
    """A method in a metric: its mean with interval, and how it compares.

    ``images`` have a score. ``word`` compares with chance (``better``, ``worse``, ``not told apart``; empty: not
    tested), with ``stars`` and the corrected ``p``. Methods that share one of the ``letters`` are not told apart by
    their mean ranks. ``shared`` is what the method has in common with the metric's perturbation, ``paper`` the printed
    number, ``seed_sd`` the deviation between seeds, where there are several.
    """

    mean: float
    lower: float
    upper: float
    images: int
    is_best: bool
    word: str
    stars: str
    p: float
    letters: str
    shared: str
    paper: float | None
    seed_sd: float | None

    def text(self, digits: int) -> str:
        """Return the cell as plain text."""
        sign = {"better": f"{self.stars} ", "worse": "▾ ", "not told apart": "≈ "}.get(self.word, "")
        interval = "" if math.isnan(self.lower) else f" [{self.lower:.{digits}f}, {self.upper:.{digits}f}]"
        best, shared = " (best)" if self.is_best else "", " ◆" if self.shared else ""
        return f"{sign}{self.mean:.{digits}f}{interval}{best}{shared}"


@dataclass(frozen=True)
class ScoreColumn:
    """A metric: which way is up, how many digits tell methods apart, the span of its intervals, and chance."""

    metric: str
    higher_is_better: bool
    digits: int
    span: tuple[float, float]
    chance: float
    verdict: str
    verdict_text: str


@dataclass(frozen=True, eq=False)
class ModelResult:
    """The scores of one model on one data set with everything that is said about them.

    ``reference`` is the row that others are tested against.
    """

    scores: RunScores
    protocol: Protocol
    reference: str | None

    @classmethod
    def of(cls, scores: RunScores, protocol: Protocol, reference: str | None = None) -> ModelResult:
        """Take the reference that is asked for, or else the protocol's, where this model has that row."""
        methods = scores.table.methods
        if reference is not None and reference not in methods:
            raise VitreousError(f"reference {reference!r} is no row of {scores.label}{nearest(reference, methods)}")
        usual = protocol.evaluation.reference
        return cls(scores, protocol, reference or (usual if usual in methods else None))

    @property
    def table(self) -> ScoreTable:
        return self.scores.table

    @property
    def name(self) -> str:
        """The model, and the data where there are several sets."""
        return f"{self.scores.label} on {self.scores.data}" if self.scores.data else self.scores.label

    @property
    def is_empty(self) -> bool:
        return not (self.table.images and self.table.metrics)

    @property
    def has_degenerate(self) -> bool:
        return any(sum(counts.values()) for counts in self.table.degenerate.values())

    @cached_property
    def statistics(self) -> RunStatistics:
        return RunStatistics(self.table, self.reference, self.scores.seed_scores)

    @cached_property
    def published(self) -> Mapping[tuple[str, str], Published]:
        """The printed cells of this model and data set, by method and metric."""
        names = (self.scores.label, self.scores.data)
        own = (cell for cell in self.protocol.cells if (cell.model, cell.data) == names)
        return {(cell.method, cell.metric): cell for cell in own}

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The methods that are no controls."""
        return tuple(name for name in self.table.methods if name not in CONTROLS)

    @cached_property
    def columns(self) -> tuple[ScoreColumn, ...]:
        return tuple(map(self.column, self.table.metrics))

    def column(self, metric: str) -> ScoreColumn:
        """Return what is shown above the cells of a metric."""
        table = self.table
        ends = [value for method in table.methods for value in table.interval(method, metric) if not math.isnan(value)]
        means = [abs(table.mean(method, metric)) for method in table.methods]
        largest = max((mean for mean in means if mean > 0), default=1.0)
        verdict = table.meta_verdicts[metric]
        return ScoreColumn(
            metric=metric,
            higher_is_better=table.higher_is_better[metric],
            digits=min(6, max(1, 2 - math.floor(math.log10(largest)))),  # three digits of the largest
            span=(min(ends), max(ends)) if ends else (0.0, 0.0),
            chance=table.mean(CHANCE, metric) if CHANCE in table.methods else math.nan,
            verdict="not tried" if verdict is None else verdict.verdict,
            verdict_text="no trial has seen this metric" if verdict is None else str(verdict),
        )

    def cell(self, method: str, metric: str) -> ScoreCell | None:
        """Return what is shown of a method in a metric; ``None`` where no image has a score."""
        table, statistics, published = self.table, self.statistics, self.published.get((method, metric))
        mean, (lower, upper) = table.mean(method, metric), table.interval(method, metric)
        if math.isnan(mean):
            return None
        test = statistics.test(method, CHANCE, metric)
        shared = (flag.text for flag in statistics.shared if (flag.method, flag.metric) == (method, metric))
        return ScoreCell(
            mean=mean,
            lower=lower,
            upper=upper,
            images=int((~np.isnan(table[method, metric])).sum()),
            is_best=method == table.best(metric),
            word="" if test is None or test.word == "not tested" else test.word,
            stars="" if test is None else test.stars,
            p=math.nan if test is None else test.corrected,
            letters=statistics.ranks[metric].letters(method),
            shared=next(shared, ""),
            paper=None if published is None else published.value,
            seed_sd=table.seed_sd.get((method, metric)),
        )

    def order(self, metric: str) -> list[str]:
        """Return the methods that are no controls and have a score, by mean rank."""
        return [name for name in self.statistics.ranks[metric].methods if name in self.rows]
