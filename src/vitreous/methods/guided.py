"""Guided backpropagation, and its product with a class activation map: for models whose activations are ReLUs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from vitreous.errors import ModelError
from vitreous.methods.base import Answer, Method, computed
from vitreous.methods.cam import GradCAM
from vitreous.methods.input_gradient import needs_images, over_channels, to_map
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Session, Trace
from vitreous.passes.rules.guided import GUIDED
from vitreous.words import check_choice

__all__ = ["GuidedBackprop", "GuidedGradCAM"]


def summed(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_c d s / d x_c``."""
    assert gradient is not None
    return over_channels(at_least_float32(gradient))


_GRADIENT = Keep("image", summed, grad=True)


@register("guided_backprop", family="input", papers=("springenberg2015striving",), models="ReLU")
@dataclass(frozen=True)
class GuidedBackprop(Method):
    """The gradient of every pixel, where only what is positive passes back through a ReLU.

    ``sum_c g_c`` over the channels of the normalised image, with g the gradient in a network whose ReLUs pass on
    ``[x > 0] (dy)+``. Where the image is covered with edges, so is the map, whatever the class: it fails sanity checks
    that the gradient passes. Refused where any other activation is on the way (GELU, SiLU): there it would be the
    plain gradient, silently.
    """

    grid = "pixel"

    def asks(self, view: View) -> tuple[Pass, ...]:
        if not view.rectifies:
            why = f"so it would be the plain gradient at the other activations of {view.name}"
            raise ModelError(f"{self.info.name} changes gradients at ReLUs only, {why}; use saliency")
        return (Pass((_GRADIENT,), GUIDED),)

    def read(self, trace: Trace) -> Tensor:
        return to_map(trace, trace[_GRADIENT][0])


@register(
    "guided_gradcam",
    family="input",
    papers=("selvaraju2017gradcam", "springenberg2015striving"),
    cost=(2, 2),
    models="ReLU",
    presets={"captum": {"enlarge": "nearest"}},
)
@dataclass(frozen=True)
class GuidedGradCAM(Method):
    """Guided backpropagation where Grad-CAM is positive.

    ``guided_backprop * (gradcam)+``, Grad-CAM enlarged to the image (``enlarge``: ``bilinear``, as in the paper, or
    ``nearest``, as in Captum). ``layer`` is that of ``gradcam``.
    """

    layer: int = -1
    enlarge: str = "bilinear"
    grid = "pixel"

    def __post_init__(self) -> None:
        check_choice("enlarge", self.enlarge, ("bilinear", "nearest"))

    @property
    def _factors(self) -> tuple[Method, Method]:
        return GuidedBackprop(), GradCAM(layer=self.layer)

    def asks(self, view: View) -> tuple[Pass, ...]:
        return tuple(ask for factor in self._factors for ask in factor.asks(view))

    def compute(self, session: Session) -> Answer:
        needs_images(self.info.name, session)
        fine, coarse = (at_least_float32(computed(session, factor).map) for factor in self._factors)
        corners = False if self.enlarge == "bilinear" else None
        size, shown = list(fine.shape[1:]), coarse.relu().unsqueeze(1)
        return Answer(fine * F.interpolate(shown, size=size, mode=self.enlarge, align_corners=corners)[:, 0], {})
