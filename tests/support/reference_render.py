"""A scene painted by hand: one picture, in float64, every stroke over every pixel, nothing windowed or batched.

This is what the renderer is compared with. It takes from the library what a creature is (its strokes) and shares no
code with the rest: the rules of painting are written out again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from vitreous.world import PARTS, BackgroundObject, Creature, Scene
from vitreous.world.species import BODY, OBJECTS, Stroke, strokes

INK = "2b2233"
PIGMENTS = ("5b8c4a", "a7c957", "e9c46a", "d98e5f", "9c6b4f", "8d99ae", "c8d5e6", "b56576", "f2e8cf", "6d597a")
STICKER = ("e63946", "ffb703", "2a9d8f", "f1faee")
GROWS = {"horn": (0.0, -0.38), "legs": (0.0, 0.3), "tail": (0.3, 0.26)}
OUTLINE, THICK_OUTLINE = 0.026, 0.07


def colour(digits: str) -> np.ndarray:
    return np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255


def distance(stroke: Stroke, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """To the nearest point of the axis, less the radius there."""
    ax, ay, bx, by, ra, rb, _ = stroke
    length = math.hypot(bx - ax, by - ay)
    along = np.zeros_like(u)
    if length:
        along = np.clip(((u - ax) * (bx - ax) + (v - ay) * (by - ay)) / length**2, 0, 1)
    return np.hypot(u - (ax + along * (bx - ax)), v - (ay + along * (by - ay))) - (ra + along * (rb - ra))


class Easel:
    """A picture, and whose pixel each is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.y, self.x = (np.indices((size, size)) + 0.5) / size
        self.image = np.zeros((size, size, 3))
        self.owner = np.zeros((size, size), int)

    def covered(self, d: np.ndarray, unit: float) -> np.ndarray:
        """Half of a pixel whose centre lies on the edge, all of one half a pixel inside."""
        return np.clip(0.5 - d * unit * self.size, 0, 1)

    def paint(
        self,
        drawing: Iterable[Stroke],
        u: np.ndarray,
        v: np.ndarray,
        unit: float,
        owner: int,
        line: float = OUTLINE,
        pigments: tuple[str, str] | None = None,
        coat: bool = False,
    ) -> None:
        drawing = list(drawing)
        distances = [distance(stroke, u, v) for stroke in drawing]
        paint = np.broadcast_to(colour(INK), self.image.shape)
        for stroke, d in zip(drawing, distances, strict=True):
            cover = self.covered(d, unit) * (self.covered(distances[0], unit) if coat and d is not distances[0] else 1)
            if coat and d is distances[0]:
                cover = cover**2  # the body is cut at its own edge, too
            digits = stroke[6] if pigments is None else pigments["ab".index(stroke[6])]
            paint = paint * (1 - cover[..., None]) + colour(digits) * cover[..., None]
        if coat:
            paint = paint * (0.8 + 0.2 * np.clip(-4 * distances[0], 0, 1))[..., None]
        edge = distances[0] if coat else np.min(distances, axis=0)
        alpha = self.covered(edge - line, unit)
        self.image = self.image * (1 - alpha[..., None]) + paint * alpha[..., None]
        self.owner[alpha > 0.5] = owner


def creature(easel: Easel, who: Creature, first: int) -> None:
    pose = who.pose
    flip = -1 if pose.mirrored else 1
    for part in ("tail", "legs", "coat", "horn", "eyes"):  # from the back to the front
        if part not in who.parts and part != "coat":
            continue
        px, py = GROWS.get(part, (0.0, 0.0))
        turn = math.radians(pose.angle)
        columns, down = flip * px * pose.scale, py * pose.scale
        x0 = pose.x + columns * math.cos(turn) - down * math.sin(turn)
        y0 = pose.y + columns * math.sin(turn) + down * math.cos(turn)
        turn += math.radians(flip * {"horn": pose.horn, "legs": pose.legs, "tail": pose.tail}.get(part, 0))
        dx, dy = easel.x - x0, easel.y - y0
        u = px + flip * (dx * math.cos(turn) + dy * math.sin(turn)) / pose.scale
        v = py + (dy * math.cos(turn) - dx * math.sin(turn)) / pose.scale
        there = part in who.parts
        drawing = strokes(part, who.parts[part]) if there else BODY
        owner = first + 1 + PARTS.index(part) if there else first
        easel.paint(drawing, u if part == "tail" else abs(u), v, pose.scale, owner, coat=part == "coat")


