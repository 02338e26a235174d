"""What views tell about their weights, against what their blocks do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images
from families_timm import VARIANTS
from vitreous.errors import ModelError
from vitreous.models import Norm
from vitreous.tracing import Activation, Block, Context, Pass, Record, Target
from zoo import EVERY

ALL = {**EVERY, **VARIANTS}
COLUMNS = [name for name in ALL if "swin" not in name]


def broad(family: str) -> vt.VisionModel:
    model = vt.wrap(ALL[family]())
    if not family.startswith("mixed"):  # timm's learnt rotations know only single precision
        model.module.double()
    return model


def blocks(model: vt.VisionModel, reduce: Any) -> list[Tensor]:
    keep = Record("block", reduce, tuple(range(model.depth)), grad=False)
    return Context(model, images(model, 2), Target.of(model, 2, 1)).run_pass(Pass((keep,)))[keep]


def unexplained(block: Block) -> Tensor:
    """What attention adds, less what the weights say that it adds: a bias, or nothing."""
    message = block.model.weights(block.layer)
    mixed = (block.attn_weights @ block.attn_values).transpose(1, 2).flatten(2)
    if message.inner is not None:
        mixed = message.inner.linear(mixed) / message.inner.deviation(mixed)
    return block.resid_mid - block.resid_pre - mixed @ message.projection.T


def scaled_mlp(block: Block) -> Tensor:
    """The MLP branch, less LayerScale times the bare MLP."""
    message = block.model.weights(block.layer)
    full = block.model.module.blocks if hasattr(block.model.module, "blocks") else block.model.blocks  # type: ignore[attr-defined]
    module: Any = full[block.layer]
    headless = module.mlp(module.norm2(block.resid_mid.to(block.model.dtype)))
    return block.resid_post - block.resid_mid - (headless if message.scale is None else headless * message.scale)


@pytest.mark.parametrize("family", COLUMNS)
def test_values_through_the_projection_are_what_attention_adds(family: str) -> None:
    model = broad(family)
    near = 1e-4 if family.startswith("mixed") else 1e-10
    for remaining in blocks(model, unexplained):
        assert (remaining - remaining[:1, :1]).abs().max() <= near  # the same for all tokens of all images


SCALED = ("deit3", "registers", "beit", "eva", "eva02", "grouped", "hf_dinov2", "vit")


@pytest.mark.parametrize("family", [family for family in SCALED if family in ALL])
def test_layer_scale_of_the_mlp(family: str) -> None:
    model = broad(family)
    for remaining in blocks(model, scaled_mlp):
        assert remaining.abs().max() <= 1e-6


@pytest.mark.parametrize("family", COLUMNS)
def test_norms_are_those_of_the_block(family: str) -> None:
    model = broad(family)
    x = torch.randn(2, 3, model.embed_dim, generator=torch.Generator().manual_seed(0)).to(model.dtype)
    for layer in range(model.depth):
        message = model.weights(layer)
        for name, norm in (("norm1", message.norm1), ("norm2", message.norm2)):
            torch.testing.assert_close(norm(x), model.hook_point(layer, name)(x).to(x), rtol=0, atol=1e-5)


def test_a_sub_network_counts_from_its_own_start() -> None:
    model = vt.wrap(FAMILIES["deit3"]())
    assert torch.equal(model.suffix(1).weights(0).projection, model.weights(1).projection)


def test_who_does_not_tell_is_named() -> None:
    with pytest.raises(ModelError, match="does not tell its projections"):
        vt.wrap(EVERY["swin"]()).weights(0)
    with pytest.raises(ModelError, match="BatchNorm1d is neither"):
        Norm.of(nn.BatchNorm1d(3))
    assert Norm.of(nn.Identity()) is None
    gated: Any = FAMILIES["vit"]()
    gated.blocks[1].attn.gate = nn.Linear(24, 24)
    with pytest.raises(ModelError, match="gates what attention brings"):
        vt.wrap(gated).weights(1)


@pytest.mark.parametrize("family", ["vit", "hf_vit_eager", "tv_vit"])
def test_a_block_is_the_same_with_and_without_a_backward(family: str) -> None:
    """Seen in the forward, or in the backward with the attention recomputed."""
    model = broad(family)
    layers = tuple(range(model.depth))
    keeps = [Record("block", unexplained, layers, grad=False), Record("block", gradient_times_attention, layers)]
    context = Context(model, images(model, 2), Target.of(model, 2, 1))
    alone = Context(model, images(model, 2), Target.of(model, 2, 1)).run_pass(Pass((keeps[0],)))
    both = context.run_pass(Pass(tuple(keeps)))
    for one, other in zip(alone[keeps[0]], both[keeps[0]], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    attention = Record("attn_weights", gradient_times_weights, layers)
    other_way = context.run_pass(Pass((attention,)))
    for one, other in zip(both[keeps[1]], other_way[attention], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def gradient_times_attention(block: Block) -> Tensor:
    return block.grad * block.attn_weights


def gradient_times_weights(a: Activation) -> Tensor:
    return a.grad * a.value
