"""HSIC against its definition, with whole kernel matrices and loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import qmc

import vitreous as vt
from vitreous.methods.occlusion_rise import dependence, designs
from zoo import look_at

CLASS = 1
KINDS = ["vit", "gap", "siglip", "nonsquare", "swin", "hf_vit", "tv_vit"]


def criterion(shown: np.ndarray, scores: np.ndarray) -> list[float]:
    """HSIC of every column by the whole matrices."""
    count = len(scores)
    centre = np.eye(count) - 1 / count
    width = np.median(scores)
    outer = np.exp(-((scores[:, None] - scores[None]) ** 2) / (2 * width**2))
    found = []
    for column in shown.T:
        inner = 1 + 0.5 - (column[:, None] - column[None]) ** 2
        found.append(((centre @ inner @ centre) * (centre @ outer @ centre).T).sum() / count)
    return found


@pytest.mark.parametrize("count", [40, 41])
def test_the_closed_form_of_hsic(count):
    generator = torch.Generator().manual_seed(0)
    shown = (torch.rand(count, 6, generator=generator) < 0.5).double()
    scores = torch.randn(count, generator=generator, dtype=torch.float64) + 2 * shown[:, 0] - shown[:, 1] + 3
    found = dependence(shown, scores)
    assert np.allclose(found, criterion(shown.numpy(), scores.numpy()), rtol=1e-9, atol=1e-14)
    assert found[:2].min() > found[2:].max()


def test_hsic_where_the_median_is_zero():
    shown = (torch.rand(9, 3, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    scores = torch.arange(-4, 5).double()
    kernel = torch.exp(-((scores[:, None] - scores) ** 2) / (2 * scores.std() ** 2))
    centred = shown - shown.mean(dim=0)
    assert torch.allclose(dependence(shown, scores), 2 / 9 * (centred.T @ kernel @ centred).diagonal())
    assert torch.allclose(dependence(shown, torch.zeros(9).double()), torch.zeros(3).double(), atol=1e-15)


def test_hsic_designs():
    """Points 1, 2, ... of the sequence, the origin left out; 1/2 is rounded to 0."""
    points = qmc.Sobol(16, scramble=False, bits=30).random_base2(6)[1:]
    assert np.array_equal(designs(63, 4).flatten(1), np.round(points))
    assert (designs(63, 4)[0] == 0).all()
    assert designs(500, 8).mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("family", KINDS)
@torch.no_grad()
def test_hsic(family):
    model, x = look_at(family)
    found = vt.get_method("hsic(masks=31, cells=3)").attribute(model, x, CLASS)
    masks = np.round(qmc.Sobol(9, scramble=False, bits=30).random_base2(5)[1:]).reshape(31, 3, 3)
    height, width = x.shape[2:]
    cell = [[(row * 3 // height, column * 3 // width) for column in range(width)] for row in range(height)]
    large = torch.tensor([[[mask[place] for place in line] for line in cell] for mask in masks])
    scores = torch.stack([model.logits(x * mask)[:, CLASS] for mask in large], dim=1)
    for own, said in zip(found, scores, strict=True):
        expected = np.reshape(criterion(masks.reshape(31, 9), said.numpy()), (3, 3))
        assert np.allclose(own, [[expected[place] for place in line] for line in cell], rtol=1e-6, atol=1e-12)
        assert own.min() >= 0


@torch.no_grad()
def test_hsic_of_tokens():
    model, x = look_at("registers")
    sub, tokens = model.suffix(1, x), model.forward_blocks(model.embed(x), 0, 1)
    found = vt.get_method("hsic(masks=20, cells=2)").attribute(sub, tokens, CLASS)
    masks = designs(20, 2)
    said = []
    for mask in masks:
        changed = tokens.clone()
        for patch in range(16):
            changed[:, model.num_prefix_tokens + patch] *= mask[patch // 4 // 2, patch % 4 // 2]
        said.append(sub.logits(changed)[:, CLASS])
    for own, scores in zip(found, torch.stack(said, dim=1), strict=True):
        expected = np.reshape(criterion(masks.flatten(1).numpy(), scores.numpy()), (2, 2))
        assert np.allclose(own, expected.repeat(2, axis=0).repeat(2, axis=1), rtol=1e-6)


def test_nothing_about_hsic_is_random():
    model, x = look_at("vit")
    how = vt.get_method("hsic(masks=20)")
    assert torch.equal(how.attribute(model, x, CLASS, seed=1), how.attribute(model, x, CLASS, seed=2))
    assert how.cost == (20, 0)


@pytest.mark.parametrize("parameters", ["masks=1", "cells=0", "cells=200"])
def test_refused_when_spelled(parameters):
    with pytest.raises(vt.VitreousError, match=parameters):
        vt.get_method(f"hsic({parameters})")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("hsic(cells=40)", "cells=40 a side are more than the 32 x 32 pixels"),
        ("plus(hsic(cells=5))", "cells=5 a side are more than the 4 x 4 patches"),
    ],
)
def test_refused_when_run(spec, complaint):
    model, x = look_at("vit")
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method(spec).attribute(model, x, CLASS)
