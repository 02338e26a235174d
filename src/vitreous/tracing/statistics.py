"""What activations are usually like: mean and deviation per layer, token and channel, over some images.

Batches are merged after Chan, Golub and LeVeque, so the numbers do not depend on how the images were cut into batches,
and a collection can stop and go on. The file is safetensors; reading it runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vitreous import io as disk
from vitreous.errors import ModelError, VitreousError, one_line
from vitreous.models import Snapshot, VisionModel
from vitreous.models.identity import fingerprint_of
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.records import Activation, Pass, Record
from vitreous.tracing.runner import run_for_targets
from vitreous.tracing.targets import Target

_FORMAT = "vitreous.statistics/2"
_ACTIVE = 0.01


class Moments(NamedTuple):
    """Mean ``[N, D]``, sum of squared deviations ``[N, D]``, and of how many values each.

    ``nonzero`` counts the values that were not zero, where someone may ask: where blocks do not add to one stream.
    """

    mean: Tensor
    square: Tensor
    n: int
    nonzero: Tensor | None = None

    @property
    def std(self) -> Tensor:
        """The unbiased deviation."""
        return (self.square / (self.n - 1)).sqrt()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it holds, in one precision."""
        return (self.mean, self.square, *(() if self.nonzero is None else (self.nonzero.to(self.mean),)))

    @property
    def active(self) -> Tensor:
        """Where more than 1 % of the values were not zero; where they were not counted, any of them."""
        if self.nonzero is None:
            return (self.mean != 0) | (self.square != 0)
        return self.nonzero > _ACTIVE * self.n

    def merge(self, more: Moments) -> Moments:
        """Return the moments of both sets of values together."""
        n, apart = self.n + more.n, more.mean.double() - self.mean.double()
        mean = self.mean.double() + apart * (more.n / n)
        nonzero = None if self.nonzero is None or more.nonzero is None else self.nonzero + more.nonzero
        return Moments(mean, self.square.double() + more.square + apart**2 * (self.n * more.n / n), n, nonzero)

    def pooled(self) -> Moments:
        """Return the moments over all tokens, ``[1, D]``."""
        mean = self.mean.double().mean(dim=0, keepdim=True)
        square = self.square.double() + self.n * (self.mean.double() - mean) ** 2
        nonzero = None if self.nonzero is None else self.nonzero.sum(dim=0, keepdim=True)
        return Moments(mean, square.sum(dim=0, keepdim=True), self.n * len(self.mean), nonzero)

    def check(self) -> Moments:
        """Return these moments, or refuse what none of ours would be."""
        mean, square, nonzero = self.mean, self.square, self.nonzero
        fits = mean.ndim == 2 and mean.shape == square.shape and mean.is_floating_point() and square.is_floating_point()
        fits = fits and (nonzero is None or (nonzero.shape == mean.shape and not nonzero.is_floating_point()))
        if not fits or self.n < 1 or not (mean.isfinite().all() and square.isfinite().all() and (square >= 0).all()):
            raise ValueError(f"moments of shape {list(mean.shape)} over {self.n} images are not finite, or negative")
        return self


