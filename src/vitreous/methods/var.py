"""VAR: what speaks for one class and not for others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.errors import SpecError, TargetError
from vitreous.methods import ops
from vitreous.methods.base import Attribution, BaseWrapper, Method, compute_checked, to_grid
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import choice
from vitreous.tracing import Context, ContrastContexts, Target, upcast
from vitreous.tracing.context import Choose

_TIE = 1e-6
"""By how much q must exceed 1 / K for maps of the size one; smaller maps give smaller differences, and smaller ties."""


class _Softmax(NamedTuple):
    """How maps become shares: inverse temperatures, whether signs are dropped, and by how much q must exceed 1 / K."""

    inverse_temperatures: tuple[float, ...]
    absolute: bool = False
    margin: float = 0.0


_PRESETS = {
    "sharp": _Softmax((1.0, 5.0, 100.0)),
    "paper": _Softmax((1.0, 1 / 5, 1 / 100)),
    "released": _Softmax((10.0,), absolute=True, margin=0.01),
}


@register_method(
    "var",
    family="combinator",
    papers=("walter2025now",),
    cost_note="1 F + K B",
    presets={name: {"preset": name} for name in _PRESETS},
    revision=2,
)
@dataclass(frozen=True)
class VAR(BaseWrapper):
    r"""A base method where the explained class stands out among K classes.

    .. math:: M = H_c\, q_c\, [q_c > 1 / K], \qquad q_k = \operatorname{mean}_t \operatorname{softmax}_k (H_k / t)

    over the base's maps :math:`H_k` of the classes, patch by patch, with t = 1, 5, 100.

    Parameters
    ----------
    base : Method
        The method whose maps are compared; it must depend on the class.
    classes : str or int, default "top:2"
        The k most probable and the least probable (``"top:k"``), ``"best-worst"``, or a list such as ``"281,lynx"`` or
        ``"lynx|cougar"``; a set of each image's own (``compare_classes=``) goes before them. The explained class is
        added where it is missing.
    preset : {"paper", "sharp", "released"}, default "paper"
        ``"released"`` multiplies the absolute values by 10 and asks for :math:`q_c > 1 / K + 0.01`, as released code;
        ``"sharp"`` multiplies by 1, 5, 100, so that small differences count.
    normalise : bool, default False
        Divide the maps by the largest value of all K before the softmax.
    upsample : bool, default False
        Compare pixels, as in the paper and wherever the map is asked for on pixels; otherwise patches are compared.

    Notes
    -----
    Extras: ``distribution`` q, ``maps`` H and ``classes``, the explained one first. Cost: one forward and K backwards
    where the base reads one pass, K times the base otherwise.

    References
    ----------
    Walter et al., "Now you see Me! Attribution Distributions Reveal What is Truly Important for a Prediction", arXiv
    2025.

    Examples
    --------
    >>> vt.explain(model, image, "var(ixg, classes=best-worst)").extras["maps"].shape
    torch.Size([2, 16, 16])
    """

    base: Method
    classes: str | int = "top:2"
    preset: str = choice("paper", *_PRESETS)
    normalise: bool = False
    upsample: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.classes, str | int):
            raise SpecError(f"classes={self.classes!r} is neither a text such as 'lynx,cougar' nor an index")
        if not self.base.class_specific:
            name = self.base.spec
            raise SpecError(f"var compares classes, and {name} is the same for all of them: take another base")
        if self._top == 0:
            raise SpecError(f"classes={self.classes!r} leaves fewer than two classes; var compares at least two")
        if self._top is None and not all(self._words):
            raise SpecError(f'classes={self.classes!r} has an empty place; write classes as in "281,lynx"')

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "pixel" if self.upsample else self.base.grid

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return forwards if forwards == 1 else forwards * self._count, backwards * self._count

    def num_forwards(self, model: VisionModel) -> float:
        forwards = self.base.num_forwards(model)
        return forwards if self.base.passes(model) and forwards == 1 else forwards * self._count

    def num_maps(self, model: VisionModel) -> int:
        return 3 * self._count

    def compute(self, context: Context) -> Attribution:
        if context.requested_target.function is not None:
            raise TargetError("var compares classes, and a callable target is none; give a class")
        if context.requested_target.contrast is not None:
            raise TargetError("var compares classes of its own; give them as classes= and not as contrast=")
        pixels = self.grid == "pixel" or self._compares_pixels(context)
        height, width = context.inputs.shape[-2:] if pixels else context.model.grid(context.inputs)
        bytes_per_image = 8 * self._count * height * width * 4  # base maps, their copy, shares and their sources
        attributions = []
        for part in ops.parts_that_fit(context, len(context.inputs), bytes_per_image):
            with part:
                is_all = part.stop - part.start == len(context.inputs)
                own = context if is_all else context.slice_images(part.start, part.stop)
                attributions.append(self._compare(own))
        return _joined(attributions)

    def _compare(self, context: Context) -> Attribution:
        contrast = ContrastContexts(context, *self._chooser(context.model, context.requested_target))
        contrast.contexts[0].prepare(self.base.passes(context.model))
        classes = contrast.classes
        class_maps = [compute_checked(own, self.base).map for own in contrast.contexts[: classes.shape[1]]]
        if self._compares_pixels(context):
            class_maps = [to_grid(maps, "pixel", context.model, context.inputs) for maps in class_maps]
        maps = upcast(torch.stack(class_maps, dim=1))
        valid = (classes >= 0).to(maps.device)[:, :, None, None]
        maps.masked_fill_(~valid, 0)
        q, stands_out = self._distribution(maps, valid)
        extras = {"distribution": q, "maps": maps, "classes": classes.to(maps.device)}
        return Attribution(maps[:, 0] * q[:, 0] * stands_out, extras)

    def _compares_pixels(self, context: Context) -> bool:
        """Whether maps are brought to pixels before they are compared."""
        return context.inputs.ndim == 4 and (self.upsample or context.grid == "pixel")

    def _distribution(self, maps: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return q ``[B, K, h, w]`` over the valid classes, and where the first stands out ``[B, h, w]``.

        In float64: of maps much smaller than one, q differs from 1 / K by less than float32 can tell.
        """
        softmax, scaled = _PRESETS[self.preset], maps.double()
        if self.normalise:
            largest = scaled.abs().amax(dim=(1, 2, 3), keepdim=True)
            scaled = scaled / torch.where(largest > 0, largest, 1)
        scaled = scaled.abs() if softmax.absolute else scaled
        inverses = softmax.inverse_temperatures
        q = torch.zeros_like(scaled)
        for inverse in inverses:
            q += (inverse * scaled).masked_fill_(~valid, -torch.inf).softmax(dim=1)
        q /= len(inverses)
        size = scaled.abs().amax(dim=(1, 2, 3)) * (sum(inverses) / len(inverses))
        tie = (_TIE * size.clamp(max=1)).view(-1, 1, 1)
        return q.to(maps.dtype), q[:, 0] - 1 / valid.sum(dim=1).double() > tie.clamp(min=softmax.margin)

    # -- which classes -------------------------------------------------------------------------------------

    @property
    def _top(self) -> int | None:
        """How many of the most probable classes are meant; ``None`` for a list."""
        if self.classes == "best-worst":
            return 1
        match = re.fullmatch(r"top:(\d{1,6})", str(self.classes))
        return None if match is None else int(match[1])

    @property
    def _words(self) -> list[str]:
        text = str(self.classes)
        return [word.strip() for word in text.split("|" if "|" in text else ",")]

    @property
    def _count(self) -> int:
        return 1 + (len(self._words) if self._top is None else self._top)

    def _chooser(self, model: VisionModel, target: Target) -> tuple[int, Choose]:
        """Return how many classes an image has at most, and what chooses them: the explained one, and others.

        The others are those of the image's own, those that are listed, or the most probable ones and the least probable
        of those that the softmax has.
        """
        top, listed = 0, []
        if target.compare_classes is not None:
            text, others_at_most = "of each image", target.compare_classes.shape[1]
        elif self._top is not None:
            top = min(self._top, max(model.num_classes, 2), len(target.class_subset or range(10**6)))
            text, others_at_most = str(self.classes), top + 1
        else:
            words = [int(word) if re.fullmatch(r"-?\d+", word) else word for word in self._words]
            listed = [model.class_index(word) for word in words]
            text, others_at_most = str(self.classes), len(listed)

        def choose(logits: Tensor, explained: Tensor, compare_classes: Tensor | None = None) -> Tensor:
            excluded = logits == -torch.inf
            if compare_classes is not None:
                classes = compare_classes.to(explained.device)
                others = torch.where(classes < 0, explained.unsqueeze(1), classes)  # again the first: counted once
            elif top:
                last = logits.masked_fill(excluded, torch.inf).argmin(dim=1, keepdim=True)
                others = torch.cat([logits.topk(top, dim=1).indices, last], dim=1)
            else:
                others = explained.new_tensor(listed).expand(len(explained), -1)
            wrong = excluded.gather(1, others)
            if wrong.any():
                first = int(others[wrong][0])
                raise TargetError(f"var: class {first} is not among the classes that the softmax is restricted to")
            return _distinct(torch.cat([explained.unsqueeze(1), others], dim=1), text)

        return 1 + others_at_most, choose


