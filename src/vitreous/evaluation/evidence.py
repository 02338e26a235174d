"""Is what a map ranks highest needed by the model, and is it enough?

The strongest fifth of the patches is blurred away, and it is left alone. How much either says is judged by controls:
the same patches moved to other places of the same image, so that size, shape and what is put in their place are the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.nn import functional as F

from vitreous.html import percent, printed
from vitreous.results import Finding
from vitreous.tracing import Context, probabilities
from vitreous.tracing.memory import InnerBatch, inner_batch
from vitreous.tracing.prng import PRNGKey

_SHARE = 0.2
MAX_CONTROLS, MIN_CONTROLS = 20, 10
"""How many other places are tried, and from how many on a rank among them says anything."""
CLEAR, LIKELY, EVEN = 0.95, 0.75, 0.5
"""Of the other places, nearly all, most and half: chosen with ``benchmarks/verdicts.py``, which says how often each
verdict is wrong."""


@dataclass(frozen=True)
class Evidence:
    """The probability of the explained class for an image, and for the same image with patches blurred.

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
    """Without the same patches moved elsewhere; one number for each position."""
    others_alone: tuple[float, ...]
    size: tuple[int, int] = (0, 0)
    """How many patches are blurred or left alone, of how many."""
    keeps_prediction: bool = True
    """Whether the strongest fifth alone is still predicted to be this class, if the image is."""

    @property
    def lower(self) -> int:
        """At how many other places taking patches away hurts less; a tie is none."""
        return sum(printed(self.without) < printed(other) for other in self.others_without)

    @property
    def higher(self) -> int:
        """How many other places have less when left alone; a tie is none."""
        return sum(printed(self.alone) > printed(other) for other in self.others_alone)

    @property
    def moves(self) -> bool:
        """Whether any of these images has another probability than the one as it is."""
        states = (self.without, self.alone, *self.others_without, *self.others_alone)
        return any(printed(state) != printed(self.now) for state in states)

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
        return len(self.others_without) >= MIN_CONTROLS

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

        Good: the probability falls, the fifth is needed or enough, and by the other count it still beats most
        positions. Weak: the probability does not rise, and nearly all places are beaten by one of both, or most by
        one and half of them by the other.
        """
        count = len(self.others_without)
        if not self.is_compared or not self.moves:
            return "-"
        least, most = sorted((self.lower / count, self.higher / count))
        if self.falls and (self.is_needed or self.is_enough) and least >= LIKELY:
            return "good"
        beaten = most >= CLEAR or (most >= LIKELY and least >= EVEN)
        return "weak" if beaten and not self.rises else "bad"

    @property
    def numbers(self) -> dict[str, float]:
        """What a finding keeps of it; of the other places the medians."""
        medians = [float(np.median(others or (self.now,))) for others in (self.others_without, self.others_alone)]
        (class_without, top_without), (class_alone, top_alone) = self.predictions
        return {
            "now": self.now, "without": self.without, "alone": self.alone,
            "others_without": medians[0], "others_alone": medians[1],
            "lower": self.lower, "higher": self.higher, "places": len(self.others_without),
            "class_without": class_without, "class_alone": class_alone,
            "top_without": top_without, "top_alone": top_alone,
            "patches": self.size[0], "of": self.size[1],
            "compared": self.is_compared, "needed": self.is_needed, "enough": self.is_enough,
        }  # fmt: skip


def strongest(map: Tensor) -> Tensor:
    """Return which fifth of the patches ``[h, w]`` has the largest values; at least one, the first of equal ones."""
    flat = map.flatten()
    mask = torch.zeros(len(flat), dtype=torch.bool)
    mask[flat.cpu().argsort(descending=True, stable=True)[: max(1, round(_SHARE * len(flat)))]] = True
    return mask.view(map.shape)


def moved(mask: Tensor, key: PRNGKey, most: int = MAX_CONTROLS) -> Tensor:
    """Return a selection ``[h, w]`` moved elsewhere, ``[n, h, w]``: what leaves at one side enters at the other.

    The positions are drawn at random, each once; fewer than ``most`` where there are fewer that differ.
    """
    width = mask.shape[1]
    different = {mask.numpy().tobytes(): mask}
    for index in key.permutation(mask.numel())[0].tolist():
        other = mask.roll((index // width, index % width), dims=(0, 1))
        different.setdefault(other.numpy().tobytes(), other)
        if len(different) > most:
            break
    others = list(different.values())[1:]
    return torch.stack(others) if others else mask.new_zeros(0, *mask.shape)


def blurred(image: Image.Image) -> Image.Image:
    """Return the image of which patches are taken where others are gone."""
    return image.convert("RGB").filter(ImageFilter.GaussianBlur(max(image.size) / 14))


def on_pixels(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Return selections of patches ``[n, h, w]`` on ``(height, width)`` pixels: each that of the patch it lies in."""
    return F.interpolate(masks[:, None].float(), size=tuple(size), mode="nearest-exact")[:, 0] > 0


