"""The definition of VAR in numpy."""

from __future__ import annotations

import numpy as np

INVERSE = {"sharp": (1, 5, 100), "paper": (1, 0.2, 0.01), "released": (10,)}


def definition(maps: np.ndarray, preset: str) -> tuple[np.ndarray, np.ndarray]:
    """The map and the distribution of one image from its class maps [K, h, w], the explained class first."""
    q = np.zeros_like(maps)
    classes, height, width = maps.shape
    for i in range(height):
        for j in range(width):
            values = np.abs(maps[:, i, j]) if preset == "released" else maps[:, i, j]
            for b in INVERSE[preset]:
                e = np.exp(b * (values - values.max()))
                q[:, i, j] += e / e.sum() / len(INVERSE[preset])
    size = np.abs(maps).max() * sum(INVERSE[preset]) / len(INVERSE[preset])
    margin = 0.01 if preset == "released" else 1e-6 * min(1.0, size)
    return np.where(q[0] - 1 / classes > margin, maps[0] * q[0], 0), q
