"""One family of errors, so that callers can catch them all, and the warning used across the library."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VitreousError(Exception):
    """Base of every error raised on purpose; its text is one line that names the offending value.

    The command line prints that line and exits with code 2.

    Examples
    --------
    >>> try:
    ...     vt.explain(model, image, method="rolout")
    ... except vt.VitreousError as error:
    ...     print(error)
    unknown method 'rolout'; did you mean rollout, lrp_rollout or grad_rollout? at character 1: ▸rolout
    """


class ModelError(VitreousError):
    """A model that cannot be found or loaded, or whose architecture is not supported."""


class HeadError(ModelError):
    """A classification head that is not the one of its model family."""


class ModelChangedError(ModelError):
    """A model whose weights, buffers or modules were changed by code that was to explain it."""


class UnknownError(ModelError):
    """A class of model for which there is no adapter."""


class CheckpointError(ModelError):
    """A weight file that cannot be read or does not fit the model."""


class ImageError(VitreousError):
    """An image or annotation that cannot be read or used."""


class TargetError(VitreousError):
    """A class, label or value that the model does not have."""


class SpecError(VitreousError):
    """A spec of a method or metric that cannot be parsed; the message shows where."""


class TracingError(VitreousError):
    """A pass that did not record what it was asked to record."""


class MapError(VitreousError):
    """A map that means nothing: not finite, or identically zero by construction."""


class VitreousWarning(UserWarning):
    """Something to know before trusting an explanation or a score.

    Examples
    --------
    To make all of them errors:

    >>> import warnings
    >>> warnings.simplefilter("error", vt.VitreousWarning)
    >>> warnings.simplefilter("default", vt.VitreousWarning)
    """


def one_line(text: str) -> str:
    """Return the text with line breaks and other unprintable characters written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def describe_error(error: Exception) -> str:
    """Return an error in one line, with its kind unless it was raised on purpose."""
    kind = "" if isinstance(error, VitreousError) else f"{type(error).__name__}: "
    return one_line(f"{kind}{error}")


def reason(error: Exception) -> str:
    """Return the first line of what went wrong, as the system or a reader of files says it."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    lines = str(error).strip().splitlines()
    return one_line(lines[0]) if lines else f"broken file ({type(error).__name__})"


def nearest(word: str, names: Iterable[str], limit: int = 3) -> str:
    """Return ``"; did you mean a, b or c?"`` for the names closest to ``word``, or an empty string."""
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lowered, n=limit, cutoff=0.6)
    if len(close) < limit and len(word) > 2:
        close += [name for name in lowered if word.lower() in name and name not in close][: limit - len(close)]
    if not close:
        return ""
    matches = [lowered[name] for name in close]
    return f"; did you mean {' or '.join(filter(None, (', '.join(matches[:-1]), matches[-1])))}?"