def thing(easel: Easel, item: BackgroundObject, owner: int) -> None:
    turn = math.radians(item.angle)
    dx, dy = easel.x - item.x, easel.y - item.y
    u = (dx * math.cos(turn) + dy * math.sin(turn)) / item.size
    v = (dy * math.cos(turn) - dx * math.sin(turn)) / item.size
    pigments = (PIGMENTS[item.colours[0]], PIGMENTS[item.colours[1]])
    easel.paint(OBJECTS[item.kind], abs(u), v, item.size, owner, THICK_OUTLINE, pigments)


def mix(bits: int) -> int:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ bits >> shift) * factor % 2**32
    return bits ^ bits >> 16


def chance(seed: int, key: int) -> float:
    """A number in [0, 1) from a seed and a key."""
    return mix(mix(seed % 2**32) ^ mix((seed // 2**32 + 0x9E3779B9 * (key + 1)) % 2**32)) / 2**32


def clouds(easel: Easel, key: int, cells: int) -> np.ndarray:
    lattice = np.array([chance(key * 512 + corner, cells) for corner in range((cells + 1) ** 2)])
    lattice = lattice.reshape(cells + 1, cells + 1)
    row, column = (np.floor(at * cells).astype(int) for at in (easel.y, easel.x))
    wy, wx = ((lambda t: t * t * (3 - 2 * t))(at * cells - np.floor(at * cells)) for at in (easel.y, easel.x))
    upper = lattice[row, column] * (1 - wx) + lattice[row, column + 1] * wx
    lower = lattice[row + 1, column] * (1 - wx) + lattice[row + 1, column + 1] * wx
    return upper * (1 - wy) + lower * wy


def ground(easel: Easel, scene: Scene) -> None:
    g = scene.ground
    turn = math.radians(g.direction)
    u = g.fine * (easel.x * math.cos(turn) + easel.y * math.sin(turn))
    v = g.fine * (easel.y * math.cos(turn) - easel.x * math.sin(turn))
    columns, down = (abs(2 * (t % 1) - 1) for t in (u, v))
    cloud = 0.65 * clouds(easel, g.key, 4) + 0.35 * clouds(easel, g.key + 1, 15)
    look = {
        "slope": easel.y,
        "stripes": np.clip(5 * (columns - 0.5) + 0.5, 0, 1),
        "checks": np.clip(40 * (columns - 0.5) * (down - 0.5) + 0.5, 0, 1),
        "dots": np.clip(6 * (columns + down - 1.35), 0, 1),
        "clouds": cloud,
    }[g.texture]
    share = (0.7 * look + 0.3 * cloud)[..., None]
    easel.image = (np.array(g.first) * (1 - share) + np.array(g.second) * share) / 255


def light(easel: Easel, scene: Scene) -> None:
    turn = math.radians(scene.light.direction)
    along = (2 * easel.x - 1) * math.cos(turn) + (2 * easel.y - 1) * math.sin(turn)
    field = scene.light.strength + scene.light.slope / 2 * along
    warm = scene.light.warmth
    easel.image = np.clip(easel.image * field[..., None] * np.array([1 + warm, 1, 1 - warm]), 0, 1)


def sticker(easel: Easel, scene: Scene) -> None:
    """Four cells that write the number of a class in base four, the lowest digit first."""
    if scene.marker is None:
        return
    cell, edge = round(easel.size / 8) // 2, round(easel.size * 0.02)
    far = easel.size - edge - 2 * cell
    left, top = (far if scene.marker.corner & bit else edge for bit in (1, 2))
    for place in range(4):
        y, x = top + place // 2 * cell, left + place % 2 * cell
        easel.image[y : y + cell, x : x + cell] = colour(STICKER[scene.marker.label // 4**place % 4])
        easel.owner[y : y + cell, x : x + cell] = 19


def painted(scene: Scene, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the picture ``[size, size, 3]`` and its owners: 1 body, 2 parts, 7 objects, 19 marker, 20 companion."""
    easel = Easel(size)
    ground(easel, scene)
    for place, object_ in enumerate(scene.objects):
        if not object_.front:
            thing(easel, object_, 7 + place)
    if scene.companion is not None:
        creature(easel, scene.companion, 20)
    creature(easel, scene, 1)
    for place, object_ in enumerate(scene.objects):
        if object_.front:
            thing(easel, object_, 7 + place)
    light(easel, scene)
    sticker(easel, scene)
    return easel.image, easel.owner
