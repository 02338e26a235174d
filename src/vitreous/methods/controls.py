"""Controls: maps that know nothing of the model. A method that does not beat them explains nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitreous.methods.base import Attribution, Method
from vitreous.methods.input_gradient import refuse_tokens
from vitreous.methods.registry import register_method
from vitreous.tracing import Context, upcast


def _same_for_all(context: Context, pattern: Tensor) -> Attribution:
    inputs = upcast(context.inputs)
    return Attribution(pattern.to(inputs).expand(len(inputs), -1, -1).clone(), {})


@register_method("random", family="control", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Random(Method):
    r"""Uniform noise on the token grid, drawn from the seed and the image.

    .. math:: M_j \sim U(0, 1)

    Notes
    -----
    Cost: nothing.

    Examples
    --------
    >>> vt.explain(model, image, "random").map.shape
    torch.Size([16, 16])
    """

    def compute(self, context: Context) -> Attribution:
        grid = context.model.grid(context.inputs)
        return Attribution(context.prng_key("random").uniform(*grid).to(upcast(context.inputs)), {})


@register_method("constant", family="control", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Constant(Method):
    r"""One everywhere: only the tie rule of a metric ranks it.

    .. math:: M_j = 1

    Notes
    -----
    Cost: nothing.

    Examples
    --------
    >>> float(vt.explain(model, image, "constant").map.mean())
    1.0
    """

    can_be_constant = True

    def compute(self, context: Context) -> Attribution:
        return _same_for_all(context, torch.ones(context.model.grid(context.inputs)))


@register_method("centre", family="control", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Centre(Method):
    r"""Photographers put things in the middle: one minus the distance from the centre, which is 1 at the corners.

    .. math:: M_{ij} = 1 - \sqrt{(u_i^2 + v_j^2) / 2}

    with :math:`u_i` and :math:`v_j` evenly spaced from -1 to 1 over rows and columns.

    Notes
    -----
    Cost: nothing.

    Examples
    --------
    >>> float(vt.explain(model, image, "centre").map.min())
    0.0
    """

    def compute(self, context: Context) -> Attribution:
        rows, columns = (
            torch.linspace(-1, 1, side, dtype=torch.float32) if side > 1 else torch.zeros(1)
            for side in context.model.grid(context.inputs)
        )
        return _same_for_all(context, 1 - ((rows[:, None] ** 2 + columns[None] ** 2) / 2).sqrt())


@register_method("edges", family="control", class_specific=False, cost=(0, 0))
@dataclass(frozen=True)
class Edges(Method):
    r"""The strength of edges in the image: the length of the Sobel gradient of the mean over channels.

    .. math:: M = \sqrt{(S * \bar x)^2 + (S^\top * \bar x)^2}

    with S the Sobel kernel, divided by 8, and :math:`\bar x` the mean of the channels.

    Notes
    -----
    The tokens of a sub-network are refused. Cost: nothing.

    Examples
    --------
    >>> vt.explain(model, image, "edges").map.shape
    torch.Size([128, 128])
    """

    grid = "pixel"

    def compute(self, context: Context) -> Attribution:
        refuse_tokens("edges", context)
        grey = F.pad(upcast(context.inputs).mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")
        kernel = grey.new_tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        sobel = torch.stack([kernel, kernel.T]).unsqueeze(1)
        return Attribution(F.conv2d(grey, sobel).square().sum(dim=1).sqrt(), {})
