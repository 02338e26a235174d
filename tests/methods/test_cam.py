"""Class activation maps and input x gradient: golden numbers, slow references, places, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import reference_vit
import vitreous as vt
from families import FAMILIES, golden, images
from reference_forward import TARGET, Reference, reference_of
from vitreous.models import Pooling, VisionModel
from vitreous.models.preprocess import Preprocess
from vitreous.tracing import Context, Target
from vitreous.tracing.runner import logits_with_patches, patched_output

# -- the golden model ----------------------------------------------------------------------------------------------

# mean, value at (100, 37), flat arg max of the 224 x 224 map of class 2 after the published post-processing
GOLDEN = {
    "gradcam_pp": (0.0334072, 0.003529, 19704),
    "xgradcam": (0.0993540, 0.012988, 5239),
    "layercam": (0.0184857, 0.006006, 23255),
    "gradcam_elementwise": (0.0911011, 0.054136, 23255),
    "eigencam": (0.1812800, 0.103275, 8840),
    "scorecam": (0.3093766, 0.454227, 8792),
    "ablationcam": (0.1592492, 0.092639, 48520),
}


def published(actual: Tensor) -> Tensor:
    """The usual tail: ReLU, scale at 14 x 14, enlarge, ReLU, scale again."""

    def rescale(m: Tensor) -> Tensor:
        m = m - m.min()
        return m / (1e-7 + m.max())

    small = rescale(actual.clamp(min=0)).float()
    large = F.interpolate(small[None, None], size=(224, 224), mode="bilinear", align_corners=False)[0, 0]
    return rescale(large.clamp(min=0))


@pytest.mark.parametrize("spec", GOLDEN)
def test_golden_numbers(spec):
    mean, value, place = GOLDEN[spec]
    model, image = golden()
    displayed = published(vt.get_method(spec).attribute(model, image, target=2)[0])
    assert displayed.mean().item() == pytest.approx(mean, abs=1e-7)
    assert displayed[100, 37].item() == pytest.approx(value, abs=1e-6)
    assert displayed.argmax().item() == place


# -- slow references -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["vit", "gap", "deit_distilled", "registers", "nonsquare"])
def reference(request: pytest.FixtureRequest) -> Reference:
    return reference_of(request.param)


def check(reference: Reference, spec: str, expected: list[np.ndarray], rtol: float = 1e-8) -> None:
    """``expected`` is one number per patch for each image."""
    reference.check(spec, torch.from_numpy(np.stack(expected)), rtol)


def channel_weight(name: str, f: np.ndarray, g: np.ndarray) -> float:
    """The weight of one channel from its features and gradients, place by place."""
    if name == "gradcam_pp":
        total = 0.0
        for value in g:
            alpha = value**2 / (2 * value**2 + f.sum() * value**3 + 1e-6) if value != 0 else 0.0
            total += max(value, 0) * alpha
        return total
    sizes = np.abs(f) if name == "xgradcam_plus" else f
    return float((g * sizes).sum() / (sizes.sum() + 1e-7))


def weighted(name: str, f: np.ndarray, g: np.ndarray) -> np.ndarray:
    return sum(channel_weight(name, f[:, k], g[:, k]) * f[:, k] for k in range(f.shape[1]))


def elementwise(name: str, f: np.ndarray, g: np.ndarray) -> np.ndarray:
    out = np.zeros(len(f))
    for j in range(len(f)):
        for k in range(f.shape[1]):
            out[j] += max(g[j, k], 0) * f[j, k] if name == "layercam" else max(g[j, k] * f[j, k], 0)
    return out


def component(matrix: np.ndarray) -> np.ndarray:
    """The projection on the first right singular vector, by numpy's full decomposition."""
    centred = matrix - matrix.mean(axis=0)
    projection = centred @ np.linalg.svd(centred, full_matrices=True)[2][0]
    return projection if projection.max() > -projection.min() else -projection


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", ["gradcam_pp", "xgradcam", "xgradcam_plus"])
def test_weighted_channels(reference, name, layer):
    p = reference.prefix
    pairs = reference.pair(reference.run.norm1[layer])
    check(reference, f"{name}(layer={layer})", [weighted(name, f[p:], g[p:]) for f, g in pairs])


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", ["layercam", "gradcam_elementwise"])
def test_element_by_element(reference, name, layer):
    pairs = reference.pair(reference.run.norm1[layer])
    check(reference, f"{name}(layer={layer})", [elementwise(name, f, g)[reference.prefix :] for f, g in pairs])


