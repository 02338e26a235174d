"""The weights of a block that a decomposition into shares needs, as plain tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import ModelError

__all__ = ["Norm", "Weights"]


@dataclass(frozen=True)
class Norm:
    """A LayerNorm (``centred``) or an RMSNorm, ``weight * (x - mean) / deviation + bias``."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float
    centred: bool

    @classmethod
    def of(cls, module: Any) -> Norm | None:
        """Read a module; ``None`` for one that does nothing."""
        if module is None or isinstance(module, nn.Identity):
            return None
        centred = isinstance(module, nn.LayerNorm)
        if not centred and "rms" not in type(module).__name__.lower():
            raise ModelError(f"{type(module).__name__} is neither a LayerNorm nor an RMSNorm")
        weight, bias = (_constant(getattr(module, name, None)) for name in ("weight", "bias"))
        return cls(weight, bias, module.eps or torch.finfo(torch.float32).eps, centred)

    def centre(self, x: Tensor) -> Tensor:
        """Take the mean of every vector away, where this norm does."""
        return x - x.mean(dim=-1, keepdim=True) if self.centred else x

    def deviation(self, x: Tensor) -> Tensor:
        """What every vector is divided by: ``[..., 1]``."""
        return (self.centre(x).square().mean(dim=-1, keepdim=True) + self.eps).sqrt()

    def linear(self, x: Tensor) -> Tensor:
        """``weight * (x - mean)``: the part that is linear once the deviation is a constant."""
        x = self.centre(x)
        return x if self.weight is None else x * self.weight.to(x.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.linear(x) / self.deviation(x)
        return out if self.bias is None else out + self.bias.to(x.dtype)


class Weights(NamedTuple):
    """How the values that attention moves reach the residual stream of a pre-norm block.

    ``attn = projection @ inner(concat_h A_h V_h) + bias`` and ``mlp = scale * MLP(norm2(.))``, both as they are added.
    """

    norm1: Norm
    projection: Tensor
    """Attention's output projection ``[D, H * d]``, LayerScale included."""
    inner: Norm | None
    """A norm of what all heads bring, before the projection."""
    norm2: Norm
    scale: Tensor | None
    """LayerScale of the MLP ``[D]``."""

    @classmethod
    def of(
        cls, norm1: Any, projection: nn.Linear, norm2: Any, *, inner: Any = None, scales: tuple[Any, Any] = (None, None)
    ) -> Weights:
        """Put modules and the two LayerScale vectors together."""
        first, second = (_constant(scale) for scale in scales)
        weight = projection.weight.detach()
        outer = Norm.of(norm1), Norm.of(norm2)
        if outer[0] is None or outer[1] is None:
            raise ModelError("a block without its norms has no shares")
        return cls(outer[0], weight if first is None else first[:, None] * weight, Norm.of(inner), outer[1], second)


def _constant(parameter: Any) -> Tensor | None:
    return parameter.detach() if isinstance(parameter, Tensor) else None
