"""Reading panels back from their pixels."""

from __future__ import annotations

import numpy as np

LONG = 'consensus(smooth(integrated_gradients, samples=10, sigma=0.15), var(skipplus(ixg), classes="top:5"))'


TITLES = [
    "a",
    LONG,
    "smooth(integrated_gradients, samples=10, sigma=0.15)",
    "W" * 300,
    "word " * 80,
    "",
    "σ–×é中",
]


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """Half-open intervals where `flags` is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
