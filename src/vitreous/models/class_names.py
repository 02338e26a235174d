"""Class names: reading them in the forms people have, finding the one a user means, and suggesting others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.errors import ModelError, TargetError, nearest

_MOST_TEXT = 2**26  # bytes of a file of labels
_TABLES = ("id2label", "label2id", "names")
"""Under which words configurations and data sets keep their labels."""


def read_labels(labels: Any) -> list[str]:
    """Return class names in index order.

    ``labels`` is a list; a table from index to name or from name to index, its indices as numbers or in digits; a text
    file with one name a line, a JSON file of any of these; or what holds such a table as ``id2label``, ``label2id`` or
    ``names``, such as a Hugging Face configuration.
    """
    if not isinstance(labels, str | Path):
        return _names_in(labels, "labels")
    if Path(labels).suffix.lower() != ".json":
        names = disk.read_text(labels, _MOST_TEXT, what="labels ", error=ModelError).rstrip().splitlines()
    else:
        names = disk.read_json(labels, _MOST_TEXT, what="labels ", error=ModelError, object_pairs_hook=_Pairs)
    return _names_in(names, f"labels {labels}")


def check_count(name: str, labels: Sequence[str] | None, classes: int) -> None:
    """Refuse labels that are not one for each class; a head of one logit tells two classes apart."""
    if labels is not None and classes and len(labels) != classes and (classes, len(labels)) != (1, 2):
        raise ModelError(f"{name} has {classes} classes but {len(labels)} labels were given")


class _Pairs(dict[str, Any]):
    """An object of JSON that remembers keys written twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _names_in(labels: Any, what: str) -> list[str]:
    for word in _TABLES:
        table = labels.get(word) if isinstance(labels, Mapping) else getattr(labels, word, None)
        if isinstance(table, Mapping | list | tuple):
            labels = table
            break
    if isinstance(labels, Mapping):
        return _in_order(labels.pairs if isinstance(labels, _Pairs) else list(labels.items()), what)
    if isinstance(labels, bytes) or not isinstance(labels, Iterable):
        raise ModelError(f"{what}: a {type(labels).__name__} is no list or table of class names")
    names = list(labels)
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise ModelError(f"{what} must be a list of names; {name!r:.60} at {index} is none")
        if not name.strip():
            raise ModelError(f"{what} hold no name for class {index}")
    return names


def _in_order(pairs: list[tuple[Any, Any]], what: str) -> list[str]:
    """Put a table in the order of its indices: its keys if all of them are numbers, else its values."""
    is_turned = any(_index(key) is None for key, _ in pairs)
    names: dict[int, str] = {}
    for key, value in pairs:
        number, name = (value, key) if is_turned else (key, value)
        index = _index(number)
        if index is None or not isinstance(name, str):
            raise ModelError(f"{what}: {key!r:.60} is said to be {value!r:.60}; give names by index or indices by name")
        if index in names:
            raise ModelError(f"{what} name class {index} twice: {names[index]!r:.60} and {name!r:.60}")
        names[index] = name
    gap = next((index for index in range(len(names)) if not names.get(index, "").strip()), None)
    if gap is not None:
        raise ModelError(f"{what} hold no name for class {gap}, but for {len(names)} classes up to {max(names)}")
    return [names[index] for index in range(len(names))]


def _index(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[0-9]{1,9}", value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _synonyms(label: str) -> list[str]:
    return [name.strip() for name in label.split(",")]


def short_label(label: str) -> str:
    """Return the first of the synonyms in a label such as ``"tabby, tabby cat"``."""
    return _synonyms(label)[0]


def find_label(word: str, class_names: Sequence[str] | None, classes: int) -> int:
    """Return the index of the class called ``word``: an index in digits, a label, or one of its synonyms.

    The comparison ignores case. A word that fits several classes is refused with their indices.
    """
    names = class_names or []
    if re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\s*", word) and word not in names:
        return check_index(int(word), classes)
    if not names:
        raise TargetError(f"class {word!r} is given by name but the model has no labels; use an index 0..{classes - 1}")
    indices = _indices(word.strip().lower(), [name.lower() for name in names])
    if len(indices) == 1:
        return check_index(indices[0], classes)
    if not indices:
        raise TargetError(f"no class is called {word!r}{suggested(word, names)}")
    listed = ", ".join(f"{i} ({names[i]})" for i in indices[:5])
    raise TargetError(f"class {word!r} names several classes: {listed}; use the index")


def _indices(wanted: str, names: Sequence[str]) -> list[int]:
    exact = [index for index, name in enumerate(names) if name == wanted]
    return exact or [index for index, name in enumerate(names) if wanted in _synonyms(name)]


def check_index(index: int, classes: int) -> int:
    """Return ``index`` if the model has that class."""
    if not 0 <= index < classes:
        raise TargetError(f"class index {index} is outside 0..{classes - 1}")
    return index


def suggested(word: str, class_names: Sequence[str]) -> str:
    """Return ``"; did you mean …?"`` with up to five classes that have the word in a name, or else similar names."""
    pattern = re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", re.IGNORECASE)
    labels = [label for label in class_names if word.strip() and pattern.search(label)]
    names = list(dict.fromkeys(map(short_label, labels)))[:5]
    if not names:
        return nearest(word, {name.lower() for label in class_names for name in _synonyms(label)})
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f"; did you mean {listed}?"
