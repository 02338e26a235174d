"""What the rows of a protocol mean: methods, folders of maps, callables.

Methods of others in a long run: one that fails on some pictures must not take the rest along.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.benchmark.units import digest_of
from vitreous.code_digest import code_digest, is_unknown
from vitreous.datasets import Sample, file_digest
from vitreous.errors import ModelChangedError, SpecError, one_line
from vitreous.evaluation.explainers import ExternalExplainer, named
from vitreous.methods import Method
from vitreous.models import VisionModel

__all__ = [
    "Careful",
    "careful",
    "is_code",
    "mark_of",
    "method_of",
]


def is_code(text: str) -> bool:
    """Whether a method is a callable to be imported, written ``package.module:name``."""
    place, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in place.split("."))


def method_of(text: str, imports: Collection[str] = ()) -> Method | ExternalExplainer:
    """Understand a spelling, a folder of maps, or a callable as ``package.module:name``.

    A callable is imported only if it is one of ``imports``, those that the user has named: the files of a run name
    callables too, and may be from anybody.
    """
    if is_code(text):
        if text not in imports:
            raise SpecError(f"{one_line(text)} is code to import, which this command does not name")
        (how,) = named({text: _imported(text)}).values()
        return how
    (how,) = named([text]).values()
    return how


def _imported(text: str) -> Any:
    place, _, name = text.partition(":")
    try:
        return getattr(import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(f"{text} is no callable that can be imported: {error}") from None


def mark_of(text: str, how: Method | ExternalExplainer) -> str:
    """Return a digest of what a method is made of: its parameters, the maps of a folder, the code of a callable."""
    if isinstance(how, Method):
        return how.fingerprint
    if not how.live:
        return digest_of([[file.name, file_digest(str(file))] for file in sorted(Path(text).glob("*.npy"))])
    code = code_digest(_imported(text))
    return code if is_unknown(code) else digest_of([text, code])


def careful(how: Method | ExternalExplainer) -> Method | ExternalExplainer:
    """Return a method as it is if it is ours, or else one that notes where it fails."""
    return Careful(how.find, how.what, how.live, how.bound) if isinstance(how, ExternalExplainer) else how


@dataclass(frozen=True, eq=False)
class Careful(ExternalExplainer):
    """Pictures on which it fails, asked for by themselves, have a map of NaN; ``raised`` says why, by their names.

    Where it fails on all that it is asked about, the error is raised: then it is the method, and no picture.
    """

    raised: dict[str, str] = field(default_factory=dict)

    def maps(self, name: str, model: VisionModel, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Tensor:
        """Return maps ``[B, h, w]``, all at once or, if that fails, one by one."""
        try:
            return super().maps(name, model, samples, inputs, classes)
        except (torch.OutOfMemoryError, ModelChangedError):
            raise
        except Exception as error:
            first = error
        found: list[Tensor | None] = []
        raised: dict[str, str] = {}
        for at, sample in enumerate(samples):
            own = slice(at, at + 1)
            try:
                found.append(super().maps(name, model, [sample], inputs[own], classes[own]))
            except (torch.OutOfMemoryError, ModelChangedError):
                raise
            except Exception as error:
                found.append(None)
                raised[sample.picture.name] = one_line(f"{type(error).__name__}: {error}")[:300]
        there = next((each for each in found if each is not None), None)
        if there is None:
            raise first
        self.raised.update(raised)
        return torch.cat([torch.full_like(there, torch.nan) if each is None else each for each in found])
