"""The generic tester: what every method must do on every family of models, and what the list of methods says."""

from __future__ import annotations

import contextlib
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

import vitreous as vt
from contract import SHORT, State
from families import images
from families_cnn import RELU
from vitreous.errors import ModelError
from vitreous.methods import Method
from vitreous.methods.registry import KINDS_OF_MODELS
from zoo import ALL, CNNS

pytestmark = pytest.mark.filterwarnings("ignore::vitreous.errors.VitreousWarning")

SPECS = [
    SHORT.get(info.name)
    or (f"{info.name}({', '.join(['generic', 'ixg'][: info.num_bases])})" if info.is_combinator else info.name)
    for info in vt.list_methods()
] + [
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
be alike. Neighbours are compared in float64."""
ONE_OF_A_KIND = ("vit", "registers", "siglip", "swin", "hf_vit", "tv_vit", "resnet", "tv_convnext")


@cache
def shared_model(family: str, dtype: torch.dtype = torch.float32) -> vt.VisionModel:
    """One model for all methods: nothing that one of them leaves behind may reach the next."""
    model = vt.wrap(ALL[family]())
    model.module.to(dtype).train()
    next(model.module.children()).eval()  # a mixed state must survive too
    return model


def expected_refusal(method: Method, model: vt.VisionModel) -> str:
    """The reason why this method is not for this model, as the list of methods says; empty where it is."""
    kinds = {part.models for part in method.components()}
    assert kinds <= set(KINDS_OF_MODELS)
    reasons = {
        "transformers": "is for transformers" if model.attention == "none" else "",
        "ViT": {"none": "is for transformers", "windowed": "inside windows|leaves tokens out"}.get(model.attention, ""),
        "ReLU": "" if model.is_relu_only else "ReLUs only|is for transformers",
    }
    return "|".join(reason for kind, reason in reasons.items() if kind in kinds and reason)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in ONE_OF_A_KIND else pytest.mark.slow) for name in ALL]
)
def test_contract(family: str, spec: str) -> None:
    """Grid, finiteness, dtype, determinism, class, independence of neighbours; nothing left behind, also by failures.

    Or a refusal, exactly where the list of methods says that this kind of model is not meant.
    """
    method, model = vt.get_method(spec), shared_model(family)
    x, model_64 = images(model, 3), shared_model(family, torch.float64)
    state = State(model.module)
    if reason := expected_refusal(method, model):
        with pytest.raises(ModelError, match=reason):
            method.attribute(model, x, target=1)
        return state.assert_same(model.module)

    maps = method.attribute(model, x, target=1)
    state.assert_same(model.module)
    grids = {model.last_grid(x), *(model.grid(x, layer) for layer in range(model.depth))}
    assert maps.shape[0] == 3
    assert maps.shape[1:] == x.shape[2:] if method.grid == "pixel" else tuple(maps.shape[1:]) in grids
    assert maps.dtype == torch.float32
    assert torch.isfinite(maps).all()
    assert not maps.requires_grad
    assert torch.equal(maps, method.attribute(model, x, target=2)) != method.class_specific
    check_grids(method, model, x, maps)
    check_precision_and_neighbours(method, model, model_64, x, maps)
    if method.cost != (0, 0):
        check_failures(method, model, x)
    state.assert_same(model.module)
    return None


def check_grids(method: Method, model: vt.VisionModel, x: Tensor, maps: Tensor) -> None:
    """Pixels sum into tokens; tokens are interpolated to pixels. What enters block 0 of a VGG are pixels.

    Asked for the grid that it has, a method gives the same map again, bit for bit.
    """
    token, pixel = (method.attribute(model, x, target=1, grid=grid) for grid in ("token", "pixel"))
    assert pixel.shape[1:] == x.shape[2:]
    if maps.shape[1:] != x.shape[2:]:
        assert method.grid == "token"
        assert torch.equal(maps, token)
    else:
        assert torch.equal(maps, pixel)
        height, width = (side // cells for side, cells in zip(x.shape[2:], model.grid(x), strict=True))
        expected = maps.unfold(1, height, height).unfold(2, width, width).sum(dim=(-1, -2))
        assert torch.allclose(token, expected, atol=1e-5 * maps.abs().max().item() * height * width)


def check_precision_and_neighbours(
    method: Method, model: vt.VisionModel, model_64: vt.VisionModel, x: Tensor, maps: Tensor
) -> None:
    name = method.info.name
    double = method.attribute(model_64, x.double(), target=1)
    assert double.dtype == torch.float64
    scale = maps.abs().max() + 1e-12
    off = (double.float() - maps).abs()
    few, far = KINKED.get(name, (0, 2e-3)) if model.is_relu_only else (0, 2e-3)
    if name == "xrai" and "vgg" in model.name.lower():
        far = 1.0  # two regions do change places there
    assert (off > 2e-3 * scale).sum() <= few
    assert off.max() <= far * scale
    if far > 2e-3:
        assert cosine_similarity(double.float().flatten(1), maps.flatten(1)).min() > 0.9

    # Division by almost nothing, and a sharp softmax, magnify rounding: there, neighbours are compared in float64.
    if name in ILL_CONDITIONED or far > 2e-3:
        model, x, maps = model_64, x.double(), double
    alone = method.attribute(model, x[1:2], target=1)
    assert (alone[0] - maps[1]).abs().max() <= 1e-5 * scale
    pieces = method.attribute(model, x.flip(0), target=1, batch_size=2).flip(0)  # another order, and cut in two
    assert (pieces - maps).abs().max() <= 1e-5 * scale


def check_failures(method: Method, model: vt.VisionModel, x: Tensor) -> None:
    """Break the forward in the last block, then the backward through the target, or where none is taken, in a block."""
    with_backward = method.cost[1] > 0
    takes_functions = method.info.name != "var"

    def target(logits: Tensor) -> Tensor:
        if logits.requires_grad:
            logits.register_hook(_raise)
        return logits[:, 0]

    module = some_module(model)
    failures = [(_raise, None)]
    if with_backward:
        failures.append((None, target) if takes_functions else (lambda *seen: _break_backward(seen[2]), None))
    for hook, function in failures:
        handle = contextlib.nullcontext() if hook is None else module.register_forward_hook(hook)
        with handle:
            state = State(model.module)
            with pytest.raises(RuntimeError, match="broken on purpose"):
                method.attribute(model, x, target=function)
            state.assert_same(model.module)


def some_module(model: vt.VisionModel) -> nn.Module:
    """A module of the last block that has a name."""
    if model.attention == "none":
        return model.module.get_submodule(model.chain[-1][-1])
    for name in ("mlp", "norm2", "norm1"):
        with contextlib.suppress(vt.VitreousError):
            return model.hook_point(model.depth - 1, name)
    raise AssertionError("no hook point in the last block")


def _break_backward(output: Any) -> None:
    value = output if isinstance(output, Tensor) else output[0]
    if value.requires_grad:
        value.register_hook(_raise)


def _raise(*_: object) -> None:
    raise RuntimeError("broken on purpose")


# -- each method on a model that it is for -----------------------------------------------------------------


def home(method: Method) -> str:
    return "resnet" if any(part.models == "ReLU" for part in method.components()) else "vit"


@cache
def broken_model(family: str) -> nn.Module:
    """One weight is not finite."""
    model = ALL[family]()
    with torch.no_grad():
        [parameter for parameter in model.parameters() if parameter.ndim > 1][-2].flatten()[0] = float("nan")
    return model


@pytest.mark.parametrize("spec", SPECS)
def test_methods_are_values(spec: str) -> None:
    """Hashable, picklable, equal to their own spec, and frozen."""
    method = vt.get_method(spec)
    assert pickle.loads(pickle.dumps(method)) == method
    assert vt.get_method(method.spec) == method
    assert hash(vt.get_method(method.spec)) == hash(method)
    assert str(method) == method.spec
    assert method.info.summary.endswith(".")
    with pytest.raises((AttributeError, TypeError)):
        method.layer = 1


@pytest.mark.parametrize("spec", SPECS)
def test_half_precision_and_modes_of_autograd(spec: str) -> None:
    """Half precision gives float32 maps; under ``no_grad`` and in inference mode they are the same."""
    method = vt.get_method(spec)
    model = shared_model(home(method))
    x = images(model, 2)
    full = method.attribute(model, x, target=1)
    half = method.attribute(shared_model(home(method), torch.float16), x[:1], target=1)
    assert half.dtype == torch.float32
    if method.info.name != "random" and "smooth" not in method.spec:  # their draws follow the rounded image
        assert cosine_similarity(full[0].flatten(), half.flatten(), dim=0) > 0.97
    with torch.no_grad():
        assert torch.equal(method.attribute(model, x, target=1), full)
    with torch.inference_mode():
        inside = method.attribute(model, images(model, 2), target=1)
    assert torch.equal(inside, full)


@pytest.mark.parametrize("spec", SPECS)
def test_bad_inputs_and_weights_are_refused_by_name(spec: str) -> None:
    method = vt.get_method(spec)
    model = shared_model(home(method)).module
    state = State(model)
    for shape in ((0, 3, 32, 32), (1, 1, 32, 32), (1, 3, 16, 32)):
        with pytest.raises(vt.VitreousError):
            method.attribute(model, torch.zeros(shape))
    for inputs, options, message in (
        (torch.full((1, 3, 32, 32), float("nan")), {}, "not finite"),
        ("photo.jpg", {}, "tensor"),
        (images(model, 1), {"target": 99}, "99"),
    ):
        with pytest.raises(vt.VitreousError, match=message):
            method.attribute(model, inputs, **options)
    state.assert_same(model)
    if method.cost != (0, 0):
        with pytest.raises(vt.VitreousError, match="not finite"):
            method.attribute(broken_model(home(method)), images(model, 1), target=0)


# -- the list ----------------------------------------------------------------------------------------------


def test_kinds_of_models() -> None:
    """What the contract takes a model for is what it is."""
    for name in CNNS:
        model = vt.wrap(CNNS[name]())
        assert (model.attention, model.has_residual_stream, model.is_relu_only) == ("none", False, name in RELU)
    for name in ALL:
        if "swin" in name:
            assert vt.wrap(ALL[name]()).attention == "windowed"


def test_at_least_sixty_distinct_methods() -> None:
    """Combinators and controls do not count, nor do two names of one class."""
    kinds = {
        info.factory
        for info in vt.list_methods()
        if not (info.is_combinator or info.family in ("combinator", "control"))
    }
    assert len(kinds) >= 60


def test_combinators_are_for_the_models_of_their_base() -> None:
    text = {info.name: info.models_text for info in vt.list_methods()}
    assert {text[name] for name in ("smooth", "consensus", "var", "refine", "logprob")} == {"as its base"}
    assert {text[name] for name in ("plus", "decompx", "generic")} == {"transformers"}
    assert (text["gradcam"], text["atman"], text["guided_backprop"]) == ("all", "ViT", "ReLU")