@dataclass(frozen=True, eq=False)
class ActivationStats:
    """Mean and deviation of a model's activations over some images of one size, at every layer.

    Parameters
    ----------
    model : str
        The name of the model.
    size : tuple of int
        Height and width of the images.
    source : str
        What the images were: ``"images"``, ``"noise"`` or ``"world"``.
    count : int
        How many images were averaged.
    moments : mapping of (str, int) to Moments
        Mean, sum of squared deviations and count for each hook point and layer.
    num_seen : int, default 0
        How many images were looked at, those that could not be read included.
    images_digest : str, default ""
        A digest of these images: with both a collection goes on where it stopped. (Those of the world have a seal.)
    path : str, optional
        The file they were read from.
    model_digest : str, default ""
        A digest of the weights, the preprocessing and the precision they were made with.

    Examples
    --------
    >>> stats = vt.collect_activation_stats(model, noise=10)
    >>> stats.description
    'noise:10'
    """

    model: str
    size: tuple[int, int]
    source: str
    count: int
    moments: Mapping[tuple[str, int], Moments] = field(repr=False)
    num_seen: int = 0
    images_digest: str = ""
    path: str | None = None
    model_digest: str = ""
    _compared: set[str] = field(default_factory=set, init=False, repr=False)
    """Digests of models of this process, by every byte of their weights."""

    @property
    def description(self) -> str:
        """What they were made from, in a word: ``"images:200"``."""
        return f"{self.source}:{self.count}"

    def __str__(self) -> str:
        return self.path or self.description

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ActivationStats):
            return NotImplemented
        return (self._facts, self.moments.keys()) == (other._facts, other.moments.keys()) and all(
            torch.equal(one.double(), another.double())
            for key, moments in self.moments.items()
            for one, another in zip(moments.tensors, other.moments[key].tensors, strict=True)
        )

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[object, ...]:
        return self.model, self.size, self.source, self.count, self.model_digest

    @property
    def fingerprint(self) -> str:
        """A digest of the numbers themselves."""
        named = {
            f"{point}.{layer}.{moments.n}": torch.stack(moments.tensors)
            for (point, layer), moments in self.moments.items()
        }
        return fingerprint_of(sorted(named.items(), key=lambda pair: pair[0]))

    # -- making ----------------------------------------------------------------------------------------

    def merge(self, other: ActivationStats) -> ActivationStats:
        """Return the statistics of both sets of images together."""
        if self._facts[:3] != other._facts[:3] or self.model_digest != other.model_digest:
            both = (f"{stats.source} of {stats.size[0]} x {stats.size[1]} in {stats.model}" for stats in (self, other))
            raise VitreousError(f"statistics of {' and of '.join(both)} cannot be merged")
        moments = {key: moment.merge(other.moments[key]) for key, moment in self.moments.items()}
        return replace(self, count=self.count + other.count, moments=moments, path=None)

    def pooled(self) -> ActivationStats:
        """Return the statistics over all tokens of a layer: no longer bound to positions, input size or settings."""
        moments = {key: moment.pooled() for key, moment in self.moments.items()}
        return replace(self, moments=moments, path=None, model_digest="")

    # -- using -----------------------------------------------------------------------------------------

    def of(self, model: VisionModel, size: Sequence[int], point: str, layer: int) -> Moments:
        """Return the moments of a place, or say why these statistics are not those of this model and input size."""
        if self.model != model.name:
            raise ModelError(f"the statistics {self} are those of {self.model}, not of {model.name}")
        moments = self.moments.get((point, layer))
        if moments is None:
            raise ModelError(f"the statistics {self} have no {point} of layer {layer}")
        if self.count < 2:
            raise VitreousError(f"the statistics {self} are of {self.count} image: there is no deviation; take more")
        if len(moments.mean) > 1 and self.size != tuple(size):
            own, other = (f"{height} x {width}" for height, width in (self.size, size))
            raise ModelError(f"the statistics {self} were made at {own}, the input is {other}; pool them over tokens")
        if self.model_digest and not self._is_of(model):
            raise ModelError(f"the statistics {self} were made with other weights or settings of {model.name}")
        return moments

    def _is_of(self, model: VisionModel) -> bool:
        """Whether a model is the one they were made with; every byte of its weights is compared once."""
        digest = digest_of_model(model, recent=self.model_digest in self._compared)
        self._compared.add(digest)
        return digest == self.model_digest

    # -- files -----------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, overwrite: bool = False, held: bool = False) -> Path:
        """Write a safetensors file, or nothing at all.

        Parameters
        ----------
        path : str or Path
            Where to.
        overwrite : bool, default False
            Whether a file that is there may be replaced.
        held : bool, default False
            Whether the caller has the file's lock.

        Returns
        -------
        Path
            The file.
        """
        facts = {"format": _FORMAT, "size": f"{self.size[0]}x{self.size[1]}", "count": str(self.count)}
        facts |= {"taken": str(self.num_seen), "pictures": self.images_digest, "maker": self.model_digest}
        tensors: dict[str, Tensor] = {}
        for (point, layer), moments in self.moments.items():
            values = moments.mean, moments.square, torch.tensor(moments.n), moments.nonzero
            for name, value in zip(_KEYS, values, strict=True):
                if value is not None:
                    tensors[f"{point}.{layer}.{name}"] = value.contiguous()
        content = save(tensors, {**facts, "model": self.model, "source": self.source})
        disk.write_file(path, content, overwrite=overwrite, held=held)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> ActivationStats:
        """Read a file that ``save`` wrote.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        ActivationStats
            What it holds.

        Raises
        ------
        VitreousError
            If there is no such file, or it holds anything else.
        """
        if not os.path.isfile(path):
            raise VitreousError(f"no statistics at {path}; `vitreous stats` makes them")
        try:
            with safe_open(path, "pt") as file:
                facts = file.metadata() or {}
                if facts.get("format") != _FORMAT:
                    raise ValueError(f"its format is {facts.get('format')!r}, not {_FORMAT!r}")
                moments, names = {}, {*file.keys()}
                for point, layer, key in (name.split(".") for name in names):
                    if key == "mean":
                        keys = [f"{point}.{layer}.{key}" for key in _KEYS]
                        mean, square, n = (file.get_tensor(key) for key in keys[:3])
                        nonzero = file.get_tensor(keys[3]) if keys[3] in names else None
                        moments[point, int(layer)] = Moments(mean, square, int(n), nonzero).check()
            height, width = facts["size"].split("x")
            return cls(
                facts["model"], (int(height), int(width)), facts["source"], int(facts["count"]), moments,
                int(facts["taken"]), facts["pictures"], str(path), facts["maker"],
            )  # fmt: skip
        except Exception as error:  # foreign bytes can break a reader anywhere
            reason = one_line(f"{type(error).__name__}: {error}")[:160]
            raise VitreousError(f"{path} holds no statistics that can be read ({reason})") from error


