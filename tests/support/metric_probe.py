"""Metrics made on the spot: one that keeps the answers it was given, and one that aggregates for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitreous.metrics import Evaluation, ImageShape, Metric, MetricInfo, RankedRemoval, Request


@dataclass
class Probe(Metric):
    """Keeps every answer."""

    asked: Sequence[Request] = ()
    heard: list[Evaluation] = field(default_factory=list)

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {str(number): request for number, request in enumerate(self.asked)}

    def score(self, evaluation: Evaluation) -> Any:
        self.heard.append(evaluation)
        return np.zeros(len(evaluation))


@dataclass
class Ratio(Metric):
    """A ratio of sums, which is not the mean of ratios: how much of the clean probability is left, over all images."""

    count: int = 100

    def requests(self, image_shape: ImageShape) -> Mapping[str, Request]:
        return {"removed": RankedRemoval.deletion("black", [self.count])}

    def score(self, evaluation: Evaluation) -> Any:
        return np.stack([evaluation.probability("removed")[:, 0], evaluation.probability()], axis=1)

    def per_image(self, parts: Any) -> Any:
        return parts[:, 0] / parts[:, 1]

    def aggregate(self, parts: Any, weights: Any) -> Any:
        there = ~np.isnan(parts).any(axis=1)
        sums = weights[:, there] @ parts[there]
        return sums[:, 0] / sums[:, 1]


Probe.info = MetricInfo("probe", "test", Probe)
Ratio.info = MetricInfo("ratio", "test", Ratio)
