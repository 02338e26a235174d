"""Where CAMs look: places, hierarchies, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, images
from reference_cam import TARGET, Reference
from vitreous.models import Pooling, VisionModel
from vitreous.models.preprocess import Preprocess
from vitreous.tracing import Context, Target
from vitreous.tracing.patching import logits_with, replaced


@pytest.fixture(params=["vit", "gap", "deit_distilled", "registers", "nonsquare"])
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


@pytest.mark.parametrize("name", ["ablationcam", "scorecam"])
def test_sub_networks_take_tokens(name):
    model = FAMILIES["vit"]()
    assert vt.get_method(f"plus({name}, start=1)").attribute(model, images(model, 1)).shape == (1, 4, 4)


# -- places --------------------------------------------------------------------------------------------------------


def test_sites(reference):
    """The output of a block is the input of the next, and a norm's output follows from the block."""
    for name in ("gradcam", "layercam", "eigencam", "ablationcam", "scorecam(channels=3)"):
        base, _, more = name.partition("(")
        more = f", {more}" if more else ")"
        maps = [
            vt.get_method(f"{base}(layer={layer}, point={point}{more}").attribute(
                reference.model, reference.images, TARGET
            )
            for layer, point in [(0, "resid_post"), (1, "resid_pre"), (1, "norm1"), (1, "auto")]
        ]
        assert torch.allclose(maps[0], maps[1], rtol=1e-9, atol=0)
        assert torch.equal(maps[2], maps[3])
        assert not torch.allclose(maps[1], maps[2])


@pytest.mark.parametrize("point", ["norm2", "resid_post"])
@pytest.mark.parametrize("name", ["gradcam", "hirescam", "xgradcam_plus", "eigengradcam"])
def test_places_that_patches_do_not_leave_are_refused(name, point):
    spec = f"{name}(point={point})"
    for family in ("vit", "deit_distilled", "registers"):
        model = FAMILIES[family]()
        with pytest.raises(
            vt.VitreousError, match=rf"patches do not reach the class from {point} of block 2; .*=norm1"
        ):
            vt.get_method(spec).attribute(model, images(model, 2))
    for family in ("gap", "siglip"):  # these read the patches
        if spec == "hirescam(point=resid_post)":
            continue  # refused for another reason, see below
        model = FAMILIES[family]()
        assert vt.get_method(spec).attribute(model, images(model, 2)).abs().max() > 0
    with pytest.raises(vt.VitreousError, match="not one of auto, norm1, norm2, input, output"):
        vt.get_method(f"{name}(point=pool)")


def test_a_place_before_a_mere_norm_is_refused():
    """A norm ignores the length of a vector, so features times gradient cancel in front of it."""
    reference = Reference("vit")
    sums = [(f * g)[1:].sum(axis=1) for f, g in reference.pair(reference.run.inputs[-1])]
    assert np.abs(sums).max() < 1e-5 * max(np.abs(f * g).max() for f, g in reference.pair(reference.run.inputs[-1]))
    with pytest.raises(vt.VitreousError, match=r"zero but for rounding .* ignores the length"):
        vt.get_method("hirescam(point=resid_pre)").attribute(reference.model, reference.images)
    assert vt.get_method("gradcam(point=resid_pre)").attribute(reference.model, reference.images).abs().max() > 0


def test_a_gradient_that_is_zero_for_another_reason_is_only_warned_of():
    model = FAMILIES["vit"]()
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        vt.get_method("gradcam").attribute(model, images(model, 1), target=lambda logits: 0 * logits[:, 0])


