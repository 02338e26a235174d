"""DeepLift: what every pixel adds to the score, compared with a reference; for models whose activations are ReLUs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.errors import ModelError, TraceError
from vitreous.methods.base import Answer, Method
from vitreous.methods.input_gradient import needs_images, over_channels
from vitreous.methods.readout import at_least_float32
from vitreous.methods.registry import register
from vitreous.models import BesideView, View
from vitreous.passes import Keep, Pass, Session
from vitreous.passes.rules.rescale import RESCALE
from vitreous.words import check_choice

__all__ = ["DeepLift"]


def shares(view: View, value: Tensor, gradient: Tensor | None) -> Tensor:
    """``sum_c (x_c - x0_c) m_c``."""
    assert gradient is not None
    assert isinstance(view, BesideView)
    return over_channels(at_least_float32(value - view.reference) * at_least_float32(gradient))


_SHARES = Keep("image", shares, grad=True)


@register(
    "deeplift",
    family="input",
    papers=("shrikumar2017learning",),
    cost=(2, 2),
    presets={"captum": {"ties": "first"}},
    models="ReLU",
    revision=2,
)
@dataclass(frozen=True)
class DeepLift(Method):
    """Pixels times their multipliers: how far each moves the logit from that of a reference.

    ``sum_c (x_c - x0_c) m_c``, where m is the gradient in a network whose ReLUs and max poolings have the slope
    ``(y - y0) / (x - x0)`` between image and reference instead of their own (the rescale rule). What a window of a max
    pooling gained or lost goes to its largest number. The paper has no rule for ties: the largest ``share`` equally, or
    the ``first`` takes all, as in Captum (``@captum``), so that in constant regions the map leans to one side; the sum
    is the same. All else has to be linear, as convolutions, batch norms, means and sums are; then the map sums to
    ``s(x) - s(x0)``, which is checked. ``baseline`` is one value in normalised space: 0 is the mean colour of the
    training set. It explains logits, whatever value was asked for. Refused where anything else is on the way (GELU,
    LayerNorm, attention, a sigmoid that weighs channels): without a rule it would be the gradient there, and the sum
    would be wrong. Cost: image and reference, forward and backward; the reference is run once for a whole batch, and
    once more for its score.
    """

    baseline: float = 0.0
    ties: str = "share"
    grid = "pixel"

    def __post_init__(self) -> None:
        check_choice("ties", self.ties, tuple(RESCALE))

    @property
    def own_value(self) -> str:
        return "logit"

    def asks(self, view: View) -> tuple[Pass, ...]:
        if not view.rectifies:
            raise ModelError(
                f"{self.info.name} has rules for ReLUs only: with no rule for GELU, LayerNorm or attention, it would "
                f"be input times gradient at those of {view.name}; use input_x_gradient, or integrated_gradients, "
                "whose map sums to the difference in score"
            )
        return ()

    def compute(self, session: Session) -> Answer:
        self.asks(session.view)  # of a sub-network nobody asked before
        needs_images(self.info.name, session)
        inputs, view = session.view.cast(session.inputs), session.view
        reference = torch.full_like(inputs[0], self.baseline)
        session = session.of_value("logit")
        trace = session.fork(inputs, BesideView(view, reference)).trace(Pass((_SHARES,), RESCALE[self.ties]))
        found = trace[_SHARES][0]
        start = view.logits(reference[None]).expand_as(trace.logits)
        ends = session.target.score(trace.logits), session.target.score(start)
        change = ends[0] - ends[1]
        missed = (found.sum(dim=(1, 2)) - change).abs()
        epsilon = torch.finfo(view.dtype).eps
        allowed = max(1e-6, 1e4 * epsilon) * (found.abs().sum(dim=(1, 2)) + change.abs())
        allowed += 16 * epsilon * (ends[0].abs() + ends[1].abs())  # what rounding makes of two equal scores
        if bool((missed > allowed).any()):
            raise TraceError(
                f"{view.name}: deeplift misses the difference in score by {float(missed.max()):.3g}; the model or the "
                "target has something on the way that is not linear and has no rule; use integrated_gradients"
            )
        return Answer(found, {})
