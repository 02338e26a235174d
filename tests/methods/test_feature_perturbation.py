"""ViT-CX and AtMan against their definitions: SciPy's clustering, every score written out, one forward at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist
from timm.layers import Attention
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, golden, images
from vitreous.errors import ModelError
from vitreous.methods.feature_perturbation import SuppressedColumns, complete_linkage
from vitreous.tracing.prng import PRNGKey
from zoo import CLASS, EVERY, look_at

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
    actual = complete_linkage(torch.from_numpy(square + square.T)[None], threshold)[0].numpy()
    assert same_partition(actual, expected)
    assert np.unique(actual, return_index=True)[1].tolist() == sorted(np.unique(actual, return_index=True)[1])


def test_clusters_of_equal_distances():
    """Whatever comes first: members are closer than the threshold, and no two clusters are left that could be one."""
    levels = np.random.default_rng(3).integers(1, 5, (40, 40)) / 4
    distances = np.maximum(levels, levels.T)
    np.fill_diagonal(distances, 0)
    for threshold in (0.25, 0.6, 0.8):
        actual = complete_linkage(torch.from_numpy(distances)[None], threshold)[0].numpy()
        groups = [np.flatnonzero(actual == item) for item in range(actual.max() + 1)]
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
    actual = complete_linkage(distances, 0.2, there)
    for own, subset, labels in zip(distances, there, actual, strict=True):
        assert (labels[~subset] == -1).all()
        alone = complete_linkage(own[subset][:, subset][None], 0.2)[0]
        assert labels[subset].tolist() == alone.tolist()
    assert actual.amax(dim=1)[0] > actual.amax(dim=1)[1] == 0


# -- the definition ---------------------------------------------------------------------------------------


def features_of(model: vt.VisionModel, x: Tensor, layer: int, point: str, prefix: int, grid: tuple[int, int]) -> Tensor:
    """Channels [C, h, w] of one place in the model's own forward."""
    visible = []
    handle = model.hook_point(layer, point).register_forward_hook(lambda module, args, output: visible.append(output))
    model.forward_head(model.forward_blocks(model.embed(x)))
    handle.remove()
    tokens = visible[0][0].reshape(-1, visible[0].shape[-1])
    return tokens[prefix:].T.reshape(-1, *grid)


def unit(m: Tensor) -> Tensor:
    return (m - m.min()) / (m.max() - m.min())


def vit_cx(
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
    order = sorted(set(labels), key=lambda item: labels.tolist().index(item))
    masks = [unit(sum(c for c, own in zip(large, labels, strict=True) if own == item)) for item in order]
    draws = PRNGKey.of_images(seed, "vit_cx", x)
    total, cover = torch.zeros(size), sum(masks)
    for number, mask in enumerate(masks):
        e = noise * draws.at(number).normal(*x.shape[1:]).to(x)
        m = mask_of(mask)
        delta = say(x * m + e * (1 - m)) - say(x + e * (1 - m)) + say(x)
        total = total + delta * mask
    return torch.where(cover > 0, total / cover, 0) / len(masks), len(masks)


# prefixes of 1, 2 and 5, a grid that is not square, three libraries
@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "nonsquare", "hf_vit", "tv_vit"])
@torch.no_grad()
def test_vit_cx(family):
    model, x = look_at(family, 3)
    actual, extras = vt.get_method("vit_cx").attribute(model, x, CLASS, seed=3, extras=True)
    if family in FAMILIES:
        assert len(set(extras["clusters"].tolist())) > 1, "images with different numbers of masks share the batch"
    for i, image in enumerate(x.split(1)):
        channels = features_of(model, image, model.depth - 1, "norm1", model.num_prefix_tokens, model.grid(image))
        say = lambda seen: model.reference_forward(seen).softmax(1)[0, CLASS]  # noqa: E731
        expected, count = vit_cx(image, channels, tuple(x.shape[2:]), say, seed=3)
        assert extras["clusters"][i] == count > 1
        assert torch.allclose(actual[i], expected, atol=1e-12)


@torch.no_grad()
def test_other_places_scores_and_settings():
    model, x = look_at("vit", 3)
    method = vt.get_method("vit_cx(layer=0, point=norm2, threshold=0.2, noise=0.5, output=logit)")
    channels = features_of(model, x[:1], 0, "norm2", 1, model.grid(x))
    expected, _ = vit_cx(x[:1], channels, (32, 32), lambda seen: model.module(seen)[0, 2], threshold=0.2, noise=0.5)
    assert torch.allclose(method.attribute(model, x[:1], 2)[0], expected, atol=1e-12)
    assert torch.equal(method.attribute(model, x[:1], 2, output="prob"), method.attribute(model, x[:1], 2))
    assert vt.explain(model, x[0], method).output == "logit"


