"""What the explorer keeps while it runs: models, images, and the maps made lately. Nothing is kept on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import threading
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from PIL import Image

import vitreous as vt

# The facade reads images only together with a model; these are looked at before one is chosen.
from vitreous import world
from vitreous.errors import VitreousError, VitreousWarning, one_line
from vitreous.registry import check_memory
from vitreous.registry.defaults import display_name
from vitreous.web import Refused
from vitreous.web.completion import num_passes, parse_method
from vitreous.web.decoder import Decoder
from vitreous.web.schemas import Question, attributes

_MOST_MAPS, _MOST_BYTES = 300, 128 * 2**20
_MOST_PHOTOS, _MOST_PHOTO_BYTES = 200, 256 * 2**20
_MOST_INPUTS = 64
_MEMORY_GB = 1.0  # for one pass on a processor: there larger ones gain nothing, and take long to stop
_SHARED_PASSES = 24
"""Forwards, a backward counted as two, up to which a map is made together with others of the same question."""
_SCENE_SIDE = 128

Progress = Callable[[float, "float | None"], None]
T = TypeVar("T")


class Recent(Generic[T]):
    """Holds what was used lately, within a number of items and of bytes. Any thread may ask."""

    def __init__(self, most: int, most_bytes: int = 2**62, size: Callable[[T], int] = lambda item: 0) -> None:
        self.most, self.most_bytes, self._size = most, most_bytes, size
        self._items: OrderedDict[Any, T] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Any) -> T | None:
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def get_or_make(self, key: Any, make: Callable[[], T]) -> T:
        """Return an item, which is made if it is not here."""
        item = self.get(key)
        return self.put(key, make()) if item is None else item

    def put(self, key: Any, item: T) -> T:
        """Hold an item; those that were not used for longest leave, this one never does."""
        with self._lock:
            self._items[key] = item
            self._items.move_to_end(key)
            while len(self._items) > 1 and (
                len(self._items) > self.most or sum(map(self._size, self._items.values())) > self.most_bytes
            ):
                self._items.popitem(last=False)
        return item


def _num_bytes(image: Image.Image) -> int:
    return 3 * image.width * image.height


# -- images --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SceneKind:
    """Scenes of the world that are drawn in one way: by a function of ``vitreous.world`` with some options."""

    title: str
    starts: tuple[int, ...]
    """Which are offered."""
    function: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    """The first scene is made with this many others."""

    def batch(self, start: int) -> world.Batch:
        """Return the scene of the test split with this number."""
        batch = world.World("test", 1, start=start + self.offset).batch()
        return getattr(world, self.function)(batch, **self.options) if self.function else batch

    def code(self, start: int) -> str:
        """Return the same as an expression in Python."""
        batch = f'world.World("test", 1, start={start + self.offset}).batch()'
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"world.{self.function}({batch}{options})" if self.function else batch


SCENES = {
    "standard": SceneKind("a creature", (3, 7, 20)),
    "pairs": SceneKind("two creatures", (5, 9), "pair"),
    "shortcut": SceneKind("with a marker that gives the class away", (1, 15), "add_marker"),
    "moved": SceneKind("with the marker of another class", (1, 15), "add_marker", {"moved": True}),
    # of three, each harder than the one before, the middle one
    "difficult": SceneKind("hidden and dim", (12, 18), "make_difficult", {"level": 0.5}, offset=1),
    "parts-removed": SceneKind("with parts missing", (1, 10), "remove_parts", {"whole_share": 0.0}),
}
"""By the names that ``vitreous world render`` has for them."""
_SCENE = re.compile(rf"scene-({'|'.join(SCENES)})-(0|[1-9][0-9]{{0,8}})")


@dataclass(frozen=True, eq=False)
class Photo:
    """An image as it was uploaded, upright and in RGB, or a scene; ``true_class`` is that of a scene."""

    picture: str
    name: str
    image: Image.Image
    true_class: str | None = None


def scene_of(picture: str) -> tuple[str, int] | None:
    """Return the kind and the number of a scene, nothing for other images."""
    match = _SCENE.fullmatch(picture)
    return None if match is None else (match[1], int(match[2]))


def render_scene(kind: str, start: int) -> Photo:
    """Return a scene of the test split as ``vitreous world render`` draws it."""
    batch = SCENES[kind].batch(start)
    pixels = (world.render(batch, _SCENE_SIDE).images[0] * 255).round().byte().permute(1, 2, 0).numpy()
    name = world.unpack(batch)[0].name
    return Photo(f"scene-{kind}-{start}", name, Image.fromarray(pixels), name)


# -- warnings ------------------------------------------------------------------------------------------

_local = threading.local()


class _WarningCollector:
    """Takes the warnings of threads that collect them; everything else goes where it went before."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, message: Warning | str, category: type[Warning], *position: Any, **options: Any) -> None:
        texts = getattr(_local, "texts", None)
        if texts is None or not issubclass(category, VitreousWarning):
            self.before(message, category, *position, **options)
        elif (text := one_line(str(message))) not in texts:
            texts.append(text)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Give a list that fills with the warnings of this thread, each once.

    Filters of warnings belong to all threads, so they are not put back here: another thread may be collecting too.
    """
    if not isinstance(warnings.showwarning, _WarningCollector):
        warnings.showwarning = _WarningCollector(warnings.showwarning)
    if not any(kind is VitreousWarning and action == "always" for action, _, kind, *_ in warnings.filters):
        warnings.simplefilter("always", VitreousWarning)
    texts: list[str] = []
    _local.texts = texts
    try:
        yield texts
    finally:
        _local.texts = None


def _warnings_by_method(methods: Sequence[str], texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what was warned about each of several maps: what names its method, or names none of them."""
    by_method: dict[str, tuple[str, ...]] = dict.fromkeys(methods, ())
    for text in texts:
        named = [method for method in methods if method in text or display_name(method) in text]
        for method in [max(named, key=len)] if named else methods:
            by_method[method] += (text,)
    return by_method


