"""What travels between the page and the server: questions that are checked, arrays and pictures that are encoded."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from vitreous.errors import one_line
from vitreous.web import Refused

MOST_TASKS = 24
"""Tasks of one request."""
MOST_COMPARED = 12
"""Classes that are compared with each other."""
_MOST_VALUES = 2**18  # of a map that a browser sends back

Array = np.ndarray[Any, Any]
T = TypeVar("T")


def parse(validate: Callable[[object], T], data: object) -> T:
    """Return JSON data as what a schema makes of it, or refuse it with the first thing that is wrong."""
    try:
        return validate(data)
    except ValidationError as error:
        raise Refused(422, first_error(error.errors())) from None


def first_error(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return the first of pydantic's complaints as one line: where, and what."""
    error = next(iter(errors))
    where = ".".join(str(step) for step in error["loc"] if step not in ("query", "path"))
    return one_line(f"{where or 'the request'}: {error['msg']}")[:500]


# -- requests ------------------------------------------------------------------------------------------

Index = Annotated[int, Field(ge=0, lt=2**31)]
Spec = Annotated[str, Field(max_length=1000)]
Fill = Literal["blur", "mean", "black"]


class Schema(BaseModel):
    """A number is no text, ``true`` is no number; fields that are not named here are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class ModelChoice(Schema):
    """The model that is asked about."""

    model: Annotated[str, Field(max_length=300)]


class Question(ModelChoice):
    """What a map is an answer to; without a method the cheapest recommended one, without a target the prediction."""

    picture: Annotated[str, Field(max_length=100)]
    method: Spec | None = None
    target: Index | None = None
    contrast: Index | None = None
    output: Literal["logit", "prob", "logprob"] = "logit"
    seed: Index = 0

    @property
    def question(self) -> Question:
        """The question alone, without what a task has beside it."""
        return Question(**{name: getattr(self, name) for name in Question.model_fields})


class EncodedMap(Schema):
    """A map that a browser sends back: its shape, and the base64 of little-endian float32."""

    shape: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=2, max_length=2)]
    data: str

    @model_validator(mode="after")
    def _check(self) -> EncodedMap:
        if math.prod(self.shape) > _MOST_VALUES:
            raise ValueError(f"{self.shape[0]} x {self.shape[1]} values, over {_MOST_VALUES}")
        if not np.isfinite(self.values()).all():
            raise ValueError("there are values that are not finite")
        return self

    def values(self) -> Array:
        data, size = _decode(self.data), 4 * math.prod(self.shape)
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes, a shape of {self.shape[0]} x {self.shape[1]} needs {size}")
        return np.frombuffer(data, "<f4").reshape(self.shape).astype(np.float32)


class MapTask(Question):
    """A map, all that stands on the page of ``vitreous why``, the maps of all start layers, or tests of a map."""

    kind: Literal["explain", "why", "layers", "check"]


class OwnersTask(Question):
    """Which class owns which patch."""

    kind: Literal["owners"]
    compare_classes: Annotated[list[Index], Field(min_length=2)]


class HeadsTask(Question):
    """Where each head of a layer attends."""

    kind: Literal["heads"]
    layer: Index


class CurveTask(Question):
    """What the model says as patches go or come, in the order of a map."""

    kind: Literal["curve"]
    map: EncodedMap
    fill: Fill = "blur"


Task = MapTask | OwnersTask | HeadsTask | CurveTask
TASK: TypeAdapter[Task] = TypeAdapter(Annotated[Task, Field(discriminator="kind")])
Questions = Annotated[list[Question], Field(min_length=1, max_length=MOST_TASKS)]


class Removal(Question):
    """Which patches are removed: the base64 of one byte each, 0 or 1."""

    removed: str
    fill: Fill = "blur"

    def mask(self, grid: tuple[int, int]) -> Array:
        try:
            data = _decode(self.removed)
        except ValueError as error:
            raise Refused(422, f"removed: {error}") from None
        if len(data) != math.prod(grid) or any(byte > 1 for byte in data):
            raise Refused(422, f"removed must hold {grid[0]} x {grid[1]} bytes, each 0 or 1; it holds {len(data)}")
        return np.frombuffer(data, np.uint8).reshape(grid).astype(bool)


class PartialSpec(ModelChoice):
    """A method spec while it is typed, and where the cursor stands."""

    spec: Spec
    cursor: Index | None = None


class Rendering(Schema):
    """How maps are drawn: strongest opacity, percentile of the strongest colour, and what is left out."""

    opacity: Annotated[float, Field(ge=0, le=1)] = 0.55
    clip: Annotated[float, Field(ge=1, le=100)] = 99.0
    positive: bool = False
    smooth: bool = True
    shared: bool = False


class Download(Schema):
    """Maps as a file."""

    questions: Questions
    format: Literal["png", "svg", "npy", "html"]
    look: Rendering = Rendering()


class CommandRequest(Schema):
    """Maps as the lines that make them again."""

    questions: Questions


# -- answers -------------------------------------------------------------------------------------------


def attributes(item: object, *names: str) -> dict[str, Any]:
    """Return some attributes of an object by their names."""
    return {name: getattr(item, name) for name in names}


def encode_array(values: Any) -> dict[str, Any]:
    """Return an array as its shape and the base64 of little-endian float32."""
    array = np.ascontiguousarray(np.asarray(values), "<f4")
    return {"shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode("ascii")}


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("this is not base64") from None
