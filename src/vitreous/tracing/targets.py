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


def check_value(output: str) -> None:
    """Refuse a word that is no value of a class."""
    if output not in VALUES:
        raise TargetError(f"value {output!r} is not one of {', '.join(VALUES)}")


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
    contrast: Tensor | None = None
    output: str = "logit"
    class_subset: tuple[int, ...] | None = None
    compare_classes: Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_value(self.output)

    @classmethod
    def of(
        cls,
        model: VisionModel,
        batch: int,
        target: TargetSpec = None,
        contrast: TargetSpec = None,
        output: str = "logit",
        class_subset: Sequence[ClassSpec] | None = None,
        compare_classes: Any = None,
    ) -> Target:
        """Understand what a user asked for, or say which part cannot be meant."""
        target, contrast = plain_target(target), plain_target(contrast)
        if callable(target):
            if contrast is not None:
                raise TargetError("contrast= cannot be combined with a callable target")
            return cls(output=output, function=target, class_subset=restriction(model, class_subset))
        rivals = None
        if contrast is not None:
            if isinstance(contrast, str | int):
                contrast = [contrast]
            if callable(contrast):
                raise TargetError("contrast= takes a class or a list of classes, not a callable")
            if not isinstance(contrast, Iterable):
                raise TargetError(f"contrast={contrast!r} is neither a class nor a list of classes")
            rivals = torch.tensor([model.class_index(_plain(a)) for a in contrast]).expand(batch, -1)
            if rivals.shape[1] == 0:
                raise TargetError("contrast= names no class")
        allowed = restriction(model, class_subset)
        made = cls(_classes(model, batch, target), rivals, output, allowed, class_sets(model, batch, compare_classes))
        for name, given in (("target", made.classes), ("against", made.contrast)):
            if allowed is not None and given is not None and not set(given.flatten().tolist()) <= set(allowed):
                raise TargetError(f"a {name} class is not among the {len(allowed)} classes of the softmax")
        return made

    def resolve(self, logits: Tensor) -> Target:
        """Return the same target with the predicted class filled in."""
        if self.classes is not None or self.function is not None:
            return self
        return replace(self, classes=class_logits(logits, self.class_subset).argmax(dim=1).cpu())

    def slice_images(self, start: int, stop: int) -> Target:
        """Return the target of images ``start .. stop - 1``."""
        return replace(
            self,
            classes=None if self.classes is None else self.classes[start:stop],
            contrast=None if self.contrast is None else self.contrast[start:stop],
            compare_classes=None if self.compare_classes is None else self.compare_classes[start:stop],
        )

    def repeat(self, times: int) -> Target:
        """Return the target of every image repeated ``times`` times, copies of an image next to each other."""
        return replace(
            self,
            classes=None if self.classes is None else self.classes.repeat_interleave(times),
            contrast=None if self.contrast is None else self.contrast.repeat_interleave(times, dim=0),
            compare_classes=None
            if self.compare_classes is None
            else self.compare_classes.repeat_interleave(times, dim=0),
        )

    def select(self, images: Tensor) -> Target:
        """Return the target of these images ``[k]``, in this order, each as often as it is named."""
        index = images.cpu()
        return replace(
            self,
            classes=None if self.classes is None else self.classes[index],
            contrast=None if self.contrast is None else self.contrast[index],
            compare_classes=None if self.compare_classes is None else self.compare_classes[index],
        )

    def score(self, logits: Tensor) -> Tensor:
        """Return the explained number of each image, ``[B]``, differentiable."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.function is not None:
            score = self.function(logits)
            if not isinstance(score, Tensor) or score.shape != logits.shape[:1]:
                raise TargetError(f"a callable target must return one number per image, shape [{len(logits)}]")
            return score
        target = self.resolve(logits)
        assert target.classes is not None
        values = _values(logits, self.output, self.class_subset)
        rows = torch.arange(len(values), device=values.device)
        score = values[rows, target.classes.clone().to(values.device)]  # a clone is no longer an inference tensor
        if self.contrast is not None:
            score = score - values.gather(1, self.contrast.clone().to(values.device)).mean(dim=1)
        return score

    def gradient(self, logits: Tensor) -> Tensor:
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

    def take(self, places: Sequence[int]) -> Any:
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

    def check_exhausted(self, total: int) -> None:
        """Complain if targets are left when the images are not."""
        if not self.shared and next(islice(self._each, total - self._taken, None), _NONE) is not _NONE:
            raise TargetError(f"there are more {self.noun} than the {total} images")

    def all(self) -> list[Any]:
        """Return every target once: the rows of a comparison."""
        return [self.target] if self.shared else list(self._each)


class ClassSets:
    """The classes to compare over many images: one set for all of them, or one for each."""

    def __init__(self, compare_classes: Any, total: int | None = None) -> None:
        self.shared = plain_target(compare_classes)
        several = isinstance(self.shared, list | tuple) and any(isinstance(e, list | tuple) for e in self.shared)
        self._each = Targets(self.shared, total, "sets of classes") if several else None

    def take(self, places: Sequence[int]) -> Any:
        """Return what ``class_sets`` takes for the images at these places."""
        return self.shared if self._each is None else self._each.take(places)

    def check_exhausted(self, total: int) -> None:
        """Complain if sets are left when the images are not."""
        if self._each is not None:
            self._each.check_exhausted(total)


_NONE = object()


def plain_target(target: Any) -> Any:
    """Return numbers and arrays of numpy and torch as Python's own; leave everything else."""
    return target.tolist() if hasattr(target, "tolist") else target


