"""What is explained: one number per image, read from the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Union

import torch
from torch import Tensor

from vitreous.errors import TargetError
from vitreous.models import VisionModel

__all__ = [
    "VALUES",
    "ClassSets",
    "ClassSpec",
    "Target",
    "TargetSpec",
    "Targets",
    "check_value",
    "class_logits",
    "plain_target",
    "probabilities",
    "restriction",
]

VALUES = ("logit", "prob", "logprob")

ClassSpec = Union[int, str]  # noqa: UP007 - evaluated at run time on Python 3.10
"""A class by index, label or synonym."""

TargetSpec = Union[ClassSpec, Sequence[ClassSpec], Tensor, Callable[[Tensor], Tensor], None]  # noqa: UP007
"""What users may pass as ``target``; ``None`` and ``"pred"`` mean the predicted class of each image."""


def check_value(value: str) -> None:
    """Refuse a word that is no value of a class."""
    if value not in VALUES:
        raise TargetError(f"value {value!r} is not one of {', '.join(VALUES)}")


@dataclass(frozen=True, eq=False)
class Target:
    """The explained number ``s(c) - mean over a in against of s(a)``, with ``s`` the logit, probability or log p.

    ``classes`` is ``[B]`` (``None`` until the prediction is known), ``against`` is ``[B, K]``. A head of one logit
    tells two classes apart: class 1 is explained by ``+logit``, class 0 by ``-logit``. ``only`` are the classes that
    the softmax, the prediction and sets of probable classes are restricted to; ``among`` is ``[B, K]``, a set of
    classes of each image's own to compare (-1 where it has fewer). ``function`` replaces all of it by a user's own
    ``logits [B, C] -> [B]``.
    """

    classes: Tensor | None = None
    against: Tensor | None = None
    value: str = "logit"
    only: tuple[int, ...] | None = None
    among: Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_value(self.value)

    @classmethod
    def of(
        cls,
        view: VisionModel,
        batch: int,
        target: TargetSpec = None,
        against: TargetSpec = None,
        value: str = "logit",
        only: Sequence[ClassSpec] | None = None,
        among: Any = None,
    ) -> Target:
        """Understand what a user asked for, or say which part cannot be meant."""
        target, against = plain_target(target), plain_target(against)
        if callable(target):
            if against is not None:
                raise TargetError("against= cannot be combined with a callable target")
            return cls(value=value, function=target, only=restriction(view, only))
        rivals = None
        if against is not None:
            if isinstance(against, str | int):
                against = [against]
            if callable(against):
                raise TargetError("against= takes a class or a list of classes, not a callable")
            if not isinstance(against, Iterable):
                raise TargetError(f"against={against!r} is neither a class nor a list of classes")
            rivals = torch.tensor([view.class_index(_plain(a)) for a in against]).expand(batch, -1)
            if rivals.shape[1] == 0:
                raise TargetError("against= names no class")
        allowed = restriction(view, only)
        made = cls(_classes(view, batch, target), rivals, value, allowed, class_sets(view, batch, among))
        for name, given in (("target", made.classes), ("against", made.against)):
            if allowed is not None and given is not None and not set(given.flatten().tolist()) <= set(allowed):
                raise TargetError(f"a {name} class is not among the {len(allowed)} classes of the softmax")
        return made

    def given(self, logits: Tensor) -> Target:
        """Return the same target with the predicted class filled in."""
        if self.classes is not None or self.function is not None:
            return self
        return replace(self, classes=class_logits(logits, self.only).argmax(dim=1).cpu())

    def part(self, start: int, stop: int) -> Target:
        """Return the target of images ``start .. stop - 1``."""
        return replace(
            self,
            classes=None if self.classes is None else self.classes[start:stop],
            against=None if self.against is None else self.against[start:stop],
            among=None if self.among is None else self.among[start:stop],
        )

    def repeat(self, times: int) -> Target:
        """Return the target of every image repeated ``times`` times, copies of an image next to each other."""
        return replace(
            self,
            classes=None if self.classes is None else self.classes.repeat_interleave(times),
            against=None if self.against is None else self.against.repeat_interleave(times, dim=0),
            among=None if self.among is None else self.among.repeat_interleave(times, dim=0),
        )

    def rows(self, images: Tensor) -> Target:
        """Return the target of these images ``[k]``, in this order, each as often as it is named."""
        index = images.cpu()
        return replace(
            self,
            classes=None if self.classes is None else self.classes[index],
            against=None if self.against is None else self.against[index],
            among=None if self.among is None else self.among[index],
        )

    def score(self, logits: Tensor) -> Tensor:
        """Return the explained number of each image, ``[B]``, differentiable."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.function is not None:
            score = self.function(logits)
            if not isinstance(score, Tensor) or score.shape != logits.shape[:1]:
                raise TargetError(f"a callable target must return one number per image, shape [{len(logits)}]")
            return score
        target = self.given(logits)
        assert target.classes is not None
        values = _values(logits, self.value, self.only)
        rows = torch.arange(len(values), device=values.device)
        score = values[rows, target.classes.clone().to(values.device)]  # a clone is no longer an inference tensor
        if self.against is not None:
            score = score - values.gather(1, self.against.clone().to(values.device)).mean(dim=1)
        return score

    def slope(self, logits: Tensor) -> Tensor:
        """Return the gradient ``[B, C]`` of the explained numbers with respect to the logits."""
        with torch.inference_mode(False), torch.enable_grad():
            given = logits.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.score(given).sum(), given)
        return slope


