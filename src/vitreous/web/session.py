"""What the library warns about while it works, told to whoever asked for that work.

The desk where questions are answered: models, pictures, and the maps made lately.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar

from PIL import Image

import vitreous as vt
from vitreous.errors import VitreousError, VitreousWarning, one_line
from vitreous.registry import check_memory
from vitreous.registry.defaults import display_name
from vitreous.web import completion as typed
from vitreous.web import perturbation as trying
from vitreous.web.images import Photo, Pictures
from vitreous.web.schemas import Question, Refused

__all__ = [
    "Desk",
    "Made",
    "Tick",
    "listening",
]

_local = threading.local()


@contextmanager
def listening() -> Iterator[list[str]]:
    """Give a list that fills with the warnings of this thread, each once.

    Filters of warnings belong to all threads, so they are not put back here: another thread may be listening too.
    """
    before = warnings.showwarning
    if not isinstance(before, _Ear):
        warnings.showwarning = _Ear(before)
    if not any(kind is VitreousWarning and action == "always" for action, _, kind, *_ in warnings.filters):
        warnings.simplefilter("always", VitreousWarning)
    heard: list[str] = []
    _local.heard = heard
    try:
        yield heard
    finally:
        _local.heard = None


class _Ear:
    """Keeps what is warned about in a thread that listens; everything else goes where it went before."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        heard = getattr(_local, "heard", None)
        if heard is None or not issubclass(category, VitreousWarning):
            self.before(message, category, *place, **more)
        elif (text := one_line(str(message))) not in heard:
            heard.append(text)


_MOST_MAPS, _MOST_BYTES = 300, 128 * 2**20
_MOST_SEEN = 64
_MEMORY = 1.0
"""GiB for one pass on a processor: there larger ones gain nothing, and take long to stop."""
_TOGETHER = 24
"""Forwards, a backward counted as two, up to which a map is made together with others of the same question."""

Tick = Callable[[float, "float | None"], None]
T = TypeVar("T")


class Recent(Generic[T]):
    """Keeps what was used lately: so many things, and so many bytes of them. Any thread may ask."""

    def __init__(self, most: int, most_bytes: int, size: Callable[[T], int]) -> None:
        self._most, self._most_bytes, self._size = most, most_bytes, size
        self._kept: OrderedDict[Any, T] = OrderedDict()
        self._guard = Lock()

    def get(self, key: Any) -> T | None:
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Any, thing: T) -> None:
        with self._guard:
            self._kept[key] = thing
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and (len(self._kept) > self._most or self.bytes > self._most_bytes):
                self._kept.popitem(last=False)

    @property
    def bytes(self) -> int:
        return sum(map(self._size, self._kept.values()))


@dataclass(frozen=True, eq=False)
class Made:
    """A map, what was warned about on the way, and how long it took."""

    explanation: vt.Explanation
    warnings: tuple[str, ...]
    seconds: float

    @property
    def bytes(self) -> int:
        e = self.explanation
        tensors = [e.map, *e.extras.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors) + _pixels(e.image)


def _pixels(image: Image.Image) -> int:
    return 3 * image.width * image.height


