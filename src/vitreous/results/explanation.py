"""Results in a few lines of text: what a prompt shows.

What an explanation is once it is made: a map, what it explains, and how it came about.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple
from weakref import ref

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous import io as disk
from vitreous import viz as show
from vitreous.datasets.images import file_digest, open_image
from vitreous.errors import ImageError, VitreousError, one_line
from vitreous.html import figure
from vitreous.methods import Method
from vitreous.methods import get_method as understood
from vitreous.models import Box, VisionModel
from vitreous.registry import check_choice
from vitreous.registry.defaults import display_name
from vitreous.results.diagnostics import CheckResult
from vitreous.results.storage import MOST_BYTES, no_number, read_extras, read_map, versions
from vitreous.viz import Sheet

if TYPE_CHECKING:
    from vitreous.results.comparison import Comparison

__all__ = [
    "Explanation",
    "Origin",
    "PERCENTILE",
    "Prediction",
    "SCHEMA",
    "comparison_text",
    "explanation_text",
]


def explanation_text(shown: Explanation) -> str:
    """Return which picture, class and method an explanation is about, and what its map is like."""
    rather = f" rather than {', '.join(shown.contrast_classes)}" if shown.contrast_classes else ""
    low, high = float(shown.map.min()), float(shown.map.max())
    lines = [
        f"Explanation of {shown.name}: {shown.label}{_sure(shown.probability)}{rather}, {shown.output}",
        f"method {display_name(shown.method)} on {shown.model}, which said {_said(shown)}",
        f"map {' x '.join(map(str, shown.map.shape))}, from {low:.3g} to {high:.3g}"
        + (f"; extras {', '.join(shown.extras)}" if shown.extras else ""),
    ]
    if shown.check_result is not None:
        lines.append(f"check-up {shown.check_result.verdict}: {shown.check_result.sentence}")
    return "\n  ".join(map(one_line, lines))


def comparison_text(shown: Comparison) -> str:
    """Return the methods and classes that are compared."""
    first = shown[0]
    methods = ", ".join(display_name(each.method) for each in shown.rows[0])
    classes = ", ".join(f"{row[0].label}{_sure(row[0].probability)}" for row in shown.rows)
    lines = [
        f"Comparison of {len(shown)} maps of {first.name} on {first.model}, which said {_said(first)}",
        f"methods: {methods}",
        f"classes: {classes}",
    ]
    return "\n  ".join(map(one_line, lines))


def _said(shown: Explanation) -> str:
    return f"{shown.prediction.label}{_sure(shown.prediction.probability)}"


def _sure(probability: float | None) -> str:
    return "" if probability is None else f" ({probability:.3f})"


Size = int | tuple[int, int] | Literal["photo"]

SCHEMA = "vitreous.explanation/1"
PERCENTILE = 99.0
_LARGEST = 2048  # pixels of a saved overlay; a map is much coarser


@dataclass(frozen=True)
class Prediction:
    """What the model itself said."""

    target: int
    label: str
    probability: float


class Origin(NamedTuple):
    """What made an explanation in this process; the model is not kept alive for it."""

    model: ref[VisionModel | nn.Module]
    method: Method


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model said that: one raw signed map of one image for one target.

    ``map`` is ``[h, w]`` on the method's own grid. ``target``, ``label`` and ``probability`` are the explained class;
    ``prediction`` is the model's own. ``against`` and ``rivals`` are the classes it is set against, by index and name.
    ``extras`` holds named second results; ``names`` are those of ``extras["classes"]``, where classes are compared.
    ``value`` is what the map explains of the class, ``asked`` what was asked for: a method may have its own.
    ``only`` are the classes that the softmax was restricted to, ``among`` those that were to be compared.
    ``identity`` tells it from all others: digests of the question, the picture and the weights.
    ``checkup`` is what ``check`` found, where that was put there; ``origin`` is neither saved nor pickled.
    """

    map: Tensor
    target: int | None
    label: str
    probability: float | None
    method: str
    settings: dict[str, Any]
    seed: int
    model: str
    prediction: Prediction
    image: Image.Image
    name: str = "image"
    output: str = "logit"
    asked: str = "logit"
    class_subset: tuple[int, ...] = ()
    compare_classes: tuple[int, ...] = ()
    contrast: tuple[int, ...] = ()
    contrast_classes: tuple[str, ...] = ()
    extras: dict[str, Tensor] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    box: Box | None = None
    source: str | None = None
    identity: Mapping[str, str] | None = None
    created: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    original_image: Image.Image | None = field(default=None, repr=False)
    check_result: CheckResult | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)
    checker: ClassVar[Callable[..., CheckResult] | None] = None
    """What ``check`` calls: handed in from above, for this room knows no judge."""

    def __repr__(self) -> str:
        return explanation_text(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "origin": None}

    def check(
        self,
        model: VisionModel | nn.Module | None = None,
        *,
        inputs: Tensor | None = None,
        memory_gb: float | None = None,
    ) -> CheckResult:
        """Return what cheap tests say about this map: see ``vitreous.check``.

        The model is not needed right after ``explain``; a loaded explanation needs it.
        """
        if Explanation.checker is None:
            raise VitreousError("nobody is here who could check an explanation; import vitreous and use vitreous.check")
        return Explanation.checker(self, model, inputs=inputs, memory_gb=memory_gb)

    # -- pictures --------------------------------------------------------------------------------------

    def upsample(self, size: tuple[int, int] | None = None) -> Tensor:
        """Return the map at ``(height, width)``, the input size by default: bilinear, half-pixel centres."""
        size = size or (self.image.height, self.image.width)
        return F.interpolate(self.map[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]

    @property
    def method_text(self) -> Method | None:
        """The method; ``None`` where its spelling means nothing here, because it is registered elsewhere."""
        if self.origin is not None:
            return self.origin.method
        try:
            return understood(self.method)
        except VitreousError:
            return None

    @property
    def class_specific(self) -> bool:
        """Whether another class would have another map."""
        return self.method_text is None or self.method_text.class_specific

    @property
    def signed(self) -> bool | None:
        """False where values below zero do not speak against the class; ``None`` where it depends on the values."""
        return None if self.method_text is None or self.method_text.signed else False

    @property
    def scale(self) -> show.Scale:
        """How values become colours: the 99th percentile of their size is the strongest one."""
        return show.Scale.of([self._array], PERCENTILE, self.signed)

    def heatmap(self) -> Image.Image:
        """Return the map alone, in colour, at the input size."""
        return show.heatmap(self._array, self.scale, self.image.size)

    def overlay(
        self,
        image: Image.Image | None = None,
        *,
        original: bool = False,
        size: Size | None = None,
        colours: str | None = None,
        opacity: float = 0.55,
        caption: bool = False,
    ) -> Image.Image:
        """Return the map over the crop the model saw, over another picture, or over the original photograph.

        ``size``: the longer side in pixels, ``(width, height)``, or ``"photo"`` for what the model saw in the
        photograph's own resolution. ``colours``: ``"sequential"``, ``"diverging"`` or ``"jet"``. ``opacity`` is that of
        the strongest colour. ``caption`` puts a legend and the caption under it.
        """
        if colours is not None:
            check_choice("colours", colours, tuple(show.COLOURS))
        if not 0 <= opacity <= 1:
            raise VitreousError(f"opacity={opacity} must be between 0 and 1")
        drawn = self._drawn(image, original, size, colours, opacity)
        return self._page(drawn, caption, colours).image() if caption else drawn

    def _drawn(
        self, image: Image.Image | None, original: bool, size: Size | None, colours: str | None, opacity: float
    ) -> Image.Image:
        if original:
            photo, box = self._photo()
            if size is not None and size != "photo":
                small = show.resized(photo, size)
                across, down = small.width / photo.width, small.height / photo.height
                photo, box = small, (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
            return show.on_photo(photo, self._array, box, self.scale, opacity, colours)
        under = image or self.image
        if size == "photo":
            if image is not None:
                raise VitreousError('size="photo" is that of the photograph, not of another picture')
            under = show.cut_out(*self._photo(), self.image)
        elif size is not None:
            under = show.resized(under, size)
        return show.overlay(under, self._array, self.scale, opacity, colours)

    def extra_image(self, name: str, tile: int = show.TILE) -> Image.Image:
        """Return a picture of what the method found beside the map: ``"owners"`` where classes are compared."""
        there = {each.name: each for each in show.pictures_of(self.extras)}
        if name not in there:
            way = show.EXTRAS[name].made_by.format(self.method) if name in show.EXTRAS else ""
            some = f"; explain with {way} to see it" if way else f"; there is {', '.join(there)}" if there else ""
            raise VitreousError(f"{self.method} has no picture {name!r}{some}")
        return there[name].draw(self, tile)

    @property
    def extra_images(self) -> tuple[str, ...]:
        """The names of the pictures that there are beside heat map and overlay."""
        return tuple(each.name for each in show.pictures_of(self.extras))

    @property
    def source_line(self) -> str:
        """Which method explained what of which model."""
        return f"{display_name(self.method)}, {self.output} of {self.model}"

    def show(self) -> None:
        """Show the overlay: in a notebook in place, elsewhere in the system's image viewer."""
        show.display(self.overlay(size=self._readable, caption=True))

    @property
    def title(self) -> str:
        """The question that the map answers."""
        if not self.class_specific:
            return "What does the model look at, whatever the class?"
        given = "" if self.probability is None else f" {self.probability:.2f}"
        return f"Why {self.label}{self._rather}?{given}"

    @property
    def caption(self) -> str:
        """One line that says what the picture shows."""
        how = display_name(self.method)
        if not self.class_specific:
            return f"{how}: the same for every class of {self.model}; {self.scale.caption()}"
        given = "" if self.probability is None else f" (p = {self.probability:.3f})"
        sign = "the sign is a convention; " if self.signed is False else ""
        return f"{how}: {self.label}{given}{self._rather}, {self.output} of {self.model}; {sign}{self.scale.caption()}"

    @property
    def _rather(self) -> str:
        return f" rather than {', '.join(self.contrast_classes)}" if self.contrast_classes else ""

    @property
    def _readable(self) -> int:
        """The longer side of a picture that people look at."""
        return max(show.TILE, *self.image.size)

    def _repr_html_(self) -> str:
        more = [figure(self.extra_image(each.name), each.title) for each in show.pictures_of(self.extras)]
        return figure(self.overlay(size=self._readable), self.caption) + "".join(more)

    # -- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False, original: bool = False, caption: bool = True) -> Path:
        """Write one picture, if ``path`` ends like one, or else a new folder: see ``save_folder``.

        The picture is the overlay, or the one on the whole photograph (``original``), with a legend and a caption under
        it unless told otherwise. It has the photograph's own resolution where the photograph is at hand.
        """
        if not show.is_picture(path):
            return self.save_folder(path, overwrite=overwrite, original=original, caption=caption)
        disk.check_file(path, overwrite)
        drawn = self.overlay(original=True) if original else self._largest()
        disk.write_file(path, show.encoded(self._page(drawn, caption), path), overwrite=overwrite)
        return Path(path)

    def save_folder(
        self, folder: str | Path, *, overwrite: bool = False, original: bool = False, caption: bool = True
    ) -> Path:
        """Write map, pictures and manifest into a new folder; all of it or nothing, and nothing of anyone else's lost.

        Files: ``map.npy``, ``heatmap.png``, ``overlay.png``, ``image.png``, ``manifest.json``, ``extras.npz`` if there
        are extras, a picture of them where there is one (``owners.png`` if classes are compared), and ``original.png``
        (the map on the whole photograph) if asked for. The overlay is that of ``save``.
        """
        with disk.folder(folder, overwrite=overwrite) as draft:
            draft.write("map.npy", lambda file: np.save(file, self._array))
            draft.write("heatmap.png", show.encoded(self.heatmap()))
            draft.write("overlay.png", show.encoded(self._page(self._largest(), caption)))
            draft.write("image.png", show.encoded(self.image))
            if self.extras:
                arrays: dict[str, Any] = {name: value.numpy() for name, value in self.extras.items()}
                draft.write("extras.npz", lambda file: np.savez(file, **arrays))
            for name in self.extra_images:
                draft.write(f"{name}.png", show.encoded(self.extra_image(name)))
            if original:
                draft.write("original.png", show.encoded(self.overlay(original=True)))
            draft.finish(self.manifest())
        return Path(folder)

    def _page(self, drawn: Image.Image, caption: bool, colours: str | None = None) -> Sheet:
        return show.captioned(drawn, self.scale, self.caption, colours) if caption else show.image_sheet(drawn)

    def _largest(self) -> Image.Image:
        """The overlay in the photograph's own resolution, within reason, or in that of the input if there is none."""
        if not self._at_hand:
            return self.overlay()
        under = show.cut_out(*self._photo(), self.image)
        return self.overlay(under, size=min(max(under.size), _LARGEST))

    @property
    def _at_hand(self) -> bool:
        """Whether the photograph is still there, and still the one that was explained."""
        if self.box is None or self.original_image is not None or self.source is None:
            return self.box is not None and self.original_image is not None
        try:
            return self.identity is not None and file_digest(self.source) == self.identity["picture"]
        except VitreousError:
            return False

    def manifest(self) -> dict[str, Any]:
        """Return everything but the numbers of the map: what was asked, what was found, with which versions."""
        return {
            "schema": SCHEMA,
            "created": self.created,
            "model": self.model,
            "method": self.method,
            "settings": self.settings,
            "seed": self.seed,
            "target": self.target,
            "label": self.label,
            "probability": self.probability,
            "output": self.output,
            "asked": self.asked,
            "contrast": list(self.contrast),
            "contrast_classes": list(self.contrast_classes),
            "prediction": vars(self.prediction),
            "name": self.name,
            "source": self.source,
            "box": None if self.box is None else list(self.box),
            "grid": list(self.map.shape),
            "input_size": [self.image.height, self.image.width],
            "extras": sorted(self.extras),
            "identity": None if self.identity is None else dict(self.identity),
            **({"class_names": list(self.class_names)} if self.class_names else {}),
            **({"class_subset": list(self.class_subset)} if self.class_subset else {}),
            **({"compare_classes": list(self.compare_classes)} if self.compare_classes else {}),
            **({} if self.check_result is None else {"check": self.check_result.to_json()}),
            "picture": self.scale.caption(),
            "versions": versions(),
        }

    @classmethod
    def load(cls, folder: str | Path) -> Explanation:
        """Read an explanation that ``save`` wrote."""
        try:
            files = disk.read_folder(folder, ("manifest.json", "map.npy", "image.png", "extras.npz"), MOST_BYTES)
            manifest = json.loads(files["manifest.json"].decode(), parse_constant=no_number)
            array, image = read_map(files["map.npy"]), open_image(io.BytesIO(files["image.png"]))
            extras = read_extras(files["extras.npz"]) if manifest["extras"] else {}
            return cls._from_manifest(manifest, array, image, extras)
        except VitreousError:
            raise
        except Exception as error:  # damaged files can break a reader anywhere
            missing = isinstance(error, KeyError) and f"there is no {error.args[0]}"
            reason = one_line(missing or f"{type(error).__name__}: {error}")
            raise VitreousError(f"{folder} holds no explanation that can be read ({reason})") from error

    @classmethod
    def _from_manifest(
        cls, manifest: dict[str, Any], array: np.ndarray[Any, Any], image: Image.Image, extras: dict[str, Any]
    ) -> Explanation:
        if manifest["schema"] != SCHEMA:
            raise VitreousError(f"the explanation has the schema {manifest['schema']!r}, not {SCHEMA!r}")
        same = [
            "model", "method", "settings", "seed", "target", "label", "probability", "output", "asked", "name",
            "source",
        ]  # fmt: skip
        return cls(
            map=torch.from_numpy(array),
            prediction=Prediction(**manifest["prediction"]),
            image=image,
            contrast=tuple(manifest["contrast"]),
            contrast_classes=tuple(manifest["contrast_classes"]),
            class_names=tuple(manifest.get("class_names", ())),
            class_subset=tuple(manifest.get("class_subset", ())),
            compare_classes=tuple(manifest.get("compare_classes", ())),
            created=manifest["created"],
            identity=manifest.get("identity"),
            check_result=CheckResult.from_json(manifest["check"]) if "check" in manifest else None,
            box=None if manifest["box"] is None else tuple(manifest["box"]),
            extras={name: torch.from_numpy(value) for name, value in extras.items()},
            **{name: manifest[name] for name in same},
        )

    @property
    def _array(self) -> np.ndarray[Any, Any]:
        return self.map.numpy()

    def _photo(self) -> tuple[Image.Image, Box]:
        """The photograph, and where in it is what the model saw."""
        if self.box is None:
            raise ImageError(
                "there is no original photograph to draw on: made of a tensor, or its place in it is not known"
            )
        if self.original_image is not None:
            return self.original_image, self.box
        if self.source is None:
            raise ImageError("the original photograph was not kept")
        return open_image(self.source), self.box
