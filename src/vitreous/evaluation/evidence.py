"""Is what a map ranks highest needed by the model, and is it enough?

The strongest fifth of the patches is blurred away, and it is left alone. How much either says is told by controls: the
same patches moved to other places of the same picture, so that size, shape and what is put in their place are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.nn import functional as F

from vitreous.html import percent, printed
from vitreous.models import VisionModel
from vitreous.results.diagnostics import Finding
from vitreous.tracing import probabilities
from vitreous.tracing.memory import InnerBatch, inner_batch
from vitreous.tracing.prng import PRNGKey

__all__ = [
    "CLEAR",
    "FEWEST",
    "MOST",
    "Evidence",
    "blurred",
    "finding",
    "measure",
    "moved",
    "on_pixels",
    "replaced",
    "strongest",
]

_SHARE = 0.2
MOST, FEWEST = 20, 10
"""How many other places are tried, and from how many on a rank among them says anything."""
CLEAR, LIKELY, EVEN = 0.95, 0.75, 0.5
"""Of the other places, nearly all, most and half: chosen with ``benchmarks/verdicts.py``, which says how often each
verdict is wrong."""


@dataclass(frozen=True)
class Evidence:
    """The probability of the explained class for a picture, and for the same picture with patches blurred.

    Probabilities are compared as they are printed, in percent with two digits: a difference that nobody sees is a tie.
    """

    now: float
    without: float
    """Without the strongest fifth of the patches."""
    alone: float
    """With the strongest fifth alone."""
    predictions: tuple[tuple[int, float], tuple[int, float]]
    """The classes that the model predicts then, and their probabilities."""
    others_without: tuple[float, ...]
    """Without the same patches moved elsewhere; one number for each place."""
    others_alone: tuple[float, ...]
    size: tuple[int, int] = (0, 0)
    """How many patches are blurred or left alone, of how many."""
    keeps_prediction: bool = True
    """Whether the strongest fifth alone is still predicted to be this class, if the picture is."""

    @property
    def lower(self) -> int:
        """At how many other places taking patches away hurts less; a tie is none."""
        return sum(printed(self.without) < printed(each) for each in self.others_without)

    @property
    def higher(self) -> int:
        """How many other places have less when left alone; a tie is none."""
        return sum(printed(self.alone) > printed(each) for each in self.others_alone)

    @property
    def moves(self) -> bool:
        """Whether any of these pictures has another probability than the one as it is."""
        tried = (self.without, self.alone, *self.others_without, *self.others_alone)
        return any(printed(each) != printed(self.now) for each in tried)

    @property
    def rises(self) -> bool:
        """Whether the class becomes more probable without what is said to speak for it."""
        return printed(self.without) > printed(self.now)

    @property
    def falls(self) -> bool:
        """Whether it becomes less probable."""
        return printed(self.without) < printed(self.now)

    @property
    def is_compared(self) -> bool:
        """Whether there are enough other places to compare with."""
        return len(self.others_without) >= FEWEST

    @property
    def is_needed(self) -> bool:
        """Whether without it less than half is left, and less than at nearly all other places."""
        halved = 2 * printed(self.without) < printed(self.now)
        return self.is_compared and halved and self.lower >= CLEAR * len(self.others_without)

    @property
    def is_enough(self) -> bool:
        """Whether alone it has half or more, the same prediction, and more than at nearly all other places."""
        half = self.keeps_prediction and 2 * printed(self.alone) >= printed(self.now)
        return self.is_compared and half and self.higher >= CLEAR * len(self.others_alone)

    @property
    def verdict(self) -> str:
        """``good``, ``weak`` or ``bad``; ``-`` where nothing moves or there are too few other places.

        Good: the probability falls, the fifth is needed or enough, and by the other count it still beats most places.
        Weak: the probability does not rise, and nearly all places are beaten by one of both, or most by one and half of
        them by the other.
        """
        places = len(self.others_without)
        if not self.is_compared or not self.moves:
            return "-"
        least, most = sorted((self.lower / places, self.higher / places))
        if self.falls and (self.is_needed or self.is_enough) and least >= LIKELY:
            return "good"
        beaten = most >= CLEAR or (most >= LIKELY and least >= EVEN)
        return "weak" if beaten and not self.rises else "bad"

    @property
    def numbers(self) -> dict[str, float]:
        """What a finding keeps of it; of the other places the medians."""
        medians = [float(np.median(each or (self.now,))) for each in (self.others_without, self.others_alone)]
        (left, left_chance), (rest, rest_chance) = self.predictions
        return {
            "now": self.now, "without": self.without, "alone": self.alone,
            "others_without": medians[0], "others_alone": medians[1],
            "lower": self.lower, "higher": self.higher, "places": len(self.others_without),
            "class_without": left, "class_alone": rest, "top_without": left_chance, "top_alone": rest_chance,
            "patches": self.size[0], "of": self.size[1],
            "compared": self.is_compared, "needed": self.is_needed, "enough": self.is_enough,
        }  # fmt: skip


def strongest(map: Tensor) -> Tensor:
    """Return which fifth of the patches ``[h, w]`` has the largest values; at least one, the first of equal ones."""
    flat = map.flatten()
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[flat.cpu().argsort(descending=True, stable=True)[: max(1, round(_SHARE * len(flat)))]] = True
    return mask.view(map.shape)


def moved(mask: Tensor, draws: PRNGKey, most: int = MOST) -> Tensor:
    """Return a selection ``[h, w]`` moved to other places, ``[n, h, w]``: what leaves at one side enters at the other.

    The places are drawn at random, each once; fewer than ``most`` where there are fewer that differ.
    """
    wide = mask.shape[1]
    known = {mask.numpy().tobytes()}
    found: list[Tensor] = []
    for place in draws.permutation(mask.numel())[0].tolist():
        other = mask.roll((place // wide, place % wide), dims=(0, 1))
        if other.numpy().tobytes() not in known:
            known.add(other.numpy().tobytes())
            found.append(other)
        if len(found) == most:
            break
    return torch.stack(found) if found else mask.new_zeros(0, *mask.shape)


def blurred(picture: Image.Image) -> Image.Image:
    """Return the picture of which patches are taken where others are gone."""
    return picture.convert("RGB").filter(ImageFilter.GaussianBlur(max(picture.size) / 14))


def on_pixels(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Return selections of patches ``[n, h, w]`` on ``(height, width)`` pixels: each that of the patch it lies in."""
    return F.interpolate(masks[:, None].float(), size=tuple(size), mode="nearest-exact")[:, 0] > 0