def replaced(image: Image.Image, other: Image.Image, mask: Tensor) -> Image.Image:
    """Return an image whose selected patches come from another one."""
    (pixels,) = on_pixels(mask[None], (image.height, image.width))
    selected = Image.fromarray((pixels.numpy() * 255).astype(np.uint8))
    return Image.composite(other.convert("RGB"), image.convert("RGB"), selected)


def measure(
    context: Context,
    image: Image.Image,
    map: Tensor,
    target: int,
    compare_classes: Sequence[int] | None = None,
    class_subset: Sequence[int] | None = None,
) -> Evidence:
    """Return what the model says about the one input of a context and its ``image`` with patches blurred.

    The probability of ``target`` is that among ``compare_classes``, the prediction one of ``class_subset``; of all
    classes where there are none. Cost: 43 forwards.
    """
    model, inputs = context.model, context.inputs
    mask = strongest(map)
    others = moved(mask, PRNGKey.of_images(context.seed, "check", inputs.cpu()))
    removed = torch.cat([torch.zeros_like(mask)[None], mask[None], ~mask[None], others, ~others])
    blur, clean = model.cast(model.preprocess.to_tensor(blurred(image))[None]), model.cast(inputs)

    def run(start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        pixels = on_pixels(removed[start:stop], clean.shape[-2:])[:, None].to(clean.device)
        logits = model.logits(torch.where(pixels, blur, clean))
        if context.on_progress is not None:
            context.on_progress(stop - start)
        top, classes = probabilities(logits, class_subset).max(dim=1)
        return probabilities(logits, compare_classes)[:, target].cpu(), classes.cpu(), top.cpu()

    batches = InnerBatch(inner_batch(model, clean, context.memory_gb)).run(run, len(removed))
    own, classes, top = (torch.cat(column).tolist() for column in zip(*batches, strict=True))
    split = 3 + len(others)
    return Evidence(
        now=own[0],
        without=own[1],
        alone=own[2],
        predictions=((classes[1], top[1]), (classes[2], top[2])),
        others_without=tuple(own[3:split]),
        others_alone=tuple(own[split:]),
        size=(int(mask.sum()), mask.numel()),
        keeps_prediction=classes[0] != target or classes[2] == target,
    )


def faithfulness(evidence: Evidence, label: str) -> tuple[Finding, str]:
    """Return the finding about the explanation of a class, and the reason if it is not good."""
    name, numbers = "faithfulness", evidence.numbers
    count, now = len(evidence.others_without), percent(evidence.now)
    if not evidence.moves:
        return Finding(name, "-", f"the probability of {label} stays at {now}, whatever is blurred", numbers), ""
    sentence = (
        f"without its strongest fifth {label} goes from {now} to {percent(evidence.without)}, lower than at "
        f"{evidence.lower} of {count} other places of the same size and shape; alone it has "
        f"{percent(evidence.alone)}, higher than at {evidence.higher} of {count}"
    )
    if evidence.verdict == "-":
        return Finding(name, "-", f"{sentence}, which are too few to compare with", numbers), ""
    return Finding(name, evidence.verdict, sentence, numbers), _reason(evidence)


def _reason(evidence: Evidence) -> str:
    count = len(evidence.others_without)
    few = evidence.lower < EVEN * count, evidence.higher < EVEN * count
    if not evidence.falls:
        return f"without its strongest patches the probability {'rises' if evidence.rises else 'stays the same'}"
    if any(few):
        what = "are no better" if all(few) else "are needed no more" if few[0] else "say no more alone"
        return f"its strongest patches {what} than the same ones elsewhere"
    hardly = "its strongest patches are hardly better than the same ones elsewhere"
    if max(evidence.lower, evidence.higher) < CLEAR * count:
        return hardly
    if evidence.is_needed or evidence.is_enough:
        return f"{hardly}, without them or alone"
    return "its strongest patches are neither needed nor enough"
