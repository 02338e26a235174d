"""A world with known answers: procedural scenes whose every part is known, and four models trained on them.

``render(draw(seeds))`` gives images and masks, ``Scene.of(seed)`` a scene to change by hand, ``World`` a data set,
and ``vitreous.load("world")`` the model that lives in it, ``vitreous.load("world-cnn")`` a residual network. Importing
this package makes its scenes a source of data.
"""

from vitreous.world.dataset import (
    MARKED_CLASSES,
    Mosaics,
    World,
    add_marker,
    make_difficult,
    make_mosaics,
    pair,
    remove_parts,
    shrink,
)
from vitreous.world.render import Rendered, render
from vitreous.world.sampling import Batch, draw
from vitreous.world.scene import BackgroundObject, Creature, Ground, Light, Marker, Pose, Scene, pack, unpack
from vitreous.world.species import CLASSES, NAMES, PARTS, VARIANTS, Species, distinctive_part

__all__ = [
    "CLASSES",
    "MARKED_CLASSES",
    "NAMES",
    "PARTS",
    "VARIANTS",
    "BackgroundObject",
    "Batch",
    "Creature",
    "Ground",
    "Light",
    "Marker",
    "Mosaics",
    "Pose",
    "Rendered",
    "Scene",
    "Species",
    "World",
    "add_marker",
    "distinctive_part",
    "draw",
    "make_difficult",
    "make_mosaics",
    "pack",
    "pair",
    "remove_parts",
    "render",
    "shrink",
    "unpack",
]