def _distinct(wanted: Tensor, text: str) -> Tensor:
    """Return the classes ``[B, K]`` of each image once, -1 in what is left of its places; there must be two."""
    again = (wanted.unsqueeze(2) == wanted.unsqueeze(1)).tril(-1).any(dim=2)
    chosen = wanted.masked_fill(again, -1).gather(1, again.long().argsort(dim=1, stable=True))
    alone = (chosen >= 0).sum(dim=1) < 2
    if alone.any():
        only = int(chosen[alone][0, 0])
        raise TargetError(f"var compares at least two classes; classes={text!r} leaves {only} alone")
    return chosen


def _joined(parts: Sequence[Attribution]) -> Attribution:
    """Put the maps of some images after each other; an image may have fewer classes than others."""
    if len(parts) == 1:
        return parts[0]
    slots = max(part.extras["classes"].shape[1] for part in parts)
    extras = {}
    for name, empty in (("distribution", 0.0), ("maps", 0.0), ("classes", -1)):
        values = [part.extras.pop(name) for part in parts]  # let go of, so that not everything exists twice
        padding = [value.new_full((len(value), slots - value.shape[1], *value.shape[2:]), empty) for value in values]
        extras[name] = torch.cat([torch.cat(pair, dim=1) for pair in zip(values, padding, strict=True)])
    return Attribution(torch.cat([part.map for part in parts]), extras)
