"""Changing a value inside the forward: what would the model say if this place had another output?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.models import View

__all__ = ["Change", "logits_with", "replaced"]

Change = Callable[[Tensor], Tensor]
"""Takes what a place computed, images first, and returns what it shall be instead."""


@contextmanager
def replaced(view: View, layer: int, site: str, change: Change) -> Iterator[None]:
    """Inside, ``norm1``, ``attn``, ``norm2`` or ``mlp`` of a block gives the changed output; outside, its own again."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return change(output) if isinstance(output, Tensor) else (change(output[0]), *output[1:])

    handle = view.site(layer, site).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def logits_with(view: View, tokens: Tensor, layer: int, site: str, change: Change) -> Tensor:
    """Return the logits of tokens that enter block ``layer``, with one place of that block changed.

    ``input`` and ``output`` are places too. Evaluation mode, no gradients, the model's own precision.
    """
    plain = torch.autocast(tokens.device.type, enabled=False)
    with torch.no_grad(), plain, view.evaluating():
        if site == "input":
            tokens = view.block(layer, change(tokens))
        elif site == "output":
            tokens = change(view.block(layer, tokens))
        else:
            with replaced(view, layer, site, change):
                tokens = view.block(layer, tokens)
        return view.finish(view.run(tokens, layer + 1))
