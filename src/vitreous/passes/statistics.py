"""What activations are usually like: mean and deviation per layer, token and channel, over some images.

Batches are merged after Chan, Golub and LeVeque, so the numbers do not depend on how the images were cut into batches,
and a collection can stop and go on. The file is safetensors; reading it runs no code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitreous.errors import ModelError, VitreousError, one_line
from vitreous.models import View
from vitreous.passes.ask import Keep, Pass
from vitreous.passes.runner import run
from vitreous.passes.target import Target

__all__ = ["Moments", "Statistics", "branch_site", "noise", "statistics_of"]

_FORMAT = "vitreous.statistics/1"


class Moments(NamedTuple):
    """Mean ``[N, D]``, sum of squared deviations ``[N, D]``, and of how many values each."""

    mean: Tensor
    square: Tensor
    n: int

    @property
    def std(self) -> Tensor:
        """The unbiased deviation."""
        return (self.square / (self.n - 1)).sqrt()

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together."""
        n, apart = self.n + other.n, other.mean.double() - self.mean.double()
        mean = self.mean.double() + apart * (other.n / n)
        return Moments(mean, self.square.double() + other.square + apart**2 * (self.n * other.n / n), n)

    def pooled(self) -> Moments:
        """Return the moments over all tokens, ``[1, D]``."""
        mean = self.mean.double().mean(dim=0, keepdim=True)
        square = self.square.double() + self.n * (self.mean.double() - mean) ** 2
        return Moments(mean, square.sum(dim=0, keepdim=True), self.n * len(self.mean))


