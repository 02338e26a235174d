"""Which pictures of a source are taken: the first, some at random, as many of each class, or those of a list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from vitreous import disk
from vitreous.data.sets.source import Entry
from vitreous.errors import ImageError, SpellingError, one_line
from vitreous.words import check_choice

__all__ = ["CHOICES", "chosen"]

_MOST_BYTES = 2**28
CHOICES = ("first", "random", "per-class", "listed")


def chosen(
    word: str,
    entries: Sequence[Entry],
    images: int = 0,
    choose: str = "first",
    seed: int = 0,
    listed: Iterable[str] | str | Path | None = None,
) -> list[Entry]:
    """Return the entries of the pictures that are taken, all of them with ``images=0``.

    ``"first"`` keeps the order of the source. ``"random"`` takes those with the smallest digests of seed and name, in
    that order: it does not depend on where the folder is or what else is in it, and a larger choice begins with the
    smaller one. ``"per-class"`` takes one of each class after the other by the same digests, so that ten pictures of
    four classes are three, three, two and two. ``"listed"`` takes the names of a list, or of a text or JSON file, in
    its order. Entries that show one photograph count as one picture and stay together, but not per class.
    """
    check_choice("choose", choose, CHOICES)
    if isinstance(images, bool) or not isinstance(images, int) or images < 0:
        raise SpellingError(f"images={images!r} must be a whole number, 0 for all of them")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise SpellingError(f"seed={seed!r} must be a whole number")
    if (listed is not None) != (choose == "listed"):
        raise SpellingError(f"choose={choose!r} and listed={listed!r:.60} do not go together")
    if choose == "per-class":
        taken = [[each] for each in _turns(word, entries, seed)]
    else:
        photos: dict[str, list[Entry]] = {}
        for each in entries:
            photos.setdefault(each.photo, []).append(each)
        taken = list(photos.values())
        if choose == "random":
            taken.sort(key=lambda some: _key(seed, some[0]))
        elif choose == "listed":
            assert listed is not None
            taken = _listed(word, taken, listed)
    if images > len(taken):
        raise ImageError(f"{word}: there are {len(taken)} pictures, not {images}")
    return [each for some in taken[: images or None] for each in some]


def digest(seed: int, text: str) -> bytes:
    """Return bytes that order things at random."""
    return hashlib.blake2b(f"{seed} {text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _key(seed: int, entry: Entry) -> tuple[bytes, str]:
    """Order by a digest of the name without its ending: a copy in another format is chosen alike."""
    return digest(seed, str(PurePosixPath(entry.name).with_suffix(""))), entry.name


def _turns(word: str, entries: Sequence[Entry], seed: int) -> list[Entry]:
    classes: dict[str, list[Entry]] = {}
    for each in entries:
        if each.label is None:
            raise ImageError(f"{word}: {one_line(each.name)} has no label, so choose='per-class' cannot be had")
        classes.setdefault(repr(each.label), []).append(each)
    queues = [sorted(some, key=lambda each: _key(seed, each)) for some in classes.values()]
    queues.sort(key=lambda queue: digest(seed, f"class {queue[0].label!r}"))
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


# -- lists -------------------------------------------------------------------------------------------------


def _listed(word: str, photos: Sequence[list[Entry]], listed: Iterable[str] | str | Path) -> list[list[Entry]]:
    names = _names(word, listed)
    ways = [_by(photos, spelled) for spelled in (_whole, _file, _stem)]
    taken: dict[int, list[Entry]] = {}
    lost: list[str] = []
    for name in names:
        places = next((way[name] for way in ways if name in way), [])
        if len(places) > 1:
            raise ImageError(f"{word}: {one_line(name)} of the list is the name of {len(places)} pictures")
        if not places:
            lost.append(name)
        elif places[0] in taken:
            raise ImageError(f"{word}: {one_line(name)} is in the list twice")
        else:
            taken[places[0]] = photos[places[0]]
    if lost:
        some = ", ".join(map(one_line, lost[:3]))
        raise ImageError(f"{word}: {len(lost)} of {len(names)} names of the list are not there, such as {some}")
    return list(taken.values())


def _whole(entry: Entry) -> str:
    return entry.name


def _file(entry: Entry) -> str:
    return PurePosixPath(entry.name).name if entry.path is None else entry.path.name


def _stem(entry: Entry) -> str:
    return PurePosixPath(_file(entry)).stem


def _by(photos: Sequence[list[Entry]], spelled: Any) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, some in enumerate(photos):
        for name in {spelled(each) for each in some}:
            found.setdefault(name, []).append(place)
    return found


def _names(word: str, listed: Iterable[str] | str | Path) -> list[str]:
    if not isinstance(listed, str | Path):
        names: Any = list(listed)
    else:
        try:
            text = disk.read_file(listed, _MOST_BYTES).decode("utf-8-sig")
            names = json.loads(text) if Path(listed).suffix.lower() == ".json" else text.splitlines()
        except (OSError, ValueError, RecursionError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise ImageError(f"{word}: the list {listed} cannot be read: {one_line(said)}") from None
    if isinstance(names, list):
        names = [each.get("file") if isinstance(each, dict) else each for each in names]
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ImageError(f"{word}: a list of pictures holds names, or a JSON list of tables with a file each")
    wanted = [str(each) for each in names if each.strip()]
    if not wanted:
        raise ImageError(f"{word}: the list of pictures is empty")
    return wanted