@torch.no_grad()
def test_the_last_stage_of_a_hierarchical_model():
    model, x = look_at("swin", 1)
    actual = vt.get_method("vit_cx").attribute(model, x[:1], CLASS)
    last, grid = model.depth - 1, model.grid(x, model.depth - 1)
    assert grid != model.grid(x)
    channels = features_of(model, x[:1], last, "norm2", 0, grid)
    say = lambda seen: model.reference_forward(seen).softmax(1)[0, CLASS]  # noqa: E731
    assert torch.allclose(actual[0], vit_cx(x[:1], channels, tuple(x.shape[2:]), say)[0], atol=1e-12)


@torch.no_grad()
def test_tokens_of_a_sub_network():
    """Masks scale the tokens of the patches and leave the prefix alone."""
    model, x = look_at("registers", 1)
    tokens = model.forward_blocks(model.embed(x[:1]), 0, 1)
    part, grid = model.suffix(1, x), model.grid(x)
    channels = features_of(part, tokens, 1, "norm1", model.num_prefix_tokens, grid)

    def mask_of(mask: Tensor) -> Tensor:
        return torch.cat([torch.ones(model.num_prefix_tokens).to(mask), mask.flatten()])[None, :, None]

    say = lambda seen: model.forward_head(model.forward_blocks(seen, 1)).softmax(1)[0, CLASS]  # noqa: E731
    expected, _ = vit_cx(tokens, channels, grid, say, mask_of)
    assert torch.allclose(vt.get_method("vit_cx").attribute(part, tokens, CLASS)[0], expected, atol=1e-12)
    complete = vt.get_method("plus(vit_cx)").attribute(model, x, CLASS)
    assert tuple(complete.shape[1:]) in (grid, tuple(x.shape[2:]))
    assert torch.isfinite(complete).all()


def test_golden_vit_cx():
    """Of the released code, its noise set to zero."""
    model, image = golden()
    actual, extras = vt.get_method("vit_cx(noise=0)").attribute(model, image, 2, extras=True)
    assert extras["clusters"].tolist() == [5]
    assert actual.sum().item() == pytest.approx(1553.88425, rel=1e-8)
    assert actual[0, 8, 8].item() == pytest.approx(0.0310851604, rel=1e-8)
    assert actual[0, 100, 37].item() == pytest.approx(0.0308464778, rel=1e-8)


# -- edges ------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_channels_that_are_the_same_everywhere_are_left_out():
    model = vt.wrap(FAMILIES["vit"]().double())
    x = images(model, 3)
    norm = model.module.blocks[-1].norm1
    norm.weight[:20], norm.bias[:20] = 0, 0.7
    actual, extras = vt.get_method("vit_cx").attribute(model, x[:1], CLASS, extras=True)
    channels = features_of(model, x[:1], 2, "norm1", 1, model.grid(x))
    say = lambda seen: model.module(seen).softmax(1)[0, CLASS]  # noqa: E731
    assert extras["clusters"] <= 4
    assert torch.allclose(actual[0], vit_cx(x[:1], channels, (32, 32), say)[0], atol=1e-12)
    norm.weight[:] = 0
    with pytest.warns(vt.VitreousWarning, match="zero everywhere"):
        actual, extras = vt.get_method("vit_cx").attribute(model, x[:2], CLASS, extras=True)
    assert extras["clusters"].tolist() == [0, 0]
    assert not actual.any()


@torch.no_grad()
def test_one_mask_gives_its_effect_wherever_it_reaches():
    model, x = look_at("vit", 3)
    actual, extras = vt.get_method("vit_cx(threshold=2, output=logit, noise=0)").attribute(
        model, x[:1], CLASS, extras=True
    )
    assert extras["clusters"].tolist() == [1]
    values = actual[0][actual[0] != 0]
    assert torch.allclose(values, values[0])
    assert 0 < (actual[0] == 0).sum() <= 16  # the pixels where that mask is zero, a corner of the picture at most


def test_noise_depends_on_seed_and_image_only():
    model, x = look_at("vit", 3)
    method = vt.get_method("vit_cx(noise=1)")
    assert not torch.allclose(method.attribute(model, x, CLASS, seed=1), method.attribute(model, x, CLASS))
    cut = [method.attribute(model, x, CLASS, batch_size=size) for size in (1, 3, 100)]
    assert torch.allclose(cut[0], cut[1], atol=1e-12)
    assert torch.allclose(cut[0], cut[2], atol=1e-12)


