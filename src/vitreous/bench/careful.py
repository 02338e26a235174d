"""Methods of others in a long run: one that fails on some pictures must not take the rest along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitreous.data import Sample
from vitreous.errors import ModelChangedError, one_line
from vitreous.judge.foreign import Foreign
from vitreous.methods import Method
from vitreous.models import View

__all__ = ["Careful", "careful"]


def careful(how: Method | Foreign) -> Method | Foreign:
    """Return a method as it is if it is ours, or else one that notes where it fails."""
    return Careful(how.find, how.what, how.live, how.bound) if isinstance(how, Foreign) else how


@dataclass(frozen=True, eq=False)
class Careful(Foreign):
    """Pictures on which it fails, asked for by themselves, have a map of NaN; ``raised`` says why, by their names.

    Where it fails on all that it is asked about, the error is raised: then it is the method, and no picture.
    """

    raised: dict[str, str] = field(default_factory=dict)

    def maps(self, name: str, view: View, samples: Sequence[Sample], inputs: Tensor, classes: Tensor) -> Tensor:
        """Return maps ``[B, h, w]``, all at once or, if that fails, one by one."""
        try:
            return super().maps(name, view, samples, inputs, classes)
        except (torch.OutOfMemoryError, ModelChangedError):
            raise
        except Exception as error:
            first = error
        found: list[Tensor | None] = []
        raised: dict[str, str] = {}
        for at, sample in enumerate(samples):
            own = slice(at, at + 1)
            try:
                found.append(super().maps(name, view, [sample], inputs[own], classes[own]))
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
