"""Models: one adapter per family; a ``View`` is a model plus the few facts everyone needs."""

from vitreous.models.identity import ModelIdentity, Snapshot
from vitreous.models.parts import BesideView, SubView
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Box, Preprocess
from vitreous.models.registry import Adapter, ModelInfo, load, models, register_adapter, view
from vitreous.models.twin import twin
from vitreous.models.view import View
from vitreous.models.weights import Norm, Weights
from vitreous.words import listed_by

__all__ = [
    "BesideView",
    "Adapter",
    "Box",
    "ModelIdentity",
    "ModelInfo",
    "Norm",
    "Pooling",
    "Preprocess",
    "Snapshot",
    "SubView",
    "View",
    "Weights",
    "load",
    "models",
    "register_adapter",
    "twin",
    "view",
]

listed_by(__name__, models)
