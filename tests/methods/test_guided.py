"""Guided backpropagation against hooks on the model, as released code does it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import families
import vitreous as vt
from families import images
from families_cnn import FAMILIES, RELU, Plain, _build
from vitreous.errors import ModelError


def guided(model: nn.Module, x: Tensor, target: int) -> Tensor:
    """The definition, slowly: every ReLU module gets a backward hook that clamps what it hands on."""

    def clamp(module: nn.Module, grads: Any, outs: Any) -> Any:
        return (grads[0].clamp(min=0),)

    handles = []
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
            handles.append(module.register_full_backward_hook(clamp))
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf)[:, target].sum(), leaf)
    for handle in handles:
        handle.remove()
    return gradient


class AsModule(nn.Module):
    """``Plain`` with modules for its functions, so that they can be hooked."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.plain, self.first, self.second = plain, nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain.body(self.first(self.plain.stem(x)))
        return self.plain.fc(self.second(x + self.plain.mixed(x)).mean(dim=(2, 3)))


@pytest.mark.parametrize("family", [name for name in RELU if name != "tv_densenet"])
def test_guided_backprop(family: str) -> None:
    model = FAMILIES[family]().double()
    x = images(model, 2)
    found = vt.get_method("guided_backprop").attribute(model, x, target=2)
    expected = guided(FAMILIES[family]().double(), x, 2)
    assert torch.allclose(found, expected.sum(dim=1), atol=1e-12)
    plain = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(plain)[:, 2].sum(), plain)
    assert not torch.allclose(found, gradient.sum(dim=1), rtol=0.1)


def test_functions_in_place_are_guided_too() -> None:
    model = _build(Plain).double()
    vision_model = vt.wrap(model, layer="body")
    x = images(vision_model, 2)
    expected = guided(AsModule(_build(Plain).double()), x, 1)
    assert torch.allclose(
        vt.get_method("guided_backprop").attribute(vision_model, x, target=1), expected.sum(dim=1), atol=1e-12
    )


@pytest.mark.parametrize(("enlarge", "corners"), [("bilinear", False), ("nearest", None)])
def test_guided_gradcam(enlarge: str, corners: bool | None) -> None:
    model = FAMILIES["vgg"]().double()
    x = images(model, 2, seed=1)
    coarse = vt.get_method("gradcam").attribute(model, x, target=2).clamp(min=0)
    weight = F.interpolate(coarse[:, None], size=(32, 32), mode=enlarge, align_corners=corners)
    expected = (guided(FAMILIES["vgg"]().double(), x, 2) * weight).sum(dim=1)
    found = vt.get_method(f"guided_gradcam(enlarge={enlarge})").attribute(model, x, target=2)
    assert torch.allclose(found, expected, atol=1e-12)
    assert vt.get_method("guided_gradcam@captum") == vt.get_method("guided_gradcam(enlarge=nearest)")


@pytest.mark.parametrize(
    "make",
    [
        families.FAMILIES["vit"],
        families.FAMILIES["clip"],
        *(make for name, make in FAMILIES.items() if name not in RELU),
    ],
)
def test_refused_where_other_activations_are_on_the_way(make: Any) -> None:
    model = make()
    for spec in ("guided_backprop", "guided_gradcam", "smooth(guided_backprop)"):
        with pytest.raises(ModelError, match=r"ReLUs only, so it would be the plain gradient .* use saliency"):
            vt.get_method(spec).attribute(model, images(model, 1))
