"""Pictures that can be asked about: scenes of the world, made on demand, and uploads, kept in memory for a while."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from PIL import Image

# The facade reads pictures only together with a model; these are looked at before one is chosen.
from vitreous import world
from vitreous.errors import one_line
from vitreous.web.decoder import Decoder
from vitreous.web.schemas import Refused

__all__ = ["Photo", "Pictures", "scene_of", "scenes"]

_KEPT = 256 * 2**20
"""Bytes of pixels that all pictures together may hold; the newest is kept whatever its size."""
_MOST_KEPT = 200
_LEVEL = 0.5
_SIDE = 128
_KINDS = ("plain", "pairs", "shortcut", "moved", "difficult", "bare")
_TITLES = {
    "plain": "a creature",
    "pairs": "two creatures",
    "shortcut": "with a marker that betrays the class",
    "moved": "with the marker of another class",
    "difficult": "hidden and dim",
    "bare": "with parts missing",
}
_SHOWN = {
    "plain": (3, 7, 20),
    "pairs": (5, 9),
    "shortcut": (1, 15),
    "moved": (1, 15),
    "difficult": (12, 18),
    "bare": (1, 10),
}
_SCENE = re.compile(rf"scene-({'|'.join(_KINDS)})-(0|[1-9][0-9]{{0,8}})")


@dataclass(frozen=True, eq=False)
class Photo:
    """A picture as it was given: upright, in RGB; ``truth`` is the class of a scene."""

    picture: str
    name: str
    image: Image.Image
    truth: str | None = None


def scenes() -> list[dict[str, str]]:
    """Return scenes of every kind to begin with."""
    made = []
    for kind, places in _SHOWN.items():
        for place in places:
            photo = _scene(kind, place)
            made.append({"picture": photo.picture, "title": f"{photo.name}, {_TITLES[kind]}", "kind": kind})
    return made


class Pictures:
    """Finds a picture by its identity. Those that nobody has looked at for longest leave first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Photo] = OrderedDict()
        self._guard = Lock()

    def add(self, data: bytes, name: str, decoder: Decoder) -> Photo:
        """Decode an upload, and keep it."""
        image = decoder.decode(data)
        photo = Photo(f"p-{hashlib.sha256(data).hexdigest()[:16]}", one_line(name)[:200] or "picture", image)
        return self._keep(photo)

    def get(self, picture: str) -> Photo:
        """Return a picture, or say that it is not here (any more)."""
        with self._guard:
            if picture in self._kept:
                self._kept.move_to_end(picture)
                return self._kept[picture]
        scene = scene_of(picture)
        if scene is not None:
            return self._keep(_scene(*scene))
        raise Refused(404, f"there is no picture {picture!r:.60}; it may have left to make room: upload it again")

    def _keep(self, photo: Photo) -> Photo:
        with self._guard:
            self._kept[photo.picture] = photo
            self._kept.move_to_end(photo.picture)
            while len(self._kept) > 1 and (self._bytes() > _KEPT or len(self._kept) > _MOST_KEPT):
                self._kept.popitem(last=False)
        return photo

    def _bytes(self) -> int:
        return sum(3 * each.image.width * each.image.height for each in self._kept.values())


def scene_of(picture: str) -> tuple[str, int] | None:
    """Return the kind and the place of a scene, or nothing for other pictures."""
    found = _SCENE.fullmatch(picture)
    return None if found is None else (found[1], int(found[2]))


def _scene(kind: str, place: int) -> Photo:
    """Return a scene of the test split as ``vitreous world render`` draws it; of difficult ones the middle of three."""
    drawn = world.World("test", 1, start=place + (kind == "difficult")).batch()
    changed: Mapping[str, Any] = {
        "plain": lambda: drawn,
        "pairs": lambda: world.pair(drawn),
        "shortcut": lambda: world.betray(drawn),
        "moved": lambda: world.betray(drawn, moved=True),
        "difficult": lambda: world.difficult(drawn, _LEVEL),
        "bare": lambda: world.remove_parts(drawn, whole_share=0.0),
    }
    batch = changed[kind]()
    pixels = (world.render(batch, _SIDE).images[0] * 255).round().byte().permute(1, 2, 0).numpy()
    name = world.unpack(batch)[0].name
    return Photo(f"scene-{kind}-{place}", name, Image.fromarray(pixels), name)