# -- maps ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MapResult:
    """A map, what was warned about on the way, and how long it took."""

    explanation: vt.Explanation
    warnings: tuple[str, ...]
    seconds: float

    @property
    def num_bytes(self) -> int:
        e = self.explanation
        return sum(tensor.nbytes for tensor in (e.map, *e.extras.values())) + _num_bytes(e.image)


class Session:
    """Answers questions about some models; ``load_options`` are what these were loaded with."""

    def __init__(
        self,
        models: Mapping[str, vt.VisionModel],
        memory_gb: float | None = None,
        load_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_memory(memory_gb)
        self.models, self.memory_gb = dict(models), memory_gb
        self.load_options = dict(load_options or {})
        if memory_gb is None and all(model.device.type == "cpu" for model in models.values()):
            self.memory_gb = _MEMORY_GB
        self.photos: Recent[Photo] = Recent(_MOST_PHOTOS, _MOST_PHOTO_BYTES, lambda photo: _num_bytes(photo.image))
        self.maps: Recent[MapResult] = Recent(_MOST_MAPS, _MOST_BYTES, lambda result: result.num_bytes)
        self._inputs: Recent[Image.Image] = Recent(_MOST_INPUTS, _MOST_BYTES, _num_bytes)
        self._checks: Recent[vt.CheckResult] = Recent(_MOST_MAPS)
        self.random_curves: Recent[Any] = Recent(_MOST_INPUTS)
        """What the model says about random orders of patches, for the curves of any map."""
        self._resolved: Recent[Question] = Recent(4 * _MOST_MAPS)
        self._pace: dict[str, deque[tuple[float, float]]] = {name: deque(maxlen=20) for name in models}

    def model(self, name: str) -> vt.VisionModel:
        """Return a model by its name; only those that were given at start are here."""
        if name not in self.models:
            raise Refused(404, f"there is no model {name!r:.60} here; there is {', '.join(self.models)}")
        return self.models[name]

    def model_input(self, model: str, picture: str) -> Image.Image:
        """Return what a model sees of an image, in 8 bits."""
        preprocess = self.model(model).preprocess
        return self._inputs.get_or_make((model, picture), lambda: preprocess.inputs(self.photo(picture).image)[1])

    def photo(self, picture: str) -> Photo:
        """Return an image; a scene is rendered."""
        scene = scene_of(picture)
        photo = self.photos.get(picture) or (None if scene is None else self.photos.put(picture, render_scene(*scene)))
        if photo is None:
            raise Refused(404, f"there is no picture {picture!r:.60}; it may have left to make room: upload it again")
        return photo

    def add_photo(self, data: bytes, name: str, decoder: Decoder) -> Photo:
        """Decode an upload."""
        image = decoder.decode(data)
        photo = Photo(f"p-{hashlib.sha256(data).hexdigest()[:16]}", one_line(name)[:200] or "picture", image)
        return self.photos.put(photo.picture, photo)

    def resolve(self, question: Question) -> Question:
        """Return the same question with its method in canonical form; its classes exist."""
        model = self.model(question.model)

        def make() -> Question:
            for index in (question.target, question.contrast):
                if index is not None:
                    model.class_index(index)
            return question.model_copy(update={"method": parse_method(question.method, model).spec})

        return self._resolved.get_or_make(question, make)

    def has_map(self, question: Question) -> bool:
        """Whether the map was made lately."""
        resolved = self._resolved.get(question)
        return resolved is not None and self.maps.get(resolved) is not None

    def explain(self, question: Question, on_progress: Progress | None = None) -> MapResult:
        """Return the map that answers a question."""
        question = self.resolve(question)
        return self.maps.get(question) or self._explain([question], on_progress)[0]

    def check(self, question: Question, part: Callable[[float, float], Progress]) -> vt.CheckResult:
        """Return what cheap tests say about a map; ``part`` gives the progress of a part of the work."""
        question = self.resolve(question)
        e = self.explain(question, part(0.0, 0.2)).explanation
        options: dict[str, Any] = {"memory_gb": self.memory_gb, "progress": part(0.2, 1.0)}
        return self._checks.get_or_make(question, lambda: vt.check(e, self.model(question.model), **options))

    def prepare(self, questions: Sequence[Question], on_progress: Progress | None = None) -> None:
        """Make the cheap maps among those that are asked about one class of one image, their passes shared.

        What goes wrong here is left to be said when its turn comes.
        """
        cheap: list[Question] = []
        for question in questions:
            with suppress(VitreousError):
                question = self.resolve(question)
                method = vt.get_method(question.method or "")
                is_cheap = num_passes(method, self.model(question.model)) <= _SHARED_PASSES and not method.info.is_slow
                if is_cheap and question not in cheap and self.maps.get(question) is None:
                    cheap.append(question)
        if len(cheap) > 1:
            with suppress(VitreousError):
                self._explain(cheap, on_progress)

    def _explain(self, questions: Sequence[Question], on_progress: Progress | None) -> list[MapResult]:
        first = questions[0]
        model, photo = self.model(first.model), self.photo(first.picture)
        methods = [vt.get_method(question.method or "") for question in questions]
        start = time.perf_counter()
        with collect_warnings() as texts:
            comparison = self.compare(first, methods, on_progress)
        seconds = time.perf_counter() - start
        self._pace[first.model].append((sum(num_passes(method, model) for method in methods), seconds))
        by_method = _warnings_by_method([e.method for e in comparison], texts)
        results = []
        for question, e in zip(questions, comparison, strict=True):
            # the photograph belongs to the photos: held here too, it would never leave
            e = dataclasses.replace(e, original_image=None, name=photo.name)
            results.append(self.maps.put(question, MapResult(e, by_method[e.method], seconds / len(questions))))
        return results

    def compare(
        self, question: Question, methods: Sequence[str | vt.Method], on_progress: Progress | None, **changes: Any
    ) -> vt.Comparison:
        """Return the maps of some methods; ``changes`` are options of ``vt.compare`` that the question does not say."""
        model, image = self.model(question.model), self.photo(question.picture).image
        options = attributes(question, "target", "contrast", "output", "seed") | changes
        return vt.compare(model, image, methods, memory_gb=self.memory_gb, progress=on_progress, **options)

    def seconds(self, model: str, passes: float) -> float | None:
        """Return about how long so many passes take here, by what has run; ``None`` while nothing has."""
        pace = self._pace[model]
        total = sum(passes for passes, _ in pace)
        return passes * sum(seconds for _, seconds in pace) / total if total else None
