"""LIME and KernelSHAP against their definitions: sets one by one, regressions by other solvers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, images
from vitreous.methods.surrogates import lasso, least_squares, ridge
from vitreous.tracing.prng import PRNGKey
from zoo import CLASS, look_at, value_of

KINDS = ["vit", "registers", "gap", "siglip", "nonsquare", "swin", "hf_vit", "tv_vit"]


def painted(model: vt.VisionModel, image: Tensor, visible: list[bool], fill: str) -> Tensor:
    """One image [3, H, W] with the patches that are not kept painted over, patch by patch."""
    height, width = model.grid(image[None])
    step = (image.shape[1] // height, image.shape[2] // width)
    line = torch.exp(-0.5 * (torch.arange(-5, 6).double() / 5) ** 2)
    kernel = (torch.outer(line, line) / line.sum() ** 2).expand(3, 1, 11, 11)
    soft = F.conv2d(F.pad(image[None], (5, 5, 5, 5), mode="reflect"), kernel, groups=3)[0]
    built = image.clone()
    for patch, stays in enumerate(visible):
        top, left = patch // width * step[0], patch % width * step[1]
        place = (slice(None), slice(top, top + step[0]), slice(left, left + step[1]))
        if not stays:
            built[place] = {
                "own": image[place].mean(dim=(1, 2), keepdim=True),
                "zero": torch.zeros(3, 1, 1),
                "mean": image.mean(dim=(1, 2), keepdim=True),
                "blur": soft[place],
            }[fill]
    return built


def lime_sets(count: int, patches: int, complete: bool, seed: int = 0) -> list[list[bool]]:
    sampled = [(PRNGKey.of(seed, "lime").at(i).uniform(patches)[0] < 0.5).tolist() for i in range(count)]
    return [[True] * patches, *sampled[1:]] if complete else sampled


def augmented(sets: list[list[bool]], scores: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    """Ridge with a free intercept as one plain least-squares problem of more rows."""
    design = np.array(sets, dtype=float)
    count, patches = design.shape
    root = np.sqrt(weights)[:, None]
    rows = np.vstack([root * np.c_[design, np.ones(count)], math.sqrt(alpha) * np.eye(patches, patches + 1)])
    return np.linalg.lstsq(rows, np.r_[root[:, 0] * scores, np.zeros(patches)], rcond=None)[0][:patches]


# -- LIME ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", KINDS)
@torch.no_grad()
def test_lime(family):
    """As in lime_image: first all patches, cosine distance of the indicators, ridge on probabilities."""
    model, x = look_at(family)
    actual = vt.get_method("lime(samples=30)").attribute(model, x, CLASS, seed=5)
    sets = lime_sets(30, math.prod(model.grid(x)), True, seed=5)
    distances = [1 - math.sqrt(sum(visible) / len(visible)) for visible in sets]
    weights = np.array([math.sqrt(math.exp(-(d**2) / 0.25**2)) for d in distances])
    for image, own in zip(x, actual, strict=True):
        scores = value_of(
            model.logits(torch.stack([painted(model, image, visible, "own") for visible in sets])), "prob"
        )
        assert np.allclose(own.flatten(), augmented(sets, scores.numpy(), weights, 1.0), atol=1e-10)


@pytest.mark.parametrize("fill", ["zero", "mean", "blur"])
@torch.no_grad()
def test_lime_options(fill):
    model, x = look_at("nonsquare", 1)
    actual = vt.get_method(f"lime(25, {fill}, output=logprob, width=0.5, alpha=0.3, include_full=false)").attribute(
        model, x, CLASS
    )
    sets = lime_sets(25, 12, False)
    weights = np.array([math.exp(-((1 - math.sqrt(sum(visible) / 12)) ** 2) / 0.5) for visible in sets])
    scores = value_of(model.logits(torch.stack([painted(model, x[0], visible, fill) for visible in sets])), "logprob")
    assert np.allclose(actual.flatten(), augmented(sets, scores.numpy(), weights, 0.3), atol=1e-10)


@torch.no_grad()
def test_lime_as_in_captum():
    """No sample of the whole image, cosine distance of the pixels, lasso on logits."""
    model, x = look_at("vit")
    actual = vt.get_method("lime@captum(alpha=0.05)").attribute(model, x, CLASS)
    sets = lime_sets(25, 16, False)
    for image, own in zip(x, actual, strict=True):
        copies = torch.stack([painted(model, image, visible, "zero") for visible in sets])
        cosines = F.cosine_similarity(copies.flatten(1), image.flatten()[None])
        weights = torch.exp(-((1 - cosines) ** 2) / 2)
        optimal(torch.tensor(sets).double(), value_of(model.logits(copies)), weights, 0.05, own.flatten())
    assert vt.get_method("lime@captum").fixed_output == "logit"
    assert vt.get_method("lime@lime_image") == vt.get_method("lime")
    assert vt.get_method("lime@captum") != vt.get_method("lime")


@torch.no_grad()
def test_the_pixels_of_every_filling_are_compared():
    model, x = look_at("nonsquare", 1)
    actual = vt.get_method("lime(20, mean, distance=pixels, width=0.7)").attribute(model, x, CLASS)
    sets = lime_sets(20, 12, True)
    copies = torch.stack([painted(model, x[0], visible, "mean") for visible in sets])
    weights = torch.exp(-((1 - F.cosine_similarity(copies.flatten(1), x[0].flatten()[None])) ** 2) / (2 * 0.7**2))
    scores = value_of(model.logits(copies), "prob")
    assert np.allclose(actual.flatten(), augmented(sets, scores.numpy(), weights.numpy(), 1.0), atol=1e-10)


@torch.no_grad()
def test_lime_of_tokens():
    model, x = look_at("registers", 1)
    sub, tokens = model.suffix(1, x), model.forward_blocks(model.embed(x), 0, 1)
    actual = vt.get_method("lime(20, zero, distance=pixels)").attribute(sub, tokens, CLASS)
    sets = lime_sets(20, 16, True)
    copies = torch.cat([tokens] * 20)
    for copy, visible in zip(copies, sets, strict=True):
        copy[model.num_prefix_tokens :][~torch.tensor(visible)] = 0
    weights = torch.exp(-((1 - F.cosine_similarity(copies.flatten(1), tokens.flatten()[None])) ** 2) / (2 * 0.25**2))
    scores = value_of(sub.logits(copies), "prob")
    assert np.allclose(actual.flatten(), augmented(sets, scores.numpy(), weights.numpy(), 1.0), atol=1e-10)
    with pytest.raises(vt.VitreousError, match="fill=own is for images"):
        vt.get_method("plus(lime)").attribute(model, x, CLASS)


@pytest.mark.parametrize("family", ["vit", "gap", "siglip", "eva02", "hf_vit"])
@torch.no_grad()
def test_lime_without_tokens(family):
    """Sets of different sizes: each by itself here, those of one size together there."""
    model, x = look_at(family)
    actual = vt.get_method("lime(samples=24, drop=true)").attribute(model, x, CLASS, batch_size=3)
    sets = lime_sets(24, 16, True)
    assert len({sum(visible) for visible in sets}) > 4
    weights = np.array([math.exp(-((1 - math.sqrt(sum(visible) / 16)) ** 2) / (2 * 0.25**2)) for visible in sets])
    for image, own in zip(x, actual, strict=True):
        scores = [value_of(model.logits(image[None], keep=torch.tensor([visible]).nonzero()[:, 1][None]), "prob")
                  for visible in sets]  # fmt: skip
        assert np.allclose(own.flatten(), augmented(sets, torch.cat(scores).numpy(), weights, 1.0), atol=1e-10)


def test_an_image_of_zeros_has_no_direction():
    model, _ = look_at("vit")
    actual = vt.get_method("lime@captum(fill=mean, alpha=0.001)")
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):  # all copies are the same
        assert torch.isfinite(actual.attribute(model, torch.zeros(1, 3, 32, 32).double(), CLASS)).all()


# -- KernelSHAP ----------------------------------------------------------------------------------------------------


def shap_sets(count: int, patches: int, seed: int = 0) -> list[list[bool]]:
    """All, none, then a size by its probability and the first patches of a random order."""
    sizes = list(range(1, patches))
    probabilities = np.array([(patches - 1) / (k * (patches - k)) for k in sizes])
    probabilities /= probabilities.sum()
    sets = [[True] * patches, [False] * patches]
    for index in range(2, count):
        draws = PRNGKey.of(seed, "kernel_shap").at(index)
        sampled, size = draws.fold_in("size").uniform(1).item(), 0
        while sampled >= probabilities[: size + 1].sum() and size < len(sizes) - 1:
            size += 1
        first = set(draws.permutation(patches)[0, : sizes[size]].tolist())
        sets.append([patch in first for patch in range(patches)])
    return sets


def fitted(sets: list[list[bool]], scores: np.ndarray) -> np.ndarray:
    """The shortest least-squares fit behind a free intercept."""
    design, weights = np.array(sets, dtype=float), np.ones(len(sets))
    weights[:2] = 1e6
    centred = design - np.average(design, axis=0, weights=weights)
    left = scores - np.average(scores, weights=weights)
    return np.linalg.pinv(np.sqrt(weights)[:, None] * centred) @ (np.sqrt(weights) * left)


@pytest.mark.parametrize("family", KINDS)
@torch.no_grad()
def test_kernel_shap(family):
    model, x = look_at(family)
    patches = math.prod(model.grid(x))
    actual = vt.get_method("kernel_shap(samples=80)").attribute(model, x, CLASS, seed=2)
    sets = shap_sets(80, patches, seed=2)
    for image, own in zip(x, actual, strict=True):
        scores = value_of(model.logits(torch.stack([painted(model, image, visible, "zero") for visible in sets])))
        assert np.allclose(own.flatten(), fitted(sets, scores.numpy()), atol=1e-8)
        assert own.sum().item() == pytest.approx((scores[0] - scores[1]).item(), abs=1e-4)


@pytest.mark.parametrize("samples", [3, 9, 60])
@torch.no_grad()
def test_kernel_shap_without_tokens(samples):
    """With fewer samples than patches too; the sum is what all patches give together."""
    model, x = look_at("registers", 1)
    actual = vt.get_method(f"kernel_shap({samples}, drop=true)").attribute(model, x, CLASS)
    sets = shap_sets(samples, 16)
    scores = [value_of(model.logits(x, keep=torch.tensor([visible]).nonzero()[:, 1][None])) for visible in sets]
    assert np.allclose(actual.flatten(), fitted(sets, torch.cat(scores).numpy()), atol=1e-8)
    assert actual.sum().item() == pytest.approx((scores[0] - scores[1]).item(), abs=1e-4)


@torch.no_grad()
def test_kernel_shap_finds_shapley_values():
    """Four patches have 16 sets: the values by their definition, over all orders."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = VisionTransformer(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=2, num_classes=3)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    vision_model = vt.wrap(model.double().eval())
    x = images(vision_model, 1)
    worth = {}
    for visible in itertools.product([False, True], repeat=4):
        worth[visible] = value_of(vision_model.logits(painted(vision_model, x[0], list(visible), "mean")[None])).item()
    values = np.zeros(4)
    for order in itertools.permutations(range(4)):
        visible = [False] * 4
        for patch in order:
            before = worth[tuple(visible)]
            visible[patch] = True
            values[patch] += (worth[tuple(visible)] - before) / 24
    actual = vt.get_method("kernel_shap(samples=20000, fill=mean)").attribute(vision_model, x, CLASS).flatten()
    assert np.abs(actual.numpy() - values).max() < 0.02 * np.abs(values).max()
    assert actual.sum().item() == pytest.approx(values.sum(), rel=1e-3)


