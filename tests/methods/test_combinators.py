"""PLUS, SkipPLUS, smooth, logprob, consensus and witness against their definitions."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous as vt
from entering_points import TARGET, entering, gradient
from families import FAMILIES, images, verified
from vitreous.methods import Attribution, compute_attributions
from vitreous.methods.consensus import Consensus, agreement
from vitreous.methods.controls import Centre
from vitreous.methods.ops import match_values
from vitreous.models import VisionModel
from vitreous.tracing import Context, Target
from zoo import EVERY, look_at


def ranks(values: list[float]) -> list[float]:
    """The mean place of each value in order, from 0 to 1, by counting."""
    result = []
    for value in values:
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        result.append((below + (equal - 1) / 2) / (len(values) - 1))
    return result


# With more masks than channels TIS draws nothing, so that separate runs see the same samples.
BASES = [
    "tis(masks=2000, ratio=0.4)",
    "integrated_gradients(steps=3)",
    "scorecam",
    "ablationcam",
    "legrad",
    "eigencam",
    "var(generic, classes='0,1,2')",
    "consensus(ixg, generic)",
]
MULTIPLES = ("ablationcam", "eigencam")
"""What they look at, the last norm, is the same in every sub-network."""


def inputs_of_blocks(model: VisionModel, x: torch.Tensor) -> list[torch.Tensor]:
    result, tokens = [], model.embed(x)
    for layer in range(model.depth):
        result.append(tokens)
        tokens = model.forward_block(layer, tokens)
    return result


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap", "nonsquare", "hf_vit", "tv_vit"])
@pytest.mark.parametrize("base", BASES)
def test_sums_over_subnetworks(family, base):
    model, x = look_at(family)
    with torch.no_grad():
        blocks = inputs_of_blocks(model, x)
    terms = [
        vt.get_method(base).attribute(model.suffix(layer, x), tokens, target=1) for layer, tokens in enumerate(blocks)
    ]
    half = -(-model.depth // 2)
    for spec, first in ((f"plus({base})", 0), (f"plus({base}, start=1)", 1), (f"skipplus({base})", half)):
        spec = f"{spec[:-1]}, via=subnetwork)"
        expected = torch.stack(terms[first:])
        if base in MULTIPLES and len(expected) > 1:
            with pytest.raises(vt.VitreousError, match=f"is {re.escape(base)} times a number"):
                vt.get_method(spec).attribute(model, x, 1)
            continue
        actual, extras = vt.get_method(spec).attribute(model, x, 1, extras=True)
        assert torch.allclose(actual, expected.sum(dim=0), rtol=1e-7, atol=1e-9 * expected.abs().max().item()), spec
        assert extras["layers"].shape == (2, model.depth - first, *actual.shape[1:])


def test_scorecam_scales_the_tokens_of_a_subnetwork():
    """Channel by channel: the tokens of the patches times the channel, from 0 to 1; prefix tokens as they are."""
    model, x = look_at("registers", 1)
    with torch.no_grad():
        tokens = inputs_of_blocks(model, x)[1]
        below = model.forward_blocks(tokens, 1, model.depth - 1)
        features = model.module.blocks[-1].norm1(below)[0, model.num_prefix_tokens :]
        scores = []
        for channel in features.T:
            mask = (channel - channel.min()) / (channel.max() - channel.min() + 1e-8)
            seen = tokens.clone()
            seen[0, model.num_prefix_tokens :] *= mask[:, None]
            scores.append(model.forward_head(model.forward_blocks(seen, 1))[0, 2])
        expected = features @ torch.stack(scores).softmax(dim=0)
    actual = vt.get_method("scorecam").attribute(model.suffix(1, x), tokens, target=2)
    assert torch.allclose(actual.flatten(), expected, atol=1e-10)


@pytest.mark.parametrize("base", ["tis(masks=6)", "smooth(ixg, samples=2)", "random"])
def test_draws_follow_the_image_and_not_the_rounding_of_its_tokens(base):
    """In single precision the tokens of a sub-network depend on the batch in their last digits."""
    model = FAMILIES["vit"]()
    x = images(model, 3)
    method = vt.get_method(f"plus({base})")
    together = method.attribute(model, x, 1)
    for i in range(3):
        alone = method.attribute(model, x[i : i + 1], 1)
        assert torch.allclose(alone[0], together[i], atol=1e-5 * together.abs().max().item())
    model.double()
    assert torch.allclose(
        method.attribute(model, x.double(), 1).float(), together, atol=2e-3 * together.abs().max().item()
    )


def test_every_start_layer_draws_for_itself():
    model = FAMILIES["vit"]()
    _, extras = vt.get_method("plus(random)").attribute(model, images(model, 1), extras=True)
    first, second, third = extras["layers"][0]
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("plus(edges)", "edges needs images, not the tokens of a sub-network"),
        ("plus(tis(masks=3), start=7)", "layer 7 is outside 0..2"),
    ],
)
def test_what_cannot_be_composed_is_one_line(spec, complaint):
    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec).attribute(model, images(model, 1))
    assert "\n" not in str(caught.value)


def test_logprob_is_the_base_for_the_log_probability() -> None:
    model = FAMILIES["vit"]()
    vision_model, inputs = vt.wrap(model), images(model, 3)
    for base in ("plus(decompx)", "generic", "smooth(ixg, samples=2)"):
        actual = vt.get_method(f"logprob({base})").attribute(vision_model, inputs)
        assert torch.equal(actual, vt.get_method(base).attribute(vision_model, inputs, output="logprob"))
    assert vt.get_method("logprob(rollout)").class_specific is False


def test_logprob_shares_one_pass() -> None:
    model, runs = FAMILIES["vit"](), []
    vision_model, inputs = vt.wrap(model), images(model, 3)
    with model.patch_embed.register_forward_hook(lambda *_: runs.append(1)):
        verified(model)
        runs.clear()
        vt.explain(vision_model, inputs, "logprob(plus(decompx))")
        assert len(runs) == 1  # the predicted class comes from the same forward
        vt.compare(vision_model, inputs[0], ["logprob(ixg)", "logprob(plus(ixg))", "logprob(generic)"])
    assert len(runs) == 2


@pytest.mark.parametrize("base", ["gradcam_pp", "xgradcam", "eigencam", "eigengradcam", "ablationcam", "centre"])
def test_a_multiple_of_the_base_is_refused(base: str) -> None:
    model = FAMILIES["vit"]()
    x = images(model, 2)
    for method in ("plus", "skipplus"):
        spec = f"{method}({base}, start=0, via=subnetwork)"
        with pytest.raises(vt.VitreousError, match=f"{method}\\({base}\\) is {base} times a number"):
            vt.get_method(spec).attribute(model, x, 1)


def test_plus_of_iba_is_iba_at_every_layer() -> None:
    for family in ("vit", "gap"):
        model = FAMILIES[family]()
        x = images(model, 2)
        summed = vt.get_method("plus(iba(steps=3, samples=2))").attribute(model, x, 1)
        torch.testing.assert_close(summed, vt.get_method("iba_star(steps=3, samples=2)").attribute(model, x, 1))


@pytest.mark.parametrize("method", ["plus", "skipplus"])
@pytest.mark.parametrize("base", ["decompx", "ixg", "rollout"])
def test_layers_combined_by_rank_or_scale(method: str, base: str) -> None:
    model, x = look_at("vit")
    unchanged, extras = vt.get_method(f"{method}({base})").attribute(model, x, target=1, extras=True)
    terms = extras["layers"].double().numpy()
    np.testing.assert_allclose(unchanged, terms.sum(axis=1), rtol=1e-6)
    scaled = (terms / np.abs(terms).mean(axis=(2, 3), keepdims=True)).sum(axis=1)
    actual = vt.get_method(f"{method}({base}, combine=scaled)").attribute(model, x, target=1)
    np.testing.assert_allclose(actual, scaled, rtol=1e-6)
    ranked = [[np.reshape(ranks(term.flatten().tolist()), term.shape) for term in image] for image in terms]
    actual = vt.get_method(f"{method}({base}, combine=rank)").attribute(model, x, target=1)
    np.testing.assert_allclose(actual, np.mean(ranked, axis=1), rtol=1e-6)


def test_combining_costs_nothing_where_there_are_layer_terms() -> None:
    model = vt.wrap(FAMILIES["vit"]())
    for combine in ("sum", "rank", "scaled"):
        assert vt.get_method(f"plus(decompx, combine={combine})").num_forwards(model) == 1


@pytest.mark.parametrize(("skip", "layers"), [("0.0", 3), ("0.25", 2), ("0.5", 1), ("0.34", 1), ("0.99", 1)])
def test_the_share_that_is_skipped(skip: str, layers: int) -> None:
    model = vt.wrap(FAMILIES["vit"]())  # of three blocks
    _, extras = vt.get_method(f"skipplus(ixg, skip={skip})").attribute(model, images(model, 1), extras=True)
    assert extras["layers"].shape[1] == layers
    with pytest.raises(vt.VitreousError, match=r"skip=1.0 must be at least 0 and below 1"):
        vt.get_method("skipplus(ixg, skip=1.0)")


# -- smooth ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Any:
    return verified(FAMILIES["vit"]().double())


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
    x = images(model, TARGET)
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


# -- consensus ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["vit", "gap", "deit_distilled", "registers", "siglip", "nonsquare", "hf_vit", "tv_vit"]
)
def test_mean_rank_and_disagreement(family):
    model, x = look_at(family)
    members = ["plus(ixg)", "generic", "centre"]
    actual, extras = vt.get_method(f"consensus({', '.join(members)})").attribute(model, x, 1, extras=True)
    for i in range(2):
        rows = [ranks(vt.get_method(m).attribute(model, x, 1)[i].flatten().tolist()) for m in members]
        assert actual[i].flatten().tolist() == pytest.approx(
            [statistics.mean(item) for item in zip(*rows, strict=True)]
        )
        deviation = [statistics.pstdev(item) for item in zip(*rows, strict=True)]
        assert extras["disagreement"][i].flatten().tolist() == pytest.approx(deviation)
        assert np.allclose(extras["ranks"][i].flatten(1), rows)


def test_the_mean_of_maps_of_one_size():
    model, x = look_at("vit", 2)
    actual, extras = vt.get_method("consensus(ixg, decompx, combine=mean)").attribute(model, x, 1, extras=True)
    maps = [vt.get_method(name).attribute(model, x, 1) for name in ("ixg", "decompx")]
    expected = sum(map_ / map_.abs().amax(dim=(1, 2), keepdim=True) for map_ in maps) / 2
    assert torch.allclose(actual, expected, atol=1e-12)
    assert extras["ranks"].min() == 0
    assert extras["ranks"].max() == 1


def test_matched_is_the_order_of_the_mean_ranks_with_the_values_of_the_first_map():
    model, x = look_at("vit", 3)
    for members in ("ixg, generic", "ixg, generic, rollout", "ixg, constant"):
        first = vt.get_method(members.split(", ")[0]).attribute(model, x, 1).flatten(1)
        order = vt.get_method(f"consensus({members})").attribute(model, x, 1).flatten(1)
        matched = vt.get_method(f"consensus({members}, combine=matched)").attribute(model, x, 1).flatten(1)
        for i in range(len(x)):
            values = sorted(first[i].tolist())
            ranked = sorted(order[i].tolist())
            expected = [
                statistics.mean(value for value, rank in zip(values, ranked, strict=True) if rank == own)
                for own in order[i].tolist()
            ]
            assert matched[i].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_equal_mean_ranks_share_their_values():
    order = torch.tensor([[[0.5, 0.1], [0.5, 0.9]], [[0.0, 0.0], [0.0, 0.0]]])
    values = torch.tensor([[[-4.0, 8.0], [2.0, 1.0]], [[1.0, 2.0], [3.0, 6.0]]])
    assert match_values(order, values).tolist() == [[[1.5, -4.0], [1.5, 8.0]], [[3.0, 3.0], [3.0, 3.0]]]


def test_pixels_are_summed_into_patches():
    model, x = look_at("vit", 1)
    _, extras = vt.get_method("consensus(saliency, generic)").attribute(model, x, 1, extras=True)
    summed = vt.get_method("saliency").attribute(model, x, 1, grid="token")
    assert extras["ranks"][0, 0].flatten().tolist() == pytest.approx(ranks(summed.flatten().tolist()))


def test_coarse_maps_are_enlarged():
    model = vt.wrap(EVERY["swin"]())
    x = images(model, 1)
    actual, extras = vt.get_method("consensus(gradcam, ixg)").attribute(model, x, 1, extras=True)
    coarse = vt.get_method("gradcam").attribute(model, x, 1)
    grid = model.grid(x)
    assert coarse.shape[1:] != grid
    assert actual.shape[1:] == grid
    large = torch.nn.functional.interpolate(coarse[None], size=grid, mode="bilinear", align_corners=False)
    assert extras["ranks"][0, 0].flatten().tolist() == pytest.approx(ranks(large.flatten().tolist()))


def test_a_member_that_is_the_same_everywhere_says_nothing():
    model, x = look_at("vit", 1)
    actual = vt.get_method("consensus(generic, constant)").attribute(model, x, 1)
    alone = ranks(vt.get_method("generic").attribute(model, x, 1).flatten().tolist())
    assert actual.flatten().tolist() == pytest.approx([(rank + 0.5) / 2 for rank in alone])


def test_members_share_their_passes():
    model = FAMILIES["vit"]()
    runs = []
    handle = model.patch_embed.register_forward_hook(lambda *_: runs.append(1))
    x = images(verified(model), 2)
    runs.clear()
    vt.get_method("consensus(generic, plus(ixg), rollout, gradcam)").attribute(model, x)
    assert len(runs) == 1
    runs.clear()
    vision_model = vt.wrap(model)
    together = ["consensus(generic, decompx)", "ixg", "skipplus(decompx)", "consensus(rollout, attcam)"]
    compute_attributions(
        Context(vision_model, x, Target.of(vision_model, 2)), [vt.get_method(item) for item in together]
    )
    handle.remove()
    assert len(runs) == 2  # plain and frozen


def test_what_it_is_made_of():
    method = vt.get_method("consensus(skipplus(decompx), var(ixg, classes='1,2'), combine=mean)")
    assert [part.info.name for part in method.components()] == ["consensus", "skipplus", "decompx", "var", "ixg"]
    assert method.settings == {
        "bases": ["skipplus(decompx)", 'var(ixg, classes="1,2")'],
        "combine": "mean",
        "weights": "",
    }
    assert method.spec == 'consensus(skipplus(decompx), var(ixg, classes="1,2"), combine=mean)'
    assert vt.get_method(method.spec) == method
    assert not vt.get_method("consensus(rollout, edges)").class_specific
    assert vt.get_method("consensus(rollout, ixg)").class_specific
    assert vt.get_method("consensus(ixg, ig(steps=3))").cost == (4, 4)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("consensus(ixg)", "at least two methods, got 1"),
        ("consensus()", "consensus needs bases, as in"),
        ("consensus(ixg, 3)", "takes methods at character 16"),
        ("consensus(ixg, generic, combine=max)", "'max' is not one of rank, mean"),
        ("consensus(ixg, bases=generic)", "given twice"),
        ("consensus(ixg, genric)", "did you mean generic"),
        ("consensus(ixg, generic, start=2)", "no parameter 'start'"),
    ],
)
def test_refused(spec, complaint):
    with pytest.raises(vt.VitreousError, match=complaint) as caught:
        vt.get_method(spec)
    assert "\n" not in str(caught.value)


def test_a_member_that_is_not_finite_is_loud():
    @dataclass(frozen=True)
    class Broken(Centre):
        def compute(self, context):
            return Attribution(super().compute(context).map / 0, {})

    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match="centre gave values that are not finite"):
        Consensus((vt.get_method("ixg"), Broken())).attribute(model, images(model, 1), 0)


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
    compute = make.compute

    def counted(self: Any, context: Any) -> Any:
        runs.append(self.spec)
        return compute(self, context)

    monkeypatch.setattr(make, "compute", counted)
    model = vt.wrap(FAMILIES["vit"]())
    method = "coiba(steps=2, samples=1, stats=own)"
    vt.compare(
        model, images(model, 1)[0], [method, f"consensus({method}, ixg)", f"refine(consensus({method}, ixg), masks=8)"]
    )
    assert len(runs) == 1


def test_maps_scaled_by_their_mean_size() -> None:
    model, x = look_at("vit")
    actual = vt.get_method("consensus(ixg, decompx, combine=scaled, weights='3,1')").attribute(model, x, 1)
    maps = [vt.get_method(name).attribute(model, x, 1) for name in ("ixg", "decompx")]
    scaled = [map_ / map_.abs().mean(dim=(1, 2), keepdim=True) for map_ in maps]
    assert torch.allclose(actual, 0.75 * scaled[0] + 0.25 * scaled[1], atol=1e-12)


# -- witness -----------------------------------------------------------------------------------------------------------


def witnessed(terms: Tensor, seen: Tensor, power: float) -> np.ndarray:
    """The sum over start layers, number by number."""
    total = np.zeros(terms[0].numel())
    for term in terms.double().flatten(1).numpy():
        agreed = np.corrcoef(term, seen.double().flatten().numpy())[0, 1]
        total += max(0.0, agreed) ** power * term / np.abs(term).mean()
    return total


@pytest.mark.parametrize("options", ["", ", power=2.0", ", start=1"])
@pytest.mark.parametrize("family", ["vit", "registers", "gap", "hf_vit"])
def test_a_witness_weighs_the_start_layers(family: str, options: str) -> None:
    model, x = look_at(family)
    method = vt.get_method(f"witness(decompx, generic{options})")
    actual, extras = method.attribute(model, x, target=1, extras=True)
    _, reported = vt.get_method(f"plus(decompx, start={method.start})").attribute(model, x, target=1, extras=True)
    seen = vt.get_method("generic").attribute(model, x, target=1)
    for i in range(2):
        expected = witnessed(reported["layers"][i], seen[i], method.power)
        if not expected.any():
            continue
        np.testing.assert_allclose(actual[i].flatten(), expected, rtol=1e-8, atol=1e-10)
    assert torch.equal(extras["layers"], reported["layers"])
    assert extras["weights"].shape == extras["layers"].shape[:2]
    assert (extras["weights"] >= 0).all()
    assert (extras["weights"] <= 1).all()


def test_without_a_witness_all_layers_count_the_same() -> None:
    model = FAMILIES["vit"]()
    x = images(model, 2)
    actual, extras = vt.get_method("witness(decompx, constant)").attribute(model, x, 1, extras=True)
    assert (extras["weights"] == 1).all()
    assert torch.allclose(actual, vt.get_method("plus(decompx, combine=scaled)").attribute(model, x, 1), rtol=1e-5)


def test_a_witness_of_pixels_and_of_windows() -> None:
    for family, spec in (("vit", "witness(decompx, saliency)"), ("swin", "witness(decompx, gradcam)")):
        model = vt.wrap(EVERY[family]())
        assert torch.isfinite(vt.get_method(spec).attribute(model, images(model, 2), 1)).all()


def test_a_noisy_layer_is_left_out() -> None:
    """What it is for: one start layer is noise and has most of the mass."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(4, 16, 16, generator=generator)
    terms = torch.stack([50 * torch.randn(4, 16, 16, generator=generator), truth, 2 * truth], dim=1)
    weights = agreement(terms, truth, 1.0)
    assert (weights[:, 0] < 0.2).all()
    assert torch.allclose(weights[:, 1:], torch.ones(4, 2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("witness(decompx)", "by"),
        ("witness(decompx, generic, power=0)", "power=0.0 must be above 0 and at most 16"),
        ("witness(decompx, generic, via=sideways)", "via"),
    ],
)
def test_a_witness_badly_called(spec: str, message: str) -> None:
    with pytest.raises(vt.VitreousError, match=message):
        vt.get_method(spec)
