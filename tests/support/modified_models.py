"""Comparing a model that looks known with a plain one of the same function."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

import vitreous as vt
from families import images
from vitreous.errors import VitreousError
from zoo import EVERY

__all__ = ["METHODS", "MORE", "SHARES", "Adapter", "expect_same_or_refused", "model", "untouched"]

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
        for layer in (self.down, self.up):
            nn.init.normal_(layer.weight, std=0.3)
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


@cache
def untouched(family: str = "vit") -> Any:
    """The same, for all tests that only compare with it."""
    return model(family)


_maps: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()


def map_of(reference: nn.Module, spec: str) -> Tensor:
    """The map of a plain model, which nobody changes once it is compared with."""
    maps = _maps.setdefault(reference, {})
    if spec not in maps:
        maps[spec] = vt.get_method(spec).attribute(reference, images(reference, 2), target=1)
    return maps[spec]


def expect_same_or_refused(
    odd: nn.Module,
    reference: nn.Module,
    methods: tuple[str, ...] = METHODS,
    must: tuple[str, ...] = (),
    near: float = 1e-5,
) -> list[str]:
    """Compare all maps with those of a plain model; return the methods that are refused, none of them in ``must``."""
    x, refused = images(reference, 2), []
    with torch.no_grad():
        one, other = (vt.wrap(module).reference_forward(x) for module in (odd, reference))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # the same function
    for spec in methods:
        expected = map_of(reference, spec)
        refusal = ""
        try:
            actual = vt.get_method(spec).attribute(odd, x, target=1)
        except VitreousError as error:
            refusal = str(error)
        if refusal:
            assert spec not in must, f"{spec}: {refusal}"
            assert "\n" not in refusal
            refused.append(spec)
            continue
        difference = float((actual - expected).abs().max() / expected.abs().max())
        assert difference <= near, f"{spec} is {difference:.1e} off"
    return refused
