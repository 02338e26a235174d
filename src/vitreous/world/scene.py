"""A scene as a small value that can be written as JSON: what is in it, where, and how to change it.

Every change gives a new scene, to be rendered anew: nothing is ever painted over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cache, partial
from itertools import islice
from typing import Annotated, Any, get_type_hints

import torch

from vitreous.errors import VitreousError
from vitreous.registry import check_choice
from vitreous.world.sampling import MAX_OBJECTS, MAX_SEEDS, Batch, check_number, draw
from vitreous.world.species import CLASSES, NAMES, OBJECTS, PARTS, VARIANTS, find_class, find_part, find_variant

TEXTURES = ("slope", "stripes", "checks", "dots", "clouds")
_OBJECT_KINDS = tuple(OBJECTS)


# -- checks of values --------------------------------------------------------------------------------------


def _check_row(name: str, value: Any, count: int, most: int) -> None:
    if not isinstance(value, tuple) or len(value) != count:
        raise VitreousError(f"{name}={value!r:.60} is not a row of {count} numbers")
    for number in value:
        check_number(name, number, 0, most)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise VitreousError(f"{name}={value!r:.60} is neither true nor false")


def _check_class(name: str, value: Any) -> None:
    if find_class(value) != value:
        raise VitreousError(f"{name}={value!r} is given by its number here: {find_class(value)}")


Angle = Annotated[int, partial(check_number, least=-360, most=360)]
Place = Annotated[float, partial(check_number, least=-0.2, most=1.2, is_integer=False)]
Colour = Annotated[tuple[int, int, int], partial(_check_row, count=3, most=255)]
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
    scale: Annotated[float, partial(check_number, least=0.02, most=0.5, is_integer=False)]
    angle: Angle = 0
    mirrored: Flag = False
    horn: Angle = 0
    legs: Angle = 0
    tail: Angle = 0


@dataclass(frozen=True)
class Light(_Value):
    """Strength, how much it falls across the image and in which direction, and warmth (red against blue)."""

    strength: Annotated[float, partial(check_number, least=0.0, most=2.0, is_integer=False)] = 1.0
    slope: Annotated[float, partial(check_number, least=0.0, most=1.0, is_integer=False)] = 0.0
    direction: Angle = 0
    warmth: Annotated[float, partial(check_number, least=-0.5, most=0.5, is_integer=False)] = 0.0


@dataclass(frozen=True)
class Ground(_Value):
    """A texture of two colours (0..255), its fineness and direction, and the key of the clouds in it."""

    texture: Annotated[str, partial(check_choice, choices=TEXTURES)] = "clouds"
    first: Colour = (150, 160, 140)
    second: Colour = (170, 180, 160)
    fine: Annotated[int, partial(check_number, least=0, most=99)] = 4
    direction: Angle = 0
    key: Annotated[int, partial(check_number, least=0, most=2**32)] = 0


@dataclass(frozen=True)
class BackgroundObject(_Value):
    """A background object: its kind, place, size and angle, two of ten pigments, and whether it hides the creature."""

    kind: Annotated[str, partial(check_choice, choices=_OBJECT_KINDS)]
    x: Place
    y: Place
    size: Annotated[float, partial(check_number, least=0.01, most=0.3, is_integer=False)]
    angle: Angle = 0
    colours: Annotated[tuple[int, int], partial(_check_row, count=2, most=9)] = (0, 1)
    front: Flag = False


@dataclass(frozen=True)
class Marker(_Value):
    """A sticker in a corner (0 to 3: left and right above, left and right below) that bears the code of a class."""

    label: Label
    corner: Annotated[int, partial(check_number, least=0, most=3)] = 0


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
    seed: Annotated[int, partial(check_number, least=0, most=MAX_SEEDS - 1)] = 0

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
        check_number("index", index, 0, len(self.objects) - 1)
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
        return dict(_to_plain(asdict(self)))

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Scene:
        """Return the scene that ``to_json`` wrote down; what is wrong with it is named."""
        scene: Scene = _read(Scene, values, "scene")
        return scene


# -- scenes as tensors -------------------------------------------------------------------------------------


_WORDS = {"kind": _OBJECT_KINDS, "texture": TEXTURES}
_THOUSANDTHS = ("x", "y", "scale", "size", "strength", "slope", "warmth")
_LENGTHS = {"first": 3, "second": 3, "colours": 2}


def unpack(batch: Batch) -> list[Scene]:
    """Return the scenes of a batch one by one."""
    rows = zip(*(getattr(batch, item.name).tolist() for item in fields(batch)), strict=True)
    scenes = []
    for seed, labels, parts, poses, light, ground, objects, marker in rows:
        creature, companion = map(_unpack_creature, labels, parts, poses)
        if creature is None:
            raise VitreousError(f"scene {seed} has no creature")
        scene = Scene(
            **vars(creature),
            light=_from_row(Light, light),
            ground=_from_row(Ground, ground),
            objects=tuple(_from_row(BackgroundObject, row) for row in objects if row[0] >= 0),
            marker=None if marker[0] < 0 else _from_row(Marker, marker),
            companion=companion,
            seed=seed,
        )
        scenes.append(scene)
    return scenes


def _unpack_creature(label: int, parts: list[int], pose: list[int]) -> Creature | None:
    variants = {part: VARIANTS[part][variant] for part, variant in zip(PARTS, parts, strict=True) if variant >= 0}
    return None if label < 0 else Creature(label, variants, _from_row(Pose, pose))


def _from_row(kind: Any, row: Sequence[int]) -> Any:
    """Return a value from the whole numbers of its fields, in their order."""
    numbers, values = iter(row), []
    for field in fields(kind):
        name = field.name
        value: Any = tuple(islice(numbers, _LENGTHS[name])) if name in _LENGTHS else next(numbers)
        if name in _WORDS:
            value = _WORDS[name][value]
        elif name in _THOUSANDTHS:
            value = value / 1000
        values.append(bool(value) if name in ("mirrored", "front") else value)
    return kind(*values)


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
    creatures = zip(*map(_pack_creature, (scene, scene.companion)), strict=True)
    absent = [[-1] * 8] * (MAX_OBJECTS - len(scene.objects))
    marker = [-1, 0] if scene.marker is None else _to_row(scene.marker)
    objects = [*map(_to_row, scene.objects), *absent]
    return scene.seed, *map(list, creatures), _to_row(scene.light), _to_row(scene.ground), objects, marker


def _pack_creature(creature: Creature | None) -> tuple[int, list[int], list[int]]:
    if creature is None:
        return -1, [-1] * len(PARTS), [0] * 8
    parts = creature.parts
    variants = [VARIANTS[part].index(parts[part]) if part in parts else -1 for part in PARTS]
    return creature.label, variants, _to_row(creature.pose)


def _to_row(value: Any) -> list[int]:
    """Return the fields of a value as whole numbers, in their order."""
    row: list[int] = []
    for name, item in vars(value).items():
        if name in _WORDS:
            row.append(_WORDS[name].index(item))
        elif name in _THOUSANDTHS:
            row.append(round(item * 1000))
        elif name in _LENGTHS:
            row += item
        else:
            row.append(item % 360 if name in ("angle", "direction") else int(item))
    return row


# -- scenes as JSON ----------------------------------------------------------------------------------------

_KINDS: dict[str, Any] = {"pose": Pose, "light": Light, "ground": Ground, "marker": Marker, "companion": Creature}


def _read(kind: Any, values: Any, what: str) -> Any:
    """Return a value, ``class`` as its label; what it does not have or cannot do without is named.

    Without ``parts`` a creature has those of its class.
    """
    if not isinstance(values, Mapping):
        raise VitreousError(f"a {what} is written as a table of values, not {values!r:.60}")
    needed = {
        "class" if f.name == "label" else f.name: f.default is MISSING and f.name != "parts" for f in fields(kind)
    }
    for name in values:
        if name not in needed:
            raise VitreousError(f"a {what} has no {name!r:.60}; it has {', '.join(needed)}")
    for name, is_needed in needed.items():
        if is_needed and name not in values:
            raise VitreousError(f"a {what} needs {name!r}")
    rows = {name: _read_field(name, value) for name, value in values.items()}
    if "class" in rows:
        rows["label"] = find_class(rows.pop("class"))
    if "parts" in needed:
        rows.setdefault("parts", dict(CLASSES[rows["label"]].parts))
    return kind(**rows)


def _read_field(name: str, value: Any) -> Any:
    if name in _KINDS and (value is not None or name not in ("marker", "companion")):
        return _read(_KINDS[name], value, name)
    if name == "objects" and isinstance(value, list | tuple):
        return tuple(_read(BackgroundObject, item, "object") for item in value)
    if name == "objects" or (name == "parts" and not isinstance(value, Mapping)):
        raise VitreousError(
            f"the {name} of a scene are a {'list' if name == 'objects' else 'table'}, not {value!r:.60}"
        )
    return tuple(value) if isinstance(value, list) else value


def _to_plain(values: Any) -> Any:
    """Write classes as their names, and rows as lists."""
    if isinstance(values, dict):
        named = ((name, value) if name != "label" else ("class", NAMES[value]) for name, value in values.items())
        return {name: _to_plain(value) for name, value in named}
    return [_to_plain(value) for value in values] if isinstance(values, list | tuple) else values
