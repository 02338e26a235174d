"""A linear model behind the methods of a VisionModel, and maps sent straight to the evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vitreous as vt
from vitreous.metrics import Evaluation, EvaluationConfig, Evaluator, ImageShape, Maps
from vitreous.models import Pooling, Preprocess, VisionModel


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pooled(
    model: vt.VisionModel, inputs: Tensor, maps: Tensor, metrics: list[str], **options: Any
) -> tuple[Evaluator, Evaluation]:
    """One method's maps straight through the pool."""
    image_shape = ImageShape(tuple(inputs.shape[2:]), model.grid(inputs))
    config, instances = EvaluationConfig(**options), [vt.get_metric(metric) for metric in metrics]
    pool = Evaluator(model, instances, image_shape, ["pred"], config)
    looked = pool.runner.forward(inputs)
    rows = {mode: np.arange(len(inputs)) for mode in pool.modes}
    pool.add(inputs, looked, {"pred": looked.argmax(dim=1)}, {"it": Maps(maps, rows)})
    return pool, pool.finish()["it"]


class Linear(VisionModel):
    """``f(x) = w · x`` for class 1 and nothing for class 0, behind the verbs of a view."""

    def __init__(self, weights: Tensor) -> None:
        self.module = nn.Linear(weights.numel(), 2, bias=False)
        self.module.weight.data = torch.stack([torch.zeros(weights.numel()), weights.flatten()])
        self.name, self.family, self.depth, self.embed_dim, self.num_heads, self.num_prefix_tokens = (
            "linear",
            "linear",
            0,
            1,
            1,
            0,
        )
        self.pooling, self.preprocess, self.num_classes = Pooling("avg", 0), Preprocess(size=(8, 8)), 2

    def embed(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1)[:, None]

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        return tokens

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.module(tokens[:, 0])

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return self.module(inputs.flatten(1))

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return 4, 4

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        raise NotImplementedError

    def operation_counts(self, layer: int | None) -> Mapping[str, int]:
        return {}
