"""Pictures with their true classes: in lists, loaders and folders, with labels beside them or by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.data.pictures import Picture, count, pictures
from vitreous.errors import TargetError
from vitreous.models import View

__all__ = ["how_many", "labelled"]


def how_many(data: Any) -> int | None:
    """Return how many pictures there are, where that can be known beforehand."""
    if isinstance(data, list | tuple):
        parts = [each[0] if _is_pair(each) else each for each in data]
        return count(parts)
    return count(data)


def labelled(data: Any, labels: Any, looked_at: View) -> Iterator[tuple[Picture, int | None]]:
    """Yield every picture with its true class, where there is one."""
    if labels is not None:
        yield from _with(pictures(data, looked_at, seen=False), _plain(labels), looked_at)
    elif isinstance(data, str | Path | Image.Image | np.ndarray | Tensor) or not isinstance(data, Iterable):
        yield from ((picture, None) for picture in pictures(data, looked_at, seen=False))
    else:
        at = 0
        for item in data:
            source, told = item if _is_pair(item) else (item, None)
            shown = pictures(source, looked_at, at=at, seen=False)
            if told is not None:
                told = _plain(told)
                paired = _with(shown, told if isinstance(told, list) else [told], looked_at)
            else:
                paired = ((picture, None) for picture in shown)
            for each in paired:
                at += 1
                yield each


def _with(shown: Iterator[Picture], labels: Any, looked_at: View) -> Iterator[tuple[Picture, int | None]]:
    place = -1
    for place, picture in enumerate(shown):
        if isinstance(labels, Mapping):
            word = labels.get(picture.name, labels.get(Path(picture.name).stem))
        else:
            word = labels[place] if place < len(labels) else None
        if word is None:
            raise TargetError(f"there is no label for {picture.name}")
        yield picture, looked_at.class_index(word)
    if not isinstance(labels, Mapping) and place + 1 != len(labels):
        raise TargetError(f"{len(labels)} labels for {place + 1} pictures")


def _is_pair(item: Any) -> bool:
    """Whether this is a picture with its class, or a batch of pictures with theirs."""
    if not isinstance(item, list | tuple) or len(item) != 2:
        return False
    told = item[1]
    if isinstance(told, Tensor | np.ndarray):
        return told.ndim < 2
    if isinstance(told, list | tuple):
        return bool(told) and all(isinstance(each, int) for each in told)
    return hasattr(told, "__index__")


def _plain(labels: Any) -> Any:
    """Return numbers and arrays of numpy and torch as Python's own."""
    return labels.tolist() if hasattr(labels, "tolist") else labels
