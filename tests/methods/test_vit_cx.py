"""ViT-CX against its definition: maps of the size of the image, SciPy's clustering, one forward at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, golden, images
from vitreous.methods.feature_perturbation import complete_linkage
from vitreous.tracing.prng import PRNGKey
from zoo import EVERY

CLASS = 1


# -- clustering -------------------------------------------------------------------------------------------


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.02, 0.05, 0.1, 0.3, 2])
def test_clusters_are_those_of_scipy(seed, threshold):
    rows = np.random.default_rng(seed).random((60, 4)) @ np.random.default_rng(9).random((4, 30))
    rows += 0.1 * (1 + seed) * np.random.default_rng(seed + 50).random(rows.shape)
    distances = pdist(rows, "cosine")
    expected = fcluster(linkage(distances, "complete"), threshold, "distance")
    square = np.zeros((60, 60))
    square[np.triu_indices(60, 1)] = distances
    found = complete_linkage(torch.from_numpy(square + square.T)[None], threshold)[0].numpy()
    assert same_partition(found, expected)
    assert np.unique(found, return_index=True)[1].tolist() == sorted(np.unique(found, return_index=True)[1])


def test_clusters_of_equal_distances():
    """Whatever comes first: members are closer than the threshold, and no two clusters are left that could be one."""
    levels = np.random.default_rng(3).integers(1, 5, (40, 40)) / 4
    distances = np.maximum(levels, levels.T)
    np.fill_diagonal(distances, 0)
    for threshold in (0.25, 0.6, 0.8):
        found = complete_linkage(torch.from_numpy(distances)[None], threshold)[0].numpy()
        groups = [np.flatnonzero(found == each) for each in range(found.max() + 1)]
        assert all(distances[np.ix_(own, own)].max() < threshold for own in groups)
        apart = [distances[np.ix_(a, b)].max() for i, a in enumerate(groups) for b in groups[:i]]
        assert min(apart) >= threshold


def test_equal_things_are_one_cluster_and_few_things_are_fine():
    assert complete_linkage(torch.zeros(1, 5, 5), 0.1).tolist() == [[0] * 5]
    assert complete_linkage(torch.zeros(1, 5, 5), 0).tolist() == [[0, 1, 2, 3, 4]]
    assert complete_linkage(torch.zeros(1, 1, 1), 0.1).tolist() == [[0]]
    assert complete_linkage(torch.zeros(2, 0, 0), 0.1).tolist() == [[], []]


def test_images_side_by_side_and_things_that_are_not_there():
    """Each image is clustered as if alone, and as if it had only what is there."""
    rows = torch.rand(3, 30, 8, generator=torch.Generator().manual_seed(1)).double() ** 3
    rows[1] = rows[1] * 0.1 + 1
    unit = F.normalize(rows, dim=2)
    distances = 1 - unit @ unit.transpose(1, 2)
    there = torch.rand(3, 30, generator=torch.Generator().manual_seed(2)) < 0.7
    there[2] = False
    found = complete_linkage(distances, 0.2, there)
    for own, some, labels in zip(distances, there, found, strict=True):
        assert (labels[~some] == -1).all()
        alone = complete_linkage(own[some][:, some][None], 0.2)[0]
        assert labels[some].tolist() == alone.tolist()
    assert found.amax(dim=1)[0] > found.amax(dim=1)[1] == 0


# -- the definition ---------------------------------------------------------------------------------------


def features_of(model: vt.VisionModel, x: Tensor, layer: int, point: str, prefix: int, grid: tuple[int, int]) -> Tensor:
    """Channels [C, h, w] of one place in the model's own forward."""
    kept = []
    handle = model.hook_point(layer, point).register_forward_hook(lambda module, args, output: kept.append(output))
    model.forward_head(model.forward_blocks(model.embed(x)))
    handle.remove()
    tokens = kept[0][0].reshape(-1, kept[0].shape[-1])
    return tokens[prefix:].T.reshape(-1, *grid)


def unit(m: Tensor) -> Tensor:
    return (m - m.min()) / (m.max() - m.min())


