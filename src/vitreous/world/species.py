"""What lives in the world: five parts, five variants of each, and the classes that are made of them.

Everything drawn is a list of *strokes*: a stroke is a capsule from (ax, ay) to (bx, by) in one colour, whose radius
runs from ra to rb; a disc is a stroke without length. Coordinates are the creature's own: the body's centre is the
origin, x to the right, y downwards, about one unit from the centre to the tips. Later strokes lie on earlier ones.
Creatures and objects are symmetric, so only the right half is written down; the tail alone is drawn as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vitreous.errors import VitreousError, nearest

__all__ = [
    "BARE",
    "BODY",
    "CLASSES",
    "NAMES",
    "OBJECTS",
    "PARTS",
    "VARIANTS",
    "Kind",
    "Stroke",
    "find_class",
    "find_part",
    "find_variant",
    "telling_part",
]

Stroke = tuple[float, float, float, float, float, float, str]
"""ax, ay, bx, by, ra, rb, colour as six hexadecimal digits; an object's colours are the letters ``a`` and ``b``."""

_INK = "2b2233"
_WHITE = "fdfbf4"

BODY: tuple[Stroke, ...] = ((0.0, -0.17, 0.0, 0.17, 0.33, 0.42, "b9b2a8"),)
"""The body under its coat, as it looks where the coat was removed."""
BARE = BODY[0][6]


def _disc(x: float, y: float, r: float, colour: str) -> Stroke:
    return (x, y, x, y, r, r, colour)


def _line(*points: tuple[float, float, float], colour: str) -> tuple[Stroke, ...]:
    """Strokes through points (x, y, radius)."""
    return tuple((a[0], a[1], b[0], b[1], a[2], b[2], colour) for a, b in pairwise(points))


_HORNS = {
    "spike": (
        *_line((0, -0.40, 0.13), (0, -0.92, 0.025), colour="f4e3b0"),
        (0.0, -0.55, 0.085, -0.54, 0.03, 0.03, "d9482b"),
        (0.0, -0.70, 0.055, -0.69, 0.028, 0.028, "d9482b"),
    ),
    "bull": _line(
        (0.22, -0.36, 0.11), (0.42, -0.50, 0.085), (0.46, -0.66, 0.055), (0.38, -0.82, 0.02), colour="4a4458"
    ),
    "feeler": (
        *_line((0.10, -0.40, 0.035), (0.20, -0.66, 0.035), (0.36, -0.76, 0.035), colour="7a4b8c"),
        _disc(0.38, -0.78, 0.10, "ff7fae"),
    ),
    "crest": (
        (0.10, -0.40, 0.40, -0.64, 0.07, 0.08, "2f9e58"),
        (0.05, -0.42, 0.22, -0.78, 0.07, 0.09, "55c27a"),
        (0.0, -0.42, 0.0, -0.86, 0.07, 0.10, "8fe0a4"),
    ),
    "antler": (
        *_line((0.14, -0.40, 0.055), (0.30, -0.68, 0.05), (0.24, -0.88, 0.04), colour="c0763a"),
        (0.30, -0.68, 0.50, -0.76, 0.05, 0.035, "c0763a"),
        (0.22, -0.54, 0.42, -0.54, 0.05, 0.035, "c0763a"),
    ),
}

_EYES = {
    "round": (
        _disc(0.16, -0.20, 0.15, _WHITE),
        _disc(0.14, -0.18, 0.08, _INK),
        _disc(0.16, -0.21, 0.028, _WHITE),
    ),
    "single": (
        _disc(0, -0.19, 0.23, _WHITE),
        _disc(0, -0.17, 0.145, "2f86d6"),
        _disc(0, -0.17, 0.07, _INK),
        _disc(0.055, -0.23, 0.028, _WHITE),
    ),
    "triple": (
        _disc(0.21, -0.14, 0.11, "ffd9d2"),
        _disc(0.21, -0.14, 0.06, "d3122c"),
        _disc(0, -0.30, 0.11, "ffd9d2"),
        _disc(0, -0.30, 0.06, "d3122c"),
    ),
    "sleepy": (
        _disc(0.17, -0.18, 0.145, _WHITE),
        _disc(0.15, -0.12, 0.06, _INK),
        (0.09, -0.25, 0.25, -0.25, 0.08, 0.08, "8d5bd1"),
    ),
    "slit": (
        _disc(0.17, -0.20, 0.15, "ffe03a"),
        (0.17, -0.28, 0.17, -0.12, 0.032, 0.032, _INK),
    ),
}

