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
from reference_cam import TARGET, Reference

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


def published(found: Tensor) -> Tensor:
    """The usual tail: ReLU, scale at 14 x 14, enlarge, ReLU, scale again."""

    def rescale(m: Tensor) -> Tensor:
        m = m - m.min()
        return m / (1e-7 + m.max())

    small = rescale(found.clamp(min=0)).float()
    large = F.interpolate(small[None, None], size=(224, 224), mode="bilinear", align_corners=False)[0, 0]
    return rescale(large.clamp(min=0))


@pytest.mark.parametrize("spec", GOLDEN)
def test_golden_numbers(spec):
    mean, value, place = GOLDEN[spec]
    model, image = golden()
    shown = published(vt.get_method(spec).attribute(model, image, target=2)[0])
    assert shown.mean().item() == pytest.approx(mean, abs=1e-7)
    assert shown[100, 37].item() == pytest.approx(value, abs=1e-6)
    assert shown.argmax().item() == place


# -- slow references -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["vit", "gap", "deit_distilled", "registers", "nonsquare"])
def reference(request: pytest.FixtureRequest) -> Reference:
    return Reference(request.param)


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
    reference.check(f"{name}(layer={layer})", [weighted(name, f[p:], g[p:]) for f, g in pairs])


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", ["layercam", "gradcam_elementwise"])
def test_element_by_element(reference, name, layer):
    pairs = reference.pair(reference.run.norm1[layer])
    reference.check(f"{name}(layer={layer})", [elementwise(name, f, g)[reference.prefix :] for f, g in pairs])


@pytest.mark.parametrize("layer", [0, -1])
def test_principal_components(reference, layer):
    p = reference.prefix
    pairs = reference.pair(reference.run.norm1[layer])
    reference.check(f"eigencam(layer={layer})", [component(f[p:]) for f, _ in pairs])
    reference.check(f"eigengradcam(layer={layer})", [component(f[p:] * g[p:]) for f, g in pairs])


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
    down, across = (corners(s, c) for s, c in zip(reference.images.shape[2:], (height, width), strict=True))
    expected, few = [], []
    for image, features in zip(reference.images, reference.run.norm1[-1].detach().numpy(), strict=True):
        f = features[reference.prefix :]
        scores = np.zeros(f.shape[1])
        for k in range(f.shape[1]):
            mask = down @ f[:, k].reshape(height, width) @ across.T
            mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-8)
            scores[k] = reference_vit.forward(reference.model, (image * torch.from_numpy(mask))[None]).logits[0, TARGET]
        expected.append(f @ (np.exp(scores) / np.exp(scores).sum()))
        best = np.argsort(f.var(axis=0))[-5:]
        few.append(f[:, best] @ (np.exp(scores[best]) / np.exp(scores[best]).sum()))
    reference.check("scorecam", expected)
    reference.check("scorecam(channels=5)", few)
    reference.check("scorecam(channels=999)", expected)


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
    reference.check("ablationcam", expected, rtol=1e-6)


def test_input_x_gradient(reference):
    expected = [(x * g).sum(axis=0).ravel() for x, g in reference.pair(reference.watched)]
    reference.check("input_x_gradient", expected)


def test_scores_follow_the_target():
    """A probability, or one class against another: both forward-only maps ask the target, not a logit."""
    reference = Reference("vit")
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
        how = weighted if name == "xgradcam_plus" else elementwise
        terms = [[how(name, f, g)[p:] for f, g in reference.pair(x)] for x in reference.run.inputs]
        reference.check(f"plus({name})", [sum(each) for each in zip(*terms, strict=True)])


@pytest.mark.parametrize("name", ["gradcam_pp", "xgradcam", "eigencam", "eigengradcam", "ablationcam"])
def test_every_cam_has_layer_terms_of_its_own(name):
    """The CAM at the input of each block, summed; and that is no multiple of the CAM at one place."""
    model = FAMILIES["vit"]().double()
    x = images(model, 2)
    found, extras = vt.get_method(f"plus({name})").attribute(model, x, 1, extras=True)
    terms = [vt.get_method(f"{name}(layer={layer}, point=resid_pre)") for layer in range(3)]
    expected = torch.stack([term.attribute(model, x, 1) for term in terms], dim=1)
    torch.testing.assert_close(extras["layers"], expected)
    torch.testing.assert_close(found, expected.sum(dim=1))
    base = vt.get_method(name).attribute(model, x, 1)
    for one, other in zip(found, base, strict=True):
        assert abs(float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])) < 0.9999


def test_scorecam_has_none():
    assert not vt.get_method("scorecam").is_layerwise
    with pytest.raises(vt.VitreousError, match="has no maps by layer"):
        vt.get_method("plus(scorecam, via=layers)")