def reference(
    x: Tensor,
    channels: Tensor,
    size: tuple[int, int],
    say: Callable[[Tensor], Tensor],
    mask_of: Callable[[Tensor], Tensor] = lambda m: m,
    threshold: float = 0.1,
    noise: float = 0.1,
    seed: int = 0,
) -> tuple[Tensor, int]:
    """The map of one input [1, ...], mask by mask; ``say`` gives the score of one input."""
    large = [F.interpolate(c[None, None], size=size, mode="bilinear", align_corners=False)[0, 0] for c in channels]
    large = [unit(c) for c in large if c.max() - c.min() > 1e-12]
    rows = np.stack([c.flatten().numpy() for c in large])
    labels = fcluster(linkage(pdist(rows, "cosine"), "complete"), threshold, "distance")
    order = sorted(set(labels), key=lambda each: labels.tolist().index(each))
    masks = [unit(sum(c for c, own in zip(large, labels, strict=True) if own == each)) for each in order]
    draws = PRNGKey.of_images(seed, "vit_cx", x)
    total, cover = torch.zeros(size), sum(masks)
    for number, mask in enumerate(masks):
        e = noise * draws.at(number).normal(*x.shape[1:]).to(x)
        m = mask_of(mask)
        delta = say(x * m + e * (1 - m)) - say(x + e * (1 - m)) + say(x)
        total = total + delta * mask
    return torch.where(cover > 0, total / cover, 0) / len(masks), len(masks)


def look_at(family: str) -> tuple[vt.VisionModel, Tensor]:
    if family not in EVERY:
        pytest.skip("its library is not installed")
    model = vt.wrap(EVERY[family]())
    model.module.double()
    return model, images(model, 3)


# prefixes of 1, 2 and 5, a grid that is not square, three libraries
@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "nonsquare", "hf_vit", "tv_vit"])
@torch.no_grad()
def test_definition(family):
    model, x = look_at(family)
    found, extras = vt.get_method("vit_cx").attribute(model, x, CLASS, seed=3, extras=True)
    if family in FAMILIES:
        assert len(set(extras["clusters"].tolist())) > 1, "images with different numbers of masks share the batch"
    for i, image in enumerate(x.split(1)):
        channels = features_of(model, image, model.depth - 1, "norm1", model.num_prefix_tokens, model.grid(image))
        say = lambda seen: model.reference_forward(seen).softmax(1)[0, CLASS]  # noqa: E731
        expected, count = reference(image, channels, tuple(x.shape[2:]), say, seed=3)
        assert extras["clusters"][i] == count > 1
        assert torch.allclose(found[i], expected, atol=1e-12)


@torch.no_grad()
def test_other_places_scores_and_settings():
    model, x = look_at("vit")
    how = vt.get_method("vit_cx(layer=0, point=norm2, threshold=0.2, noise=0.5, output=logit)")
    channels = features_of(model, x[:1], 0, "norm2", 1, model.grid(x))
    expected, _ = reference(x[:1], channels, (32, 32), lambda seen: model.module(seen)[0, 2], threshold=0.2, noise=0.5)
    assert torch.allclose(how.attribute(model, x[:1], 2)[0], expected, atol=1e-12)
    assert torch.equal(how.attribute(model, x[:1], 2, output="prob"), how.attribute(model, x[:1], 2))
    assert vt.explain(model, x[0], how).value == "logit"


@torch.no_grad()
def test_the_last_stage_of_a_hierarchical_model():
    model, x = look_at("swin")
    found = vt.get_method("vit_cx").attribute(model, x[:1], CLASS)
    last, grid = model.depth - 1, model.grid(x, model.depth - 1)
    assert grid != model.grid(x)
    channels = features_of(model, x[:1], last, "norm2", 0, grid)
    say = lambda seen: model.reference_forward(seen).softmax(1)[0, CLASS]  # noqa: E731
    assert torch.allclose(found[0], reference(x[:1], channels, tuple(x.shape[2:]), say)[0], atol=1e-12)


@torch.no_grad()
def test_tokens_of_a_sub_network():
    """Masks scale the tokens of the patches and leave the prefix alone."""
    model, x = look_at("registers")
    tokens = model.forward_blocks(model.embed(x[:1]), 0, 1)
    part, grid = model.suffix(1, x), model.grid(x)
    channels = features_of(part, tokens, 1, "norm1", model.num_prefix_tokens, grid)

    def mask_of(mask: Tensor) -> Tensor:
        return torch.cat([torch.ones(model.num_prefix_tokens).to(mask), mask.flatten()])[None, :, None]

    say = lambda seen: model.forward_head(model.forward_blocks(seen, 1)).softmax(1)[0, CLASS]  # noqa: E731
    expected, _ = reference(tokens, channels, grid, say, mask_of)
    assert torch.allclose(vt.get_method("vit_cx").attribute(part, tokens, CLASS)[0], expected, atol=1e-12)
    whole = vt.get_method("plus(vit_cx)").attribute(model, x, CLASS)
    assert tuple(whole.shape[1:]) in (grid, tuple(x.shape[2:]))
    assert torch.isfinite(whole).all()


