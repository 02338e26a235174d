"""The paired randomisation test (Fisher 1935; Noreen 1989).

If two methods did not differ, their scores on an image could be swapped. So the observed difference is set beside those
under all swaps, or many random ones. Unlike the p-value of a bootstrap it is honest about few images: with five of them
it is never below 1/16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from vitreous.metrics.bootstrap import Groups, members
from vitreous.metrics.curves import Array
from vitreous.passes.random import Draws

__all__ = ["ROUNDING", "randomised", "swapped"]

ROUNDING = 1e-12
"""Differences that are smaller than this, in units of what they are differences of, are none."""
_BLOCK = 2**22  # swaps held at a time


def swapped(gaps: Array, groups: Groups = None, samples: int = 10_000, seed: int = 0) -> Array:
    """Return the two-sided p-value ``[c]`` that every column of gaps ``[n, c]`` has mean zero; NaN gaps are left out.

    The share of all ways to turn the signs of units that give a mean at least as far from zero. All are tried if there
    are no more than ``samples``; otherwise so many random ones are, and the observed one is counted with them.
    """
    filled = np.where(np.isfinite(gaps), gaps, 0.0)
    member = members(len(gaps), groups)
    sums = np.zeros((int(member.max()) + 1, gaps.shape[1]))
    np.add.at(sums, member, filled)
    return randomised(len(sums), samples, seed, lambda swap: (1 - 2 * swap) @ sums, ROUNDING * abs(sums).sum(axis=0))


def randomised(units: int, samples: int, seed: int, statistic: Callable[[Array], Array], rounding: Array) -> Array:
    """Return the p-value ``[c]`` of a statistic ``[r, c]`` of swaps ``[r, units]``, which are 0 or 1."""
    observed = np.abs(statistic(np.zeros((1, units))))[0] - rounding
    every = units <= 62 and 2 ** (units - 1) <= samples
    as_far, count = np.zeros(len(observed)), 0
    for swap in _all_swaps(units) if every else _random_swaps(units, samples, seed):
        as_far += (np.abs(statistic(swap)) >= observed).sum(axis=0)
        count += len(swap)
    return as_far / count if every else (as_far + 1) / (count + 1)


def _all_swaps(units: int) -> Iterator[Array]:
    """Yield all swaps but for those that are another one's complement: they give the same, with the other sign."""
    numbers = np.arange(2 ** (units - 1))
    for part in np.array_split(numbers, max(1, len(numbers) * units // _BLOCK)):
        yield ((part[:, None] >> np.arange(units)) & 1).astype(np.float64)


def _random_swaps(units: int, samples: int, seed: int) -> Iterator[Array]:
    draws, at_once = Draws.of(seed, "swaps"), max(1, _BLOCK // units)
    for start in range(0, samples, at_once):
        rows = torch.arange(start, min(samples, start + at_once))
        yield Draws(draws.keys.expand(len(rows))).at(rows).below(2, units).double().numpy()
