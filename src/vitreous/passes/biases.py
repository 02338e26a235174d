"""Where biases are added, and what they do there."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from vitreous.passes.ask import Keep
from vitreous.passes.trace import Trace

__all__ = ["add_shares", "no_shares"]


def no_shares(trace: Trace, keep: Keep, layer: int, like: Tensor) -> None:
    """Start the sum of a block: one number for every token of ``like``, and before them one for what has no token."""
    trace.store(keep, layer, like.new_zeros(len(like), 1 + like.shape[1]))


def add_shares(trace: Trace, keep: Keep, layer: int, bias: Tensor, gradient: Tensor) -> None:
    """Add what one bias does to the sum of its block, from the gradient of the output it is part of.

    Biases behind the pooling belong to no token. A pooling by attention may leave the prefix tokens out.
    """
    if gradient.ndim == 4:  # a norm of each head's queries or keys
        bias = bias.repeat(gradient.shape[1])
        gradient = gradient.transpose(1, 2).flatten(2)
    gradient = gradient.reshape(len(gradient), -1, gradient.shape[-1])
    share = keep.reduce(trace.view, bias, gradient)
    total = trace.get(keep, layer)
    missing = total.shape[1] - share.shape[1]
    trace.store(keep, layer, total + F.pad(share, (0, missing) if share.shape[1] == 1 else (missing, 0)))
