"""Paths other than the straight one and expected gradients, each written out slowly; baselines are what they hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import vitreous as vt
from entering_points import TARGET, entering, gradient
from families import FAMILIES, golden, images, verified
from families_cnn import FAMILIES as CNNS
from vitreous.benchmark.data import explainer_digest, parse_explainer
from vitreous.datasets import load_images
from vitreous.errors import ImageError, ModelError, SpecError
from vitreous.methods.integrated_gradients import Background
from vitreous.tracing.statistics_collect import seen_scenes


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return verified(FAMILIES["vit"]().double())


# -- guided ------------------------------------------------------------------------------------------------


def guided(model: nn.Module, image: Tensor, steps: int, fraction: float, most: float, baseline: float) -> np.ndarray:
    """One image, feature by feature, on positions rather than shares of the way."""
    end = image.numpy().ravel()
    start = np.full_like(end, baseline)
    x, result, whole_way = start.copy(), np.zeros_like(end), np.abs(end - start).sum()
    for step in range(1, steps + 1):
        slope = gradient(model, torch.from_numpy(x).reshape(1, *image.shape)).numpy().ravel()
        low, height = max(step / steps - most, 0), min(step / steps + most, 1)
        behind = start + low * (end - start)
        ahead = start + height * (end - start)
        goal = whole_way * (1 - step / steps)
        before = x.copy()
        for i in range(len(x)):
            if abs(x[i] - start[i]) < abs(behind[i] - start[i]):
                x[i] = behind[i]
        while not math.isclose(np.abs(end - x).sum(), goal, rel_tol=1e-9, abs_tol=1e-9):
            sizes = [abs(g) if abs(a - p) > 1e-13 else math.inf for g, a, p in zip(slope, ahead, x, strict=True)]
            limit = sorted(sizes)[math.floor((len(sizes) - 1) * fraction)]
            subset = [i for i, size in enumerate(sizes) if size <= limit and size < math.inf]
            share = (np.abs(end - x).sum() - goal) / sum(abs(ahead[i] - x[i]) for i in subset)
            for i in subset:
                x[i] += min(share, 1) * (ahead[i] - x[i])
            if share <= 1:
                break
        result += slope * (x - before)
    return result.reshape(image.shape).sum(axis=0)


@pytest.mark.parametrize(
    ("options", "baseline"),
    [
        ({"steps": 6, "fraction": 0.25, "max_dist": 0.02}, 0.0),
        ({"steps": 8, "fraction": 0.1, "max_dist": 0.3}, 0.5),
        ({"steps": 5, "fraction": 0.6, "max_dist": 1.0}, 0.0),
    ],
)
def test_guided_ig_is_the_slow_one(model, options, baseline):
    x = images(model, 2)
    x[0, :, :5] = baseline  # features that have nowhere to go
    spec = "guided_ig(" + ", ".join(f"{k}={v}" for k, v in options.items()) + f", baseline={baseline})"
    actual = vt.get_method(spec).attribute(model, x, TARGET)
    for image, item in zip(x, actual, strict=True):
        expected = guided(model, image, options["steps"], options["fraction"], options["max_dist"], baseline)
        assert np.allclose(item, expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_guided_ig_without_freedom_is_the_straight_path(model):
    x = images(model, 1)
    straight = x * torch.stack([gradient(model, step / 7 * x) for step in range(7)]).mean(dim=0)
    actual = vt.get_method("guided_ig(steps=7, max_dist=0)").attribute(model, x, TARGET)
    torch.testing.assert_close(actual, straight.sum(dim=1))


def gentle() -> nn.Module:
    """A model without sharp turns, so that few steps come close to the integral."""
    model = FAMILIES["vit"]().double()
    with torch.no_grad():
        model.patch_embed.proj.weight *= 0.05
    return model


# Not with a wide band: there the sum is off by a tenth even with many steps, in the released code too.
@pytest.mark.parametrize("spec", ["guided_ig", "blur_ig(max_sigma=8, steps=200)"])
def test_maps_sum_to_the_difference_in_score_as_steps_allow(spec):
    model = gentle()
    x = images(model, 2)
    start = torch.zeros_like(x) if "guided" in spec else blurred(x, 8)
    with torch.no_grad():
        difference = (model(x) - model(start))[:, TARGET]
    actual = vt.get_method(spec).attribute(model, x, TARGET).sum(dim=(1, 2))
    assert torch.allclose(actual, difference, rtol=0.05, atol=0.01 * difference.abs().max().item())


def test_an_image_that_is_its_baseline_gets_zeros(model):
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        assert not vt.get_method("guided_ig(steps=2)").attribute(model, torch.zeros(1, 3, 32, 32), TARGET).any()


def test_guided_ig_explains_the_tokens_of_a_subnetwork(model):
    """The straight path again, by hand, from the second block on."""
    vision_model, x = vt.wrap(model), images(model, 2)
    with torch.no_grad():
        tokens = vision_model.forward_block(0, vision_model.embed(x))
    total = torch.zeros_like(tokens)
    for step in range(3):
        point = (step / 3 * tokens).requires_grad_()
        score = vision_model.forward_head(vision_model.forward_blocks(point, 1))[:, TARGET].sum()
        total += torch.autograd.grad(score, point)[0] / 3
    actual = vt.get_method("guided_ig(steps=3, max_dist=0)").attribute(vision_model.suffix(1, x), tokens, TARGET)
    torch.testing.assert_close(actual.flatten(1), (tokens * total).sum(dim=-1)[:, vision_model.num_prefix_tokens :])


# -- blur --------------------------------------------------------------------------------------------------


def blurred(x: Tensor, sigma: float) -> Tensor:
    ndimage = pytest.importorskip("scipy.ndimage")
    return torch.from_numpy(ndimage.gaussian_filter(x.numpy(), (0, 0, sigma, sigma), mode="constant"))


@pytest.mark.parametrize(
    ("family", "options", "widths"),
    [
        ("vit", "max_sigma=50, steps=4", [12.5 * i for i in range(5)]),
        ("nonsquare", "max_sigma=3, steps=3, grad_step=0.2", [0, 1, 2, 3]),
        ("vit", "max_sigma=4, steps=4, sqrt=true", [0, 1, math.sqrt(2), math.sqrt(3), 2]),
    ],
)
def test_blur_ig_is_written_out(family, options, widths):
    """Blur with SciPy, gradients at each width, and the change per pixel of width."""
    model = FAMILIES[family]().double()
    x, step = images(model, 2), 0.2 if "grad_step" in options else 0.01
    expected = torch.zeros_like(x)
    for now, then in pairwise(widths):
        point = blurred(x, now) if now else x
        expected -= (then - now) * gradient(model, point) * (blurred(x, now + step) - point) / step
    actual = vt.get_method(f"blur_ig({options})").attribute(model, x, TARGET)
    assert torch.allclose(actual, expected.sum(dim=1), rtol=0, atol=1e-10 * actual.abs().max().item())
    pieces = vt.get_method(f"blur_ig({options})").attribute(model, x, TARGET, batch_size=5)
    assert torch.allclose(actual, pieces, rtol=0, atol=1e-10 * actual.abs().max().item())


# -- expected gradients ------------------------------------------------------------------------------------


def test_gradient_shap_is_the_mean_over_points_between(model):
    """From what enters the model: with sigma 0 a point is t x + (1 - t) b, and b is solved from it."""
    x, samples = images(model, 2), 6
    points, actual, extras = entering(model, f"gradient_shap(samples={samples})", x)
    points = points.reshape(2, samples, *x.shape[1:])
    # the baseline is white noise of deviation 1: what is left of the point beside the image tells t
    terms = torch.empty_like(points)
    for i, image in enumerate(x):
        for j, point in enumerate(points[i]):
            time = float((point * image).sum() / image.square().sum())  # near t: they are nearly orthogonal
            times = torch.linspace(max(0, time - 0.1), min(0.99, time + 0.1), 401, dtype=torch.float64)
            remainder = (point - times.view(-1, 1, 1, 1) * image) / (1 - times.view(-1, 1, 1, 1))
            time = times[(remainder.flatten(1) @ image.flatten()).abs().argmin()]
            start = (point - time * image) / (1 - time)
            assert start.std().item() == pytest.approx(1, abs=0.05)
            assert abs(start.mean().item()) < 0.1
            terms[i, j] = (image - start) * gradient(model, point[None])[0]
    terms = terms.sum(dim=2)
    close = nn.functional.cosine_similarity(actual.flatten(1), terms.mean(dim=1).flatten(1), dim=1)
    assert (close > 0.98).all()
    torch.testing.assert_close(extras["halves"].mean(dim=1), actual)


def test_gradient_shap_sums_to_the_mean_difference_in_score():
    model = gentle()
    x = images(model, 1)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        starts = torch.randn(1000, *x.shape[1:], generator=generator, dtype=x.dtype)
        spread = model(starts)[:, TARGET].std().item()
        expected = (model(x)[:, TARGET] - model(starts)[:, TARGET].mean()).item()
    actual = vt.get_method("gradient_shap(samples=400)").attribute(model, x, TARGET).sum().item()
    assert actual == pytest.approx(expected, abs=5 * spread / 20)


def test_gradient_shap_of_scenes_starts_at_scenes(model):
    x = images(model, 1)
    points, _, _ = entering(model, "gradient_shap(samples=4, background=scenes)", x)
    scenes = seen_scenes(vt.wrap(model), (32, 32)).double()
    for point in points:  # on the line from one of the scenes to the image
        way, to_point = x - scenes, point - scenes
        share = (way * to_point).flatten(1).sum(dim=1) / way.flatten(1).square().sum(dim=1)
        off = (to_point - share.view(-1, 1, 1, 1) * way).flatten(1).norm(dim=1)
        assert off.min() < 1e-6 < off.median()
        assert 0 <= share[off.argmin()] < 1
    with pytest.raises(ModelError, match=r"scenes.* needs images, not the tokens"):
        vt.get_method("plus(gradient_shap(background=scenes))").attribute(model, x)


def test_gradient_shap_adds_noise_in_normalised_units(model):
    x = images(model, 1)
    same, _, _ = entering(model, "gradient_shap(samples=3)", x)
    noisy, _, _ = entering(model, "gradient_shap(samples=3, sigma=0.5)", x)
    share = (noisy - same).flatten(1).std(dim=1) / 0.5  # t, for the noise is scaled like the image
    assert ((0 < share) & (share < 1.05)).all()
    assert share.std() > 0.01


def test_smooth_at_captum_has_noise_of_deviation_one(model):
    x = 3 * images(model, 2)
    for preset, samples in (("captum", 5), ("tis", 50)):
        copies, actual, _ = entering(model, f"smooth@{preset}(saliency)", x)
        noise = copies.reshape(2, samples, *x.shape[1:]) - x.unsqueeze(1)
        assert noise.flatten(1).std(dim=1).tolist() == pytest.approx([1, 1], rel=0.05)
        maps = torch.stack([gradient(model, x + noise[:, i]).abs().sum(dim=1) for i in range(samples)])
        torch.testing.assert_close(actual, maps.mean(dim=0))
    assert vt.get_method("smooth@captum(saliency)").cost == (5, 5)
    assert vt.get_method("smooth@tis(saliency)").cost == (50, 50)


def test_presets_of_smooth_are_all_different(model):
    x = images(model, 1)
    specs = ["smooth(saliency)", "smooth@captum(saliency)", "smooth@tis(saliency)"]
    specs += ["smooth(saliency, absolute=true)", "smooth(saliency, samples=5)"]
    maps = [vt.get_method(item).attribute(model, x, TARGET) for item in specs]
    for i, one in enumerate(maps):
        assert not any(torch.allclose(one, other, rtol=1e-3) for other in maps[:i])
    assert vt.get_method("smooth@captum(saliency)").spec == "smooth(saliency, samples=5, sigma=1.0, absolute=true)"


@pytest.mark.parametrize("size", [None, 2])
def test_kinds_of_smoothing(model, size):
    """The same copies; squares and variance of the base's maps, whatever the inner batch."""
    x = images(model, 2)
    copies, mean, _ = entering(model, "smooth(input_x_gradient, samples=4)", x)
    item = copies.reshape(2, 4, *x.shape[1:]).unbind(dim=1)
    maps = torch.stack([(copy * gradient(model, copy)).sum(dim=1) for copy in item])
    spec = {"mean": maps.mean(dim=0), "squares": maps.square().mean(dim=0), "variance": maps.var(dim=0, correction=0)}
    torch.testing.assert_close(mean, spec["mean"])
    for kind, expected in spec.items():
        method = vt.get_method(f"smooth(input_x_gradient, samples=4, kind={kind})")
        actual, extras = method.attribute(model, x, TARGET, extras=True, batch_size=size)
        torch.testing.assert_close(actual, expected)
        assert ("halves" in extras) == (kind != "variance")
        parts = maps.square() if kind == "squares" else maps
        torch.testing.assert_close(extras["deviation"], parts.std(dim=0, correction=0))


