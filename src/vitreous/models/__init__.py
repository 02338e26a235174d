"""Models: one adapter per family; a ``VisionModel`` is a model plus the few facts everyone needs."""

from vitreous.models.base import VisionModel
from vitreous.models.identity import ModelIdentity, Snapshot
from vitreous.models.pooling import Pooling
from vitreous.models.preprocess import Box, Preprocess
from vitreous.models.registry import Adapter, ModelInfo, list_models, load, register_adapter, wrap
from vitreous.models.shared_copy import copy_structure
from vitreous.models.structure import Norm, Weights
from vitreous.models.submodels import ReferenceModel, SubModel

__all__ = [
    "ReferenceModel",
    "Adapter",
    "Box",
    "ModelIdentity",
    "ModelInfo",
    "Norm",
    "Pooling",
    "Preprocess",
    "Snapshot",
    "SubModel",
    "VisionModel",
    "Weights",
    "load",
    "list_models",
    "register_adapter",
    "copy_structure",
    "wrap",
]
