"""What data loaders and data sets yield: pictures, pairs with a class, and tables with both under usual names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
from torch import Tensor

from vitreous.errors import ImageError

__all__ = ["each_of", "is_pair", "is_table", "paired", "without_labels"]

_PICTURES = ("pixel_values", "image", "images", "img")
_CLASSES = ("labels", "label")


def is_table(item: Any) -> bool:
    """Whether this is a table such as ``{"pixel_values": …, "labels": …}``."""
    return isinstance(item, Mapping)


def paired(item: Any) -> tuple[Any, Any]:
    """Return the pictures of an item, and their classes or None."""
    if is_table(item):
        return _under(item, _PICTURES), next((item[name] for name in _CLASSES if name in item), None)
    return item if is_pair(item) else (item, None)


def without_labels(item: Any) -> Any:
    """Return the pictures of what a data loader or a data set yields; other things are left alone."""
    if is_table(item):
        return _under(item, _PICTURES)
    if not isinstance(item, list | tuple) or not item:
        return item
    if not isinstance(item[0], Tensor):
        return item[0] if is_pair(item) else item
    all_pictures = all(isinstance(each, Tensor) and each.ndim == 3 for each in item)
    return item if all_pictures else item[0]


def is_pair(item: Any) -> bool:
    """Whether this is a picture with its class, or a batch of pictures with theirs."""
    if not isinstance(item, list | tuple) or len(item) != 2:
        return False
    told = item[1]
    if isinstance(told, Tensor | np.ndarray):
        return told.ndim < 2
    if isinstance(told, list | tuple):
        return bool(told) and all(isinstance(each, int) for each in told)
    return hasattr(told, "__index__")


def each_of(source: Any) -> Iterator[Any] | None:
    """Return the items of anything that has some, also of a data set that only knows its length; else None."""
    if isinstance(source, Iterable):
        return iter(source)
    if isinstance(source, Sized) and hasattr(source, "__getitem__"):
        return (source[place] for place in range(len(source)))
    return None


def _under(item: Mapping[str, Any], names: Iterable[str]) -> Any:
    for name in names:
        if name in item:
            return item[name]
    raise ImageError(f"a table with {', '.join(map(repr, list(item)[:6])) or 'nothing'} holds no {' or '.join(names)}")
