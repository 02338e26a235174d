"""What an explanation is once it is made: a map, what it explains, and how it came about."""

from __future__ import annotations

import io
import json
import math
import platform
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous import disk, show
from vitreous.data.pictures import open_photo
from vitreous.errors import ImageError, VitreousError, one_line
from vitreous.methods import Method
from vitreous.models import Box, View
from vitreous.results.checkup import Checkup
from vitreous.words.defaults import known_as

__all__ = ["PERCENTILE", "SCHEMA", "Explanation", "Origin", "Prediction", "display"]

SCHEMA = "vitreous.explanation/1"
PERCENTILE = 99.0
_MOST_BYTES = 2**31  # of a file that is read


@dataclass(frozen=True)
class Prediction:
    """What the model itself said."""

    target: int
    label: str
    probability: float


class Origin(NamedTuple):
    """What made an explanation in this process; the model is not kept alive for it."""

    model: ref[View | nn.Module]
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
    value: str = "logit"
    asked: str = "logit"
    only: tuple[int, ...] = ()
    among: tuple[int, ...] = ()
    against: tuple[int, ...] = ()
    rivals: tuple[str, ...] = ()
    extras: dict[str, Tensor] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    box: Box | None = None
    source: str | None = None
    identity: dict[str, str] | None = None
    created: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    photo: Image.Image | None = field(default=None, repr=False)
    checkup: Checkup | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)
    checker: ClassVar[Callable[..., Checkup] | None] = None
    """What ``check`` calls: handed in from above, for this room knows no judge."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "origin": None}

    def check(
        self, model: View | nn.Module | None = None, *, inputs: Tensor | None = None, memory: float | None = None
    ) -> Checkup:
        """Return what cheap tests say about this map: see ``vitreous.check``.

        The model is not needed right after ``explain``; a loaded explanation needs it.
        """
        if Explanation.checker is None:
            raise VitreousError("nobody is here who could check an explanation; import vitreous and use vitreous.check")
        return Explanation.checker(self, model, inputs=inputs, memory=memory)

    # -- pictures --------------------------------------------------------------------------------------

    def upsample(self, size: tuple[int, int] | None = None) -> Tensor:
        """Return the map at ``(height, width)``, the input size by default: bilinear, half-pixel centres."""
        size = size or (self.image.height, self.image.width)
        return F.interpolate(self.map[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]

    @property
    def scale(self) -> show.Scale:
        """How values become colours: the 99th percentile of their size is the strongest one."""
        return show.Scale.of([self._array], PERCENTILE)

    def heatmap(self) -> Image.Image:
        """Return the map alone, in colour, at the input size."""
        return show.heatmap(self._array, self.scale, self.image.size)

    def overlay(self, image: Image.Image | None = None, *, original: bool = False, alpha: float = 0.55) -> Image.Image:
        """Return the map over the crop the model saw, over another picture, or over the original photograph."""
        if original:
            if self.box is None:
                raise ImageError("this explanation was made from a tensor; there is no original photograph")
            return show.on_photo(self._photo(), self._array, self.box, self.scale, alpha=alpha)
        return show.overlay(image or self.image, self._array, self.scale, alpha=alpha)

    def picture(self, name: str, tile: int = 224) -> Image.Image:
        """Return a picture of what the method found beside the map: ``"owners"`` where classes are compared."""
        there = {each.name: each for each in show.pictures_of(self.extras)}
        if name not in there:
            way = show.EXTRAS[name].made_by.format(self.method) if name in show.EXTRAS else ""
            some = f"; explain with {way} to see it" if way else f"; there is {', '.join(there)}" if there else ""
            raise VitreousError(f"{self.method} has no picture {name!r}{some}")
        return there[name].draw(self, tile)

    @property
    def pictures(self) -> tuple[str, ...]:
        """The names of the pictures that there are beside heat map and overlay."""
        return tuple(each.name for each in show.pictures_of(self.extras))

    @property
    def source_line(self) -> str:
        """Which method explained what of which model."""
        return f"{known_as(self.method)}, {self.value} of {self.model}"

    def show(self) -> None:
        """Show the overlay: in a notebook in place, elsewhere in the system's image viewer."""
        display(self.overlay())

    @property
    def caption(self) -> str:
        """One line that says what the picture shows."""
        given = "" if self.probability is None else f" (p = {self.probability:.3f})"
        rather = f" rather than {', '.join(self.rivals)}" if self.rivals else ""
        how = known_as(self.method)
        return f"{how}: {self.label}{given}{rather}, {self.value} of {self.model}; {self.scale.caption()}"

    def _repr_html_(self) -> str:
        more = [show.figure(self.picture(each.name), each.title) for each in show.pictures_of(self.extras)]
        return show.figure(self.overlay(), self.caption) + "".join(more)

    # -- files -----------------------------------------------------------------------------------------

    def save(self, folder: str | Path, *, overwrite: bool = False, original: bool = False) -> Path:
        """Write map, pictures and manifest into a new folder; all of it or nothing, and nothing of anyone else's lost.

        Files: ``map.npy``, ``heatmap.png``, ``overlay.png``, ``image.png``, ``manifest.json``, ``extras.npz`` if there
        are extras, a picture of them where there is one (``owners.png`` if classes are compared), and ``original.png``
        (the map on the whole photograph) if asked for.
        """
        with disk.folder(folder, overwrite=overwrite) as draft:
            draft.write("map.npy", lambda file: np.save(file, self._array))
            draft.write("heatmap.png", show.encoded(self.heatmap()))
            draft.write("overlay.png", show.encoded(self.overlay()))
            draft.write("image.png", show.encoded(self.image))
            if self.extras:
                arrays: dict[str, Any] = {name: value.numpy() for name, value in self.extras.items()}
                draft.write("extras.npz", lambda file: np.savez(file, **arrays))
            for name in self.pictures:
                draft.write(f"{name}.png", show.encoded(self.picture(name)))
            if original:
                draft.write("original.png", show.encoded(self.overlay(original=True)))
            draft.finish(self.manifest())
        return Path(folder)

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
            "value": self.value,
            "asked": self.asked,
            "against": list(self.against),
            "rivals": list(self.rivals),
            "prediction": vars(self.prediction),
            "name": self.name,
            "source": self.source,
            "box": None if self.box is None else list(self.box),
            "grid": list(self.map.shape),
            "input_size": [self.image.height, self.image.width],
            "extras": sorted(self.extras),
            "identity": self.identity,
            **({"classes": list(self.names)} if self.names else {}),
            **({"only": list(self.only)} if self.only else {}),
            **({"among": list(self.among)} if self.among else {}),
            **({} if self.checkup is None else {"check": self.checkup.to_json()}),
            "picture": self.scale.caption(),
            "versions": _versions(),
        }

    @classmethod
    def load(cls, folder: str | Path) -> Explanation:
        """Read an explanation that ``save`` wrote."""
        try:
            files = disk.read_folder(folder, ("manifest.json", "map.npy", "image.png", "extras.npz"), _MOST_BYTES)
            manifest = json.loads(files["manifest.json"].decode(), parse_constant=_no_number)
            array, image = _read_map(files["map.npy"]), open_photo(io.BytesIO(files["image.png"]))
            extras = _read_extras(files["extras.npz"]) if manifest["extras"] else {}
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
        same = (
            "model",
            "method",
            "settings",
            "seed",
            "target",
            "label",
            "probability",
            "value",
            "asked",
            "name",
            "source",
        )
        return cls(
            map=torch.from_numpy(array),
            prediction=Prediction(**manifest["prediction"]),
            image=image,
            against=tuple(manifest["against"]),
            rivals=tuple(manifest["rivals"]),
            names=tuple(manifest.get("classes", ())),
            only=tuple(manifest.get("only", ())),
            among=tuple(manifest.get("among", ())),
            created=manifest["created"],
            identity=manifest.get("identity"),
            checkup=Checkup.from_json(manifest["check"]) if "check" in manifest else None,
            box=None if manifest["box"] is None else tuple(manifest["box"]),
            extras={name: torch.from_numpy(value) for name, value in extras.items()},
            **{name: manifest[name] for name in same},
        )

    @property
    def _array(self) -> np.ndarray[Any, Any]:
        return self.map.numpy()

    def _photo(self) -> Image.Image:
        if self.photo is not None:
            return self.photo
        if self.source is None:
            raise ImageError("the original photograph was not kept")
        return open_photo(self.source)


