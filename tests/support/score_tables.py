"""A table of made-up scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import vitreous as vt
from vitreous.metrics.ranking import Curve

METRIC = "insdel(steps=4)"
METHODS = ("ixg", "plus(ixg)", "random")


def table(
    methods: Sequence[str] = METHODS, metrics: Sequence[str] = (METRIC,), n: int = 25, curves: bool = True
) -> Any:
    """A table of made-up scores, those of later methods higher."""
    draws = np.random.default_rng(1)
    cells = [(method, metric) for method in methods for metric in metrics]
    x = np.linspace(0, 1, 5)
    result = {
        cell: {name: Curve(x, draws.uniform(size=(n, 5))) for name in ("insertion", "deletion")} for cell in cells
    }
    return vt.ScoreTable(
        images=tuple(f"{i}.png" for i in range(n)),
        methods=tuple(methods),
        metrics=tuple(metrics),
        parts={cell: draws.normal(0.4 + 0.2 * at, 0.1, size=(n, 1)) for at, cell in enumerate(cells)},
        definitions={name: vt.get_metric(name) for name in metrics},
        degenerate={method: {} for method in methods},
        confidence={"pred": draws.uniform(size=n)},
        curves=result if curves else {},
        n_bootstrap=300,
    )
