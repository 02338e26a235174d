"""A known transformer inside a model of one's own, or under another head: found, verified equal, explained."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, images
from zoo import EVERY

METHODS = ("generic", "logprob(plus(decompx))", "rollout", "gradcam", "tis(masks=4)", "coiba(samples=1)", "ixg")


class MLP(nn.Module):
    """With functional activations and dropout, which no list of modules shows."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(F.dropout(x, 0.5, self.training))))


class Scaled(nn.Module):
    """What many fine-tuning scripts have: input scaled inside, a backbone, a linear layer."""

    def __init__(self, backbone: nn.Module, width: int, classes: int = 5) -> None:
        super().__init__()
        self.backbone, self.fc = backbone, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.backbone((x - 0.1) * 2))


class Averaged(nn.Module):
    """Reads the mean of the patches, although its transformer would read the class token."""

    def __init__(self, encoder: Any, width: int) -> None:
        super().__init__()
        self.encoder, self.fc = encoder, nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder.forward_features(x)[:, self.encoder.num_prefix_tokens :].mean(dim=1))


class Tasks(nn.Module):
    def __init__(self, vit: nn.Module, width: int) -> None:
        super().__init__()
        self.vit, self.tasks = vit, nn.ModuleDict({"kind": nn.Linear(width, 5), "age": nn.Linear(width, 3)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.vit(x)
        return {name: head(features) for name, head in self.tasks.items()}


class Lightning(nn.Module):
    """As a LightningModule is built: the model in an attribute, more modules for the loss, hooks around forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, nn.CrossEntropyLoss()

    def forward(self, batch: Tensor) -> Tensor:
        return self.model(batch)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.loss(self(batch[0]), batch[1])


class LoRA(nn.Module):
    """A linear layer and a product of two thin ones beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * self.up(self.down(x))


class Tuned(nn.Module):
    """As PEFT nests a model: two levels down, its keyword arguments passed on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.ModuleDict({"model": model})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model["model"](*args, **kwargs)


def without_head(family: str = "vit") -> Any:
    model = FAMILIES[family]()
    model.reset_classifier(0)
    return model


def adapted() -> nn.Module:
    model: Any = FAMILIES["vit"]()
    for block in model.blocks:
        block.attn.qkv = LoRA(block.attn.qkv)
    return Tuned(model)


def headed(head: Any) -> nn.Module:
    model: Any = FAMILIES["vit"]()
    model.head = head
    return model


WIDTH = without_head().num_features
MODELS: dict[str, Any] = {
    "norm and linear": lambda: headed(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 7))),
    "linear in a sequence": lambda: headed(nn.Sequential(nn.Linear(WIDTH, 7))),
    "another linear": lambda: headed(nn.Linear(WIDTH, 7)),
    "an MLP": lambda: headed(MLP(WIDTH, 4)),
    "dropout": lambda: headed(nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, 4))),
    "backbone": lambda: Scaled(without_head(), WIDTH),
    "average": lambda: Averaged(without_head(), WIDTH),
    "average with registers": lambda: Averaged(without_head("registers"), WIDTH),
    "sequence": lambda: nn.Sequential(without_head(), nn.Dropout(0.2), nn.Linear(WIDTH, 6)),
    "Lightning": lambda: Lightning(FAMILIES["vit"]()),
    "Lightning around a backbone": lambda: Lightning(Scaled(without_head(), WIDTH)),
    "parallel": lambda: nn.DataParallel(Scaled(without_head(), WIDTH)),
    "LoRA": adapted,
}


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    return model


@pytest.mark.parametrize("name", list(MODELS))
def test_it_is_equal_and_explained(name: str) -> None:
    model = built(name)
    vision_model = vt.wrap(model)
    x = images(vision_model, 2)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(vision_model.logits(x), expected)
    assert vision_model.num_classes == expected.shape[1]
    for method in METHODS:
        assert torch.isfinite(vt.get_method(method).attribute(vision_model, x, target=1)).all(), method
    assert vt.explain(model, x[:1])[0].prediction.target == int(expected[0].argmax())
    diagnosis = vt.diagnose(model)
    assert diagnosis.healthy, [check for check in diagnosis.checks if check.verdict == "failed"]


@pytest.mark.parametrize(
    "family", ["swin", "tv_vit", "tv_swin", "hf_vit", "hf_dinov2", "hf_swin", "eva", "beit", "siglip"]
)
def test_inside_every_family(family: str) -> None:
    if family not in EVERY:
        pytest.skip("its library is not installed")
    inner = EVERY[family]()

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.out = inner, nn.Linear(vt.wrap(inner).num_classes, 3)

        def forward(self, x: Tensor) -> Tensor:
            result = self.net(x)
            return self.out(getattr(result, "logits", result))

    model = Around().eval()
    vision_model = vt.wrap(model)
    x = images(vision_model, 2)
    with torch.no_grad():
        assert torch.allclose(vision_model.logits(x), model(x), rtol=1e-5, atol=1e-6)
    assert vision_model.pooling.kind == vt.wrap(inner).pooling.kind
    assert torch.isfinite(
        vt.get_method(vt.recommended_method("quick", vision_model)).attribute(vision_model, x, target=1)
    ).all()
    assert vision_model.name.startswith("Around around ")


@pytest.mark.parametrize("method", [*METHODS, "attention_flow", "refine(ixg, masks=8)", "fullgrad_plus", "alti"])
def test_the_map_is_that_of_the_bare_model(method: str) -> None:
    """The same weights once as timm has them, once as a backbone with a layer behind it."""
    full: Any = FAMILIES["vit"]().double().eval()
    backbone = copy.deepcopy(full)
    backbone.head = nn.Identity()
    model = nn.Sequential(backbone, full.head)
    x = images(full, 2).double()
    assert torch.equal(
        vt.get_method(method).attribute(model, x, target=1), vt.get_method(method).attribute(full, x, target=1)
    )


def test_hugging_face_heads_and_towers() -> None:
    if "hf_vit" not in EVERY:
        pytest.skip("transformers is not installed")
    model: Any = EVERY["hf_vit"]()
    width = model.config.hidden_size

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit, self.read = EVERY["hf_vit"]().vit, nn.Linear(width, 4)

        def forward(self, pixel_values: Tensor) -> Tensor:
            return self.read(self.vit(pixel_values=pixel_values).last_hidden_state[:, 0])

    model.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(width, 4))
    for item in (model.eval(), Tower().eval()):
        vision_model = vt.wrap(item)
        x = images(vision_model, 2)
        with torch.no_grad():
            result = item(x)
        assert torch.equal(vision_model.logits(x), getattr(result, "logits", result))
        assert torch.isfinite(vt.get_method("generic").attribute(vision_model, x, target=1)).all()


def test_one_of_several_outputs() -> None:
    model = Tasks(without_head(), WIDTH).eval()
    with pytest.raises(vt.VitreousError, match=r"these outputs of logits: 'kind', 'age'; choose one with output_key="):
        vt.wrap(model)
    vision_model = vt.wrap(model, output_key="age")
    x = images(vision_model, 2)
    with torch.no_grad():
        assert torch.equal(vision_model.logits(x), model(x)["age"])
    assert vision_model.fingerprint != vt.wrap(model, output_key="kind").fingerprint
    with pytest.raises(vt.VitreousError, match="none called 'sex'"):
        vt.wrap(model, output_key="sex")


def test_several_transformers_inside() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = FAMILIES["vit"](), FAMILIES["vit"]()

        def forward(self, x: Tensor) -> Tensor:
            return self.left(x)

    model = Two().eval()
    with pytest.raises(vt.VitreousError, match=r"several models inside: left .*, right .*backbone='left'"):
        vt.wrap(model)
    vision_model = vt.wrap(model, backbone="left")
    x = images(vision_model, 2)
    assert torch.equal(vision_model.logits(x), vt.wrap(model.left).logits(x))
    with pytest.raises(vt.VitreousError, match="its forward runs 0 blocks, right has 3"):
        vt.wrap(model, backbone="right")
    with pytest.raises(vt.VitreousError, match="no known model at 'middle'; found: left, right"):
        vt.wrap(model, backbone="middle")


def test_none_inside() -> None:
    with pytest.raises(vt.VitreousError, match="no known model is inside"):
        vt.wrap(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)))
    for headless in (without_head(), nn.Sequential(without_head())):
        with pytest.raises(vt.VitreousError, match="no classifier"):
            vt.wrap(headless)


def test_what_would_not_be_equal_is_refused() -> None:
    class Twice(nn.Module):
        """The same blocks for the picture and for its mirror image: no single stream of tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.vit = FAMILIES["vit"]()

        def forward(self, x: Tensor) -> Tensor:
            return self.vit(x) + self.vit(x.flip(-1))

    with pytest.raises(vt.VitreousError, match="its forward runs 6 blocks, vit has 3"):
        vt.wrap(Twice().eval())

    class Around(nn.Module):
        """Something goes round the blocks: the picture itself reaches the output."""

        def __init__(self) -> None:
            super().__init__()
            self.vit = FAMILIES["vit"]()

        def forward(self, x: Tensor) -> Tensor:
            return self.vit(x) + x.mean(dim=(1, 2, 3))[:, None] * torch.arange(5)

    model = Around().eval()
    with pytest.raises(vt.VitreousError, match="computes something else than its parts"):
        vt.explain(model, images(model.vit, 1), "ixg")


def test_nothing_is_left_on_the_users_model() -> None:
    model = built("backbone")
    before = [(name, sorted(vars(module))) for name, module in model.named_modules()]
    vision_model = vt.wrap(model)
    x = images(vision_model, 2)
    vision_model.embed(x), vision_model.forward_head(torch.randn(2, 17, WIDTH))
    vt.get_method("generic").attribute(vision_model, x)
    assert [(name, sorted(vars(module))) for name, module in model.named_modules()] == before
    assert not any(module._forward_hooks for module in model.modules())


def test_a_changed_head_is_seen() -> None:
    model: Any = built("backbone")
    assert vt.wrap(model).num_classes == 5
    model.fc = nn.Linear(WIDTH, 9)
    assert vt.wrap(model).num_classes == 9
