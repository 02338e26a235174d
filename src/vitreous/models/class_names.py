"""Class names: reading them in the forms people have, and finding the one a user means.

Which classes somebody may mean by a word that names none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous import io as disk
from vitreous.errors import ModelError, TargetError, nearest, one_line

_MOST_TEXT = 2**26  # bytes of a file of labels
_TABLES = ("id2label", "label2id", "names")
"""Under which words configurations and data sets keep their labels."""


def read_labels(given: Any) -> list[str]:
    """Return class names in index order.

    ``given`` is a list; a table from index to name or from name to index, its indices as numbers or in digits; a text
    file with one name a line, a JSON file of any of these; or what holds such a table as ``id2label``, ``label2id`` or
    ``names``, such as a Hugging Face configuration.
    """
    if isinstance(given, str | Path):
        return _listed(_file(Path(given)), f"labels {given}")
    return _listed(given, "labels")


def check_count(name: str, given: Sequence[str] | None, classes: int) -> None:
    """Refuse labels that are not one for each class; a head of one logit tells two classes apart."""
    if given is not None and classes and len(given) != classes and (classes, len(given)) != (1, 2):
        raise ModelError(f"{name} has {classes} classes but {len(given)} labels were given")


def _file(path: Path) -> Any:
    try:
        with disk.open_file(path) as file:
            data = file.read(_MOST_TEXT + 1)
        if len(data) > _MOST_TEXT:
            raise ModelError(f"labels {path} cannot be read: more than {_MOST_TEXT // 2**20} MiB")
        text = data.decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            return json.loads(text, object_pairs_hook=_Pairs)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"labels {path} cannot be read: {one_line(str(error))}") from None
    return text.rstrip().splitlines()


class _Pairs(dict[str, Any]):
    """An object of JSON that remembers keys written twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _listed(given: Any, what: str) -> list[str]:
    for word in _TABLES:
        inside = given.get(word) if isinstance(given, Mapping) else getattr(given, word, None)
        if isinstance(inside, Mapping | list | tuple):
            given = inside
            break
    if isinstance(given, Mapping):
        return _in_order(given.pairs if isinstance(given, _Pairs) else list(given.items()), what)
    if isinstance(given, bytes) or not isinstance(given, Sequence | Iterable):
        raise ModelError(f"{what}: a {type(given).__name__} is no list or table of class names")
    names = list(given)
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise ModelError(f"{what} must be a list of names; {name!r:.60} at {index} is none")
        if not name.strip():
            raise ModelError(f"{what} hold no name for class {index}")
    return names


def _in_order(pairs: list[tuple[Any, Any]], what: str) -> list[str]:
    """Put a table in the order of its indices: its keys if all of them are numbers, else its values."""
    turned = not all(_index(key) is not None for key, _ in pairs)
    named: dict[int, str] = {}
    for key, value in pairs:
        number, name = (value, key) if turned else (key, value)
        index = _index(number)
        if index is None or not isinstance(name, str):
            raise ModelError(f"{what}: {key!r:.60} is said to be {value!r:.60}; give names by index or indices by name")
        if index in named:
            raise ModelError(f"{what} name class {index} twice: {named[index]!r:.60} and {name!r:.60}")
        named[index] = name
    gap = next((index for index in range(len(named)) if not named.get(index, "").strip()), None)
    if gap is not None:
        raise ModelError(f"{what} hold no name for class {gap}, but for {len(named)} classes up to {max(named)}")
    return [named[index] for index in range(len(named))]


def _index(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"[0-9]{1,9}", value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def short_label(label: str) -> str:
    """Return the first of the synonyms in a label such as ``"tabby, tabby cat"``."""
    return label.split(",")[0].strip()


def find_label(word: str, class_names: Sequence[str] | None, classes: int) -> int:
    """Return the index of the class called ``word``: an index in digits, a whole label, or one of its synonyms.

    The comparison ignores case. A word that fits several classes is refused with their indices.
    """
    if re.fullmatch(r"\s*[+-]?[0-9]{1,4000}\s*", word) and not (class_names and word in class_names):
        return check_index(int(word), classes)
    if not class_names:
        raise TargetError(f"class {word!r} is given by name but the model has no labels; use an index 0..{classes - 1}")
    wanted = word.strip().lower()
    indices = [i for i, label in enumerate(class_names) if label.lower() == wanted]
    indices = indices or [i for i, label in enumerate(class_names) if wanted in _synonyms(label)]
    if len(indices) == 1:
        return check_index(indices[0], classes)
    if indices:
        listed = ", ".join(f"{i} ({class_names[i]})" for i in indices[:5])
        raise TargetError(f"class {word!r} names several classes: {listed}; use the index")
    raise TargetError(f"no class is called {word!r}{suggested(word, class_names)}")


def check_index(index: int, classes: int) -> int:
    """Return ``index`` if the model has that class."""
    if not 0 <= index < classes:
        raise TargetError(f"class index {index} is outside 0..{classes - 1}")
    return index


def _synonyms(label: str) -> list[str]:
    return [name.strip().lower() for name in label.split(",")]


_MOST = 5


def suggested(word: str, class_names: Sequence[str]) -> str:
    """Return ``"; did you mean …?"`` with the classes that have the word in a name, or else with similar names."""
    wanted = word.strip()
    whole = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)", re.IGNORECASE)
    found = [label.split(",")[0].strip() for label in class_names if wanted and whole.search(label)]
    names = list(dict.fromkeys(found))[:_MOST]
    if not names:
        return nearest(word, {name.strip().lower() for label in class_names for name in label.split(",")})
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return f"; did you mean {listed}?"
