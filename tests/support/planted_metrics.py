"""Metrics whose verdict is known beforehand, for the trial to find out. They are registered only while a test runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from vitreous.metrics import AnnotationRequest, Evaluation, Images, Metric, Reattribution, Request, register_metric
from vitreous.metrics.base import REGISTRY
from vitreous.models import VisionModel

__all__ = ["planted"]


def shaken(inputs: Tensor, preprocess: Any, draws: Any) -> Tensor:
    return (inputs + 0.05 * draws.normal(*inputs.shape[1:]).to(inputs))[:, None]


def other_model(model: VisionModel) -> VisionModel:
    return model


@dataclass
class Perfect(Metric):
    """How near a map is to the oracle of its scene: their correlation. Cost: none."""

    oracles: ClassVar[Mapping[bytes, np.ndarray]] = {}
    """By the mask of the scene's creature."""

    def requests(self, image_shape: Any) -> Mapping[str, Request]:
        return {"mask": AnnotationRequest("mask")}

    def score(self, evaluation: Evaluation) -> np.ndarray:
        rows = zip(evaluation.maps("pixel"), evaluation.annotations, strict=True)
        return np.array([np.corrcoef(m.ravel(), self.oracles[t.mask.tobytes()].ravel())[0, 1] for m, t in rows])


@dataclass
class Flipped(Perfect):
    """The same with its sign turned round, and its direction not. Cost: none."""

    def score(self, evaluation: Evaluation) -> np.ndarray:
        return -super().score(evaluation)


@dataclass
class Downward(Perfect):
    """A distance: lower is better, and declared so. Cost: none."""

    higher_is_better = False

    def score(self, evaluation: Evaluation) -> np.ndarray:
        return 1 - super().score(evaluation)


@dataclass
class Unmoved(Metric):
    """One for every map. Cost: none."""

    def score(self, evaluation: Evaluation) -> np.ndarray:
        return np.ones(len(evaluation))


@dataclass
class Sparse(Metric):
    """How few pixels hold the map: the negative entropy of its absolute values. Cost: none."""

    def score(self, evaluation: Evaluation) -> np.ndarray:
        size = np.abs(evaluation.maps("pixel")).reshape(len(evaluation), -1) + 1e-12
        share = size / size.sum(axis=1, keepdims=True)
        return (share * np.log(share)).sum(axis=1)


@dataclass
class Steady(Metric):
    """How little a map changes when noise is added to the image. Cost: one more map."""

    def requests(self, image_shape: Any) -> Mapping[str, Request]:
        return {"again": Reattribution(images=Images("shaken", shaken, 1))}

    def score(self, evaluation: Evaluation) -> np.ndarray:
        again = evaluation.reattributions("again")[:, 0]
        return -np.abs(again - evaluation.raw_maps).max(axis=(1, 2))


@dataclass
class TwoModels(Metric):
    """Requests maps of another model. Cost: one more map."""

    def requests(self, image_shape: Any) -> Mapping[str, Request]:
        return {"again": Reattribution(under=other_model)}


@dataclass
class TwoClasses(Metric):
    """Requests maps of another class. Cost: one more map."""

    def requests(self, image_shape: Any) -> Mapping[str, Request]:
        return {"again": Reattribution(target="runner-up")}


@dataclass
class Broken(Metric):
    """Fails whatever it gets. Cost: none."""

    def score(self, evaluation: Evaluation) -> np.ndarray:
        raise ZeroDivisionError("of nothing")


@contextmanager
def planted(oracles: Mapping[bytes, np.ndarray]) -> Iterator[None]:
    """Register all of them, each under its own name in lower case, for as long as this lasts."""
    every = (Perfect, Flipped, Downward, Unmoved, Sparse, Steady, TwoModels, TwoClasses, Broken)
    Perfect.oracles = oracles
    for metric in every:
        register_metric(f"planted_{metric.__name__.lower()}", family="planted")(metric)
    try:
        yield
    finally:
        for metric in every:
            del REGISTRY.by_name[metric.info.name]
        Perfect.oracles = {}