class Targets:
    """What a user asked for over many images: one target for all of them, or one for each, from any iterable.

    Of an iterable no more is taken than there are images. An image that cannot be read keeps its target to itself.
    """

    def __init__(self, target: TargetSpec, total: int | None = None, noun: str = "targets") -> None:
        target = plain_target(target)
        shared = target is None or isinstance(target, str | int) or callable(target)
        if not shared and not isinstance(target, Iterable):
            raise TargetError(f"{target!r} is neither a class index nor a label, nor a list of them")
        if not shared and total is not None and hasattr(target, "__len__") and len(target) != total:
            raise TargetError(f"{len(target)} {noun} for {total} images")
        self.noun, self.shared, self.target = noun, shared, target
        self._each: Iterator[Any] = iter(() if shared else target)  # type: ignore[arg-type]
        self._taken = 0

    def at(self, places: Sequence[int]) -> Any:
        """Return the target of the images at these places, which only ever grow."""
        if self.shared:
            return self.target
        targets = []
        for place in places:
            each = next(islice(self._each, place - self._taken, None), _NONE)
            if each is _NONE:
                raise TargetError(f"there are fewer {self.noun} than images: none for image {place}")
            targets.append(each)
            self._taken = place + 1
        return targets

    def finish(self, total: int) -> None:
        """Complain if targets are left when the images are not."""
        if not self.shared and next(islice(self._each, total - self._taken, None), _NONE) is not _NONE:
            raise TargetError(f"there are more {self.noun} than the {total} images")

    def all(self) -> list[Any]:
        """Return every target once: the rows of a comparison."""
        return [self.target] if self.shared else list(self._each)


class ClassSets:
    """The classes to compare over many images: one set for all of them, or one for each."""

    def __init__(self, among: Any, total: int | None = None) -> None:
        self.shared = plain_target(among)
        several = isinstance(self.shared, list | tuple) and any(isinstance(e, list | tuple) for e in self.shared)
        self._each = Targets(self.shared, total, "sets of classes") if several else None

    def at(self, places: Sequence[int]) -> Any:
        """Return what ``class_sets`` takes for the images at these places."""
        return self.shared if self._each is None else self._each.at(places)

    def finish(self, total: int) -> None:
        """Complain if sets are left when the images are not."""
        if self._each is not None:
            self._each.finish(total)


_NONE = object()