@dataclass(frozen=True, eq=False)
class Statistics:
    """Mean and deviation of a model's activations over ``count`` images of one size, at every layer.

    ``source`` says what the images were: ``"images"`` or ``"noise"``. ``taken`` counts the pictures that were looked
    at, those that could not be read included, and ``names`` is a digest of their names: with them a collection goes on
    where it stopped.
    """

    model: str
    size: tuple[int, int]
    source: str
    count: int
    moments: Mapping[tuple[str, int], Moments] = field(repr=False)
    taken: int = 0
    names: str = ""
    path: str | None = None

    @property
    def told(self) -> str:
        """What they were made from, in a word: ``"images:200"``."""
        return f"{self.source}:{self.count}"

    def __str__(self) -> str:
        return self.path or self.told

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        same = (self._facts, self.moments.keys()) == (other._facts, other.moments.keys())
        return same and all(
            torch.equal(mine.float(), theirs.float())
            for key, moments in self.moments.items()
            for mine, theirs in zip(moments[:2], other.moments[key][:2], strict=True)
        )

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.model, self.size, self.source, self.count

    # -- making ----------------------------------------------------------------------------------------

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both sets of images together."""
        if (self.model, self.size, self.source) != (other.model, other.size, other.source):
            ours, theirs = (f"{s.source} of {s.size[0]} x {s.size[1]} in {s.model}" for s in (self, other))
            raise VitreousError(f"statistics of {ours} and of {theirs} cannot be merged")
        moments = {key: each.merge(other.moments[key]) for key, each in self.moments.items()}
        return replace(self, count=self.count + other.count, moments=moments, path=None)

    def pooled(self) -> Statistics:
        """Return the statistics over all tokens of a layer: no longer bound to positions or to one input size."""
        return replace(self, moments={key: each.pooled() for key, each in self.moments.items()}, path=None)

    # -- using -----------------------------------------------------------------------------------------

    def of(self, view: View, size: Sequence[int], site: str, layer: int) -> Moments:
        """Return the moments of a place, or say why these statistics are not those of this model and input size."""
        if self.model != view.name:
            raise ModelError(f"the statistics {self} are those of {self.model}, not of {view.name}")
        found = self.moments.get((site, layer))
        if found is None:
            raise ModelError(f"the statistics {self} have no {site} of layer {layer}")
        if self.count < 2:
            raise VitreousError(f"the statistics {self} are of {self.count} image: there is no deviation; take more")
        if len(found.mean) > 1 and self.size != tuple(size):
            made, given = (f"{high} x {wide}" for high, wide in (self.size, size))
            raise ModelError(f"the statistics {self} were made at {made}, the input is {given}; pool them over tokens")
        return found

    # -- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file, whole or not at all."""
        path = Path(path)
        facts = {"format": _FORMAT, "model": self.model, "size": f"{self.size[0]}x{self.size[1]}"}
        facts |= {"source": self.source, "count": str(self.count), "taken": str(self.taken), "names": self.names}
        tensors = {}
        for (site, layer), moments in self.moments.items():
            tensors[f"{site}.{layer}.mean"] = moments.mean.float().contiguous()
            tensors[f"{site}.{layer}.square"] = moments.square.float().contiguous()
            tensors[f"{site}.{layer}.n"] = torch.tensor(moments.n)
        partial = path.with_name(f".{path.name}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file(tensors, partial, facts)
            os.replace(partial, path)
        except Exception as error:  # safetensors has errors of its own
            raise VitreousError(one_line(f"could not write {path}: {error}")) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Statistics:
        """Read a file that ``save`` wrote."""
        if not os.path.isfile(path):
            raise VitreousError(f"no statistics at {path}; `vitreous stats` makes them")
        try:
            with safe_open(path, "pt") as file:
                facts = file.metadata() or {}
                if facts.get("format") != _FORMAT:
                    raise ValueError(f"its format is {facts.get('format')!r}, not {_FORMAT!r}")
                moments = {}
                for name in file.keys():  # noqa: SIM118 - not a dict
                    site, layer, what = name.split(".")
                    if what == "mean":
                        mean, square, n = (file.get_tensor(f"{site}.{layer}.{each}") for each in Moments._fields)
                        moments[site, int(layer)] = Moments(mean, square, int(n))
                high, wide = facts["size"].split("x")
                whole = (int(facts["count"]), moments, int(facts["taken"]), facts["names"], str(path))
                return cls(facts["model"], (int(high), int(wide)), facts["source"], *whole)
        except Exception as error:  # foreign bytes can break a reader anywhere
            reason = one_line(f"{type(error).__name__}: {error}")[:160]
            raise VitreousError(f"{path} holds no statistics that can be read ({reason})") from error


def branch_site(view: View) -> str:
    """Return the place of a block's first norm: ``norm1``, or ``attn`` where the norm ends the branch instead."""
    try:
        view.site(0, "norm1")
    except ModelError:
        return "attn"
    return "norm1"


def statistics_of(view: View, inputs: Tensor, source: str) -> Statistics:
    """Return the statistics of one batch ``[B, 3, H, W]`` that fits into memory. Cost: one forward per image.

    Written down are the output of each block's first norm, and the residual stream after the block.
    """
    keeps = tuple(Keep(site, _batch_moments, tuple(range(view.depth))) for site in (branch_site(view), "output"))
    trace = run(view, view.cast(inputs), Pass(keeps), Target())
    moments = {
        (keep.site, layer): Moments(found[0].double().cpu(), found[1].double().cpu(), len(inputs))
        for keep in keeps
        for layer, found in zip(keep.layers, trace[keep], strict=True)
    }
    high, wide = inputs.shape[-2:]
    return Statistics(view.name, (high, wide), source, len(inputs), moments)


def noise(view: View, count: int, size: Sequence[int], seed: int, batch: int) -> Iterator[Tensor]:
    """Yield batches of images of uniform noise, normalised as the model's own preprocessing does."""
    random = torch.Generator().manual_seed(seed)
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (view.preprocess.mean, view.preprocess.std))
    for first in range(0, count, batch):
        pixels = torch.rand(min(batch, count - first), 3, *size, generator=random)
        yield (pixels - mean) / std


def _batch_moments(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """Mean and sum of squared deviations over the images of a batch: ``[2, N, D]``."""
    value = value if value.dtype == torch.float64 else value.float()
    mean = value.mean(dim=0)
    return torch.stack([mean, ((value - mean) ** 2).sum(dim=0)])
