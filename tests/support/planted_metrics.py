"""Metrics whose verdict is known beforehand, for the trial to find out. They are registered only while a test runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from vitreous.metrics import AnnotationRequest, Images, Metric, Reattribution, Request, register_metric
from vitreous.metrics.base import SHELF
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

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return [AnnotationRequest("mask")]

    def score(self, answers: Any) -> np.ndarray:
        rows = zip(answers.values(self.explain_class, "pixel"), answers.truth(), strict=True)
        return np.array([np.corrcoef(m.ravel(), self.oracles[t.mask.tobytes()].ravel())[0, 1] for m, t in rows])


@dataclass
class Flipped(Perfect):
    """The same with its sign turned round, and nobody told. Cost: none."""

    def score(self, answers: Any) -> np.ndarray:
        return -super().score(answers)


@dataclass
class Downward(Perfect):
    """A distance: down is better, and said so. Cost: none."""

    higher_is_better = False

    def score(self, answers: Any) -> np.ndarray:
        return 1 - super().score(answers)


@dataclass
class Unmoved(Metric):
    """One for every map. Cost: none."""

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return []

    def score(self, answers: Any) -> np.ndarray:
        return np.ones(len(answers))


@dataclass
class Sparse(Metric):
    """How few pixels hold the map: the negative entropy of its absolute values. Cost: none."""

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return []

    def score(self, answers: Any) -> np.ndarray:
        size = np.abs(answers.values(self.explain_class, "pixel")).reshape(len(answers), -1) + 1e-12
        share = size / size.sum(axis=1, keepdims=True)
        return (share * np.log(share)).sum(axis=1)


@dataclass
class Steady(Metric):
    """How little a map changes when noise is added to the image. Cost: one more map."""

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return [Reattribution(images=Images("shaken", shaken, 1))]

    def score(self, answers: Any) -> np.ndarray:
        again = answers.explained(*self.requests(answers.image_shape), self.explain_class)[:, 0]
        return -np.abs(again - answers.maps(self.explain_class)).max(axis=(1, 2))


@dataclass
class TwoModels(Metric):
    """Asks for maps of another model. Cost: one more map."""

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return [Reattribution(under=other_model)]


@dataclass
class TwoClasses(Metric):
    """Asks for maps of another class. Cost: one more map."""

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return [Reattribution(target="runner-up")]


@dataclass
class Broken(Metric):
    """Stumbles over its own feet. Cost: none."""

    def requests(self, image_shape: Any) -> Sequence[Request]:
        return []

    def score(self, answers: Any) -> np.ndarray:
        raise ZeroDivisionError("of nothing")


@contextmanager
def planted(oracles: Mapping[bytes, np.ndarray]) -> Iterator[None]:
    """Register all of them, each under its own name in lower case, for as long as this lasts."""
    every = (Perfect, Flipped, Downward, Unmoved, Sparse, Steady, TwoModels, TwoClasses, Broken)
    Perfect.oracles = oracles
    for each in every:
        register_metric(f"planted_{each.__name__.lower()}", family="planted")(each)
    try:
        yield
    finally:
        for each in every:
            del SHELF.by_name[each.info.name]
        Perfect.oracles = {}