class Desk:
    """Answers questions about some models. What was made lately is kept, within bounds.

    ``options`` are what the models were loaded with, for the lines that make a map again.
    """

    def __init__(
        self,
        models: Mapping[str, vt.VisionModel],
        memory_gb: float | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_memory(memory_gb)
        self.options = dict(options or {})
        self.models, self.memory, self.pictures = dict(models), memory_gb, Pictures()
        if memory_gb is None and all(model.device.type == "cpu" for model in models.values()):
            self.memory = _MEMORY
        self._made: Recent[Made] = Recent(_MOST_MAPS, _MOST_BYTES, lambda made: made.bytes)
        self._seen: Recent[Image.Image] = Recent(_MOST_SEEN, _MOST_BYTES, _pixels)
        self._checked: Recent[vt.CheckResult] = Recent(_MOST_MAPS, _MOST_BYTES, lambda found: 1)
        self.random: Recent[Any] = Recent(_MOST_SEEN, _MOST_BYTES, lambda curves: 1)
        """What the model says about random orders of patches, for the curves of any map."""
        self._asked: Recent[Question] = Recent(4 * _MOST_MAPS, _MOST_BYTES, lambda question: 1)
        self._pace: dict[str, deque[tuple[float, float]]] = {name: deque(maxlen=20) for name in models}

    def model(self, name: str) -> vt.VisionModel:
        """Return a model by its name; only those that were given at start are here."""
        if name not in self.models:
            raise Refused(404, f"there is no model {name!r:.60} here; there is {', '.join(self.models)}")
        return self.models[name]

    def seen(self, model: str, photo: Photo) -> Image.Image:
        """Return what a model sees of a picture."""
        key = model, photo.picture
        known = self._seen.get(key)
        if known is None:
            known = trying.seen(self.model(model), photo)
            self._seen.put(key, known)
        return known

    def asked(self, question: Question) -> Question:
        """Return the same question with its method written the one way there is, and its class looked at."""
        known = self._asked.get(question)
        if known is not None:
            return known
        model = self.model(question.model)
        for index in (question.target, question.contrast):
            if index is not None:
                model.class_index(index)
        plain = dataclasses.replace(question, method=typed.understood(question.method, model).spec)
        self._asked.put(question, plain)
        return plain

    def knows(self, question: Question) -> bool:
        """Whether the map was made lately."""
        plain = self._asked.get(question)
        return plain is not None and self._made.get(plain) is not None

    def made(self, question: Question, on_progress: Tick | None = None) -> Made:
        """Return the map that answers a question, from memory if it was made lately."""
        question = self.asked(question)
        return self._made.get(question) or self._make([question], on_progress)[0]

    def checked(self, question: Question, on_progress: Callable[[float, float], Tick]) -> vt.CheckResult:
        """Return what cheap tests say about a map; ``tick`` gives one for each part of the work."""
        question = self.asked(question)
        made = self.made(question, on_progress(0.0, 0.2))
        found = self._checked.get(question)
        if found is None:
            model = self.model(question.model)
            found = vt.check(made.explanation, model, memory_gb=self.memory, progress=on_progress(0.2, 1.0))
            self._checked.put(question, found)
        return found

    def prepare(self, questions: Sequence[Question], on_progress: Tick | None = None) -> None:
        """Make the cheap maps among those that are asked about one class of one picture, their passes shared.

        What goes wrong here is left to be said when its turn comes.
        """
        cheap: list[Question] = []
        for each in questions:
            try:
                question = self.asked(each)
                how = vt.get_method(question.method or "")
                near = typed.passes(how, self.model(question.model)) <= _TOGETHER and not how.info.is_slow
            except VitreousError:
                continue
            if near and question not in cheap and self._made.get(question) is None:
                cheap.append(question)
        if len(cheap) > 1:
            try:
                self._make(cheap, on_progress)
            except VitreousError:
                return

    def _make(self, questions: Sequence[Question], on_progress: Tick | None) -> list[Made]:
        first = questions[0]
        model, photo = self.model(first.model), self.pictures.get(first.picture)
        hows = [vt.get_method(each.method or "") for each in questions]
        began = time.perf_counter()
        with listening() as heard:
            found = vt.compare(
                model,
                photo.image,
                hows,
                first.target,
                contrast=first.contrast,
                output=None if first.output == "logit" else first.output,  # what is usual is not missed
                seed=first.seed,
                memory_gb=self.memory,
                progress=on_progress,
            )
        took = time.perf_counter() - began
        self._pace[first.model].append((sum(typed.passes(how, model) for how in hows), took))
        told = _about([e.method for e in found], heard)
        made = [
            # the photograph belongs to the pictures: kept here too, it would never leave
            Made(dataclasses.replace(e, original_image=None, name=photo.name), told[e.method], took / len(questions))
            for e in found
        ]
        for question, each in zip(questions, made, strict=True):
            self._made.put(question, each)
        return made

    def seconds(self, model: str, passes: float) -> float | None:
        """Return about how long so many passes take here, by what has run; ``None`` while nothing has."""
        pace = self._pace[model]
        done = sum(each for each, _ in pace)
        return passes * sum(took for _, took in pace) / done if done else None


def _about(methods: Sequence[str], heard: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what was warned about each of several maps: what names its method, or names none of them."""
    told: dict[str, list[str]] = {method: [] for method in methods}
    for text in heard:
        named = [method for method in methods if method in text or display_name(method) in text]
        for each in [max(named, key=len)] if named else methods:
            told[each].append(text)
    return {name: tuple(texts) for name, texts in told.items()}
