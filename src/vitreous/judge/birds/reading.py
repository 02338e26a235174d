"""From maps to what they find in each part: sums inside dilated masks. And the map of an oracle."""

from __future__ import annotations

import numpy as np
import torch

from vitreous.errors import VitreousError
from vitreous.judge.birds.source import Seen
from vitreous.metrics.curves import Array

__all__ = ["Reader", "window"]

_USUAL = 256  # pixels, where the window is five wide


def window(size: int, given: int | None = None) -> int:
    """Return how wide the dilation is, in pixels: 5 at a side of 256, in proportion elsewhere, always odd."""
    if given is None:
        return 2 * round(2 * size / _USUAL) + 1
    if given < 1 or given % 2 == 0:
        raise VitreousError(f"dilation={given} is not an odd number of pixels, 1 for none")
    if given > 2 * size + 1:
        raise VitreousError(f"dilation={given} is wider than images of {size} pixels")
    return given


class Reader:
    """Reads the maps of one image: ``masks`` are dilated once for all of them."""

    def __init__(self, seen: Seen, slots: int, wide: int) -> None:
        high, across = seen.masks.shape[1:]
        masks = torch.from_numpy(seen.masks).float()[:, None]
        grown = torch.nn.functional.max_pool2d(masks, wide, stride=1, padding=wide // 2)
        self._grown: Array = grown.flatten(1).double().numpy()
        self._owners, self._slots, self._size = seen.owners, slots, (high, across)

    def importances(self, maps: Array) -> tuple[Array, Array]:
        """Return what maps ``[m, S, S]`` hold inside each part and object ``[m, slots]``, and in all ``[m]``.

        Instances of a part are summed; places without an owner are NaN.
        """
        flat = maps.reshape(len(maps), -1)
        belongs = self._owners[:, None] == np.arange(self._slots)
        inside = (flat @ self._grown.T) @ belongs.astype(np.float64)
        inside[:, ~belongs.any(axis=0)] = np.nan
        totals = flat.sum(axis=1)
        inside[np.isnan(totals)] = np.nan
        return inside, totals

    def oracle(self, falls: Array) -> Array:
        """Return maps ``[m, S, S]`` in which each part and object holds its fall ``[m, slots]``, and the total is fair.

        The fall is spread over those pixels of its dilated mask that no other mask touches. The other pixels share what
        makes the total the sum of all positive falls, so that negative ones cannot cancel it. What is wholly hidden
        holds nothing.
        """
        once = self._grown.sum(axis=0) == 1
        maps = np.zeros((len(falls), self._grown.shape[1]))
        shown = np.zeros(len(falls))
        for owner in np.unique(self._owners):
            core = once & (self._grown[self._owners == owner].sum(axis=0) == 1)
            if core.any():
                maps[:, core] = falls[:, owner, None] / core.sum()
                shown += np.minimum(falls[:, owner], 0)
        nobody = self._grown.sum(axis=0) == 0
        if nobody.any():
            maps[:, nobody] = -shown[:, None] / nobody.sum()
        return maps.reshape(len(falls), *self._size)
