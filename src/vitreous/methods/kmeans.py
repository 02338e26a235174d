"""K-means over many sets of rows at once, without waiting for the device at every step."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["centroids"]

_TOLERANCE = 1e-4  # the total squared shift of all centroids of a set below which it is finished
_LOOK_EVERY = 10


def centroids(rows: Tensor, first: Tensor, iterations: int) -> Tensor:
    """Return the centroids ``[B, M, n]`` of rows ``[B, R, n]``, starting from the rows ``first`` (``[B, M]`` indices).

    Lloyd's algorithm with Euclidean distances: assign each row to its nearest centroid (the first of equals), move
    each centroid to the mean of its rows; one without rows becomes zero and stays in the game. A set whose centroids
    moved by no more than 1e-4 in all, squared, is left as it is while the others go on. The device is asked only every
    ten steps whether all are finished.
    """
    batch, count = first.shape
    centres = rows.gather(1, first.unsqueeze(2).expand(-1, -1, rows.shape[2]))
    finished = torch.zeros(batch, 1, 1, dtype=torch.bool, device=rows.device)
    offsets = torch.arange(batch, device=rows.device).unsqueeze(1) * count
    flat = rows.flatten(0, 1)
    for step in range(iterations):
        # |x - c|^2 less |x|^2, which is the same for all c
        distances = torch.baddbmm(centres.square().sum(dim=2).unsqueeze(1), rows, centres.transpose(1, 2), alpha=-2)
        place = (distances.argmin(dim=2) + offsets).flatten()
        moved = _means(flat, place, batch * count).view_as(centres)
        shift = (moved - centres).square().sum(dim=(1, 2), keepdim=True)
        centres = torch.where(finished, centres, moved)
        finished = finished | (shift <= _TOLERANCE)
        if step % _LOOK_EVERY == _LOOK_EVERY - 1 and bool(finished.all()):
            break
    return centres


def _means(rows: Tensor, place: Tensor, places: int) -> Tensor:
    """Return the mean ``[places, n]`` of the rows at each place, zero where there is none.

    The order of a sum decides its rounding, and one that changes from run to run would move the clusters:
    ``index_put_`` has a fixed order on a GPU, ``index_add_`` on a CPU, and neither on the other.
    """
    sums = rows.new_zeros(places, rows.shape[1])
    counts = torch.zeros(places, dtype=torch.int64, device=rows.device)
    counts.scatter_add_(0, place, torch.ones_like(place))
    if rows.is_cuda:
        sums.index_put_((place,), rows, accumulate=True)
    else:
        sums.index_add_(0, place, rows)
    return sums / counts.clamp(min=1).unsqueeze(1)
