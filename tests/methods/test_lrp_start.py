"""Where relevance starts: with the logit of the class, so that what speaks for it is positive whatever its sign."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous as vt
from families import FAMILIES, images
from families_cnn import FAMILIES as CONVOLUTIONAL
from vitreous.errors import MapError, TracingError
from vitreous.methods.lrp import RULES
from vitreous.tracing import Context, Pass, Record, Target, activation_grad
from vitreous.tracing.rules.composites import composed
from vitreous.tracing.runner import run_for_targets
from zoo import EVERY

MADE = {**EVERY, **CONVOLUTIONAL}
SOME = ["vit", "gap", "swin", "siglip", "hf_vit", "tv_vgg", "tv_resnet"]


def double(family: str) -> tuple[vt.VisionModel, Tensor, Tensor]:
    """Return a view in float64, two images, and their logits."""
    model = vt.wrap(MADE[family]().double())
    x = images(model, 2).double()
    return model, x, model.logits(x)


def lrp(model: vt.VisionModel, x: Tensor, **target: Any) -> Tensor:
    return vt.get_method("lrp").attribute(model, x, **target)


def each_class(model: vt.VisionModel, x: Tensor, classes: int) -> Tensor:
    return torch.stack([lrp(model, x, target=label) for label in range(classes)], dim=1)


def same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9 * expected.abs().max().item())


def linear() -> tuple[Any, Tensor]:
    """One linear layer behind a first layer that hands on every number as it is."""
    generator = torch.Generator().manual_seed(1)
    first, last = nn.Conv2d(3, 3, 1, groups=3, bias=False), nn.Linear(48, 3, bias=False)
    nn.init.ones_(first.weight)
    last.weight.data.copy_(torch.randn(3, 48, generator=generator))
    model: Any = nn.Sequential(first, nn.Flatten(), last).double().eval()
    model.image_size = (4, 4)
    return model, torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rules", ["linear=epsilon, patch=epsilon", "linear=gamma:0, patch=gamma:0"])
@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_a_linear_network_is_explained_by_weight_times_input(rules: str) -> None:
    """The truth of every class, above zero and below; a walk that starts with one has it divided by the logit."""
    model, x = linear()
    vision_model, logits = vt.wrap(model, layer="0"), model(x).detach()
    assert bool((logits > 0).any() and (logits < 0).any())
    keep = Record("pixels", activation_grad)
    for label in range(3):
        truth = model[2].weight[label].detach().reshape(3, 4, 4) * x
        actual = vt.get_method(f'lrp(rules="{rules}", at=pixels)').attribute(vision_model, x, target=label)
        torch.testing.assert_close(actual, truth.sum(dim=1), rtol=1e-4, atol=1e-4)
        live = Context(vision_model, x, Target.of(vision_model, 2, label))
        (ones,) = live.run_pass(Pass((keep,), replace(composed(rules), scored=False)))[keep]
        assert torch.equal(ones.sign(), (truth / logits[:, label, None, None, None]).sign())
        same(actual, (ones * logits[:, label, None, None, None]).sum(dim=1))


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_rules_by_sign_do_not_know_that_an_output_is_below_zero() -> None:
    """What is positive shares the logit: below zero, what speaks for the class is negative."""
    model, x = linear()
    for label in range(3):
        up = (model[2].weight[label].detach().reshape(3, 4, 4) * x).clamp(min=0)
        expected = model(x).detach()[:, label, None, None] * up.sum(dim=1) / up.sum(dim=(1, 2, 3))[:, None, None]
        method = vt.get_method('lrp(rules="linear=zplus, patch=epsilon", at=pixels)')
        actual = method.attribute(vt.wrap(model, layer="0"), x, target=label)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", SOME)
def test_a_logit_times_the_walk_from_one(family: str) -> None:
    model, x, logits = double(family)
    (ask,) = vt.get_method("lrp").passes(model)
    unchanged = replace(ask, composite=replace(ask.composite, scored=False))
    for label in range(logits.shape[1]):
        ones = vt.get_method("lrp").attribution(Context(model, x, Target.of(model, 2, label)).run_pass(unchanged))
        same(lrp(model, x, target=label), ones * logits[:, label, None, None])


def test_chefers_rules_start_with_one() -> None:
    """As their code does: each walk gets the slope of the score, and nothing of its size."""
    model, x, _ = double("vit")
    keep = Record("resid_pre", activation_grad, (model.depth - 1,))
    for rules in RULES.values():
        walks = [
            Context(model, x, Target.of(model, 2, target)).run_pass(Pass((keep,), rules))[keep][0]
            for target in (1, lambda options: options[:, 1] + 5, lambda options: 3 * options[:, 1])
        ]
        assert torch.equal(walks[0], walks[1])
        same(walks[2], 3 * walks[0])
        assert not rules.scored
    assert composed("").scored


# -- other scores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SOME)
def test_contrast_classes_are_subtracted(family: str) -> None:
    model, x, logits = double(family)
    maps = each_class(model, x, logits.shape[1])
    low, height = int(logits[0].argmin()), int(logits[0].argmax())
    same(lrp(model, x, target=height, contrast=low), maps[:, height] - maps[:, low])
    same(lrp(model, x, target=low, contrast=[height, 0]), maps[:, low] - (maps[:, height] + maps[:, 0]) / 2)


@pytest.mark.parametrize("family", ["vit", "tv_vgg"])
def test_each_logit_gets_what_it_changes_the_score_by(family: str) -> None:
    """Walks are linear in what they start with: any score is a sum over the maps of the classes."""
    model, x, logits = double(family)
    maps, p = each_class(model, x, logits.shape[1]), logits.softmax(dim=1)
    one = torch.eye(logits.shape[1], dtype=torch.float64)[1]
    for target, slope in (
        ({"target": 1, "output": "logprob"}, one - p),
        ({"target": 1, "output": "prob"}, p[:, 1:2] * (one - p)),
        ({"target": lambda options: 5 - 2 * options[:, 1]}, -2 * one),
        ({"target": lambda options: options[:, 1] ** 2}, 2 * logits * one),
        ({"target": lambda options: options.mul_(3)[:, 1]}, 3 * one),  # writes into what it gets
    ):
        same(lrp(model, x, **target), torch.einsum("bc,bchw->bhw", slope.expand(2, -1), maps))
        assert torch.equal(model.logits(x), logits)


def test_the_predicted_class_and_a_class_for_each_image() -> None:
    model, x, logits = double("vit")
    maps = each_class(model, x, logits.shape[1])
    method = logits.argmax(dim=1)
    same(lrp(model, x), maps[[0, 1], method])
    same(lrp(model, x, target=[3, 0]), maps[[0, 1], [3, 0]])


def test_one_logit_that_tells_two_classes_apart() -> None:
    model = FAMILIES["vit"]().double()
    model.head = nn.Linear(model.head.in_features, 1).double()
    x = images(model, 2).double()
    same(lrp(vt.wrap(model), x, target=0), -lrp(vt.wrap(model), x, target=1))


def test_several_targets_of_one_forward() -> None:
    model, x, logits = double("vit")
    (ask,) = vt.get_method("lrp").passes(model)
    targets = [Target.of(model, 2, 1), Target.of(model, 2, 3), Target.of(model, 2, 1, contrast=2, output="logprob")]
    for target, cache in zip(targets, run_for_targets(model, x, ask, targets), strict=True):
        alone = Context(model, x, target).run_pass(ask)
        assert torch.equal(cache[ask.records[0]][0], alone[ask.records[0]][0])
        assert torch.equal(cache.logits, logits)


# -- what cannot be started --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "tv_vgg"])
def test_a_class_that_is_shut_out(family: str) -> None:
    """Minus infinity elsewhere gives no NaN, and explains nothing; minus infinity itself is refused."""
    model, x, logits = double(family)
    last: Any = model.module.head if family == "vit" else model.module.classifier[-1]  # type: ignore[index]
    maps, p = each_class(model, x, logits.shape[1]), logits[:, :4].softmax(dim=1)
    with torch.no_grad():
        last.bias[4] = -torch.inf
    assert bool((model.logits(x)[:, 4] == -torch.inf).all())
    same(lrp(model, x, target=1), maps[:, 1])
    same(lrp(model, x, target=1, contrast=2), maps[:, 1] - maps[:, 2])
    slope = torch.eye(4, dtype=torch.float64)[1] - p
    same(lrp(model, x, target=1, output="logprob"), torch.einsum("bc,bchw->bhw", slope, maps[:, :4]))
    for target in ({"target": 4}, {"target": 1, "contrast": 4}):
        with pytest.raises(MapError, match="not finite"):
            lrp(model, x, **target)


def test_a_target_that_looks_at_nothing() -> None:
    model, x, _ = double("vit")
    for nothing in (lambda options: options.new_ones(2), lambda options: options.detach()[:, 0]):
        with pytest.raises(TracingError, match="does not depend"):
            lrp(model, x, target=nothing)
