"""Occlusion, RISE and HSIC against their definitions, copy by copy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom
from scipy.stats import qmc
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, golden
from vitreous.methods.occlusion_rise import hsic, mirrored_enlargement, sobol_masks
from vitreous.tracing.prng import PRNGKey
from zoo import CLASS, look_at, value_of

KINDS = ["vit", "registers", "gap", "siglip", "deit_distilled", "nonsquare", "swin", "hf_vit", "tv_vit"]


def whole_and_tokens(model: vt.VisionModel, x: Tensor) -> tuple[vt.VisionModel, Tensor]:
    """The sub-network from block 1 on, and its inputs."""
    with torch.no_grad():
        return model.suffix(1, x), model.forward_blocks(model.embed(x), 0, 1)


def scaled(model: vt.VisionModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """Tokens [1, N, D] whose patches are multiplied by a mask of their grid, one by one."""
    built = tokens.clone()
    for patch, factor in enumerate(mask.flatten()):
        built[:, model.num_prefix_tokens + patch] *= factor
    return built


# -- RISE ----------------------------------------------------------------------------------------------------------


def rise_masks(size: tuple[int, int], masks: int, cells: int, keep: float, seed: int) -> list[Tensor]:
    """Every mask by itself: a small grid, enlarged by scipy, and cut out."""
    built = []
    for index in range(masks):
        draws = PRNGKey.of(seed, "rise").at(index)
        grid = (draws.uniform(cells, cells)[0] < keep).double().numpy()
        steps = [math.ceil(side / cells) for side in size]
        large = [(cells + 1) * step for step in steps]
        enlarged = zoom(grid, [side / cells for side in large], order=1, mode="mirror", grid_mode=True)
        assert list(enlarged.shape) == large
        top, left = (int(draws.fold_in(f"shift {axis}").below(step, 1)) for axis, step in enumerate(steps))
        built.append(torch.from_numpy(enlarged[top : top + size[0], left : left + size[1]]))
    return built


@pytest.mark.parametrize("family", KINDS)
@torch.no_grad()
def test_rise(family):
    model, x = look_at(family)
    actual = vt.get_method("rise(masks=7, cells=5, keep=0.3)").attribute(model, x, CLASS, seed=3)
    expected = torch.zeros_like(actual)
    for mask in rise_masks(tuple(x.shape[2:]), 7, 5, 0.3, seed=3):
        expected += value_of(model.logits(x * mask), "prob")[:, None, None] * mask
    assert torch.allclose(actual, expected / (7 * 0.3), atol=1e-12)
    assert (actual.amax(dim=(1, 2)) > actual.amin(dim=(1, 2))).all()


@pytest.mark.parametrize("score", ["prob", "logit", "logprob"])
@torch.no_grad()
def test_rise_scores(score):
    model, x = look_at("vit")
    actual = vt.get_method(f"rise(masks=5, keep=0.5, output={score})").attribute(model, x, CLASS, output="logit")
    masks = rise_masks((32, 32), 5, 8, 0.5, seed=0)
    expected = sum(value_of(model.logits(x * mask), score)[:, None, None] * mask for mask in masks)
    assert torch.allclose(actual, expected / 2.5, atol=1e-12)


@torch.no_grad()
def test_rise_of_tokens():
    """The patches of a sub-network are scaled, its prefix tokens are not."""
    model, x = look_at("registers", 1)
    sub, tokens = whole_and_tokens(model, x)
    actual = vt.get_method("rise(masks=6, cells=3, keep=0.5)").attribute(sub, tokens, CLASS)
    masks = rise_masks((4, 4), 6, 3, 0.5, seed=0)
    expected = sum(value_of(sub.logits(scaled(model, tokens, mask)), "prob") * mask for mask in masks)
    assert torch.allclose(actual[0], expected / 3, atol=1e-12)


@pytest.mark.parametrize(("cells", "size"), [(8, 252), (3, 8), (7, 7), (1, 5), (2, 18)])
def test_enlarging(cells, size):
    """As scipy mirrors at the border; torch repeats there and is the same between the outermost centres."""
    line = mirrored_enlargement(cells, size)
    values = torch.randn(cells, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    actual = line @ values
    if cells > 1:
        mirrored = zoom(values.numpy(), size / cells, order=1, mode="mirror", grid_mode=True)
        assert np.allclose(actual, mirrored, atol=1e-12)
    repeated = F.interpolate(values[None, None], size=size, mode="linear", align_corners=False)[0, 0]
    places = (torch.arange(size) + 0.5) * cells / size - 0.5
    inside = (places >= 0) & (places <= cells - 1)
    assert torch.allclose(actual[inside], repeated[inside], atol=1e-12)
    if size >= 2 * cells > 2:
        assert not torch.allclose(actual, repeated, atol=1e-6)


def test_rise_masks_show_the_share_that_is_asked_for():
    """With a model that says the same of everything, the map is the mean mask: about one when divided by keep."""
    model, x = look_at("vit", 1)
    actual = vt.get_method("rise(masks=3000, keep=0.25)").attribute(
        model, x, lambda logits: torch.ones_like(logits[:, 0])
    )
    assert actual.mean().item() == pytest.approx(1, abs=0.02)
    assert actual.std().item() < 0.1


def test_rise_seeds_and_presets():
    model, x = look_at("vit", 1)
    method = vt.get_method("rise(masks=9)")
    assert not torch.equal(method.attribute(model, x, CLASS, seed=1), method.attribute(model, x, CLASS, seed=2))
    assert vt.get_method("rise@paper") == vt.get_method("rise")
    assert vt.get_method("rise@keras").spec == "rise(masks=2000, keep=0.5)"
    assert vt.get_method("rise@tis").spec == "rise(masks=4000, output=logit)"
    assert vt.get_method("rise").fixed_output == "prob"
    assert vt.get_method("rise(masks=77)").cost == (77, 0)


# -- occlusion -----------------------------------------------------------------------------------------------------

GOLDEN = {
    "logit": (0.154863182, 0.0127275443, 4, -0.00392965141, 0.00183867269, 0.00854802677, -0.000138708776),
    "prob": (0.0396333392, 0.00207481945, 158, -0.00128782368, -0.000350005501, 0.00182224906, 0.000684166528),
}


@pytest.mark.parametrize("value", GOLDEN)
def test_golden_occlusion(value):
    model, image = golden()
    total, largest, place, *entries = GOLDEN[value]
    actual = vt.get_method("occlusion").attribute(model, image, 2, output=value).flatten()
    assert actual.sum().item() == pytest.approx(total, rel=1e-8)
    assert actual.max().item() == pytest.approx(largest, rel=1e-8)
    assert actual.argmax().item() == place
    assert actual[[0, 50, 101, 195]].tolist() == pytest.approx(entries, rel=1e-7)


def slid(
    model: vt.VisionModel, x: Tensor, windows: tuple[int, int], strides: tuple[int, int], fill: Tensor
) -> list[Tensor]:
    """The sum over all windows, and how many cover each pixel."""
    height, width = x.shape[2:]
    total, count = torch.zeros(len(x), height, width, dtype=x.dtype), torch.zeros(height, width)
    complete = value_of(model.logits(x))
    top = 0
    while True:
        left = 0
        while True:
            place = (..., slice(top, top + windows[0]), slice(left, left + windows[1]))
            changed = x.clone()
            changed[place] = fill[place]
            total[place] += (complete - value_of(model.logits(changed)))[:, None, None]
            count[place] += 1
            if left + windows[1] >= width:
                break
            left += strides[1]
        if top + windows[0] >= height:
            break
        top += strides[0]
    return [total, count]


@pytest.mark.parametrize("family", KINDS)
@torch.no_grad()
def test_occlusion_of_patches(family):
    model, x = look_at(family)
    actual = vt.get_method("occlusion").attribute(model, x, CLASS)
    height, width = model.grid(x)
    step = (x.shape[2] // height, x.shape[3] // width)
    total, _ = slid(model, x, step, step, torch.zeros_like(x))
    assert torch.allclose(actual, total[:, :: step[0], :: step[1]], atol=1e-12)


@pytest.mark.parametrize(
    ("window", "stride", "fill"), [(9, 5, "zero"), (12, 0, "mean"), (0, 5, "zero"), (7, 4, "blur")]
)
@torch.no_grad()
def test_occlusion_by_windows(window, stride, fill):
    model, x = look_at("nonsquare")  # patches of 8 x 16
    method = vt.get_method(f"occlusion({window}, {stride}, {fill})")
    assert method.grid == "pixel"
    line = torch.exp(-0.5 * (torch.arange(-5, 6).double() / 5) ** 2)
    kernel = (torch.outer(line, line) / line.sum() ** 2).expand(3, 1, 11, 11)
    fills = {
        "zero": torch.zeros_like(x),
        "mean": x.mean(dim=(2, 3), keepdim=True).expand_as(x),
        "blur": F.conv2d(F.pad(x, (5, 5, 5, 5), mode="reflect"), kernel, groups=3),
    }
    windows = (window or 8, window or 16)
    strides = (stride or windows[0], stride or windows[1])
    total, count = slid(model, x, windows, strides, fills[fill])
    assert torch.allclose(method.attribute(model, x, CLASS), total / count, atol=1e-12)
    summed = vt.get_method(f"occlusion({window}, {stride}, {fill}, overlap=sum)").attribute(model, x, CLASS)
    assert torch.allclose(summed, total, atol=1e-12)
    assert method.num_forwards(model) == 1 + sum(
        1
        for top in range(0, 32 - windows[0] + strides[0], strides[0])
        for left in range(0, 48 - windows[1] + strides[1], strides[1])
    )


@torch.no_grad()
def test_occlusion_as_in_pair():
    model, x = look_at("vit", 1)
    total, count = slid(model, x, (15, 15), (1, 1), torch.zeros_like(x))
    actual = vt.get_method("occlusion@pair").attribute(model, x, CLASS)
    assert torch.allclose(actual, total, atol=1e-11)
    assert not torch.allclose(actual, total / count)
    assert vt.get_method("occlusion@pair").cost == (1 + 210 * 210, 0)


@pytest.mark.parametrize("family", ["vit", "gap", "siglip", "registers", "eva02", "hf_vit"])
@torch.no_grad()
def test_occlusion_without_tokens(family):
    model, x = look_at(family)
    actual = vt.get_method("occlusion(drop=true)").attribute(model, x, CLASS).flatten(1)
    complete = value_of(model.logits(x))
    for patch in range(actual.shape[1]):
        others = [item for item in range(actual.shape[1]) if item != patch]
        without = value_of(model.logits(x, keep=torch.tensor([others] * 2)))
        assert torch.allclose(actual[:, patch], complete - without, atol=1e-12)
    assert not torch.allclose(actual, vt.get_method("occlusion").attribute(model, x, CLASS).flatten(1), atol=1e-6)


@torch.no_grad()
def test_occlusion_of_tokens():
    model, x = look_at("registers", 1)
    sub, tokens = whole_and_tokens(model, x)
    for fill in ("zero", "mean"):
        actual = vt.get_method(f"occlusion(fill={fill})").attribute(sub, tokens, CLASS).flatten()
        for patch in range(16):
            changed = tokens.clone()
            changed[0, model.num_prefix_tokens + patch] = (
                0 if fill == "zero" else tokens[0, model.num_prefix_tokens :].mean(dim=0)
            )
            expected = value_of(sub.logits(tokens)) - value_of(sub.logits(changed))
            assert actual[patch].item() == pytest.approx(expected.item(), abs=1e-12)


# -- HSIC --------------------------------------------------------------------------------------------------------------


def criterion(displayed: np.ndarray, scores: np.ndarray) -> list[float]:
    """HSIC of every column by the whole matrices."""
    count = len(scores)
    centre = np.eye(count) - 1 / count
    width = np.median(scores)
    outer = np.exp(-((scores[:, None] - scores[None]) ** 2) / (2 * width**2))
    result = []
    for column in displayed.T:
        inner = 1 + 0.5 - (column[:, None] - column[None]) ** 2
        result.append(((centre @ inner @ centre) * (centre @ outer @ centre).T).sum() / count)
    return result


@pytest.mark.parametrize("count", [40, 41])
def test_the_closed_form_of_hsic(count):
    generator = torch.Generator().manual_seed(0)
    displayed = (torch.rand(count, 6, generator=generator) < 0.5).double()
    scores = torch.randn(count, generator=generator, dtype=torch.float64) + 2 * displayed[:, 0] - displayed[:, 1] + 3
    actual = hsic(displayed, scores)
    assert np.allclose(actual, criterion(displayed.numpy(), scores.numpy()), rtol=1e-9, atol=1e-14)
    assert actual[:2].min() > actual[2:].max()


def test_hsic_where_the_median_is_zero():
    displayed = (torch.rand(9, 3, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    scores = torch.arange(-4, 5).double()
    kernel = torch.exp(-((scores[:, None] - scores) ** 2) / (2 * scores.std() ** 2))
    centred = displayed - displayed.mean(dim=0)
    assert torch.allclose(hsic(displayed, scores), 2 / 9 * (centred.T @ kernel @ centred).diagonal())
    assert torch.allclose(hsic(displayed, torch.zeros(9).double()), torch.zeros(3).double(), atol=1e-15)


def test_hsic_designs():
    """Points 1, 2, ... of the sequence, the origin left out; 1/2 is rounded to 0."""
    points = qmc.Sobol(16, scramble=False, bits=30).random_base2(6)[1:]
    assert np.array_equal(sobol_masks(63, 4).flatten(1), np.round(points))
    assert (sobol_masks(63, 4)[0] == 0).all()
    assert sobol_masks(500, 8).mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("family", ["vit", "gap", "siglip", "nonsquare", "swin", "hf_vit", "tv_vit"])
@torch.no_grad()
def test_hsic(family):
    model, x = look_at(family)
    actual = vt.get_method("hsic(masks=31, cells=3)").attribute(model, x, CLASS)
    masks = np.round(qmc.Sobol(9, scramble=False, bits=30).random_base2(5)[1:]).reshape(31, 3, 3)
    height, width = x.shape[2:]
    cell = [[(row * 3 // height, column * 3 // width) for column in range(width)] for row in range(height)]
    large = torch.tensor([[[mask[place] for place in line] for line in cell] for mask in masks])
    scores = torch.stack([model.logits(x * mask)[:, CLASS] for mask in large], dim=1)
    for own, message in zip(actual, scores, strict=True):
        expected = np.reshape(criterion(masks.reshape(31, 9), message.numpy()), (3, 3))
        assert np.allclose(own, [[expected[place] for place in line] for line in cell], rtol=1e-6, atol=1e-12)
        assert own.min() >= 0


@torch.no_grad()
def test_hsic_of_tokens():
    model, x = look_at("registers")
    sub, tokens = whole_and_tokens(model, x)
    actual = vt.get_method("hsic(masks=20, cells=2)").attribute(sub, tokens, CLASS)
    masks = sobol_masks(20, 2)
    message = [
        sub.logits(scaled(model, tokens, enlarged))[:, CLASS]
        for enlarged in masks.repeat_interleave(2, 1).repeat_interleave(2, 2)
    ]
    for own, scores in zip(actual, torch.stack(message, dim=1), strict=True):
        expected = np.reshape(criterion(masks.flatten(1).numpy(), scores.numpy()), (2, 2))
        assert np.allclose(own, expected.repeat(2, axis=0).repeat(2, axis=1), rtol=1e-6)


def test_nothing_about_hsic_is_random():
    model, x = look_at("vit")
    method = vt.get_method("hsic(masks=20)")
    assert torch.equal(method.attribute(model, x, CLASS, seed=1), method.attribute(model, x, CLASS, seed=2))
    assert method.cost == (20, 0)


# -- all of them ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base",
    [
        "rise(masks=6)",
        "hsic(masks=6)",
        "occlusion",
        "occlusion(window=16)",
        "occlusion(drop=true)",
        "lime(samples=6)",
        "kernel_shap(samples=6)",
        "kernel_shap(samples=40, drop=true)",
    ],
)
def test_the_classes_of_var_share_their_forwards(monkeypatch, base):
    """What is run for two classes is what is run for one; the maps are those of each class alone."""
    model, x = look_at("vit")
    ran = []
    head = type(model).forward_head
    monkeypatch.setattr(type(model), "forward_head", lambda own, tokens: ran.append(len(tokens)) or head(own, tokens))
    alone = vt.get_method(base).attribute(model, x, 0)
    once = sum(ran)
    ran.clear()
    _, extras = vt.get_method(f'var({base}, classes="0,3")').attribute(model, x, 0, extras=True)
    assert sum(ran) <= once + len(x)
    assert torch.allclose(extras["maps"][:, 0], alone, atol=1e-12)
    assert torch.allclose(extras["maps"][:, 1], vt.get_method(base).attribute(model, x, 3), atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("rise(masks=0)", "masks=0"),
        ("rise(cells=0)", "cells=0"),
        ("rise(keep=0)", "keep=0.0 must be above 0 and below 1"),
        ("rise(keep=1)", "keep=1.0"),
        ("rise(output=rank)", "'rank' is not one of"),
        ("occlusion(window=-1)", "window=-1"),
        ("occlusion(stride=-2)", "stride=-2"),
        ("occlusion(window=4, stride=5)", "stride=5 is larger than window=4"),
        ("occlusion(fill=own)", "'own' is not one of"),
        ("occlusion(overlap=max)", "'max' is not one of"),
        ("occlusion(window=8, drop=true)", "window=8"),
        ("hsic(masks=1)", "masks=1"),
        ("hsic(cells=0)", "cells=0"),
        ("hsic(cells=200)", "cells=200"),
    ],
)
def test_specs_refused(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("occlusion(window=33)", "window=33 is larger than the image, 32 pixels"),
        ("occlusion(stride=9)", "stride=9 is larger than a patch of 8 pixels"),
        ("plus(occlusion(window=4))", "window and stride are pixels"),
        ("plus(occlusion(fill=blur))", "fill=blur is for images"),
        ("hsic(cells=40)", "cells=40 a side are more than the 32 x 32 pixels"),
        ("plus(hsic(cells=5))", "cells=5 a side are more than the 4 x 4 patches"),
    ],
)
def test_refused_when_run(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method(spec).attribute(FAMILIES["vit"](), torch.randn(1, 3, 32, 32), CLASS)


def test_leaving_tokens_out_needs_a_model_that_can():
    model, x = look_at("swin")
    with pytest.raises(vt.VitreousError, match=r"occlusion\(drop=true\) leaves tokens out, and .* cannot"):
        vt.get_method("occlusion(drop=true)").attribute(model, x)
