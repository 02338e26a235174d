"""Class names: finding the one a user means, and saying so when there is none or more than one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vitreous.errors import TargetError, nearest

__all__ = ["find_label", "short_label"]


def short_label(label: str) -> str:
    """Return the first of the synonyms in a label such as ``"tabby, tabby cat"``."""
    return label.split(",")[0].strip()


def find_label(word: str, labels: Sequence[str] | None, classes: int) -> int:
    """Return the index of the class called ``word``: an index in digits, a whole label, or one of its synonyms.

    The comparison ignores case. A word that fits several classes is refused with their indices.
    """
    if re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\s*", word) and not (labels and word in labels):
        return check_index(int(word), classes)
    if not labels:
        raise TargetError(f"class {word!r} is given by name but the model has no labels; use an index 0..{classes - 1}")
    wanted = word.strip().lower()
    indices = [i for i, label in enumerate(labels) if label.lower() == wanted]
    indices = indices or [i for i, label in enumerate(labels) if wanted in _synonyms(label)]
    if len(indices) == 1:
        return check_index(indices[0], classes)
    if indices:
        listed = ", ".join(f"{i} ({labels[i]})" for i in indices[:5])
        raise TargetError(f"class {word!r} names several classes: {listed}; use the index")
    names = {name for label in labels for name in _synonyms(label)}
    raise TargetError(f"no class is called {word!r}{nearest(word, names)}")


def check_index(index: int, classes: int) -> int:
    """Return ``index`` if the model has that class."""
    if not 0 <= index < classes:
        raise TargetError(f"class index {index} is outside 0..{classes - 1}")
    return index


def _synonyms(label: str) -> list[str]:
    return [name.strip().lower() for name in label.split(",")]
