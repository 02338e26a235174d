"""Small convolutional networks as chains of dense matrices: what slow references of relevance and DeepLift walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Residual", "dense", "sequential", "windows"]


def _random(model: nn.Module, size: int) -> Any:
    """Weights of both signs, biases, and statistics of batch norms that are far from nothing."""
    generator = torch.Generator().manual_seed(3)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if not value.is_floating_point():
            continue
        numbers = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            numbers = 0.5 + torch.rand(value.shape, generator=generator)
        elif value.ndim > 1:
            numbers = 1.5 * numbers / value[0].numel() ** 0.5
        elif not name.endswith(("bias", "mean")):
            numbers = 1 + 0.3 * numbers
        else:
            numbers = 0.3 * numbers
        value.data.copy_(numbers)
    model.image_size = (size, size)
    return model.double().eval()


def sequential(size: int = 8) -> Any:
    """Convolutions with and without batch norm, pooling windows that overlap, a mean, two linear layers."""
    return _random(
        nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(True),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(4, 6, 3, padding=1, groups=2),
            nn.ReLU(True),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(24, 7),
            nn.ReLU(True),
            nn.Linear(7, 3),
        ),
        size,
    )


class Residual(nn.Module):
    """A first layer, a block that adds to its input, a mean and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.body = nn.Sequential(
            nn.Conv2d(4, 5, 3, padding=1, bias=False),
            nn.BatchNorm2d(5),
            nn.ReLU(True),
            nn.Conv2d(5, 4, 1, bias=False),
            nn.BatchNorm2d(4),
        )
        self.relu, self.fc = nn.ReLU(True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        out = self.body(x)
        out += x
        return self.fc(self.relu(out).mean(dim=(2, 3)))

    @classmethod
    def random(cls, size: int = 8) -> Any:
        return _random(cls(), size)


def dense(affine: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return ``W [out, in]`` and ``b`` of an affine function of one input, found by asking it."""
    count = int(torch.Size(shape).numel())
    basis = torch.eye(count, dtype=torch.float64).reshape(count, *shape)
    with torch.no_grad():
        offset = affine(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        return (affine(basis).flatten(1) - offset).T, offset


def windows(shape: tuple[int, ...], kernel: int, stride: int, padding: int) -> list[list[int]]:
    """Return which numbers of a map ``[C, H, W]`` each window of a pooling sees, as flat indices."""
    channels, height, width = shape
    seen = []
    for channel in range(channels):
        for top in range(-padding, height + padding - kernel + 1, stride):
            for left in range(-padding, width + padding - kernel + 1, stride):
                rows = [row for row in range(top, top + kernel) if 0 <= row < height]
                columns = [column for column in range(left, left + kernel) if 0 <= column < width]
                seen.append([(channel * height + row) * width + column for row in rows for column in columns])
    return seen
