"""IBA and CoIBA on feature maps against their definitions: plain hooks, one image at a time, torch's own Adam.

Smoothing is a depth-wise convolution here, the ratios lie in ``[C, h, w]``, and the divergence is that of torch.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES as TRANSFORMERS
from families import images
from families_cnn import FAMILIES, Plain, _build
from reference_bottleneck import smoothed
from vitreous.errors import ModelError, SpecError
from vitreous.methods import iba
from vitreous.methods.bottleneck import Objective, grid_after
from vitreous.tracing.prng import PRNGKey
from vitreous.tracing.statistics import ActivationStats

TARGET, SAMPLES, STEPS = 3, 3, 5
SHORT = f"samples={SAMPLES}, steps={STEPS}"


def moments_of(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, deviation and what is active over some images ``[n, C, h, w]``."""
    return values.mean(dim=0), values.std(dim=0), (values != 0).sum(dim=0) > 0.01 * len(values)


def own_moments(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same over the places of one image ``[1, C, h, w]``."""
    rows = value[0].flatten(1)
    return tuple(item[:, None, None] for item in (rows.mean(dim=1), rows.std(dim=1), (rows != 0).any(dim=1)))


def seen(model: nn.Module, modules: list[nn.Module], x: Tensor) -> list[Tensor]:
    visible: list[Tensor] = []
    handles = [module.register_forward_hook(lambda m, a, out: visible.append(out.clone())) for module in modules]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return visible


def reference(
    model: nn.Module,
    image: Tensor,
    modules: list[nn.Module],
    purpose: str,
    beta: float,
    moments: list[tuple[Tensor, Tensor, Tensor]] | None = None,
    channels: bool = True,
    sigma: float = 1.0,
    every_term: bool = False,
) -> tuple[Tensor, list[float]]:
    """The information at every place in the last of the forwards, in bits, and what was lost at each."""
    clean = seen(model, modules, image[None])
    moments = moments or [own_moments(item) for item in clean]
    _, width, height, broad = clean[0].shape
    alpha = torch.full((1, width if channels else 1, height, broad), 5.0, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([alpha], lr=1)
    draws = PRNGKey.of_images(0, purpose, image[None])
    informations: list[float] = []
    for step in range(STEPS):
        terms: list[Tensor] = []

        def hook(module: nn.Module, args: Any, value: Tensor, step: int = step, terms: list[Tensor] = terms) -> Tensor:
            place = modules.index(module)
            mean, std, active = moments[place]
            std, active = std.clamp(min=0.01), active.double()
            ratio = smoothed(torch.sigmoid(alpha), sigma)
            passed = Normal(ratio * value + (1 - ratio) * mean, ((1 - ratio) * std).expand_as(value))
            usual = Normal(mean.expand_as(value), std.expand_as(value))
            terms.append(kl_divergence(passed, usual) * active)
            shape = (height * broad, value.shape[1])
            sampled = torch.cat([draws.at(step, place).at(n).normal(*shape) for n in range(SAMPLES)]).double()
            noise = mean + std * sampled.transpose(1, 2).reshape(value.shape)
            return (ratio * value + (1 - ratio) * noise) * active

        handles = [item.register_forward_hook(hook) for item in modules]
        logits = model(image.expand(SAMPLES, -1, -1, -1))
        for handle in handles:
            handle.remove()
        lost = torch.stack([term.mean(dim=1) for term in (terms if every_term else terms[:1])]).mean(dim=0)
        adam.zero_grad()
        (F.cross_entropy(logits, torch.full((SAMPLES,), TARGET)) + beta * lost.mean()).backward()
        adam.step()
        informations.append(lost.mean().item())
    return lost.mean(dim=0).detach() * width / math.log(2), informations


def dead(family: str, path: str) -> nn.Module:
    """A network in double precision, the last channel of one of its norms or convolutions far below every ReLU."""
    model = FAMILIES[family]().double()
    with torch.no_grad():
        model.get_submodule(path).bias[-1] = -1000.0
    return model


def compare(spec: str, model: nn.Module, layers: list[int], beta: float, **chosen: Any) -> None:
    vision_model = vt.wrap(model)
    x = images(vision_model, 2)
    modules = [model.get_submodule(vision_model.chain[layer][-1]) for layer in layers]
    method = replace(vt.get_method(spec), stats="own")
    actual, extras = method.attribute(vision_model, x, target=TARGET, extras=True)
    assert tuple(actual.shape[1:]) == grid_after(vision_model, layers[0])
    for index, image in enumerate(x):
        expected, informations = reference(model, image, modules, spec.split("(")[0], beta, **chosen)
        assert torch.allclose(actual[index], expected, rtol=1e-6, atol=1e-8)
        assert extras["information"][index].tolist() == pytest.approx(informations[:-1], rel=1e-6)


# -- definitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["resnet", "tv_convnext", "efficientnet", "tv_densenet"])
def test_iba_is_its_definition(family: str) -> None:
    compare(f"iba(layer=1, {SHORT})", FAMILIES[family]().double(), [1], 10)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ("", {}),
        ("sigma=0, ", {"sigma": 0.0}),
        ("sigma=0.7, ", {"sigma": 0.7}),
        ("damping=token, ", {"channels": False}),
    ],
)
def test_dead_channels_smoothing_and_one_ratio_per_place(options: str, method: dict[str, Any]) -> None:
    model = dead("tv_vgg", "features.5")
    compare(f"iba(layer=2, {options}{SHORT})", model, [2], 10, **method)


def test_iba_at_the_last_feature_map_and_at_a_named_layer() -> None:
    compare(f"iba(layer=-1, {SHORT})", FAMILIES["resnet"]().double(), [4], 10)
    model = _build(Plain).double()
    vision_model = vt.wrap(model, layer="body", preprocess=vt.wrap(FAMILIES["resnet"]()).preprocess)
    x = images(vision_model, 1)
    actual = replace(vt.get_method(f"iba({SHORT})"), stats="own").attribute(vision_model, x, target=TARGET)
    expected, _ = reference(model, x[0], [model.body], "iba", 10)
    assert torch.allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(("options", "method"), [("", {}), ("compress=layers, ", {"every_term": True})])
def test_coiba_is_its_definition(options: str, method: dict[str, Any]) -> None:
    """One ratio for all channels of a place, shared by the outputs of the blocks of a stage; widths may differ."""
    model = dead("tv_vgg", "features.3")
    vision_model = vt.wrap(model)
    assert [grid_after(vision_model, layer) for layer in range(vision_model.depth)] == [
        (16, 16),
        (16, 16),
        (8, 8),
        (8, 8),
    ]
    compare(f"coiba(start=0, stop=2, {options}{SHORT})", model, [0, 1], 1, channels=False, **method)
    assert vision_model.embed_dim_at(1) != vision_model.embed_dim_at(2)


def test_statistics_are_position_by_position_and_count_what_is_active() -> None:
    model = dead("tv_vgg", "features.3")
    vision_model = vt.wrap(model)
    pictures = images(vision_model, 12, seed=5)
    statistics = vt.collect_activation_stats(vision_model, pictures)
    module = model.features[4]
    (values,) = seen(model, [module], pictures)
    places = statistics.moments["resid_post", 1]
    assert torch.equal(places.nonzero, (values != 0).sum(dim=0).flatten(1).T)
    assert not places.active[:, -1].any()
    assert places.active[:, :-1].any()
    x = images(vision_model, 1)
    method = replace(vt.get_method(f"iba(layer=1, {SHORT})"), stats=statistics)
    expected, _ = reference(model, x[0], [module], "iba", 10, [moments_of(values)])
    assert torch.allclose(method.attribute(vision_model, x, target=TARGET), expected, rtol=1e-6)


# -- statistics --------------------------------------------------------------------------------------------------------


def test_counts_are_kept_in_files(tmp_path: Path) -> None:
    model = FAMILIES["tv_vgg"]()
    built = vt.collect_activation_stats(model, images(model, 10))
    read = ActivationStats.load(built.save(tmp_path / "s.safetensors"))
    assert read == built
    assert read.fingerprint == built.fingerprint
    assert all(torch.equal(read.moments[key].nonzero, moment.nonzero) for key, moment in built.moments.items())
    assert built.pooled().moments["resid_post", 0].nonzero.shape == (1, 8)
    vit = TRANSFORMERS["vit"]()
    assert all(moment.nonzero is None for moment in vt.collect_activation_stats(vit, images(vit, 10)).moments.values())


def test_what_is_refused() -> None:
    model = vt.wrap(FAMILIES["tv_vgg"]())
    x = images(model, 1)
    with pytest.raises(ModelError, match="differ in their channels; use damping=token"):
        vt.get_method("coiba(start=0, stop=2, damping=channel, stats=own)").attribute(model, x)
    with pytest.raises(ModelError, match="lie on several grids"):
        vt.get_method("coiba(start=1, stop=3, stats=own)").attribute(model, x)
    for sigma in ("-1", "1e9"):
        with pytest.raises(SpecError, match=r"sigma=.* must be at least 0 and at most 100"):
            vt.get_method(f"iba(sigma={sigma})")


def test_transformers_are_smoothed_only_when_asked() -> None:
    model = TRANSFORMERS["vit"]()
    x = images(model, 1)
    unchanged, named, smooth = (
        vt.get_method(f"iba({SHORT}, stats=own{more})").attribute(model, x, target=1)
        for more in ("", ", sigma=0", ", sigma=1")
    )
    assert torch.equal(unchanged, named)
    assert not torch.allclose(unchanged, smooth)


def test_what_is_learnt_is_not_rounded_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """``half`` is for a GPU; its arithmetic can be had here."""
    model = FAMILIES["resnet"]()
    x = images(model, 1)
    expected = vt.get_method("coiba(samples=2)").attribute(model, x, target=1)
    monkeypatch.setattr(
        iba, "Objective", lambda *supplied, **existing: Objective(*supplied, **{**existing, "half": True})
    )
    actual = vt.get_method("coiba(samples=2)").attribute(model, x, target=1)
    assert not torch.equal(actual, expected)
    assert (actual - expected).abs().max() < 0.02 * expected.max()
