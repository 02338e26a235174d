"""VAR: what speaks for one class and not for its rivals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.errors import SpecError, TargetError
from vitreous.methods.base import Attribution, BaseWrapper, Method, checked_attribution, prepare, to_grid
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.registry import check_choice
from vitreous.tracing import Context, ContrastContexts, Target, upcast
from vitreous.tracing.memory import budget_bytes

__all__ = ["VAR"]

_TIE = 1e-6
"""By how much q must exceed 1 / K for maps of the size one; smaller maps give smaller differences, and smaller ties."""


class Look(NamedTuple):
    """How maps become shares: inverse temperatures, whether signs are dropped, and by how much q must exceed 1 / K."""

    inverse: tuple[float, ...]
    absolute: bool = False
    margin: float = 0.0


LOOKS = {
    "sharp": Look((1.0, 5.0, 100.0)),
    "paper": Look((1.0, 1 / 5, 1 / 100)),
    "released": Look((10.0,), absolute=True, margin=0.01),
}


@register_method(
    "var",
    family="combinator",
    papers=("walter2025now",),
    cost_note="1 F + K B",
    presets={name: {"preset": name} for name in LOOKS},
    revision=2,
)
@dataclass(frozen=True)
class VAR(BaseWrapper):
    """A base method where the explained class stands out among K classes.

    ``q_k = mean_t softmax_k(H_k / t)`` over the base's maps ``H_k``, place by place, t = 1, 5, 100; map ``H_c q_c [q_c
    > 1 / K]``. That is the paper; the released code multiplies the absolute values by 10 and asks for ``q_c > 1 / K +
    0.01`` (``released``); ``sharp`` multiplies by 1, 5, 100, so that small differences count. ``classes`` are the k
    most probable and the least probable (``top:k``), ``best-worst``, or a list such as ``"281,lynx"`` or
    ``"lynx|cougar"``; a set of each image's own (``compare_classes=``) goes before them. The explained class is added
    where it is missing. ``normalise`` divides the maps by the largest value of all K before the softmax. Pixels are
    compared, as in the paper, where the map is asked for on pixels or with ``upsample``, patches otherwise. Cost: 1 F +
    K B where the base reads one pass, K times the base otherwise. Extras: ``distribution`` q, ``maps`` H and
    ``classes``, the explained one first.
    """

    base: Method
    classes: str | int = "top:2"
    preset: str = "paper"
    normalise: bool = False
    upsample: bool = False

    def __post_init__(self) -> None:
        check_choice("preset", self.preset, tuple(LOOKS))
        if not isinstance(self.classes, str | int):
            raise SpecError(f"classes={self.classes!r} is neither a text such as 'lynx,cougar' nor an index")
        if not self.base.class_specific:
            name = self.base.spec
            raise SpecError(f"var compares classes, and {name} is the same for all of them: take another base")
        top = self._top
        if top is not None and top < 1:
            raise SpecError(f"classes={self.classes!r} leaves fewer than two classes; var compares at least two")
        if top is None and not all(self._words):
            raise SpecError(f'classes={self.classes!r} has an empty place; write classes as in "281,lynx"')

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "pixel" if self.upsample else self.base.grid

    @property
    def cost(self) -> tuple[float, float]:
        forwards, backwards = self.base.cost
        return forwards if forwards == 1 else forwards * self._count, backwards * self._count

    def num_forwards(self, model: VisionModel) -> float:
        each = self.base.num_forwards(model)
        return each if self.base.passes(model) and each == 1 else each * self._count

    def num_maps(self, model: VisionModel) -> int:
        return 3 * self._count

    def compute(self, context: Context) -> Attribution:
        self._check_target(context.requested_target)
        pixels = self.grid == "pixel" or self._fine(context)
        height, width = context.inputs.shape[-2:] if pixels else context.model.grid(context.inputs)
        bytes_each = 8 * self._count * height * width * 4  # base maps, their copy, shares and what they are made of
        at_once = max(1, int(budget_bytes(context.inputs.device, context.memory_gb) / bytes_each))
        if at_once >= len(context.inputs):
            return self._compare(context)
        cuts = range(0, len(context.inputs), at_once)
        return _joined([self._compare(context.slice_images(at, at + at_once)) for at in cuts])

    def _compare(self, context: Context) -> Attribution:
        choose = self._choice(context.model, context.requested_target)
        rivals = ContrastContexts(context, choose.slots, choose)
        prepare(rivals.contexts[0], [self.base])
        classes = rivals.classes
        each_class = [checked_attribution(each, self.base).map for each in rivals.contexts[: classes.shape[1]]]
        if self._fine(context):
            each_class = [to_grid(each, "pixel", context.model, context.inputs) for each in each_class]
        maps = upcast(torch.stack(each_class, dim=1))
        there = (classes >= 0).to(maps.device)[:, :, None, None]
        maps.masked_fill_(~there, 0)
        q, ahead = self._distribution(maps, there)
        extras = {"distribution": q, "maps": maps, "classes": classes.to(maps.device)}
        return Attribution(maps[:, 0] * q[:, 0] * ahead, extras)

    def _fine(self, context: Context) -> bool:
        """Whether maps are brought to pixels before they are compared."""
        return context.inputs.ndim == 4 and (self.upsample or context.grid == "pixel")

    def _distribution(self, maps: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return q ``[B, K, h, w]`` over the classes that are there, and where the first stands out ``[B, h, w]``.

        In float64: of maps much smaller than one, q differs from 1 / K by less than float32 can tell.
        """
        look, scaled = LOOKS[self.preset], maps.double()
        if self.normalise:
            largest = scaled.abs().amax(dim=(1, 2, 3), keepdim=True)
            scaled = scaled / torch.where(largest > 0, largest, 1)
        scaled = scaled.abs() if look.absolute else scaled
        q = torch.zeros_like(scaled)
        for inverse in look.inverse:
            q += (inverse * scaled).masked_fill_(~there, -torch.inf).softmax(dim=1)
        q /= len(look.inverse)
        size = scaled.abs().amax(dim=(1, 2, 3)) * (sum(look.inverse) / len(look.inverse))
        tie = (_TIE * size.clamp(max=1)).view(-1, 1, 1)
        return q.to(maps.dtype), q[:, 0] - 1 / there.sum(dim=1).double() > tie.clamp(min=look.margin)

    def _check_target(self, target: Target) -> None:
        if target.function is not None:
            raise TargetError("var compares classes, and a callable target is none; give a class")
        if target.contrast is not None:
            raise TargetError(
                "var sets the class against rivals of its own; give them as classes= and not as contrast="
            )

    # -- which classes -----------------------------------------------------------------------------------

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

    def _choice(self, model: VisionModel, target: Target) -> Choice:
        if target.compare_classes is not None:
            return Choice("of each image", own=target.compare_classes.shape[1])
        if self._top is not None:
            return Choice(
                str(self.classes),
                top=min(self._top, max(model.num_classes, 2), len(target.class_subset or range(10**6))),
            )
        words = [int(word) if re.fullmatch(r"-?\d+", word) else word for word in self._words]
        return Choice(str(self.classes), listed=tuple(model.class_index(word) for word in words))