def test_golden_numbers():
    """Of the released code, its noise set to zero."""
    model, image = golden()
    found, extras = vt.get_method("vit_cx(noise=0)").attribute(model, image, 2, extras=True)
    assert extras["clusters"].tolist() == [5]
    assert found.sum().item() == pytest.approx(1553.88425, rel=1e-8)
    assert found[0, 8, 8].item() == pytest.approx(0.0310851604, rel=1e-8)
    assert found[0, 100, 37].item() == pytest.approx(0.0308464778, rel=1e-8)


# -- edges ------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_channels_that_are_the_same_everywhere_are_left_out():
    model, x = look_at("vit")
    norm = model.module.blocks[-1].norm1
    norm.weight[:20], norm.bias[:20] = 0, 0.7
    found, extras = vt.get_method("vit_cx").attribute(model, x[:1], CLASS, extras=True)
    channels = features_of(model, x[:1], 2, "norm1", 1, model.grid(x))
    say = lambda seen: model.module(seen).softmax(1)[0, CLASS]  # noqa: E731
    assert extras["clusters"] <= 4
    assert torch.allclose(found[0], reference(x[:1], channels, (32, 32), say)[0], atol=1e-12)
    norm.weight[:] = 0
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        found, extras = vt.get_method("vit_cx").attribute(model, x[:2], CLASS, extras=True)
    assert extras["clusters"].tolist() == [0, 0]
    assert not found.any()


@torch.no_grad()
def test_one_mask_gives_its_effect_wherever_it_reaches():
    model, x = look_at("vit")
    found, extras = vt.get_method("vit_cx(threshold=2, output=logit, noise=0)").attribute(
        model, x[:1], CLASS, extras=True
    )
    assert extras["clusters"].tolist() == [1]
    values = found[0][found[0] != 0]
    assert torch.allclose(values, values[0])
    assert 0 < (found[0] == 0).sum() <= 16  # the pixels where that mask is zero, a corner of the picture at most


def test_noise_depends_on_seed_and_image_only():
    model, x = look_at("vit")
    how = vt.get_method("vit_cx(noise=1)")
    assert not torch.allclose(how.attribute(model, x, CLASS, seed=1), how.attribute(model, x, CLASS))
    cut = [how.attribute(model, x, CLASS, batch_size=size) for size in (1, 3, 100)]
    assert torch.allclose(cut[0], cut[1], atol=1e-12)
    assert torch.allclose(cut[0], cut[2], atol=1e-12)


def test_classes_that_are_compared_share_the_forwards(monkeypatch):
    model, x = look_at("vit")
    rows: list[int] = []
    embed = type(model).embed
    monkeypatch.setattr(type(model), "embed", lambda self, inputs: rows.append(len(inputs)) or embed(self, inputs))
    alone, extras = vt.get_method("vit_cx").attribute(model, x[:1], CLASS, extras=True)
    rows.clear()
    found, more = vt.get_method('var(vit_cx, classes="1,3,4")').attribute(model, x[:1], CLASS, extras=True)
    assert sum(rows) == 1 + 2 * int(extras["clusters"].sum())
    assert torch.allclose(more["maps"][:, 0], alone, atol=1e-12)
    monkeypatch.undo()
    for place, other in enumerate((1, 3, 4)):
        assert torch.allclose(
            more["maps"][:, place], vt.get_method("vit_cx").attribute(model, x[:1], other), atol=1e-12
        )
    assert found.shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("vit_cx(threshold=-0.1)", "threshold=-0.1"),
        ("vit_cx(noise=-1)", "noise=-1"),
        ("vit_cx(output=odds)", "odds"),
        ("vit_cx(point=attn)", "attn"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec, named):
    with pytest.raises(vt.VitreousError, match=named):
        vt.get_method(spec)


def test_a_layer_that_is_not_there_is_refused():
    model = vt.wrap(FAMILIES["vit"]())
    with pytest.raises(vt.VitreousError, match="layer 7"):
        vt.get_method("vit_cx(layer=7)").attribute(model, images(model, 1))
