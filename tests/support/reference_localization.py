"""Localisation made again slowly: one pixel after the other, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

__all__ = ["SLOW", "pixels", "slow_ap", "slow_counts"]

Grid = Sequence[Sequence[Any]]


def pixels(maps: torch.Tensor, method: str) -> np.ndarray:
    """Maps ``[n, h, w]`` at 32 x 32 pixels."""
    if maps.shape[-1] == 32:
        return maps.double().numpy()
    if method == "nearest":
        return np.kron(maps.double().numpy(), np.ones((1, 32 // maps.shape[1], 32 // maps.shape[2])))
    fine = F.interpolate(maps.double()[:, None], (32, 32), mode="bilinear", align_corners=False)
    return fine[:, 0].numpy()


def flat(grid: Grid, region: Grid, counted: Grid) -> list[tuple[float, bool]]:
    actual = []
    for row in range(32):
        for column in range(32):
            if counted[row][column]:
                actual.append((float(grid[row][column]), bool(region[row][column])))
    return actual


def slow_ap(pairs: Sequence[tuple[float, bool]]) -> float:
    """Every distinct value is a threshold; the precision there times the recall that it adds."""
    positives = sum(inside for _, inside in pairs)
    area, last = 0.0, 0.0
    for threshold in sorted({value for value, _ in pairs}, reverse=True):
        above = [inside for value, inside in pairs if value >= threshold]
        recall = sum(above) / positives
        area += (recall - last) * sum(above) / len(above)
        last = recall
    return area


def scaled(grid: np.ndarray) -> np.ndarray:
    low, top_edge = grid.min(), grid.max()
    return np.zeros_like(grid) if low == top_edge else (grid - low) / (top_edge - low)


def slow_counts(grid: np.ndarray, region: Grid, counted: Grid) -> tuple[int, int, int, int]:
    """Object right, object wrong, ground right, ground wrong: Chefer's threshold."""
    m = scaled(grid)
    mean = math.fsum(m.flatten()) / m.size
    upper = np.zeros_like(m, bool) if grid.min() == grid.max() else m > mean
    pairs = flat(upper, region, counted)
    return (
        sum(1 for above, inside in pairs if above and inside),
        sum(1 for above, inside in pairs if above and not inside),
        sum(1 for above, inside in pairs if not above and not inside),
        sum(1 for above, inside in pairs if not above and inside),
    )


def accuracy(grid: np.ndarray, region: Grid, counted: Grid) -> float:
    tp, fp, tn, fn = slow_counts(grid, region, counted)
    return (tp + tn) / (tp + fp + tn + fn)


def mean_iou(grid: np.ndarray, region: Grid, counted: Grid) -> float:
    tp, fp, tn, fn = slow_counts(grid, region, counted)
    return (tp / max(1, tp + fp + fn) + tn / max(1, tn + fp + fn)) / 2


def mean_ap(grid: np.ndarray, region: Grid, counted: Grid) -> float:
    m = scaled(grid)
    ground = m if grid.min() == grid.max() else 1 - m
    upper = flat(m, region, counted)
    return slow_ap(upper + [(value, not inside) for value, inside in flat(ground, region, counted)])


def average_precision(grid: np.ndarray, region: Grid, counted: Grid) -> float:
    return slow_ap(flat(grid, region, counted))


def pointing(tolerance: float, ties: str) -> Callable[..., float]:
    def measure(grid: np.ndarray, region: Grid, counted: Grid) -> float:
        best = max(value for value, _ in flat(grid, region, counted))
        hits = []
        goals = [(r, c) for r in range(32) for c in range(32) if region[r][c] and counted[r][c]]
        for r in range(32):
            for c in range(32):
                if counted[r][c] and grid[r][c] == best:
                    near = min(math.hypot(r - a, c - b) for a, b in goals)
                    hits.append(near == 0 or near < tolerance)
        return {"expected": sum(hits) / len(hits), "first": float(hits[0]), "any": float(any(hits))}[ties]

    return measure


def mass(of: Callable[[float], float]) -> Callable[..., float]:
    def measure(grid: np.ndarray, region: Grid, counted: Grid) -> float:
        pairs = flat(grid, region, counted)
        full = math.fsum(of(value) for value, _ in pairs)
        return math.fsum(of(value) for value, inside in pairs if inside) / full if full else 0.0

    return measure


def relu(value: float) -> float:
    return max(value, 0.0)


def soft(grid: np.ndarray) -> np.ndarray:
    """The positive part under an 11 x 11 Gaussian of deviation 2, weight by weight, reflected at the edges."""
    positive = np.maximum(grid, 0)
    weights = {(a, b): math.exp(-(a * a + b * b) / 8) for a in range(-5, 6) for b in range(-5, 6)}
    total = math.fsum(weights.values())

    def mirrored(at: int) -> int:
        return -at if at < 0 else 62 - at if at > 31 else at

    rows = [[mirrored(r + a) for r in range(32)] for a in range(-5, 6)]
    blurred = np.zeros((32, 32))
    for (a, b), weight in weights.items():
        blurred += weight / total * positive[np.ix_(rows[a + 5], rows[b + 5])]
    return blurred


def attribution(grid: np.ndarray, region: Grid, counted: Grid) -> float:
    return mass(float)(soft(grid), region, counted)


def softly(measure: Callable[..., float]) -> Callable[..., float]:
    return lambda grid, region, counted: measure(soft(grid), region, counted)


