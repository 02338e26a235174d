"""What is explained: one number per image, read from the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Union

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vitreous.errors import TargetError
from vitreous.models import VisionModel
from vitreous.tracing.rules.base import upcast

VALUES = ("logit", "prob", "logprob")

ClassSpec = Union[int, str]  # noqa: UP007 - evaluated at run time on Python 3.10
"""A class by index, label or synonym."""

TargetSpec = Union[ClassSpec, Sequence[ClassSpec], Tensor, Callable[[Tensor], Tensor], None]  # noqa: UP007
"""What users may pass as ``target``; ``None`` and ``"pred"`` mean the predicted class of each image."""


def check_output(output: str) -> None:
    """Refuse a word that is no output of a class."""
    if output not in VALUES:
        raise TargetError(f"output {output!r} is not one of {', '.join(VALUES)}")


@dataclass(frozen=True, eq=False)
class Target:
    """The explained number ``s(c) - mean over contrast classes a of s(a)``, with ``s`` the logit, p or log p.

    A head of one logit tells two classes apart: class 1 is explained by ``+logit``, class 0 by ``-logit``.

    Parameters
    ----------
    classes : Tensor or None
        The explained class of each image, ``[B]``; ``None`` until the prediction is known.
    contrast : Tensor or None
        The contrast classes ``[B, K]``.
    output : {"logit", "prob", "logprob"}, default "logit"
        What s is.
    class_subset : tuple of int or None
        The classes that the softmax, the prediction and sets of probable classes are restricted to.
    compare_classes : Tensor or None
        A set of classes of each image's own to compare, ``[B, K]``, -1 where it has fewer.
    function : callable or None
        ``logits [B, C] -> [B]``, instead of all of it.
    """

    classes: Tensor | None = None
    contrast: Tensor | None = None
    output: str = "logit"
    class_subset: tuple[int, ...] | None = None
    compare_classes: Tensor | None = None
    function: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        check_output(self.output)

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
        """Parse what a user asked for, or say which part cannot be meant."""
        target, allowed = plain_target(target), restriction(model, class_subset)
        if callable(target):
            if contrast is not None:
                raise TargetError("contrast= cannot be combined with a callable target")
            return cls(output=output, function=target, class_subset=allowed)
        rows = None if contrast is None else _contrast(model, plain_target(contrast), batch)
        sets = class_sets(model, batch, compare_classes)
        parsed = cls(_classes(model, batch, target), rows, output, allowed, sets)
        for name, classes in (("target", parsed.classes), ("contrast", parsed.contrast)):
            if allowed is not None and classes is not None and not set(classes.flatten().tolist()) <= set(allowed):
                raise TargetError(f"a {name} class is not among the {len(allowed)} classes of the softmax")
        return parsed

    def resolve(self, logits: Tensor) -> Target:
        """Return the same target with the predicted class filled in."""
        if self.classes is not None or self.function is not None:
            return self
        return replace(self, classes=class_logits(logits, self.class_subset).argmax(dim=1).cpu())

    def _by_image(self, change: Callable[[Tensor], Tensor]) -> Target:
        """Return the target with what belongs to each image changed."""
        values = {name: getattr(self, name) for name in ("classes", "contrast", "compare_classes")}
        changed: dict[str, Any] = {name: change(value) for name, value in values.items() if value is not None}
        return replace(self, **changed)

    def slice_images(self, start: int, stop: int) -> Target:
        """Return the target of images ``start .. stop - 1``."""
        return self._by_image(lambda value: value[start:stop])

    def repeat(self, times: int) -> Target:
        """Return the target of every image repeated ``times`` times, copies of an image next to each other."""
        return self._by_image(lambda value: value.repeat_interleave(times, dim=0))

    def select(self, images: Tensor) -> Target:
        """Return the target of these images ``[k]``, in this order, each as often as it is named."""
        return self._by_image(lambda value: value[images.cpu()])

    def score(self, logits: Tensor) -> Tensor:
        """Return the explained number of each image, ``[B]``, differentiable."""
        logits = upcast(logits)
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
            leaf = logits.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(self.score(leaf).sum(), leaf)
        return slope


_END = object()


class Targets:
    """What a user asked for over many images: one target for all of them, or one for each, from any iterable.

    Of an iterable no more is taken than there are images. An image that cannot be read keeps its target to itself.
    """

    def __init__(self, target: TargetSpec, total: int | None = None, noun: str = "targets") -> None:
        target = plain_target(target)
        is_shared = target is None or isinstance(target, str | int) or callable(target)
        if not is_shared and not isinstance(target, Iterable):
            raise TargetError(f"{target!r} is neither a class index nor a label, nor a list of them")
        if not is_shared and total is not None and hasattr(target, "__len__") and len(target) != total:
            raise TargetError(f"{len(target)} {noun} for {total} images")
        self.noun, self.shared, self.target = noun, is_shared, target
        self._targets: Iterator[Any] = iter(() if is_shared else target)  # type: ignore[arg-type]
        self._taken = 0

    def take(self, indices: Sequence[int]) -> Any:
        """Return the target of the images with these indices, which only ever grow."""
        if self.shared:
            return self.target
        targets = []
        for index in indices:
            target = next(islice(self._targets, index - self._taken, None), _END)
            if target is _END:
                raise TargetError(f"there are fewer {self.noun} than images: none for image {index}")
            targets.append(target)
            self._taken = index + 1
        return targets

    def check_exhausted(self, total: int) -> None:
        """Complain if targets are left when the images are not."""
        if not self.shared and next(islice(self._targets, total - self._taken, None), _END) is not _END:
            raise TargetError(f"there are more {self.noun} than the {total} images")

    def all(self) -> list[Any]:
        """Return every target once: the rows of a comparison."""
        return [self.target] if self.shared else list(self._targets)


class ClassSets(Targets):
    """The classes to compare over many images: one set for all of them, or one for each."""

    def __init__(self, compare_classes: Any, total: int | None = None) -> None:
        sets = plain_target(compare_classes)
        if isinstance(sets, list | tuple) and any(isinstance(row, list | tuple) for row in sets):
            super().__init__(sets, total, "sets of classes")
        else:
            super().__init__(None)
            self.target = sets


def plain_target(target: Any) -> Any:
    """Return numbers and arrays of numpy and torch as Python's own; leave everything else."""
    return target.tolist() if hasattr(target, "tolist") else target


