"""What a pass sees in timm's BEiT, EVA and Swin families, and the frozen network written out beside it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from timm.layers import RmsNorm
from torch import Tensor, nn

import vitreous as vt
from families import images, rounding
from families_timm import FAMILIES, VARIANTS
from vitreous.errors import VitreousError
from vitreous.tracing import Context, Pass, Record, Target, activation_grad, activation_value
from vitreous.tracing.rules import LINEARIZED

EVERY = {**FAMILIES, **VARIANTS}
COLUMNS = [family for family in EVERY if not family.startswith("swin")]
SWIN = ["swin", "swinv2"]


def build_model(family: str) -> Any:
    model = EVERY[family]()
    return model if family.startswith("mixed") else model.double()  # timm's learnt rotations know only single precision


def near(family: str) -> float:
    if family == "grouped":
        return 1e-6  # the frozen RMSNorm takes its root in single precision
    return 1e-4 if family.startswith("mixed") else 1e-10


def session(model: nn.Module) -> Context:
    vision_model = vt.wrap(model)
    return Context(vision_model, images(model, 2), Target.of(vision_model, 2, 1))


# -- attention -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", COLUMNS)
def test_attention_as_timm_computes_it_in_the_open(family: str) -> None:
    """Softmax without the fused kernel, seen by a hook where its dropout would be; and its gradient."""
    model = build_model(family)
    layers = tuple(range(len(model.blocks)))
    keeps = [
        Record("attn_weights", activation_grad if grad else activation_value, layers, grad) for grad in (False, True)
    ]
    actual = session(model).run_pass(Pass(tuple(keeps)))
    seen: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, options_passed, out: seen.append(out))
    score = model(images(model, 2))[:, 1].sum()
    for keep, expected in zip(keeps, (seen, torch.autograd.grad(score, seen)), strict=True):
        for one, other in zip(actual[keep], expected, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=0, atol=near(family))


@pytest.mark.parametrize("family", SWIN)
@pytest.mark.parametrize("method", ["attention_flow", "attcat", "globenc", "rollout@vit_explain"])
def test_methods_that_need_all_pairs_of_tokens_do_not_apply_to_windows(family: str, method: str) -> None:
    model = EVERY[family]()
    with pytest.raises(VitreousError, match="windows"):
        vt.get_method(method).attribute(model, images(model, 1))


# -- the frozen network --------------------------------------------------------------------------------


class Held(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


class HeldNorm(nn.Module):
    """LayerNorm with a constant deviation."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        deviation = (x.var(dim=-1, unbiased=False, keepdim=True) + self.eps).sqrt().detach()
        return (x - x.mean(dim=-1, keepdim=True)) / deviation * self.weight + self.bias


class HeldRMSNorm(nn.Module):
    """RMSNorm with a constant root mean square."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt().detach() * self.weight


class HeldGate(nn.Module):
    """GELU with a constant gate."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 * (1 + torch.erf(x / 2**0.5))).detach()


def frozen_copy(model: nn.Module) -> Any:
    """Put constants into a copy of the model, module by module, with autograd for the rest."""
    copied = copy.deepcopy(model)
    for parent in list(copied.modules()):
        if hasattr(parent, "fused_attn"):
            parent.fused_attn = False
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(parent, name, HeldNorm(child))
            elif isinstance(child, RmsNorm):
                setattr(parent, name, HeldRMSNorm(child))
            elif type(child).__name__ == "GELU":  # torch's or timm's
                setattr(parent, name, HeldGate())
            elif isinstance(child, nn.SiLU):  # the gate of the other branch
                setattr(parent, name, nn.Sequential(nn.SiLU(), Held()))
            elif name == "attn_drop" or (name == "softmax" and isinstance(child, nn.Softmax)):
                setattr(parent, name, nn.Sequential(child, Held()))
    return copied


