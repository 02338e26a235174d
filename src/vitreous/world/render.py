"""From scenes to pixels: signed distance fields, evaluated where they matter, for many scenes at once.

The same picture everywhere: only additions, products, quotients and roots of float32, one operation at a time and
each correctly rounded, so that neither the batch nor the processor changes a pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.world.batch import MOST_OBJECTS, Batch
from vitreous.world.creatures import BODY, OBJECTS, PARTS, VARIANTS, strokes
from vitreous.world.paint import Canvas, Frame, Shapes, rgb
from vitreous.world.scene import Scene, pack
from vitreous.world.surroundings import ground, light

__all__ = ["MARKER", "OWNERS", "Rendered", "render"]

_PIGMENTS = ("5b8c4a", "a7c957", "e9c46a", "d98e5f", "9c6b4f", "8d99ae", "c8d5e6", "b56576", "f2e8cf", "6d597a")
MARKER = ("e63946", "ffb703", "2a9d8f", "f1faee")
"""The four colours of a marker's four cells; a class is a number in base four."""
_MARKER_SIDE, _MARKER_EDGE = 0.125, 0.02
_ANCHORS = {"horn": (0.0, -0.38), "eyes": (0.0, 0.0), "coat": (0.0, 0.0), "legs": (0.0, 0.3), "tail": (0.3, 0.26)}
_TURNS = {"horn": 5, "legs": 6, "tail": 7}
"""Where in a pose the turn of a part about its anchor stands."""
_ORDER = ("tail", "legs", "coat", "horn", "eyes")
"""From the back to the front."""
_CHUNK = {"cpu": 16, "cuda": 1024}

_GROUND, _BODY, _PART, _OBJECT, _MARK, _OTHER = 0, 1, 2, 7, 19, 20
OWNERS = {
    name: number
    for number, name in enumerate(
        ["ground", "body", *PARTS, *(f"object {i}" for i in range(MOST_OBJECTS)), "marker", "companion's body"]
        + [f"companion's {part}" for part in PARTS]
    )
}
"""Whose pixel it is."""


@dataclass(frozen=True)
class Rendered:
    """Pictures, and for every pixel who is seen there."""

    images: Tensor
    """``[B, 3, S, S]`` in [0, 1]."""
    owner: Tensor
    """``[B, S, S]``, uint8: whose pixel it is, see ``OWNERS``."""

    @property
    def parts(self) -> Tensor:
        """Where horn, eyes, coat, legs and tail are seen: ``[B, 5, S, S]``, boolean."""
        return self._each(_PART, len(PARTS))

    @property
    def objects(self) -> Tensor:
        """Where each background object is seen: ``[B, 12, S, S]``, boolean."""
        return self._each(_OBJECT, MOST_OBJECTS)

    @property
    def creature(self) -> Tensor:
        """Where the creature is seen, bare body included: ``[B, S, S]``, boolean."""
        return (self.owner >= _BODY) & (self.owner < _OBJECT)

    @property
    def companion(self) -> Tensor:
        """Where the companion is seen: ``[B, S, S]``, boolean."""
        return self.owner >= _OTHER

    @property
    def marker(self) -> Tensor:
        """Where the marker is seen: ``[B, S, S]``, boolean."""
        return self.owner == _MARK

    def __len__(self) -> int:
        return len(self.images)

    def _each(self, first: int, count: int) -> Tensor:
        wanted = torch.arange(first, first + count, dtype=torch.uint8, device=self.owner.device)
        return self.owner.unsqueeze(1) == wanted.view(1, -1, 1, 1)


