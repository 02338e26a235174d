"""Class activation maps from one hand-made forward."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import reference_vit
import vitreous as vt
from families import FAMILIES, images

TARGET = 3


class Reference:
    """One hand-made forward of two images; features and gradients as numpy arrays, images first."""

    def __init__(self, family: str) -> None:
        self.model = FAMILIES[family]().double()
        self.images = images(self.model, 2)
        self.watched = self.images.clone().requires_grad_()
        self.run = reference_vit.forward(self.model, self.watched)
        self.prefix = self.model.num_prefix_tokens

    def pair(self, tensor: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        """The features and the gradient of each image, prefix included."""
        gradient = torch.autograd.grad(self.run.logits[:, TARGET].sum(), tensor, retain_graph=True)[0]
        return list(zip(tensor.detach().numpy(), gradient.numpy(), strict=True))

    def check(self, spec: str, expected: list[np.ndarray], rtol: float = 1e-8) -> None:
        """``expected`` is one number per patch for each image."""
        found = vt.get_method(spec).attribute(self.model, self.images, target=TARGET)
        for image, wanted in zip(found.numpy(), expected, strict=True):
            assert np.allclose(image.ravel(), wanted, rtol=rtol, atol=1e-10 * np.abs(wanted).max())
