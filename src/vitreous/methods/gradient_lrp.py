"""Relevance propagation as input times a modified gradient: conservative LRP and AttnLRP."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from vitreous.methods.base import Method, resolve_layer
from vitreous.methods.input_gradient import times_gradient, to_map
from vitreous.methods.readout import dot
from vitreous.methods.registry import register
from vitreous.models import View
from vitreous.passes import Keep, Pass, Rules, Trace
from vitreous.passes.rules.gradient import ATTNLRP, conservative
from vitreous.words import check_choice

__all__ = ["AttnLRP", "ConservativeLRP"]


class GradientLRP(Method):
    """Input times gradient under a table of rules: at the tokens that enter a block, or at the pixels."""

    at: str
    layer: int

    def __post_init__(self) -> None:
        check_choice("at", self.at, ("tokens", "pixels"))

    @property
    def grid(self) -> str:  # type: ignore[override]
        return "pixel" if self.at == "pixels" else "token"

    @property
    @abstractmethod
    def table(self) -> Rules:
        """What flows backward."""

    def asks(self, view: View) -> tuple[Pass, ...]:
        layer = resolve_layer(view, self.layer)
        keep = (
            Keep("input", dot, (layer,), grad=True) if self.at == "tokens" else Keep("image", times_gradient, grad=True)
        )
        return (Pass((keep,), self.table),)

    def read(self, trace: Trace) -> Tensor:
        (value,) = trace[self.only_pass(trace.view).keeps[0]]
        if self.at == "pixels":
            return to_map(trace, value)
        return trace.tokens_to_grid(value, resolve_layer(trace.view, self.layer))


@register(
    "cp_lrp",
    family="LRP",
    papers=("ali2022xai",),
    aliases=("conservative_lrp",),
    presets={"lxt": {"gelu": "identity"}, "lnargs": {"mean": "held"}},
    models="transformers",
)
@dataclass(frozen=True)
class ConservativeLRP(GradientLRP):
    """Input times gradient with the attention weights and the deviations of the norms held constant.

    Relevance of a token is ``sum_d x_d dx_d`` at the tokens that enter block ``layer``, or of a pixel (``at=pixels``).
    ``gelu=plain`` leaves activations to their gradient, as the authors' model has none; ``identity`` (preset ``lxt``)
    lets relevance pass them unchanged, which conserves it where biases are zero and makes the map DecompX without bias.
    ``mean=held`` (preset ``lnargs``) takes the means of the norms as constants too. One forward and one backward.
    """

    gelu: str = "plain"
    mean: str = "flows"
    at: str = "tokens"
    layer: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gelu", self.gelu, ("plain", "identity"))
        check_choice("mean", self.mean, ("flows", "held"))

    @property
    def table(self) -> Rules:
        return conservative(self.gelu == "identity", self.mean == "held")


@register("attnlrp", family="LRP", papers=("achtibat2024attnlrp",), models="transformers")
@dataclass(frozen=True)
class AttnLRP(GradientLRP):
    """Relevance through everything, queries and keys included, as input times gradient with four local edits.

    Activations keep their gate, norms their deviation, products hand on halves (values 1/2, queries and keys 1/4 of
    their gradient), a gated MLP too; softmax, sums and linear layers keep their gradient (epsilon rule, epsilon to 0).
    ``sum_d x_d dx_d`` at the tokens of block ``layer``, or at the pixels (``at=pixels``). Not exactly conservative: the
    softmax takes relevance. The authors tune gamma rules for vision: ``lrp(rules=...)`` has them. One forward and one
    backward.
    """

    at: str = "tokens"
    layer: int = 0

    @property
    def table(self) -> Rules:
        return ATTNLRP