@torch.no_grad()
def test_kernel_shap_of_tokens():
    model, x = look_at("deit_distilled", 1)
    sub, tokens = model.suffix(1, x), model.forward_blocks(model.embed(x), 0, 1)
    actual = vt.get_method("kernel_shap(50, mean)").attribute(sub, tokens, CLASS)
    sets = shap_sets(50, 16)
    copies = torch.cat([tokens] * 50)
    for copy, visible in zip(copies, sets, strict=True):
        copy[model.num_prefix_tokens :][~torch.tensor(visible)] = tokens[0, model.num_prefix_tokens :].mean(dim=0)
    assert np.allclose(actual.flatten(), fitted(sets, value_of(sub.logits(copies)).numpy()), atol=1e-8)


def test_settings():
    assert vt.get_method("kernel_shap@captum").spec == "kernel_shap(samples=25)"
    assert vt.get_method("kernel_shap(samples=99)").cost == vt.get_method("lime(samples=99)").cost == (99, 0)
    assert vt.get_method("kernel_shap(samples=99, drop=true)").num_forwards(vt.wrap(FAMILIES["vit"]())) == 100
    model, x = look_at("vit", 1)
    for name in ("lime(samples=30)", "kernel_shap(samples=30)"):
        first, other = (vt.get_method(name).attribute(model, x, CLASS, seed=seed) for seed in (0, 1))
        assert not torch.allclose(first, other, atol=1e-6)


