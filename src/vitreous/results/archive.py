"""Explanations on disk: ``picture/method/class``, one folder for each question, names that a person can read.

A result is never known by its name: two pictures of one stem get folders of their own (``cat``, ``cat-2``), and so do
two questions whose names are alike (another seed, another model). What is what stands in the manifests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.datasets.images import file_digest
from vitreous.errors import ImageError, VitreousError
from vitreous.methods import get_method
from vitreous.registry.defaults import display_name
from vitreous.results.explanation import Explanation
from vitreous.results.storage import Question

__all__ = ["Archive"]


class Archive:
    """A folder of explanations."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)

    def check(self) -> None:
        """Complain before the work about a place where nothing can be written."""
        disk.check_folder(self.out / "explanation")

    def once(self, paths: Sequence[Path]) -> list[Path]:
        """Return these picture files without those that would go to the same place: the same bytes and name."""
        return list({(path.name, _bytes(path) or str(path)): path for path in reversed(paths)}.values())[::-1]

    def find(self, path: str | Path, question: Question) -> Path | None:
        """Return the folder of the result that answers a question about a picture file, if it is there."""
        digest = _bytes(Path(path))
        for folder in self._pictures(Path(path).stem):
            for place in _results(folder):
                manifest = disk.manifest_of(place)
                if manifest is not None and question.answered_by(manifest, digest):
                    for each in (place, self.out / disk.safe_name(Path(path).stem)):
                        disk.recover(each)
                    return place
        return None

    def save(self, explanation: Explanation, *, overwrite: bool = False, original: bool = False) -> Path:
        """Write an explanation to a folder of its own; the answer to the same question is replaced if allowed."""
        if explanation.identity is None:
            raise VitreousError(f"{explanation.name} cannot be filed: a callable target has no name of its own")
        stem = disk.safe_name(Path(explanation.name).stem)
        with disk.lock(self.out / stem):  # two writers do not take the same name for two things
            place = self._place(explanation)
            return explanation.save_folder(place, overwrite=overwrite, original=original)

    def _place(self, explanation: Explanation) -> Path:
        """Return the folder of this very result, or the first free one."""
        assert explanation.identity is not None
        folder = self._picture(explanation)
        rivals = (
            f"-not-{'-'.join(map(disk.slug, explanation.contrast_classes))}" if explanation.contrast_classes else ""
        )
        base = folder / disk.slug(_method_name(explanation)) / disk.safe_name(disk.slug(explanation.label) + rivals)
        for place in _numbered(base):
            disk.recover(place)
            manifest = disk.manifest_of(place)
            if manifest is None and (not os.path.lexists(place) or (place.is_dir() and not disk.unlisted_files(place))):
                return place
            if manifest is not None and _part(manifest, "question") == explanation.identity["question"]:
                return place
        raise AssertionError

    def _picture(self, explanation: Explanation) -> Path:
        """Return the folder of a picture: the first one that is its own or nobody's."""
        assert explanation.identity is not None
        for folder in _numbered(self.out / disk.safe_name(Path(explanation.name).stem)):
            if os.path.lexists(folder) and not folder.is_dir():
                continue  # a file of the user's
            owner = next((m for m in map(disk.manifest_of, _results(folder)) if m is not None), None)
            if owner is None:
                return folder
            if (owner.get("name"), _part(owner, "picture")) == (explanation.name, explanation.identity["picture"]):
                return folder
        raise AssertionError

    def _pictures(self, stem: str) -> Iterator[Path]:
        """Yield the folders that a picture of this stem may have."""
        for folder in _numbered(self.out / disk.safe_name(stem)):
            if not os.path.lexists(folder):
                return
            yield folder


def _bytes(path: Path) -> str:
    """Return what a picture file is known by; nothing if it cannot be read, which is told when it is explained."""
    try:
        return file_digest(path)
    except ImageError:
        return ""


def _numbered(base: Path) -> Iterator[Path]:
    """Yield ``name``, ``name-2``, ``name-3`` …"""
    yield base
    for number in count(2):
        yield base.with_name(disk.safe_name(f"{base.name}-{number}"))


def _results(folder: Path) -> Iterator[Path]:
    """Yield the folders two levels down, where results are."""
    for spelled in sorted(folder.iterdir()) if folder.is_dir() else ():
        if spelled.is_dir():
            yield from (path for path in sorted(spelled.iterdir()) if path.is_dir())


def _method_name(explanation: Explanation) -> str:
    """The step or the spelling, and the value that was explained unless it is the usual one or the method's own."""
    try:
        usual = " and ".join(get_method(explanation.method).outputs("logit"))
    except VitreousError:  # a method of the user's own, which no spelling gives again
        usual = "logit"
    name = display_name(explanation.method)
    return name if explanation.output == usual else f"{name}-{explanation.output}"


def _part(manifest: dict[str, Any], name: str) -> Any:
    identity = manifest.get("identity")
    return identity.get(name) if isinstance(identity, dict) else None