def restriction(model: VisionModel, class_subset: Sequence[ClassSpec] | None) -> tuple[int, ...] | None:
    """Understand which classes the softmax is restricted to: indices in order, each once."""
    if class_subset is None:
        return None
    if isinstance(class_subset, str) or not isinstance(class_subset, Iterable):
        raise TargetError(f"classes={class_subset!r:.60} is not a list of classes")
    indices = sorted({model.class_index(_plain(each)) for each in class_subset})
    if len(indices) < 2:
        raise TargetError(f"a softmax needs two classes at least, got {len(indices)}")
    return tuple(indices)


def class_sets(model: VisionModel, batch: int, compare_classes: Any) -> Tensor | None:
    """Understand the classes that are compared in each image: one list for all of them, or one for each."""
    if compare_classes is None:
        return None
    compare_classes = plain_target(compare_classes)
    several = (
        isinstance(compare_classes, list | tuple)
        and bool(compare_classes)
        and all(isinstance(e, list | tuple) for e in compare_classes)
    )
    rows = list(compare_classes) if several else [compare_classes] * batch
    if len(rows) != batch:
        raise TargetError(f"{len(rows)} sets of classes for {batch} images")
    if any(isinstance(row, str) or not isinstance(row, Iterable) for row in rows):
        raise TargetError(
            f"compare_classes={compare_classes!r:.60} is neither a list of classes nor one for each image"
        )
    indices = [[model.class_index(_plain(word)) for word in row] for row in rows]
    longest = max(len(row) for row in indices)
    if longest == 0:
        raise TargetError("compare_classes= names no class")
    return torch.tensor([[*row, *[-1] * (longest - len(row))] for row in indices])


def probabilities(logits: Tensor, class_subset: Sequence[int] | None = None) -> Tensor:
    """Return ``[B, C]`` class probabilities, zero outside ``only``; a head of one logit gives two columns."""
    return _values(logits.float(), "prob", class_subset)


def class_logits(logits: Tensor, class_subset: Sequence[int] | None = None) -> Tensor:
    """Return the logit of every class ``[B, C]``, minus infinity outside ``only``; a head of one logit has two."""
    return _shut(_values(logits if logits.dtype == torch.float64 else logits.float(), "logit"), class_subset)


def _shut(logits: Tensor, class_subset: Sequence[int] | None) -> Tensor:
    if class_subset is None or logits.shape[1] == 1:
        return logits
    shut = torch.full_like(logits[:1], -torch.inf)
    shut[:, list(class_subset)] = 0
    return logits + shut


def _values(logits: Tensor, output: str, class_subset: Sequence[int] | None = None) -> Tensor:
    if logits.shape[1] == 1:
        # softmax of (0, z) has the log-odds z; centred at (-z, z) / 1 it is the sign that follows the class
        pair = torch.cat([-logits, logits], dim=1)
        if output == "logit":
            return pair
        log = torch.nn.functional.logsigmoid(pair)
    else:
        if output == "logit":
            return logits
        log = _shut(logits, class_subset).log_softmax(dim=1)
    return log if output == "logprob" else log.exp()


def _classes(model: VisionModel, batch: int, target: TargetSpec) -> Tensor | None:
    if target is None or (isinstance(target, str) and target == "pred"):
        return None
    if isinstance(target, str | int):
        return torch.full((batch,), model.class_index(target))
    if callable(target) or not isinstance(target, Iterable):
        raise TargetError(f"{target!r} is neither a class index nor a label, nor a list of them")
    indices = [model.class_index(_plain(word)) for word in target]
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
