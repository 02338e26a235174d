"""Paired scores with known differences."""

from __future__ import annotations

from typing import Any

import numpy as np

import vitreous as vt


def table(scores: dict[tuple[str, str], Any], groups: Any = None, samples: int = 500, **more: Any) -> vt.ScoreTable:
    """A table of given scores ``[n]`` or parts ``[n, P]``."""
    methods, metrics = (tuple(dict.fromkeys(cell[at] for cell in scores)) for at in (0, 1))
    parts = {cell: np.asarray(item, np.float64).reshape(len(item), -1) for cell, item in scores.items()}
    n = len(next(iter(parts.values())))
    return vt.ScoreTable(
        images=tuple(f"{i}.png" for i in range(n)),
        methods=methods,
        metrics=metrics,
        parts=parts,
        definitions={name: vt.get_metric(name) for name in metrics},
        degenerate=more.pop("degenerate", {method: {} for method in methods}),
        confidence={"pred": np.full(n, 0.5)},
        n_bootstrap=samples,
        groups=groups,
        **more,
    )


def created(
    n: int, metrics: tuple[str, ...] = ("insdel", "deletion"), groups: Any = None, seed: int = 0
) -> vt.ScoreTable:
    """Three methods and chance; the first is far better than chance, the last is chance in disguise."""
    draws = np.random.default_rng(seed)
    level = draws.normal(size=n)
    gains = {"ixg": 1.0, "generic": 0.4, "random": 0.0, "rollout": 0.0}
    cells = {
        (name, m): level + draws.normal(0, 0.5, n) + (gain if vt.get_metric(m).higher_is_better else -gain)
        for name, gain in gains.items()
        for m in metrics
    }
    return table(cells, groups)
