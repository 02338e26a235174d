"""What may be judged: Vitreous' own methods, and other people's explanations.

A callable ``(model, inputs, classes) -> maps``, an attribution object with ``attribute(inputs, target=…)`` as Captum's
have, a folder of ``.npy`` maps named like the pictures, or the maps themselves. A channel axis is summed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous import io as disk
from vitreous.datasets import Sample
from vitreous.errors import ImageError, MapError, ModelError, SpecError, VitreousError
from vitreous.methods import Method, get_method
from vitreous.models import VisionModel, copy_structure
from vitreous.models.shared_copy import check_model_unchanged

__all__ = ["ExternalExplainer", "named"]

_MOST_AT_ONCE = 32  # images that other people's code gets


@dataclass(frozen=True, eq=False)
class ExternalExplainer:
    """An explanation from elsewhere. ``live`` ones run the model, so they can be asked again about other inputs.

    ``bound`` ones have a model of their own inside, and cannot be asked about another.
    """

    find: Callable[[VisionModel, Sequence[Sample], Tensor, Tensor], Any]
    what: str
    live: bool
    bound: bool = False

    @property
    def class_specific(self) -> bool:
        """Whether another class may get another map; maps that are there already are those of any class."""
        return self.live

    def maps(self, name: str, model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Tensor:
        """Return maps ``[B, h, w]`` of these inputs, which were made of these samples."""
        parts = []
        for start in range(0, len(inputs), _MOST_AT_ONCE):
            cut = slice(start, start + _MOST_AT_ONCE)
            some = inputs[cut].detach().clone()
            with torch.enable_grad(), check_model_unchanged(model, name, content=self.live):
                raw = self.find(model, samples[cut], some, classes[cut].to(some.device))
            parts.append(_as_maps(name, raw, len(some)).to(inputs.device))
        return torch.cat(parts)


def named(given: Any) -> dict[str, Method | ExternalExplainer]:
    """Return everything that is to be judged by name; one method, a sequence or a mapping of names."""
    if isinstance(given, Mapping) and given:
        return {str(name): _understood(each) for name, each in given.items()}
    several = given if isinstance(given, list | tuple | Mapping) else [given]
    methods: dict[str, Method | ExternalExplainer] = {}
    for each in several:
        name, number = _name(each), 2
        if isinstance(each, str | Method) and name in methods:
            raise VitreousError(f"the method {name} is named twice")
        while name in methods:
            name, number = f"{_name(each)}-{number}", number + 1
        methods[name] = _understood(each)
    if not methods:
        raise VitreousError("there is nothing to judge: give at least one method")
    return methods


def _understood(given: Any) -> Method | ExternalExplainer:
    """Return what a user meant by one method."""
    if isinstance(given, Method):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and _is_place(given)):
        return _folder(Path(given))
    if isinstance(given, str):
        try:
            return get_method(given)
        except SpecError:
            if os.path.isdir(given):
                return _folder(Path(given))
            raise
    if isinstance(given, Tensor | np.ndarray):
        return _ready(given)
    if hasattr(given, "attribute"):
        return ExternalExplainer(lambda v, s, x, c: _attributed(given, v, x, c), "attribution object", True, True)
    if callable(given):
        return ExternalExplainer(
            lambda v, s, x, c: given(copy_structure(v.module, trainable=True), x, c), "callable", True
        )
    raise VitreousError(
        f"{given!r} is no method: give a spelling, a callable, an attribution object or a folder of maps"
    )


def _name(given: Any) -> str:
    if isinstance(given, str):
        return Path(given).name if _is_place(given) else given.strip()
    if isinstance(given, Method):
        return given.spec
    if isinstance(given, Path):
        return given.name
    return "maps" if isinstance(given, Tensor | np.ndarray) else getattr(given, "__name__", type(given).__name__)


def _is_place(text: str) -> bool:
    """Whether a text is a path and no spelling; a spelling may hold one, as of statistics or baselines."""
    return os.sep in text and ("(" not in text or os.path.isdir(text))


def _folder(folder: Path) -> ExternalExplainer:
    if not os.path.isdir(folder):
        raise ImageError(f"no such folder of maps: {folder}")

    def find(model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> list[Any]:
        return [_loaded(folder / f"{Path(sample.image.name).stem}.npy") for sample in samples]

    return ExternalExplainer(find, f"maps in {folder}", False)


def _loaded(path: Path) -> Any:
    try:
        with disk.open_file(path) as file:
            return np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise MapError(f"there is no map {path}") from None
    except (OSError, ValueError) as error:
        raise MapError(f"the map {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _ready(maps: Any) -> ExternalExplainer:
    def find(model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Any:
        places = [sample.index for sample in samples]
        if max(places) >= len(maps):
            raise MapError(f"{len(maps)} maps were given, fewer than there are pictures")
        return maps[places]

    return ExternalExplainer(find, "maps", False)


def _as_maps(name: str, raw: Any, batch: int) -> Tensor:
    """Return raw maps as ``[B, h, w]`` in at least float32, channels summed."""
    try:
        if isinstance(raw, list | tuple) and not isinstance(raw[0], int | float):
            maps = torch.stack([_flat(torch.as_tensor(each)) for each in raw])
        else:
            maps = torch.as_tensor(raw).detach()
            maps = maps[None] if maps.ndim == 2 and batch == 1 else maps
            maps = maps.sum(dim=1) if maps.ndim == 4 else maps
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise MapError(f"{name} gave no maps: {error}") from None
    if maps.ndim != 3 or len(maps) != batch or not maps.numel() or maps.is_complex():
        raise MapError(f"{name} gave {list(maps.shape)} for {batch} images; a map is [h, w] for each of them")
    return maps if maps.dtype == torch.float64 else maps.float()


def _flat(one: Tensor) -> Tensor:
    return one.detach().sum(dim=0) if one.ndim == 3 else one.detach()


def _attributed(given: Any, model: VisionModel, inputs: Tensor, classes: Tensor) -> Any:
    """Ask an attribution object, which knows the user's own model: its gradients and flags are put back afterwards."""
    if any(module.training for module in model.module.modules()):
        raise ModelError(f"{model.name} is in training mode; call .eval() before an attribution object runs it")
    before = [(parameter, parameter.grad, parameter.requires_grad) for parameter in model.module.parameters()]
    try:
        return given.attribute(inputs, target=classes)
    finally:
        for each, gradient, flag in before:
            each.grad = gradient
            each.requires_grad_(flag)