def test_classes_that_are_compared_share_the_forwards_of_vit_cx(monkeypatch):
    model, x = look_at("vit", 3)
    rows: list[int] = []
    embed = type(model).embed
    monkeypatch.setattr(type(model), "embed", lambda self, inputs: rows.append(len(inputs)) or embed(self, inputs))
    alone, extras = vt.get_method("vit_cx").attribute(model, x[:1], CLASS, extras=True)
    rows.clear()
    actual, more = vt.get_method('var(vit_cx, classes="1,3,4")').attribute(model, x[:1], CLASS, extras=True)
    assert sum(rows) == 1 + 2 * int(extras["clusters"].sum())
    assert torch.allclose(more["maps"][:, 0], alone, atol=1e-12)
    monkeypatch.undo()
    for place, other in enumerate((1, 3, 4)):
        assert torch.allclose(
            more["maps"][:, place], vt.get_method("vit_cx").attribute(model, x[:1], other), atol=1e-12
        )
    assert actual.shape == (1, 32, 32)


# -- AtMan -------------------------------------------------------------------------------------------------


def attended(attention: Attention, x: Tensor, factors: Tensor) -> Tensor:
    """A timm attention with the scores of each key multiplied by its factor, as published: before the scaling."""
    parts = attention.qkv(x).reshape(*x.shape[:2], 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = attention.q_norm(parts[0]), attention.k_norm(parts[1]), parts[2]
    scores = q @ k.transpose(-2, -1)
    scores = (scores - scores.min(dim=-1, keepdim=True).values) * factors
    mixed = (scores * attention.scale).softmax(dim=-1) @ v
    return attention.proj(attention.norm(mixed.transpose(1, 2).flatten(2)))


def atman(model: vt.VisionModel, x: Tensor, factor: float, similarity: float | None = None) -> Tensor:
    """The map of one image [1, 3, H, W]: the loss without each patch minus the loss."""
    losses = []
    entering = model.embed(x)
    patches = entering[0, model.num_prefix_tokens :]
    for j in [None, *range(len(patches))]:
        factors = torch.ones(entering.shape[1]).to(x)
        for k, patch in enumerate(patches):
            if j is not None:
                c = F.cosine_similarity(patches[j], patch, dim=0).item()
                if k == j:
                    factors[model.num_prefix_tokens + k] = factor
                elif similarity is not None and c > similarity:
                    factors[model.num_prefix_tokens + k] = (1 - factor) * (1 - c) + factor
        tokens = entering
        for block in model.module.blocks:
            tokens = tokens + block.ls1(attended(block.attn, block.norm1(tokens), factors))
            tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
        losses.append(F.cross_entropy(model.forward_head(tokens), torch.tensor([CLASS])))
    return (torch.stack(losses[1:]) - losses[0]).reshape(model.grid(x))


# prefixes of 1, 2, 5 and none, all kinds of pooling, LayerScale, a grid that is not square, normed queries
@pytest.mark.parametrize(
    "family", ["vit", "deit_distilled", "registers", "gap", "gap_all", "siglip", "nonsquare", "qk_norm"]
)
@pytest.mark.parametrize("factor", [0.1, 0, 0.7])
@torch.no_grad()
def test_atman(family, factor):
    model, x = look_at(family)
    actual = vt.get_method(f"atman(factor={factor})").attribute(model, x, CLASS)
    for image, own in zip(x.split(1), actual, strict=True):
        assert torch.allclose(own, atman(model, image, factor), atol=1e-11)
        assert own.max() > own.min()


@pytest.mark.parametrize("similarity", [0, 0.05, 0.5])
@torch.no_grad()
def test_similar_patches_go_with_it(similarity):
    model, x = look_at("registers")
    actual = vt.get_method(f"atman(similarity={similarity})").attribute(model, x, CLASS)
    for image, own in zip(x.split(1), actual, strict=True):
        assert torch.allclose(own, atman(model, image, 0.1, similarity), atol=1e-11)
    if similarity < 0.5:
        assert not torch.allclose(actual, vt.get_method("atman").attribute(model, x, CLASS), atol=1e-3)


def test_golden_atman():
    model, image = golden()
    actual = vt.get_method("atman").attribute(model, image, 2)[0].flatten()
    assert actual.sum().item() == pytest.approx(0.0316445227, rel=1e-8)
    assert actual.max().item() == pytest.approx(0.00972573675, rel=1e-8)
    assert actual.argmax().item() == 151
    expected = [-0.00553637337, -0.000951484873, 0.00479074321, 0.00537335975]
    assert actual[[0, 50, 101, 195]].tolist() == pytest.approx(expected, rel=1e-8)


@torch.no_grad()
def test_presets():
    """A picture with two equal halves has embeddings that are alike, apart from their positions."""
    assert vt.get_method("atman@magma") == vt.get_method("atman(factor=0.1, similarity=0.6)")
    model = vt.wrap(FAMILIES["vit"]().double())
    x = images(model, 2)
    model.module.pos_embed *= 0.1
    x = torch.cat([x[..., :16], x[..., :16]], dim=-1)
    unchanged, magma = (vt.get_method(name).attribute(model, x, CLASS) for name in ("atman", "atman@magma"))
    assert ((unchanged - magma).abs().flatten(1).amax(dim=1) > 0.1 * unchanged.abs().flatten(1).amax(dim=1)).all()
    assert torch.allclose(magma[0], atman(model, x[:1], 0.1, 0.6), atol=1e-11)


@torch.no_grad()
def test_scores_and_targets():
    model, x = look_at("vit")
    logits = [vt.get_method("atman(output=logit)").attribute(model, x, c) for c in range(3)]
    assert torch.allclose(
        vt.get_method("atman(output=logit)").attribute(model, x, 0, contrast=[1, 2]),
        logits[0] - (logits[1] + logits[2]) / 2,
        atol=1e-11,
    )
    assert torch.allclose(
        vt.get_method("atman").attribute(model, x, lambda seen: 2 * seen[:, 1]), 2 * logits[1], atol=1e-11
    )
    apart = vt.get_method("atman(output=logit)").attribute(model, x, [2, 0])
    assert torch.allclose(apart, torch.stack([logits[2][0], logits[0][1]]), atol=1e-11)
    own = vt.get_method("atman").attribute(model, x, CLASS)
    assert torch.equal(own, vt.get_method("atman").attribute(model, x, CLASS, output="prob"))
    assert vt.explain(model, x[0], "atman").output == "logprob"
    now = model.logits(x).softmax(1)[:, CLASS].view(-1, 1, 1)
    risen = vt.get_method("atman(output=prob)").attribute(model, x, CLASS)
    assert torch.allclose(now - risen, now * (-own).exp(), atol=1e-11)


@torch.no_grad()
def test_sub_networks_are_suppressed_from_their_first_block_on():
    model, x = look_at("vit")
    tokens = model.forward_blocks(model.embed(x), 0, 2)
    actual = vt.get_method("atman").attribute(model.suffix(2, x), tokens, CLASS)
    block = model.module.blocks[2]
    for j in (0, 7, 15):
        factors = torch.ones(17).double()
        factors[1 + j] = 0.1
        out = tokens + attended(block.attn, block.norm1(tokens), factors)
        out = out + block.mlp(block.norm2(out))
        fall = (model.logits(x).log_softmax(1) - model.forward_head(out).log_softmax(1))[:, CLASS]
        assert torch.allclose(actual.flatten(1)[:, j], fall, atol=1e-11)


def test_weights_of_zero():
    """A row that underflowed loses the column; one that has nothing else keeps it."""
    attention = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]]).expand(1, 1, 3, 3)
    actual = SuppressedColumns(torch.tensor([[1]]), torch.tensor([[0.1]]))(attention)[0, 0]
    left = 0.3**0.1 * 0.2**0.9
    expected = [[1, 0, 0], [0, 1, 0], [item / (0.7 + left) for item in (0.2, left, 0.5)]]
    assert torch.allclose(actual, torch.tensor(expected))


