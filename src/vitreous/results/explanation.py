"""What an explanation is once it is made: a map, what was asked, what the model predicts, and how it came about."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitreous import io as disk
from vitreous import viz
from vitreous.datasets.images import file_digest, open_image
from vitreous.errors import ImageError, VitreousError, one_line
from vitreous.html import figure
from vitreous.methods import Method, get_method
from vitreous.models import Box
from vitreous.registry import check_choice
from vitreous.registry.defaults import display_name
from vitreous.results.diagnostics import CheckResult
from vitreous.results.storage import (
    MAX_BYTES,
    ClassProbability,
    ExplanationRequest,
    Origin,
    ResultIdentity,
    read_extras,
    read_map,
    refuse_constant,
    to_plain,
    versions,
)

SCHEMA = "vitreous.explanation/1"
PERCENTILE = 99.0
_MAX_SIDE = 2048  # pixels of a saved overlay; a map is much coarser
_FILES = ("manifest.json", "map.npy", "image.png", "extras.npz")
Size = int | tuple[int, int] | Literal["photo"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a model predicts a class: one raw signed map of one image for one target.

    Made by ``vt.explain``; shows itself in a notebook.

    Parameters
    ----------
    map : Tensor
        The map ``[h, w]``, raw and signed, on the method's own grid unless another was asked for.
    request : ExplanationRequest
        What was asked: model, method and its settings, seed, output, contrast and compared classes.
    explained : ClassProbability
        The explained class; ``target``, ``label`` and ``probability`` read it.
    prediction : ClassProbability
        The class that the model predicts.
    image : PIL.Image.Image
        What the model saw.
    name : str, default "image"
        The name of the image.
    output : str, default "logit"
        What the map explains of the class: ``"logit"``, ``"prob"``, ``"logprob"`` or ``"callable"``.
    extras : dict of Tensor
        Named second results.
    class_names : tuple of str
        The names of ``extras["classes"]``, where classes are compared.
    box : tuple of float, optional
        Where ``image`` lies in the photograph: left, top, right and bottom in pixels.
    source : str, optional
        The path of the photograph.
    original_image : PIL.Image.Image, optional
        The photograph, where it has no path.
    created : str
        When it was made, in ISO 8601.
    key : ResultIdentity or dict of str, optional
        What ``identity`` is made of, or is; ``None`` for a function.
    image_digest : str, default ""
        The digest of the image.
    check_result : CheckResult, optional
        What ``vt.check`` found, where that was put there.
    origin : Origin, optional
        What made it in this process; neither saved nor pickled.

    Examples
    --------
    >>> e = vt.explain(model, image, "ixg")
    >>> e.map.shape, e.label == e.prediction.label
    (torch.Size([16, 16]), True)
    >>> vt.Explanation.load(e.save(tmp_path / "explained")).method
    'ixg'
    """

    map: Tensor
    request: ExplanationRequest
    explained: ClassProbability
    prediction: ClassProbability
    image: Image.Image
    name: str = "image"
    output: str = "logit"
    extras: dict[str, Tensor] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    box: Box | None = None
    source: str | None = None
    original_image: Image.Image | None = field(default=None, repr=False)
    created: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    key: ResultIdentity | Mapping[str, str] | None = field(default=None, repr=False)
    image_digest: str = field(default="", repr=False)
    check_result: CheckResult | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        extras = f"; extras {', '.join(self.extras)}" if self.extras else ""
        lines = [
            f"Explanation of {self.name}: {self.explained}{self._rather_than}, {self.output}",
            f"method {display_name(self.method)} on {self.model}, which predicts {self.prediction}",
            f"map {' x '.join(map(str, self.map.shape))}, from {self.map.min():.3g} to {self.map.max():.3g}{extras}",
        ]
        if self.check_result is not None:
            lines.append(f"check {self.check_result.verdict}: {self.check_result.sentence}")
        return "\n  ".join(one_line(line) for line in lines)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "key": self.identity, "origin": None}

    # -- what was asked and found ----------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.request.model

    @property
    def method(self) -> str:
        """The shortest spec of the method."""
        return self.request.method

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        return self.request.seed

    @property
    def target(self) -> int | None:
        """The index of the explained class; ``None`` for a function."""
        return self.explained.target

    @property
    def label(self) -> str:
        """The name of the explained class."""
        return self.explained.label

    @property
    def probability(self) -> float | None:
        """The probability of the explained class; ``None`` for a function."""
        return self.explained.probability

    @property
    def contrast_classes(self) -> tuple[str, ...]:
        """The names of the classes that it is explained against."""
        return self.request.contrast_classes

    @cached_property
    def identity(self) -> Mapping[str, str] | None:
        """What tells it from all others: digests of the request, the image and the weights; ``None`` for a function.

        The weights are read when this is first looked at.
        """
        return self.key.to_json(self.image_digest, self.target) if isinstance(self.key, ResultIdentity) else self.key

    @property
    def _method(self) -> Method | None:
        """The method; ``None`` where its spec means nothing here, because it is registered elsewhere."""
        if self.origin is not None:
            return self.origin.method
        try:
            return get_method(self.method)
        except VitreousError:
            return None

    @property
    def class_specific(self) -> bool:
        """Whether another class would have another map."""
        return self._method is None or self._method.class_specific

    @property
    def signed(self) -> bool | None:
        """False where values below zero do not speak against the class; ``None`` where it depends on the values."""
        return None if self._method is None or self._method.signed else False

    # -- pictures --------------------------------------------------------------------------------------

    @property
    def scale(self) -> viz.Scale:
        """How values become colours: the 99th percentile of their size is the strongest one."""
        return viz.Scale.of([self._array], PERCENTILE, self.signed)

    @property
    def source_line(self) -> str:
        """Which method explained what of which model."""
        return f"{display_name(self.method)}, {self.output} of {self.model}"

    @property
    def title(self) -> str:
        """The question that the map answers."""
        if not self.class_specific:
            return "What does the model look at, whatever the class?"
        probability = "" if self.probability is None else f" {self.probability:.2f}"
        return f"Why {self.label}{self._rather_than}?{probability}"

    @property
    def caption(self) -> str:
        """One line that says what the picture shows."""
        method = display_name(self.method)
        if not self.class_specific:
            return f"{method}: the same for every class of {self.model}; {self.scale.caption()}"
        probability = "" if self.probability is None else f" (p = {self.probability:.3f})"
        sign = "the sign is a convention; " if self.signed is False else ""
        what = f"{self.label}{probability}{self._rather_than}, {self.output} of {self.model}"
        return f"{method}: {what}; {sign}{self.scale.caption()}"

    @property
    def extra_images(self) -> tuple[str, ...]:
        """The names of the pictures that there are beside heat map and overlay."""
        return tuple(extra.name for extra in viz.pictures_of(self.extras))

    def upsample(self, size: tuple[int, int] | None = None) -> Tensor:
        """Return the map at another size.

        Parameters
        ----------
        size : tuple of int, optional
            Height and width; those of the input by default.

        Returns
        -------
        Tensor
            ``[height, width]``, interpolated bilinearly with half-pixel centres.
        """
        size = size or (self.image.height, self.image.width)
        return F.interpolate(self.map[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]

    def heatmap(self) -> Image.Image:
        """Return the map alone, in colour, at the input size."""
        return viz.heatmap(self._array, self.scale, self.image.size)

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
        """Return the map over an image.

        Parameters
        ----------
        image : PIL.Image.Image, optional
            The image to draw on; the crop that the model saw by default.
        original : bool, default False
            Draw on the whole photograph.
        size : int, tuple of int or "photo", optional
            The longer side in pixels, width and height, or ``"photo"``: what the model saw, in the photograph's own
            resolution.
        colours : str, optional
            ``"sequential"``, ``"diverging"`` or ``"jet"``; by the signs of the map by default.
        opacity : float, default 0.55
            Of the strongest colour.
        caption : bool, default False
            Put a legend and the caption under it.

        Returns
        -------
        PIL.Image.Image
            The picture.
        """
        if colours is not None:
            check_choice("colours", colours, tuple(viz.COLOURS))
        if not 0 <= opacity <= 1:
            raise VitreousError(f"opacity={opacity} must be between 0 and 1")
        if original:
            photo, box = self._photo()
            if size is not None and size != "photo":
                small = viz.resized(photo, size)
                x, y = small.width / photo.width, small.height / photo.height
                photo, box = small, (box[0] * x, box[1] * y, box[2] * x, box[3] * y)
            overlay = viz.on_photo(photo, self._array, box, self.scale, opacity, colours)
        else:
            overlay = viz.overlay(self._background(image, size), self._array, self.scale, opacity, colours)
        return self._sheet(overlay, caption, colours).image() if caption else overlay

    def extra_image(self, name: str, tile: int = viz.TILE) -> Image.Image:
        """Return a picture of what the method found beside the map.

        Parameters
        ----------
        name : str
            One of ``extra_images``: ``"owners"`` where classes are compared.
        tile : int, default 320
            The longer side of each tile in pixels.

        Returns
        -------
        PIL.Image.Image
            The picture.
        """
        available = {extra.name: extra for extra in viz.pictures_of(self.extras)}
        if name not in available:
            method = viz.EXTRAS[name].made_by.format(self.method) if name in viz.EXTRAS else ""
            others = f"; there is {', '.join(available)}" if available else ""
            advice = f"; explain with {method} to see it" if method else others
            raise VitreousError(f"{self.method} has no picture {name!r}{advice}")
        return available[name].draw(self, tile)

    def show(self) -> None:
        """Show the overlay: in a notebook in place, elsewhere in the system's image viewer."""
        viz.display(self.overlay(size=self._readable_side, caption=True))

    def _repr_html_(self) -> str:
        more = [figure(self.extra_image(extra.name), extra.title) for extra in viz.pictures_of(self.extras)]
        return figure(self.overlay(size=self._readable_side), self.caption) + "".join(more)

    # -- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False, original: bool = False, caption: bool = True) -> Path:
        """Write one picture, if ``path`` ends like one, or else a new folder: see ``save_folder``.

        Parameters
        ----------
        path : str or Path
            Where to.
        overwrite : bool, default False
            Replace what is there, if it is ours.
        original : bool, default False
            Draw on the whole photograph.
        caption : bool, default True
            Put a legend and the caption under the picture. It has the photograph's own resolution where the photograph
            is at hand.

        Returns
        -------
        Path
            ``path``.
        """
        if not viz.is_picture(path):
            return self.save_folder(path, overwrite=overwrite, original=original, caption=caption)
        disk.check_file(path, overwrite)
        overlay = self.overlay(original=True) if original else self._large_overlay()
        disk.write_file(path, viz.encoded(self._sheet(overlay, caption), path), overwrite=overwrite)
        return Path(path)

    def save_folder(
        self, folder: str | Path, *, overwrite: bool = False, original: bool = False, caption: bool = True
    ) -> Path:
        """Write map, pictures and manifest into a new folder; all of it or nothing, and nothing of anyone else's lost.

        Files: ``map.npy``, ``heatmap.png``, ``overlay.png``, ``image.png``, ``manifest.json``, ``extras.npz`` if there
        are extras, a picture of them where there is one (``owners.png`` if classes are compared), and ``original.png``
        (the map on the whole photograph) if asked for. Parameters are those of ``save``.
        """
        with disk.folder(folder, overwrite=overwrite) as draft:
            draft.write("map.npy", lambda file: np.save(file, self._array))
            draft.write("heatmap.png", viz.encoded(self.heatmap()))
            draft.write("overlay.png", viz.encoded(self._sheet(self._large_overlay(), caption)))
            draft.write("image.png", viz.encoded(self.image))
            if self.extras:
                arrays: dict[str, Any] = {name: value.numpy() for name, value in self.extras.items()}
                draft.write("extras.npz", lambda file: np.savez(file, **arrays))
            for name in self.extra_images:
                draft.write(f"{name}.png", viz.encoded(self.extra_image(name)))
            if original:
                draft.write("original.png", viz.encoded(self.overlay(original=True)))
            draft.finish(self.manifest())
        return Path(folder)

    def manifest(self) -> dict[str, Any]:
        """Return everything but the numbers of the map, as plain data."""
        return {
            "schema": SCHEMA,
            "created": self.created,
            **to_plain(self.request),
            **self.explained._asdict(),
            "output": self.output,
            "prediction": self.prediction._asdict(),
            "name": self.name,
            "source": self.source,
            "box": None if self.box is None else list(self.box),
            "grid": list(self.map.shape),
            "input_size": [self.image.height, self.image.width],
            "extras": sorted(self.extras),
            "class_names": list(self.class_names),
            "identity": self.identity,
            "check": None if self.check_result is None else self.check_result.to_json(),
            "picture": self.scale.caption(),
            "versions": versions(),
        }

    @classmethod
    def load(cls, folder: str | Path) -> Explanation:
        """Read an explanation that ``save`` wrote into a folder."""
        try:
            files = disk.read_folder(folder, _FILES, MAX_BYTES)
            manifest = json.loads(files["manifest.json"].decode(), parse_constant=refuse_constant)
            if manifest["schema"] != SCHEMA:
                raise VitreousError(f"the explanation has the schema {manifest['schema']!r}, not {SCHEMA!r}")
            extras = read_extras(files["extras.npz"]) if manifest["extras"] else {}
            return cls(
                map=torch.from_numpy(read_map(files["map.npy"])),
                request=ExplanationRequest.from_manifest(manifest),
                explained=ClassProbability(*(manifest[name] for name in ClassProbability._fields)),
                prediction=ClassProbability(**manifest["prediction"]),
                image=open_image(io.BytesIO(files["image.png"])),
                extras={name: torch.from_numpy(value) for name, value in extras.items()},
                class_names=tuple(manifest["class_names"]),
                box=None if manifest["box"] is None else tuple(manifest["box"]),
                key=manifest["identity"],
                image_digest=manifest["identity"]["image"] if manifest["identity"] else "",
                check_result=None if manifest["check"] is None else CheckResult.from_json(manifest["check"]),
                **{field: manifest[field] for field in ("name", "output", "source", "created")},
            )
        except VitreousError:
            raise
        except Exception as error:  # damaged files can break a reader anywhere
            missing = isinstance(error, KeyError) and f"there is no {error.args[0]}"
            reason = one_line(missing or f"{type(error).__name__}: {error}")
            raise VitreousError(f"{folder} holds no explanation that can be read ({reason})") from error

    # -- details ---------------------------------------------------------------------------------------

    @property
    def _array(self) -> np.ndarray[Any, Any]:
        return self.map.numpy()

    @property
    def _rather_than(self) -> str:
        return f" rather than {', '.join(self.contrast_classes)}" if self.contrast_classes else ""

    @property
    def _readable_side(self) -> int:
        """The longer side of a picture that people look at."""
        return max(viz.TILE, *self.image.size)

    def _background(self, image: Image.Image | None, size: Size | None) -> Image.Image:
        """Return what the map is drawn over, at the size asked for."""
        if size == "photo":
            if image is not None:
                raise VitreousError('size="photo" is that of the photograph, not of another picture')
            return viz.cut_out(*self._photo(), self.image)
        return viz.resized(image or self.image, size) if size is not None else image or self.image

    def _sheet(self, overlay: Image.Image, caption: bool, colours: str | None = None) -> viz.Sheet:
        return viz.captioned(overlay, self.scale, self.caption, colours) if caption else viz.image_sheet(overlay)

    def _large_overlay(self) -> Image.Image:
        """The overlay in the photograph's own resolution, within reason, or in that of the input if there is none."""
        if not self._photo_is_at_hand:
            return self.overlay()
        crop = viz.cut_out(*self._photo(), self.image)
        return self.overlay(crop, size=min(max(crop.size), _MAX_SIDE))

    @property
    def _photo_is_at_hand(self) -> bool:
        """Whether the photograph is still there, and still the one that was explained."""
        if self.box is None or self.original_image is not None or self.source is None:
            return self.box is not None and self.original_image is not None
        try:
            return bool(self.image_digest) and file_digest(self.source) == self.image_digest
        except VitreousError:
            return False

    def _photo(self) -> tuple[Image.Image, Box]:
        """Return the photograph, and where in it is what the model saw."""
        if self.box is None:
            raise ImageError(
                "there is no original photograph to draw on: made of a tensor, or its place in it is not known"
            )
        if self.original_image is not None:
            return self.original_image, self.box
        if self.source is None:
            raise ImageError("the original photograph was not kept")
        return open_image(self.source), self.box
