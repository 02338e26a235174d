"""TIS and refine against their definitions: k-means with loops, an explicit regression, one forward per sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images, verified
from vitreous.methods.token_subsets import centroids, regress
from vitreous.tracing import Context, Target
from vitreous.tracing.prng import PRNGKey
from zoo import ALL, CLASS, look_at, value_of


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
        logits = model.logits(image[None], keep=torch.tensor([best]))
        total[best] += value_of(logits, score).item()
        count[best] += 1
    mean = np.divide(total, count, out=np.full(patches, np.inf), where=count > 0)
    mean[count == 0] = mean.min()
    return mean.reshape(model.grid(image[None]))


# prefixes of 1, 2, 5 and none, both kinds of pooling, a grid that is not square, rotary positions, three libraries
@pytest.mark.parametrize(
    "family", ["vit", "deit_distilled", "registers", "gap", "siglip", "nonsquare", "eva02", "hf_vit", "tv_vit"]
)
@torch.no_grad()
def test_definition(family):
    model, x = look_at(family)
    actual = vt.get_method("tis(masks=12, ratio=0.4)").attribute(model, x, CLASS, seed=3)
    for image, own in zip(x, actual, strict=True):
        assert np.allclose(own, reference(model, image, 12, 0.4, seed=3), atol=1e-12)
        assert own.max() > own.min()


@pytest.mark.parametrize("score", ["prob", "logit", "logprob"])
@torch.no_grad()
def test_scores(score):
    model, x = look_at("vit")
    actual = vt.get_method(f"tis(masks=9, output={score})").attribute(model, x, CLASS)
    assert np.allclose(actual[0], reference(model, x[0], 9, 0.5, score), atol=1e-12)
    by_value = vt.get_method(f"tis(masks=9, output={score})").attribute(model, x, CLASS, output="logit")
    assert torch.equal(actual, by_value)


def test_the_caption_says_which_value_is_explained(tmp_path):
    model = vt.wrap(FAMILIES["vit"]())
    explained = vt.explain(model, images(model, 1)[0], "tis(masks=5)")
    assert explained.output == "prob"
    assert vt.explain(model, images(model, 1)[0], "plus(tis(masks=5, output=logit))").output == "logit"
    assert vt.explain(model, images(model, 1)[0], "plus(ixg)", output="logprob").output == "logprob"


@torch.no_grad()
def test_targets():
    """A class per image, rivals, and a function of one's own."""
    model, x = look_at("vit")
    method = vt.get_method("tis(masks=7, output=logit)")
    apart = [method.attribute(model, x, c) for c in range(3)]
    assert torch.allclose(method.attribute(model, x, [2, 0]), torch.stack([apart[2][0], apart[0][1]]), atol=1e-12)
    contrast = method.attribute(model, x, 0, contrast=[1, 2])
    assert torch.allclose(contrast, apart[0] - (apart[1] + apart[2]) / 2, atol=1e-10)
    own = method.attribute(model, x, lambda logits: logits[:, 1] * 2)
    assert torch.allclose(own, apart[1] * 2, atol=1e-10)


