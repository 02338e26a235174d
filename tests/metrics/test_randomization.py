"""Randomisation metrics against cascades by hand: weights set in a copy of the model, maps made one by one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import SpecError
from vitreous.metrics import ImageShape
from vitreous.models.randomize import randomised, stages
from vitreous.tracing.prng import PRNGKey
from zoo import EVERY


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 3)


def table(model: vt.VisionModel, x: Tensor, methods: Any, metric: str, **options: Any) -> Any:
    return vt.evaluate(model, x, methods, metric, controls=False, n_bootstrap=2, **options)


def by_hand(
    vision_model: vt.VisionModel, x: Tensor, method: str, which: list[str], seed: int, target: list[int]
) -> np.ndarray:
    """The maps of a deep copy of the model that was given the weights of some randomised stages."""
    model = copy.deepcopy(vision_model.module)
    model.load_state_dict(randomised(vision_model, which, seed).module.state_dict())
    return vt.get_method(method).attribute(model, x, target=target).numpy()


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return float(stats.spearmanr(a.ravel(), b.ravel()).statistic)


@pytest.mark.parametrize("order", ["top_down", "bottom_up", "independent"])
def test_cascade(model: vt.VisionModel, x: Tensor, order: str) -> None:
    names = list(stages(model))
    assert names == ["head", "norm", "block 2", "block 1", "block 0", "embeddings"]
    best = model.logits(x).argmax(dim=1).tolist()
    own = vt.get_method("ixg").attribute(model, x, target=best).numpy()
    expected = np.empty((2, 6, 3))
    for seed in range(2):
        for step in range(6):
            if order == "independent":
                which = [names[step]]
            else:
                which = (names if order == "top_down" else names[::-1])[: step + 1]
            maps = by_hand(model, x, "ixg", which, seed, best)
            expected[seed, step] = [spearman(a, b) for a, b in zip(own, maps, strict=True)]
    label = f"mprt(order={order}, seeds=2)"
    actual = table(model, x, "ixg", label)
    np.testing.assert_allclose(actual["ixg", label], expected.mean(axis=(0, 1)), atol=1e-6)
    curve = actual.curve("ixg", label)
    np.testing.assert_allclose(curve.x, np.arange(7) / 6)
    np.testing.assert_allclose(curve.y[:, 0], 1)
    np.testing.assert_allclose(curve.y[:, 1:], expected.mean(axis=0).T, atol=1e-6)
    assert (actual.parts["ixg", label][:, 1] == 0).all()


def test_similarity_norms_and_init_are_heeded(model: vt.VisionModel, x: Tensor) -> None:
    simple = table(model, x, "ixg", "mprt(seeds=1)")["ixg", "mprt(seeds=1)"]
    for option in ("similarity=pearson", "similarity=ssim", "norms=permute", "init=own"):
        label = f"mprt(seeds=1, {option})"
        assert not np.allclose(table(model, x, "ixg", label)["ixg", label], simple), option


def test_a_constant_map_passes_and_an_edge_detector_fails(model: vt.VisionModel, x: Tensor) -> None:
    ways = ["edges", "constant"]
    actual = table(model, x, ways, "mprt(seeds=1)")
    np.testing.assert_allclose(actual["edges", "mprt(seeds=1)"], 1, err_msg="it never looks at the model")
    np.testing.assert_allclose(actual["constant", "mprt(seeds=1)"], 0)
    assert actual.degenerate["constant"]["constant"] == 3
    assert (actual.parts["constant", "mprt(seeds=1)"][:, 1] == 6).all(), "and all are counted"


def test_smooth(model: vt.VisionModel, x: Tensor) -> None:
    best = model.logits(x).argmax(dim=1)
    draws = PRNGKey.of_images(0, "images normal noise", x)
    span = x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1)
    noise = torch.stack([draws.at(copy).normal(3, 32, 32) for copy in range(4)], dim=1)
    noisy = x[:, None] + 0.2 * span.view(-1, 1, 1, 1, 1) * noise
    names, expected = list(stages(model))[::-1], np.zeros(3)
    for image in range(3):
        target = [int(best[image])] * 4
        own = vt.get_method("ixg").attribute(model, noisy[image], target=target).numpy().mean(axis=0)
        for step in range(6):
            maps = by_hand(model, noisy[image], "ixg", names[: step + 1], 0, target)
            mean = maps.mean(axis=0)
            expected[image] += spearman(own, mean / np.sqrt((mean**2).mean())) / 6
    label = "smprt(samples=4, level=0.2)"
    np.testing.assert_allclose(table(model, x, "ixg", label)["ixg", label], expected, atol=1e-5)


def entropy(values: np.ndarray, bins: int) -> float:
    counts, _ = np.histogram(values, bins=bins)
    return float(stats.entropy(counts))


def test_efficient(model: vt.VisionModel, x: Tensor) -> None:
    best = model.logits(x).argmax(dim=1).tolist()
    own = vt.get_method("ixg").attribute(model, x, target=best).numpy()
    expected = []
    for image in range(3):
        rises = []
        for seed in range(2):
            maps = by_hand(model, x, "ixg", list(stages(model)), seed, best)
            before, after = entropy(own[image], 20), entropy(maps[image], 20)
            rises.append((after - before) / before)
        expected.append(np.mean(rises))
    label = "emprt(bins=20, seeds=2)"
    actual = table(model, x, ["ixg", "constant"], label)
    np.testing.assert_allclose(actual["ixg", label], expected, atol=1e-6)
    assert (actual["constant", label] == 0).all()


@pytest.mark.parametrize("contrast", ["random", "runner-up"])
def test_random_logit(model: vt.VisionModel, x: Tensor, contrast: str) -> None:
    logits = model.logits(x)
    best = logits.argmax(dim=1)
    if contrast == "runner-up":
        others = logits.argsort(dim=1, descending=True)[:, 1]
    else:
        chance = PRNGKey.of_images(0, "other class", x).uniform(5)
        others = chance.scatter(1, best[:, None], -1).argmax(dim=1)
    assert (others != best).all()
    maps = [vt.get_method("ixg").attribute(model, x, target=item.tolist()).numpy() for item in (best, others)]
    expected = [spearman(a, b) for a, b in zip(*maps, strict=True)]
    label = f"random_logit(contrast={contrast})"
    actual = table(model, x, ["ixg", "rollout"], label)
    np.testing.assert_allclose(actual["ixg", label], expected, atol=1e-6)
    np.testing.assert_allclose(actual["rollout", label], 1, err_msg="it knows no class")


@pytest.mark.parametrize("family", ["swin", "tv_vit", "hf_dinov2"])
def test_other_families(family: str) -> None:
    if family not in EVERY:
        pytest.skip("transformers is not installed")
    model = vt.wrap(EVERY[family]())
    actual = table(model, images(model, 2), "gradcam", ["mprt(seeds=1)", "emprt(seeds=1)"])
    assert np.isfinite(actual["gradcam", "mprt(seeds=1)"]).all()
    assert (actual["gradcam", "mprt(seeds=1)"] < 0.99).all()


def test_other_peoples_methods(model: vt.VisionModel, x: Tensor) -> None:
    def gradient(module: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        inputs.requires_grad_()
        (actual,) = torch.autograd.grad(module(inputs).gather(1, classes[:, None]).sum(), inputs)
        return (actual * inputs).sum(dim=1)

    actual = table(model, x, {"mine": gradient, "own": "input_x_gradient"}, "mprt(seeds=1)")
    np.testing.assert_allclose(actual["mine", "mprt(seeds=1)"], actual["own", "mprt(seeds=1)"], atol=1e-4)


def test_an_attribution_object_cannot_follow(model: vt.VisionModel, x: Tensor) -> None:
    class Attribution:
        def attribute(self, inputs: Tensor, target: Tensor) -> Tensor:
            return inputs

    with pytest.raises(vt.VitreousError, match="theirs knows its own model only, a metric asks about another"):
        table(model, x, {"theirs": Attribution()}, "mprt")
    actual = table(model, x, {"theirs": Attribution()}, "max_sensitivity(samples=2)")
    assert np.isfinite(actual["theirs", "max_sensitivity(samples=2)"]).all()


def test_a_cascade_reuses_what_another_one_made() -> None:
    """All stages random is the end of both orders and what ``emprt`` explains."""
    image_shape = ImageShape((32, 32), (4, 4), 3)
    names = ("mprt", "mprt(order=bottom_up)", "emprt")
    down, up, everything = (set(vt.get_metric(name).requests(image_shape).values()) for name in names)
    assert len(down) == 3 * 6
    assert len(down & up) == 3
    assert everything < down
    assert vt.get_metric("mprt").num_reattributions(image_shape) == 18
    assert vt.get_metric("smprt").num_reattributions(image_shape) == 50 * (1 + 6)
    assert vt.get_metric("sanity_check") == vt.get_metric("cascading_randomisation") == vt.get_metric("mprt@var")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("mprt(order=sideways)", "order='sideways' is not one of top_down, bottom_up, independent"),
        ("mprt(similarity=hog)", "similarity='hog' is not one of spearman"),
        ("mprt(seeds=0)", "seeds=0 must be at least 1"),
        ("mprt(norms=gone)", "norms='gone' is not one of reset, permute, keep"),
        ("smprt(samples=0)", "samples=0 must be at least 1"),
        ("emprt(bins=1)", "bins=1 must be at least 2"),
        ("random_logit(contrast=nobody)", "contrast='nobody' is not one of random, runner-up"),
    ],
)
def test_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        vt.get_metric(spec)
