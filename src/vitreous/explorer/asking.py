"""The desk where questions are answered: models, pictures, and the maps made lately."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from PIL import Image

import vitreous as vt
from vitreous.explorer import trying
from vitreous.explorer.jobs import Job
from vitreous.explorer.pictures import Photo, Pictures
from vitreous.explorer.wire import Question, Refused, array

__all__ = ["Desk", "Made", "map_of"]

_MOST_MAPS, _MOST_BYTES = 300, 128 * 2**20
_MOST_SEEN = 64

Tick = Callable[[float, "float | None"], None]


@dataclass(frozen=True, eq=False)
class Made:
    """A map, what was said on the way, and how long it took."""

    explanation: vt.Explanation
    warnings: tuple[str, ...]
    seconds: float

    @property
    def size(self) -> int:
        """Bytes, about."""
        e = self.explanation
        tensors = [e.map, *e.extras.values()]
        return sum(each.numel() * each.element_size() for each in tensors) + 3 * e.image.width * e.image.height


class Desk:
    """Answers questions about some models. What was made lately is kept, within bounds."""

    def __init__(self, models: Mapping[str, vt.View], memory: float | None = None) -> None:
        self.models, self.memory, self.pictures = dict(models), memory, Pictures()
        self._made: OrderedDict[Question, Made] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], Image.Image] = OrderedDict()
        self._guard = Lock()

    def model(self, name: str) -> vt.View:
        """Return a model by its name; only those that were given at start are here."""
        if name not in self.models:
            raise Refused(404, f"there is no model {name!r:.60} here; there is {', '.join(self.models)}")
        return self.models[name]

    def seen(self, model: str, photo: Photo) -> Image.Image:
        """Return what a model sees of a picture."""
        key = model, photo.picture
        with self._guard:
            known = self._seen.get(key)
        if known is None:
            known = trying.seen(self.model(model), photo)
        with self._guard:
            self._seen[key] = known
            self._seen.move_to_end(key)
            while len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)
        return known

    def made(self, question: Question, tick: Tick | None = None) -> Made:
        """Return the map that answers a question, from memory if it was made lately."""
        with self._guard:
            known = self._made.get(question)
            if known is not None:
                self._made.move_to_end(question)
                return known
        view, photo = self.model(question.model), self.pictures.get(question.picture)
        began = time.perf_counter()
        explanation = vt.explain(
            view,
            photo.image,
            question.method,
            question.target,
            against=question.against,
            value=None if question.value == "logit" else question.value,  # what was not asked for is not missed
            seed=question.seed,
            memory=self.memory,
            progress=tick,
        )
        # the photograph belongs to the pictures: kept here too, it would never leave
        explanation = dataclasses.replace(explanation, photo=None, name=photo.name)
        made = Made(explanation, (), time.perf_counter() - began)
        self._keep(question, made)
        return made

    def _keep(self, question: Question, made: Made) -> None:
        with self._guard:
            self._made[question] = made
            while len(self._made) > 1 and (
                len(self._made) > _MOST_MAPS or sum(each.size for each in self._made.values()) > _MOST_BYTES
            ):
                self._made.popitem(last=False)

    def explain(self, question: Question, job: Job) -> dict[str, Any]:
        """Answer the task ``explain``."""
        made = self.made(question, job.tick)
        return map_of(made.explanation) | {"seconds": made.seconds, "warnings": list(made.warnings)}


def map_of(e: vt.Explanation) -> dict[str, Any]:
    """Write an explanation down for the page."""
    scale = e.scale
    return {
        "map": array(e.map.numpy()),
        "signed": scale.signed,
        "grid": "pixel" if tuple(e.map.shape) == (e.image.height, e.image.width) else "token",
        "target": e.target,
        "label": e.label,
        "probability": e.probability,
        "method": e.method,
        "title": e.title,
        "caption": e.caption,
        "class_specific": e.class_specific,
        "value": e.value,
        "identity": e.identity,
    }