_COATS = {  # the first stroke is the body itself; the others are cut at its edge
    "striped": (
        (*BODY[0][:6], "1f9e9a"),
        *((0.0, y, 0.5, y, 0.05, 0.05, "eafff6") for y in (-0.02, 0.17, 0.36, 0.55)),
    ),
    "dotted": (
        (*BODY[0][:6], "e2503f"),
        _disc(0.26, 0.05, 0.085, "fff0d0"),
        _disc(0.27, 0.34, 0.085, "fff0d0"),
        _disc(0, 0.20, 0.085, "fff0d0"),
        _disc(0, 0.47, 0.085, "fff0d0"),
    ),
    "ringed": (
        (*BODY[0][:6], "6a3fb5"),
        _disc(0, 0.24, 0.31, "ffd447"),
        _disc(0, 0.24, 0.22, "6a3fb5"),
        _disc(0, 0.24, 0.125, "ffd447"),
    ),
    "zigzag": (
        (*BODY[0][:6], "3f7d2c"),
        *_line((0.0, 0.08, 0.05), (0.22, 0.22, 0.05), (0.46, 0.08, 0.05), colour="d8f36a"),
        *_line((0.0, 0.34, 0.05), (0.22, 0.48, 0.05), (0.46, 0.34, 0.05), colour="d8f36a"),
    ),
    "bellied": (
        (*BODY[0][:6], "2c55b8"),
        (0.0, 0.18, 0.0, 0.33, 0.23, 0.26, "bfe3ff"),
        _disc(0, 0.28, 0.05, "2c55b8"),
    ),
}

_LEGS = {
    "boots": (
        (0.20, 0.45, 0.22, 0.70, 0.07, 0.07, "9a6a45"),
        (0.21, 0.78, 0.36, 0.81, 0.095, 0.075, "cf2f3f"),
    ),
    "stilts": (
        *_line((0.22, 0.42, 0.045), (0.42, 0.62, 0.04), (0.34, 0.86, 0.035), colour="e8b21c"),
        (0.34, 0.88, 0.46, 0.88, 0.04, 0.035, "e8b21c"),
    ),
    "stubs": (
        (0.10, 0.50, 0.11, 0.70, 0.085, 0.085, "7b5138"),
        (0.29, 0.42, 0.35, 0.62, 0.085, 0.085, "7b5138"),
    ),
    "webbed": (
        (0.20, 0.46, 0.24, 0.68, 0.045, 0.045, "ff8a1f"),
        (0.24, 0.68, 0.10, 0.85, 0.05, 0.055, "ff8a1f"),
        (0.24, 0.68, 0.27, 0.88, 0.05, 0.055, "ff8a1f"),
        (0.24, 0.68, 0.43, 0.82, 0.05, 0.055, "ff8a1f"),
    ),
    "tentacles": (
        *_line((0.08, 0.50, 0.06), (0.14, 0.70, 0.05), (0.06, 0.88, 0.035), colour="b458c9"),
        *_line((0.30, 0.42, 0.06), (0.42, 0.62, 0.05), (0.36, 0.82, 0.035), colour="b458c9"),
    ),
}

_TAILS = {  # to the right, the only part that is not mirrored; a whole scene may be
    "curly": _line(
        (0.34, 0.26, 0.06),
        (0.62, 0.30, 0.055),
        (0.80, 0.16, 0.05),
        (0.76, -0.02, 0.045),
        (0.62, -0.06, 0.04),
        (0.56, 0.07, 0.035),
        (0.64, 0.14, 0.03),
        colour="f48fb1",
    ),
    "bolt": _line(
        (0.34, 0.24, 0.06),
        (0.60, 0.22, 0.055),
        (0.54, 0.02, 0.055),
        (0.80, 0.00, 0.05),
        (0.74, -0.24, 0.025),
        colour="ffd21f",
    ),
    "pompom": (
        *_line((0.34, 0.26, 0.045), (0.58, 0.22, 0.04), (0.68, 0.04, 0.04), colour="3a7fa0"),
        _disc(0.70, -0.04, 0.15, "5fe0e6"),
    ),
    "fan": (
        (0.34, 0.26, 0.50, 0.22, 0.06, 0.05, "a01f6e"),
        (0.50, 0.22, 0.56, -0.12, 0.04, 0.085, "ff5fb0"),
        (0.50, 0.22, 0.74, -0.02, 0.04, 0.085, "d9348f"),
        (0.50, 0.22, 0.82, 0.16, 0.04, 0.085, "ff5fb0"),
        (0.50, 0.22, 0.78, 0.36, 0.04, 0.085, "d9348f"),
    ),
    "arrow": (
        *_line((0.34, 0.28, 0.05), (0.60, 0.32, 0.045), (0.72, 0.18, 0.04), (0.72, 0.00, 0.04), colour="a51d1d"),
        *_line((0.57, 0.02, 0.04), (0.72, -0.20, 0.03), (0.87, 0.02, 0.04), colour="a51d1d"),
    ),
}

_DRAWN = {"horn": _HORNS, "eyes": _EYES, "coat": _COATS, "legs": _LEGS, "tail": _TAILS}

PARTS = tuple(_DRAWN)
"""The five part types, in the order in which every mask and every table has them."""

VARIANTS: dict[str, tuple[str, ...]] = {part: tuple(drawn) for part, drawn in _DRAWN.items()}

