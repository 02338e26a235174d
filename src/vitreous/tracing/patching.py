"""Changing values inside the forward: what would the model say if these places had other outputs?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models import VisionModel
from vitreous.tracing.observer import Observer
from vitreous.tracing.records import Patch
from vitreous.tracing.rules import GRADIENT

__all__ = ["Patch", "logits_through", "logits_with", "replaced"]


@contextmanager
def replaced(model: VisionModel, layer: int, point: str, change: Patch) -> Iterator[None]:
    """Inside, ``norm1``, ``attn``, ``norm2`` or ``mlp`` of a block gives the changed output; outside, its own again.

    One module may be several blocks, so this is for the time that one of them runs, and for modules of a twin.
    """

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return change(output) if isinstance(output, Tensor) else (change(output[0]), *output[1:])

    handle = model.hook_point(layer, point).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def logits_through(
    model: VisionModel, tokens: Tensor, first: int, point: str, changes: Mapping[int, Patch], half: bool = False
) -> Tensor:
    """Return the logits of tokens that enter block ``first``, with one place of several blocks changed.

    ``input`` and ``output`` are places too; ``input`` of the layer after the last block is what the head gets.
    ``attention`` are the weights ``[B, H, N, N]``, written out in the changed blocks.
    Evaluation mode, the model's own precision or, with ``half``, float16 where torch holds that safe; gradients as the
    surroundings say.
    """
    model = model.shared_copy()
    with torch.autocast(tokens.device.type, torch.float16 if half else None, enabled=half):
        for layer in range(first, model.depth):
            if point == "resid_pre" and layer in changes:
                tokens = changes[layer](tokens)
            with _changed(model, layer, point, changes):
                tokens = model.forward_block(layer, tokens)
            if point == "resid_post" and layer in changes:
                tokens = changes[layer](tokens)
        if point == "resid_pre" and model.depth in changes:
            tokens = changes[model.depth](tokens)
        return model.forward_head(tokens)


@contextmanager
def _changed(model: VisionModel, layer: int, point: str, changes: Mapping[int, Patch]) -> Iterator[None]:
    if layer not in changes or point in ("resid_pre", "resid_post"):
        yield
    elif point != "attn_weights":
        with replaced(model, layer, point, changes[layer]):
            yield
    else:
        observer = Observer(model, (), GRADIENT, None, {layer: changes[layer]})
        with observer, observer.inside(layer):
            yield


def logits_with(model: VisionModel, tokens: Tensor, layer: int, point: str, change: Patch) -> Tensor:
    """Return the logits of tokens that enter block ``layer``, with one place of that block changed; no gradients."""
    with torch.no_grad():
        return logits_through(model, tokens, layer, point, {layer: change})
