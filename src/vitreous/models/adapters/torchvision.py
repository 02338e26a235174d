"""torchvision: names, weights and what they come with. The package itself is imported when a model needs it.

A torchvision module knows neither its name nor its preprocessing; both come from the weights of that name, of which
nothing need be downloaded for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, UnknownError
from vitreous.models.adapters import Convert, LibraryAdapter, first_line, size_pair
from vitreous.models.base import VisionModel
from vitreous.models.preprocess import Preprocess, as_preprocess, crop_ratio, steps_of
from vitreous.models.registry import ModelInfo, answers

_FAMILIES = ("vit_", "swin_", "resnet", "wide_resnet", "resnext", "densenet", "convnext_", "vgg", "efficientnet_")
_OLD_LAYER = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
_HEADS = ("head", "fc.", "classifier.")
_OLD_NAMES = {".mlp.linear_1.": ".mlp.0.", ".mlp.linear_2.": ".mlp.3."}


class TorchvisionAdapter(LibraryAdapter):
    """Names and weights of the family.

    Torchvision's weights of another size or number of classes fit: positions are interpolated by its own rule, and the
    head is left untrained.
    """

    prefix = "torchvision"

    def accepts(self, module: nn.Module) -> bool:
        return any(kind.__module__.startswith("torchvision.") for kind in type(module).__mro__)

    def wrap(self, module: nn.Module, **facts: Any) -> VisionModel:
        from vitreous.models.adapters.torchvision_models import FAMILIES

        for kind, family in FAMILIES.items():
            if isinstance(module, kind):
                return family(module, **facts)
        supported = [*(kind.__name__ for kind in FAMILIES), "and any convolutional network by a layer"]
        text = f"is not supported; supported: {', '.join(supported)}, as layer='features'"
        raise UnknownError(f"torchvision's {type(module).__name__} {text}")

    def _build(self, name: str, is_pretrained: bool, options: dict[str, Any]) -> nn.Module:
        weights = _weights(f"{self.prefix}/{name}")
        if weights is None:
            raise self._unknown(name)
        model = _create(name, _size(name, options.pop("img_size", None), weights), options)
        if is_pretrained:
            _fill(model, self._fetch(name, weights))
        return model

    def _fetch(self, name: str, weights: Any) -> dict[str, Tensor]:
        """Return torchvision's weights, from its cache or from the network."""
        url = urlparse(weights.url)
        if not (Path(torch.hub.get_dir()) / "checkpoints" / Path(url.path).name).exists() and not answers(weights.url):
            raise self._unfetched(name, f"{url.hostname} cannot be reached")
        try:
            return dict(weights.get_state_dict(progress=False, check_hash=True))
        except Exception as error:
            raise self._unfetched(name, first_line(error)[:160]) from error

    def _converter(self, model: nn.Module) -> Convert:
        return _convert

    def models(self) -> Iterable[ModelInfo]:
        return _models()


ADAPTER = TorchvisionAdapter()


def describe(name: str | None, stand_in: str, size: Any = None) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing and labels behind a name; those of ``stand_in`` for a model in hand.

    ``size``, one number or two, is that of the inputs where it is not that of the weights.
    """
    weights = (name and _weights(name)) or _weights(stand_in)
    return _preprocess(weights, None if size is None else size_pair(size)), list(weights.meta["categories"])


@cache
def _preprocess(weights: Any, size: tuple[int, int] | None) -> Preprocess:
    """Return what the transform of weights does, the same share of the picture cut out for another size.

    Torchvision's own takes squares; another shape is cut as a ``Preprocess`` does.
    """
    usual = as_preprocess(weights.transforms())
    if size is None or size == usual.size:
        return usual
    if size[0] == size[1]:
        resized = math.floor(size[0] / usual.crop)
        return as_preprocess(weights.transforms(crop_size=size[0], resize_size=resized))
    return Preprocess(size, usual.mean, usual.std, usual.interpolation, usual.crop)


_STEPS: dict[str, dict[str, str]] = {
    "ImageClassification": {
        "size": "resize_size", "crop": "crop_size", "filter": "interpolation", "mean": "mean", "std": "std"
    },
    "Resize": {"size": "size", "filter": "interpolation"},
    "CenterCrop": {"crop": "size"},
    "Normalize": {"mean": "mean", "std": "std"},
}  # fmt: skip
"""Torchvision's transforms, and which attributes of theirs say what."""