def display(image: Image.Image) -> None:
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        image.show()
    else:
        display(image) if get_ipython() is not None else image.show()


def _read_map(data: bytes) -> np.ndarray[Any, Any]:
    """Return a map that means something: real, finite, ``[h, w]``; its header is held against what is there."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if len(shape) != 2 or 0 in shape or dtype not in (np.float32, np.float64):
        raise ValueError(f"a map is [h, w] in float32 or float64, not {list(shape)} of {dtype}")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"it is not as long as {list(shape)} of {dtype}")
    flat: np.ndarray[Any, Any] = np.frombuffer(data, dtype, offset=file.tell())
    array: np.ndarray[Any, Any] = flat.reshape(shape, order="F" if fortran else "C").copy()
    if not np.isfinite(array).all():
        raise ValueError("the map has values that are not finite")
    return array


def _read_extras(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(each.file_size for each in archive.infolist())
    if size > _MOST_BYTES:
        raise ValueError(f"the extras take {size} bytes")
    extras = dict(np.load(io.BytesIO(data), allow_pickle=False))
    strange = [name for name, value in extras.items() if value.dtype.kind not in "fiub"]
    if strange:
        raise ValueError(f"{strange[0]} holds {extras[strange[0]].dtype}")
    return extras


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("vitreous", "torch", "timm", "numpy", "pillow"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            from vitreous import __version__

            versions[package] = __version__ if package == "vitreous" else "unknown"
    return versions
