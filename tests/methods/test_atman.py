"""AtMan against its definition: the scores of every block written out, one patch at a time."""

from __future__ import annotations

import pytest
import torch
from timm.layers import Attention
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import golden, images
from vitreous.errors import ModelError, SpecError
from vitreous.methods.feature_perturbation import Suppressed
from zoo import EVERY, look_at

CLASS = 1


def attended(attention: Attention, x: Tensor, factors: Tensor) -> Tensor:
    """A timm attention with the scores of each key multiplied by its factor, as published: before the scaling."""
    parts = attention.qkv(x).reshape(*x.shape[:2], 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k, v = attention.q_norm(parts[0]), attention.k_norm(parts[1]), parts[2]
    scores = q @ k.transpose(-2, -1)
    scores = (scores - scores.min(dim=-1, keepdim=True).values) * factors
    mixed = (scores * attention.scale).softmax(dim=-1) @ v
    return attention.proj(attention.norm(mixed.transpose(1, 2).flatten(2)))


def reference(model: vt.VisionModel, x: Tensor, factor: float, similarity: float | None = None) -> Tensor:
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
def test_definition(family, factor):
    model, x = look_at(family)
    found = vt.get_method(f"atman(factor={factor})").attribute(model, x, CLASS)
    for image, own in zip(x.split(1), found, strict=True):
        assert torch.allclose(own, reference(model, image, factor), atol=1e-11)
        assert own.max() > own.min()


@pytest.mark.parametrize("similarity", [0, 0.05, 0.5])
@torch.no_grad()
def test_similar_patches_go_with_it(similarity):
    model, x = look_at("registers")
    found = vt.get_method(f"atman(similarity={similarity})").attribute(model, x, CLASS)
    for image, own in zip(x.split(1), found, strict=True):
        assert torch.allclose(own, reference(model, image, 0.1, similarity), atol=1e-11)
    if similarity < 0.5:
        assert not torch.allclose(found, vt.get_method("atman").attribute(model, x, CLASS), atol=1e-3)


def test_golden_numbers():
    model, image = golden()
    found = vt.get_method("atman").attribute(model, image, 2)[0].flatten()
    assert found.sum().item() == pytest.approx(0.0316445227, rel=1e-8)
    assert found.max().item() == pytest.approx(0.00972573675, rel=1e-8)
    assert found.argmax().item() == 151
    expected = [-0.00553637337, -0.000951484873, 0.00479074321, 0.00537335975]
    assert found[[0, 50, 101, 195]].tolist() == pytest.approx(expected, rel=1e-8)


@torch.no_grad()
def test_presets():
    """A picture with two equal halves has embeddings that are alike, apart from their positions."""
    assert vt.get_method("atman@magma") == vt.get_method("atman(factor=0.1, similarity=0.6)")
    model, x = look_at("vit")
    model.module.pos_embed *= 0.1
    x = torch.cat([x[..., :16], x[..., :16]], dim=-1)
    plain, magma = (vt.get_method(name).attribute(model, x, CLASS) for name in ("atman", "atman@magma"))
    assert ((plain - magma).abs().flatten(1).amax(dim=1) > 0.1 * plain.abs().flatten(1).amax(dim=1)).all()
    assert torch.allclose(magma[0], reference(model, x[:1], 0.1, 0.6), atol=1e-11)


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
    assert vt.explain(model, x[0], "atman").value == "logprob"
    now = model.logits(x).softmax(1)[:, CLASS].view(-1, 1, 1)
    risen = vt.get_method("atman(output=prob)").attribute(model, x, CLASS)
    assert torch.allclose(now - risen, now * (-own).exp(), atol=1e-11)


@torch.no_grad()
def test_sub_networks_are_suppressed_from_their_first_block_on():
    model, x = look_at("vit")
    tokens = model.forward_blocks(model.embed(x), 0, 2)
    found = vt.get_method("atman").attribute(model.suffix(2, x), tokens, CLASS)
    block = model.module.blocks[2]
    for j in (0, 7, 15):
        factors = torch.ones(17).double()
        factors[1 + j] = 0.1
        out = tokens + attended(block.attn, block.norm1(tokens), factors)
        out = out + block.mlp(block.norm2(out))
        fall = (model.logits(x).log_softmax(1) - model.forward_head(out).log_softmax(1))[:, CLASS]
        assert torch.allclose(found.flatten(1)[:, j], fall, atol=1e-11)


def test_weights_of_zero():
    """A row that underflowed loses the column; one that has nothing else keeps it."""
    attention = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]]).expand(1, 1, 3, 3)
    found = Suppressed(torch.tensor([[1]]), torch.tensor([[0.1]]))(attention)[0, 0]
    left = 0.3**0.1 * 0.2**0.9
    expected = [[1, 0, 0], [0, 1, 0], [each / (0.7 + left) for each in (0.2, left, 0.5)]]
    assert torch.allclose(found, torch.tensor(expected))


def test_classes_that_are_compared_share_the_forwards(monkeypatch):
    model, x = look_at("vit")
    alone = [vt.get_method("atman").attribute(model, x, each) for each in (1, 3)]
    rows: list[int] = []
    finish = type(model).forward_head
    monkeypatch.setattr(type(model), "finish", lambda self, tokens: rows.append(len(tokens)) or finish(self, tokens))
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
    ("spec", "named"),
    [
        ("atman(factor=1)", "factor=1"),
        ("atman(factor=-0.1)", "factor=-0.1"),
        ("atman(similarity=1.5)", "similarity=1.5"),
        ("atman(similarity=-0.1)", "similarity=-0.1"),
        ("atman(output=loss)", "loss"),
    ],
)
def test_bad_parameters_are_refused_by_name(spec, named):
    with pytest.raises(SpecError, match=named):
        vt.get_method(spec)
