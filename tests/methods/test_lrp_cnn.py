"""Relevance in convolutional networks: against dense matrices walked layer by layer, and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import images
from families_cnn import FAMILIES, RELU, Plain, _build
from reference_cnn import Residual, dense, sequential, windows
from vitreous.errors import SpecError, TracingError
from vitreous.tracing.rules.composites import COMPOSITES, composed
from vitreous.tracing.rules.lrp import AlphaBeta, Linear

RULES = {
    "epsilon_plus": ("epsilon", "zplus", "zplus"),
    "epsilon_plus_flat": ("epsilon", "zplus", "flat"),
    "epsilon_alpha2_beta1": ("epsilon", "alphabeta", "alphabeta"),
    "epsilon_alpha2_beta1_flat": ("epsilon", "alphabeta", "flat"),
}
"""What linear layers, convolutions and the first layer follow."""


def noise(size: int = 8, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def signed(value: Tensor) -> Tensor:
    return value + torch.where(value < 0, -1e-6, 1e-6)


def shared(rule: str, x: Tensor, weight: Tensor, bias: Tensor, sent: Tensor, sees: Tensor | None = None) -> Tensor:
    """One layer: the relevance of every input, from the table of all contributions ``x_i W_ji``."""
    part = x[None] * weight
    up, down = part.clamp(min=0), part.clamp(max=0)
    positive = up / (up.sum(dim=1) + bias.clamp(min=0) + 1e-6)[:, None]
    negative = down / (down.sum(dim=1) + bias.clamp(max=0) - 1e-6)[:, None]
    if rule == "epsilon":
        share = part / signed(part.sum(dim=1) + bias)[:, None]
    elif rule == "flat":
        assert sees is not None
        share = sees / sees.sum(dim=1, keepdim=True)
    else:
        share = positive if rule == "zplus" else 2 * positive - negative
    return (share * sent[:, None]).sum(dim=0)


def sees(conv: nn.Conv2d, shape: tuple[int, ...]) -> Tensor:
    """Which inputs each output of a convolution looks at, whatever its weights."""
    options = (conv.stride, conv.padding, conv.dilation, conv.groups)
    ones = torch.ones_like(conv.weight)
    return dense(lambda x: nn.functional.conv2d(x, ones, None, *options), shape)[0]


def start(layer: tuple[Tensor, Tensor], x: Tensor, target: int) -> Tensor:
    """Relevance of the logits that this layer gives: the logit of the class, nothing elsewhere."""
    logits = layer[0] @ x + layer[1]
    return logits * torch.eye(len(logits), dtype=torch.float64)[target]


def slow_sequential(model: Any, x: Tensor, target: int, composite: str) -> Tensor:
    linear, conv, first = RULES[composite]
    stem = dense(lambda x: model[1](model[0](x)), (3, 8, 8))
    middle = dense(model[4], (4, 4, 4))
    pooled = dense(model[6], (6, 4, 4))
    one, two = dense(model[8], (24,)), dense(model[10], (7,))
    a = (stem[0] @ x.flatten() + stem[1]).clamp(min=0)
    seen = windows((4, 8, 8), 3, 2, 1)
    b = torch.stack([a[window].max() for window in seen])
    c = (middle[0] @ b + middle[1]).clamp(min=0)
    d = pooled[0] @ c
    e = (one[0] @ d + one[1]).clamp(min=0)
    flow = shared(linear, e, *two, start(two, e, target))
    flow = shared(linear, d, *one, flow)
    flow = shared("epsilon", c, *pooled, flow)
    flow = shared(conv, b, *middle, flow)
    back = torch.zeros_like(a)
    for window, share in zip(seen, flow, strict=True):
        back[window[int(a[window].argmax())]] += share
    return shared(first, x.flatten(), *stem, back, sees(model[0], (3, 8, 8))).reshape(3, 8, 8).sum(dim=0)


@pytest.mark.parametrize("composite", RULES)
def test_a_sequence_of_layers(composite: str) -> None:
    model, x = sequential(), noise()
    actual = vt.get_method(f"lrp@{composite}").attribute(vt.wrap(model, layer="4"), x, target=1)
    for image, arrived in zip(x, actual, strict=True):
        torch.testing.assert_close(arrived, slow_sequential(model, image, 1, composite), rtol=1e-8, atol=1e-11)


def slow_residual(model: Any, x: Tensor, target: int, composite: str) -> Tensor:
    linear, conv, first = RULES[composite]
    stem = dense(model.stem, (3, 8, 8))
    one = dense(lambda x: model.body[1](model.body[0](x)), (4, 4, 4))
    two = dense(lambda x: model.body[4](model.body[3](x)), (5, 4, 4))
    mean, fc = dense(lambda x: x.mean(dim=(2, 3)), (4, 4, 4)), dense(model.fc, (4,))
    a = (stem[0] @ x.flatten() + stem[1]).clamp(min=0)
    b = (one[0] @ a + one[1]).clamp(min=0)
    c = two[0] @ b + two[1]
    d = (a + c).clamp(min=0)
    flow = shared(linear, mean[0] @ d, *fc, start(fc, mean[0] @ d, target))
    flow = shared("epsilon", d, *mean, flow) / signed(a + c)
    branch = shared(conv, a, *one, shared(conv, b, *two, c * flow))
    arrived = shared(first, x.flatten(), *stem, a * flow + branch, sees(model.stem, (3, 8, 8)))
    return arrived.reshape(3, 8, 8).sum(dim=0)


@pytest.mark.parametrize(("target", "above"), [(0, False), (2, True)])
@pytest.mark.parametrize("composite", RULES)
def test_a_residual_block(composite: str, target: int, above: bool) -> None:
    """Two batch norms are folded, one of them beside the shortcut; the sum is shared out by value."""
    model, x = Residual.random(), noise()
    assert bool((model(x)[:, target] > 0).all()) == above
    actual = vt.get_method(f"lrp@{composite}").attribute(vt.wrap(model, layer="stem"), x, target=target)
    for image, arrived in zip(x, actual, strict=True):
        torch.testing.assert_close(arrived, slow_residual(model, image, target, composite), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(("rule", "keeps"), [("identity", False), ("epsilon", True)])
def test_a_batch_norm_that_follows_no_layer(rule: str, keeps: bool) -> None:
    """It lets relevance pass, or is a layer of its own, whose bias keeps a share."""
    unchanged = sequential()
    model = nn.Sequential(unchanged[0], unchanged[2], unchanged[1], nn.Flatten(), nn.Linear(256, 3).double()).eval()
    model.image_size = (8, 8)  # type: ignore[assignment]
    x, layer = noise(count=1), dense(model[4], (256,))
    actual = vt.get_method(f'lrp(rules="epsilon_plus, batchnorm={rule}", at=pixels)').attribute(
        vt.wrap(model, layer="0"), x, target=0
    )
    stem, norm = dense(model[0], (3, 8, 8)), dense(model[2], (4, 8, 8))
    a = (stem[0] @ x.flatten() + stem[1]).clamp(min=0)
    middle = norm[0] @ a + norm[1]
    flow = shared("epsilon", middle, *layer, start(layer, middle, 0))
    flow = shared("epsilon", a, *norm, flow) if keeps else flow
    expected = shared("zplus", x.flatten(), *stem, flow).reshape(3, 8, 8).sum(dim=0)
    torch.testing.assert_close(actual[0], expected, rtol=1e-8, atol=1e-11)


# -- what is kept ------------------------------------------------------------------------------------------------------


def without_biases(model: Any) -> Any:
    """Nothing is added anywhere: biases, and the means that batch norms take away, are zero."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("bias", "running_mean")):
            nn.init.zeros_(value)
    return model


