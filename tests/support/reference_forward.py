"""One hand-made forward of a vision transformer for all methods that are compared with it."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

import reference_vit
import vitreous as vt
from families import FAMILIES, images

TARGET = 3


class Reference:
    """One hand-made forward of two images, and the gradient of the target with respect to anything in it."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.model = FAMILIES[family]().double()
        self.images = images(self.model, 2)
        self.watched = self.images.clone().requires_grad_()
        self.run = reference_vit.forward(self.model, self.watched)
        self.prefix = self.model.num_prefix_tokens
        self.depth = len(self.model.blocks)

    def gradient(self, tensor: Tensor) -> Tensor:
        return torch.autograd.grad(self.run.logits[:, TARGET].sum(), tensor, retain_graph=True)[0]

    def pair(self, tensor: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        """A value and its gradient in numpy, image by image, prefix included."""
        return list(zip(tensor.detach().numpy(), self.gradient(tensor).numpy(), strict=True))

    def rows(self) -> list[int]:
        """The tokens that the head reads; their mean where there are several."""
        tokens = self.run.inputs[0].shape[1]
        if isinstance(self.model, reference_vit.VisionTransformerDistilled):
            return [0, 1]
        if self.model.global_pool == "token":
            return [0]
        return list(range(0 if self.model.pool_include_prefix else self.prefix, tokens))

    def check(self, spec: str, expected: Tensor, rtol: float = 1e-9) -> None:
        """Compare the map with one number per token, prefix included, or per patch, or per pixel."""
        maps = vt.get_method(spec).attribute(self.model, self.images, target=TARGET)
        if expected.ndim == 2:
            patches = maps[0].numel()
            expected = expected[:, expected.shape[1] - patches :].reshape(maps.shape)
        assert torch.allclose(maps, expected, rtol=rtol, atol=max(1e-11, 1e-10 * float(expected.abs().max())))


reference_of = cache(Reference)
"""The one of a family, for all tests that leave its model alone."""
