"""A scene as a small value that can be written as JSON: what is in it, where, and how to change it.

Every change gives a new scene, to be rendered anew: nothing is ever painted over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_type_hints

import torch

from vitreous.errors import VitreousError
from vitreous.world.sampling import MAX_OBJECTS, MAX_SEEDS, Batch, draw
from vitreous.world.species import CLASSES, NAMES, OBJECTS, PARTS, VARIANTS, find_class, find_part, find_variant

T = TypeVar("T")
TEXTURES = ("slope", "stripes", "checks", "dots", "clouds")
_OBJECT_KINDS = tuple(OBJECTS)


# -- checks of values --------------------------------------------------------------------------------------


def _check_number(least: float, most: float, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise VitreousError(f"{name}={value!r:.60} is outside {least}..{most}")


def _check_integer(least: int, most: int, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise VitreousError(f"{name}={value!r:.60} is not a whole number in {least}..{most}")


def _check_row(count: int, most: int, name: str, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != count:
        raise VitreousError(f"{name}={value!r:.60} is not a row of {count} numbers")
    for number in value:
        _check_integer(0, most, name, number)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise VitreousError(f"{name}={value!r:.60} is neither true nor false")


def _check_word(words: Sequence[str], name: str, value: Any) -> None:
    if value not in words:
        raise VitreousError(f"there is no {name} {value!r}; they are {', '.join(words)}")


def _check_class(name: str, value: Any) -> None:
    if find_class(value) != value:
        raise VitreousError(f"{name}={value!r} is given by its number here: {find_class(value)}")


Angle = Annotated[int, partial(_check_integer, -360, 360)]
Place = Annotated[float, partial(_check_number, -0.2, 1.2)]
Colour = Annotated[tuple[int, int, int], partial(_check_row, 3, 255)]
Flag = Annotated[bool, _check_flag]
Label = Annotated[int, _check_class]


@cache
def _checks(kind: type) -> list[tuple[str, Callable[[str, Any], None]]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(name, check) for name, hint in hints.items() for check in getattr(hint, "__metadata__", ())]


class _Value:
    """A dataclass whose fields are checked by what their types are annotated with."""

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)):  # type: ignore[arg-type]
            check(name, getattr(self, name))


# -- what a scene is made of -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pose(_Value):
    """Where the body's centre is and how long a unit is, of the image's side, and turns in degrees.

    ``horn``, ``legs`` and ``tail`` are turned about where they grow; ``mirrored`` has the tail on the left.
    """

    x: Place
    y: Place
    scale: Annotated[float, partial(_check_number, 0.02, 0.5)]
    angle: Angle = 0
    mirrored: Flag = False
    horn: Angle = 0
    legs: Angle = 0
    tail: Angle = 0


@dataclass(frozen=True)
class Light(_Value):
    """Strength, how much it falls across the image and in which direction, and warmth (red against blue)."""

    strength: Annotated[float, partial(_check_number, 0.0, 2.0)] = 1.0
    slope: Annotated[float, partial(_check_number, 0.0, 1.0)] = 0.0
    direction: Angle = 0
    warmth: Annotated[float, partial(_check_number, -0.5, 0.5)] = 0.0


@dataclass(frozen=True)
class Ground(_Value):
    """A texture of two colours (0..255), its fineness and direction, and the key of the clouds in it."""

    texture: Annotated[str, partial(_check_word, TEXTURES)] = "clouds"
    first: Colour = (150, 160, 140)
    second: Colour = (170, 180, 160)
    fine: Annotated[int, partial(_check_integer, 0, 99)] = 4
    direction: Angle = 0
    key: Annotated[int, partial(_check_integer, 0, 2**32)] = 0


@dataclass(frozen=True)
class BackgroundObject(_Value):
    """A background object: its kind, place, size and angle, two of ten pigments, and whether it hides the creature."""

    kind: Annotated[str, partial(_check_word, _OBJECT_KINDS)]
    x: Place
    y: Place
    size: Annotated[float, partial(_check_number, 0.01, 0.3)]
    angle: Angle = 0
    colours: Annotated[tuple[int, int], partial(_check_row, 2, 9)] = (0, 1)
    front: Flag = False


@dataclass(frozen=True)
class Marker(_Value):
    """A sticker in a corner (0 to 3: left and right above, left and right below) that bears the code of a class."""

    label: Label
    corner: Annotated[int, partial(_check_integer, 0, 3)] = 0


@dataclass(frozen=True)
class Creature(_Value):
    """A class, the parts that are there (type to variant), and a pose."""

    label: Label
    parts: Mapping[str, str]
    pose: Pose

    def __post_init__(self) -> None:
        super().__post_init__()
        for part, variant in self.parts.items():
            find_variant(part, variant)

    @property
    def name(self) -> str:
        return NAMES[self.label]


@dataclass(frozen=True)
class Scene(Creature):
    """A creature in its surroundings, perhaps with a companion.

    Parameters
    ----------
    label : int
        The class of the creature.
    parts : mapping of str to str
        The parts that are there: type to variant.
    pose : Pose
        Where the creature is.
    light : Light, default Light()
        How the scene is lit.
    ground : Ground, default Ground()
        What it stands on.
    objects : tuple of BackgroundObject, default ()
        What lies about, at most twelve.
    marker : Marker, optional
        A sticker in a corner.
    companion : Creature, optional
        Another creature.
    seed : int, default 0
        What the scene was drawn from.

    Examples
    --------
    >>> scene = vt.world.Scene.of(3)
    >>> scene.name
    'bellied pip'
    >>> "horn" in scene.without("horn").parts
    False
    """

    light: Light = Light()
    ground: Ground = Ground()
    objects: tuple[BackgroundObject, ...] = ()
    marker: Marker | None = None
    companion: Creature | None = None
    seed: Annotated[int, partial(_check_integer, 0, MAX_SEEDS - 1)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.objects) > MAX_OBJECTS:
            raise VitreousError(f"a scene holds at most {MAX_OBJECTS} objects, not {len(self.objects)}")

    @staticmethod
    def of(seed: int) -> Scene:
        """Return the scene of a seed, the same on every machine."""
        return unpack(draw([seed]))[0]

    def without(self, *parts: str) -> Scene:
        """Remove parts."""
        removed = {PARTS[find_part(part)] for part in parts}
        return replace(self, parts={part: v for part, v in self.parts.items() if part not in removed})

    def only(self, *parts: str) -> Scene:
        """Keep these parts and remove the others."""
        remaining = {PARTS[find_part(part)] for part in parts}
        return self.without(*(part for part in PARTS if part not in remaining))

    def swap(self, part: str, other: int | str) -> Scene:
        """Exchange a part for that of another class."""
        part = PARTS[find_part(part)]
        return replace(self, parts={**self.parts, part: CLASSES[find_class(other)].parts[part]})

    def without_object(self, index: int) -> Scene:
        """Remove one background object, by its index in ``objects``; those after it move up."""
        if not isinstance(index, int) or not 0 <= index < len(self.objects):
            raise VitreousError(f"the scene has no object {index!r}; it has {len(self.objects)}")
        return replace(self, objects=self.objects[:index] + self.objects[index + 1 :])

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
        values: dict[str, Any] = _to_plain(asdict(self))
        return values

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Scene:
        """Return the scene that ``to_json`` wrote down; what is wrong with it is named."""
        values = _read_fields(Scene, values, "scene")
        companion, marker, objects = values.get("companion"), values.get("marker"), values.get("objects", [])
        if not isinstance(objects, list | tuple):
            raise VitreousError(f"the objects of a scene are written as a list, not {objects!r:.60}")
        if companion is not None:
            companion = Creature(**_read_creature(_read_fields(Creature, companion, "companion"), "companion"))
        return Scene(
            **_read_creature(values, "scene"),
            light=_read(Light, values.get("light", {}), "light"),
            ground=_read(Ground, values.get("ground", {}), "ground"),
            objects=tuple(_read(BackgroundObject, item, "object") for item in objects),
            marker=None if marker is None else _read(Marker, marker, "marker"),
            companion=companion,
            seed=values.get("seed", 0),
        )


# -- scenes as tensors -------------------------------------------------------------------------------------


def unpack(batch: Batch) -> list[Scene]:
    """Return the scenes of a batch one by one."""
    rows = zip(*(getattr(batch, item.name).tolist() for item in fields(batch)), strict=True)
    scenes = []
    for seed, labels, parts, poses, light, ground, objects, marker in rows:
        creature, companion = map(_unpack_creature, labels, parts, poses)
        if creature is None:
            raise VitreousError(f"scene {seed} has no creature")
        scenes.append(
            Scene(
                creature.label,
                creature.parts,
                creature.pose,
                Light(light[0] / 1000, light[1] / 1000, light[2], light[3] / 1000),
                Ground(TEXTURES[ground[0]], tuple(ground[1:4]), tuple(ground[4:7]), *ground[7:]),
                tuple(_unpack_object(*values) for values in objects if values[0] >= 0),
                None if marker[0] < 0 else Marker(*marker),
                companion,
                seed,
            )
        )
    return scenes


def _unpack_creature(label: int, parts: list[int], pose: list[int]) -> Creature | None:
    if label < 0:
        return None
    variants = {part: VARIANTS[part][variant] for part, variant in zip(PARTS, parts, strict=True) if variant >= 0}
    x, y, scale, angle, mirrored, *turns = pose
    return Creature(label, variants, Pose(x / 1000, y / 1000, scale / 1000, angle, bool(mirrored), *turns))


def _unpack_object(
    kind: int, x: int, y: int, size: int, angle: int, first: int, second: int, front: int
) -> BackgroundObject:
    return BackgroundObject(_OBJECT_KINDS[kind], x / 1000, y / 1000, size / 1000, angle, (first, second), bool(front))


def pack(scenes: Sequence[Scene]) -> Batch:
    """Return scenes as one batch."""
    is_row = isinstance(scenes, Sequence) and not isinstance(scenes, str)
    wrong = [scene for scene in scenes if not isinstance(scene, Scene)] if is_row else [scenes]
    if wrong:
        raise VitreousError(f"a Scene is needed, not {wrong[0]!r:.60}")
    if not scenes:
        raise VitreousError("there is no scene to pack")
    columns = zip(*map(_pack_scene, scenes), strict=True)
    return Batch(*(torch.tensor(column, dtype=torch.int64) for column in columns))


def _pack_scene(scene: Scene) -> tuple[Any, ...]:
    light, ground, marker = scene.light, scene.ground, scene.marker
    pattern = [ground.fine, ground.direction % 360, ground.key]
    objects = [
        [_OBJECT_KINDS.index(o.kind), *_milli(o.x, o.y, o.size), o.angle % 360, *o.colours, int(o.front)]
        for o in scene.objects
    ]
    creatures = zip(*map(_pack_creature, (scene, scene.companion)), strict=True)
    return (
        scene.seed,
        *map(list, creatures),
        [*_milli(light.strength, light.slope), light.direction % 360, *_milli(light.warmth)],
        [TEXTURES.index(ground.texture), *ground.first, *ground.second, *pattern],
        objects + [[-1] * 8] * (MAX_OBJECTS - len(objects)),
        [-1, 0] if marker is None else [marker.label, marker.corner],
    )


def _pack_creature(creature: Creature | None) -> tuple[int, list[int], list[int]]:
    if creature is None:
        return -1, [-1] * len(PARTS), [0] * 8
    parts, pose = creature.parts, creature.pose
    variants = [VARIANTS[part].index(parts[part]) if part in parts else -1 for part in PARTS]
    turns = [pose.angle % 360, int(pose.mirrored), pose.horn, pose.legs, pose.tail]
    return creature.label, variants, [*_milli(pose.x, pose.y, pose.scale), *turns]


def _milli(*values: float) -> list[int]:
    return [round(value * 1000) for value in values]


# -- scenes as JSON ----------------------------------------------------------------------------------------


def _read_fields(kind: Any, values: Any, what: str) -> dict[str, Any]:
    """Return the values of a dataclass, ``class`` as its label; what it does not have or cannot do without is named."""
    if not isinstance(values, Mapping):
        raise VitreousError(f"a {what} is written as a table of values, not {values!r:.60}")
    needed = _needed_fields(kind)
    unknown = next((name for name in values if name not in needed), None)
    if unknown is not None:
        raise VitreousError(f"a {what} has no {unknown!r:.60}; it has {', '.join(needed)}")
    missing = next((name for name in needed if needed[name] and name not in values), None)
    if missing is not None:
        raise VitreousError(f"a {what} needs {missing!r}")
    rows: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if "class" in needed:
        rows["label"] = find_class(rows.pop("class"))
    return rows


def _needed_fields(kind: Any) -> dict[str, bool]:
    """Return the names of a dataclass's fields, ``class`` for the label, and whether each must be there."""
    return {"class" if f.name == "label" else f.name: f.default is MISSING and f.name != "parts" for f in fields(kind)}


def _read(kind: type[T], values: Any, what: str) -> T:
    return kind(**_read_fields(kind, values, what))


def _read_creature(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return what makes a creature; without ``parts`` it has those of its class."""
    parts = values.get("parts", CLASSES[values["label"]].parts)
    if not isinstance(parts, Mapping):
        raise VitreousError(f"the parts of a {what} are a table of part and variant, not {parts!r:.60}")
    return {"label": values["label"], "parts": dict(parts), "pose": _read(Pose, values["pose"], "pose")}


def _to_plain(values: Any) -> Any:
    """Write classes as their names, and rows as lists."""
    if isinstance(values, dict):
        named = ((name, value) if name != "label" else ("class", NAMES[value]) for name, value in values.items())
        return {name: _to_plain(value) for name, value in named}
    return [_to_plain(value) for value in values] if isinstance(values, list | tuple) else values
