"""DeepLift against multipliers worked out layer by layer, guided backpropagation against hooks; where both refuse."""

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
from reference_cnn import Residual, dense, sequential, windows
from vitreous.errors import ModelError, TracingError

# -- DeepLift ----------------------------------------------------------------------------------------------------------


def noise(size: int = 8, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def rescaled(x: Tensor, start: Tensor) -> Tensor:
    """The slope of each ReLU between both inputs, one by one."""
    slopes = []
    for one, other in zip(x.tolist(), start.tolist(), strict=True):
        rise = max(one, 0) - max(other, 0)
        slopes.append(float(one > 0) if one == other else rise / (one - other))
    return torch.tensor(slopes, dtype=torch.float64)


def pooled(x: Tensor, start: Tensor, seen: list[list[int]], flow: Tensor) -> Tensor:
    """What reaches each number before a max pooling, window by window; the largest of a window share equally."""
    shares, unchanged = torch.zeros_like(x), torch.zeros_like(x)
    for window, item in zip(seen, flow, strict=True):
        gain = x[window].max() - start[window].max()
        for total, values, amount in ((shares, x if gain >= 0 else start, item * gain), (unchanged, x, item)):
            largest = [place for place in window if values[place] == values[window].max()]
            for place in largest:
                total[place] += amount / len(largest)
    way = x - start
    return torch.where(way == 0, unchanged, shares / torch.where(way == 0, 1, way))


def slow_sequential(model: Any, x: Tensor, start: Tensor, target: int) -> Tensor:
    stem = dense(lambda x: model[1](model[0](x)), (3, 8, 8))
    middle, mean = dense(model[4], (4, 4, 4)), dense(model[6], (6, 4, 4))
    one, two = dense(model[8], (24,)), dense(model[10], (7,))
    seen = windows((4, 8, 8), 3, 2, 1)
    steps = []
    for image in (x, start):
        a = stem[0] @ image.flatten() + stem[1]
        b = middle[0] @ torch.stack([a.clamp(min=0)[window].max() for window in seen]) + middle[1]
        steps.append((a, b, one[0] @ (mean[0] @ b.clamp(min=0)) + one[1]))
    (a, b, c), (a0, b0, c0) = steps
    flow = two[0][target] * rescaled(c, c0)
    flow = (flow @ one[0] @ mean[0]) * rescaled(b, b0)
    flow = pooled(a.clamp(min=0), a0.clamp(min=0), seen, flow @ middle[0]) * rescaled(a, a0)
    return ((flow @ stem[0]) * (x - start).flatten()).reshape(3, 8, 8).sum(dim=0)


@pytest.mark.parametrize("baseline", [0.0, -0.7])
def test_a_sequence_of_layers_whose_windows_overlap(baseline: float) -> None:
    model, x = sequential(), noise()
    actual = vt.get_method(f"deeplift(baseline={baseline})").attribute(vt.wrap(model, layer="4"), x, target=1)
    start = torch.full((3, 8, 8), baseline, dtype=torch.float64)
    for image, shares in zip(x, actual, strict=True):
        torch.testing.assert_close(shares, slow_sequential(model, image, start, 1), rtol=1e-9, atol=1e-12)


def regions(size: int = 8) -> Tensor:
    """Pictures with much that is constant, so that most windows of a pooling are tied, here or in the reference."""
    x = torch.zeros(4, 3, size, size, dtype=torch.float64)
    x[0] = 0.375
    x[1, :, :, : size // 2] = 1.5
    x[2] = noise(size, 1)[0].round()
    x[3, :, 2:5, 1:6] = -2
    return x


@pytest.mark.parametrize("baseline", [0.0, 0.375, -1.0])
def test_tied_windows_share_equally_and_the_sum_stays_complete(baseline: float) -> None:
    """With weights that add up without rounding, so that what is equal is equal in every order of adding."""
    model, x = sequential(), regions()
    model[1] = nn.Identity()
    for value in model[0].parameters():
        value.data = (64 * value.data).round() / 64
    start = torch.full((3, 8, 8), baseline, dtype=torch.float64)
    actual = vt.get_method(f"deeplift(baseline={baseline})").attribute(vt.wrap(model, layer="4"), x, target=1)
    for image, shares in zip(x, actual, strict=True):
        torch.testing.assert_close(shares, slow_sequential(model, image, start, 1), rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        change = (model(x) - model(start[None]))[:, 1]
    torch.testing.assert_close(actual.sum(dim=(1, 2)), change)


def test_a_picture_of_constant_regions_has_a_map_that_leans_to_no_side() -> None:
    """Turned and mirrored it has the same map turned and mirrored: no position inside a window is preferred."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    model: Any = nn.Sequential(*layers, nn.Flatten(), nn.Linear(5, 3)).double().eval()
    model.image_size = (8, 8)
    vision_model, x = vt.wrap(model, layer="3"), regions()
    for baseline in (0.0, 0.375, 2.0):
        method = vt.get_method(f"deeplift(baseline={baseline})")
        actual = method.attribute(vision_model, x, target=1)
        for axes in ((2,), (3,), (2, 3)):
            turned = method.attribute(vision_model, x.flip(axes), target=1).flip([axis - 1 for axis in axes])
            torch.testing.assert_close(turned, actual, rtol=1e-9, atol=1e-12)
        assert actual[1].abs().max() > 1e-4
        first = vt.get_method(f"deeplift@captum(baseline={baseline})").attribute(vision_model, x, target=1)
        torch.testing.assert_close(first.sum(dim=(1, 2)), actual.sum(dim=(1, 2)))
        if baseline == 2.0:  # the first number of every window has all that the window lost
            assert (first[0, 1::2] == 0).all()
            assert (first[0, :, 1::2] == 0).all()
            assert (first[0, ::2, ::2] != 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1)},
        {"kernel_size": 2, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    ],
    ids=str,
)
def test_poolings_of_every_shape_stay_complete_where_windows_are_tied(options: dict[str, Any]) -> None:
    torch.manual_seed(2)
    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(**options), nn.Conv2d(4, 5, 2), nn.ReLU()]
    model: Any = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3)).double().eval()
    model.image_size = (8, 8)
    x = regions()
    with torch.no_grad():
        change = (model(x) - model(torch.full_like(x, 0.4)))[:, 2]
    actual = vt.get_method("deeplift(baseline=0.4)").attribute(vt.wrap(model, layer="3"), x, target=2)
    torch.testing.assert_close(actual.sum(dim=(1, 2)), change, rtol=1e-9, atol=1e-12)


def slow_residual(model: Any, x: Tensor, start: Tensor, target: int) -> Tensor:
    stem = dense(model.stem, (3, 8, 8))
    one = dense(lambda x: model.body[1](model.body[0](x)), (4, 4, 4))
    two = dense(lambda x: model.body[4](model.body[3](x)), (5, 4, 4))
    mean, fc = dense(lambda x: x.mean(dim=(2, 3)), (4, 4, 4)), dense(model.fc, (4,))
    steps = []
    for image in (x, start):
        a = stem[0] @ image.flatten() + stem[1]
        b = one[0] @ a.clamp(min=0) + one[1]
        steps.append((a, b, two[0] @ b.clamp(min=0) + two[1] + a.clamp(min=0)))
    (a, b, c), (a0, b0, c0) = steps
    flow = (fc[0][target] @ mean[0]) * rescaled(c, c0)
    flow = (flow + (flow @ two[0] * rescaled(b, b0)) @ one[0]) * rescaled(a, a0)
    return ((flow @ stem[0]) * (x - start).flatten()).reshape(3, 8, 8).sum(dim=0)


def test_a_residual_block() -> None:
    model, x = Residual.random(), noise()
    actual = vt.get_method("deeplift").attribute(vt.wrap(model, layer="stem"), x, target=2)
    start = torch.zeros(3, 8, 8, dtype=torch.float64)
    for image, shares in zip(x, actual, strict=True):
        torch.testing.assert_close(shares, slow_residual(model, image, start, 2), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", RELU)
def test_the_map_sums_to_the_difference_in_score(family: str) -> None:
    model = FAMILIES[family]().double()
    x = images(model, 2)
    with torch.no_grad():
        change = (model(x) - model(torch.full_like(x, 0.3)))[:, [1, 3]]
    actual = vt.get_method("deeplift(baseline=0.3)").attribute(model, x, target=1)
    torch.testing.assert_close(actual.sum(dim=(1, 2)), change[:, 0])
    actual = vt.get_method("deeplift(baseline=0.3)").attribute(model, x, target=1, contrast=3)
    torch.testing.assert_close(actual.sum(dim=(1, 2)), change[:, 0] - change[:, 1])
    gradient = vt.get_method("input_x_gradient").attribute(model, x, target=1)
    assert not torch.allclose(actual, gradient, rtol=0.1)


def test_an_image_does_not_depend_on_its_neighbours() -> None:
    """At one image a time too, where the reference makes a batch of two."""
    model = FAMILIES["tv_vgg"]().double()
    x = images(model, 3)
    actual = vt.get_method("deeplift").attribute(model, x, target=1)
    for size in (1, 2):
        alone = vt.get_method("deeplift").attribute(model, x, target=1, batch_size=size)
        torch.testing.assert_close(actual, alone)
    assert torch.equal(vt.get_method("deeplift").attribute(model, x, target=1, output="prob"), actual)  # logits, always


def test_functions_in_place_are_rescaled_too() -> None:
    model = _build(Plain).double()
    vision_model = vt.wrap(model, layer="body")
    x = images(vision_model, 2)
    with torch.no_grad():
        change = (model(x) - model(torch.zeros_like(x)))[:, 1]
    actual = vt.get_method("deeplift").attribute(vision_model, x, target=1)
    torch.testing.assert_close(actual.sum(dim=(1, 2)), change)


@pytest.mark.parametrize("name", ["vit", "clip", *(name for name in FAMILIES if name not in RELU)])
def test_refused_where_other_activations_are_on_the_way(name: str) -> None:
    model = (families.FAMILIES | FAMILIES)[name]()
    x = images(model, 1)
    for spec in ("deeplift", "plus(deeplift)", "smooth(deeplift)")[: 3 if name == "vit" else 1]:
        with pytest.raises(ModelError, match=r"ReLUs only: with no rule for GELU, .* use input_x_gradient"):
            vt.get_method(spec).attribute(model, x)
    for spec in ("guided_backprop", "guided_gradcam", "smooth(guided_backprop)"):
        with pytest.raises(ModelError, match=r"ReLUs only, so it would be the plain gradient .* use saliency"):
            vt.get_method(spec).attribute(model, x)


def test_deeplift_is_refused_on_transformers_of_relus() -> None:
    """Their norms and their attention still have no rule."""
    model = families.FAMILIES["vit"]()
    model.blocks[0].mlp.act = nn.ReLU()
    with pytest.raises(ModelError, match=r"attention, it would be input times gradient at those of .*VisionTransf"):
        vt.get_method("deeplift").attribute(model, images(model, 1))


class Gated(nn.Module):
    """A ReLU network with one thing more."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem, self.kind = nn.Conv2d(3, 4, 3, stride=2), kind
        self.fc, self.norm, self.group = nn.Linear(4, 5), nn.LayerNorm(4), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        if self.kind == "sigmoid":
            x = x * x.mean(dim=(2, 3), keepdim=True).sigmoid()
        if self.kind == "product":
            x = x * x.mean(dim=(2, 3), keepdim=True)
        if self.kind == "group":
            x = self.group(x)
        x = x.mean(dim=(2, 3))
        return self.fc(self.norm(x) if self.kind == "norm" else x)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("sigmoid", "none for the sigmoid"),
        ("product", "none for a product of two factors"),
        ("norm", "none for the layer_norm"),
        ("group", "misses the difference in score by"),  # nobody knows this operation; the sum tells
    ],
)
def test_what_is_not_linear_is_refused(kind: str, why: str) -> None:
    model = vt.wrap(_build(Gated, kind), layer="stem")
    with pytest.raises((ModelError, TracingError), match=why):
        vt.get_method("deeplift").attribute(model, images(model, 2), target=1)


def test_a_target_that_is_not_linear_in_the_logits_is_refused() -> None:
    model = FAMILIES["vgg"]()
    x = images(model, 2)
    vt.get_method("deeplift").attribute(model, x, target=lambda logits: logits[:, 1] - logits[:, 2])
    with pytest.raises(TracingError, match="the model or the target"):
        vt.get_method("deeplift").attribute(model, x, target=lambda logits: logits[:, 1] ** 2)


# -- guided backpropagation --------------------------------------------------------------------------------------------


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

    def __init__(self, unchanged: Any) -> None:
        super().__init__()
        self.model, self.first, self.second = unchanged, nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.model.body(self.first(self.model.stem(x)))
        return self.model.fc(self.second(x + self.model.mixed(x)).mean(dim=(2, 3)))


@pytest.mark.parametrize("family", [name for name in RELU if name != "tv_densenet"])
def test_guided_backprop(family: str) -> None:
    model = FAMILIES[family]().double()
    x = images(model, 2)
    actual = vt.get_method("guided_backprop").attribute(model, x, target=2)
    expected = guided(FAMILIES[family]().double(), x, 2)
    assert torch.allclose(actual, expected.sum(dim=1), atol=1e-12)
    unchanged = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(unchanged)[:, 2].sum(), unchanged)
    assert not torch.allclose(actual, gradient.sum(dim=1), rtol=0.1)


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
    actual = vt.get_method(f"guided_gradcam(enlarge={enlarge})").attribute(model, x, target=2)
    assert torch.allclose(actual, expected, atol=1e-12)
    assert vt.get_method("guided_gradcam@captum") == vt.get_method("guided_gradcam(enlarge=nearest)")