OBJECTS: dict[str, tuple[Stroke, ...]] = {
    "pebble": (_disc(0.25, 0.0, 0.6, "a"), (0.0, -0.28, 0.2, -0.28, 0.12, 0.1, "b")),
    "twig": ((0.0, 0.1, 0.0, 0.9, 0.13, 0.1, "a"), (0.0, 0.1, 0.45, -0.8, 0.12, 0.07, "a")),
    "leaf": ((0.0, -0.35, 0.0, 0.25, 0.22, 0.5, "a"), (0.0, -0.6, 0.0, 0.95, 0.04, 0.06, "b")),
    "mushroom": (
        (0.0, 0.0, 0.0, 0.65, 0.18, 0.22, "b"),
        (0.0, -0.2, 0.4, -0.12, 0.42, 0.3, "a"),
        _disc(0.3, -0.2, 0.11, "b"),
        _disc(0.0, -0.4, 0.11, "b"),
    ),
    "flower": (
        _disc(0.0, -0.5, 0.32, "a"),
        _disc(0.475, -0.155, 0.32, "a"),
        _disc(0.295, 0.405, 0.32, "a"),
        _disc(0.0, 0.0, 0.27, "b"),
    ),
    "bubble": (_disc(0, 0, 0.8, "a"), _disc(0, 0, 0.62, "b"), _disc(0.0, -0.35, 0.13, "a")),
}
"""What lies about and says nothing; one unit is the object's size."""


@dataclass(frozen=True)
class Kind:
    """A class: a name, and one variant of every part. Three classes of a family differ in its ``telling`` part only."""

    name: str
    family: str
    telling: str
    parts: dict[str, str]


_FAMILIES: dict[str, tuple[int, int, int, int, int]] = {
    "bimble": (1, 1, 2, 4, 1),
    "corrick": (4, 3, 4, 3, 3),
    "dapple": (0, 2, 0, 0, 0),
    "fennet": (2, 3, 3, 1, 2),
    "gribble": (1, 0, 1, 1, 2),
    "humlin": (3, 4, 0, 2, 4),
    "jossel": (3, 0, 3, 4, 0),
    "kettle": (1, 3, 4, 0, 1),
    "lumbo": (0, 1, 4, 1, 2),
    "mossop": (4, 2, 2, 1, 3),
    "nubbin": (1, 4, 0, 3, 3),
    "ottle": (2, 3, 1, 2, 4),
    "pip": (3, 0, 2, 0, 1),
    "quillet": (4, 2, 3, 2, 2),
    "rumpus": (0, 1, 4, 4, 3),
    "snorrel": (1, 3, 1, 1, 0),
}
"""The first member of every family as places in ``VARIANTS``. The next two have the next variants of the telling part,
which goes round the five parts. Members of two families differ in two parts or more; every variant is about as common.
"""
_ADJECTIVES = {
    **{"spike": "spike-horned", "bull": "bull-horned", "feeler": "feelered", "crest": "crested", "antler": "antlered"},
    **{"round": "round-eyed", "single": "one-eyed", "triple": "three-eyed", "sleepy": "sleepy", "slit": "slit-eyed"},
    **{"boots": "booted", "stilts": "stilted", "stubs": "stubby", "webbed": "webbed", "tentacles": "tentacled"},
    **{tail: f"{tail}-tailed" for tail in _TAILS},
    **{coat: coat for coat in _COATS},
}
_SIBLINGS = 3


def _kinds() -> Iterator[Kind]:
    for number, (family, first) in enumerate(_FAMILIES.items()):
        telling = PARTS[number % len(PARTS)]
        for sibling in range(_SIBLINGS):
            places = {part: place + sibling * (part == telling) for part, place in zip(PARTS, first, strict=True)}
            parts = {part: VARIANTS[part][place % len(VARIANTS[part])] for part, place in places.items()}
            yield Kind(f"{_ADJECTIVES[parts[telling]]} {family}", family, telling, parts)


CLASSES: tuple[Kind, ...] = tuple(_kinds())
"""The 48 classes, in the order of the models' outputs."""

NAMES: tuple[str, ...] = tuple(kind.name for kind in CLASSES)


def find_class(given: int | str) -> int:
    """Return the index of a class given by index or name."""
    if isinstance(given, str) and given in NAMES:
        return NAMES.index(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(NAMES):
        return given
    hint = nearest(given, NAMES) if isinstance(given, str) else ""
    raise VitreousError(f"the world has no class {given!r}{hint or f'; classes are 0..{len(NAMES) - 1}, or names'}")


def find_part(given: str) -> int:
    """Return the place of a part type in ``PARTS``."""
    if given not in PARTS:
        raise VitreousError(f"creatures have no part {given!r}; parts are {', '.join(PARTS)}")
    return PARTS.index(given)


def find_variant(part: str, given: str) -> int:
    """Return the place of a variant among those of its part."""
    names = VARIANTS[PARTS[find_part(part)]]
    if given not in names:
        raise VitreousError(f"there is no {part} called {given!r}; they are {', '.join(names)}")
    return names.index(given)


def telling_part(given: int | str) -> str:
    """Return the part that tells this class from its two siblings."""
    return CLASSES[find_class(given)].telling


def strokes(part: str, variant: str) -> tuple[Stroke, ...]:
    """Return how a variant is drawn."""
    return _DRAWN[part][variant]
