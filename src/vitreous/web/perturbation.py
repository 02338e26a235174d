"""Short questions: what the model says about a picture, and what it says when some patches are gone."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import vitreous as vt
from vitreous.errors import ModelError, TargetError

# Patches go as on the page of ``why``.
from vitreous.evaluation.evidence import blurred, replaced

# The facade gives logits; probabilities of a head of one logit are two.
from vitreous.tracing import probabilities
from vitreous.web.images import Photo
from vitreous.web.schemas import Refused, png

__all__ = ["FILLS", "chances", "changed", "predicted", "removed", "seen", "top"]

FILLS = ("blur", "mean", "black")
_TOP = 10


def seen(model: vt.VisionModel, photo: Photo) -> Image.Image:
    """Return what the model sees of a picture, in 8 bits."""
    return model.preprocess.inputs(photo.image)[1]


def chances(model: vt.VisionModel, picture: Image.Image) -> Tensor:
    """Return the probability of every class for exactly this picture, already cut to size."""
    told = probabilities(model.logits(model.preprocess.to_tensor(picture)[None]))[0].cpu()
    if not bool(told.isfinite().all()):
        raise ModelError(f"what {model.name} says is not finite")
    return told


def top(model: vt.VisionModel, given: Tensor) -> list[dict[str, Any]]:
    """Return the most probable classes."""
    order = given.argsort(descending=True, stable=True)[:_TOP].tolist()
    return [{"index": each, "label": model.label(each), "probability": float(given[each])} for each in order]


def predicted(model: vt.VisionModel, photo: Photo, picture: Image.Image) -> dict[str, Any]:
    """Return what the model says, and what is true where that is known."""
    began = time.perf_counter()
    said = top(model, chances(model, picture))
    truth = None
    if photo.truth is not None:
        try:
            index = model.class_index(photo.truth)
            truth = {"index": index, "label": model.label(index)}
        except TargetError:
            truth = None
    return {"top": said, "truth": truth, "milliseconds": 1000 * (time.perf_counter() - began)}


def removed(
    model: vt.VisionModel, picture: Image.Image, gone: np.ndarray[Any, Any], fill: str, target: int | None
) -> dict[str, Any]:
    """Return the picture without some patches, and what the model says about exactly that picture."""
    without = changed(picture, gone, fill)
    told = chances(model, without)
    if target is None:
        target = int(chances(model, picture).argmax())
    if not target < len(told):
        raise Refused(422, f"{model.name} has no class {target}: it has {len(told)}")
    return {"picture": png(without), "top": top(model, told), "probability": float(told[target]), "target": target}


def changed(picture: Image.Image, gone: np.ndarray[Any, Any], fill: str) -> Image.Image:
    """Return a picture whose patches that are gone come from a blurred copy, its mean colour, or are black."""
    return replaced(picture, blurred(picture) if fill == "blur" else _flat(picture, fill), torch.from_numpy(gone > 0))


def _flat(picture: Image.Image, fill: str) -> Image.Image:
    mean = np.asarray(picture.convert("RGB"), np.float64).mean(axis=(0, 1)).round()
    colour = (0, 0, 0) if fill == "black" else tuple(int(each) for each in mean)
    return Image.new("RGB", picture.size, colour)
