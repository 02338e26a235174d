"""InFlow: what flows through attention and past it, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.methods.attention_path import SMALL, head_importance
from vitreous.methods.base import Attribution, Method
from vitreous.methods.ops import initial_row, pooling_records, push
from vitreous.methods.registry import register_method
from vitreous.models import VisionModel
from vitreous.tracing import Activation, Block, Context, Pass, Record, activation_value

__all__ = ["InFlow"]


def strongest(a: Activation) -> Tensor:
    """``max_h I_h A_h``."""
    return (head_importance(a.value, a.grad) * a.value).amax(dim=1)


def gradient_mean(a: Activation) -> Tensor:
    """``mean_h dA``."""
    return a.grad.mean(dim=1)


def pooled(a: Activation) -> Tensor:
    """The same for a pooling by attention, which has no stream beside it: ``(mean_h dA * max_h I_h A_h)+``, sum 1."""
    flow = (gradient_mean(a) * strongest(a)).clamp_(min=0)
    return flow / flow.sum(dim=-1, keepdim=True).clamp(min=SMALL)


def branches(block: Block) -> Tensor:
    """``[B, 2, N]``: the part of attention in the middle of a block, and what the MLP makes of each token."""
    stream, middle, output = block.resid_pre, block.resid_mid, block.resid_post
    before, attended, between, mlp = (v.norm(dim=-1) for v in (stream, middle - stream, middle, output - middle))
    part, last = (new / (old + new).clamp(min=SMALL) for old, new in ((before, attended), (between, mlp)))
    ratio = mlp / between.clamp(min=SMALL)
    ratio = ratio / ratio.sum(dim=1, keepdim=True).clamp(min=SMALL)
    return torch.stack([part, ratio * last + 1 - last], dim=1)


_OWN = Record("attn_weights", gradient_mean, (0,))


@register_method("inflow", family="path", papers=("walker2025explaining",), cost=(2, 2), models="ViT")
@dataclass(frozen=True)
class InFlow(Method):
    """The flow of each block through attention and residual stream, multiplied through the blocks.

    ``A~_l = (g_l * max_h I_h A_l,h)+`` with ``I_h`` of the target as in ``bt_h`` and ``g_l = mean_h d s_l / d A_l``:
    ``s_l`` is the head on the mean of all normed output tokens of block l, taken as the mean of what the head says to
    each token alone, which is the same for a head that is linear after its norm. With x the input of the block, a what
    attention adds, y = x + a and m what the MLP adds, as lengths of each token: ``w = a / (x + a)``,
    ``w' = m / (y + m)``, ``q = (m / y) / sum over tokens``, ``c = q w' + 1 - w'``;
    ``T_l = (A~_l diag w + diag (1 - w)) diag c``, rows divided by their sum, ``r <- r T_l`` from the last block to the
    first. ``mlp=false`` leaves c out (an ablation of the release). A pooling by attention has no stream beside it: r
    starts with its own ``(mean_h dA * max_h I_h A_h)+``, divided by the sum. Nothing divided by nothing is nothing.
    Cost: a pass through the model, and one through each block alone.
    """

    mlp: bool = True

    def num_forwards(self, model: VisionModel) -> float:
        return 1 + model.depth

    def records(self, model: VisionModel) -> list[Record]:
        return [*self._block_records(model), *pooling_records(model, pooled)]

    def compute(self, context: Context) -> Attribution:
        model = context.model
        cache = self.record(context)
        inputs, fused, parts = (cache[record] for record in self._block_records(model))
        row = initial_row(cache, fused[0], pooled)
        for layer in reversed(range(model.depth)):
            fork = context.with_inputs(inputs[layer], model.logit_lens(layer, per_token=True))
            (gradient,) = fork.run_pass(Pass((_OWN,)))[_OWN]
            moved, kept = parts[layer].unbind(dim=1)
            flow = (gradient * fused[layer]).clamp_(min=0) * moved.unsqueeze(1) + torch.diag_embed(1 - moved)
            if self.mlp:
                flow = flow * kept.unsqueeze(1)
            row = push(row / flow.sum(dim=2).clamp(min=SMALL), flow)
        return Attribution(cache.tokens_to_grid(row), {})

    def _block_records(self, model: VisionModel) -> tuple[Record, Record, Record]:
        layers = tuple(range(model.depth))
        return (
            Record("resid_pre", activation_value, layers, grad=False),
            Record("attn_weights", strongest, layers),
            Record("block", branches, layers, grad=False),
        )
