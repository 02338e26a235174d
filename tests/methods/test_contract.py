"""The generic tester: what every method must do on every family of models."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import vitreous as vt
from contract import SHORT, State
from families import FAMILIES, images
from vitreous.methods import Method
from zoo import ALL, CNNS

SPELLINGS = [
    SHORT.get(info.name)
    or (f"{info.name}({', '.join(['generic', 'ixg'][: info.num_bases])})" if info.is_combinator else info.name)
    for info in vt.list_methods()
]
SPELLINGS += [
    "plus(ixg)",
    "smooth(generic, samples=2)",
    "skipplus(decompx)",
    "plus(ig(steps=2))",
    "smooth(skipplus(decompx), samples=2)",
    "skipplus(tis(masks=9))",
    "var(plus(ixg), classes=top:3)",
    "var@released(ig(steps=2))",
    "consensus(skipplus(decompx), saliency, combine=mean)",
    "consensus(gradcam, input_x_gradient)",
    "smooth(gradcam, samples=2)",
    "var(gradcam)",
    "refine(logprob(gradcam), masks=16, drop=false)",
]
ILL_CONDITIONED = {"gradcam_pp", "ablationcam", "xgradcam", "var"}  # close to a division by zero, or a step
KINKED = {"blur_ig": (4, 5e-3), "guided_ig": (10**9, 1.0), "xrai": (10**9, 0.02)}
"""How many pixels may be off between precisions, and how far, in networks of ReLUs and maxima, whose gradients jump. On
the path of blurs two values lie within 4e-6 of each other under one maximum of a pooling. Guided paths choose pixels by
the order of gradients, and xrai puts whole regions in an order: there, close ones may change places, and maps need only
be alike. Neighbours are judged in float64."""
FEW = [
    "vit",
    "siglip",
    "swin",
    "hf_vit",
    "tv_vit",
    "resnet",
]  # one of a kind


def kinds(short: Iterable[str] = (*FEW, "registers")) -> list[Any]:
    """All families; others than the short list in the long run only."""
    usual = set(short)
    return [pytest.param(n, marks=[] if n in usual else pytest.mark.slow, id=n) for n in ALL]


@pytest.fixture(params=kinds())
def model(request: pytest.FixtureRequest) -> vt.VisionModel:
    return vt.wrap(ALL[request.param]())


@pytest.fixture(params=kinds(FEW))
def one_of_each(request: pytest.FixtureRequest) -> vt.VisionModel:
    return vt.wrap(ALL[request.param]())


@pytest.fixture(params=SPELLINGS)
def method(request: pytest.FixtureRequest) -> Method:
    return vt.get_method(request.param)


def attribute(method: Method, model: vt.VisionModel, x: Tensor, **options: Any) -> Tensor:
    """The map, or a skip where the model and the method do not fit and both say so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vt.VitreousWarning)
            return method.attribute(model, x, **options)
    except vt.VitreousError as error:
        refuses = any(part.models != "all" for part in method.components())
        if model.attention == "none" and "is for transformers" in str(error) and refuses:
            pytest.skip("has no attention")
        if not model.is_relu_only and "ReLUs only" in str(error) and refuses:
            pytest.skip("has other activations than ReLUs")
        if model.attention == "windowed" and "inside windows" in str(error) and refuses:
            pytest.skip("attends inside windows")
        if not model.can_drop_tokens and "leaves tokens out" in str(error):
            pytest.skip("needs the whole grid")
        raise


def test_contract(model: vt.VisionModel, method: Method) -> None:
    """Grid, finiteness, dtype, determinism, independence of neighbours, nothing left behind."""
    x = images(model, 3)
    model.module.train()
    next(model.module.children()).eval()  # a mixed state must survive too
    state = State(model.module)
    try:
        found = attribute(method, model, x, target=1)
    finally:
        state.assert_same(model.module)

    grids = {model.last_grid(x), *(model.grid(x, layer) for layer in range(model.depth))}
    assert found.shape[0] == 3
    assert found.shape[1:] == x.shape[2:] if method.grid == "pixel" else tuple(found.shape[1:]) in grids
    assert found.dtype == torch.float32
    assert torch.isfinite(found).all()
    assert not found.requires_grad
    assert torch.equal(found, attribute(method, model, x, target=1)), "the same call gives another map"

    model.module.double()
    double = attribute(method, model, x.double(), target=1)
    assert double.dtype == torch.float64
    scale = found.abs().max() + 1e-12
    off = (double.float() - found).abs()
    few, far = KINKED.get(method.info.name, (0, 2e-3)) if model.is_relu_only else (0, 2e-3)
    if method.info.name == "xrai" and "vgg" in model.name.lower():
        far = 1.0  # two regions do change places there
    assert (off > 2e-3 * scale).sum() <= few
    assert off.max() <= far * scale
    if far > 2e-3:
        assert cosine_similarity(double.float().flatten(1), found.flatten(1)).min() > 0.9

    # Division by almost nothing, and a sharp softmax, magnify rounding: there, neighbours are judged in float64.
    if method.info.name in ILL_CONDITIONED or far > 2e-3:
        x, found = x.double(), double
    else:
        model.module.float()
    for i in range(3):
        alone = attribute(method, model, x[i : i + 1], target=1)
        assert (alone[0] - found[i]).abs().max() <= 1e-5 * scale
    turned = attribute(method, model, x.flip(0), target=1).flip(0)
    assert (turned - found).abs().max() <= 1e-5 * scale
    pieces = attribute(method, model, x, target=1, batch_size=2)
    assert (pieces - found).abs().max() <= 1e-5 * scale