# -- regressions ---------------------------------------------------------------------------------------------------


def objective(design: Tensor, scores: Tensor, weights: Tensor, alpha: float, actual: np.ndarray) -> float:
    """What the lasso minimises, with the best intercept."""
    left = scores.numpy() - design.numpy() @ actual
    share = weights.numpy() / weights.numpy().sum()
    left = left - (share * left).sum()
    return float(0.5 * (share * left**2).sum() + alpha * np.abs(actual).sum())


def optimal(design: Tensor, scores: Tensor, weights: Tensor, alpha: float, actual: Tensor) -> None:
    """Assert the conditions of the optimum: the slope is alpha against the sign, or within alpha where zero."""
    share = weights / weights.sum()
    centred, left = design - share @ design, scores - share @ scores
    slope = centred.T @ (share * (left - centred @ actual))
    at_zero = actual == 0
    assert at_zero.any()
    assert not at_zero.all()
    assert torch.allclose(slope[~at_zero], alpha * actual[~at_zero].sign(), atol=1e-8)
    assert (slope[at_zero].abs() <= alpha + 1e-8).all()


@pytest.mark.parametrize(("samples", "patches"), [(60, 8), (12, 20)])
def test_lasso(samples, patches):
    """No other point is better, said by the optimum's conditions and by a general minimiser."""
    generator = torch.Generator().manual_seed(samples)
    design = (torch.rand(samples, patches, generator=generator) < 0.5).double()
    design[:, 3] = 1  # says nothing, and gets nothing
    scores = torch.randn(2, samples, generator=generator, dtype=torch.float64) + 2 * design[:, 0] - design[:, 1]
    weights = torch.rand(2, samples, generator=generator, dtype=torch.float64) + 0.1
    actual = lasso(design, scores, weights, 0.08)
    assert (actual[:, 3] == 0).all()
    for own, message, weight in zip(actual, scores, weights, strict=True):
        optimal(design, message, weight, 0.08, own)

        def split(parts, message=message, weight=weight):
            return objective(design, message, weight, 0.08, parts[:patches] - parts[patches:])

        bounds = [(0, None)] * (2 * patches)
        other = minimize(split, np.zeros(2 * patches), bounds=bounds, method="L-BFGS-B", options={"maxiter": 2000})
        assert objective(design, message, weight, 0.08, own.numpy()) <= other.fun + 1e-9
    assert (lasso(design, scores, weights, 100.0) == 0).all()