def restriction(model: VisionModel, class_subset: Sequence[ClassSpec] | None) -> tuple[int, ...] | None:
    """Parse which classes the softmax is restricted to: indices in order, each once."""
    if class_subset is None:
        return None
    indices = sorted({*_indices(model, class_subset, f"classes={class_subset!r:.60} is not a list of classes")})
    if len(indices) < 2:
        raise TargetError(f"a softmax needs two classes at least, got {len(indices)}")
    return tuple(indices)


def class_sets(model: VisionModel, batch: int, compare_classes: Any) -> Tensor | None:
    """Parse the classes that are compared in each image: one list for all of them, or one for each."""
    sets = plain_target(compare_classes)
    if sets is None:
        return None
    is_by_image = isinstance(sets, list | tuple) and bool(sets) and all(isinstance(row, list | tuple) for row in sets)
    rows = list(sets) if is_by_image else [sets] * batch
    if len(rows) != batch:
        raise TargetError(f"{len(rows)} sets of classes for {batch} images")
    problem = f"compare_classes={sets!r:.60} is neither a list of classes nor one for each image"
    indices = [torch.tensor(_indices(model, row, problem), dtype=torch.int64) for row in rows]
    padded = pad_sequence(indices, batch_first=True, padding_value=-1)
    if padded.shape[1] == 0:
        raise TargetError("compare_classes= names no class")
    return padded


def _contrast(model: VisionModel, contrast: TargetSpec, batch: int) -> Tensor:
    classes = [contrast] if isinstance(contrast, str | int) else contrast
    problem = f"contrast={contrast!r:.60} is neither a class nor a list of classes"
    indices = _indices(model, None if callable(classes) else classes, problem)
    if not indices:
        raise TargetError("contrast= names no class")
    return torch.tensor(indices).expand(batch, -1)


def probabilities(logits: Tensor, class_subset: Sequence[int] | None = None) -> Tensor:
    """Return ``[B, C]`` class probabilities, zero outside the subset; a head of one logit gives two columns."""
    return _values(logits.float(), "prob", class_subset)


def class_logits(logits: Tensor, class_subset: Sequence[int] | None = None) -> Tensor:
    """Return the logit of every class ``[B, C]``, minus infinity outside the subset; a head of one logit has two."""
    return _shut(_values(upcast(logits), "logit"), class_subset)


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
    indices = _indices(model, target, f"{target!r:.60} is neither a class index nor a label, nor a list of them")
    if len(indices) != batch:
        raise TargetError(f"{len(indices)} targets for {batch} images")
    return torch.tensor(indices)


def _indices(model: VisionModel, classes: Any, problem: str) -> list[int]:
    """Return the indices of a list of classes; a ``problem`` is what is none."""
    if isinstance(classes, str) or not isinstance(classes, Iterable):
        raise TargetError(problem)
    return [model.class_index(_index_or_name(word)) for word in classes]


def _index_or_name(word: object) -> int | str:
    """Accept numpy and torch integers; refuse anything else that is neither index nor label."""
    if isinstance(word, str):
        return word
    if isinstance(word, float | bool) or not hasattr(word, "__index__"):
        raise TargetError(f"{word!r} is neither a class index nor a label")
    return word.__index__()  # type: ignore[no-any-return]
