"""Chains of blocks as the layouts of convolutional networks have them, whatever the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from vitreous.models.conv import Chain

__all__ = ["by_convolutions", "by_stages", "dense"]


def by_stages(stages: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> Chain:
    """One block for each path of every stage; what runs ``after`` a stage ends its last block."""
    blocks: list[tuple[str, ...]] = [(path,) for stage in stages for path in stage]
    ends = [sum(map(len, stages[: n + 1])) - 1 for n in range(len(stages))]
    for end, more in zip(ends, after, strict=True):
        blocks[end] = (*blocks[end], *more)
    return tuple(blocks)


def by_convolutions(model: Any) -> Chain:
    """One block for each convolution of ``features``, with all that follows it up to the next.

    What pools the last of them belongs to the head, so that the last map is that of the last convolution, rectified.
    """
    blocks: list[tuple[str, ...]] = []
    for name, part in model.features.named_children():
        path = f"features.{name}"
        if isinstance(part, nn.Conv2d):
            blocks.append((path,))
        elif blocks:
            blocks[-1] = (*blocks[-1], path)
    pooling = [path for path in blocks[-1] if isinstance(model.get_submodule(path), nn.MaxPool2d | nn.AvgPool2d)]
    blocks[-1] = tuple(path for path in blocks[-1] if path not in pooling)
    return tuple(blocks)


def dense(model: Any) -> Chain:
    """One block for each dense block of ``features``, with what follows it: a transition, or the last norm.

    Inside a dense block every layer reads all layers before it, so that it cannot be cut further.
    """
    blocks: list[tuple[str, ...]] = []
    for name, _ in model.features.named_children():
        if name.startswith("denseblock"):
            blocks.append((f"features.{name}",))
        elif blocks:
            blocks[-1] = (*blocks[-1], f"features.{name}")
    return tuple(blocks)
