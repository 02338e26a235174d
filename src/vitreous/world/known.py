"""What is known about rendered scenes, as metrics ask for it: where the creature, its parts and all else are seen."""

from __future__ import annotations

import numpy as np

from vitreous.data import Truth
from vitreous.world.batch import Batch
from vitreous.world.creatures import PARTS
from vitreous.world.render import Rendered

__all__ = ["truths"]


def truths(scenes: Batch, rendered: Rendered) -> list[Truth]:
    """Return the truth of each scene.

    The mask is the creature's, its bare body included, and the box is that of the mask. Parts are those that the
    creature has, hidden ones as empty masks, then ``object 0`` to ``object 11`` and ``marker`` where they are there.
    """
    masks = {
        **{part: rendered.parts[:, place] for place, part in enumerate(PARTS)},
        **{f"object {place}": rendered.objects[:, place] for place in range(scenes.objects.shape[1])},
        "marker": rendered.marker,
    }
    arrays = {name: mask.cpu().numpy() for name, mask in masks.items()}
    there = {
        **{part: scenes.parts[:, 0, place] >= 0 for place, part in enumerate(PARTS)},
        **{f"object {place}": scenes.objects[:, place, 0] >= 0 for place in range(scenes.objects.shape[1])},
        "marker": scenes.marker[:, 0] >= 0,
    }
    known = {name: each.cpu().numpy() for name, each in there.items()}
    creatures = rendered.creature.cpu().numpy()
    return [
        Truth(
            creature,
            _boxes(creature),
            {name: array[scene] for name, array in arrays.items() if known[name][scene]},
        )
        for scene, creature in enumerate(creatures)
    ]


def _boxes(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> tuple[tuple[float, float, float, float], ...]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return ()
    return ((float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)),)
