"""What the model was shown, step by step, as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.metrics.states.need import States
from vitreous.metrics.states.writers import perturbed
from vitreous.models import View
from vitreous.show import figures
from vitreous.words import check_choice

__all__ = ["states_strip"]


def states_strip(
    view: View,
    inputs: Tensor,
    maps: Mapping[str, Tensor],
    need: States,
    steps: Sequence[int] | None = None,
    target: int | str | None = None,
    *,
    upsample: str = "bilinear",
    ties: str = "random",
    seed: int = 0,
    width: str | float = "page",
) -> figures.Figure:
    """Draw what the model was shown: one image with more and more pixels gone, in the order of each method's map.

    ``inputs`` is one input ``[3, H, W]``, ``maps`` has a map ``[h, w]`` for every name, ``need`` the states of a metric
    (``Need.removed("black", counts)``) and ``steps`` which of them to show. Under each stands the probability of
    ``target``, or else of the predicted class. Cost: a forward for every picture.
    """
    if need.unit != "pixel":
        raise VitreousError(f"only states of pixels are pictures that the model was shown, not those of {need.unit}s")
    check_choice("upsample", upsample, ("bilinear", "nearest"))
    image = inputs[None] if inputs.ndim == 3 else inputs
    if len(image) != 1 or not maps:
        raise VitreousError(f"a strip shows one image and at least one map, not {len(image)} and {len(maps)}")
    chosen = list(range(len(need.spans)) if steps is None else steps)
    for step in chosen:
        if not 0 <= step < len(need.spans):
            raise VitreousError(f"step {step} is not one of the {len(need.spans)} states")
    index = int(view.logits(image).argmax()) if target is None else view.class_index(target)
    some = States(need.unit, need.substrate, need.keep, tuple(need.spans[step] for step in chosen))
    rows, notes = {}, {}
    for name, map in maps.items():
        states = perturbed(view, image, torch.as_tensor(map)[None], some, upsample=upsample, ties=ties, seed=seed)[0]
        rows[name] = [view.preprocess.picture(each) for each in states]
        chances = view.logits(states).double().softmax(dim=1)[:, index]
        notes[name] = [f"{float(each):.2f}" for each in chances]
    size = image.shape[-1] * image.shape[-2]
    word = "kept" if need.keep else "removed"
    columns = [f"{count / size:.0%} {word}" for count in some.counts]
    note = f"Under each picture the probability of {view.label(index)}; pixels in the order of each map."
    return figures.strips(rows, columns, notes, "", note, width=width)