def data_of_steps(function: Any) -> Preprocess | None:
    """Read resize, centre crop and normalisation from a ``Compose``, or from the transform of torchvision's weights."""
    settings: dict[str, Any] = {"size": None, "crop": None, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    for step in steps_of(function):
        settings |= {name: getattr(step, key) for name, key in _STEPS.get(type(step).__name__, {}).items()}
    size, crop = ((value,) if isinstance(value, int) else value for value in (settings["size"], settings["crop"]))
    if size is None or (crop is None and len(size) == 1):
        return None
    resized = int(size[0]), int(size[-1])
    cropped = resized if crop is None else (int(crop[0]), int(crop[-1]))
    with suppress(ModelError):
        return Preprocess(
            size=cropped,
            mean=tuple(round(float(value), 6) for value in settings["mean"]),
            std=tuple(round(float(value), 6) for value in settings["std"]),
            interpolation=str(getattr(settings["filter"], "value", settings["filter"])),
            crop=crop_ratio(cropped[0], resized[0]),
            mode="center" if len(size) == 1 else "squash",
        )
    return None


# -- building and filling ------------------------------------------------------------------------------


def _create(name: str, size: tuple[int, int], options: dict[str, Any]) -> nn.Module:
    from torchvision.models import get_model

    arch = name.partition(".")[0]
    fixed = {"image_size": size[0]} if arch.startswith("vit_") else {}
    try:
        model: nn.Module = get_model(arch, weights=None, **fixed, **options)
    except Exception as error:
        reason = first_line(error)[:160]
        raise ModelError(f"could not build torchvision/{name} with {options}, size {size}: {reason}") from error
    if not fixed:
        model.image_size = size  # type: ignore[assignment]  # others take any size; noted as torchvision's ViT does
    return model


def _size(name: str, size: int | tuple[int, int] | None, weights: Any) -> tuple[int, int]:
    height, width = size_pair(weights.transforms().crop_size[0] if size is None else size)
    if min(height, width) < 1 or (name.startswith("vit_") and height != width):
        raise ModelError(f"torchvision/{name} cannot take images of {height} x {width} pixels")
    return height, width


def _convert(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Fit a table of tensors to a model: today's names, and positions for its image size."""
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    for old, new in _OLD_NAMES.items():
        tensors = {key.replace(old, new): value for key, value in tensors.items()}
    tensors = {_OLD_LAYER.sub(r"\1\2", key): value for key, value in tensors.items()}
    if isinstance(model, VisionTransformer) and "encoder.pos_embedding" in tensors:
        return dict(interpolate_embeddings(model.image_size, model.patch_size, tensors))
    return tensors


def _fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load torchvision's own weights; the head only where it has as many classes."""
    tensors, wanted = _convert(tensors, model), model.state_dict()
    head = [name for name in tensors if name.startswith(_HEADS) and tensors[name].shape != wanted[name].shape]
    model.load_state_dict({**tensors, **{name: wanted[name] for name in head}})


# -- what torchvision knows ----------------------------------------------------------------------------


def _weights(name: str) -> Any:
    """Return the entry for ``torchvision/vit_b_16`` or ``torchvision/vit_b_16.IMAGENET1K_V1``; None if unknown."""
    from torchvision.models import get_model_weights

    arch, _, tag = name.removeprefix("torchvision/").partition(".")
    if arch not in _names():
        return None
    entries = get_model_weights(arch)
    if tag and tag not in entries.__members__:
        raise ModelError(f"torchvision/{arch} has no weights {tag!r}; there are {', '.join(entries.__members__)}")
    return entries[tag] if tag else entries.DEFAULT


@cache
def _names() -> tuple[str, ...]:
    from torchvision import models

    return tuple(name for name in models.list_models(module=models) if name.startswith(_FAMILIES))


@cache
def _models() -> tuple[ModelInfo, ...]:
    from torchvision.models import get_model_weights

    def info(name: str, weights: Any) -> ModelInfo:
        size = weights.DEFAULT.transforms().crop_size[0]
        return ModelInfo(f"torchvision/{name}", "torchvision", size, tuple(weights.__members__))

    return tuple(info(name, get_model_weights(name)) for name in sorted(_names()))