def render(
    scenes: Batch | Scene | Sequence[Scene], size: int = 128, device: str | torch.device | None = None
) -> Rendered:
    """Draw scenes as pictures of ``size`` x ``size`` pixels.

    Where the shapes are comes from their signed distance d: coverage is clamp(1/2 - d / pixel), painted back to front.
    """
    check_size(size)
    batch = scenes if isinstance(scenes, Batch) else pack([scenes] if isinstance(scenes, Scene) else scenes)
    if not len(batch):
        raise VitreousError("there is no scene to render")
    if device is not None:
        batch = batch.to(device)
    chunk = _CHUNK.get(batch.seed.device.type, 1024)
    step = max(1, min(chunk, chunk * 128**2 // size**2))  # memory is bounded, whatever the size
    layers = _Layers(bool((batch.label[:, 1] >= 0).any()), bool((batch.objects[:, :, 7] > 0).any()))
    with torch.no_grad():
        done = [_render(batch[at : at + step], size, layers) for at in range(0, len(batch), step)]
    return Rendered(torch.cat([images for images, _ in done]), torch.cat([owner for _, owner in done]))


def check_size(size: int) -> None:
    """Refuse what is no size of a picture."""
    if not isinstance(size, int) or isinstance(size, bool) or not 16 <= size <= 4096:
        raise VitreousError(f"size={size!r:.60} is not a whole number of pixels in 16..4096")


@dataclass(frozen=True)
class _Layers:
    """What of the seldom things any scene of the batch has."""

    companion: bool
    front: bool


def _render(batch: Batch, size: int, layers: _Layers) -> tuple[Tensor, Tensor]:
    canvas = Canvas(ground(batch.ground, size))
    _objects(canvas, batch.objects, 0)
    if layers.companion:
        _creature(canvas, batch.parts[:, 1], batch.pose[:, 1], batch.label[:, 1] >= 0, _OTHER)
    _creature(canvas, batch.parts[:, 0], batch.pose[:, 0], batch.label[:, 0] >= 0, _BODY)
    if layers.front:
        _objects(canvas, batch.objects, 1)
    images = canvas.images * light(batch.light, size)
    images, owner = _mark(images.clamp_(0, 1), canvas.owner, batch.marker)
    return images, owner


def _creature(canvas: Canvas, parts: Tensor, pose: Tensor, shown: Tensor, first: int) -> None:
    """Paint a creature from the back to the front; ``first`` is the owner of its body, its parts follow."""
    x, y, scale, angle, mirrored = pose[:, :5].unbind(1)
    unit = scale.clamp(min=1) / 1000
    frame = Frame(x / 1000, y / 1000, unit, angle, 1.0 - 2.0 * mirrored, float(unit.max()))
    for part in _ORDER:
        place = PARTS.index(part)
        variant = parts[:, place]
        there = shown & (variant >= 0)
        owner: Tensor | int = first + 1 + place
        if part == "coat":  # without a coat the bare body, which is nobody's part
            owner = torch.where(variant >= 0, first + 1 + place, first)
            variant, there = torch.where(variant >= 0, variant, len(VARIANTS[part])), shown
        turn = pose[:, _TURNS[part]] if part in _TURNS else 0
        canvas.paint(frame.at(_ANCHORS[part], turn), _drawn(part, parts.device), variant.clamp(min=0), there, owner)


def _objects(canvas: Canvas, objects: Tensor, front: int) -> None:
    pigments = torch.tensor([rgb(each) for each in _PIGMENTS], device=objects.device)
    largest = max(float(objects[:, :, 3].max()), 1.0) / 1000
    upright = torch.ones(len(objects), device=objects.device)
    for place in range(MOST_OBJECTS):
        kind, x, y, size, angle, first, second, before = objects[:, place].unbind(1)
        frame = Frame(x / 1000, y / 1000, size.clamp(min=1) / 1000, angle.clamp(min=0), upright, largest)
        shown = (kind >= 0) & (before == front)
        colours = pigments[torch.stack([first, second], dim=1).clamp(min=0)]
        drawn = _drawn("object", objects.device)
        canvas.paint(frame, drawn, kind.clamp(min=0), shown, _OBJECT + place, pigments=colours)


@cache
def _drawn(what: str, device: torch.device) -> Shapes:
    if what == "object":
        return Shapes(list(OBJECTS.values()), device, line=0.07)
    drawings = [strokes(what, variant) for variant in VARIANTS[what]]
    if what == "coat":
        drawings.append(BODY)
    return Shapes(drawings, device, _ANCHORS[what], mirrored=what != "tail", clipped=what == "coat")


def _mark(images: Tensor, owner: Tensor, marker: Tensor) -> tuple[Tensor, Tensor]:
    """Lay a sticker of two by two coloured cells into a corner, under its own light."""
    size = images.shape[-1]
    side, edge = round(_MARKER_SIDE * size), round(_MARKER_EDGE * size)
    cell = side // 2
    code, corner = marker[:, 0], marker[:, 1]
    palette = torch.tensor([rgb(each) for each in MARKER], device=images.device)
    at = torch.arange(size, device=images.device)
    far = size - edge - 2 * cell
    x, y = (torch.where(corner // step % 2 == 1, far, edge).unsqueeze(1) for step in (1, 2))
    column, row = ((at - start) // cell for start in (x, y))
    inside = ((row >= 0) & (row < 2)).unsqueeze(2) & ((column >= 0) & (column < 2)).unsqueeze(1)
    inside = inside & (code >= 0).view(-1, 1, 1)
    number = row.clamp(0, 1).unsqueeze(2) * 2 + column.clamp(0, 1).unsqueeze(1)
    digit = code.clamp(min=0).view(-1, 1, 1) // 4**number % 4
    painted = palette[digit].permute(0, 3, 1, 2)
    return torch.where(inside.unsqueeze(1), painted, images), torch.where(inside, _MARK, owner).to(torch.uint8)
