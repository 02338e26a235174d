"""What lives in the world: five parts, five variants of each, and the classes that are made of them.

Everything drawn is a list of *strokes*, which ``species.json`` has: a stroke is a capsule from (ax, ay) to (bx, by) in
one colour, whose radius runs from ra to rb; a disc is a stroke without length. Coordinates are the creature's own: the
body's centre is the origin, x to the right, y downwards, about one unit from the centre to the tips. Later strokes lie
on earlier ones. Creatures and objects are symmetric, so only the right half is written down; the tail alone, to the
right, is drawn as it stands. The first stroke of a coat is the body itself; the others are cut at its edge. One unit of
an object is its size, and its colours are the letters ``a`` and ``b``.

``families`` are the first member of every family as indices of variants. The next two have the next variants of the
distinctive part, which goes round the five parts. Members of two families differ in two parts or more; every variant is
about as common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.errors import VitreousError, nearest

Stroke = tuple[float, float, float, float, float, float, str]
"""ax, ay, bx, by, ra, rb, colour as six hexadecimal digits; an object's colours are the letters ``a`` and ``b``."""

_TABLES: dict[str, Any] = disk.read_json(Path(__file__).with_name("species.json"))


def _read_drawings(table: dict[str, Any]) -> dict[str, tuple[Stroke, ...]]:
    return {name: tuple((*stroke,) for stroke in strokes) for name, strokes in table.items()}


BODY: tuple[Stroke, ...] = ((0.0, -0.17, 0.0, 0.17, 0.33, 0.42, "b9b2a8"),)
"""The body under its coat, as it looks where the coat was removed."""
_DRAWINGS = {part: _read_drawings(variants) for part, variants in _TABLES["parts"].items()}
PARTS = tuple(_DRAWINGS)
"""The five part types, in the order in which every mask and every table has them."""
VARIANTS: dict[str, tuple[str, ...]] = {part: tuple(drawings) for part, drawings in _DRAWINGS.items()}
OBJECTS = _read_drawings(_TABLES["objects"])
"""What lies about and is evidence of nothing."""
_SIBLINGS = 3


@dataclass(frozen=True)
class Species:
    """A class of the world. Three classes of a family differ in their ``distinctive`` part only.

    Parameters
    ----------
    name : str
        The name of the class.
    family : str
        The last word of the name.
    distinctive : str
        The part that tells it from the other two of its family.
    parts : dict of str to str
        One variant of every part.
    """

    name: str
    family: str
    distinctive: str
    parts: dict[str, str]


def _make_species() -> Iterator[Species]:
    for number, (family, first) in enumerate(_TABLES["families"].items()):
        own = PARTS[number % len(PARTS)]
        for sibling in range(_SIBLINGS):
            indices = {part: index + sibling * (part == own) for part, index in zip(PARTS, first, strict=True)}
            parts = {part: VARIANTS[part][index % len(VARIANTS[part])] for part, index in indices.items()}
            yield Species(f"{_TABLES['adjectives'][parts[own]]} {family}", family, own, parts)


CLASSES: tuple[Species, ...] = tuple(_make_species())
"""The 48 classes, in the order of the models' outputs."""
NAMES: tuple[str, ...] = tuple(species.name for species in CLASSES)


def find_class(name: int | str) -> int:
    """Return the index of a class given by index or name."""
    if isinstance(name, str) and name in NAMES:
        return NAMES.index(name)
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name < len(NAMES):
        return name
    hint = nearest(name, NAMES) if isinstance(name, str) else ""
    raise VitreousError(f"the world has no class {name!r}{hint or f'; classes are 0..{len(NAMES) - 1}, or names'}")


def find_part(name: str) -> int:
    """Return the index of a part type in ``PARTS``."""
    if name not in PARTS:
        raise VitreousError(f"creatures have no part {name!r}; parts are {', '.join(PARTS)}")
    return PARTS.index(name)


def find_variant(part: str, name: str) -> int:
    """Return the index of a variant among those of its part."""
    names = VARIANTS[PARTS[find_part(part)]]
    if name not in names:
        raise VitreousError(f"there is no {part} called {name!r}; they are {', '.join(names)}")
    return names.index(name)


def distinctive_part(name: int | str) -> str:
    """Return the part that tells a class from the other two of its family.

    Parameters
    ----------
    name : int or str
        The index or name of the class.

    Returns
    -------
    str

    Examples
    --------
    >>> vt.world.distinctive_part("three-eyed jossel")
    'eyes'
    """
    return CLASSES[find_class(name)].distinctive


def strokes(part: str, variant: str) -> tuple[Stroke, ...]:
    """Return how a variant is drawn."""
    return _DRAWINGS[part][variant]