# -- all of them -------------------------------------------------------------------------------------------


# By the released code of PAIR saliency 0.2.1 in float64, on the golden image; sum over channels, class 2.
RELEASED = {
    "guided_ig(steps=5)": (-0.02393306888, 0.006164223562, -0.000796926846),
    "guided_ig(steps=5, fraction=0.5, max_dist=0.5)": (-0.04947955988, 0.00473228819, -0.0005242111342),
    "blur_ig(steps=5)": (-0.007848816497, 0.000458095191, -6.074485223e-06),
}


@pytest.mark.parametrize("spec", RELEASED)
def test_released_numbers(spec):
    model, image = golden()
    actual = vt.get_method(spec).attribute(model, image, 2)[0]
    total, largest, somewhere = RELEASED[spec]
    assert actual.sum().item() == pytest.approx(total, rel=1e-7)
    assert actual.max().item() == pytest.approx(largest, rel=1e-7)
    assert actual[100, 37].item() == pytest.approx(somewhere, rel=1e-7)


@pytest.mark.parametrize("name", ["blur_ig", "xrai"])
def test_what_needs_a_picture_says_so_in_one_line(name):
    model = FAMILIES["vit"]()
    with pytest.raises(ModelError, match=f"{name} needs images, not the tokens of a sub-network") as caught:
        vt.get_method(f"plus({name}(steps=2))").attribute(model, images(model, 1))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["guided_ig(steps=7)", "blur_ig(steps=7)", "gradient_shap(samples=7)"])
