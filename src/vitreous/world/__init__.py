"""A world with known answers: procedural scenes whose every part is known, and four models trained on them.

``render(draw(seeds))`` gives pictures and masks, ``Scene.of(seed)`` a scene to change by hand, ``World`` a data set,
and ``vitreous.load("world")`` the model that lives in it, ``vitreous.load("world-cnn")`` a residual network.
"""

from vitreous.world.dataset import BETRAYED, Mosaics, World, betray, difficult, mosaics, pair, remove_parts, shrink
from vitreous.world.render import Rendered, render
from vitreous.world.sampling import Batch, draw
from vitreous.world.scene import Creature, Ground, Light, Marker, Pose, Scene, Thing, pack, unpack
from vitreous.world.species import CLASSES, NAMES, PARTS, VARIANTS, Kind, telling_part

__all__ = [
    "Scene",
    "Creature",
    "Pose",
    "Light",
    "Ground",
    "Thing",
    "Marker",
    "Batch",
    "draw",
    "pack",
    "unpack",
    "Rendered",
    "render",
    "World",
    "Mosaics",
    "mosaics",
    "pair",
    "difficult",
    "betray",
    "remove_parts",
    "shrink",
    "BETRAYED",
    "CLASSES",
    "NAMES",
    "PARTS",
    "VARIANTS",
    "Kind",
    "telling_part",
]
