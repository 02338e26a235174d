"""Convolutional networks: the split is the model, feature maps are where they should be, nothing is changed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES as TRANSFORMERS
from families import images
from families_cnn import FAMILIES, Plain, _build
from vitreous.errors import ModelError
from vitreous.tracing import Context, Pass, Record, Target, activation_value

LAST = {
    "resnet": "layer4.0",
    "densenet": "features.norm5",
    "convnext": "norm_pre",
    "vgg": "features.11",
    "efficientnet": "bn2",
    "tv_resnet": "layer4.0",
    "tv_densenet": "features.norm5",
    "tv_convnext": "features.5.0",
    "tv_vgg": "features.8",
    "tv_efficientnet": "features.3",
}
"""Where each family's last feature map comes from: after the last block, norm or activation, before any pooling."""


def last_map(model: nn.Module, path: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The feature map and the logits, by a hook on the model itself."""
    seen: list[Tensor] = []
    handle = model.get_submodule(path).register_forward_hook(lambda module, args, out: seen.append(out.clone()))
    with torch.no_grad():
        logits = model(x)
    handle.remove()
    return seen[0], logits


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_feature_map_and_the_logits(family: str) -> None:
    model = FAMILIES[family]().double()
    vision_model = vt.wrap(model)
    x = images(vision_model, 2)
    expected, logits = last_map(model, vision_model.chain[-1][-1], x)
    copied = vision_model.shared_copy()
    with torch.no_grad():
        tokens = copied.forward_blocks(copied.embed(x))
    height, width = vision_model.grid(x)
    assert vision_model.chain[-1][-1] == LAST[family] or family.endswith("vgg")
    assert torch.allclose(tokens.transpose(1, 2).reshape(expected.shape), expected)
    assert (vision_model.embed_dim, height, width) == tuple(expected.shape[1:])
    assert torch.allclose(copied.forward_head(tokens), logits)
    assert torch.allclose(vision_model.logits(x), logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_grids_widths_and_stages_are_those_of_the_tokens(family: str) -> None:
    model = vt.wrap(FAMILIES[family]())
    x = images(model, 1)
    copied = model.shared_copy()
    tokens = copied.embed(x)
    for layer in range(model.depth):
        height, width = model.grid(x, layer)
        assert tokens.shape == (1, height * width, model.embed_dim_at(layer))
        tokens = copied.forward_block(layer, tokens)
    assert tokens.shape[1] == model.grid()[0] * model.grid()[1] == model.last_grid(x)[0] * model.last_grid(x)[1]
    assert [layer for stage in model.stages for layer in stage] == (list(range(model.depth)) if model.stages else [])
    assert all(len({model.grid(layer=layer) for layer in stage}) == 1 for stage in model.stages)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_kept_is_not_changed_later_in_the_forward(family: str) -> None:
    """In-place activations would rectify a feature map that someone holds."""
    model = vt.wrap(FAMILIES[family]())
    x = images(model, 2)
    keep = Record("resid_pre", activation_value, tuple(range(model.depth)), grad=False)
    selected = Context(model, x, Target.of(model, 2)).run_pass(Pass((keep,)))[keep]
    for layer, tokens in enumerate(selected):
        assert torch.allclose(model.shared_copy().forward_blocks(model.shared_copy().embed(x), 0, layer), tokens)


def test_gradcam_by_hand_before_a_relu_that_is_no_module() -> None:
    """torchvision's DenseNet rectifies its last norm by a function, in place: what is kept must not be rectified."""
    model = FAMILIES["tv_densenet"]().double()
    x = images(model, 2)
    features = model.features(x).detach().requires_grad_()
    logits = model.classifier(F.adaptive_avg_pool2d(features.relu(), 1).flatten(1))
    (gradient,) = torch.autograd.grad(logits[:, 3].sum(), features)
    expected = (gradient.mean(dim=(2, 3), keepdim=True) * features).sum(dim=1)
    assert (features < 0).any()
    assert torch.allclose(vt.get_method("gradcam").attribute(model, x, target=3), expected.detach())


def test_any_network_by_a_layer() -> None:
    model = _build(Plain).double()
    with pytest.raises(ModelError, match="layer='layer4'"):
        vt.wrap(model)
    with pytest.warns(vt.VitreousWarning, match="Plain does not say how its pictures are prepared") as warned:
        vision_model = vt.wrap(model, layer="body")
    assert [item.filename for item in warned] == [__file__]
    x = images(vision_model, 2)
    assert (vision_model.depth, vision_model.grid(), vision_model.embed_dim, vision_model.stages) == (1, (8, 8), 12, ())
    assert torch.allclose(vision_model.logits(x), model(x))
    assert vt.diagnose(vision_model).healthy
    features = model.body(F.relu(model.stem(x))).detach().requires_grad_()
    logits = model.fc(F.relu(features + model.mixed(features)).mean(dim=(2, 3)))
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), features)
    assert torch.allclose(
        vt.get_method("hirescam").attribute(vision_model, x, target=1), (gradient * features).sum(dim=1).detach()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vision_model = vt.wrap(model, layer="stem", preprocess=vision_model.preprocess)
    assert torch.allclose(vision_model.logits(x), model(x))  # its head rectifies it in place


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("mixed", "something passes beside it"),
        ("fc", r"fc is given \[1, 12\], not a feature map"),
        ("bdy", "no layer 'bdy'; did you mean body"),
        ("", "not a feature map"),
    ],
)
def test_layers_that_are_no_split(at: str, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        vt.wrap(_build(Plain), layer=at)


def test_a_known_network_at_another_layer() -> None:
    model = FAMILIES["resnet"]()
    whole_view, vision_model = vt.wrap(model), vt.wrap(model, layer="layer2")
    x = images(model, 2)
    assert (vision_model.depth, whole_view.depth) == (2, 5)
    assert vision_model.chain[-1] == ("layer2.0",)
    assert torch.allclose(vision_model.logits(x), whole_view.logits(x))
    assert vision_model.fingerprint != whole_view.fingerprint
    with pytest.raises(ModelError, match="something passes beside it"):
        vt.wrap(model, layer="layer3.0.conv1")
    with pytest.raises(ModelError, match=r"runs 4 times|runs \d+ times|no layer"):
        vt.wrap(FAMILIES["tv_resnet"](), layer="layer1.0.relu")


def test_a_transformer_has_no_such_layer() -> None:
    with pytest.raises(ModelError, match="the layers of timm/VisionTransformer have numbers"):
        vt.wrap(TRANSFORMERS["vit"](), layer="blocks.0")


class Around(nn.Module):
    """A network of one's own around a known one: another scale, another head, two outputs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.net, self.head = inner, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        logits = self.net(x * 2)
        return {"own": logits, "more": self.head(logits)}


def test_inside_a_model_of_ones_own() -> None:
    model = Around(FAMILIES["tv_vgg"]())
    x = images(model.net, 2)
    with pytest.raises(ModelError, match="'own', 'more'"):
        vt.wrap(model)
    vision_model = vt.wrap(model, output_key="more")
    assert "Around around torchvision/VGG" in repr(vision_model)
    assert torch.allclose(vision_model.logits(x), model(x)["more"])
    assert vision_model.num_classes == 3
    assert vt.diagnose(vision_model).healthy


def test_training_mode_and_running_statistics_stay() -> None:
    model = FAMILIES["tv_resnet"]().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = images(model, 2)
    vt.get_method("gradcam").attribute(model, x, target=0)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [m.inplace for m in model.modules() if isinstance(m, nn.ReLU)] == [True] * 6


def test_other_sizes_are_refused_with_advice() -> None:
    model = vt.wrap(FAMILIES["resnet"]())
    with pytest.raises(ModelError, match="give img_size= to load, or preprocess= to wrap"):
        model.check_inputs(torch.zeros(1, 3, 48, 48))
    with pytest.raises(ModelError, match="cannot leave tokens out"):
        model.logits(images(model, 1), keep=torch.zeros(1, 3, dtype=torch.long))


def test_by_name() -> None:
    names = {info.name: info for info in vt.list_models()}
    wanted = ("resnet50", "wide_resnet50_2", "densenet121", "vgg16", "efficientnet_b0", "convnext_tiny")
    assert {f"{library}/{name}" for library in ("timm", "torchvision") for name in wanted} <= {*names}
    assert names["torchvision/efficientnet_b0"].size == 224
    for name in ("timm/resnet18", "torchvision/resnet18"):
        model = vt.load(name, pretrained=False, img_size=64, num_classes=7)
        assert (model.preprocess.size, model.num_classes, model.grid(), model.depth) == ((64, 64), 7, (2, 2), 8)
