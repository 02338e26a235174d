"""CoIBA, IBA and IBA* against their definitions: whole model, plain hooks, one image at a time, torch's own Adam."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import vitreous as vt
from families import FAMILIES, images
from reference_bottleneck import SAMPLES, TARGET, reference, seen
from vitreous.methods.bottleneck import Prior, information


def compare(spec: str, model: nn.Module, layers: list[int], **how: Any) -> None:
    """The map and the history of two images equal those of the reference."""
    inputs = images(model, 2)
    of_tokens = replace(vt.get_method(spec), stats="own")
    found, extras = of_tokens.attribute(model, inputs, target=TARGET, extras=True)
    point = (lambda block: block) if spec.startswith("iba") else (lambda block: block.norm1)
    modules = [point(model.blocks[layer]) for layer in layers]
    for index, image in enumerate(inputs):
        tokens, informations, entropies = reference(model, image, modules, spec.split("(")[0], **how)
        expected = tokens[model.num_prefix_tokens :].reshape(found.shape[1:])
        assert torch.allclose(found[index], expected, rtol=1e-7, atol=1e-9)
        assert extras["information"][index].tolist() == pytest.approx(informations[:-1], rel=1e-7)
        assert extras["relevance"][index].tolist() == pytest.approx([-entropy for entropy in entropies[:-1]], rel=1e-7)


# -- definitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap", "gap_all", "clip", "nonsquare"])
def test_coiba_is_its_definition(family: str) -> None:
    """Ten steps of the whole model from the image, element-wise divergence, last forward read: 9 cached ones equal."""
    compare(f"coiba(samples={SAMPLES})", FAMILIES[family]().double(), [1, 2], beta=1)


@pytest.mark.parametrize(
    ("options", "layers", "how"),
    [
        ("start=0", [0, 1, 2], {"beta": 1}),
        ("start=1, stop=2", [1], {"beta": 1}),
        ("beta=20", [1, 2], {"beta": 20}),
        ("compress=layers", [1, 2], {"beta": 1, "every_term": True}),
        ("damping=channel", [1, 2], {"beta": 1, "channels": True}),
        ("ratios=layer", [1, 2], {"beta": 1, "individual": True}),
        ("ratios=layer, compress=layers, beta=3", [1, 2], {"beta": 3, "individual": True, "every_term": True}),
        ("damping=channel, compress=layers, beta=3", [1, 2], {"beta": 3, "channels": True, "every_term": True}),
        ("watch=true", [1, 2], {"beta": 1}),
    ],
)
def test_variants_of_coiba(options: str, layers: list[int], how: dict[str, Any]) -> None:
    compare(f"coiba({options}, samples={SAMPLES})", FAMILIES["vit"]().double(), layers, **how)


@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap"])
def test_iba_is_its_definition(family: str) -> None:
    compare(f"iba(samples={SAMPLES})", FAMILIES[family]().double(), [0], beta=10, channels=True)


def test_iba_after_the_last_block_and_with_one_ratio_per_token() -> None:
    model = FAMILIES["gap"]().double()
    compare(f"iba(layer=-1, samples={SAMPLES})", model, [2], beta=10, channels=True)
    compare(f"iba(layer=0, beta=2, damping=token, samples={SAMPLES})", model, [0], beta=2)


@pytest.mark.parametrize(("family", "layers"), [("vit", [0, 1]), ("gap", [0, 1, 2])])
def test_iba_star_is_the_sum_of_iba(family: str, layers: list[int]) -> None:
    model = FAMILIES[family]()
    inputs = images(model, 2)
    found, extras = vt.get_method("iba_star(samples=2, steps=4)").attribute(model, inputs, target=1, extras=True)
    each = [vt.get_method(f"iba(layer={l}, samples=2, steps=4)").attribute(model, inputs, target=1) for l in layers]
    assert torch.equal(extras["layers"], torch.stack(each, dim=1))
    assert torch.equal(found, torch.stack(each, dim=1).sum(dim=1))


def test_statistics_of_images_are_those_of_a_plain_forward() -> None:
    model = FAMILIES["vit"]().double()
    statistics = vt.collect_activation_stats(model, images(model, 12, seed=5))
    modules = [model.blocks[layer].norm1 for layer in (1, 2)]
    values = seen(model, modules, images(model, 12, seed=5))
    moments = [(value.mean(dim=0), value.std(dim=0)) for value in values]
    inputs = images(model, 1)
    method = replace(vt.get_method(f"coiba(samples={SAMPLES})"), stats=statistics)
    tokens, *_ = reference(model, inputs[0], modules, "coiba", 1, moments=moments)
    assert torch.allclose(method.attribute(model, inputs, target=TARGET).flatten(), tokens[1:], rtol=1e-7)
    pooled = [(value.mean(dim=(0, 1)), value.flatten(0, 1).std(dim=0)) for value in values]
    tokens, *_ = reference(model, inputs[0], modules, "coiba", 1, moments=pooled)
    method = replace(method, stats=statistics.pooled())
    assert torch.allclose(method.attribute(model, inputs, target=TARGET).flatten(), tokens[1:], rtol=1e-7)


# -- the divergence ----------------------------------------------------------------------------------------------------


def test_closed_form_is_the_channel_mean_of_the_divergence() -> None:
    torch.manual_seed(0)
    value, mean = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    std, alpha = torch.rand(5, 8, dtype=torch.float64) + 0.1, torch.randn(2, 5, 1, dtype=torch.float64) * 4
    ratio = torch.sigmoid(alpha)
    passed = torch.distributions.Normal(ratio * value + (1 - ratio) * mean, (1 - ratio) * std)
    expected = torch.distributions.kl_divergence(passed, torch.distributions.Normal(mean, std)).mean(dim=-1)
    surprise = Prior(mean[None], std[None]).surprise(value, by_channel=False)
    assert torch.allclose(information(alpha, surprise)[..., 0], expected)


@pytest.mark.parametrize("alpha", [-60.0, -20.0, -3.0, 5.0, 20.0, 90.0])
def test_the_divergence_keeps_its_precision_where_ratios_are_extreme(alpha: float) -> None:
    """In float32 ``1 - sigmoid(17)`` is zero, and ``1 - (1 - λ)²`` cancels for small λ."""
    ratio = 1 / (1 + math.exp(-alpha))
    left = math.exp(-alpha) / (1 + math.exp(-alpha))
    expected = 0.5 * (ratio**2 * 2.5 - ratio * (1 + left)) + (alpha if alpha > 30 else math.log1p(math.exp(alpha)))
    found = float(information(torch.tensor(alpha), torch.tensor(2.5)))
    assert found == pytest.approx(expected, rel=1e-5, abs=2e-7 * ratio)
    assert math.isfinite(found)


def test_a_small_deviation_is_lifted() -> None:
    prior = Prior.of(torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.5]]]), torch.zeros(1, 1, 2))
    assert prior.std.flatten().tolist() == pytest.approx([0.01, 0.5])
