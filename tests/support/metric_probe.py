"""Metrics made on the spot: one that keeps the answers it was given, and one that aggregates for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitreous.metrics import Evaluation, ImageShape, Metric, MetricInfo, Request


@dataclass
class Probe(Metric):
    """Keeps every answer."""

    asked: Sequence[Request] = ()
    heard: list[Evaluation] = field(default_factory=list)

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return self.asked

    def score(self, answers: Evaluation) -> Any:
        self.heard.append(answers)
        return np.zeros(len(answers))


@dataclass
class Ratio(Metric):
    """A ratio of sums, which is not the mean of ratios: how much of the clean probability is left, over all images."""

    count: int = 100

    def requests(self, image_shape: ImageShape) -> Sequence[Request]:
        return [Request.removed("black", [self.count])]

    def score(self, answers: Evaluation) -> Any:
        (need,) = self.requests(answers.image_shape)
        left = np.exp(answers.log_probability(need, self.explain_class, self.score_class))[:, 0]
        return np.stack([left, np.exp(answers.clean(self.score_class, self.explain_class))], axis=1)

    def per_image(self, parts: Any) -> Any:
        return parts[:, 0] / parts[:, 1]

    def aggregate(self, parts: Any, weights: Any) -> Any:
        there = ~np.isnan(parts).any(axis=1)
        sums = weights[:, there] @ parts[there]
        return sums[:, 0] / sums[:, 1]


Probe.info = MetricInfo("probe", "test", Probe)
Ratio.info = MetricInfo("ratio", "test", Ratio)