def test_ridge_and_least_squares():
    generator = torch.Generator().manual_seed(0)
    design = (torch.rand(40, 6, generator=generator) < 0.5).double()
    truth = torch.tensor([[1.0, -2, 0, 0.5, 3, 0]], dtype=torch.float64)
    scores, weights = truth @ design.T + 7, torch.rand(40, generator=generator, dtype=torch.float64) + 0.1
    assert torch.allclose(least_squares(design, scores, weights), truth, atol=1e-10)
    assert torch.allclose(ridge(design, scores, weights[None], 1e-9), truth, atol=1e-7)
    none = torch.zeros(1, 40).double()
    for fit in (ridge, lasso):
        assert (fit(design, scores, none, 1.0) == 0).all()  # weights that are too small to be told from zero


# -- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("lime(samples=1)", "samples=1"),
        ("lime(fill=black)", "'black' is not one of"),
        ("lime(output=rank)", "'rank' is not one of"),
        ("lime(distance=l2)", "'l2' is not one of"),
        ("lime(surrogate=tree)", "'tree' is not one of"),
        ("lime(width=0)", "width=0.0"),
        ("lime(alpha=-1)", "alpha=-1.0"),
        ("lime(distance=pixels, drop=true)", "drop=true paints nothing"),
        ("kernel_shap(samples=2)", "samples=2"),
        ("kernel_shap(fill=black)", "'black' is not one of"),
    ],
)
def test_specs_refused(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["gap", "siglip"])
def test_no_patches_at_all_needs_a_class_token(family):
    model, x = look_at(family)
    with pytest.raises(vt.VitreousError, match="reads its answer from the patches"):
        vt.get_method("kernel_shap(samples=20, drop=true)").attribute(model, x, CLASS)


def test_leaving_tokens_out_needs_a_model_that_can():
    model, x = look_at("swin")
    for name in ("lime", "kernel_shap", "plus(lime", "plus(kernel_shap"):
        spec = f"{name}(drop=true){')' * name.count('(')}"
        with pytest.raises(vt.VitreousError, match=r"leaves tokens out, and .* cannot"):
            vt.get_method(spec).attribute(model, x, CLASS)