class Spy:
    """Writes down every sample that is scored."""

    def __init__(self, model: vt.VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples: list[tuple[int, ...]] = []
        pick = type(model).select_tokens

        def spying(model, tokens, keep):
            self.samples += [tuple(row) for row in keep.tolist()]
            return pick(model, tokens, keep)

        monkeypatch.setattr(type(model), "select_tokens", spying)


@pytest.mark.parametrize("ratio", [0.07, 0.3, 0.5, 0.99, 1.0])
def test_every_sample_has_the_exact_number_of_patches(monkeypatch, ratio):
    model, x = look_at("vit")
    spy = Spy(model, monkeypatch)
    actual, extras = vt.get_method(f"tis(masks=30, ratio={ratio})").attribute(model, x, CLASS, extras=True)
    assert all(len(set(sample)) == len(sample) == int(ratio * 16) for sample in spy.samples)
    assert torch.isfinite(actual).all()
    assert extras["kept"].sum(dim=(1, 2)).tolist() == pytest.approx([int(ratio * 16)] * 2)


def test_equal_samples_are_scored_once(monkeypatch):
    """One patch each: 72 masks can be no more than 16 different samples, and some patches are in none."""
    model, x = look_at("vit")
    spy = Spy(model, monkeypatch)
    actual, extras = vt.get_method("tis(masks=72, ratio=0.07)").attribute(model, x[:1], CLASS, extras=True)
    assert len(spy.samples) == len(set(spy.samples)) <= 16
    with torch.no_grad():
        assert np.allclose(actual[0], reference(model, x[0], 72, 0.07), atol=1e-12)
    visible = extras["kept"][0]
    if (visible == 0).any():
        assert (actual[0][visible == 0] == actual[0][visible > 0].min()).all()


def test_a_patch_in_no_sample_gets_the_lowest_value():
    model, x = look_at("vit")
    actual, extras = vt.get_method("tis(masks=2, ratio=0.2)").attribute(model, x, CLASS, extras=True)
    for own, visible in zip(actual, extras["kept"], strict=True):
        assert (visible == 0).any()
        assert (own[visible == 0] == own[visible > 0].min()).all()


def test_all_patches_give_the_plain_probability():
    model, x = look_at("registers")
    with pytest.warns(vt.VitreousWarning, match="constant everywhere"):
        actual = vt.get_method("tis(masks=8, ratio=1.0)").attribute(model, x, CLASS)
    unchanged = model.logits(x).softmax(dim=1)[:, CLASS]
    assert torch.allclose(actual, unchanged.view(2, 1, 1).expand_as(actual), atol=1e-12)


def test_the_batch_size_changes_nothing():
    model, x = look_at("deit_distilled")
    method = vt.get_method("tis(masks=20)")
    complete = method.attribute(model, x, CLASS)
    for size in (1, 3, 7, 1000):
        assert torch.allclose(method.attribute(model, x, CLASS, batch_size=size), complete, atol=1e-12)
    assert torch.allclose(method.attribute(model, x, CLASS, memory_gb=1e-6), complete, atol=1e-12)


def test_fewer_rows_than_masks_is_one_sample_per_row():
    model, x = look_at("vit")
    rows = model.depth * model.embed_dim
    full = vt.get_method(f"tis(masks={rows})").attribute(model, x, CLASS)
    assert torch.allclose(vt.get_method("tis(masks=4000)").attribute(model, x, CLASS, seed=9), full, atol=1e-12)


def test_seeds_differ_and_agree():
    model, x = look_at("vit")
    method = vt.get_method("tis(masks=10)")
    first, second = (method.attribute(model, x, CLASS, seed=seed) for seed in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first, method.attribute(model, x, CLASS, seed=1))


# -- k-means -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [0, 1, 3, 100])
def test_kmeans(iterations):
    """Several sets at once, one of them with copies of rows, so that clusters run empty."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 40, 5, generator=generator, dtype=torch.float64)
    rows[1, 20:] = rows[1, :20]
    rows[2] *= 1e-4  # finished at once: no shift is large
    first = torch.stack([torch.randperm(40, generator=generator)[:25] for _ in range(3)])
    actual = centroids(rows, first, iterations)
    for own, start, centres in zip(rows, first, actual, strict=True):
        assert np.allclose(centres, lloyd(own.numpy(), start.tolist(), iterations), atol=1e-12)
    if iterations > 1:
        assert (actual[1] == 0).all(dim=1).any()


def test_kmeans_of_one_set_does_not_depend_on_the_others():
    rows = torch.randn(4, 60, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first = torch.arange(10).expand(4, -1)
    together = centroids(rows, first, 100)
    for i in range(4):
        assert torch.allclose(centroids(rows[i : i + 1], first[:1], 100)[0], together[i], atol=1e-12)


# -- refine ------------------------------------------------------------------------------------------------------------


def subsets(model: vt.VisionModel, x: Tensor, method: vt.Method) -> np.ndarray:
    """Which patches every subset keeps, drawn again for one image alone."""
    context = Context(model, x[None], Target.of(model, 1, 1), 0)
    height, width = model.grid(x[None])
    return method._draw_subsets(context, height * width)[0].numpy()  # type: ignore[attr-defined]


def score(model: vt.VisionModel, x: Tensor, keep: np.ndarray, value: str) -> float:
    """One subset, one forward."""
    with torch.no_grad():
        return float(value_of(model.logits(x[None], keep=torch.from_numpy(keep).nonzero().T), value))


def definition(design: np.ndarray, y: np.ndarray, prior: np.ndarray, ridge: float) -> np.ndarray:
    """The map by plain least squares in float64: the ridge as rows of its own below the design."""
    centred, response = design - design.mean(axis=0), y - y.mean()
    m = prior - prior.mean()
    reported = centred @ m
    multiple = reported @ response / (reported @ reported) if np.ptp(prior) > 0 else 0.0
    strength = ridge * np.trace(centred.T @ centred) / len(prior)
    rows = np.concatenate([centred, np.sqrt(strength) * np.eye(len(prior))])
    remainder = np.concatenate([response - multiple * reported, np.zeros(len(prior))])
    return multiple * m + np.linalg.lstsq(rows, remainder, rcond=None)[0]


@pytest.mark.parametrize("options", ["", ", spread=0.3", ", pairs=false, ratio=0.3", ", output=logprob, ridge=0.1"])
@pytest.mark.parametrize("base", ["ixg", "constant"])
def test_it_is_an_explicit_regression(base: str, options: str) -> None:
    model, x = look_at("vit")
    method = vt.get_method(f"refine({base}, masks=32{options})")
    actual, extras = method.attribute(model, x, target=1, extras=True)
    priors = vt.get_method(base).attribute(model, x, target=1)
    for image in range(2):
        design = subsets(model, x[image], method).astype(np.float64)
        y = np.array([score(model, x[image], keep > 0, method.output) for keep in design])
        expected = definition(design, y, priors[image].double().numpy().reshape(-1), method.ridge)
        np.testing.assert_allclose(actual[image].reshape(-1), expected, rtol=1e-8, atol=1e-10)
        for half in range(2):
            mine = slice(half, None, 2)
            part = definition(design[mine], y[mine], priors[image].double().numpy().reshape(-1), method.ridge)
            np.testing.assert_allclose(extras["halves"][image, half].reshape(-1), part, rtol=1e-7, atol=1e-9)
        flat = priors[image].double().numpy().reshape(-1)
        other = [definition(design[i::2], y[i::2], flat, method.ridge) for i in (0, 1)]
        reported = []
        for half in range(2):
            left = slice(1 - half, None, 2)
            guess, real = design[left] @ other[half], y[left]
            gap = (real - real.mean()) - (guess - guess.mean())
            reported.append(1 - (gap**2).sum() / ((real - real.mean()) ** 2).sum())
        np.testing.assert_allclose(extras["r2"][image], np.mean(reported), rtol=1e-6)
        assert 0 <= float(extras["prior"][image]) <= 1
        assert (float(extras["prior"][image]) == 0) == (base == "constant")


def test_the_ridge_of_cross_validation() -> None:
    """Generalised cross-validation by explicit hat matrices, and what it finds is what the method takes."""
    draws = np.random.default_rng(0)
    for noise in (0.01, 0.3, 30.0):
        visible = draws.random((1, 64, 9)) < 0.5
        weights, prior = draws.normal(size=9), draws.normal(size=9)
        y = visible[0] @ weights + noise * draws.normal(size=64)
        centred, response, m = visible[0] - visible[0].mean(axis=0), y - y.mean(), prior - prior.mean()
        reported = centred @ m
        remainder = response - reported * (reported @ response) / (reported @ reported)
        errors = []
        for ridge in 2.0 ** np.arange(-1, 10):
            strength = ridge * np.trace(centred.T @ centred) / 9
            hat = centred @ np.linalg.inv(centred.T @ centred + strength * np.eye(9)) @ centred.T
            errors.append(((remainder - hat @ remainder) ** 2).sum() / (63 - np.trace(hat)) ** 2)
        best = float(2.0 ** (np.argmin(errors) - 1))
        values = (torch.from_numpy(item)[None].double() for item in (visible[0], y, prior))
        actual = regress(*values, None)
        np.testing.assert_allclose(actual.map[0], definition(visible[0], y, prior, best), rtol=1e-9)
    assert best > 1  # of noise, little is believed


def test_doubt_takes_back_what_may_be_chance() -> None:
    model, x = look_at("vit")
    unchanged, reported = vt.get_method("refine(ixg, masks=32)").attribute(model, x, target=1, extras=True)
    priors = vt.get_method("ixg").attribute(model, x, target=1)
    for doubt in (1.0, 3.0):
        actual = vt.get_method(f"refine(ixg, masks=32, doubt={doubt})").attribute(model, x, target=1)
        for image in range(2):
            m = (priors[image] - priors[image].mean()).flatten().double()
            design = torch.from_numpy(subsets(model, x[image], vt.get_method("refine(ixg, masks=32)"))).double()
            y = torch.tensor([score(model, x[image], keep.numpy() > 0, "prob") for keep in design], dtype=torch.float64)
            guess = (design - design.mean(dim=0)) @ m
            base = m * (guess @ (y - y.mean())) / (guess @ guess)
            remainder, error = unchanged[image].flatten() - base, reported["error"][image].flatten()
            left = [
                d * max(0.0, 1 - doubt * (e / d) ** 2) for d, e in zip(remainder.tolist(), error.tolist(), strict=True)
            ]
            np.testing.assert_allclose(actual[image].flatten(), base + torch.tensor(left), rtol=1e-7, atol=1e-10)


def test_those_refined_by_the_same_subsets_share_them() -> None:
    model, runs = FAMILIES["vit"](), []
    x = images(model, 2)
    with model.blocks[0].register_forward_hook(lambda module, args, out: runs.append(len(out))):
        verified(model)
        counts = []
        for spec in ("refine(ixg, masks=32)", "consensus(refine(ixg, masks=32), refine(ixg, masks=32, doubt=1.0))"):
            runs.clear()
            vt.get_method(spec).attribute(model, x, target=1)
            counts.append(sum(runs))
    assert counts[0] == counts[1]


def test_a_linear_model_gives_its_centred_weights() -> None:
    """With the ridge going to nothing and as many subsets as unknowns."""
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 24, generator=rng, dtype=torch.float64)
    visible = torch.rand(1, 400, 24, generator=rng, dtype=torch.float64).argsort(dim=2).argsort(dim=2) < 12
    scores = (visible.double() @ weights[:, :, None])[:, :, 0]
    actual = regress(visible.double(), scores, torch.ones(1, 24, dtype=torch.float64), 1e-9)
    torch.testing.assert_close(actual.map, weights - weights.mean(), atol=1e-6, rtol=0)
    assert float(actual.error.max()) < 1e-6


def test_a_real_model_that_is_linear_in_its_tokens() -> None:
    """No blocks that do anything, no norm, average pooling: the logit is the mean of one number per token."""
    model = FAMILIES["gap"]().double()
    for block in model.blocks:
        for branch in (block.attn.proj, block.mlp.fc2):
            nn.init.zeros_(branch.weight)
            nn.init.zeros_(branch.bias)
    model.norm = model.fc_norm = nn.Identity()
    vision_model = vt.wrap(model)
    x = images(vision_model, 2).double()
    actual = (
        vt.get_method("refine(constant, masks=256, ridge=1e-9, output=logit)")
        .attribute(vision_model, x, target=2)
        .flatten(1)
    )
    with torch.no_grad():
        own = model.head(vision_model.embed(x))[:, vision_model.num_prefix_tokens :, 2] / (actual.shape[1] // 2)
    torch.testing.assert_close(actual, own - own.mean(dim=1, keepdim=True), atol=1e-6, rtol=1e-6)


def test_a_prior_that_is_right_is_kept() -> None:
    """Scores that the prior predicts to a factor: nothing is left for the samples to say."""
    rng = torch.Generator().manual_seed(1)
    prior = torch.randn(3, 20, generator=rng, dtype=torch.float64)
    prior = prior - prior.mean(dim=1, keepdim=True)
    visible = (torch.rand(3, 64, 20, generator=rng) > 0.5).double()
    actual = regress(visible, 2.5 * (visible @ prior[:, :, None])[:, :, 0] + 7, prior, 1.0)
    torch.testing.assert_close(actual.map, 2.5 * prior)
    torch.testing.assert_close(actual.prior, torch.ones(3, dtype=torch.float64))


def test_pairs_are_complements_and_halves_have_whole_ones() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    visible = subsets(model, images(model, 1)[0], vt.get_method("refine(constant, masks=16, spread=0.3)"))
    for half in (visible[0::2], visible[1::2]):
        assert (half[0::2] == ~half[1::2]).all()
        assert (half.mean(axis=0) == 0.5).all(), "every patch is in as many subsets"
    assert len(set(visible.sum(axis=1).tolist())) > 4, "of different sizes"
    free = subsets(model, images(model, 1)[0], vt.get_method("refine(constant, masks=16, pairs=false, ratio=0.25)"))
    assert (free.sum(axis=1) == 4).all()


def test_equal_subsets_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No subset of an image goes through the model twice."""
    model, x = look_at("vit")
    spy = Spy(model, monkeypatch)
    vt.get_method("refine(constant, masks=512)").attribute(model, x[:1])
    assert 0 < len(spy.samples) == len(set(spy.samples)) <= 512


@pytest.mark.parametrize("family", ALL)
def test_every_family(family: str) -> None:
    model = vt.wrap(ALL[family]())
    x = images(model, 2)
    actual = vt.get_method("refine(constant, masks=16)").attribute(model, x)
    assert actual.shape == (2, *model.grid(x))
    assert torch.isfinite(actual).all()
    alone = vt.get_method("refine(constant, masks=16)").attribute(model, x[1:])
    torch.testing.assert_close(alone[0], actual[1], rtol=1e-3, atol=1e-4 * float(actual.abs().max()))


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("tis(masks=0)", "masks=0"),
        ("tis(ratio=0)", "ratio=0.0"),
        ("tis(ratio=1.01)", "ratio=1.01"),
        ("tis(ratio=-0.5)", "ratio=-0.5"),
        ("tis(output=rank)", "'rank' is not one of"),
        ("tis(iterations=-1)", "iterations=-1"),
        ("refine(constant, masks=6)", "masks=6 must be at least 8"),
        ("refine(constant, masks=18)", "multiple of 4"),
        ("refine(constant, ratio=1.0)", "between 0 and 1"),
        ("refine(constant, spread=0.6)", "between 0 and 1"),
        ("refine(constant, ridge=0.0)", "ridge=0.0 must be above 0"),
        ("refine(constant, doubt=-1)", "doubt=-1.0 must be at least 0"),
        ("refine(constant, output=luck)", "luck"),
    ],
)
def test_refused_when_parsed(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("family", "spec", "complaint"),
    [
        ("vit", "tis(ratio=0.01)", "less than one patch"),
        ("vit", "tis(half=true)", "half=true scores in float16 on a GPU"),
        ("vit", "refine(constant, half=true)", "half=true scores in float16 on a GPU"),
        ("swin", "tis", r"tis leaves tokens out, and .* cannot"),
        ("swin", "refine(constant, drop=true)", r"refine\(drop=true\) leaves tokens out, and .* cannot"),
    ],
)
def test_refused_when_run(family, spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint):
        vt.get_method(spec).attribute(*look_at(family))


# -- a real model --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_seeds_agree(shared):
    """Spearman's correlation of two seeds with all 1,024 masks."""
    model = vt.load("timm/deit_tiny_patch16_224", checkpoint=shared / "deit_tiny_patch16_224.fp16.safetensors")
    first, second = (vt.explain(model, shared / "photos/catdog.jpg", "tis", seed=seed).map.flatten() for seed in (0, 1))
    ranks = [item.argsort().argsort().double() for item in (first, second)]
    assert torch.corrcoef(torch.stack(ranks))[0, 1] > 0.95
