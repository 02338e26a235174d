"""What may be judged: Vitreous' own methods, and other people's explanations.

A callable ``(model, inputs, classes) -> maps``, an attribution object with ``attribute(inputs, target=…)`` as Captum's
have, a folder of ``.npy`` maps named like the pictures, or the maps themselves. A channel axis is summed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.data.pictures import Picture
from vitreous.errors import ImageError, MapError, ModelError, SpellingError, VitreousError
from vitreous.methods import Method, answer, method
from vitreous.metrics import Maps
from vitreous.metrics.curves import Array
from vitreous.models import View, twin
from vitreous.passes import Session, Target

__all__ = ["Foreign", "explain_chunk", "named"]

_MOST_AT_ONCE = 32  # images that other people's code gets


class Foreign:
    """An explanation from elsewhere; ``find`` gets pictures, inputs, classes and the place of the first picture."""

    def __init__(
        self, find: Callable[[View, Sequence[Picture], Tensor, Tensor, int], Any], what: str, class_specific: bool
    ) -> None:
        self.find, self.what, self.class_specific = find, what, class_specific

    def maps(
        self, name: str, view: View, pictures: Sequence[Picture], inputs: Tensor, classes: Tensor, at: int
    ) -> Tensor:
        """Return maps ``[B, h, w]`` of these pictures."""
        parts = []
        for start in range(0, len(inputs), _MOST_AT_ONCE):
            cut = slice(start, start + _MOST_AT_ONCE)
            some = inputs[cut].detach().clone()
            with torch.enable_grad():
                found = self.find(view, pictures[cut], some, classes[cut].to(some.device), at + start)
            parts.append(_as_maps(name, found, len(some)).to(inputs.device))
        return torch.cat(parts)


def named(given: Any) -> dict[str, Method | Foreign]:
    """Return everything that is to be judged by name; one method, a sequence or a mapping of names."""
    if isinstance(given, Mapping):
        return {str(name): _understood(each) for name, each in given.items()}
    several = given if isinstance(given, list | tuple) else [given]
    found: dict[str, Method | Foreign] = {}
    for each in several:
        name, number = _name(each), 2
        if isinstance(each, str | Method) and name in found:
            raise VitreousError(f"the method {name} is named twice")
        while name in found:
            name, number = f"{_name(each)}-{number}", number + 1
        found[name] = _understood(each)
    if not found:
        raise VitreousError("there is nothing to judge: give at least one method")
    return found


def explain_chunk(
    view: View,
    hows: Mapping[str, Method | Foreign],
    pictures: Sequence[Picture],
    inputs: Tensor,
    classes: Mapping[str, Tensor],
    *,
    value: str = "logit",
    seed: int = 0,
    memory: float | None = None,
    at: int = 0,
) -> dict[str, Maps]:
    """Explain every picture for every class asked for, each class once; ``classes`` has one per picture by mode."""
    passes, rows = _passes(classes)
    own = {name: how for name, how in hows.items() if isinstance(how, Method)}
    values: dict[str, list[Tensor]] = {name: [] for name in hows}
    for number, (images, wanted) in enumerate(passes):
        some = inputs[images]
        asked = {name: how for name, how in own.items() if number == 0 or how.class_specific}
        if asked:
            session = Session(view, some, Target(classes=wanted.cpu(), value=value), seed, memory=memory)
            for name, found in zip(asked, answer(session, asked.values(), check=False), strict=True):
                values[name].append(found.map)
        for name, how in hows.items():
            if isinstance(how, Foreign) and (number == 0 or how.class_specific):
                shown = [pictures[i] for i in images.tolist()]
                values[name].append(how.maps(name, view, shown, some, wanted, at))
    everyone = np.arange(len(inputs))
    return {
        name: Maps(torch.cat(values[name]), rows if how.class_specific else dict.fromkeys(rows, everyone))
        for name, how in hows.items()
    }


def _passes(classes: Mapping[str, Tensor]) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Any]]:
    """Return which images to explain for which classes, nothing twice, and the rows of each mode."""
    passes: list[tuple[Tensor, Tensor]] = []
    rows: dict[str, Any] = {}
    total = 0
    known: dict[str, Tensor] = {}
    for mode, wanted in classes.items():
        mine: Array = np.full(len(wanted), -1)
        for earlier, their in known.items():
            mine = np.where((mine < 0) & (wanted == their).cpu().numpy(), rows[earlier], mine)
        new = np.flatnonzero(mine < 0)
        if len(new):
            mine[new] = total + np.arange(len(new))
            total += len(new)
            images = torch.from_numpy(new)
            passes.append((images, wanted[images.to(wanted.device)]))
        rows[mode], known[mode] = mine, wanted
    return passes, rows


def _understood(given: Any) -> Method | Foreign:
    """Return what a user meant by one method."""
    if isinstance(given, Method):
        return given
    if isinstance(given, Path) or (isinstance(given, str) and os.sep in given):
        return _folder(Path(given))
    if isinstance(given, str):
        try:
            return method(given)
        except SpellingError:
            if os.path.isdir(given):
                return _folder(Path(given))
            raise
    if isinstance(given, Tensor | np.ndarray):
        return _ready(given)
    if hasattr(given, "attribute"):
        return Foreign(lambda v, p, x, c, at: _attributed(given, v, x, c), "attribution object", True)
    if callable(given):
        return Foreign(lambda v, p, x, c, at: given(twin(v.model, trainable=True), x, c), "callable", True)
    raise VitreousError(
        f"{given!r} is no method: give a spelling, a callable, an attribution object or a folder of maps"
    )


def _name(given: Any) -> str:
    if isinstance(given, str):
        return given.strip() if os.sep not in given else Path(given).name
    if isinstance(given, Method):
        return given.spelling
    if isinstance(given, Path):
        return given.name
    return "maps" if isinstance(given, Tensor | np.ndarray) else getattr(given, "__name__", type(given).__name__)


def _folder(folder: Path) -> Foreign:
    if not os.path.isdir(folder):
        raise ImageError(f"no such folder of maps: {folder}")

    def find(view: View, pictures: Sequence[Picture], inputs: Tensor, classes: Tensor, at: int) -> list[Any]:
        return [_loaded(folder / f"{Path(picture.name).stem}.npy") for picture in pictures]

    return Foreign(find, f"maps in {folder}", False)


def _loaded(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise MapError(f"there is no map {path}") from None
    except (OSError, ValueError) as error:
        raise MapError(f"the map {path} cannot be read: {error}") from None


def _ready(maps: Any) -> Foreign:
    def find(view: View, pictures: Sequence[Picture], inputs: Tensor, classes: Tensor, at: int) -> Any:
        if at + len(inputs) > len(maps):
            raise MapError(f"{len(maps)} maps were given, fewer than there are pictures")
        return maps[at : at + len(inputs)]

    return Foreign(find, "maps", False)


def _as_maps(name: str, found: Any, batch: int) -> Tensor:
    """Return what was found as ``[B, h, w]`` in at least float32, channels summed."""
    try:
        if isinstance(found, list | tuple) and not isinstance(found[0], int | float):
            maps = torch.stack([_flat(torch.as_tensor(each)) for each in found])
        else:
            maps = torch.as_tensor(found).detach()
            maps = maps[None] if maps.ndim == 2 and batch == 1 else maps
            maps = maps.sum(dim=1) if maps.ndim == 4 else maps
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise MapError(f"{name} gave no maps: {error}") from None
    if maps.ndim != 3 or len(maps) != batch or not maps.numel() or maps.is_complex():
        raise MapError(f"{name} gave {list(maps.shape)} for {batch} images; a map is [h, w] for each of them")
    return maps if maps.dtype == torch.float64 else maps.float()


def _flat(one: Tensor) -> Tensor:
    return one.detach().sum(dim=0) if one.ndim == 3 else one.detach()


def _attributed(given: Any, view: View, inputs: Tensor, classes: Tensor) -> Any:
    """Ask an attribution object, which knows the user's own model: its gradients and flags are put back afterwards."""
    if any(module.training for module in view.model.modules()):
        raise ModelError(f"{view.name} is in training mode; call .eval() before an attribution object runs it")
    before = [(each, each.grad, each.requires_grad) for each in view.model.parameters()]
    try:
        return given.attribute(inputs, target=classes)
    finally:
        for each, gradient, flag in before:
            each.grad = gradient
            each.requires_grad_(flag)
