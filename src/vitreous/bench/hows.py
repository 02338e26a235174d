"""What the rows of a protocol mean: methods, folders of maps, callables."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

from vitreous.bench.units import digest_of
from vitreous.code_digest import code_digest, is_unknown
from vitreous.data import file_digest
from vitreous.errors import SpellingError, one_line
from vitreous.judge.foreign import Foreign, named
from vitreous.methods import Method

__all__ = ["is_code", "mark_of", "method_of"]


def is_code(text: str) -> bool:
    """Whether a method is a callable to be imported, written ``package.module:name``."""
    place, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in place.split("."))


def method_of(text: str, imports: Collection[str] = ()) -> Method | Foreign:
    """Understand a spelling, a folder of maps, or a callable as ``package.module:name``.

    A callable is imported only if it is one of ``imports``, those that the user has named: the files of a run name
    callables too, and may be from anybody.
    """
    if is_code(text):
        if text not in imports:
            raise SpellingError(f"{one_line(text)} is code to import, which this command does not name")
        (how,) = named({text: _imported(text)}).values()
        return how
    (how,) = named([text]).values()
    return how


def _imported(text: str) -> Any:
    place, _, name = text.partition(":")
    try:
        return getattr(import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise SpellingError(f"{text} is no callable that can be imported: {error}") from None


def mark_of(text: str, how: Method | Foreign) -> str:
    """Return a digest of what a method is made of: its parameters, the maps of a folder, the code of a callable."""
    if isinstance(how, Method):
        return how.fingerprint
    if not how.live:
        return digest_of([[file.name, file_digest(str(file))] for file in sorted(Path(text).glob("*.npy"))])
    code = code_digest(_imported(text))
    return code if is_unknown(code) else digest_of([text, code])
