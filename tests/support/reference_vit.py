"""A vision transformer written out by hand over timm's parameters: every tensor in the open, nothing fused.

This is what the library is compared with. It shares no code with it: attention is a softmax of products, LayerNorm a
mean and a variance, and DecompX a table of shares carried through the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from timm.layers import GluMlp, QuickGELU
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn


@dataclass
class Run:
    """What one forward computed, all of it in one autograd graph."""

    logits: Tensor
    inputs: list[Tensor] = field(default_factory=list)
    norm1: list[Tensor] = field(default_factory=list)
    attention: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    middle: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    pool: Tensor | None = None
    last: Tensor | None = None


def norm(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, nn.Identity):
        return x
    deviation = (x.var(dim=-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    return (x - x.mean(dim=-1, keepdim=True)) / deviation * module.weight + module.bias


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    return x @ module.weight.T + (0 if module.bias is None else module.bias)


def scaled(module: nn.Module, x: Tensor) -> Tensor:
    return x if isinstance(module, nn.Identity) else x * module.gamma


def gate(activation: nn.Module, u: Tensor) -> Tensor:
    """The factor g of an activation u g(u)."""
    if isinstance(activation, QuickGELU):
        return 1 / (1 + torch.exp(-1.702 * u))
    if isinstance(activation, nn.SiLU):
        return 1 / (1 + torch.exp(-u))
    if getattr(activation, "approximate", None) == "tanh" or "Tanh" in type(activation).__name__:
        return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
    return 0.5 * (1 + torch.erf(u / math.sqrt(2)))


def heads(x: Tensor, count: int) -> Tensor:
    return x.reshape(*x.shape[:-1], count, -1).transpose(1, 2)


def mlp(module: nn.Module, x: Tensor) -> Tensor:
    hidden = linear(module.fc1, x)
    if isinstance(module, GluMlp):
        left, right = hidden.chunk(2, dim=-1)
        gates, remaining = (right, left) if module.gate_last else (left, right)
        hidden = gates * gate(module.act, gates) * remaining
    else:
        hidden = hidden * gate(module.act, hidden)
    return linear(module.fc2, norm(module.norm, hidden))


def weights(module: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    scores = norm(module.q_norm, q) @ norm(module.k_norm, k).transpose(-1, -2) / math.sqrt(q.shape[-1])
    exponents = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return exponents / exponents.sum(dim=-1, keepdim=True)


def block(module: nn.Module, x: Tensor, run: Run) -> Tensor:
    run.inputs.append(x)
    run.norm1.append(norm(module.norm1, x))
    attn = module.attn
    q, k, v = (heads(part, attn.num_heads) for part in linear(attn.qkv, run.norm1[-1]).chunk(3, dim=-1))
    run.attention.append(weights(attn, q, k))
    run.values.append(v)
    mixed = (run.attention[-1] @ v).transpose(1, 2).flatten(2)
    x = x + scaled(module.ls1, linear(attn.proj, norm(attn.norm, mixed)))
    run.middle.append(x)
    run.outputs.append(x + scaled(module.ls2, mlp(module.mlp, norm(module.norm2, x))))
    return run.outputs[-1]


def attention_pool(pool: nn.Module, x: Tensor, run: Run) -> Tensor:
    q = heads(linear(pool.q, pool.latent.expand(len(x), -1, -1)), pool.num_heads)
    k, v = (heads(part, pool.num_heads) for part in linear(pool.kv, x).chunk(2, dim=-1))
    run.pool = weights(pool, q, k)
    mixed = linear(pool.proj, (run.pool @ v).transpose(1, 2).flatten(2))
    return (mixed + mlp(pool.mlp, norm(pool.norm, mixed)))[:, 0]


def embed(model: nn.Module, images: Tensor) -> Tensor:
    """Patches by hand; prefix tokens and positions as the constructor arranges them."""
    projection = model.patch_embed.proj
    height, width = projection.kernel_size
    patches = images.unfold(2, height, height).unfold(3, width, width)  # [B, C, rows, columns, high, wide]
    patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    x = patches @ projection.weight.flatten(1).T + (0 if projection.bias is None else projection.bias)
    names = ("cls_token", "dist_token", "reg_token")
    prefix = [getattr(model, n).expand(len(x), -1, -1) for n in names if getattr(model, n, None) is not None]
    if model.no_embed_class:
        x = torch.cat([*prefix, x + model.pos_embed], dim=1)
    else:
        x = torch.cat([*prefix, x], dim=1) + model.pos_embed
    return norm(model.norm_pre, x)


def finish(model: nn.Module, x: Tensor, run: Run) -> Tensor:
    x = norm(model.norm, x)
    if isinstance(model, VisionTransformerDistilled):
        return (linear(model.head, x[:, 0]) + linear(model.head_dist, x[:, 1])) / 2
    if model.attn_pool is not None:
        pooled = attention_pool(model.attn_pool, x[:, model.num_prefix_tokens :], run)
    elif model.global_pool == "avg":
        pooled = x[:, 0 if model.pool_include_prefix else model.num_prefix_tokens :].mean(dim=1)
    else:
        pooled = x[:, 0]
    return linear(model.head, norm(model.fc_norm, pooled))


def forward(model: nn.Module, images: Tensor) -> Run:
    """Run the whole model by hand."""
    run = Run(torch.empty(0))
    x = embed(model, images)
    for module in model.blocks:
        x = block(module, x, run)
    run.last = x
    run.logits = finish(model, x, run)
    return run


# -- what one head brings of one token to another: H x N x N x D, without a second thought --------------------------


def brought(module: nn.Module, attention: Tensor, values: Tensor) -> Tensor:
    """Return ``[B, H, N, N, D]``: what attention 1 of head h would bring of token j to token i, without any bias."""
    count, tokens = values.shape[1:3]
    inner = module.attn.norm
    mixed = (attention @ values).transpose(1, 2).flatten(2)
    alone = torch.zeros(len(values), count, tokens, mixed.shape[-1], dtype=values.dtype)
    for head in range(count):  # all other heads bring nothing
        places = slice(head * values.shape[-1], (head + 1) * values.shape[-1])
        alone[:, head, :, places] = values[:, head]
    alone = alone.unsqueeze(2).expand(-1, -1, tokens, -1, -1)
    if not isinstance(inner, nn.Identity):
        deviation = (mixed.var(dim=-1, unbiased=False, keepdim=True) + inner.eps).sqrt()
        alone = (alone - alone.mean(dim=-1, keepdim=True)) / deviation[:, None, :, None] * inner.weight
    return scaled(module.ls1, alone @ module.attn.proj.weight.T)


def block_shares(module: nn.Module, run: Run, layer: int) -> Tensor:
    """Return the shares ``[B, N, N, D]`` of source j in token i after the attention of a block."""
    attention = run.attention[layer]
    shares = (attention.unsqueeze(-1) * brought(module, attention, run.values[layer])).sum(dim=1)
    own = torch.arange(shares.shape[1])
    shares[:, own, own] += run.inputs[layer]
    return shares


def shares_after_norm(module: nn.Module, shares: Tensor, middle: Tensor) -> Tensor:
    """The second norm of the shares, with the deviation of the stream, as the MLP branch would scale it."""
    deviation = (middle.var(dim=-1, unbiased=False, keepdim=True) + module.norm2.eps).sqrt().unsqueeze(2)
    return scaled(module.ls2, (shares - shares.mean(dim=-1, keepdim=True)) / deviation * module.norm2.weight)


# -- DecompX by explicit propagation: T[i, j] is the share of source j in token i; the last source is the bias -----

_SPREAD = False


def _add_bias(shares: Tensor, bias: Tensor | None) -> Tensor:
    """Give a bias to the last source, or to all others by the size of their product with it."""
    if bias is None:
        return shares
    shares = shares.clone()
    if _SPREAD:
        size = (shares[..., :-1, :] * bias).sum(dim=-1, keepdim=True).abs()
        shares[..., :-1, :] += bias * size / (size.sum(dim=-2, keepdim=True) + 1e-12)
    else:
        shares[..., -1, :] += bias
    return shares


def _linear_shares(module: nn.Linear, shares: Tensor) -> Tensor:
    return _add_bias(shares @ module.weight.T, module.bias)


def _value_shares(module: nn.Linear, shares: Tensor, parts: int) -> Tensor:
    """The values alone, the last part of a fused projection."""
    bias = None if module.bias is None else module.bias.chunk(parts)[-1]
    return _add_bias(shares @ module.weight.chunk(parts)[-1].T, bias)


def _norm_shares(module: nn.Module, shares: Tensor) -> Tensor:
    if isinstance(module, nn.Identity):
        return shares
    full = shares.sum(dim=-2, keepdim=True)
    deviation = (full.var(dim=-1, unbiased=False, keepdim=True) + module.eps).sqrt()
    return _add_bias((shares - shares.mean(dim=-1, keepdim=True)) / deviation * module.weight, module.bias)


def _mlp_shares(module: nn.Module, shares: Tensor) -> Tensor:
    hidden = _linear_shares(module.fc1, shares)
    if isinstance(module, GluMlp):
        left, right = hidden.chunk(2, dim=-1)
        gates, remaining = (right, left) if module.gate_last else (left, right)
        u = gates.sum(dim=-2, keepdim=True)
        hidden = u * gate(module.act, u) * remaining
    else:
        hidden = hidden * gate(module.act, hidden.sum(dim=-2, keepdim=True))
    return _linear_shares(module.fc2, _norm_shares(module.norm, hidden))


def _mix_shares(attention: Tensor, values: Tensor) -> Tensor:
    """``attention [H, I, K]``, ``values [K, S, D]``: out[i, s] = concat_h sum_k A[h, i, k] V[k, s, h]."""
    count = len(attention)
    split = values.reshape(*values.shape[:2], count, -1)
    return torch.einsum("hik,kshd->ishd", attention, split).flatten(2)


def decompx(model: nn.Module, images: Tensor, start: int, spread: bool = False) -> Tensor:
    """Return the shares ``[N + 1, classes]`` of the tokens at block ``start``, and of the biases, in the logits.

    With ``spread`` the biases are spread over the tokens by absolute products, and nothing is left to the last source.
    """
    global _SPREAD
    _SPREAD = spread
    run = forward(model, images)
    x = run.inputs[start][0]
    shares = torch.zeros(len(x), len(x) + 1, x.shape[1], dtype=x.dtype)
    shares[torch.arange(len(x)), torch.arange(len(x))] = x
    for layer in range(start, len(model.blocks)):
        module = model.blocks[layer]
        values = _value_shares(module.attn.qkv, _norm_shares(module.norm1, shares), 3)
        mixed = _norm_shares(module.attn.norm, _mix_shares(run.attention[layer][0], values))
        shares = shares + scaled(module.ls1, _linear_shares(module.attn.proj, mixed))
        shares = shares + scaled(module.ls2, _mlp_shares(module.mlp, _norm_shares(module.norm2, shares)))
    shares = _norm_shares(model.norm, shares)
    if isinstance(model, VisionTransformerDistilled):
        return (_linear_shares(model.head, shares[0]) + _linear_shares(model.head_dist, shares[1])) / 2
    patches = shares[model.num_prefix_tokens :]
    if model.attn_pool is not None:
        pool = model.attn_pool
        assert run.pool is not None
        values = _value_shares(pool.kv, patches, 2)
        mixed = _linear_shares(pool.proj, _mix_shares(run.pool[0], values))
        pooled = (mixed + _mlp_shares(pool.mlp, _norm_shares(pool.norm, mixed)))[0]
    elif model.global_pool == "avg":
        pooled = (shares if model.pool_include_prefix else patches).mean(dim=0)
    else:
        pooled = shares[0]
    return _linear_shares(model.head, _norm_shares(model.fc_norm, pooled))
