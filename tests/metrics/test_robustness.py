"""Robustness metrics written out: noise drawn again, one image and one copy at a time."""

from __future__ import annotations

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
from vitreous.tracing.prng import PRNGKey
from zoo import EVERY

COPIES = 4


@pytest.fixture(scope="module")
def model() -> vt.VisionModel:
    return vt.wrap(FAMILIES["vit"]())


@pytest.fixture(scope="module")
def x(model: vt.VisionModel) -> Tensor:
    return images(model, 3)


def score(model: vt.VisionModel, x: Tensor, method: Any, metric: str, **options: Any) -> np.ndarray:
    table = vt.evaluate(model, x, {"it": method}, metric, controls=False, n_bootstrap=2, **options)
    return table["it", metric]


def noisy(x: Tensor, radius: float, copies: int = COPIES) -> Tensor:
    draws = PRNGKey.of_images(0, "images uniform noise", x)
    return torch.stack([x + radius * (2 * draws.at(copy).uniform(3, 32, 32) - 1) for copy in range(copies)], dim=1)


def maps_of(model: vt.VisionModel, x: Tensor, changed: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The maps of the images and of their copies, all explained for the predicted class of the image."""
    best = model.logits(x).argmax(dim=1).tolist()
    own = vt.get_method("ixg").attribute(model, x, target=best).double().numpy()
    entry = [
        vt.get_method("ixg").attribute(model, changed[image], target=[best[image]] * changed.shape[1]).double().numpy()
        for image in range(len(x))
    ]
    return own, np.stack(entry)


def captum(own: np.ndarray, copies: np.ndarray) -> list[float]:
    """Captum's maximum of norms, one copy after the other."""
    size = np.sqrt((own**2).sum())
    return [float(np.sqrt(((copy - own) ** 2).sum()) / (size if size != 0 else 1.0)) for copy in copies]


def test_noise_is_uniform_in_its_ball(x: Tensor) -> None:
    moved = noisy(x, 0.3, 40) - x[:, None]
    assert moved.abs().max() <= 0.3
    assert moved.abs().max() > 0.299
    assert moved.std().item() == pytest.approx(0.3 / np.sqrt(3), rel=0.01)


@pytest.mark.parametrize(("metric", "reduce"), [("max_sensitivity", max), ("average_sensitivity", np.mean)])
def test_sensitivity(model: vt.VisionModel, x: Tensor, metric: str, reduce: Any) -> None:
    own, copies = maps_of(model, x, noisy(x, 0.1))
    expected = [reduce(captum(a, b)) for a, b in zip(own, copies, strict=True)]
    actual = score(model, x, "ixg", f"{metric}(samples=4, radius=0.1)")
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    standard = [
        reduce(captum(stats.zscore(a, axis=None), np.stack([stats.zscore(entry, axis=None) for entry in b])))
        for a, b in zip(own, copies, strict=True)
    ]
    actual = score(model, x, "ixg", f"{metric}(samples=4, radius=0.1, standardise=true)")
    np.testing.assert_allclose(actual, standard, rtol=1e-4)


def test_the_defaults_and_presets_are_those_of_the_papers() -> None:
    tis, quantus = vt.get_metric("max_sensitivity@tis"), vt.get_metric("max_sensitivity@quantus")
    assert (tis.samples, tis.radius, tis.standardise, tis.explain_class) == (10, 0.02, False, "label")
    assert (quantus.samples, quantus.radius) == (200, 0.2)


class Moved:
    """A method of one's own whose map is scaled or shifted."""

    def __init__(self, scale: float = 1, shift: float = 0) -> None:
        self.scale, self.shift = scale, shift

    def __call__(self, model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        inputs.requires_grad_()
        (actual,) = torch.autograd.grad(model(inputs).gather(1, classes[:, None]).sum(), inputs)
        return self.scale * (actual * inputs).sum(dim=1) + self.shift


def test_scale_does_not_matter_but_offsets_do(model: vt.VisionModel, x: Tensor) -> None:
    x = x[:2]
    for metric in ("max_sensitivity", "average_sensitivity", "rank_sensitivity"):
        simple = score(model, x, Moved(), f"{metric}(samples=2)")
        np.testing.assert_allclose(score(model, x, Moved(7), f"{metric}(samples=2)"), simple, rtol=1e-4, atol=1e-6)
        shifted = score(model, x, Moved(shift=3), f"{metric}(samples=2)")
        if metric == "rank_sensitivity":
            np.testing.assert_allclose(shifted, simple, atol=1e-4)
        else:
            assert (shifted < simple / 2).all(), "an offset looks like stability"
            label = f"{metric}(samples=2, standardise=true)"
            np.testing.assert_allclose(
                score(model, x, Moved(shift=3), label), score(model, x, Moved(), label), rtol=1e-3
            )


def test_rank_sensitivity(model: vt.VisionModel, x: Tensor) -> None:
    own, copies = maps_of(model, x, noisy(x, 0.1))
    expected = [
        1 - np.mean([stats.spearmanr(a.ravel(), entry.ravel()).statistic for entry in b])
        for a, b in zip(own, copies, strict=True)
    ]
    np.testing.assert_allclose(score(model, x, "ixg", "rank_sensitivity(samples=4, radius=0.1)"), expected, atol=1e-6)


def test_local_lipschitz(model: vt.VisionModel, x: Tensor) -> None:
    changed = noisy(x, 0.1)
    own, copies = maps_of(model, x, changed)
    expected = [
        max(
            np.linalg.norm(copies[image, copy] - own[image]) / float((changed[image, copy] - x[image]).norm())
            for copy in range(COPIES)
        )
        for image in range(3)
    ]
    np.testing.assert_allclose(score(model, x, "ixg", "local_lipschitz(samples=4, radius=0.1)"), expected, rtol=1e-4)
    assert (score(model, x, "ixg", "local_lipschitz(samples=2, radius=0)") == 0).all()


def change(kind: str, model: vt.VisionModel, own: Tensor, copy: Tensor) -> float:
    """What the relative change of a map is divided by."""
    own, copy = own[None], copy[None]
    if kind == "input":
        one, other = own, copy
    elif kind == "output":
        return float((model.logits(copy) - model.logits(own)).norm())
    else:
        with torch.no_grad():
            one, other = (model.forward_blocks(model.embed(entry)) for entry in (own, copy))
    return float(((other - one) / one).norm())


@pytest.mark.parametrize("kind", ["input", "output", "representation"])
@pytest.mark.parametrize("radius", [0.1, 1.5])
def test_relative_stability(model: vt.VisionModel, x: Tensor, kind: str, radius: float) -> None:
    x = images(model, 6)
    changed, best = noisy(x, radius), model.logits(x).argmax(dim=1)
    own, copies = maps_of(model, x, changed)
    expected, remaining = [], 0
    for image in range(6):
        ratios = []
        for copy in range(COPIES):
            if int(model.logits(changed[image, copy][None]).argmax()) != int(best[image]):
                continue
            moved = np.linalg.norm((copies[image, copy] - own[image]) / own[image])
            ratios.append(moved / max(change(kind, model, x[image], changed[image, copy]), 1e-6))
        remaining += len(ratios)
        expected.append(max(ratios) if ratios else np.nan)
    assert radius < 1 or remaining < 6 * COPIES, "some copies must be left out for this to mean something"
    actual = score(model, x, "ixg", f"relative_{kind}_stability(samples=4, radius={radius})")
    np.testing.assert_allclose(actual, expected, rtol=1e-3)
    every = score(model, x, "ixg", f"relative_{kind}_stability(samples=4, radius={radius}, unchanged=false)")
    assert np.isfinite(every).all()
    assert (every >= np.nan_to_num(actual) * (1 - 1e-6)).all()


def test_no_copy_left_is_no_score(model: vt.VisionModel, x: Tensor) -> None:
    """Noise that drowns the image changes every prediction of this one."""
    x = images(model, 12)
    label = "max_sensitivity(samples=1, radius=20, unchanged=true)"
    changed = model.logits(noisy(x, 20, 1)[:, 0]).argmax(dim=1) != model.logits(x).argmax(dim=1)
    assert 0 < int(changed.sum()) < 12
    assert np.isnan(score(model, x, "ixg", label)).tolist() == changed.tolist()


METRICS = [info.name for info in vt.list_metrics() if info.family == "robustness"]


@pytest.mark.parametrize("metric", METRICS)
def test_degenerate_maps(model: vt.VisionModel, x: Tensor, metric: str) -> None:
    label = f"{metric}(samples=2)"
    actual = score(model, x, "constant", label)
    assert (actual == (1 if metric == "rank_sensitivity" else 0)).all(), "a constant map never moves"
    assert (score(model, x, lambda m, i, c: torch.zeros(len(i), 4, 4), label) == actual).all()
    broken = score(model, x, lambda m, i, c: torch.full((len(i), 4, 4), torch.nan), label)
    assert np.isnan(broken).all()

    def unsteady(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        """Sound for three images, broken for their six copies."""
        maps = inputs[:, 0, ::8, ::8].detach().clone()
        maps[:, 0, 0] = torch.nan if len(inputs) > 3 else 0
        return maps

    assert np.isnan(score(model, x, unsteady, label)).all()


def test_one_noise_for_all(model: vt.VisionModel, x: Tensor) -> None:
    image_shape = ImageShape((32, 32), (4, 4), 3)
    needs = [set(vt.get_metric(name).requests(image_shape).values()) for name in METRICS]
    assert len(set.intersection(*needs)) == 1, "all ask for the same maps"
    calls = []

    def counted(model: Any, inputs: Tensor, classes: Tensor) -> Tensor:
        calls.append(len(inputs))
        return inputs[:, 0].detach()

    vt.evaluate(model, x, {"it": counted}, METRICS, controls=False, n_bootstrap=2)
    assert sum(calls) == 3 + 30


def test_neighbours_do_not_matter(model: vt.VisionModel, x: Tensor) -> None:
    for metric in ("max_sensitivity(samples=2)", "rrs(samples=2)"):
        alone = [score(model, x[[image]], "ixg", metric)[0] for image in range(3)]
        np.testing.assert_allclose(score(model, x, "ixg", metric), alone, rtol=1e-3)


def test_half_a_family_without_class_token() -> None:
    model = vt.wrap(EVERY["swin"]())
    x = images(model, 2)
    for metric in ("rrs(samples=2)", "ros(samples=2)"):
        assert np.isfinite(score(model, x, "gradcam", metric)).all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("max_sensitivity(samples=0)", "samples=0 must be at least 1"),
        ("ris(radius=-1)", "radius=-1.0 must be at least 0"),
    ],
)
def test_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        vt.get_metric(spec)
