"""One family of errors, so that callers can catch them all, and the warning used across the house."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "HeadError",
    "ImageError",
    "MapError",
    "ModelChangedError",
    "ModelError",
    "SpecError",
    "TargetError",
    "TracingError",
    "UnknownError",
    "VitreousError",
    "VitreousWarning",
    "nearest",
    "one_line",
]


class VitreousError(Exception):
    """Base of every error raised on purpose; its text is one line that names the offending value."""


class ModelError(VitreousError):
    """A model that cannot be found, loaded or understood."""


class HeadError(ModelError):
    """A head that is not the family's own."""


class ModelChangedError(ModelError):
    """A model whose weights, buffers or modules were changed by code that was to explain it."""


class UnknownError(ModelError):
    """A class of model that has no view."""


class CheckpointError(ModelError):
    """A weight file that cannot be read or does not fit the model."""


class ImageError(VitreousError):
    """A picture that cannot be read or used."""


class TargetError(VitreousError):
    """A class, label or value that the model does not have."""


class SpecError(VitreousError):
    """A method spelling that cannot be understood; the message shows where."""


class TracingError(VitreousError):
    """A pass that did not observe what it was asked to observe."""


class MapError(VitreousError):
    """A map that means nothing: not finite, or identically zero by construction."""


class VitreousWarning(UserWarning):
    """Something the user should know before trusting a picture."""


def one_line(text: str) -> str:
    """Return the text with line breaks and other unprintable characters written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def nearest(word: str, known: Iterable[str], limit: int = 3) -> str:
    """Return ``"; did you mean a, b or c?"`` for the known names closest to ``word``, or an empty string."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=limit, cutoff=0.6)
    if len(close) < limit and len(word) > 2:
        close += [name for name in lowered if word.lower() in name and name not in close][: limit - len(close)]
    if not close:
        return ""
    names = [lowered[name] for name in close]
    listed = names[0] if len(names) == 1 else ", ".join(names[:-1]) + " or " + names[-1]
    return f"; did you mean {listed}?"
