"""A view is proven: on its first inputs it is compared with the model's own forward.

A subclass, a patched ``forward`` or a hook at the root may compute something else than the parts that a view runs. What
a model says is then not what would be explained, and it is refused. How tokens are pooled, which modules are not as
their library built them, and which tensors a forward writes is found on the same occasion. All of it is found again
when anything was changed that decides what a forward does: ``changes.structure``, compared at every call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError, one_line
from vitreous.models.changes import Watch, Writes, deviations, note_state, state_names, structure
from vitreous.models.pooling import Pooling
from vitreous.models.twin import writers

if TYPE_CHECKING:
    from vitreous.models.view import View

__all__ = ["gap", "prove", "rounding"]


class _Record(NamedTuple):
    """What was found about a model when it was verified."""

    structure: list[int]
    watch: Watch
    pooling: Pooling | None
    """``None`` where what the view says holds."""
    deviations: dict[str, str]
    layers: frozenset[int]


_proven: WeakKeyDictionary[nn.Module, dict[Any, _Record]] = WeakKeyDictionary()


def prove(view: View, inputs: Tensor) -> None:
    """Compare the view with its model on the first of these images, unless both were found equal before.

    The copy that passes run on is held against the model too, if that is in evaluation mode and its forward writes
    nothing. Cost: two or three forwards of one image, once for each structure of a model and size of its inputs.
    """
    key = (type(view), view.part_of_model, tuple(inputs.shape[1:]), inputs.dtype)
    record, now = _proven.get(view.model, {}).get(key), structure(view.model)
    if record is None or record.structure != now or not record.watch.holds():
        record = _verify(view, inputs[:1].detach())
        records = {k: r for k, r in _proven.get(view.model, {}).items() if r.structure == record.structure}
        if record.pooling is not None or view.has_own_pooling:  # a head of zeros may be trained, and read tokens then
            _proven[view.model] = {**records, key: record}
    if view.deviations is not record.deviations:
        view.pooling, view.deviations, view.deviating = record.pooling or view.pooling, record.deviations, record.layers


def _verify(view: View, image: Tensor) -> _Record:
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(image.device.type, enabled=False):
        image = image.clone() if image.is_inference() else image
        seen, other = (view.twin(own_tensors=True) for _ in range(2))
        written = [Writes(view.model, each.model) for each in (seen, other)]
        logits = seen.finish(seen.run(seen.embed(image)))
        _compare(view, logits, _own(other, image), "its own forward")
        tensors = frozenset().union(*(each.tensors() for each in written))
        for module, names in written[1].names().items():
            note_state(module, names)
        writers[view.model] = tensors
        has_state = bool(tensors) or any(module in state_names for module in view.model.modules())
        if not has_state and not any(module.training for module in view.model.modules()):
            _compare(view, logits, _own(view, image), "the model itself, called as it is,")
    odd = deviations(view.model)
    pooling = None if view.has_own_pooling else view.read_pooling()
    return _Record(structure(view.model), Watch(view.model), pooling, odd, _layers(view, odd))


def _layers(view: View, odd: dict[str, str]) -> frozenset[int]:
    """Return the blocks in which a module is not as its library built it."""
    if not odd:
        return frozenset()
    modules = {id(view.model.get_submodule(path)) for path in odd}
    try:
        blocks = [view.block_at(layer) for layer in range(view.depth)]
    except ModelError:  # it does not tell its blocks
        return frozenset(range(view.depth))
    return frozenset(layer for layer, block in enumerate(blocks) if any(id(m) in modules for m in block.modules()))


def gap(logits: Tensor, expected: Tensor) -> tuple[float, bool]:
    """Return the largest difference of logits, and whether it is more than rounding."""
    one, other = logits.double(), expected.double()
    same = (one == other) | (one.isnan() & other.isnan())  # a class may be shut out with minus infinity
    off = float(torch.where(same, 0.0, (one - other).abs()).max())
    size = max(1.0, float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 1.0)
    return off, not off <= rounding(expected.dtype, expected.device.type) * size


def rounding(dtype: torch.dtype, device: str) -> float:
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
