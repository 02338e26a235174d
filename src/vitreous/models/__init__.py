"""Models: one adapter per family; a ``View`` is a model plus the few facts everyone needs."""

from vitreous.models.base import View
from vitreous.models.identity import ModelIdentity, Snapshot
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Box, Preprocess
from vitreous.models.registry import Adapter, ModelInfo, load, models, register_adapter, view
from vitreous.models.shared_copy import twin
from vitreous.models.structure import Norm, Weights
from vitreous.models.submodels import BesideView, SubView
from vitreous.registry import listed_by

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
