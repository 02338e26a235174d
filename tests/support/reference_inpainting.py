"""The linear system of ROAD, solved directly."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor


def solved(image: Tensor, removed: Tensor) -> Tensor:
    """One equation for every removed pixel, written out and solved directly."""
    places = [tuple(place) for place in removed.nonzero().tolist()]
    number = {place: i for i, place in enumerate(places)}
    matrix, right = lil_matrix((len(places), len(places))), np.zeros((len(places), 3))
    for place, i in number.items():
        for down in (-1, 0, 1):
            for columns in (-1, 0, 1):
                other = (place[0] + down, place[1] + columns)
                if other == place or not all(0 <= c < n for c, n in zip(other, removed.shape, strict=True)):
                    continue
                weight = 1 / 12 if down and columns else 1 / 6
                matrix[i, i] += weight
                if other in number:
                    matrix[i, number[other]] -= weight
                else:
                    right[i] += weight * image[:, other[0], other[1]].double().numpy()
    built = image.double().clone()
    for place, values in zip(places, spsolve(matrix.tocsc(), right), strict=True):
        built[:, place[0], place[1]] = torch.from_numpy(values)
    return built
