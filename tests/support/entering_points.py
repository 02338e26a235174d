"""What the tests of methods that run many copies of an image share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vitreous as vt

TARGET = 1


def gradient(model: nn.Module, x: Tensor, target: int = TARGET) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(model(x)[:, target].sum(), x)[0]


def entering(model: nn.Module, spec: str, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """All inputs that a method runs, its map and extras."""
    seen: list[Tensor] = []
    with model.patch_embed.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone())):
        actual, extras = vt.get_method(spec).attribute(model, x, TARGET, extras=True)
    return (
        torch.cat([item for item in seen if not all(any(torch.equal(e, i) for i in x) for e in item)]),
        actual,
        extras,
    )
