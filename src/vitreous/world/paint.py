"""Painting: capsules in their own coordinates, evaluated in a window around them, in many pictures at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce

import torch
from torch import Tensor

from vitreous.world.creatures import Stroke

__all__ = ["Canvas", "Frame", "Shapes", "directions", "rgb"]

_INK = "2b2233"


class Canvas:
    """Pictures with a margin, so that a window around a shape never leaves them."""

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
        shown: Tensor,
        owner: Tensor | int,
        pigments: Tensor | None = None,
    ) -> None:
        """Paint the ``which``-th of these shapes into every picture where it is ``shown``."""
        half = math.ceil(shapes.reach * frame.largest * self.size) + 2
        x, y = frame.place(shapes.centre)
        span = torch.arange(-half, half, device=which.device)
        columns, rows = ((at * self.size).floor().long().unsqueeze(1) + span for at in (x, y))
        u, v = frame.local((columns + 0.5) / self.size, (rows + 0.5) / self.size)
        colour, alpha = shapes.cover(which, u, v, (frame.scale * self.size).view(-1, 1, 1), pigments)
        alpha = (alpha * shown.view(-1, 1, 1)).flatten(1)
        columns, rows = ((at + self.margin).clamp(0, self.side - 1) for at in (columns, rows))
        places = (rows.unsqueeze(2) * self.side + columns.unsqueeze(1)).flatten(1)
        for pixels, paint in zip(self.pixels, colour, strict=True):
            below = pixels.gather(1, places)
            pixels.scatter_(1, places, below + (paint.flatten(1) - below) * alpha)
        ids = torch.as_tensor(owner, dtype=torch.uint8, device=which.device).expand(len(which)).unsqueeze(1)
        self.owners.scatter_(1, places, torch.where(alpha > 0.5, ids, self.owners.gather(1, places)))


@dataclass(frozen=True)
class Frame:
    """Where a thing's own coordinates lie in the picture: origin, unit, turn and whether it is mirrored."""

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
        """Return where in the picture a point lies."""
        cos, sin = self.turn.unbind(1)
        across, down = self.mirror * point[0] * self.scale, point[1] * self.scale
        return self.x + (across * cos - down * sin), self.y + (across * sin + down * cos)

    def local(self, columns: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return own coordinates ``[B, rows, columns]`` of a window."""
        cos, sin = (self.turn / self.scale.unsqueeze(1)).unsqueeze(2).unbind(1)
        across, down = columns - self.x.unsqueeze(1), rows - self.y.unsqueeze(1)
        mirror = self.mirror.unsqueeze(1)
        u = (down * sin * mirror).unsqueeze(2) + (across * cos * mirror).unsqueeze(1)
        v = (down * cos).unsqueeze(2) - (across * sin).unsqueeze(1)
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
        most = max(len(drawing) for drawing in drawings)
        nothing: Stroke = (0.0, 0.0, 0.0, 0.0, -9.0, -9.0, "000000")
        rows = [[_numbers(s, anchor) for s in (*drawing, *[nothing] * (most - len(drawing)))] for drawing in drawings]
        self.table = torch.tensor(rows, device=device)
        self.mirrored, self.clipped, self.line = mirrored, clipped, line
        ends = [
            (side * x - anchor[0], y - anchor[1], r + line)
            for drawing in drawings
            for s in drawing
            for x, y, r in ((s[0], s[1], s[4]), (s[2], s[3], s[5]))
            for side in ((1, -1) if mirrored else (1,))
        ]
        box = [(min(e[i] - e[2] for e in ends), max(e[i] + e[2] for e in ends)) for i in (0, 1)]
        self.centre = sum(box[0]) / 2, sum(box[1]) / 2
        self.reach = max(math.hypot(x - self.centre[0], y - self.centre[1]) + r for x, y, r in ends)

    def cover(
        self, which: Tensor, u: Tensor, v: Tensor, pixels: Tensor, pigments: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Return three colour planes and how much of every pixel is covered, outline included.

        ``pixels`` is how many of them a unit is long; ``pigments`` ``[B, 2, 3]`` stand for the letters a and b.
        """
        if self.mirrored:
            u = u.abs()
        table = self.table[which].unsqueeze(3).unsqueeze(3)
        colours = (
            table[:, :, 8:]
            if pigments is None
            else pigments.gather(1, self.table[which][:, :, 8:9].long().expand(-1, -1, 3)).unsqueeze(3).unsqueeze(3)
        )
        distances = [_distance(stroke, u, v) for stroke in table.unbind(1)]
        edge = distances[0] if self.clipped else reduce(torch.minimum, distances)
        alpha = _coverage(edge - self.line, pixels)
        planes = [torch.full_like(u, value) for value in rgb(_INK)]
        inside = None
        for distance, colour in zip(distances, colours.unbind(1), strict=True):
            cover = _coverage(distance, pixels)
            if self.clipped:
                inside = cover if inside is None else inside
                cover = cover * inside
            for plane, paint in zip(planes, colour.unbind(1), strict=True):
                plane += (paint - plane) * cover
        if self.clipped:  # rounder: darker towards the edge
            shade = (distances[0] * -4).clamp_(0, 1) * 0.2 + 0.8
            planes = [plane * shade for plane in planes]
        return planes, alpha


def _numbers(stroke: Stroke, anchor: tuple[float, float]) -> list[float]:
    """Start, direction, direction over squared length, radius and its growth, colour (or which pigment)."""
    ax, ay, bx, by, ra, rb, colour = stroke
    dx, dy = bx - ax, by - ay
    squared = dx * dx + dy * dy or 1.0
    paint = [float("ab".index(colour)), 0.0, 0.0] if colour in "ab" else rgb(colour)
    return [ax - anchor[0], ay - anchor[1], dx, dy, dx / squared, dy / squared, ra, rb - ra, *paint]


def rgb(colour: str) -> list[float]:
    return [value / 255 for value in bytes.fromhex(colour)]


def _distance(stroke: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Signed distance to a capsule: to the nearest point of its axis, less the radius there."""
    ax, ay, dx, dy, ex, ey, radius, growth = stroke[:, :8].unbind(1)
    across, down = u - ax, v - ay
    along = (across * ex + down * ey).clamp_(0, 1)
    across -= along * dx
    down -= along * dy
    return (across.square_() + down.square_()).sqrt_() - (along * growth + radius)


def _coverage(distance: Tensor, pixels: Tensor) -> Tensor:
    return (0.5 - distance * pixels).clamp_(0, 1)


@cache
def directions(device: torch.device) -> Tensor:
    """Cosine and sine of every whole degree, rounded, so that all mathematics libraries agree."""
    rows = [(round(math.cos(math.radians(a)), 6), round(math.sin(math.radians(a)), 6)) for a in range(360)]
    return torch.tensor(rows, device=device)
