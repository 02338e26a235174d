"""TIS against its definition: k-means with loops in numpy, one forward per sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from families import FAMILIES, images
from vitreous.methods.token_subsets import centroids
from vitreous.tracing.prng import PRNGKey
from zoo import EVERY

CLASS = 1


def lloyd(rows: np.ndarray, first: list[int], iterations: int) -> np.ndarray:
    """K-means row by row; an empty cluster becomes zero and goes on."""
    centres = rows[first].copy()
    for _ in range(iterations):
        members: list[list[int]] = [[] for _ in centres]
        for index, row in enumerate(rows):
            members[int(np.argmin([((row - centre) ** 2).sum() for centre in centres]))].append(index)
        moved = np.stack([rows[own].mean(axis=0) if own else np.zeros(rows.shape[1]) for own in members])
        shift = ((moved - centres) ** 2).sum()
        centres = moved
        if shift <= 1e-4:
            break
    return centres


def reference(
    model: vt.VisionModel, image: Tensor, masks: int, ratio: float, score: str = "prob", seed: int = 0
) -> np.ndarray:
    """The map of one image [3, H, W] and class, sample by sample, none left out."""
    outputs = []
    tokens = model.embed(image[None])
    for layer in range(model.depth):
        tokens = model.forward_block(layer, tokens)
        outputs.append(tokens[0, model.num_prefix_tokens :].T.numpy())
    rows = np.concatenate(outputs)
    order = PRNGKey.of_images(seed, "tis", image[None]).permutation(len(rows))[0]
    first = order[: min(masks, len(rows))].tolist()
    centres = lloyd(rows, first, 100)
    patches = rows.shape[1]
    keep = int(ratio * patches)
    total, count = np.zeros(patches), np.zeros(patches)
    for centre in centres:
        best = sorted(range(patches), key=lambda i: -centre[i])[:keep]  # sorted is stable
        logits = model.logits(image[None], keep=torch.tensor([best]))[0]
        values = {"prob": logits.softmax(0), "logit": logits, "logprob": logits.log_softmax(0)}[score]
        total[best] += values[CLASS].item()
        count[best] += 1
    mean = np.divide(total, count, out=np.full(patches, np.inf), where=count > 0)
    mean[count == 0] = mean.min()
    return mean.reshape(model.grid(image[None]))


def look_at(family: str) -> tuple[vt.VisionModel, Tensor]:
    if family not in EVERY:
        pytest.skip("its library is not installed")
    model = vt.wrap(EVERY[family]())
    model.module.double()
    return model, images(model, 2)


# prefixes of 1, 2, 5 and none, both kinds of pooling, a grid that is not square, rotary positions, three libraries
@pytest.mark.parametrize(
    "family", ["vit", "deit_distilled", "registers", "gap", "siglip", "nonsquare", "eva02", "hf_vit", "tv_vit"]
)
@torch.no_grad()
def test_definition(family):
    model, x = look_at(family)
    found = vt.get_method("tis(masks=12, ratio=0.4)").attribute(model, x, CLASS, seed=3)
    for image, own in zip(x, found, strict=True):
        assert np.allclose(own, reference(model, image, 12, 0.4, seed=3), atol=1e-12)
        assert own.max() > own.min()


@pytest.mark.parametrize("score", ["prob", "logit", "logprob"])
@torch.no_grad()
def test_scores(score):
    model, x = look_at("vit")
    found = vt.get_method(f"tis(masks=9, score={score})").attribute(model, x, CLASS)
    assert np.allclose(found[0], reference(model, x[0], 9, 0.5, score), atol=1e-12)
    by_value = vt.get_method(f"tis(masks=9, score={score})").attribute(model, x, CLASS, output="logit")
    assert torch.equal(found, by_value)


def test_the_caption_says_which_value_is_explained(tmp_path):
    model = vt.wrap(FAMILIES["vit"]())
    explained = vt.explain(model, images(model, 1)[0], "tis(masks=5)")
    assert explained.value == "prob"
    assert vt.explain(model, images(model, 1)[0], "plus(tis(masks=5, output=logit))").value == "logit"
    assert vt.explain(model, images(model, 1)[0], "plus(ixg)", output="logprob").value == "logprob"


@torch.no_grad()
def test_targets():
    """A class per image, rivals, and a function of one's own."""
    model, x = look_at("vit")
    how = vt.get_method("tis(masks=7, output=logit)")
    apart = [how.attribute(model, x, c) for c in range(3)]
    assert torch.allclose(how.attribute(model, x, [2, 0]), torch.stack([apart[2][0], apart[0][1]]), atol=1e-12)
    contrast = how.attribute(model, x, 0, contrast=[1, 2])
    assert torch.allclose(contrast, apart[0] - (apart[1] + apart[2]) / 2, atol=1e-10)
    own = how.attribute(model, x, lambda logits: logits[:, 1] * 2)
    assert torch.allclose(own, apart[1] * 2, atol=1e-10)