def test_classes_that_are_compared_share_the_forwards_of_atman(monkeypatch):
    model, x = look_at("vit")
    alone = [vt.get_method("atman").attribute(model, x, item) for item in (1, 3)]
    rows: list[int] = []
    head = type(model).forward_head
    monkeypatch.setattr(
        type(model), "forward_head", lambda self, tokens: rows.append(len(tokens)) or head(self, tokens)
    )
    _, more = vt.get_method('var(atman, classes="1,3")').attribute(model, x, 1, extras=True)
    assert sum(rows) == 2 + 2 * 16
    assert torch.allclose(more["maps"], torch.stack(alone, dim=1), atol=1e-11)


@pytest.mark.parametrize("family", ["swin", "hf_swin", "tv_swin"])
def test_windows_are_refused(family):
    if family not in EVERY:
        pytest.skip("not among the models")
    model = vt.wrap(EVERY[family]())
    with pytest.raises(ModelError, match="attends inside windows"):
        vt.get_method("atman").attribute(model, images(model, 1))


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("vit_cx(threshold=-0.1)", "threshold=-0.1"),
        ("vit_cx(noise=-1)", "noise=-1"),
        ("vit_cx(output=odds)", "odds"),
        ("vit_cx(point=attn)", "attn"),
        ("vit_cx(layer=7)", "layer 7"),
        ("atman(factor=1)", "factor=1"),
        ("atman(factor=-0.1)", "factor=-0.1"),
        ("atman(similarity=1.5)", "similarity=1.5"),
        ("atman(similarity=-0.1)", "similarity=-0.1"),
        ("atman(output=loss)", "loss"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec, complaint):
    model, x = look_at("vit", 1)
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method(spec).attribute(model, x, CLASS)