class Pyramid(VisionModel):
    """Two blocks on 4 x 4 patches, the first of which halves the grid on its way out; their mean is classified."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        parts = {f"norm{i}": nn.LayerNorm(6) for i in (0, 1)} | {f"mix{i}": nn.Linear(6, 6) for i in (0, 1)}
        self.module = nn.ModuleDict({"embed": nn.Conv2d(3, 6, 2, 2), "head": nn.Linear(6, 4), **parts}).double()
        self.name, self.family, self.depth, self.embed_dim, self.num_heads, self.num_prefix_tokens = (
            "pyramid",
            "test",
            2,
            6,
            1,
            0,
        )
        self.pooling, self.num_classes, self.stages = Pooling("avg", 0), 4, (range(0, 1), range(1, 2))
        self.preprocess = Preprocess((8, 8), (0.5,) * 3, (0.5,) * 3, "bilinear", 1.0, "center")

    def embed(self, inputs: Tensor) -> Tensor:
        return self.module["embed"](inputs).flatten(2).transpose(1, 2)

    def forward_block(self, layer: int, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        tokens = tokens + self.module[f"mix{layer}"](self.module[f"norm{layer}"](tokens)).tanh()
        if layer:
            return tokens
        return F.avg_pool2d(tokens.transpose(1, 2).unflatten(2, (4, 4)), 2).flatten(2).transpose(1, 2)

    def forward_head(self, tokens: Tensor) -> Tensor:
        return self.module["head"](tokens.mean(dim=1))

    def reference_forward(self, inputs: Tensor) -> Tensor:
        return self.forward_head(self.forward_blocks(self.embed(inputs)))

    def grid(self, inputs: Tensor | None = None, layer: int = 0) -> tuple[int, int]:
        return (2, 2) if layer else (4, 4)

    def _hook_point(self, layer: int, name: str) -> nn.Module:
        return self.module[f"{name[:-1]}{layer}"]

    def operation_counts(self, layer: int | None) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("name", ["gradcam", "eigencam", "scorecam", "ablationcam"])
def test_maps_of_a_hierarchy_lie_on_the_grid_of_their_place(name):
    model, x = Pyramid(), torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sizes = {"0, norm1": 4, "0, input": 4, "0, output": 2, "1, input": 2, "1, norm1": 2, "-1, output": 2}
    for place, size in sizes.items():
        assert vt.get_method(f"{name}({place})").attribute(model, x, target=1).shape == (2, size, size)


# -- replacing -----------------------------------------------------------------------------------------------------


def test_replacing_leaves_nothing_behind():
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 1)
    before = vision_model.logits(x)
    with replaced(vision_model, 1, "norm2", torch.zeros_like):
        assert not torch.equal(vision_model.logits(x), before)
    with pytest.raises(ZeroDivisionError), replaced(vision_model, 1, "norm2", lambda value: value / (1 // 0)):
        vision_model.logits(x)
    assert torch.equal(vision_model.logits(x), before)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("point", ["input", "norm1", "attn", "norm2", "mlp", "output"])
def test_a_change_that_changes_nothing_gives_the_logits(point):
    model = FAMILIES["registers"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    with torch.no_grad():
        tokens = vision_model.forward_blocks(vision_model.embed(x), 0, 1)
    assert torch.allclose(logits_with(vision_model, tokens, 1, point, torch.clone), vision_model.logits(x))
    assert not torch.allclose(logits_with(vision_model, tokens, 1, point, torch.sin), vision_model.logits(x))


# -- refused -------------------------------------------------------------------------------------------------------


def test_refused_methods_say_why():
    model, why = FAMILIES["vit"](), "no rule for GELU, .* input times gradient .* use input_x_gradient"
    x = images(model, 1)
    for spec in ("deeplift", "plus(deeplift)", "smooth(deeplift)"):
        with pytest.raises(vt.VitreousError, match=why):
            vt.get_method(spec).attribute(model, x)
    assert vt.get_method("deeplift").info.models == "ReLU"


def test_counts_of_forwards():
    """What the progress bar is told is what runs."""
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    for spec, each in {"scorecam": 25, "ablationcam": 25, "scorecam(channels=4)": 5}.items():
        ticks: list[int] = []
        method = vt.get_method(spec)
        method.compute(Context(vision_model, x, Target.of(vision_model, 2), batch=7, on_progress=ticks.append))
        assert method.num_forwards(vision_model) * 2 == sum(ticks) == each * 2
    with pytest.raises(vt.VitreousError, match="channels=0"):
        vt.get_method("scorecam(channels=0)")
