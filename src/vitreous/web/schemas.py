"""What goes over the wire: questions in, arrays and pictures out."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vitreous.errors import VitreousError, one_line
from vitreous.registry import check_choice

__all__ = ["Question", "Refused", "array", "given_array", "given_mask", "png", "png_bytes"]

VALUES = ("logit", "prob", "logprob")
LONGEST_SPELLING = 1000
_MOST_VALUES = 2**18  # of a map that a browser sends back
_LARGEST_SEED = 2**31


class Refused(VitreousError):
    """A request that is answered with a status of its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(one_line(text))
        self.status = status


@dataclass(frozen=True)
class Question:
    """What a map is an answer to. ``method`` is a spelling; ``target`` is the prediction where there is none."""

    model: str
    picture: str
    method: str | None = None
    target: int | None = None
    contrast: int | None = None
    output: str = "logit"
    seed: int = 0

    @classmethod
    def of(cls, given: Any) -> Question:
        """Read the fields of a question; other fields are someone else's."""
        if not isinstance(given, Mapping):
            raise Refused(422, "a question is written as a JSON object")
        value = text(given, "value", 20, "logit") or "logit"
        check_choice("value", value, VALUES)
        return cls(
            text(given, "model", 300) or "",
            text(given, "picture", 100) or "",
            text(given, "method", LONGEST_SPELLING, None),
            whole(given, "target", 0, 2**31, None),
            whole(given, "against", 0, 2**31, None),
            value,
            whole(given, "seed", 0, _LARGEST_SEED, 0) or 0,
        )


_NEEDED = object()


def text(given: Mapping[str, Any], name: str, most: int, default: Any = _NEEDED) -> str | None:
    """Return a text of bounded length."""
    found = given.get(name)
    if found is None:
        if default is _NEEDED:
            raise Refused(422, f"the request has no {name}")
        return default  # type: ignore[no-any-return]
    if not isinstance(found, str):
        raise Refused(422, f"{name} must be text, not {type(found).__name__}")
    if len(found) > most:
        raise Refused(422, f"{name} has {len(found)} characters, over {most}")
    return found


def whole(given: Mapping[str, Any], name: str, low: int, high: int, default: Any = _NEEDED) -> int | None:
    """Return a whole number between bounds, the upper one excluded."""
    found = given.get(name)
    if found is None:
        if default is _NEEDED:
            raise Refused(422, f"the request has no {name}")
        return default  # type: ignore[no-any-return]
    if isinstance(found, bool) or not isinstance(found, int) or not low <= found < high:
        raise Refused(422, f"{name}={found!r:.60} is not a whole number from {low} to {high - 1}")
    return found


def array(values: Any) -> dict[str, Any]:
    """Write an array down as its shape and the base64 of little-endian float32."""
    plain = np.ascontiguousarray(np.asarray(values), "<f4")
    return {"shape": list(plain.shape), "data": base64.b64encode(plain.tobytes()).decode("ascii")}


def given_array(given: Any, name: str = "map") -> np.ndarray[Any, Any]:
    """Read a map that a browser sends back."""
    shape = given.get("shape") if isinstance(given, Mapping) else None
    plain = isinstance(shape, list) and len(shape) == 2 and all(type(side) is int and side > 0 for side in shape)
    if not plain or not isinstance(given.get("data"), str):
        raise Refused(422, f"{name} must have a shape [h, w] and data")
    assert shape is not None
    if math.prod(shape) > _MOST_VALUES:
        raise Refused(422, f"{name} has {shape[0]} x {shape[1]} values, over {_MOST_VALUES}")
    data = _decoded(given["data"], name)
    if len(data) != 4 * math.prod(shape):
        raise Refused(
            422, f"{name} holds {len(data)} bytes, a shape of {shape[0]} x {shape[1]} needs {4 * math.prod(shape)}"
        )
    values: np.ndarray[Any, Any] = np.frombuffer(data, "<f4").reshape(shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise Refused(422, f"{name} holds values that are not finite")
    return values


def given_mask(given: Any, grid: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Read which patches are removed: one byte each, 0 or 1."""
    if not isinstance(given, str):
        raise Refused(422, "removed must be the base64 of one byte for each patch")
    data = _decoded(given, "removed")
    if len(data) != math.prod(grid) or any(byte > 1 for byte in data):
        raise Refused(422, f"removed must hold {grid[0]} x {grid[1]} bytes, each 0 or 1; it holds {len(data)}")
    return np.frombuffer(data, np.uint8).reshape(grid).astype(bool)


def _decoded(given: str, name: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(422, f"{name} is not base64") from None


def png_bytes(picture: Image.Image) -> bytes:
    """Return a picture as a PNG: lossless, and quick rather than small."""
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def png(picture: Image.Image) -> str:
    """Return a picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(picture)).decode("ascii")