def replaced(picture: Image.Image, other: Image.Image, mask: Tensor) -> Image.Image:
    """Return a picture whose selected patches come from another one."""
    (pixels,) = on_pixels(mask[None], (picture.height, picture.width))
    selected = Image.fromarray((pixels.numpy() * 255).astype(np.uint8))
    return Image.composite(other.convert("RGB"), picture.convert("RGB"), selected)


def measure(
    model: VisionModel,
    inputs: Tensor,
    picture: Image.Image,
    map: Tensor,
    target: int,
    draws: PRNGKey,
    *,
    compare_classes: Sequence[int] | None = None,
    class_subset: Sequence[int] | None = None,
    memory_gb: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Evidence:
    """Return what the model says about ``inputs`` ``[1, 3, H, W]`` and its ``picture`` with patches blurred.

    The probability of ``target`` is that among the classes ``among``, the prediction one of ``only``; of all classes
    where there are none. Cost: 43 forwards.
    """
    mask = strongest(map)
    others = moved(mask, draws)
    gone = torch.cat([torch.zeros_like(mask)[None], mask[None], ~mask[None], others, ~others])
    blur = model.cast(model.preprocess.to_tensor(blurred(picture))[None])
    given = model.cast(inputs)

    def part(start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        pixels = on_pixels(gone[start:stop], given.shape[-2:])[:, None].to(given.device)
        logits = model.logits(torch.where(pixels, blur, given))
        if on_progress is not None:
            on_progress(stop - start)
        top, classes = probabilities(logits, class_subset).max(dim=1)
        return probabilities(logits, compare_classes)[:, target].cpu(), classes.cpu(), top.cpu()

    parts = InnerBatch(inner_batch(model, given, memory_gb)).run(part, len(gone))
    chances, classes, top = (torch.cat(each).tolist() for each in zip(*parts, strict=True))
    predictions = (classes[1], top[1]), (classes[2], top[2])
    split = 3 + len(others)
    return Evidence(
        chances[0], chances[1], chances[2], predictions, tuple(chances[3:split]), tuple(chances[split:]),
        (int(mask.sum()), mask.numel()), classes[0] != target or classes[2] == target,
    )  # fmt: skip


def finding(found: Evidence, label: str) -> tuple[Finding, str]:
    """Return the finding about the explanation of a class, and the reason if it is not good."""
    name = "faithfulness"
    places, now = len(found.others_without), percent(found.now)
    numbers = found.numbers
    if not found.moves:
        return Finding(name, "-", f"the probability of {label} stays at {now}, whatever is blurred", numbers), ""
    sentence = (
        f"without its strongest fifth {label} goes from {now} to {percent(found.without)}, lower than at "
        f"{found.lower} of {places} other places of the same size and shape; alone it has {percent(found.alone)}, "
        f"higher than at {found.higher} of {places}"
    )
    if found.verdict == "-":
        return Finding(name, "-", f"{sentence}, which are too few to compare with", numbers), ""
    few = found.lower < EVEN * places, found.higher < EVEN * places
    if not found.falls:
        reason = f"without its strongest patches the probability {'rises' if found.rises else 'stays the same'}"
    elif any(few):
        what = "are no better" if all(few) else "are needed no more" if few[0] else "say no more alone"
        reason = f"its strongest patches {what} than the same ones elsewhere"
    elif max(found.lower, found.higher) >= CLEAR * places:
        reason = "its strongest patches are neither needed nor enough"
        if found.is_needed or found.is_enough:
            reason = "its strongest patches are hardly better than the same ones elsewhere, without them or alone"
    else:
        reason = "its strongest patches are hardly better than the same ones elsewhere"
    return Finding(name, found.verdict, sentence, numbers), reason