def overlap(binarise: str, read: Callable[[int, int, int], float]) -> Callable[..., float]:
    def measure(grid: np.ndarray, region: Grid, counted: Grid) -> float:
        pairs = flat(grid, region, counted)
        size = sum(inside for _, inside in pairs)
        everything = [float(value) for value in grid.flatten()]
        if binarise == "positive":
            upper = grid > 0
        elif binarise == "quantile":
            upper = grid >= sorted((value for value, _ in pairs), reverse=True)[size - 1]
        elif grid.min() == grid.max():
            upper = np.zeros((32, 32), bool)
        elif binarise == "mean":
            upper = grid > math.fsum(everything) / len(everything)
        else:
            best, threshold = -1.0, 0.0
            for candidate in sorted(set(everything))[:-1]:
                low, top_edge = grid[grid <= candidate], grid[grid > candidate]
                between = low.size * top_edge.size * (low.mean() - top_edge.mean()) ** 2
                if between > best * (1 + 1e-12):
                    best, threshold = between, candidate
            upper = grid > threshold
        cut = flat(upper, region, counted)
        return read(sum(1 for above, inside in cut if above and inside), sum(a > 0 for a, _ in cut), size)

    return measure


def rank(count: int | None) -> Callable[..., float]:
    """The mean over all orders of equal values: each of them is in the top with the same chance."""

    def measure(grid: np.ndarray, region: Grid, counted: Grid) -> float:
        pairs = flat(grid, region, counted)
        wanted = sum(inside for _, inside in pairs) if count is None else min(count, len(pairs))
        hits, taken = 0.0, 0
        for value in sorted({value for value, _ in pairs}, reverse=True):
            tied = [inside for other, inside in pairs if other == value]
            chance = min(1.0, (wanted - taken) / len(tied))
            hits += chance * sum(tied)
            taken += len(tied)
            if taken >= wanted:
                break
        return hits / wanted

    return measure


def auc(grid: np.ndarray, region: Grid, counted: Grid) -> float:
    pairs = flat(grid, region, counted)
    ones, others = ([value for value, inside in pairs if inside is wanted] for wanted in (True, False))
    return sum((a > b) + (a == b) / 2 for a in ones for b in others) / (len(ones) * len(others))


def ehr(by: str) -> Callable[..., float]:
    def measure(grid: np.ndarray, region: Grid, counted: Grid) -> float:
        pairs = [(relu(value), inside) for value, inside in flat(grid, region, counted)]
        top = max(value for value, _ in pairs)
        if not top:
            return 0.0
        heat = [(value / top if value / top >= 0.1 else 0.0, inside) for value, inside in pairs]
        ordered = sorted(value for value, _ in heat if value >= 0.1)
        ratios = []
        for step in range(11):
            place = step / 10 * (len(ordered) - 1)
            low = math.floor(place)
            top_edge = min(low + 1, len(ordered) - 1)
            threshold = min(0.99, ordered[low] + (place - low) * (ordered[top_edge] - ordered[low]))
            above = [(value, inside) for value, inside in heat if value >= threshold - 1e-13]
            full = len(above) if by == "points" else sum(value for value, _ in above)
            ratios.append(sum(value for value, inside in above if inside) / full)
        return sum((a + b) / 20 for a, b in pairwise(ratios))

    return measure


def iou(both: int, upper: int, size: int) -> float:
    return both / (upper + size - both)


def f1(both: int, upper: int, size: int) -> float:
    precision, recall = (both / upper if upper else 0.0), both / size
    return 2 * precision * recall / (precision + recall) if both else 0.0


SLOW: dict[str, Callable[..., float]] = {
    "pixel_accuracy": accuracy,
    "mean_iou": mean_iou,
    "mean_ap": mean_ap,
    "average_precision": average_precision,
    "average_precision(interpolation=bilinear)": average_precision,
    "pointing_game": pointing(0, "expected"),
    "pointing_game(tie_breaking=first)": pointing(0, "first"),
    "pointing_game(tie_breaking=any)": pointing(0, "any"),
    "pointing_game(tolerance=5)": pointing(5, "expected"),
    "pointing_game(tolerance=2.5, tie_breaking=any)": pointing(2.5, "any"),
    "pointing_game@torchray": pointing(15, "expected"),
    "energy_pointing_game": mass(abs),
    "energy_pointing_game@scorecam": mass(relu),
    "grid_pointing_game": mass(relu),
    "focus": mass(relu),
    "relevance_mass": mass(relu),
    "relevance_mass(of=absolute)": mass(abs),
    "relevance_mass(of=signed)": mass(float),
    "region_attribution": attribution,
    "ehr": ehr("heat"),
    "ehr@inputiba": ehr("points"),
    "region_iou": overlap("positive", iou),
    "region_precision": overlap("positive", lambda both, upper, size: both / upper if upper else 0.0),
    "region_recall": overlap("positive", lambda both, upper, size: both / size),
    "region_f1": overlap("positive", f1),
    "region_iou(binarise=mean)": overlap("mean", iou),
    "region_f1(binarise=otsu)": overlap("otsu", f1),
    "region_iou(binarise=quantile)": overlap("quantile", iou),
    "region_iou@var": overlap("positive", iou),
    "region_iou@var_text": softly(overlap("positive", iou)),
    "region_f1(kernel=11, sigma=2.0, binarise=mean)": softly(overlap("mean", f1)),
    "relevance_rank": rank(None),
    "top_k_intersection": rank(1000),
    "top_k_intersection(k=7)": rank(7),
    "localisation_auc": auc,
}