@pytest.mark.parametrize("family", [f for f in EVERY if f != "map"])  # its pooling attends without a module to swap
def test_frozen_gradients_at_every_block(family: str) -> None:
    model = build_model(family)
    layers = tuple(range(vt.wrap(model).depth))
    keep = Record("resid_pre", activation_grad, layers)
    actual = session(model).run_pass(Pass((keep,), LINEARIZED))
    vision_model = vt.wrap(frozen_copy(model))
    tokens, inputs = vision_model.embed(images(model, 2)), []
    for layer in layers:
        inputs.append(tokens)
        tokens = vision_model.forward_block(layer, tokens)
    score = vision_model.forward_head(tokens)[:, 1].sum()
    for one, other in zip(actual[keep], torch.autograd.grad(score, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=near(family))


def held_norm(norm: Any, x: Tensor) -> Tensor:
    return HeldNorm(norm)(x)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair of channels of the patches: ``(a cos - b sin, b cos + a sin)``; the class token stays."""
    sine, cosine = angles.chunk(2, dim=-1)
    a, b = x[:, :, 1:, 0::2], x[:, :, 1:, 1::2]
    pairs = a * cosine[:, 0::2] - b * sine[:, 0::2], b * cosine[:, 1::2] + a * sine[:, 1::2]
    return torch.cat([x[:, :, :1], torch.stack(pairs, dim=-1).flatten(-2)], dim=2)


def eva02_block(block: Any, x: Tensor, angles: Tensor) -> Tensor:
    """An EVA-02 block of the frozen network, every step written out."""
    attn, mlp, normed = block.attn, block.mlp, held_norm(block.norm1, x)
    q, k, v = (
        part(normed).reshape(*x.shape[:2], attn.num_heads, -1).transpose(1, 2)
        for part in (attn.q_proj, attn.k_proj, attn.v_proj)
    )
    scores = turned(q, angles) @ turned(k, angles).transpose(-1, -2) / q.shape[-1] ** 0.5
    exponents = torch.exp(scores)
    attention = (exponents / exponents.sum(dim=-1, keepdim=True)).detach()
    mixed = (attention @ v).transpose(1, 2).flatten(2)
    x = x + block.gamma_1 * attn.proj(held_norm(attn.norm, mixed))
    normed = held_norm(block.norm2, x)
    u = mlp.fc1_g(normed)
    gate = (u / (1 + torch.exp(-u))).detach()
    return x + block.gamma_2 * mlp.fc2(held_norm(mlp.norm, gate * mlp.fc1_x(normed)))


def test_frozen_eva02_by_hand() -> None:
    model = build_model("eva02")
    keep = Record("resid_pre", activation_grad, (0, 1, 2))
    live = session(model)
    actual = live.run_pass(Pass((keep,), LINEARIZED))
    tokens, inputs = vt.wrap(model).embed(images(model, 2)), []
    for block in model.blocks:
        inputs.append(tokens)
        tokens = eva02_block(block, tokens, model.rope.get_embed())
    logits = model.head(held_norm(model.fc_norm, tokens[:, 1:].mean(dim=1)))
    torch.testing.assert_close(logits, model(images(model, 2)), rtol=0, atol=1e-10)
    for one, other in zip(actual[keep], torch.autograd.grad(logits[:, 1].sum(), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", EVERY)
def test_frozen_logits_are_the_models_own(family: str) -> None:
    """Bit for bit; and every operation that was declared was met, or the pass would have refused."""
    model = EVERY[family]()
    live = session(model)
    logits = live.run_pass(Pass((Record("resid_pre", activation_grad, (0,)),), LINEARIZED)).logits
    with torch.no_grad():
        torch.testing.assert_close(logits, model(images(model, 2)), rtol=0, atol=rounding(family))
    seen = live.model.total_operations()
    assert seen["attention"] == live.model.depth + (family == "map")
    assert seen["activation"] + seen["gate"] == {"swinv2": 3}.get(family, 1) * live.model.depth + (family == "map")


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("base", ["ixg", "decompx"])
def test_layer_terms_are_those_of_the_subnetworks(family: str, base: str) -> None:
    """Inside the last stage, where all layers share a grid."""
    model = build_model(family)
    vision_model = vt.wrap(model)
    start = vision_model.stages[-1].start if vision_model.stages else 0
    maps = [
        vt.get_method(f"plus({base}, start={start}, via={via})").attribute(model, images(model, 2), target=1)
        for via in ("layers", "subnetwork")
    ]
    assert maps[0].shape[1:] == vision_model.grid(layer=start)
    torch.testing.assert_close(*maps, rtol=0, atol=near(family))
