"""Results as files: one way to make plain data of them, to write it, to read it, and to say what is wrong with it.

What a result is an answer to: a digest of everything that can change one of its numbers, never a name.

What a saved explanation is read from: arrays that are held against what they should be.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from vitreous import io as disk
from vitreous.errors import VitreousError
from vitreous.methods import Method
from vitreous.models import Snapshot, VisionModel

__all__ = [
    "Identity",
    "MOST_BYTES",
    "Question",
    "no_number",
    "plain",
    "read_extras",
    "read_map",
    "record",
    "versions",
    "write",
]


def plain(value: Any) -> Any:
    """Return plain data, arrays as lists; a number that is not finite is ``None``."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def record(path: str | Path, schema: str, what: str) -> Iterator[dict[str, Any]]:
    """Give the data of a file of a form to those who read it; what is wrong with it is one line that names the file."""
    try:
        data = json.loads(Path(path).read_bytes().decode(errors="surrogateescape"))
        if data.get("schema") != schema:
            raise VitreousError(f"{path} is no {what} of the form {schema}, but {data.get('schema')!r}")
        yield data
    except OSError as error:
        raise VitreousError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise VitreousError(f"{path} is no {what}: {type(error).__name__} {error}") from None


def write(path: str | Path, texts: Mapping[str, Callable[[], str]], *, overwrite: bool = False) -> Path:
    """Write the text that belongs to the ending of a path, whole or not at all."""
    path = Path(path)
    if path.suffix not in texts:
        raise VitreousError(f"{path} must end in {' or '.join(texts)}")
    disk.write_file(path, texts[path.suffix]().encode(errors="surrogateescape"), overwrite=overwrite)
    return path


@dataclass(frozen=True)
class Question:
    """What is asked of a picture. Two questions about one picture are two results, however alike their names.

    ``target`` is ``None`` for the predicted class, ``classes`` those that the softmax is restricted to. ``facts`` are
    those of the model: its identity, its precision and kind of device.
    """

    facts: Mapping[str, str]
    method: str
    target: int | None
    contrast: tuple[int, ...]
    output: str
    class_subset: tuple[int, ...] | None
    compare_classes: tuple[int, ...]
    grid: str | None
    seed: int

    @classmethod
    def of(
        cls,
        model: VisionModel,
        how: Method,
        target: int | None,
        contrast: tuple[int, ...] = (),
        output: str = "logit",
        class_subset: tuple[int, ...] | None = None,
        compare_classes: tuple[int, ...] = (),
        grid: str | None = None,
        seed: int = 0,
        snapshot: Snapshot | None = None,
    ) -> Question:
        """Put a question to a model; its weights are read when an answer is looked for or stored.

        ``snapshot`` is what the model was when it was answered.
        """
        facts = _Facts(snapshot or Snapshot.of_question(model), str(model.dtype), model.device.type)
        return cls(
            facts,
            how.fingerprint,
            target,
            contrast,
            " and ".join(how.outputs(output)),
            class_subset,
            compare_classes,
            grid,
            seed,
        )

    def digest(self, picture: str, target: int | None) -> str:
        """Return the identity of the answer for one picture and the class that was explained in the end."""
        told = {**vars(self), "facts": dict(self.facts), "picture": picture, "target": target}
        return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), digest_size=16).hexdigest()

    def identity(self, picture: str, target: int | None) -> dict[str, str]:
        """Return what a manifest keeps of it."""
        return {"question": self.digest(picture, target), "picture": picture, "weights": self.facts["weights"]}

    def answered_by(self, manifest: Mapping[str, Any], picture: str) -> bool:
        """Whether a result answers this question about a picture."""
        try:
            target, predicted = manifest["target"], manifest["prediction"]["target"]
            asked = manifest["identity"]["question"]
        except (KeyError, TypeError):
            return False
        wanted = predicted if self.target is None else self.target
        return bool(target == wanted and asked == self.digest(picture, target))


class _Lazy(Mapping[str, str]):
    """Words that are found out the first time that someone looks at them."""

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        raise NotImplementedError

    def __getitem__(self, name: str) -> str:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # another process has no model to look at


class _Facts(_Lazy):
    """The facts of a model: its weights are read once for all questions that were asked of it before."""

    def __init__(self, snapshot: Snapshot, dtype: str, device: str) -> None:
        self._snapshot, self._known = snapshot, {"dtype": dtype, "device": device}

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        return {"weights": str(self._snapshot.identity), **self._known}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Facts) and self._snapshot is other._snapshot:
            return self._known == other._known
        return super().__eq__(other)


class Identity(_Lazy):
    """The identity of an answer in memory: the weights are read once for all answers of a batch."""

    def __init__(self, question: Question, picture: str, target: int | None) -> None:
        self._question, self._picture, self._target = question, picture, target

    @cached_property
    def _parts(self) -> Mapping[str, str]:
        return self._question.identity(self._picture, self._target)

    def __getitem__(self, name: str) -> str:
        return self._picture if name == "picture" else self._parts[name]


MOST_BYTES = 2**31  # of a file that is read


def read_map(data: bytes) -> np.ndarray[Any, Any]:
    """Return a map that means something: real, finite, ``[h, w]``; its header is held against what is there."""
    file = io.BytesIO(data)
    kind = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if kind == (1, 0) else np.lib.format.read_array_header_2_0
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


def read_extras(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(each.file_size for each in archive.infolist())
    if size > MOST_BYTES:
        raise ValueError(f"the extras take {size} bytes")
    extras = dict(np.load(io.BytesIO(data), allow_pickle=False))
    strange = [name for name, value in extras.items() if value.dtype.kind not in "fiub"]
    if strange:
        raise ValueError(f"{strange[0]} holds {extras[strange[0]].dtype}")
    return extras


def no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def versions() -> dict[str, str]:
    """Return the versions of what an explanation is made with."""
    found = {"python": platform.python_version()}
    for package in ("vitreous", "torch", "timm", "numpy", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            from vitreous import __version__

            found[package] = __version__ if package == "vitreous" else "unknown"
    return found