@pytest.mark.parametrize("layer", [0, -1])
def test_principal_components(reference, layer):
    p = reference.prefix
    pairs = reference.pair(reference.run.norm1[layer])
    check(reference, f"eigencam(layer={layer})", [component(f[p:]) for f, _ in pairs])
    check(reference, f"eigengradcam(layer={layer})", [component(f[p:] * g[p:]) for f, g in pairs])


def corners(size: int, cells: int) -> np.ndarray:
    """Bilinear enlargement with aligned corners, as a matrix ``[size, cells]``."""
    matrix = np.zeros((size, cells))
    for i in range(size):
        at = i * (cells - 1) / (size - 1)
        low = min(int(at), cells - 2)
        matrix[i, low], matrix[i, low + 1] = 1 - (at - low), at - low
    return matrix


@torch.no_grad()
def test_scorecam(reference):
    height, width = reference.model.patch_embed.grid_size
    down, columns = (corners(s, c) for s, c in zip(reference.images.shape[2:], (height, width), strict=True))
    expected, few = [], []
    for image, features in zip(reference.images, reference.run.norm1[-1].detach().numpy(), strict=True):
        f = features[reference.prefix :]
        scores = np.zeros(f.shape[1])
        for k in range(f.shape[1]):
            mask = down @ f[:, k].reshape(height, width) @ columns.T
            mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-8)
            scores[k] = reference_vit.forward(reference.model, (image * torch.from_numpy(mask))[None]).logits[0, TARGET]
        expected.append(f @ (np.exp(scores) / np.exp(scores).sum()))
        best = np.argsort(f.var(axis=0))[-5:]
        few.append(f[:, best] @ (np.exp(scores[best]) / np.exp(scores[best]).sum()))
    check(reference, "scorecam", expected)
    check(reference, "scorecam(channels=5)", few)
    check(reference, "scorecam(channels=999)", expected)


def after_norm1(model: nn.Module, x: Tensor, normed: Tensor) -> Tensor:
    """The last block and the head by hand, with the output of the first norm given."""
    module = model.blocks[-1]
    q, k, v = (
        reference_vit.heads(part, module.attn.num_heads)
        for part in reference_vit.linear(module.attn.qkv, normed).chunk(3, -1)
    )
    mixed = (reference_vit.weights(module.attn, q, k) @ v).transpose(1, 2).flatten(2)
    x = x + reference_vit.scaled(
        module.ls1, reference_vit.linear(module.attn.proj, reference_vit.norm(module.attn.norm, mixed))
    )
    x = x + reference_vit.scaled(module.ls2, reference_vit.mlp(module.mlp, reference_vit.norm(module.norm2, x)))
    return reference_vit.finish(model, x, reference_vit.Run(torch.empty(0)))


@torch.no_grad()
@pytest.mark.parametrize("least", [None, 0.0])
def test_ablationcam(reference, least):
    """Once as it is, and once with a norm whose smallest output is exactly zero: then channels are set to zero."""
    if least is not None:
        reference = Reference(reference.family)
    x, features = reference.run.inputs[-1].detach(), reference.run.norm1[-1].detach()
    if least is not None:
        features = features.clamp(min=least)
        reference.model.blocks[-1].norm1.register_forward_hook(lambda module, args, output: output.clamp(min=least))
    expected = []
    for i in range(len(x)):
        f, score = features[i], after_norm1(reference.model, x[i : i + 1], features[i : i + 1])[0, TARGET]
        patches = f[reference.prefix :]
        total = torch.zeros(len(patches), dtype=torch.float64)
        for k in range(f.shape[1]):
            gone = f.clone()
            gone[:, k] = f.min() - 1e7 if least is None else 0.0
            without = after_norm1(reference.model, x[i : i + 1], gone[None])[0, TARGET]
            total += (score - without) / score * patches[:, k]
        expected.append(total.numpy())
    check(reference, "ablationcam", expected, rtol=1e-6)


def test_scores_follow_the_target():
    """A probability, or one class against another: both forward-only maps ask the target, not a logit."""
    reference = reference_of("vit")
    for name in ("scorecam", "ablationcam"):
        ask = vt.get_method(name).attribute

        def margin(logits: Tensor) -> Tensor:
            return logits[:, 0] - logits[:, 1]

        contrast = ask(reference.model, reference.images, target=0, contrast=1)
        assert torch.allclose(contrast, ask(reference.model, reference.images, target=margin))
        assert not torch.allclose(contrast, ask(reference.model, reference.images, target=0, output="prob"))


