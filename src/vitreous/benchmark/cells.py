"""One cell of a table of scores, and one column: what the report, the explorer and a notebook show of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vitreous.benchmark.protocol import Published
from vitreous.benchmark.summary import RunStatistics
from vitreous.results import ScoreTable

__all__ = ["ScoreCell", "ScoreColumn", "table_cell", "table_column"]


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


def table_cell(
    table: ScoreTable, statistics: RunStatistics, method: str, metric: str, published: Published | None = None
) -> ScoreCell | None:
    """Return a cell of a table; ``None`` where no image has a score."""
    mean, (lower, upper) = table.mean(method, metric), table.interval(method, metric)
    if math.isnan(mean):
        return None
    test = statistics.test(method, statistics.chance, metric)
    is_tested = test is not None and test.word != "not tested"
    shared = (flag.text for flag in statistics.shared if (flag.method, flag.metric) == (method, metric))
    return ScoreCell(
        mean=mean,
        lower=lower,
        upper=upper,
        images=int((~np.isnan(table[method, metric])).sum()),
        is_best=method == table.best(metric),
        word=test.word if test is not None and is_tested else "",
        stars=test.stars if test is not None else "",
        p=test.corrected if test is not None else math.nan,
        letters=statistics.ranks[metric].letters(method),
        shared=next(shared, ""),
        paper=None if published is None else published.value,
        seed_sd=table.seed_sd.get((method, metric)),
    )


def table_column(table: ScoreTable, statistics: RunStatistics, metric: str) -> ScoreColumn:
    """Return a column of a table."""
    ends = [value for method in table.methods for value in table.interval(method, metric) if not math.isnan(value)]
    means = [abs(table.mean(method, metric)) for method in table.methods]
    largest = max((mean for mean in means if mean > 0), default=1.0)
    verdict = table.trial[metric]
    return ScoreColumn(
        metric=metric,
        higher_is_better=table.higher_is_better[metric],
        digits=min(6, max(1, 2 - math.floor(math.log10(largest)))),  # three digits of the largest
        span=(min(ends), max(ends)) if ends else (0.0, 0.0),
        chance=table.mean(statistics.chance, metric) if statistics.chance in table.methods else math.nan,
        verdict="not tried" if verdict is None else verdict.verdict,
        verdict_text="no trial has seen this metric" if verdict is None else str(verdict),
    )
