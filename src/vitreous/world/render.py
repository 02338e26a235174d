"""From scenes to pixels: signed distance fields, evaluated in windows where they matter, for many scenes at once.

The same image everywhere: only additions, products, quotients and roots of float32, one operation at a time and each
correctly rounded, so that neither the batch nor the processor changes a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.world.sampling import MAX_OBJECTS, Batch, check_number, uniform
from vitreous.world.scene import Scene, pack
from vitreous.world.species import BODY, OBJECTS, PARTS, VARIANTS, Stroke
from vitreous.world.species import strokes as strokes_of

_INK = "2b2233"


class Canvas:
    """Images with a margin, so that a window around a shape never leaves them."""

    def __init__(self, images: Tensor) -> None:
        count, _, self.size, _ = images.shape
        self.margin = math.ceil(self.size * 0.75)
        self.side = self.size + 2 * self.margin
        self.pixels = images.new_zeros(3, count, self.side * self.side)
        self.owners = torch.zeros(count, self.side * self.side, dtype=torch.uint8, device=images.device)
        self._cut(self.pixels).copy_(images.transpose(0, 1))

    def _cut(self, values: Tensor) -> Tensor:
        inside = slice(self.margin, self.margin + self.size)
        return values.view(*values.shape[:-1], self.side, self.side)[..., inside, inside]

    @property
    def images(self) -> Tensor:
        return self._cut(self.pixels).transpose(0, 1)

    @property
    def owner(self) -> Tensor:
        return self._cut(self.owners).contiguous()

    def paint(
        self,
        frame: Frame,
        shapes: Shapes,
        which: Tensor,
        visible: Tensor,
        owner: Tensor,
        pigments: Tensor | None = None,
    ) -> None:
        """Paint the ``which``-th of these shapes into every image where it is ``visible``."""
        half = math.ceil(shapes.reach * frame.largest * self.size) + 2
        x, y = frame.place(shapes.centre)
        span = torch.arange(-half, half, device=which.device)
        columns, rows = ((at * self.size).floor().long().unsqueeze(1) + span for at in (x, y))
        u, v = frame.local((columns + 0.5) / self.size, (rows + 0.5) / self.size)
        colour, alpha = shapes.cover(which, u, v, (frame.scale * self.size).view(-1, 1, 1), pigments)
        alpha = (alpha * visible.view(-1, 1, 1)).flatten(1)
        columns, rows = ((at + self.margin).clamp(0, self.side - 1) for at in (columns, rows))
        places = (rows.unsqueeze(2) * self.side + columns.unsqueeze(1)).flatten(1)
        for pixels, paint in zip(self.pixels, colour, strict=True):
            below = pixels.gather(1, places)
            pixels.scatter_(1, places, below + (paint.flatten(1) - below) * alpha)
        ids = owner.to(torch.uint8).unsqueeze(1)
        self.owners.scatter_(1, places, torch.where(alpha > 0.5, ids, self.owners.gather(1, places)))


@dataclass(frozen=True)
class Frame:
    """Where a thing's own coordinates lie in the image: origin, unit, turn and whether it is mirrored."""

    x: Tensor
    y: Tensor
    scale: Tensor
    angle: Tensor
    mirror: Tensor
    largest: float

    @property
    def turn(self) -> Tensor:
        return directions(self.x.device)[self.angle % 360]

    def place(self, point: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Return where in the image a point lies."""
        cos, sin = self.turn.unbind(1)
        dx, dy = self.mirror * point[0] * self.scale, point[1] * self.scale
        return self.x + (dx * cos - dy * sin), self.y + (dx * sin + dy * cos)

    def local(self, columns: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return own coordinates ``[B, rows, columns]`` of a window."""
        cos, sin = (self.turn / self.scale.unsqueeze(1)).unsqueeze(2).unbind(1)
        dx, dy = columns - self.x.unsqueeze(1), rows - self.y.unsqueeze(1)
        mirror = self.mirror.unsqueeze(1)
        u = (dy * sin * mirror).unsqueeze(2) + (dx * cos * mirror).unsqueeze(1)
        v = (dy * cos).unsqueeze(2) - (dx * sin).unsqueeze(1)
        return u, v

    def at(self, point: tuple[float, float], turn: Tensor | int = 0) -> Frame:
        """Return the frame of something that hangs at a point of this one, turned about it."""
        x, y = self.place(point)
        return Frame(x, y, self.scale, self.angle + self.mirror.long() * turn, self.mirror, self.largest)


class Shapes:
    """Several drawings of strokes as one table, their coordinates from an anchor on."""

    def __init__(
        self,
        drawings: Sequence[Sequence[Stroke]],
        device: torch.device,
        anchor: tuple[float, float] = (0.0, 0.0),
        mirrored: bool = True,
        clipped: bool = False,
        line: float = 0.026,
    ) -> None:
        most = max(map(len, drawings))
        nothing: Stroke = (0.0, 0.0, 0.0, 0.0, -9.0, -9.0, "000000")
        rows = [[_numbers(s, anchor) for s in (*drawing, *[nothing] * (most - len(drawing)))] for drawing in drawings]
        self.table = torch.tensor(rows, device=device)
        self.mirrored, self.clipped, self.line = mirrored, clipped, line
        strokes = [stroke for drawing in drawings for stroke in drawing]
        ends = [end for ax, ay, bx, by, ra, rb, _ in strokes for end in ((ax, ay, ra), (bx, by, rb))]
        ends += [(-x, y, r) for x, y, r in ends] if mirrored else []
        self.centre, self.reach = _extent([(x - anchor[0], y - anchor[1], r + line) for x, y, r in ends])

    def cover(
        self, which: Tensor, u: Tensor, v: Tensor, pixels: Tensor, pigments: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Return three colour planes and how much of every pixel is covered, outline included.

        ``pixels`` is how many of them a unit is long; ``pigments`` ``[B, 2, 3]`` stand for the letters a and b.
        """
        if self.mirrored:
            u = u.abs()
        table = self.table[which]
        colours = table[:, :, 8:]
        if pigments is not None:
            colours = pigments.gather(1, colours[:, :, :1].long().expand(-1, -1, 3))
        table, colours = (values.unsqueeze(3).unsqueeze(3) for values in (table, colours))
        distances = [_distance(stroke, u, v) for stroke in table.unbind(1)]
        edge = distances[0] if self.clipped else reduce(torch.minimum, distances)
        alpha = _coverage(edge - self.line, pixels)
        planes = [torch.full_like(u, value) for value in rgb(_INK)]
        body = _coverage(distances[0], pixels) if self.clipped else None
        for distance, colour in zip(distances, colours.unbind(1), strict=True):
            cover = _coverage(distance, pixels)
            if body is not None:
                cover = cover * body
            for plane, paint in zip(planes, colour.unbind(1), strict=True):
                plane += (paint - plane) * cover
        if self.clipped:  # rounder: darker towards the edge
            shade = (distances[0] * -4).clamp_(0, 1) * 0.2 + 0.8
            planes = [plane * shade for plane in planes]
        return planes, alpha


def _extent(discs: Sequence[tuple[float, float, float]]) -> tuple[tuple[float, float], float]:
    """Return the middle of discs (x, y, radius), and how far from it they reach."""
    x, y = ((min(d[i] - d[2] for d in discs) + max(d[i] + d[2] for d in discs)) / 2 for i in (0, 1))
    return (x, y), max(math.hypot(disc[0] - x, disc[1] - y) + disc[2] for disc in discs)


def _numbers(stroke: Stroke, anchor: tuple[float, float]) -> list[float]:
    """Start, direction, direction over squared length, radius and its growth, colour (or which pigment)."""
    ax, ay, bx, by, ra, rb, colour = stroke
    dx, dy = bx - ax, by - ay
    squared = dx * dx + dy * dy or 1.0
    paint = [float("ab".index(colour)), 0.0, 0.0] if colour in "ab" else rgb(colour)
    return [ax - anchor[0], ay - anchor[1], dx, dy, dx / squared, dy / squared, ra, rb - ra, *paint]


def rgb(colour: str) -> list[float]:
    """Return red, green and blue in 0 .. 1 of six hexadecimal digits."""
    return [value / 255 for value in bytes.fromhex(colour)]


def _distance(stroke: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Signed distance to a capsule: to the nearest point of its axis, less the radius there."""
    ax, ay, dx, dy, ex, ey, radius, growth = stroke[:, :8].unbind(1)
    x, y = u - ax, v - ay
    along = (x * ex + y * ey).clamp_(0, 1)
    x -= along * dx
    y -= along * dy
    return (x.square_() + y.square_()).sqrt_() - (along * growth + radius)


def _coverage(distance: Tensor, pixels: Tensor) -> Tensor:
    return (0.5 - distance * pixels).clamp_(0, 1)


@cache
def directions(device: torch.device) -> Tensor:
    """Cosine and sine of every whole degree, rounded, so that all mathematics libraries agree."""
    rows = [(round(math.cos(math.radians(a)), 6), round(math.sin(math.radians(a)), 6)) for a in range(360)]
    return torch.tensor(rows, device=device)


def ground(values: Tensor, size: int) -> Tensor:
    """Two colours mixed by a texture: a slope, stripes, checks, dots or clouds, with a little cloud in each."""
    texture, fine, direction = values[:, 0], values[:, 7], values[:, 8]
    at = (torch.arange(size, device=values.device) + 0.5) / size
    cos, sin = (directions(values.device)[direction] * fine.unsqueeze(1)).unsqueeze(2).unbind(1)
    u = (at * sin).unsqueeze(2) + (at * cos).unsqueeze(1)
    v = (at * cos).unsqueeze(2) - (at * sin).unsqueeze(1)
    wave_u, wave_v = _wave(u), _wave(v)
    clouds = _clouds(values[:, 9], size, 4) * 0.65 + _clouds(values[:, 9] + 1, size, 15) * 0.35
    looks = (
        at.view(1, -1, 1).expand_as(u),
        ((wave_u - 0.5) * 5 + 0.5).clamp(0, 1),
        (((wave_u - 0.5) * (wave_v - 0.5)) * 40 + 0.5).clamp(0, 1),
        ((wave_u + wave_v - 1.35) * 6).clamp(0, 1),
        clouds,
    )
    mix = clouds * 0.3
    for number, look in enumerate(looks):
        mix = mix + look * ((texture == number) * 0.7).view(-1, 1, 1)
    colours = values[:, 1:7].view(-1, 2, 3, 1, 1) / 255
    return colours[:, 0] + (colours[:, 1] - colours[:, 0]) * mix.unsqueeze(1)


def _wave(phase: Tensor) -> Tensor:
    """A triangle wave in [0, 1]."""
    return ((phase - phase.floor()) * 2 - 1).abs()


def _clouds(key: Tensor, size: int, cells: int) -> Tensor:
    """Random values on a lattice of cells, interpolated smoothly: ``[B, size, size]`` in [0, 1]."""
    corners = torch.arange((cells + 1) ** 2, device=key.device)
    lattice = uniform(key.unsqueeze(1) * 512 + corners, cells).float().view(-1, cells + 1, cells + 1)
    at = (torch.arange(size, device=key.device) + 0.5) / size * cells
    low = at.floor().long()
    weight = at - low
    weight = weight * weight * (3 - weight * 2)
    rows = lattice[:, low] + (lattice[:, low + 1] - lattice[:, low]) * weight.view(1, -1, 1)
    return rows[:, :, low] + (rows[:, :, low + 1] - rows[:, :, low]) * weight


def light(values: Tensor, size: int) -> Tensor:
    """What the values multiplies every pixel with: ``[B, 3, size, size]``."""
    strength, slope, _, warmth = (value.view(-1, 1, 1) / 1000 for value in values.unbind(1))
    cos, sin = directions(values.device)[values[:, 2]].view(-1, 2, 1).unbind(1)
    at = (torch.arange(size, device=values.device) + 0.5) / size * 2 - 1
    field = strength + ((at * sin).unsqueeze(2) + (at * cos).unsqueeze(1)) * (slope * 0.5)
    return torch.stack([field * (1 + warmth), field, field * (1 - warmth)], dim=1)


_PIGMENTS = ("5b8c4a", "a7c957", "e9c46a", "d98e5f", "9c6b4f", "8d99ae", "c8d5e6", "b56576", "f2e8cf", "6d597a")
MARKER = ("e63946", "ffb703", "2a9d8f", "f1faee")
"""The four colours of a marker's four cells; a class is a number in base four."""
_MARKER_SIDE, _MARKER_EDGE = 0.125, 0.02
_ANCHORS = {"horn": (0.0, -0.38), "eyes": (0.0, 0.0), "coat": (0.0, 0.0), "legs": (0.0, 0.3), "tail": (0.3, 0.26)}
_TURNS = {"horn": 5, "legs": 6, "tail": 7}
"""Where in a pose the turn of a part about its anchor stands."""
_ORDER = ("tail", "legs", "coat", "horn", "eyes")
"""From the back to the front."""
SIZES = 16, 4096
"""The least and the most pixels of an image's side."""
_CHUNK = {"cpu": 16, "cuda": 1024}

_BODY, _PART, _OBJECT, _MARK, _OTHER = 1, 2, 7, 19, 20
_SEEN = ["ground", "body", *PARTS, *(f"object {i}" for i in range(MAX_OBJECTS)), "marker", "companion's body"]
OWNERS = {name: number for number, name in enumerate([*_SEEN, *(f"companion's {part}" for part in PARTS)])}
"""Whose pixel it is."""


@dataclass(frozen=True)
class Rendered:
    """Images, and for every pixel who is seen there.

    Parameters
    ----------
    images : Tensor
        ``[B, 3, S, S]`` in [0, 1].
    owner : Tensor
        ``[B, S, S]``, uint8: whose pixel it is, see ``OWNERS``.
    """

    images: Tensor
    owner: Tensor

    @property
    def parts(self) -> Tensor:
        """Where horn, eyes, coat, legs and tail are seen: ``[B, 5, S, S]``, boolean."""
        return self._owned_by(_PART, len(PARTS))

    @property
    def objects(self) -> Tensor:
        """Where each background object is seen: ``[B, 12, S, S]``, boolean."""
        return self._owned_by(_OBJECT, MAX_OBJECTS)

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

    def _owned_by(self, first: int, count: int) -> Tensor:
        numbers = torch.arange(first, first + count, dtype=torch.uint8, device=self.owner.device)
        return self.owner.unsqueeze(1) == numbers.view(1, -1, 1, 1)


def render(
    scenes: Batch | Scene | Sequence[Scene], size: int = 128, device: str | torch.device | None = None
) -> Rendered:
    """Draw scenes as images of ``size`` x ``size`` pixels.

    Where the shapes are comes from their signed distance d: coverage is clamp(1/2 - d / pixel), painted back to front.
    """
    check_number("size", size, *SIZES)
    batch = scenes if isinstance(scenes, Batch) else pack([scenes] if isinstance(scenes, Scene) else scenes)
    if not len(batch):
        raise VitreousError("there is no scene to render")
    if device is not None:
        batch = batch.to(device)
    chunk = _CHUNK.get(batch.seed.device.type, 1024)
    step = max(1, min(chunk, chunk * 128**2 // size**2))  # memory is bounded, whatever the size
    has_companion, has_front = bool((batch.label[:, 1] >= 0).any()), bool((batch.objects[:, :, 7] > 0).any())
    with torch.no_grad():
        chunks = [_render(batch[at : at + step], size, has_companion, has_front) for at in range(0, len(batch), step)]
    return Rendered(*map(torch.cat, zip(*chunks, strict=True)))


def _render(batch: Batch, size: int, has_companion: bool, has_front: bool) -> tuple[Tensor, Tensor]:
    canvas = Canvas(ground(batch.ground, size))
    _objects(canvas, batch.objects, 0)
    if has_companion:
        _creature(canvas, batch.parts[:, 1], batch.pose[:, 1], batch.label[:, 1] >= 0, _OTHER)
    _creature(canvas, batch.parts[:, 0], batch.pose[:, 0], batch.label[:, 0] >= 0, _BODY)
    if has_front:
        _objects(canvas, batch.objects, 1)
    images = canvas.images * light(batch.light, size)
    return _mark(images.clamp_(0, 1), canvas.owner, batch.marker)


def _creature(canvas: Canvas, parts: Tensor, pose: Tensor, visible: Tensor, first: int) -> None:
    """Paint a creature from the back to the front; ``first`` is the owner of its body, its parts follow."""
    x, y, scale, angle, mirrored = pose[:, :5].unbind(1)
    unit = scale.clamp(min=1) / 1000
    frame = Frame(x / 1000, y / 1000, unit, angle, 1.0 - 2.0 * mirrored, float(unit.max()))
    for part in _ORDER:
        index = PARTS.index(part)
        variant = parts[:, index]
        exists, owner = variant >= 0, torch.full_like(variant, first + 1 + index)
        if part == "coat":  # without a coat the bare body, which is nobody's part
            owner = torch.where(exists, owner, first)
            variant, exists = torch.where(exists, variant, len(VARIANTS[part])), visible
        at = frame.at(_ANCHORS[part], pose[:, _TURNS[part]] if part in _TURNS else 0)
        canvas.paint(at, _shapes(part, parts.device), variant.clamp(min=0), visible & exists, owner)


def _objects(canvas: Canvas, objects: Tensor, front: int) -> None:
    pigments = torch.tensor([rgb(pigment) for pigment in _PIGMENTS], device=objects.device)
    largest = max(float(objects[:, :, 3].max()), 1.0) / 1000
    upright = torch.ones(len(objects), device=objects.device)
    for place in range(MAX_OBJECTS):
        kind, x, y, size, angle, first, second, before = objects[:, place].unbind(1)
        frame = Frame(x / 1000, y / 1000, size.clamp(min=1) / 1000, angle.clamp(min=0), upright, largest)
        visible, owner = (kind >= 0) & (before == front), torch.full_like(kind, _OBJECT + place)
        colours = pigments[torch.stack([first, second], dim=1).clamp(min=0)]
        canvas.paint(frame, _shapes("object", objects.device), kind.clamp(min=0), visible, owner, colours)


@cache
def _shapes(what: str, device: torch.device) -> Shapes:
    if what == "object":
        return Shapes(list(OBJECTS.values()), device, line=0.07)
    drawings = [strokes_of(what, variant) for variant in VARIANTS[what]]
    if what == "coat":
        drawings.append(BODY)
    return Shapes(drawings, device, _ANCHORS[what], mirrored=what != "tail", clipped=what == "coat")


def _mark(images: Tensor, owner: Tensor, marker: Tensor) -> tuple[Tensor, Tensor]:
    """Lay a sticker of two by two coloured cells into a corner, under its own light."""
    size = images.shape[-1]
    side, edge = round(_MARKER_SIDE * size), round(_MARKER_EDGE * size)
    cell = side // 2
    code, corner = marker[:, 0], marker[:, 1]
    palette = torch.tensor([rgb(colour) for colour in MARKER], device=images.device)
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