EVERYWHERE = [(family, name) for family in ("vgg", "tv_vgg") for name in COMPOSITES]
EVERYWHERE += [
    (family, name) for family in ("densenet", "tv_densenet") for name in ("epsilon_plus", "epsilon_plus_flat")
]


@pytest.mark.parametrize(("family", "composite"), EVERYWHERE)
def test_relevance_is_conserved(family: str, composite: str) -> None:
    """The logit is sent, the logit arrives at the pixels: to 1e-4 of it, where nothing is added on the way."""
    model = without_biases(FAMILIES[family]().double())
    x = images(model, 2)
    actual = vt.get_method(f"lrp@{composite}").attribute(model, x, target=1)
    torch.testing.assert_close(actual.sum(dim=(1, 2)), model(x)[:, 1].detach(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("composite", COMPOSITES)
@pytest.mark.parametrize("family", RELU)
def test_only_outputs_without_a_sign_lose_relevance(
    family: str, composite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules by sign have nobody to give to where no contribution has that sign; all else arrives.

    Before the sum of a residual block an output may be below zero, and have no positive contribution at all. Then
    z-plus loses its relevance; alpha-beta hands out twice of it, or minus once, wherever one of the signs is missing.
    With alpha 2 the relevance of a ResNet grows on the way, and so does what the stabiliser 1e-6 keeps of it.
    """
    lost: list[Tensor] = []
    own = AlphaBeta.share

    def counted(rule: AlphaBeta, op: Linear, x: Tensor, out: Tensor, flow: Tensor) -> Tensor:
        up, down, weight = x.clamp(min=0), x.clamp(max=0), op.weight
        positive = op.forward(up, weight.clamp(min=0)) + op.forward(down, weight.clamp(max=0)) > 0
        negative = op.forward(up, weight.clamp(max=0)) + op.forward(down, weight.clamp(min=0)) < 0
        lost.append((flow * (1 - rule.alpha * positive + rule.beta * negative)).flatten(1).sum(dim=1))
        return own(rule, op, x, out, flow)

    monkeypatch.setattr(AlphaBeta, "share", counted)
    model = without_biases(FAMILIES[family]().double())
    x = images(model, 2)
    actual = vt.get_method(f"lrp@{composite}").attribute(model, x, target=1).sum(dim=(1, 2))
    missing, logits = torch.stack(lost).sum(dim=0), model(x)[:, 1].detach()
    assert bool((missing.abs() > 1e-3 * logits.abs()).any()) == ((family, composite) not in EVERYWHERE)
    near = 1e-3 if "resnet" in family and "alpha2" in composite else 1e-4
    torch.testing.assert_close(actual + missing, logits, rtol=near, atol=0)


@pytest.mark.parametrize("family", ["vgg", "tv_vgg", "densenet", "tv_densenet"])
def test_the_same_relevance_passes_every_block(family: str) -> None:
    model = without_biases(FAMILIES[family]().double())
    vision_model = vt.wrap(model)
    x = images(vision_model, 1)
    for layer in range(vision_model.depth):
        actual = vt.get_method(f"lrp(layer={layer})").attribute(vision_model, x, target=1)
        assert actual.shape[1:] == vision_model.grid(layer=layer)
        torch.testing.assert_close(actual.sum(), model(x)[0, 1].detach(), rtol=1e-4, atol=0)


def test_the_model_keeps_its_weights_and_single_precision_walks_in_double() -> None:
    single, double = FAMILIES["tv_resnet"](), FAMILIES["tv_resnet"]().double()
    before = {name: value.clone() for name, value in single.state_dict().items()}
    x = images(single, 2)
    actual = vt.get_method("lrp@epsilon_plus_flat").attribute(single, x, target=1)
    assert actual.dtype == torch.float32
    expected = vt.get_method("lrp@epsilon_plus_flat").attribute(double, x.double(), target=1)
    torch.testing.assert_close(actual, expected.float())
    assert all(torch.equal(before[name], value) for name, value in single.state_dict().items())


# -- words -------------------------------------------------------------------------------------------------------------


def test_words() -> None:
    assert composed("epsilon_plus") == composed("linear=epsilon, conv=zplus, patch=zplus")
    assert composed("epsilon_plus, patch=flat") == composed("epsilon_plus_flat")
    assert composed("epsilon_plus, linear=gamma") == composed("linear=gamma, conv=zplus, patch=zplus")
    assert composed("linear=zplus") == composed("linear=zplus, conv=zplus")  # convolutions follow linear layers
    assert len({composed(name) for name in COMPOSITES}) == len(COMPOSITES) == len(RULES)
    with pytest.raises(SpecError, match="begin with one of epsilon_plus"):
        composed("epsilon_minus")
    with pytest.raises(SpecError, match="write place=rule"):
        composed("patch=flat, epsilon_plus")  # a composite comes first


def test_what_is_left_out_is_usual_for_the_model() -> None:
    model = FAMILIES["tv_vgg"]().double()
    x = images(model, 1)
    named = vt.get_method("lrp@epsilon_plus_flat").attribute(model, x, target=1)
    assert torch.equal(vt.get_method("lrp(at=pixels)").attribute(model, x, target=1), named)
    other = vt.get_method('lrp(rules="patch=zbox", at=pixels)').attribute(model, x, target=1)
    expected = vt.get_method('lrp(rules="epsilon_plus, patch=zbox", at=pixels)').attribute(model, x, target=1)
    assert torch.equal(other, expected)
    assert not torch.allclose(other, named)


def test_only_the_first_layer_is_the_first() -> None:
    """A stem of several convolutions: flat at the first of them alone."""
    model = sequential()
    x = noise(count=1)
    for at in ("0", "4"):  # the split of the view does not matter
        actual = vt.get_method("lrp@epsilon_plus_flat").attribute(vt.wrap(model, layer=at), x, target=1)[0]
        torch.testing.assert_close(actual, slow_sequential(model, x[0], 1, "epsilon_plus_flat"), rtol=1e-8, atol=1e-11)


class Odd(nn.Module):
    """A network with something in it that has no rule."""

    def __init__(self, odd: nn.Module) -> None:
        super().__init__()
        self.stem, self.odd, self.fc = nn.Conv2d(3, 4, 3, stride=2), odd, nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.odd(self.stem(x)).mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("odd", "name"),
    [(nn.Hardswish(), "hardswish"), (nn.GroupNorm(2, 4), "group_norm"), (nn.LPPool2d(2, 2), ""), (nn.Tanh(), "tanh")],
)
def test_what_has_no_rule_is_named(odd: nn.Module, name: str) -> None:
    model = vt.wrap(_build(Odd, odd), layer="stem")
    with pytest.raises(TracingError, match=f"no rule says how relevance passes {name}"):
        vt.get_method("lrp(at=pixels)").attribute(model, images(model, 1), target=1)


def test_a_batch_norm_without_statistics_is_refused() -> None:
    model = vt.wrap(_build(Odd, nn.BatchNorm2d(4, track_running_stats=False)), layer="stem")
    with pytest.raises(TracingError, match="takes the statistics of the batch"):
        vt.get_method("lrp(at=pixels)").attribute(model, images(model, 2), target=1)


def test_functions_in_place() -> None:
    """Rectified in place by functions, a residual sum, a mean by hand: nothing is changed under the walk's feet."""
    model = without_biases(_build(Plain).double())
    vision_model = vt.wrap(model, layer="body")
    x = images(vision_model, 2)
    actual = vt.get_method("lrp@epsilon_plus").attribute(vision_model, x, target=1)
    torch.testing.assert_close(actual.sum(dim=(1, 2)), model(x)[:, 1].detach(), rtol=1e-4, atol=0)
