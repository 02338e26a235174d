"""The arithmetic of the FunnyBirds protocol (Hesse, Schaub-Meyer and Roth, ICCV 2023): numbers in, numbers out.

``n`` images, ``P`` parts, at most ``K`` background objects, ``C`` classes, ``T`` thresholds. A set of parts is a number
whose bit ``p`` stands for part ``p``. What no image has is NaN, and no mean sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vitreous.errors import VitreousError
from vitreous.metrics.ranking import Array
from vitreous.metrics.similarity import rank_correlation

__all__ = ["Importances", "Interventions", "disjoint_pairs", "shared_parts", "sufficient_sets"]

_DISTANCE = 3
"""In how many parts the two classes of target sensitivity differ from the target."""


@dataclass(frozen=True, eq=False)
class Interventions:
    """What the model says of every image with some of its parts, and without each background object.

    ``kept`` ``[n, 2^P, C]`` are the logits by the set of parts that is left (the last one is the image itself),
    ``without`` ``[n, K, C]`` those without one object (NaN where there is none), ``variants`` ``[C, P]`` tell which
    variant of each part a class has. An object or part *matters* if its removal lowers a logit by ``share`` of it.
    """

    labels: Array
    kept: Array
    without: Array
    variants: Array
    share: float = 0.05

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return int(self.variants.shape[1])

    @property
    def everything(self) -> int:
        """The set of all parts."""
        return int(2**self.parts) - 1

    @cached_property
    def said(self) -> Array:
        """The predicted class by image and set of parts, ``[n, 2^P]``."""
        return np.asarray(self.kept.argmax(axis=2))

    @property
    def predicted(self) -> Array:
        """The predicted class of every image."""
        return np.asarray(self.said[:, -1])

    def whole(self, classes: Array) -> Array:
        """Return the logit of one class of each image, with nothing removed."""
        return np.asarray(self.kept[np.arange(len(classes)), -1, classes])

    def drops(self, classes: Array) -> Array:
        """Return how far that logit falls without each part, then without each object, ``[n, P + K]``."""
        images = np.arange(len(classes))
        alone = self.everything ^ (1 << np.arange(self.parts))
        left = self.kept[images[:, None], alone[None], classes[:, None]]
        cleared = self.without[images, :, classes]
        return np.asarray(self.whole(classes)[:, None] - np.concatenate([left, cleared], axis=1))

    def hurt(self, classes: Array, sets: Array) -> Array:
        """Return how far the logit of a class falls without a whole set of parts, ``[n]``."""
        images = np.arange(len(classes))
        return np.asarray(self.whole(classes) - self.kept[images, self.everything ^ sets, classes])

    # -- about the model alone -------------------------------------------------------------------------

    def accuracy(self) -> Array:
        """Return 1 where the prediction is right, ``[n]``."""
        return np.asarray(self.predicted == self.labels, np.float64)

    def background(self) -> Array:
        """Return how many objects matter to the true class, and how many there are, ``[n, 2]``."""
        falls = self.drops(self.labels)[:, self.parts :]
        matter = falls >= self._enough(self.labels)
        return np.stack([matter.sum(axis=1), (~np.isnan(falls)).sum(axis=1)], axis=1).astype(np.float64)

    def irrelevant(self) -> Array:
        """Return which parts and objects do not matter to the true class, ``[n, P + K]``."""
        return np.asarray(self.drops(self.labels) < self._enough(self.labels))

    def _enough(self, classes: Array) -> Array:
        return self.share * np.abs(self.whole(classes))[:, None]

    # -- about explanations ----------------------------------------------------------------------------

    def data_check(self, target: Importances, thresholds: Array) -> Array:
        """Return CSDC ``[n, T]``: how much of a minimal sufficient set is called important; right answers only."""
        sets = target.sets(thresholds, self.parts)
        found = _covered(self.variants)[self.labels[:, None], sets]
        return _only(found, target.known & (self.predicted == self.labels))

    def preservation(self, predicted: Importances, thresholds: Array) -> Array:
        """Return PC ``[n, T]``: 1 where the prediction stays when only the important parts are left."""
        sets = predicted.sets(thresholds, self.parts)
        same = self.said[np.arange(len(sets))[:, None], sets] == self.predicted[:, None]
        return _only(same, predicted.known)

    def deletion(self, predicted: Importances, thresholds: Array) -> Array:
        """Return DC ``[n, T]``: 1 where the prediction changes when the important parts are removed."""
        sets = self.everything ^ predicted.sets(thresholds, self.parts)
        changed = self.said[np.arange(len(sets))[:, None], sets] != self.predicted[:, None]
        return _only(changed, predicted.known)

    def distractibility(self, target: Importances, thresholds: Array) -> Array:
        """Return D ``[n, T]``: 1 less the share of what does not matter that is called important."""
        idle = self.irrelevant()
        distracted = (target.important(thresholds) & idle[:, None]).sum(axis=2)
        count = idle.sum(axis=1)
        share = distracted / np.maximum(count, 1)[:, None]
        return _only(1 - share, target.known & (count > 0))

    def single_deletion(self, target: Importances) -> Array:
        """Return SD ``[n]``: (rho + 1) / 2 of Spearman's rho between importances of parts and falls of the logit."""
        falls = self.drops(self.labels)[:, : self.parts]
        return (rank_correlation(target.values[:, : self.parts], falls) + 1) / 2

    def told_apart(self, pairs: Array) -> Array:
        """Return where removing each class's shared parts hurts that class more than removing the other's, ``[n]``."""
        (one, other), (first, second) = self._pair(pairs)
        apart = (self.hurt(one, first) > self.hurt(one, second)) & (self.hurt(other, second) > self.hurt(other, first))
        return np.asarray(apart & (pairs[self.labels, 0] >= 0))

    def target_sensitivity(self, one: Importances, other: Importances, pairs: Array) -> Array:
        """Return TS ``[n]``: which of the two maps finds more in the parts that its class shares with the target."""
        _, (first, second) = self._pair(pairs)
        sums = [[each.over(which, self.parts) for each in (one, other)] for which in (first, second)]
        score = ((sums[0][0] > sums[0][1]).astype(np.float64) + (sums[1][1] > sums[1][0])) / 2
        return _only(score, self.told_apart(pairs) & one.known & other.known)

    def _pair(self, pairs: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return two classes for each image, and the parts that each of them shares with the true one."""
        mine = np.where(pairs[self.labels] < 0, self.labels[:, None], pairs[self.labels])
        shared = shared_parts(self.variants)
        one, other = mine[:, 0], mine[:, 1]
        return (one, other), (shared[self.labels, one], shared[self.labels, other])


@dataclass(frozen=True, eq=False)
class Importances:
    """What the maps of one class find: in each part and object ``[n, P + K]``, and in all of the picture ``[n]``."""

    values: Array
    totals: Array

    @property
    def known(self) -> Array:
        """Whether an image has a map."""
        return ~np.isnan(self.totals)

    @property
    def vacuous(self) -> Array:
        """Where the total is not positive, so that a share of it is no threshold."""
        return np.asarray(self.totals <= 0)

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
    found = []
    for place, row in enumerate(shared):
        others = np.delete(row, place)
        if (others == everything).any():
            twin = next(k for k in range(len(row)) if k != place and row[k] == everything)
            raise VitreousError(f"classes {place} and {twin} have the same parts: nothing tells them apart")
        enough = {one for one in range(everything + 1) if (one & ~others != 0).all()}
        least = [one for one in enough if not any(one ^ bit in enough for bit in _bits(one))]
        found.append(sorted(least))
    return found


def disjoint_pairs(variants: Array) -> Array:
    """Return for every class the first two that differ from it in three parts and share none with it both, or -1."""
    count = variants.shape[1]
    shared = shared_parts(variants)
    pairs = np.full((len(variants), 2), -1)
    for place, row in enumerate(shared):
        near = [other for other, alike in enumerate(row) if count - int(alike).bit_count() == _DISTANCE]
        both = ((one, other) for at, one in enumerate(near) for other in near[at + 1 :] if not row[one] & row[other])
        pairs[place] = next(both, (-1, -1))
    return pairs


def _covered(variants: Array) -> Array:
    """Return by class and set of parts how much of the best covered sufficient set lies in it, ``[C, 2^P]``."""
    every = range(2 ** variants.shape[1])
    return np.array(
        [
            [max((one & each).bit_count() / one.bit_count() for one in least) for each in every]
            for least in sufficient_sets(variants)
        ]
    )


def _bits(number: int) -> list[int]:
    return [1 << place for place in range(number.bit_length()) if number >> place & 1]


def _only(values: Array, there: Array) -> Array:
    """Return values as numbers, NaN for the images that are not there."""
    mask = there if values.ndim == 1 else there[:, None]
    return np.where(mask, values, np.nan)
