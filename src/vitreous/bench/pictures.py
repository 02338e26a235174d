"""The pictures of a run, known by what they are: bytes, label and truth, never their place in a list."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property, lru_cache

import numpy as np

from vitreous.data import Sample, file_digest
from vitreous.data.sets import DataSource
from vitreous.data.sets.source import Entry
from vitreous.errors import ImageError, VitreousError
from vitreous.models import View

__all__ = ["SourcePictures", "digest_of_entry"]


class SourcePictures:
    """The pictures of a source by their digests."""

    def __init__(self, source: DataSource) -> None:
        self.source = source

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """One digest for each entry, in order; every file is read once, none is decoded."""
        found = tuple(digest_of_entry(entry) for entry in self.source.entries)
        if len(set(found)) < len(found):
            again = next(i for i, each in enumerate(found) if each in found[:i])
            raise VitreousError(f"{self.source.word}: {self.source.entries[again].name} is there twice")
        return found

    @cached_property
    def places(self) -> dict[str, int]:
        return {digest: place for place, digest in enumerate(self.digests)}

    def entry(self, digest: str) -> Entry:
        """Return what is known about a picture without opening it."""
        if digest not in self.places:
            raise VitreousError(f"picture {digest} of this run is not in {self.source.word} any more: was it changed?")
        return self.source.entries[self.places[digest]]

    def sample(self, digest: str, view: View) -> Sample:
        self.entry(digest)
        return self.source.sample(view, self.places[digest])


def digest_of_entry(entry: Entry) -> str:
    facts = [entry.name, entry.label, entry.boxes, entry.shares, entry.group, entry.among]
    if entry.ingredients is not None:
        facts += [entry.recipe, _of_ingredients(entry.ingredients)]
    told = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16)
    for path in (entry.path if entry.opener is None else None, entry.mask):
        if path is not None:
            told.update(_of_file(path).encode())
    if entry.opener is not None:
        try:
            told.update(np.ascontiguousarray(np.asarray(entry.open())).tobytes())
        except ImageError:
            told.update(b"unreadable")  # told when it is asked for
    return told.hexdigest()


@lru_cache(maxsize=8)
def _of_ingredients(source: DataSource) -> str:
    """Return one digest of all pictures that grids are made of: each grid may have any of them."""
    told = hashlib.blake2b(digest_size=16)
    for entry in source.entries:
        told.update(digest_of_entry(entry).encode())
    return told.hexdigest()


def _of_file(path: object) -> str:
    try:
        return file_digest(str(path))
    except ImageError:
        return "unreadable"