def test_inputs_run_are_those_reported(model, spec):
    points, _, _ = entering(model, spec, images(model, 2))
    method = vt.get_method(spec)
    assert method.cost == (7, 7)
    assert method.num_forwards(vt.wrap(model)) == 7
    assert len(points) == 2 * 7


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("guided_ig(steps=0)", "steps=0"),
        ("guided_ig(fraction=0.0)", "fraction=0.0"),
        ("guided_ig(fraction=1.5)", "fraction=1.5"),
        ("guided_ig(max_dist=-0.1)", "max_dist=-0.1"),
        ("blur_ig(steps=0)", "steps=0"),
        ("blur_ig(max_sigma=0)", "max_sigma=0"),
        ("blur_ig(grad_step=0)", "grad_step=0"),
        ("gradient_shap(samples=0)", "samples=0"),
        ("gradient_shap(sigma=-1)", "sigma=-1"),
        ("gradient_shap(background='')", "background is empty"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec, complaint):
    with pytest.raises(SpecError, match=complaint):
        vt.get_method(spec)


# -- baselines of one's own --------------------------------------------------------------------------------------------


SHAP = vt.get_method("gradient_shap(samples=6)")


def own(background: Any, samples: int = 6) -> Any:
    return replace(vt.get_method(f"gradient_shap(samples={samples})"), background=background)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def starts(model: Any, method: Any, x: Tensor, baselines: Tensor) -> list[int]:
    """Which baseline each path begins at: every point that enters lies on the line from one of them to the image."""
    points: list[Tensor] = []
    hook = model.patch_embed.register_forward_hook(lambda _, options, __: points.append(options[0].detach().clone()))
    try:
        method.attribute(model, x, TARGET)
    finally:
        hook.remove()
    entered = torch.cat(points)[-len(x) * method.samples :].double()
    result = []
    for number, point in enumerate(entered):
        image = x[number // method.samples]
        way, to_point = image - baselines, point - baselines
        share = (way * to_point).flatten(1).sum(dim=1) / way.flatten(1).square().sum(dim=1)
        off = (to_point - share.view(-1, 1, 1, 1) * way).flatten(1).norm(dim=1)
        assert off.min() < 1e-6
        assert 0 <= share[off.argmin()] < 1
        result.append(int(off.argmin()))
    return result


def test_paths_begin_at_the_baselines_that_were_given(model: Any) -> None:
    x, baselines = images(model, 2), torch.randn(4, 3, 32, 32, dtype=torch.float64)
    actual = starts(model, own(baselines, 20), x, baselines)
    assert set(actual) == {0, 1, 2, 3}
    alone = starts(model, own(baselines, 20), x[1:], baselines)
    assert alone == actual[20:]  # what is drawn does not depend on the neighbours


def test_one_baseline_that_is_given_is_that_of_integrated_gradients(model: Any) -> None:
    """The mean over many random points of the path from one baseline is the integral along it."""
    x = images(model, 1)
    grey = torch.full((3, 32, 32), 0.2, dtype=torch.float64)
    actual = own(grey, 600).attribute(model, x, TARGET)
    with torch.no_grad():
        change = (model(x) - model(grey[None]))[:, TARGET]
    torch.testing.assert_close(actual.sum(dim=(1, 2)), change, rtol=0.1, atol=0.02)
    exact = vt.get_method("integrated_gradients(steps=100, baseline=0.2)").attribute(model, x, TARGET)
    assert torch.corrcoef(torch.stack([actual.flatten(), exact.flatten()]))[0, 1] > 0.98


def test_images_are_prepared_as_explain_prepares_them(photos: Path) -> None:
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, img_size=64)
    with Image.open(photos / "1.png") as opened:
        picture = opened.convert("RGB")
    kinds: list[Any] = [
        photos / "1.png",
        str(photos / "1.png"),
        picture,
        np.asarray(picture),
        [picture],
        [photos / "1.png"],
    ]
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    kinds.append(next(iter(load_images(picture, model))).tensor)
    maps = [own(kind).attribute(model, x, TARGET) for kind in kinds]
    for map_ in maps[1:]:
        torch.testing.assert_close(map_, maps[0])
    assert not torch.allclose(maps[0], SHAP.attribute(model, x, TARGET))


