"""The arithmetic of the FunnyBirds protocol (Hesse, Schaub-Meyer and Roth, ICCV 2023): numbers in, numbers out.

``n`` images, ``P`` parts, at most ``K`` background objects, ``C`` classes, ``T`` thresholds. A set of parts is a number
whose bit ``p`` stands for part ``p``. What no image has is NaN, and no mean sees it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from vitreous.errors import VitreousError
from vitreous.metrics.ranking import Array
from vitreous.metrics.similarity import rank_correlation

_DISTANCE = 3
"""In how many parts the two classes of target sensitivity differ from the target."""


@dataclass(frozen=True, eq=False)
class Interventions:
    """What the model says of every image with some of its parts, and without each background object.

    ``with_parts`` ``[n, 2^P, C]`` are the logits by the set of parts that is left (the last one is the image itself),
    ``without`` ``[n, K, C]`` those without one object (NaN where there is none), ``variants`` ``[C, P]`` tell which
    variant of each part a class has. An object or part *matters* if its removal lowers a logit by ``share`` of it.
    """

    labels: Array
    with_parts: Array
    without: Array
    variants: Array
    share: float = 0.05

    def rows(self, images: range) -> Interventions:
        """Return those of some images."""
        rows = slice(images.start, images.stop)
        return replace(self, labels=self.labels[rows], with_parts=self.with_parts[rows], without=self.without[rows])

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return int(self.variants.shape[1])

    @property
    def everything(self) -> int:
        """The set of all parts."""
        return int(2**self.parts) - 1

    @cached_property
    def predictions(self) -> Array:
        """The predicted class by image and set of parts, ``[n, 2^P]``."""
        return np.asarray(self.with_parts.argmax(axis=2))

    @property
    def predicted(self) -> Array:
        """The predicted class of every image."""
        return np.asarray(self.predictions[:, -1])

    def unchanged(self, classes: Array) -> Array:
        """Return the logit of one class of each image, with nothing removed."""
        return np.asarray(self.with_parts[np.arange(len(classes)), -1, classes])

    def drops(self, classes: Array) -> Array:
        """Return how far that logit falls without each part, then without each object, ``[n, P + K]``."""
        images = np.arange(len(classes))
        all_but_one = self.everything ^ (1 << np.arange(self.parts))
        without_part = self.with_parts[images[:, None], all_but_one[None], classes[:, None]]
        without_object = self.without[images, :, classes]
        return np.asarray(self.unchanged(classes)[:, None] - np.concatenate([without_part, without_object], axis=1))

    def hurt(self, classes: Array, sets: Array) -> Array:
        """Return how far the logit of a class falls without a whole set of parts, ``[n]``."""
        images = np.arange(len(classes))
        return np.asarray(self.unchanged(classes) - self.with_parts[images, self.everything ^ sets, classes])

    # -- about the model alone -------------------------------------------------------------------------

    def accuracy(self) -> Array:
        """Return 1 where the prediction is right, ``[n]``."""
        return np.asarray(self.predicted == self.labels, np.float64)

    def background(self) -> Array:
        """Return how many objects matter to the true class, and how many there are, ``[n, 2]``."""
        falls = self.drops(self.labels)[:, self.parts :]
        matter = falls >= self._smallest_drop(self.labels)
        return np.stack([matter.sum(axis=1), (~np.isnan(falls)).sum(axis=1)], axis=1).astype(np.float64)

    def irrelevant(self) -> Array:
        """Return which parts and objects do not matter to the true class, ``[n, P + K]``."""
        return np.asarray(self.drops(self.labels) < self._smallest_drop(self.labels))

    def _smallest_drop(self, classes: Array) -> Array:
        return self.share * np.abs(self.unchanged(classes))[:, None]

    # -- about explanations ----------------------------------------------------------------------------

    def data_check(self, target: Importances, thresholds: Array) -> Array:
        """Return CSDC ``[n, T]``: how much of a minimal sufficient set is called important; right answers only."""
        sets = target.sets(thresholds, self.parts)
        covered = _covered(self.variants)[self.labels[:, None], sets]
        return _only(covered, target.has_map & (self.predicted == self.labels))

    def preservation(self, predicted: Importances, thresholds: Array) -> Array:
        """Return PC ``[n, T]``: 1 where the prediction stays when only the important parts are left."""
        sets = predicted.sets(thresholds, self.parts)
        same = self.predictions[np.arange(len(sets))[:, None], sets] == self.predicted[:, None]
        return _only(same, predicted.has_map)

    def deletion(self, predicted: Importances, thresholds: Array) -> Array:
        """Return DC ``[n, T]``: 1 where the prediction changes when the important parts are removed."""
        sets = self.everything ^ predicted.sets(thresholds, self.parts)
        changed = self.predictions[np.arange(len(sets))[:, None], sets] != self.predicted[:, None]
        return _only(changed, predicted.has_map)

    def distractibility(self, target: Importances, thresholds: Array) -> Array:
        """Return D ``[n, T]``: 1 less the share of what does not matter that is called important."""
        idle = self.irrelevant()
        distracted = (target.important(thresholds) & idle[:, None]).sum(axis=2)
        count = idle.sum(axis=1)
        share = distracted / np.maximum(count, 1)[:, None]
        return _only(1 - share, target.has_map & (count > 0))

    def single_deletion(self, target: Importances) -> Array:
        """Return SD ``[n]``: (rho + 1) / 2 of Spearman's rho between importances of parts and falls of the logit."""
        falls = self.drops(self.labels)[:, : self.parts]
        return (rank_correlation(target.values[:, : self.parts], falls) + 1) / 2

    def can_distinguish(self, pairs: Array) -> Array:
        """Return where removing each class's shared parts hurts that class more than removing the other's, ``[n]``."""
        (one, other), (first, second) = self._pair(pairs)
        apart = (self.hurt(one, first) > self.hurt(one, second)) & (self.hurt(other, second) > self.hurt(other, first))
        return np.asarray(apart & (pairs[self.labels, 0] >= 0))

    def target_sensitivity(self, one: Importances, other: Importances, pairs: Array) -> Array:
        """Return TS ``[n]``: which of the two maps finds more in the parts that its class shares with the target."""
        _, (first, second) = self._pair(pairs)
        sums = [[maps.over(shared, self.parts) for maps in (one, other)] for shared in (first, second)]
        score = ((sums[0][0] > sums[0][1]).astype(np.float64) + (sums[1][1] > sums[1][0])) / 2
        return _only(score, self.can_distinguish(pairs) & one.has_map & other.has_map)

    def _pair(self, pairs: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return two classes for each image, and the parts that each of them shares with the true one."""
        one, other = np.where(pairs[self.labels] < 0, self.labels[:, None], pairs[self.labels]).T
        shared = shared_parts(self.variants)
        return (one, other), (shared[self.labels, one], shared[self.labels, other])


@dataclass(frozen=True, eq=False)
class Importances:
    """What the maps of one class find: in each part and object ``[n, P + K]``, and in all of the picture ``[n]``."""

    values: Array
    totals: Array

    @property
    def has_map(self) -> Array:
        """Whether an image has a map."""
        return ~np.isnan(self.totals)

    def important(self, thresholds: Array) -> Array:
        """Return which parts and objects have more than a share of the total, ``[n, T, P + K]``."""
        return np.asarray(self.values[:, None] > thresholds[:, None] * self.totals[:, None, None])

    def sets(self, thresholds: Array, parts: int) -> Array:
        """Return the important parts as sets, ``[n, T]``."""
        return np.asarray(self.important(thresholds)[:, :, :parts] @ (1 << np.arange(parts)))

    def over(self, sets: Array, parts: int) -> Array:
        """Return the sum over one set of parts for each image, ``[n]``."""
        inside = (sets[:, None] >> np.arange(parts)) & 1
        return np.asarray((self.values[:, :parts] * inside).sum(axis=1))


def shared_parts(variants: Array) -> Array:
    """Return the set of parts in which two classes are alike, ``[C, C]``."""
    alike = variants[:, None] == variants[None]
    return np.asarray(alike @ (1 << np.arange(variants.shape[1])))


def sufficient_sets(variants: Array) -> list[list[int]]:
    """Return for every class the smallest sets of parts that no other class has: none of them holds another."""
    shared, everything = shared_parts(variants), 2 ** variants.shape[1] - 1
    smallest = []
    for label, row in enumerate(shared):
        same = np.flatnonzero(row == everything)
        if len(same) > 1:
            raise VitreousError(f"classes {same[0]} and {same[1]} have the same parts: nothing tells them apart")
        others = np.delete(row, label)
        enough = [one for one in range(everything + 1) if (one & ~others != 0).all()]
        smallest.append([one for one in enough if not any(other != one and other & ~one == 0 for other in enough)])
    return smallest


def disjoint_pairs(variants: Array) -> Array:
    """Return for every class the first two that differ from it in three parts and share none with it both, or -1."""
    count = variants.shape[1]
    shared = shared_parts(variants)
    pairs = np.full((len(variants), 2), -1)
    for label, row in enumerate(shared):
        near = [other for other, alike in enumerate(row) if count - int(alike).bit_count() == _DISTANCE]
        disjoint = (pair for pair in combinations(near, 2) if not row[pair[0]] & row[pair[1]])
        pairs[label] = next(disjoint, (-1, -1))
    return pairs


def _covered(variants: Array) -> Array:
    """Return by class and set of parts how much of the best covered sufficient set lies in it, ``[C, 2^P]``."""
    table = [
        [
            max((one & parts).bit_count() / one.bit_count() for one in smallest)
            for parts in range(2 ** variants.shape[1])
        ]
        for smallest in sufficient_sets(variants)
    ]
    return np.array(table)


def _only(values: Array, images: Array) -> Array:
    """Return values as numbers, NaN for all images but these."""
    return np.where(images if values.ndim == 1 else images[:, None], values, np.nan)
