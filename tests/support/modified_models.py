"""Comparing a model that looks known with a plain one of the same function."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import vitreous as vt
from families import images
from vitreous.errors import VitreousError
from zoo import EVERY

__all__ = ["METHODS", "MORE", "SHARES", "Adapter", "expect_same_or_refused", "model"]

METHODS = ("attin", "globenc", "alti", "vtranm", "generic", "rollout", "decompx")
MORE = (*METHODS, "bt_t", "bt_h", "inflow", "tam", "attcat", "iia", "lrp", "transatt")
SHARES = ("attin", "globenc", "alti", "vtranm", "bt_t")


class Adapter(nn.Module):
    """A layer with two thin ones beside it, which shows the weights of the layer alone, as PEFT's do."""

    def __init__(self, base: Any, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        for each in (self.down, self.up):
            nn.init.normal_(each.weight, std=0.3)
        self.to(base.weight)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    @property
    def bias(self) -> Tensor:
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))

    def merged(self) -> nn.Module:
        layer = copy.deepcopy(self.base)
        with torch.no_grad():
            layer.weight += self.up.weight @ self.down.weight
        return layer


def model(family: str = "vit") -> Any:
    """In double precision: what is not rounding is then seen, also where differences grow from layer to layer."""
    return vt.wrap(EVERY[family]()).module.double()


def expect_same_or_refused(
    odd: nn.Module,
    plain: nn.Module,
    methods: tuple[str, ...] = METHODS,
    must: tuple[str, ...] = (),
    near: float = 1e-5,
) -> list[str]:
    """Compare all maps with those of a plain model; return the methods that are refused, none of them in ``must``."""
    x, refused = images(plain, 2), []
    with torch.no_grad():
        one, other = (vt.wrap(each).reference_forward(x) for each in (odd, plain))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # the same function
    for spec in methods:
        expected = vt.get_method(spec).attribute(plain, x, target=1)
        refusal = ""
        try:
            found = vt.get_method(spec).attribute(odd, x, target=1)
        except VitreousError as error:
            refusal = str(error)
        if refusal:
            assert spec not in must, f"{spec}: {refusal}"
            assert "\n" not in refusal
            refused.append(spec)
            continue
        apart = float((found - expected).abs().max() / expected.abs().max())
        assert apart <= near, f"{spec} is {apart:.1e} off"
    return refused
