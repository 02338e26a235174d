"""A scene as a small value that can be written as JSON: what is in it, where, and how to change it.

Every change gives a new scene, to be rendered anew: nothing is ever painted over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, TypeVar

import torch

from vitreous.errors import VitreousError
from vitreous.world.sampling import MOST_OBJECTS, MOST_SEEDS, Batch, draw
from vitreous.world.species import CLASSES, NAMES, OBJECTS, PARTS, VARIANTS, find_class, find_part, find_variant

__all__ = ["Creature", "Ground", "Light", "Marker", "Pose", "Scene", "Thing", "pack", "unpack"]

T = TypeVar("T")
TEXTURES = ("slope", "stripes", "checks", "dots", "clouds")
_KINDS = tuple(OBJECTS)


def _within(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise VitreousError(f"{name}={value!r:.60} is outside {low}..{high}")


def _whole(low: int, high: int, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise VitreousError(f"{name}={value!r:.60} is not a whole number in {low}..{high}")


def _truth(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise VitreousError(f"{name}={value!r:.60} is neither true nor false")


def _row(name: str, values: tuple[int, ...], count: int, most: int) -> None:
    if not isinstance(values, tuple) or len(values) != count:
        raise VitreousError(f"{name}={values!r:.60} is not a row of {count} numbers")
    for value in values:
        _whole(0, most, **{name: value})


def _class(label: int) -> None:
    if find_class(label) != label:
        raise VitreousError(f"label={label!r} is given by its number here: {find_class(label)}")


@dataclass(frozen=True)
class Pose:
    """Where the body's centre is and how long a unit is, of the picture's side, and turns in degrees.

    ``horn``, ``legs`` and ``tail`` are turned about where they grow; ``mirrored`` has the tail on the left.
    """

    x: float
    y: float
    scale: float
    angle: int = 0
    mirrored: bool = False
    horn: int = 0
    legs: int = 0
    tail: int = 0

    def __post_init__(self) -> None:
        _within("pose.x", self.x, -0.2, 1.2)
        _within("pose.y", self.y, -0.2, 1.2)
        _within("pose.scale", self.scale, 0.02, 0.5)
        _whole(-360, 360, angle=self.angle, horn=self.horn, legs=self.legs, tail=self.tail)
        _truth("mirrored", self.mirrored)


@dataclass(frozen=True)
class Light:
    """Strength, how much it falls across the picture and in which direction, and warmth (red against blue)."""

    strength: float = 1.0
    slope: float = 0.0
    direction: int = 0
    warmth: float = 0.0

    def __post_init__(self) -> None:
        _within("light.strength", self.strength, 0.0, 2.0)
        _within("light.slope", self.slope, 0.0, 1.0)
        _within("light.warmth", self.warmth, -0.5, 0.5)
        _whole(-360, 360, direction=self.direction)


@dataclass(frozen=True)
class Ground:
    """A texture of two colours (0..255), its fineness and direction, and the key of the clouds in it."""

    texture: str = "clouds"
    first: tuple[int, int, int] = (150, 160, 140)
    second: tuple[int, int, int] = (170, 180, 160)
    fine: int = 4
    direction: int = 0
    key: int = 0

    def __post_init__(self) -> None:
        if self.texture not in TEXTURES:
            raise VitreousError(f"there is no texture {self.texture!r}; they are {', '.join(TEXTURES)}")
        _row("ground.first", self.first, 3, 255)
        _row("ground.second", self.second, 3, 255)
        _whole(0, 99, fine=self.fine)
        _whole(-360, 360, direction=self.direction)
        _whole(0, 2**32, key=self.key)


@dataclass(frozen=True)
class Thing:
    """A background object: its kind, place, size and angle, two of ten pigments, and whether it hides the creature."""

    kind: str
    x: float
    y: float
    size: float
    angle: int = 0
    colours: tuple[int, int] = (0, 1)
    front: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise VitreousError(f"there is no object {self.kind!r}; they are {', '.join(_KINDS)}")
        _within("object.x", self.x, -0.2, 1.2)
        _within("object.y", self.y, -0.2, 1.2)
        _within("object.size", self.size, 0.01, 0.3)
        _whole(-360, 360, angle=self.angle)
        _row("object.colours", self.colours, 2, 9)
        _truth("front", self.front)


@dataclass(frozen=True)
class Marker:
    """A sticker in a corner (0 to 3: left and right above, left and right below) that bears the code of a class."""

    label: int
    corner: int = 0

    def __post_init__(self) -> None:
        _class(self.label)
        _whole(0, 3, corner=self.corner)


@dataclass(frozen=True)
class Creature:
    """A class, the parts that are there (type to variant), and a pose."""

    label: int
    parts: Mapping[str, str]
    pose: Pose

    def __post_init__(self) -> None:
        _class(self.label)
        for part, variant in self.parts.items():
            find_variant(part, variant)

    @property
    def name(self) -> str:
        return NAMES[self.label]


@dataclass(frozen=True)
class Scene(Creature):
    """A creature in its surroundings, perhaps with a companion. ``Scene.of(seed)`` is the same everywhere."""

    light: Light = Light()
    ground: Ground = Ground()
    objects: tuple[Thing, ...] = ()
    marker: Marker | None = None
    companion: Creature | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.objects) > MOST_OBJECTS:
            raise VitreousError(f"a scene holds at most {MOST_OBJECTS} objects, not {len(self.objects)}")
        _whole(0, MOST_SEEDS - 1, seed=self.seed)

    @staticmethod
    def of(seed: int) -> Scene:
        """Return the scene of a seed."""
        return unpack(draw([seed]))[0]

    def without(self, *parts: str) -> Scene:
        """Remove parts."""
        gone = {PARTS[find_part(part)] for part in parts}
        return replace(self, parts={part: v for part, v in self.parts.items() if part not in gone})

    def only(self, *parts: str) -> Scene:
        """Keep these parts and remove the others."""
        kept = {PARTS[find_part(part)] for part in parts}
        return self.without(*(part for part in PARTS if part not in kept))

    def swap(self, part: str, other: int | str) -> Scene:
        """Exchange a part for that of another class."""
        part = PARTS[find_part(part)]
        return replace(self, parts={**self.parts, part: CLASSES[find_class(other)].parts[part]})

    def without_object(self, place: int) -> Scene:
        """Remove one background object, by its place in ``objects``; those behind it in the row move up."""
        if not isinstance(place, int) or not 0 <= place < len(self.objects):
            raise VitreousError(f"the scene has no object {place!r}; it has {len(self.objects)}")
        return replace(self, objects=self.objects[:place] + self.objects[place + 1 :])

    def without_objects(self) -> Scene:
        """Remove every background object."""
        return replace(self, objects=())

    def posed(self, seed: int) -> Scene:
        """Change the pose only, to that of another seed."""
        return replace(self, pose=Scene.of(seed).pose)

    def moved(self, seed: int) -> Scene:
        """Change ground, light and objects only, to those of another seed."""
        other = Scene.of(seed)
        return replace(self, ground=other.ground, light=other.light, objects=other.objects)

    def marked(self, label: int | str | None = None, corner: int = 0) -> Scene:
        """Lay a marker into a corner: the code of this class, or of another."""
        return replace(self, marker=Marker(self.label if label is None else find_class(label), corner))

    def unmarked(self) -> Scene:
        """Take the marker away."""
        return replace(self, marker=None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, ready for ``json.dumps``; ``from_json`` reads them back."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Scene:
        """Return the scene that ``to_json`` wrote down; what is wrong with it is named."""
        given = _known(Scene, values, "scene")
        friend, marker, things = given.get("companion"), given.get("marker"), given.get("objects", [])
        if not isinstance(things, list | tuple):
            raise VitreousError(f"the objects of a scene are written as a list, not {things!r:.60}")
        return Scene(
            **_creature(given, "scene"),
            light=_made(Light, given.get("light", {}), "light"),
            ground=_made(Ground, given.get("ground", {}), "ground"),
            objects=tuple(_made(Thing, item, "object") for item in things),
            marker=None if marker is None else _made(Marker, marker, "marker"),
            companion=None
            if friend is None
            else Creature(**_creature(_known(Creature, friend, "companion"), "companion")),
            seed=given.get("seed", 0),
        )


def unpack(batch: Batch) -> list[Scene]:
    """Return the scenes of a batch one by one."""
    rows = zip(
        *(getattr(batch, field.name).tolist() for field in fields(batch)),
        strict=True,
    )
    scenes = []
    for seed, labels, parts, poses, light, ground, objects, marker in rows:
        creature, companion = (_unpacked(*each) for each in zip(labels, parts, poses, strict=True))
        if creature is None:
            raise VitreousError(f"scene {seed} has no creature")
        scenes.append(
            Scene(
                creature.label,
                creature.parts,
                creature.pose,
                Light(light[0] / 1000, light[1] / 1000, light[2], light[3] / 1000),
                Ground(TEXTURES[ground[0]], tuple(ground[1:4]), tuple(ground[4:7]), *ground[7:]),
                tuple(
                    Thing(_KINDS[o[0]], o[1] / 1000, o[2] / 1000, o[3] / 1000, o[4], (o[5], o[6]), bool(o[7]))
                    for o in objects
                    if o[0] >= 0
                ),
                None if marker[0] < 0 else Marker(*marker),
                companion,
                seed,
            )
        )
    return scenes


def pack(scenes: Sequence[Scene]) -> Batch:
    """Return scenes as one batch."""
    row = isinstance(scenes, Sequence) and not isinstance(scenes, str)
    wrong = [each for each in scenes if not isinstance(each, Scene)] if row else [scenes]
    if wrong:
        raise VitreousError(f"a Scene is needed, not {wrong[0]!r:.60}")
    if not scenes:
        raise VitreousError("there is no scene to pack")
    columns = zip(*(_packed(scene) for scene in scenes), strict=True)
    return Batch(*(torch.tensor(column, dtype=torch.int64) for column in columns))


def _packed(scene: Scene) -> tuple[Any, ...]:
    pair = (scene, scene.companion)
    light, ground = scene.light, scene.ground
    things = [
        [_KINDS.index(o.kind), _milli(o.x), _milli(o.y), _milli(o.size), o.angle % 360, *o.colours, int(o.front)]
        for o in scene.objects
    ]
    return (
        scene.seed,
        [-1 if each is None else each.label for each in pair],
        [[-1] * len(PARTS) if each is None else _variants(each.parts) for each in pair],
        [[0] * 8 if each is None else _posture(each.pose) for each in pair],
        [_milli(light.strength), _milli(light.slope), light.direction % 360, _milli(light.warmth)],
        [
            TEXTURES.index(ground.texture),
            *ground.first,
            *ground.second,
            ground.fine,
            ground.direction % 360,
            ground.key,
        ],
        things + [[-1] * 8] * (MOST_OBJECTS - len(things)),
        [-1, 0] if scene.marker is None else [scene.marker.label, scene.marker.corner],
    )


def _unpacked(label: int, parts: list[int], pose: list[int]) -> Creature | None:
    if label < 0:
        return None
    there = {part: VARIANTS[part][variant] for part, variant in zip(PARTS, parts, strict=True) if variant >= 0}
    x, y, scale, angle, mirrored, *turns = pose
    return Creature(label, there, Pose(x / 1000, y / 1000, scale / 1000, angle, bool(mirrored), *turns))


def _variants(parts: Mapping[str, str]) -> list[int]:
    return [VARIANTS[part].index(parts[part]) if part in parts else -1 for part in PARTS]


def _posture(pose: Pose) -> list[int]:
    place = [_milli(pose.x), _milli(pose.y), _milli(pose.scale)]
    return [*place, pose.angle % 360, int(pose.mirrored), pose.horn, pose.legs, pose.tail]


def _milli(value: float) -> int:
    return round(value * 1000)


def _known(kind: Any, values: Any, what: str) -> dict[str, Any]:
    """Return the values of a dataclass, ``class`` as its label; what it does not have or cannot do without is named."""
    if not isinstance(values, Mapping):
        raise VitreousError(f"a {what} is written as a table of values, not {values!r:.60}")
    needed = {
        "class" if f.name == "label" else f.name: f.default is MISSING and f.name != "parts" for f in fields(kind)
    }
    for name in values:
        if name not in needed:
            raise VitreousError(f"a {what} has no {name!r:.60}; it has {', '.join(needed)}")
    for name, must in needed.items():
        if must and name not in values:
            raise VitreousError(f"a {what} needs {name!r}")
    label = {"label": find_class(values["class"])} if "class" in needed else {}
    return label | {n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if n != "class"}


def _made(kind: type[T], values: Any, what: str) -> T:
    return kind(**_known(kind, values, what))


def _creature(given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return what makes a creature; without ``parts`` it has those of its class."""
    parts = given.get("parts", CLASSES[given["label"]].parts)
    if not isinstance(parts, Mapping):
        raise VitreousError(f"the parts of a {what} are a table of part and variant, not {parts!r:.60}")
    return {"label": given["label"], "parts": dict(parts), "pose": _made(Pose, given["pose"], "pose")}


def _plain(given: Any) -> Any:
    """Write classes as their names, and rows as lists."""
    if isinstance(given, dict):
        named = ((name, value) if name != "label" else ("class", NAMES[value]) for name, value in given.items())
        return {name: _plain(value) for name, value in named}
    return [_plain(each) for each in given] if isinstance(given, list | tuple) else given
