"""Tiny Swins of every library, and their attention between all patches by loops over windows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, cached_property, partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2
from torchvision.models.swin_transformer import SwinTransformer as TorchvisionSwin

import vitreous as vt
from families import images

__all__ = ["ODD", "SWINS", "hf", "same", "slow_of", "timm", "torchvision"]

TIMM: dict[str, Any] = {"patch_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
TV: dict[str, Any] = {**TIMM, "patch_size": [4, 4], "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
V2: dict[str, Any] = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
ODD = (36, 52)  # 9 x 13 patches, then 5 x 7: neither windows of 4 nor pairs fit


def seeded(model: nn.Module, size: Any = None) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.05 if "cpb" in name else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter += 1
    if size is not None:
        model.image_size = size
    return model.double().eval()


def timm(make: Any = SwinTransformer, window: int = 4, size: Any = 32, **more: Any) -> Any:
    return seeded(make(img_size=size, window_size=window, **TIMM, **more))


def torchvision(size: Any = 32, **more: Any) -> Any:
    return seeded(TorchvisionSwin(**{**TV, **more}), size)


def hf(size: Any = 32, attention: str = "eager") -> Any:
    import transformers

    config = transformers.SwinConfig(
        image_size=size, patch_size=4, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    kind = transformers.SwinForImageClassification
    if attention == "sdpa" and not getattr(kind, "_supports_sdpa", False):
        pytest.skip(f"transformers {transformers.__version__} has no fused attention for Swin")
    model = kind._from_config(config, attn_implementation=attention)
    return seeded(model)


SWINS: dict[str, Callable[[], Any]] = {
    "timm": timm,
    "timm_odd": partial(timm, size=ODD),
    "timm_tall": partial(timm, size=(52, 36)),  # older timm: its last mask is of fewer windows than there are
    "timm_dynamic": partial(timm, size=ODD, strict_img_size=False),  # every forward makes its own masks
    "timm_wide": partial(timm, size=(16, 48)),  # a window as high as the grid: shifted sideways only
    "timm_partition": partial(timm, window=6, always_partition=True),  # windows larger than the last grid
    "timm_v2": partial(timm, SwinTransformerV2),
    "timm_v2_wide": partial(timm, SwinTransformerV2, size=(32, 64)),
    "timm_v2_dynamic": partial(timm, SwinTransformerV2, size=ODD, strict_img_size=False),
    "tv": torchvision,
    "tv_odd": partial(torchvision, ODD),
    "tv_wide": partial(torchvision, (16, 48), window_size=[4, 3]),
    "tv_v2": partial(torchvision, **V2),
    "tv_v2_odd": partial(torchvision, ODD, **V2),
}
if find_spec("transformers") is not None:
    SWINS |= {"hf": hf, "hf_odd": partial(hf, ODD), "hf_wide": partial(hf, (32, 64))}


class Slow:
    """Attention and its gradient between all patches, by loops over windows, on the model's own forward."""

    def __init__(self, kind: str) -> None:
        self.kind, self.target = kind, 1
        self.view = vt.wrap(SWINS[kind]())
        self.x = images(self.view, 2)
        self.grids = [self.view.grid(layer=layer) for layer in range(4)]

    def maps(self, spec: str) -> Tensor:
        return vt.get_method(spec).attribute(self.view, self.x, target=self.target)

    def pairs(self, run: Callable[[], Tensor], layers: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Return attention and gradient ``[B, H, N, N]`` of these layers, which are the ones that run."""
        weights: list[Tensor] = []
        base = F.softmax

        def spy(*args: Any, **options: Any) -> Tensor:
            out = base(*args, **options)
            weights.append(out)
            return out

        F.softmax = spy  # all these models compute their attention with it
        try:
            score = run()
        finally:
            F.softmax = base
        assert len(weights) == len(layers)
        slopes = torch.autograd.grad(score, weights)
        actual = []
        for layer, a, g in zip(layers, weights, slopes, strict=True):
            attention, slope = self.folded(a.detach(), layer), self.folded(g, layer)
            actual.append((attention, slope * (attention > 1e-30)))  # what the mask hides has e^-100 at most
        return actual

    @cached_property
    def full_matrices(self) -> list[tuple[Tensor, Tensor]]:
        return self.pairs(lambda: self.view.reference_forward(self.x)[:, self.target].sum(), [0, 1, 2, 3])

    def folded(self, apart: Tensor, layer: int) -> Tensor:
        height, width = self.grids[layer]
        tall, broad = self.window(layer)
        below, neighbour = self.shift(layer)
        rows, columns = -(-height // tall), -(-width // broad)
        apart = apart.reshape(len(self.x), rows, columns, *apart.shape[1:])
        out = torch.zeros(len(self.x), apart.shape[3], height * width, height * width, dtype=torch.float64)
        for down in range(rows):
            for horizontal in range(columns):
                index = []
                for y in range(down * tall, (down + 1) * tall):
                    for x in range(horizontal * broad, (horizontal + 1) * broad):
                        if self.kind.startswith("timm"):  # rolled, then padded
                            real = y < height and x < width
                            place = (y + below) % height, (x + neighbour) % width
                        else:  # padded, then rolled
                            place = (y + below) % (rows * tall), (x + neighbour) % (columns * broad)
                            real = place[0] < height and place[1] < width
                        index.append(place[0] * width + place[1] if real else None)
                for i, row in enumerate(index):
                    for j, column in enumerate(index):
                        if row is not None and column is not None:
                            out[:, :, row, column] = apart[:, down, horizontal, :, i, j]
        return out

    def sides(self, layer: int) -> tuple[int, int]:
        """What a block takes for its grid. timm's is asked: not every version of it halves an odd side as it merges."""
        if not self.kind.startswith("timm"):
            return self.grids[layer]
        height, width = [block for stage in self.view.module.layers for block in stage.blocks][layer].input_resolution
        return height, width

    def window(self, layer: int) -> tuple[int, int]:
        height, width = self.sides(layer)
        tall, broad = {"tv_wide": (4, 3), "timm_partition": (6, 6)}.get(self.kind, (4, 4))
        smaller = self.kind.startswith("timm") and self.kind != "timm_partition"
        return (min(tall, height), min(broad, width)) if smaller else (tall, broad)

    def shift(self, layer: int) -> tuple[int, int]:
        if layer % 2 == 0:
            return 0, 0
        if self.kind == "timm_partition":
            return 3, 3
        if self.kind.startswith("hf"):
            return (0, 0) if min(self.grids[layer]) <= 4 else (2, 2)
        sides = zip(self.sides(layer), self.window(layer), strict=True)
        down, columns = (0 if side <= window else window // 2 for side, window in sides)
        return down, columns

    def merge(self, patches: Tensor) -> Tensor:
        """Run the model's own merging of patches ``[B, h, w, C]``, and return patches ``[B, N2, C2]``."""
        model = self.view.module
        if self.kind.startswith("timm"):
            merged = model.layers[1].downsample(patches)
        elif self.kind.startswith("tv"):
            merged = model.features[2](patches)
        else:
            merged = model.swin.encoder.layers[0].downsample(patches.flatten(1, 2), tuple(patches.shape[1:3]))
        return merged.reshape(len(patches), -1, merged.shape[-1])  # type: ignore[no-any-return]

    @torch.no_grad()
    def merging(self) -> Tensor:
        """What each patch of the first grid has of each of the second, ``[N2, N1]``, by changing one at a time."""
        height, width = self.grids[0]
        generator = torch.Generator().manual_seed(0)
        patches = torch.randn(height * width, self.view.embed_dim_at(1), generator=generator, dtype=torch.float64)
        changed = patches.repeat(len(patches) + 1, 1, 1)
        changed[range(len(patches)), range(len(patches)), 0] += 1
        merged = self.merge(changed.view(len(changed), height, width, -1))
        out = ((merged[:-1] - merged[-1]).abs() > 1e-12).any(dim=-1).T.double()
        return out / out.sum(dim=1, keepdim=True)

    def rolled(self, matrices: list[Tensor]) -> Tensor:
        """The mean row of the product of all matrices ``[B, N, N]``, from the first up."""
        total = torch.eye(math.prod(self.grids[0]), dtype=torch.float64).repeat(len(self.x), 1, 1)
        for layer, matrix in enumerate(matrices):
            if layer == 2:
                total = self.merging() @ total
            total = matrix @ total
        return total.mean(dim=1).reshape(-1, *self.grids[0])

    def on_first(self, term: Tensor, layer: int) -> Tensor:
        row = term @ self.merging() if layer >= 2 else term
        return row.reshape(-1, *self.grids[0])


slow_of = cache(Slow)


def same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float64
    assert actual.shape == expected.shape
    assert expected.abs().max() > 1e-12
    assert (actual - expected).abs().max() <= 1e-10 * max(1.0, expected.abs().max().item())
