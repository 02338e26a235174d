"""The FunnyBirds protocol, on scenes of the bundled world or on a folder in the layout of the data set itself."""

from vitreous.judge.birds.folder import Folder, Layout
from vitreous.judge.birds.protocol import Importances, Interventions, disjoint_pairs, sufficient_sets
from vitreous.judge.birds.run import THRESHOLDS, funnybirds
from vitreous.judge.birds.scenes import Scenes
from vitreous.judge.birds.source import Change, Seen, Source

__all__ = [
    "THRESHOLDS",
    "Change",
    "Folder",
    "Importances",
    "Interventions",
    "Layout",
    "Scenes",
    "Seen",
    "Source",
    "disjoint_pairs",
    "funnybirds",
    "sufficient_sets",
]