_KEYS = ("mean", "square", "n", "other")
"""What a file calls the fields of moments."""


def digest_of_model(model: VisionModel, recent: bool = False) -> str:
    """Return a digest of what activations depend on beside the images: the model's identity and its precision.

    Every byte of the weights is read; with ``recent``, only where they seem to have changed since the last time.
    """
    snapshot = Snapshot(model)
    facts = [str(snapshot.recent if recent else snapshot.identity), str(model.dtype)]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def statistics_of(
    model: VisionModel, inputs: Tensor, source: str, points: Sequence[str] | None = None
) -> ActivationStats:
    """Return the statistics of one batch ``[B, 3, H, W]`` that fits into memory. Cost: one forward per image.

    Of each block they are those of the first norm's output and of the residual stream after it, or of these points.
    """
    points = (model.branch_point, "resid_post") if points is None else points
    layers = tuple(range(model.depth))
    records = tuple(Record(point, _batch_moments, layers, grad=False) for point in dict.fromkeys(points))
    (cache,) = run_for_targets(model, model.cast(inputs), Pass(records), [Target()])
    moments = {}
    for record in records:
        for layer, value in zip(layers, cache[record], strict=True):
            mean, square, *nonzero = value.double().cpu()
            moments[record.point, layer] = Moments(mean, square, len(inputs), *(count.long() for count in nonzero))
    height, width = inputs.shape[-2:]
    digest = digest_of_model(model, recent=True)
    return ActivationStats(model.name, (height, width), source, len(inputs), moments, model_digest=digest)


def noise(model: VisionModel, count: int, size: Sequence[int], seed: int, batch: int) -> Iterator[Tensor]:
    """Yield batches of images of uniform noise, normalised as the model's own preprocessing does."""
    draws = PRNGKey.of(seed, "noise")
    for first in range(0, count, batch):
        places = torch.arange(first, min(count, first + batch))
        yield model.preprocess.normalize(PRNGKey(draws.keys.expand(len(places))).at(places).uniform(3, *size))


def _batch_moments(a: Activation) -> Tensor:
    """Mean and sum of squared deviations over the images of a batch, and how many are not zero: ``[2 or 3, N, D]``."""
    value = a.value
    mean = value.mean(dim=0)
    counted = [] if a.model.has_residual_stream else [(value != 0).sum(dim=0).to(mean)]
    return torch.stack([mean, ((value - mean) ** 2).sum(dim=0), *counted])