def _joined(parts: Sequence[Attribution]) -> Attribution:
    """Put the answers about some images after each other; an image may have fewer classes than others."""
    slots = max(part.extras["classes"].shape[1] for part in parts)
    extras = {}
    for name, empty in (("distribution", 0.0), ("maps", 0.0), ("classes", -1)):
        values = [part.extras.pop(name) for part in parts]  # let go of, so that not everything exists twice
        missing = [(slots - value.shape[1], value) for value in values]
        filled = [torch.cat([v, v.new_full((len(v), n, *v.shape[2:]), empty)], dim=1) if n else v for n, v in missing]
        extras[name] = torch.cat(filled)
    return Attribution(torch.cat([part.map for part in parts]), extras)


@dataclass(frozen=True)
class Choice:
    """The classes of each image: the explained one, then those ``listed``, its ``own``, or the ``top`` and the last.

    The last is the least probable of those that the softmax has.
    """

    asked: str
    top: int = 0
    listed: tuple[int, ...] = ()
    own: int = 0

    @property
    def slots(self) -> int:
        return 1 + (self.own or (self.top + 1 if self.top else len(self.listed)))

    def __call__(self, logits: Tensor, explained: Tensor, compare_classes: Tensor | None = None) -> Tensor:
        shut = logits == -torch.inf
        if self.own and compare_classes is not None:
            given = compare_classes.to(explained.device)
            rest = [torch.where(given < 0, explained.unsqueeze(1), given)]  # again the first: counted once
        elif self.top:
            last = logits.masked_fill(shut, torch.inf).argmin(dim=1, keepdim=True)
            rest = [logits.topk(self.top, dim=1).indices, last]
        else:
            rest = [explained.new_tensor(self.listed).expand(len(explained), -1)]
        outside = torch.cat(rest, dim=1)
        if shut.gather(1, outside).any():
            wrong = int(outside[shut.gather(1, outside)][0])
            raise TargetError(f"var: class {wrong} is not among the classes that the softmax is restricted to")
        wanted = torch.cat([explained.unsqueeze(1), *rest], dim=1)
        again = (wanted.unsqueeze(2) == wanted.unsqueeze(1)).tril(-1).any(dim=2)  # each class once
        chosen = wanted.masked_fill(again, -1).gather(1, again.long().argsort(dim=1, stable=True))
        alone = (chosen >= 0).sum(dim=1) < 2
        if alone.any():
            class_subset = int(chosen[alone][0, 0])
            raise TargetError(f"var compares at least two classes; classes={self.asked!r} leaves {class_subset} alone")
        return chosen