def plain_target(target: Any) -> Any:
    """Return numbers and arrays of numpy and torch as Python's own; leave everything else."""
    return target.tolist() if hasattr(target, "tolist") else target


def restriction(view: VisionModel, only: Sequence[ClassSpec] | None) -> tuple[int, ...] | None:
    """Understand which classes the softmax is restricted to: indices in order, each once."""
    if only is None:
        return None
    if isinstance(only, str) or not isinstance(only, Iterable):
        raise TargetError(f"classes={only!r:.60} is not a list of classes")
    indices = sorted({view.class_index(_plain(each)) for each in only})
    if len(indices) < 2:
        raise TargetError(f"a softmax needs two classes at least, got {len(indices)}")
    return tuple(indices)


def class_sets(view: VisionModel, batch: int, among: Any) -> Tensor | None:
    """Understand the classes that are compared in each image: one list for all of them, or one for each."""
    if among is None:
        return None
    among = plain_target(among)
    several = isinstance(among, list | tuple) and bool(among) and all(isinstance(e, list | tuple) for e in among)
    rows = list(among) if several else [among] * batch
    if len(rows) != batch:
        raise TargetError(f"{len(rows)} sets of classes for {batch} images")
    if any(isinstance(row, str) or not isinstance(row, Iterable) for row in rows):
        raise TargetError(f"among={among!r:.60} is neither a list of classes nor one for each image")
    indices = [[view.class_index(_plain(word)) for word in row] for row in rows]
    longest = max(len(row) for row in indices)
    if longest == 0:
        raise TargetError("among= names no class")
    return torch.tensor([[*row, *[-1] * (longest - len(row))] for row in indices])


def probabilities(logits: Tensor, only: Sequence[int] | None = None) -> Tensor:
    """Return ``[B, C]`` class probabilities, zero outside ``only``; a head of one logit gives two columns."""
    return _values(logits.float(), "prob", only)


def class_logits(logits: Tensor, only: Sequence[int] | None = None) -> Tensor:
    """Return the logit of every class ``[B, C]``, minus infinity outside ``only``; a head of one logit has two."""
    return _shut(_values(logits if logits.dtype == torch.float64 else logits.float(), "logit"), only)


def _shut(logits: Tensor, only: Sequence[int] | None) -> Tensor:
    if only is None or logits.shape[1] == 1:
        return logits
    shut = torch.full_like(logits[:1], -torch.inf)
    shut[:, list(only)] = 0
    return logits + shut


def _values(logits: Tensor, value: str, only: Sequence[int] | None = None) -> Tensor:
    if logits.shape[1] == 1:
        # softmax of (0, z) has the log-odds z; centred at (-z, z) / 1 it is the sign that follows the class
        pair = torch.cat([-logits, logits], dim=1)
        if value == "logit":
            return pair
        log = torch.nn.functional.logsigmoid(pair)
    else:
        if value == "logit":
            return logits
        log = _shut(logits, only).log_softmax(dim=1)
    return log if value == "logprob" else log.exp()


def _classes(view: VisionModel, batch: int, target: TargetSpec) -> Tensor | None:
    if target is None or (isinstance(target, str) and target == "pred"):
        return None
    if isinstance(target, str | int):
        return torch.full((batch,), view.class_index(target))
    if callable(target) or not isinstance(target, Iterable):
        raise TargetError(f"{target!r} is neither a class index nor a label, nor a list of them")
    indices = [view.class_index(_plain(word)) for word in target]
    if len(indices) != batch:
        raise TargetError(f"{len(indices)} targets for {batch} images")
    return torch.tensor(indices)


def _plain(word: object) -> int | str:
    """Accept numpy and torch integers; refuse anything else that is neither index nor label."""
    if isinstance(word, str):
        return word
    if isinstance(word, float | bool) or not hasattr(word, "__index__"):
        raise TargetError(f"{word!r} is neither a class index nor a label")
    return word.__index__()  # type: ignore[no-any-return]