def test_class_specific_methods_see_the_class(one_of_each: vt.VisionModel, method: Method) -> None:
    model = one_of_each
    x = images(model, 1)
    same = torch.equal(attribute(method, model, x, target=0), attribute(method, model, x, target=2))
    assert same != method.class_specific


def test_a_failure_in_the_middle_leaves_nothing_behind(one_of_each: vt.VisionModel, method: Method) -> None:
    """Break the forward in the last block, then the backward through the target."""
    model = one_of_each
    x = images(model, 2)
    if method.cost == (0, 0):
        pytest.skip("runs no pass")
    attribute(method, model, x, target=0)
    broken = some_module(model).register_forward_hook(_raise)
    state = State(model.module)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        method.attribute(model, x)
    state.assert_same(model.module)
    broken.remove()

    def target(logits: Tensor) -> Tensor:
        if logits.requires_grad:
            logits.register_hook(_raise)
        return logits[:, 0]

    if method.cost[1] == 0:
        return
    if method.info.name == "var":  # takes no callable: break the backward inside the model
        broken = some_module(model).register_forward_hook(lambda *seen: _break_backward(seen[2]))
    state = State(model.module)
    with pytest.raises(RuntimeError, match="broken on purpose"):
        method.attribute(model, x, target=None if method.info.name == "var" else target)
    state.assert_same(model.module)
    broken.remove()


def some_module(model: vt.VisionModel) -> nn.Module:
    """A module of the last block that the view can name."""
    if model.attention == "none":
        return model.module.get_submodule(model.chain[-1][-1])
    for name in ("mlp", "norm2", "norm1"):
        with contextlib.suppress(vt.VitreousError):
            return model.hook_point(model.depth - 1, name)
    raise AssertionError("no site in the last block")


def _break_backward(output: Any) -> None:
    value = output if isinstance(output, Tensor) else output[0]
    if value.requires_grad:
        value.register_hook(_raise)


def _raise(*_: object) -> None:
    raise RuntimeError("broken on purpose")


def test_grids(one_of_each: vt.VisionModel, method: Method) -> None:
    """Pixels sum into tokens; tokens are interpolated to pixels. What enters block 0 of a VGG are pixels."""
    model = one_of_each
    x = images(model, 1)
    own = attribute(method, model, x, target=1)
    token = attribute(method, model, x, target=1, grid="token")
    pixel = attribute(method, model, x, target=1, grid="pixel")
    assert pixel.shape[1:] == x.shape[2:]
    if own.shape[1:] != x.shape[2:]:
        assert method.grid == "token"
        assert torch.equal(own, token)
    else:
        height, width = (side // cells for side, cells in zip(x.shape[2:], model.grid(x), strict=True))
        expected = own.unfold(1, height, height).unfold(2, width, width).sum(dim=(-1, -2))
        assert torch.allclose(token, expected, atol=1e-5 * own.abs().max().item() * height * width)


def home(method: Method) -> nn.Module:
    """A model that the method is for."""
    return CNNS["resnet"]() if any(part.models == "ReLU" for part in method.components()) else FAMILIES["vit"]()


def test_half_precision_gives_float32_maps(method: Method) -> None:
    model = vt.wrap(home(method))
    x = images(model, 1)
    full = attribute(method, model, x, target=1)
    model.module.half()
    half = attribute(method, model, x, target=1)
    assert half.dtype == torch.float32
    if method.info.name != "random" and "smooth" not in method.spec:  # their draws follow the rounded image
        assert torch.nn.functional.cosine_similarity(full.flatten(), half.flatten(), dim=0) > 0.97


def test_methods_are_values(method: Method) -> None:
    """Hashable, picklable, equal to their own spelling, and frozen."""
    assert pickle.loads(pickle.dumps(method)) == method
    assert vt.get_method(method.spec) == method
    assert hash(vt.get_method(method.spec)) == hash(method)
    assert str(method) == method.spec
    assert method.info.summary.endswith(".")
    with pytest.raises((AttributeError, TypeError)):
        method.layer = 1


def test_maps_under_no_grad_and_inference_mode_are_the_same(method: Method) -> None:
    model = home(method)
    x = images(model, 2)
    plain = method.attribute(model, x, target=1)
    with torch.no_grad():
        assert torch.equal(method.attribute(model, x, target=1), plain)
    with torch.inference_mode():
        inside = method.attribute(model, images(model, 2), target=1)
    assert torch.equal(inside, plain)


@pytest.mark.parametrize("bad", [torch.zeros(0, 3, 32, 32), torch.zeros(1, 1, 32, 32), torch.zeros(1, 3, 16, 32)])
def test_bad_inputs_are_refused_by_name(method: Method, bad: Tensor) -> None:
    model = home(method)
    state = State(model)
    with pytest.raises(vt.VitreousError):
        method.attribute(model, bad)
    with pytest.raises(vt.VitreousError, match="not finite"):
        method.attribute(model, torch.full((1, 3, 32, 32), float("nan")))
    with pytest.raises(vt.VitreousError, match="tensor"):
        method.attribute(model, "photo.jpg")
    with pytest.raises(vt.VitreousError, match="99"):
        method.attribute(model, images(model, 1), target=99)
    state.assert_same(model)


def test_weights_that_are_not_finite_are_loud(method: Method) -> None:
    model = home(method)
    if method.cost == (0, 0):
        pytest.skip("knows nothing of the model")
    with torch.no_grad():
        [parameter for parameter in model.parameters() if parameter.ndim > 1][-2].flatten()[0] = float("nan")
    with pytest.raises(vt.VitreousError, match="not finite"):
        method.attribute(model, images(model, 1), target=0)
