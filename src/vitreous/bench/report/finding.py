"""One model on one data set with everything that is said about it: table, statistics, and what a paper printed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from vitreous.bench.gather import Gathered
from vitreous.bench.protocol import Protocol, Published
from vitreous.bench.statistics import Statistics
from vitreous.errors import VitreousError, nearest
from vitreous.results import Table
from vitreous.words.defaults import BASELINES

__all__ = ["Finding"]


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
        usual = protocol.judge.reference
        return cls(gathered, protocol, reference or (usual if usual in known else None))

    @property
    def table(self) -> Table:
        return self.gathered.table

    @property
    def name(self) -> str:
        """The model, and the data where there are several sets."""
        return f"{self.gathered.label} on {self.gathered.data}" if self.gathered.data else self.gathered.label

    @property
    def empty(self) -> bool:
        return not (self.table.images and self.table.metrics)

    @cached_property
    def statistics(self) -> Statistics:
        return Statistics.of(self.table, self.reference, seeds=self.gathered.of_seeds)

    @cached_property
    def published(self) -> Mapping[tuple[str, str], Published]:
        """The printed cells of this model and data set, by method and metric."""
        own = (cell for cell in self.protocol.cells if cell.model == self.gathered.label)
        return {(c.method, c.metric): c for c in own if c.data == self.gathered.data}

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The methods that are no yardsticks."""
        return tuple(name for name in self.table.methods if name not in BASELINES)

    def digits(self, metric: str) -> int:
        """Return how many decimals tell the scores of a metric apart: three digits of the largest."""
        means = [abs(self.table.mean(name, metric)) for name in self.table.methods]
        most = max((mean for mean in means if mean > 0), default=1.0)
        return min(6, max(1, 2 - math.floor(math.log10(most))))

    def order(self, metric: str) -> list[str]:
        """Return the methods that are no yardsticks and have a score, by mean rank."""
        return [name for name in self.statistics.ranks[metric].methods if name in self.rows]