class Spy:
    """Writes down every sample that is scored."""

    def __init__(self, model: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples: list[tuple[int, ...]] = []
        pick = type(model).select_tokens

        def spying(model, tokens, keep):
            self.samples += [tuple(row) for row in keep.tolist()]
            return pick(model, tokens, keep)

        monkeypatch.setattr(type(model), "pick", spying)


@pytest.mark.parametrize("ratio", [0.07, 0.3, 0.5, 0.99, 1.0])
def test_every_sample_has_the_exact_number_of_patches(monkeypatch, ratio):
    model, x = look_at("vit")
    spy = Spy(model, monkeypatch)
    found, extras = vt.get_method(f"tis(masks=30, ratio={ratio})").attribute(model, x, CLASS, extras=True)
    assert all(len(set(sample)) == len(sample) == int(ratio * 16) for sample in spy.samples)
    assert torch.isfinite(found).all()
    assert extras["kept"].sum(dim=(1, 2)).tolist() == pytest.approx([int(ratio * 16)] * 2)


def test_equal_samples_are_scored_once(monkeypatch):
    """One patch each: 72 masks can be no more than 16 different samples, and some patches are in none."""
    model, x = look_at("vit")
    spy = Spy(model, monkeypatch)
    found, extras = vt.get_method("tis(masks=72, ratio=0.07)").attribute(model, x[:1], CLASS, extras=True)
    assert len(spy.samples) == len(set(spy.samples)) <= 16
    with torch.no_grad():
        assert np.allclose(found[0], reference(model, x[0], 72, 0.07), atol=1e-12)
    kept = extras["kept"][0]
    if (kept == 0).any():
        assert (found[0][kept == 0] == found[0][kept > 0].min()).all()


def test_a_patch_in_no_sample_gets_the_lowest_value():
    model, x = look_at("vit")
    found, extras = vt.get_method("tis(masks=2, ratio=0.2)").attribute(model, x, CLASS, extras=True)
    for own, kept in zip(found, extras["kept"], strict=True):
        assert (kept == 0).any()
        assert (own[kept == 0] == own[kept > 0].min()).all()


def test_all_patches_give_the_plain_probability():
    model, x = look_at("registers")
    with pytest.warns(vt.VitreousWarning, match="constant everywhere"):
        found = vt.get_method("tis(masks=8, ratio=1.0)").attribute(model, x, CLASS)
    plain = model.logits(x).softmax(dim=1)[:, CLASS]
    assert torch.allclose(found, plain.view(2, 1, 1).expand_as(found), atol=1e-12)


def test_the_batch_size_changes_nothing():
    model, x = look_at("deit_distilled")
    how = vt.get_method("tis(masks=20)")
    whole = how.attribute(model, x, CLASS)
    for size in (1, 3, 7, 1000):
        assert torch.allclose(how.attribute(model, x, CLASS, batch_size=size), whole, atol=1e-12)
    assert torch.allclose(how.attribute(model, x, CLASS, memory_gb=1e-6), whole, atol=1e-12)


def test_fewer_rows_than_masks_is_one_sample_per_row():
    model, x = look_at("vit")
    rows = model.depth * model.embed_dim
    full = vt.get_method(f"tis(masks={rows})").attribute(model, x, CLASS)
    assert torch.allclose(vt.get_method("tis(masks=4000)").attribute(model, x, CLASS, seed=9), full, atol=1e-12)


def test_seeds_differ_and_agree():
    model, x = look_at("vit")
    how = vt.get_method("tis(masks=10)")
    first, second = (how.attribute(model, x, CLASS, seed=seed) for seed in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first, how.attribute(model, x, CLASS, seed=1))


# -- k-means -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0, 1, 3, 100])
def test_kmeans(iterations):
    """Several sets at once, one of them with copies of rows, so that clusters run empty."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 40, 5, generator=generator, dtype=torch.float64)
    rows[1, 20:] = rows[1, :20]
    rows[2] *= 1e-4  # finished at once: no shift is large
    first = torch.stack([torch.randperm(40, generator=generator)[:25] for _ in range(3)])
    found = centroids(rows, first, iterations)
    for own, start, centres in zip(rows, first, found, strict=True):
        assert np.allclose(centres, lloyd(own.numpy(), start.tolist(), iterations), atol=1e-12)
    if iterations > 1:
        assert (found[1] == 0).all(dim=1).any()


def test_kmeans_of_one_set_does_not_depend_on_the_others():
    rows = torch.randn(4, 60, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first = torch.arange(10).expand(4, -1)
    together = centroids(rows, first, 100)
    for i in range(4):
        assert torch.allclose(centroids(rows[i : i + 1], first[:1], 100)[0], together[i], atol=1e-12)


# -- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("tis(masks=0)", "masks=0"),
        ("tis(ratio=0)", "ratio=0.0"),
        ("tis(ratio=1.01)", "ratio=1.01"),
        ("tis(ratio=-0.5)", "ratio=-0.5"),
        ("tis(output=rank)", "'rank' is not one of"),
        ("tis(iterations=-1)", "iterations=-1"),
    ],
)
def test_refused_when_spelled(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


def test_refused_when_run():
    model, x = look_at("vit")
    with pytest.raises(vt.VitreousError, match="less than one patch"):
        vt.get_method("tis(ratio=0.01)").attribute(model, x)
    with pytest.raises(vt.VitreousError, match="half=true scores in float16 on a GPU"):
        vt.get_method("tis(half=true)").attribute(model, x)
    swin, x = look_at("swin")
    with pytest.raises(vt.VitreousError, match=r"tis leaves tokens out, and .* cannot"):
        vt.get_method("tis").attribute(swin, x)


# -- a real model --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_seeds_agree(shared):
    """Spearman's correlation of two seeds with all 1,024 masks."""
    model = vt.load("timm/deit_tiny_patch16_224", checkpoint=shared / "deit_tiny_patch16_224.fp16.safetensors")
    first, second = (vt.explain(model, shared / "photos/catdog.jpg", "tis", seed=seed).map.flatten() for seed in (0, 1))
    ranks = [each.argsort().argsort().double() for each in (first, second)]
    assert torch.corrcoef(torch.stack(ranks))[0, 1] > 0.95
