"""A view is proven: on its first inputs it is compared with the model's own forward.

A subclass, a patched ``forward`` or a hook at the root may compute something else than the parts that a view runs. What
a model says is then not what would be explained, and it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, one_line

if TYPE_CHECKING:
    from vitreous.models.view import View

__all__ = ["gap", "prove", "structure"]

_proven: WeakKeyDictionary[nn.Module, tuple[Any, ...]] = WeakKeyDictionary()


def prove(view: View, inputs: Tensor) -> None:
    """Compare the view with its model on the first of these images, unless both were found equal before.

    The copy that passes run on is held against the model too, if that is in evaluation mode. Cost: two or three
    forwards of one image, once for each structure of a model and size of its inputs.
    """
    now = (type(view), tuple(inputs.shape[1:]), inputs.dtype, *structure(view.model))
    if _proven.get(view.model) == now:
        return
    seen, image = view.twin(), inputs[:1].detach()
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(inputs.device.type, enabled=False):
        image = image.clone() if image.is_inference() else image
        logits = seen.finish(seen.run(seen.embed(image)))
        _compare(view, logits, _own(seen, image), "its own forward")
        if not any(module.training for module in view.model.modules()):
            _compare(view, logits, _own(view, image), "the model itself, called as it is,")
    _proven[view.model] = now


def gap(logits: Tensor, expected: Tensor) -> tuple[float, bool]:
    """Return the largest difference of logits, and whether it is more than rounding."""
    one, other = logits.double(), expected.double()
    same = (one == other) | (one.isnan() & other.isnan())  # a class may be shut out with minus infinity
    off = float(torch.where(same, 0.0, (one - other).abs()).max())
    size = max(1.0, float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 1.0)
    return off, not off <= _rounding(expected.dtype, expected.device.type) * size


def _rounding(dtype: torch.dtype, device: str) -> float:
    """Return by how much equal sums may differ: a GPU may multiply float32 in TF32, with ten bits behind the point."""
    if dtype in (torch.float16, torch.bfloat16):
        return 1e-2
    short = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    return 2e-3 if dtype == torch.float32 and device == "cuda" and short else 1e-4


def _own(view: View, image: Tensor) -> Tensor:
    try:
        return view.original(image)
    except Exception as error:  # a forward of the user's own can fail anywhere
        reason = one_line(f"{type(error).__name__}: {error}")[:200]
        raise ModelError(f"{view.name}: its own forward fails on one image ({reason})") from error


def _compare(view: View, logits: Tensor, expected: Any, whose: str) -> None:
    if not isinstance(expected, Tensor) or expected.shape != logits.shape:
        told = list(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
        raise ModelError(f"{view.name}: {whose} gives {told}, its parts {list(logits.shape)}; explain the model inside")
    off, different = gap(logits, expected)
    if different:
        said, would = (int(each[0].float().argmax()) for each in (expected, logits))
        raise ModelError(
            f"{view.name} computes something else than its parts: {whose} says class {said}, its blocks and head class "
            f"{would} (logits differ by {off:.1e}); a subclass, a patched forward or a hook changes it"
        )


def structure(model: nn.Module) -> list[Any]:
    """Return what decides which parts a forward runs through: modules, their forwards and their hooks."""
    return [
        (id(m), id(type(m).forward), id(vars(m).get("forward")), *m._forward_hooks, *m._forward_pre_hooks)
        for m in model.modules()
    ]