# -- layer terms ---------------------------------------------------------------------------------------------------


def test_layer_terms(reference):
    """At the block's input; the weights of XGrad-CAM+ over all tokens, prefix included."""
    p = reference.prefix
    for name in ("xgradcam_plus", "layercam", "gradcam_elementwise"):
        method = weighted if name == "xgradcam_plus" else elementwise
        terms = [[method(name, f, g)[p:] for f, g in reference.pair(x)] for x in reference.run.inputs]
        check(reference, f"plus({name})", [sum(item) for item in zip(*terms, strict=True)])


@pytest.mark.parametrize("name", ["gradcam_pp", "xgradcam", "eigencam", "eigengradcam", "ablationcam"])
def test_every_cam_has_layer_terms_of_its_own(name):
    """The CAM at the input of each block, summed; and that is no multiple of the CAM at one place."""
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    actual, extras = vt.get_method(f"plus({name})").attribute(model, x, 1, extras=True)
    terms = [vt.get_method(f"{name}(layer={layer}, point=resid_pre)") for layer in range(3)]
    expected = torch.stack([term.attribute(model, x, 1) for term in terms], dim=1)
    torch.testing.assert_close(extras["layers"], expected)
    torch.testing.assert_close(actual, expected.sum(dim=1))
    base = vt.get_method(name).attribute(model, x, 1)
    for one, other in zip(actual, base, strict=True):
        assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.9999


def test_scorecam_has_none():
    assert not vt.get_method("scorecam").is_layerwise
    with pytest.raises(vt.VitreousError, match="has no maps by layer"):
        vt.get_method("plus(scorecam, via=layers)")


@pytest.mark.parametrize("name", ["ablationcam", "scorecam"])
def test_sub_networks_take_tokens(name):
    model = FAMILIES["vit"]()
    assert vt.get_method(f"plus({name}, start=1)").attribute(model, images(model, 1)).shape == (1, 4, 4)


# -- hook points -------------------------------------------------------------------------------------------------------


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
    with pytest.raises(vt.VitreousError, match="not one of auto, norm1, norm2, resid_pre, resid_post"):
        vt.get_method(f"{name}(point=pool)")


def test_a_place_before_a_mere_norm_is_refused():
    """A norm ignores the length of a vector, so features times gradient cancel in front of it."""
    reference = reference_of("vit")
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
    sizes = {
        "0, norm1": 4,
        "0, resid_pre": 4,
        "0, resid_post": 2,
        "1, resid_pre": 2,
        "1, norm1": 2,
        "-1, resid_post": 2,
    }
    for place, size in sizes.items():
        assert vt.get_method(f"{name}({place})").attribute(model, x, target=1).shape == (2, size, size)


# -- replacing -----------------------------------------------------------------------------------------------------


def test_replacing_leaves_nothing_behind():
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 1)
    before = vision_model.logits(x)
    with patched_output(vision_model, 1, "norm2", torch.zeros_like):
        assert not torch.equal(vision_model.logits(x), before)
    with pytest.raises(ZeroDivisionError), patched_output(vision_model, 1, "norm2", lambda value: value / (1 // 0)):
        vision_model.logits(x)
    assert torch.equal(vision_model.logits(x), before)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("point", ["resid_pre", "norm1", "attn", "norm2", "mlp", "resid_post"])
def test_a_change_that_changes_nothing_gives_the_logits(point):
    model = FAMILIES["registers"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    with torch.no_grad():
        tokens = vision_model.forward_blocks(vision_model.embed(x), 0, 1)
    same, other = (logits_with_patches(vision_model, tokens, 1, point, {1: f}) for f in (torch.clone, torch.sin))
    assert torch.allclose(same, vision_model.logits(x))
    assert not torch.allclose(other, vision_model.logits(x))


def test_counts_of_forwards():
    """What the progress bar is told is what runs."""
    model = FAMILIES["vit"]()
    vision_model, x = vt.wrap(model), images(model, 2)
    for spec, item in {"scorecam": 25, "ablationcam": 25, "scorecam(channels=4)": 5}.items():
        ticks: list[int] = []
        method = vt.get_method(spec)
        method.compute(Context(vision_model, x, Target.of(vision_model, 2), batch=7, on_progress=ticks.append))
        assert method.num_forwards(vision_model) * 2 == sum(ticks) == item * 2
    with pytest.raises(vt.VitreousError, match="channels=0"):
        vt.get_method("scorecam(channels=0)")