def test_a_method_is_another_if_its_baselines_are(photos: Path) -> None:
    baselines = torch.randn(4, 3, 32, 32)
    same, other = own(baselines), own(baselines.clone())
    assert same == other
    assert hash(same) == hash(other)
    assert same.fingerprint == other.fingerprint
    changed = baselines.clone()
    changed[3, 0, 0, 0] += 1e-3
    for another in (changed, baselines[:3], baselines.flip(0)):
        assert own(another) != same
        assert own(another).fingerprint != same.fingerprint
    baselines.zero_()  # what was given is copied
    assert own(other.background).fingerprint == same.fingerprint
    assert same.fingerprint != SHAP.fingerprint

    spec = f"gradient_shap(samples=6, background='{photos}')"
    before = explainer_digest(spec, parse_explainer(spec))
    assert before == explainer_digest(spec, parse_explainer(spec))
    pixels = np.zeros((40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(photos / "2.png")
    assert explainer_digest(spec, parse_explainer(spec)) != before  # a run does not go on with other baselines


def test_a_folder_is_in_the_spec_and_recorded(photos: Path) -> None:
    model = vt.load("timm/vit_tiny_patch16_224", pretrained=False, img_size=64)
    method: Any = vt.get_method(f"gradient_shap(samples=3, background='{photos}')")
    assert vt.get_method(method.spec) == method
    assert method.settings["background"] == str(photos)
    assert method.settings["baselines"] == str(Background(photos))
    assert str(Background(photos)).startswith("3 images (")
    explanation = vt.explain(model, photos / "0.png", method=method)
    assert f"3 images ({Background(photos).digest[:12]})" in json.dumps(explanation.manifest(), default=str)
    table = vt.evaluate(model, photos / "0.png", [method.spec], "gini", controls=False, n_bootstrap=1)
    assert table.methods == (method.spec,)  # the path in it is no folder of maps


def test_without_a_word_nothing_has_changed(model: Any) -> None:
    assert vt.get_method("gradient_shap").settings["background"] == "normal"
    assert "baselines" not in vt.get_method("gradient_shap").settings
    assert vt.get_method("gradient_shap(background=scenes)").spec == "gradient_shap(background=scenes)"


@pytest.mark.parametrize(
    ("background", "error", "why"),
    [
        (torch.zeros(2, 3, 16, 16), ModelError, r"baseline \d is \[3, 16, 16\] for .*, the input is \[3, 32, 32\]"),
        (torch.zeros(32, 32), SpecError, r"finite numbers \[K, C, H, W\] or \[C, H, W\], got float32 \[32, 32\]"),
        (torch.full((3, 32, 32), torch.nan), SpecError, "finite numbers"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), SpecError, "got uint8"),
        ([], SpecError, "there are no baselines"),
        (3.0, SpecError, "is none of normal, scenes, a picture or folder"),
        ("grey", ImageError, "no such file: grey"),
        (torch.zeros(0, 3, 32, 32), SpecError, "there are no baselines"),
    ],
    ids=["size", "dimensions", "nan", "bytes", "empty", "number", "word", "none"],
)
def test_what_is_no_baseline_is_refused(model: Any, background: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        own(background).attribute(model, images(model, 1), TARGET)


def test_tokens_have_no_baselines_of_images(model: Any) -> None:
    with pytest.raises(ModelError, match="needs images, not the tokens"):
        vt.get_method("plus(gradient_shap(background=scenes))").attribute(model, images(model, 1))


def test_convolutional_networks_take_them_too() -> None:
    network = CNNS["resnet"]()
    x = images(network, 2)
    actual = own(x.flip(0) * 0.5).attribute(network, x, TARGET)
    assert torch.isfinite(actual).all()
    assert not torch.allclose(actual, SHAP.attribute(network, x, TARGET))
