"""``refine``: random token subsets correct a base map. Against an explicit regression, one subset at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images, proven
from vitreous.methods.token_subsets import regress
from zoo import ALL


def subsets(model: vt.VisionModel, x: Tensor, method: vt.Method) -> np.ndarray:
    """Which patches every subset keeps, drawn again for one image alone."""
    from vitreous.tracing import Context, Target

    context = Context(model, x[None], Target.of(model, 1, 1), 0)
    height, width = model.grid(x[None])
    return method._kept(context, height * width)[0].numpy()  # type: ignore[attr-defined]


def score(model: vt.VisionModel, x: Tensor, keep: np.ndarray, target: int, value: str) -> float:
    """One subset, one forward."""
    index = torch.from_numpy(keep).nonzero().flatten()
    with torch.no_grad():
        tokens = model.embed(x[None])
        some = torch.cat([tokens[:, : model.num_prefix_tokens], tokens[:, model.num_prefix_tokens + index]], dim=1)
        logits = model.forward_head(model.forward_blocks(some, keep=index[None]))[0].double()
    return float({"logit": logits, "prob": logits.softmax(0), "logprob": logits.log_softmax(0)}[value][target])


def definition(design: np.ndarray, y: np.ndarray, prior: np.ndarray, ridge: float) -> np.ndarray:
    """The map by plain least squares in float64: the ridge as rows of its own below the design."""
    centred, response = design - design.mean(axis=0), y - y.mean()
    m = prior - prior.mean()
    told = centred @ m
    multiple = told @ response / (told @ told) if np.ptp(prior) > 0 else 0.0
    strength = ridge * np.trace(centred.T @ centred) / len(prior)
    rows = np.concatenate([centred, np.sqrt(strength) * np.eye(len(prior))])
    rest = np.concatenate([response - multiple * told, np.zeros(len(prior))])
    return multiple * m + np.linalg.lstsq(rows, rest, rcond=None)[0]


@pytest.mark.parametrize("options", ["", ", spread=0.3", ", pairs=false, ratio=0.3", ", output=logprob, ridge=0.1"])
@pytest.mark.parametrize("base", ["ixg", "constant"])
def test_it_is_an_explicit_regression(base: str, options: str) -> None:
    model = vt.wrap(FAMILIES["vit"]().double())
    x = images(model, 2).double()
    method = vt.get_method(f"refine({base}, masks=32{options})")
    found, extras = method.attribute(model, x, target=1, extras=True)
    priors = vt.get_method(base).attribute(model, x, target=1)
    for image in range(2):
        design = subsets(model, x[image], method).astype(np.float64)
        y = np.array([score(model, x[image], keep > 0, 1, method.score) for keep in design])
        expected = definition(design, y, priors[image].double().numpy().reshape(-1), method.ridge)
        np.testing.assert_allclose(found[image].reshape(-1), expected, rtol=1e-8, atol=1e-10)
        for half in range(2):
            mine = slice(half, None, 2)
            part = definition(design[mine], y[mine], priors[image].double().numpy().reshape(-1), method.ridge)
            np.testing.assert_allclose(extras["halves"][image, half].reshape(-1), part, rtol=1e-7, atol=1e-9)
        flat = priors[image].double().numpy().reshape(-1)
        other = [definition(design[i::2], y[i::2], flat, method.ridge) for i in (0, 1)]
        told = []
        for half in range(2):
            left = slice(1 - half, None, 2)
            guess, real = design[left] @ other[half], y[left]
            gap = (real - real.mean()) - (guess - guess.mean())
            told.append(1 - (gap**2).sum() / ((real - real.mean()) ** 2).sum())
        np.testing.assert_allclose(extras["r2"][image], np.mean(told), rtol=1e-6)
        assert 0 <= float(extras["prior"][image]) <= 1
        assert (float(extras["prior"][image]) == 0) == (base == "constant")


def test_the_ridge_of_cross_validation() -> None:
    """Generalised cross-validation by explicit hat matrices, and what it finds is what the method takes."""
    draws = np.random.default_rng(0)
    for noise in (0.01, 0.3, 30.0):
        kept = draws.random((1, 64, 9)) < 0.5
        weights, prior = draws.normal(size=9), draws.normal(size=9)
        y = kept[0] @ weights + noise * draws.normal(size=64)
        centred, response, m = kept[0] - kept[0].mean(axis=0), y - y.mean(), prior - prior.mean()
        told = centred @ m
        rest = response - told * (told @ response) / (told @ told)
        errors = []
        for ridge in 2.0 ** np.arange(-1, 10):
            strength = ridge * np.trace(centred.T @ centred) / 9
            hat = centred @ np.linalg.inv(centred.T @ centred + strength * np.eye(9)) @ centred.T
            errors.append(((rest - hat @ rest) ** 2).sum() / (63 - np.trace(hat)) ** 2)
        best = float(2.0 ** (np.argmin(errors) - 1))
        given = (torch.from_numpy(each)[None].double() for each in (kept[0], y, prior))
        found = regress(*given, None)
        np.testing.assert_allclose(found.map[0], definition(kept[0], y, prior, best), rtol=1e-9)
    assert best > 1  # of noise, little is believed


def test_doubt_takes_back_what_may_be_chance() -> None:
    model = vt.wrap(FAMILIES["vit"]().double())
    x = images(model, 2).double()
    plain, told = vt.get_method("refine(ixg, masks=32)").attribute(model, x, target=1, extras=True)
    priors = vt.get_method("ixg").attribute(model, x, target=1)
    for doubt in (1.0, 3.0):
        found = vt.get_method(f"refine(ixg, masks=32, doubt={doubt})").attribute(model, x, target=1)
        for image in range(2):
            m = (priors[image] - priors[image].mean()).flatten().double()
            design = torch.from_numpy(subsets(model, x[image], vt.get_method("refine(ixg, masks=32)"))).double()
            y = torch.tensor(
                [score(model, x[image], keep.numpy() > 0, 1, "prob") for keep in design], dtype=torch.float64
            )
            guess = (design - design.mean(dim=0)) @ m
            base = m * (guess @ (y - y.mean())) / (guess @ guess)
            rest, error = plain[image].flatten() - base, told["error"][image].flatten()
            left = [d * max(0.0, 1 - doubt * (e / d) ** 2) for d, e in zip(rest.tolist(), error.tolist(), strict=True)]
            np.testing.assert_allclose(found[image].flatten(), base + torch.tensor(left), rtol=1e-7, atol=1e-10)


def test_those_refined_by_the_same_subsets_share_them() -> None:
    model, runs = FAMILIES["vit"](), []
    x = images(model, 2)
    with model.blocks[0].register_forward_hook(lambda module, args, out: runs.append(len(out))):
        proven(model)
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
    kept = torch.rand(1, 400, 24, generator=rng, dtype=torch.float64).argsort(dim=2).argsort(dim=2) < 12
    scores = (kept.double() @ weights[:, :, None])[:, :, 0]
    found = regress(kept.double(), scores, torch.ones(1, 24, dtype=torch.float64), 1e-9)
    torch.testing.assert_close(found.map, weights - weights.mean(), atol=1e-6, rtol=0)
    assert float(found.error.max()) < 1e-6


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
    found = (
        vt.get_method("refine(constant, masks=256, ridge=1e-9, output=logit)")
        .attribute(vision_model, x, target=2)
        .flatten(1)
    )
    with torch.no_grad():
        own = model.head(vision_model.embed(x))[:, vision_model.num_prefix_tokens :, 2] / (found.shape[1] // 2)
    torch.testing.assert_close(found, own - own.mean(dim=1, keepdim=True), atol=1e-6, rtol=1e-6)


def test_a_prior_that_is_right_is_kept() -> None:
    """Scores that the prior predicts to a factor: nothing is left for the samples to say."""
    rng = torch.Generator().manual_seed(1)
    prior = torch.randn(3, 20, generator=rng, dtype=torch.float64)
    prior = prior - prior.mean(dim=1, keepdim=True)
    kept = (torch.rand(3, 64, 20, generator=rng) > 0.5).double()
    found = regress(kept, 2.5 * (kept @ prior[:, :, None])[:, :, 0] + 7, prior, 1.0)
    torch.testing.assert_close(found.map, 2.5 * prior)
    torch.testing.assert_close(found.prior, torch.ones(3, dtype=torch.float64))


def test_pairs_are_complements_and_halves_have_whole_ones() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    kept = subsets(model, images(model, 1)[0], vt.get_method("refine(constant, masks=16, spread=0.3)"))
    for half in (kept[0::2], kept[1::2]):
        assert (half[0::2] == ~half[1::2]).all()
        assert (half.mean(axis=0) == 0.5).all(), "every patch is in as many subsets"
    assert len(set(kept.sum(axis=1).tolist())) > 4, "of different sizes"
    free = subsets(model, images(model, 1)[0], vt.get_method("refine(constant, masks=16, pairs=false, ratio=0.25)"))
    assert (free.sum(axis=1) == 4).all()


def test_equal_subsets_are_scored_once() -> None:
    """No subset of an image goes through the model twice."""
    model = vt.wrap(FAMILIES["vit"]())
    from vitreous.methods import masking as module

    seen: list[int] = []
    real = module.scored

    def counted(context: Any, name: str, tokens: Tensor, images: Tensor, chosen: Tensor, *rest: Any) -> Tensor:
        seen.append(len(chosen))
        assert len({(int(i), *c) for i, c in zip(images, chosen.tolist(), strict=True)}) == len(chosen)
        return real(context, name, tokens, images, chosen, *rest)

    from vitreous.methods import token_subsets as home

    home.scored, before = counted, home.scored
    try:
        vt.get_method("refine(constant, masks=512)").attribute(model, images(model, 2))
    finally:
        home.scored = before
    assert seen == [sum(seen)]
    assert seen[0] <= 2 * 512


@pytest.mark.parametrize("family", ALL)
def test_every_family(family: str) -> None:
    model = vt.wrap(ALL[family]())
    x = images(model, 2)
    if not model.can_drop_tokens:
        with pytest.raises(vt.VitreousError, match=r"refine\(drop=true\) leaves tokens out"):
            vt.get_method("refine(constant, drop=true)").attribute(model, x)
    found = vt.get_method("refine(constant, masks=16)").attribute(model, x)
    assert found.shape == (2, *model.grid(x))
    assert torch.isfinite(found).all()
    alone = vt.get_method("refine(constant, masks=16)").attribute(model, x[1:])
    torch.testing.assert_close(alone[0], found[1], rtol=1e-3, atol=1e-4 * float(found.abs().max()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("masks=6", "masks=6 must be at least 8"),
        ("masks=18", "multiple of 4"),
        ("ratio=1.0", "between 0 and 1"),
        ("spread=0.6", "between 0 and 1"),
        ("ridge=0.0", "ridge=0.0 must be above 0"),
        ("doubt=-1", "doubt=-1.0 must be a number from 0 on"),
        ("output=luck", "luck"),
        ("half=true", "float16 on a GPU"),
    ],
)
def test_bad_parameters(options: str, said: str) -> None:
    model = vt.wrap(FAMILIES["vit"]())
    with pytest.raises(vt.VitreousError, match=said):
        vt.get_method(f"refine(constant, {options})").attribute(model, images(model, 1))


# -- robust sums, weights ----------------------------------------------------------------------------------------------


def ranks(values: np.ndarray) -> np.ndarray:
    """From 0 to 1, equal values share their mean rank: by counting."""
    below = (values[None] < values[:, None]).sum(axis=1) + ((values[None] == values[:, None]).sum(axis=1) - 1) / 2
    return below / (len(values) - 1)


@pytest.mark.parametrize("how", ["plus", "skipplus"])
@pytest.mark.parametrize("base", ["decompx", "ixg", "rollout"])
def test_layers_combined_by_rank_or_scale(how: str, base: str) -> None:
    model = vt.wrap(FAMILIES["vit"]().double())
    x = images(model, 2).double()
    plain, extras = vt.get_method(f"{how}({base})").attribute(model, x, target=1, extras=True)
    terms = extras["layers"].double().numpy()
    np.testing.assert_allclose(plain, terms.sum(axis=1), rtol=1e-6)
    scaled = (terms / np.abs(terms).mean(axis=(2, 3), keepdims=True)).sum(axis=1)
    found = vt.get_method(f"{how}({base}, combine=scaled)").attribute(model, x, target=1)
    np.testing.assert_allclose(found, scaled, rtol=1e-6)
    ranked = [[ranks(term.reshape(-1)).reshape(term.shape) for term in image] for image in terms]
    found = vt.get_method(f"{how}({base}, combine=rank)").attribute(model, x, target=1)
    np.testing.assert_allclose(found, np.mean(ranked, axis=1), rtol=1e-6)


def test_combining_costs_nothing_where_there_are_layer_terms() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    for combine in ("sum", "rank", "scaled"):
        assert vt.get_method(f"plus(decompx, combine={combine})").num_forwards(model) == vt.get_method(
            "decompx"
        ).num_forwards(model)


@pytest.mark.parametrize(("skip", "layers"), [("0.0", 3), ("0.25", 2), ("0.5", 1), ("0.34", 1), ("0.99", 1)])
def test_the_share_that_is_skipped(skip: str, layers: int) -> None:
    model = vt.wrap(FAMILIES["vit"]())  # of three blocks
    _, extras = vt.get_method(f"skipplus(ixg, skip={skip})").attribute(model, images(model, 1), extras=True)
    assert extras["layers"].shape[1] == layers
    with pytest.raises(vt.VitreousError, match="share of the depth"):
        vt.get_method("skipplus(ixg, skip=1.0)")


def test_weights_of_a_consensus() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    x = images(model, 2)
    weighed = vt.get_method("consensus(ixg, generic, weights='2,1')").attribute(model, x, target=1)
    thrice = vt.get_method("consensus(ixg, ixg, generic)").attribute(model, x, target=1)
    torch.testing.assert_close(weighed, thrice)
    for bad in ("1", "1,2,3", "1,x", "1,-1", "0,1", "1,inf"):
        with pytest.raises(vt.VitreousError, match="positive numbers"):
            vt.get_method(f"consensus(ixg, generic, weights='{bad}')")


def test_a_method_that_others_are_made_of_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session, whoever asks for it."""
    runs: list[str] = []
    make = type(vt.get_method("coiba"))
    real = make.compute

    def counted(self: Any, context: Any) -> Any:
        runs.append(self.spelling)
        return real(self, context)

    monkeypatch.setattr(make, "compute", counted)
    model = vt.wrap(FAMILIES["vit"]())
    how = "coiba(steps=2, samples=1, stats=own)"
    vt.compare(model, images(model, 1)[0], [how, f"consensus({how}, ixg)", f"refine(consensus({how}, ixg), masks=8)"])
    assert len(runs) == 1
