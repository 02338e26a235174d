"""Methods that mean nothing here: known by name, so that they can say why and what to use instead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from vitreous.errors import ModelError
from vitreous.methods.base import Method
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Pass

__all__ = ["DeepLift"]


class Refused(Method):
    """Raises instead of running."""

    grid = "pixel"
    because: ClassVar[str]
    instead: ClassVar[str]

    def asks(self, view: View) -> tuple[Pass, ...]:
        has_relu = any(isinstance(module, nn.ReLU) for module in view.model.modules())
        reason = "is not built for the ReLUs" if has_relu else self.because
        raise ModelError(f"{self.info.name} {reason} of {view.name}; use {self.instead}")


@register("deeplift", family="input", papers=("shrikumar2017learning",), refuses=True)
@dataclass(frozen=True)
class DeepLift(Refused):
    """Refused: without a rescale rule for GELU, LayerNorm and softmax it is input times gradient.

    Wrappers have rules for other activations only, hook nothing, and break the sum that DeepLift promises.
    """

    because = "has no rule for GELU, LayerNorm or attention, so it would be input times gradient"
    instead = "input_x_gradient, or integrated_gradients, whose map sums to the difference in score"
