"""Views of torchvision models against torchvision itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, squeezenet1_0
from torchvision.models.vision_transformer import VisionTransformer

import vitreous as vt
from families_torchvision import MODELS, VIT, build
from vitreous.errors import ModelError, TracingError
from vitreous.models import registry as hub
from vitreous.models.adapters import torchvision as tv
from vitreous.tracing import Pass, Record, Target, activation_grad, activation_value
from vitreous.tracing.rules import LINEARIZED
from vitreous.tracing.runner import run_for_targets

VITS, SWINS = ["vit", "stem"], ["swin", "swin_odd", "swin_v2"]
GRIDS = {"swin": [(8, 8), (4, 4)], "swin_odd": [(9, 13), (5, 7)], "swin_v2": [(8, 8), (4, 4)]}


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def inputs_of(model: vt.VisionModel, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, 3, *model.preprocess.size, generator=generator).to(model.dtype)


# -- the three verbs -----------------------------------------------------------------------------------


@torch.no_grad()
def test_embed_run_finish_is_the_model(kind: str) -> None:
    model = MODELS[kind]()
    vision_model = vt.wrap(model)
    inputs = inputs_of(vision_model, 3)
    expected = model(inputs)
    torch.testing.assert_close(vision_model.logits(inputs), expected, rtol=1e-6, atol=1e-5)
    double = vt.wrap(model.double())
    for layer in range(vision_model.depth + 1):
        head = double.forward_blocks(double.embed(inputs.double()), 0, layer)
        result = double.forward_head(double.forward_blocks(head, layer))
        torch.testing.assert_close(result, model(inputs.double()), rtol=0, atol=1e-10)


@torch.no_grad()
def test_blocks_lie_on_their_grids(kind: str) -> None:
    model = vt.wrap(MODELS[kind]())
    tokens = model.embed(inputs_of(model))
    for layer in range(model.depth):
        height, width = model.grid(layer=layer)
        assert tokens.shape[:2] == (2, height * width + model.num_prefix_tokens)
        tokens = model.forward_block(layer, tokens)


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_32", "swin_t", "swin_v2_t"])
@torch.no_grad()
def test_published_architectures(name: str) -> None:
    torch.manual_seed(0)
    model = vt.load(f"torchvision/{name}", pretrained=False, img_size=64)
    inputs = torch.randn(1, 3, 64, 64)
    for parameter in model.module.parameters():  # torchvision starts a head at zero
        if parameter.ndim == 2 and len(parameter) == 1000:
            nn.init.normal_(parameter, std=0.02)
    torch.testing.assert_close(model.logits(inputs), model.module(inputs), rtol=0, atol=1e-6)
    assert (model.num_classes, model.label(281), model.depth) == (1000, "tabby", 12)
    result = vt.get_method("decompx").attribute(model, inputs, 281)
    assert result.shape == (1, *model.grid())


def test_leaving_patches_out() -> None:
    model = vt.wrap(MODELS["vit"]())
    inputs, everything = inputs_of(model), torch.arange(16).expand(2, -1)
    torch.testing.assert_close(model.logits(inputs, everything), model.logits(inputs))
    assert not torch.allclose(model.logits(inputs, everything[:, :5]), model.logits(inputs))
    swin = vt.wrap(MODELS["swin"]())
    with pytest.raises(ModelError, match="cannot leave tokens out"):
        swin.logits(inputs, everything)


# -- facts ---------------------------------------------------------------------------------------------


def test_facts(kind: str) -> None:
    model = vt.wrap(MODELS[kind]())
    assert (model.family, model.num_classes, model.class_names) == ("torchvision", 5, None)
    if kind in VITS:
        assert (model.depth, model.embed_dim, model.num_heads, model.num_prefix_tokens, model.grid()) == (
            3,
            24,
            3,
            1,
            (4, 4),
        )
        assert ((model.attention == "windowed"), model.can_drop_tokens, model.pooling.kind, model.stages) == (
            False,
            True,
            "token",
            (),
        )
        assert model.cam_point == "norm1"
    else:
        assert (model.depth, model.embed_dim, model.num_heads, model.num_prefix_tokens) == (4, 12, 2, 0)
        assert ((model.attention == "windowed"), model.can_drop_tokens, model.pooling.kind) == (True, False, "avg")
        assert model.stages == (range(0, 2), range(2, 4))
        assert [model.grid(layer=stage[0]) for stage in model.stages] == GRIDS[kind]
        assert model.cam_point == ("resid_pre" if kind == "swin_v2" else "norm2")


def test_sites_are_what_is_added(kind: str) -> None:
    """The residual stream grows by exactly the sites ``attn`` and ``mlp``; a merging comes after that."""
    model = MODELS[kind]().double()
    vision_model = vt.wrap(model)
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs_given: Any, output: Any) -> None:
        seen.append(output if isinstance(output, Tensor) else output[0])

    hooks = [vision_model.hook_point(0, name).register_forward_hook(note) for name in ("attn", "mlp")]
    with torch.no_grad():
        tokens = vision_model.embed(inputs_of(vision_model))
        after = vision_model.forward_block(0, tokens)
    for hook in hooks:
        hook.remove()
    added = sum(item.flatten(1, 2) if item.ndim == 4 else item for item in seen)
    torch.testing.assert_close(after, tokens + added, rtol=0, atol=1e-10)


def test_no_norm_before_a_branch_of_version_2() -> None:
    with pytest.raises(ModelError, match="its norms come after the branches"):
        vt.wrap(MODELS["swin_v2"]()).hook_point(0, "norm1")


def test_rules_see_every_call(kind: str) -> None:
    """The frozen pass compares what it saw with what the view declares, block by block."""
    model = vt.wrap(MODELS[kind]())
    inputs = inputs_of(model)
    target = Target.of(model, 2, 1, None, "logit")
    keep = Record("resid_pre", activation_grad, tuple(range(model.depth)))
    (frozen,) = run_for_targets(model, inputs, Pass((keep,), LINEARIZED), [target])
    (reference,) = run_for_targets(model, inputs, Pass((keep,)), [target])
    torch.testing.assert_close(frozen.logits, reference.logits, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(reference.logits, model.module(inputs), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(frozen[keep][0], reference[keep][0])


def test_an_unknown_activation_in_the_head_is_loud() -> None:
    model = build(VisionTransformer, **VIT, representation_size=7)  # torchvision puts a tanh there
    vision_model = vt.wrap(model)
    assert vt.get_method("ixg").attribute(vision_model, inputs_of(vision_model)).shape == (2, 4, 4)
    with pytest.raises(TracingError, match="0 activation calls in the head, expected 1"):
        vt.get_method("decompx").attribute(vision_model, inputs_of(vision_model))


# -- attention -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VITS)
def test_attention_of_torch_itself(kind: str) -> None:
    """What is recorded equals the weights that ``nn.MultiheadAttention`` gives when asked, one block after another."""
    model: Any = MODELS[kind]().double()
    vision_model = vt.wrap(model)
    keep = Record("attn_weights", activation_value, tuple(range(vision_model.depth)), grad=False)
    target = Target.of(vision_model, 2, 1, None, "logit")
    (cache,) = run_for_targets(vision_model, inputs_of(vision_model), Pass((keep,)), [target])
    with torch.no_grad():
        tokens = vision_model.embed(inputs_of(vision_model))
        for layer, result in enumerate(cache[keep]):
            block = model.encoder.layers[layer]
            normed = block.ln_1(tokens)
            expected = block.self_attention(normed, normed, normed, average_attn_weights=False)[1]
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)
            tokens = vision_model.forward_block(layer, tokens)


def test_gradients_of_autograd_itself(kind: str) -> None:
    model = MODELS[kind]().double()
    vision_model = vt.wrap(model)
    inputs = inputs_of(vision_model).requires_grad_()
    model(inputs)[:, 3].sum().backward()
    assert inputs.grad is not None
    result = vt.get_method("saliency").attribute(vision_model, inputs.detach(), 3)
    torch.testing.assert_close(result, inputs.grad.abs().sum(dim=1))


@pytest.mark.parametrize("kind", SWINS)
def test_class_activation_maps_lie_on_the_last_grid(kind: str) -> None:
    model = vt.wrap(MODELS[kind]())
    result = vt.get_method("gradcam").attribute(model, inputs_of(model), 1)
    assert result.shape == (2, *GRIDS[kind][-1])


@pytest.mark.parametrize("kind", SWINS)
def test_windows_are_refused_for_methods_that_follow_vectors_between_all_tokens(kind: str) -> None:
    model = vt.wrap(MODELS[kind]())
    with pytest.raises(ModelError, match="inside windows"):
        vt.get_method("globenc").attribute(model, inputs_of(model))
    assert vt.get_method("rollout").attribute(model, inputs_of(model)).shape == (2, *GRIDS[kind][0])


@pytest.mark.parametrize("spec", ["rollout", "generic", "gradcam", "ixg", "decompx", "saliency", "skipplus(ixg)"])
def test_nothing_is_left_behind(spec: str) -> None:
    model = MODELS["vit"]()
    vision_model = vt.wrap(model)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = vt.get_method(spec).attribute(vision_model, inputs_of(vision_model), 1)
    assert torch.isfinite(result).all()
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# -- loading -------------------------------------------------------------------------------------------


def test_models_are_listed() -> None:
    names = {info.name: info for info in vt.list_models() if info.family == "torchvision"}
    assert {"torchvision/vit_b_16", "torchvision/swin_t", "torchvision/swin_v2_b"} <= names.keys()
    assert not any("3d" in name or "maxvit" in name for name in names)
    assert names["torchvision/vit_h_14"].size == 518
    assert "IMAGENET1K_SWAG_E2E_V1" in names["torchvision/vit_b_16"].pretrained


@pytest.mark.parametrize(
    "name", ["vit_b_16", "vit_l_16", "vit_b_16.IMAGENET1K_SWAG_E2E_V1", "swin_t", "swin_s", "swin_b", "swin_v2_b"]
)
def test_preprocessing_is_torchvisions(name: str) -> None:
    arch, _, tag = name.partition(".")
    expected_names = get_model_weights(arch)
    transform = (expected_names[tag] if tag else expected_names.DEFAULT).transforms()
    result, labels = tv.describe(f"torchvision/{name}", "torchvision/vit_b_16")
    assert labels[281] == "tabby"
    side = 64
    resized = side * transform.resize_size[0] // transform.crop_size[0]
    smaller = (expected_names[tag] if tag else expected_names.DEFAULT).transforms(crop_size=side, resize_size=resized)
    other, _ = tv.describe(f"torchvision/{name}", "torchvision/vit_b_16", side)
    for width, height in ((300, 200), (211, 499), (640, 480), (50, 60), (300, 30), (7, 5)):
        photo = Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))
        torch.testing.assert_close(result.inputs(photo)[0], transform(photo), rtol=0, atol=1e-5)
        torch.testing.assert_close(other.inputs(photo)[0], smaller(photo), rtol=0, atol=1e-5)


def test_options_of_load() -> None:
    model = vt.load("torchvision/vit_b_32", pretrained=False, img_size=64, num_classes=3, class_names=list("abc"))
    assert (model.name, model.grid(), model.num_classes, model.preprocess.size) == (
        "torchvision/vit_b_32",
        (2, 2),
        3,
        (64, 64),
    )
    assert model.class_index("b") == 1
    swin = vt.load("torchvision/swin_t", pretrained=False, img_size=(64, 96), num_classes=3, dtype="float64")
    assert (swin.preprocess.size, swin.grid(layer=11), swin.class_names) == ((64, 96), (2, 3), None)
    assert swin.logits(torch.randn(1, 3, 64, 96)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("vit_b_61", {}, "'torchvision/vit_b_61'; did you mean torchvision/vit_b_16"),
        ("squeezenet1_0", {}, "'torchvision/squeezenet1_0'"),
        ("swin3d_t", {}, "'torchvision/swin3d_t'; did you mean torchvision/swin_t"),
        ("vit_b_32.IMAGENET21K", {}, "no weights 'IMAGENET21K'; there are IMAGENET1K_V1"),
        ("vit_b_32", {"img_size": 40}, "could not build torchvision/vit_b_32"),
        ("vit_b_32", {"img_size": 0}, "0 x 0"),
        ("vit_b_32", {"img_size": (64, 96)}, "64 x 96"),
        ("vit_b_32", {"img_size": 32, "nonsense": 3}, "nonsense"),
        ("swin_t", {"img_size": 3}, "holds no patch"),
        ("vit_b_32", {"img_size": 32, "class_names": ["cat"]}, "1000 classes but 1 labels"),
    ],
)
def test_load_refuses(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        vt.load(f"torchvision/{name}", pretrained=False, **options)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_views_refuse() -> None:
    with pytest.raises(ModelError, match="torchvision's SqueezeNet is not supported"):
        vt.wrap(squeezenet1_0())
    with pytest.raises(ModelError, match=r"takes images \[B, 3, 32, 32\], got \[1, 3, 64, 64\]"):
        vt.wrap(MODELS["vit"]()).check_inputs(torch.zeros(1, 3, 64, 64))
    with pytest.raises(ModelError, match="give img_size= to load"):
        vt.wrap(MODELS["swin"]()).check_inputs(torch.zeros(1, 3, 64, 64))
    for kind, head in (("vit", "heads"), ("swin", "head")):
        model = MODELS[kind]()
        setattr(model, head, nn.Identity())
        with pytest.raises(ModelError, match="no classifier"):
            vt.wrap(model)
    model = MODELS["vit"]()
    model.encoder.layers[1] = nn.Identity()
    with pytest.raises(ModelError, match="block 1 is a Identity"):
        vt.wrap(model)
    swin = MODELS["swin"]()
    swin.features[3][0] = nn.Identity()
    with pytest.raises(ModelError, match="block 2 is a Identity"):
        vt.wrap(swin)


def test_another_head_has_its_own_classes() -> None:
    model = MODELS["vit"]()
    model.heads = nn.Sequential(nn.Dropout(0.5), nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 3))
    vision_model = vt.wrap(model)
    assert vision_model.num_classes == 3
    assert vt.get_method("decompx").attribute(vision_model, inputs_of(vision_model), 2).shape == (2, 4, 4)


@torch.no_grad()
def test_checkpoints(tmp_path: Path) -> None:
    """Names of old files, another image size; and one that does not fit."""
    torch.manual_seed(0)
    model = get_model("vit_b_32", num_classes=3, image_size=64)
    names = {
        name: name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.") for name in model.state_dict()
    }
    torch.save({names[name]: value for name, value in model.state_dict().items()}, tmp_path / "old.pth")
    vision_model = vt.load("torchvision/vit_b_32", checkpoint=tmp_path / "old.pth", num_classes=3, img_size=64)
    inputs = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(vision_model.logits(inputs), model.eval()(inputs))
    larger = vt.load("torchvision/vit_b_32", checkpoint=tmp_path / "old.pth", num_classes=3, img_size=96)
    assert larger.grid() == (3, 3)
    assert vt.load("torchvision/vit_b_32", checkpoint=tmp_path / "old.pth", img_size=64).num_classes == 3
    with pytest.raises(ModelError, match="of another shape"):
        vt.load("torchvision/vit_b_32", checkpoint=tmp_path / "old.pth", num_classes=4, img_size=64)


def test_fetched_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchvision does it; the head is left out where it does not fit."""
    torch.manual_seed(0)
    model = get_model("vit_b_32")
    nn.init.normal_(model.heads.head.weight)
    monkeypatch.setattr(tv.ADAPTER, "_fetch", lambda name, weights: dict(model.state_dict()))
    vision_model = vt.load("torchvision/vit_b_32")
    assert torch.equal(vision_model.module.heads.head.weight, model.heads.head.weight)
    assert (vision_model.class_names or [])[281] == "tabby"
    few = vt.load("torchvision/vit_b_32", num_classes=3, img_size=64)
    assert (few.num_classes, few.class_names, few.grid()) == (3, None, (2, 2))
    first = "encoder.layers.encoder_layer_0.ln_1.weight"
    assert torch.equal(few.module.state_dict()[first], model.state_dict()[first])


def test_offline_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr(hub, "getproxies", dict)
    with pytest.raises(ModelError, match=r"download\.pytorch\.org cannot be reached") as unreachable:
        vt.load("torchvision/vit_b_32")
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "proxy"})
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", refuse)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(ModelError, match=r"torchvision/vit_b_32 \(no route to host\)") as failed:
        vt.load("torchvision/vit_b_32")
    for caught in (unreachable, failed):
        assert "pretrained=False" in str(caught.value)
        assert "\n" not in str(caught.value)
