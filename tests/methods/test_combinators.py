"""PLUS and SkipPLUS over bases that have no layer terms: the base on every sub-network, to the letter."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import vitreous as vt
from families import FAMILIES, images, proven
from vitreous.models import VisionModel
from zoo import EVERY

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
    found, tokens = [], model.embed(x)
    for layer in range(model.depth):
        found.append(tokens)
        tokens = model.forward_block(layer, tokens)
    return found


@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
@pytest.mark.parametrize("family", ["vit", "deit_distilled", "registers", "gap", "nonsquare", "hf_vit", "tv_vit"])
@pytest.mark.parametrize("base", BASES)
def test_sums_over_subnetworks(family, base):
    if family not in EVERY:
        pytest.skip("its library is not installed")
    model = vt.wrap(EVERY[family]())
    model.module.double()
    x = images(model, 2)
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
        found, extras = vt.get_method(spec).attribute(model, x, 1, extras=True)
        assert torch.allclose(found, expected.sum(dim=0), rtol=1e-7, atol=1e-9 * expected.abs().max().item()), spec
        assert extras["layers"].shape == (2, model.depth - first, *found.shape[1:])


def test_scorecam_scales_the_tokens_of_a_subnetwork():
    """Channel by channel: the tokens of the patches times the channel, from 0 to 1; prefix tokens as they are."""
    model = vt.wrap(FAMILIES["registers"]().double())
    x = images(model, 1)
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
    found = vt.get_method("scorecam").attribute(model.suffix(1, x), tokens, target=2)
    assert torch.allclose(found.flatten(), expected, atol=1e-10)


@pytest.mark.parametrize("base", ["tis(masks=6)", "smooth(ixg, samples=2)", "random"])
def test_draws_follow_the_image_and_not_the_rounding_of_its_tokens(base):
    """In single precision the tokens of a sub-network depend on the batch in their last digits."""
    model = FAMILIES["vit"]()
    x = images(model, 3)
    how = vt.get_method(f"plus({base})")
    together = how.attribute(model, x, 1)
    for i in range(3):
        alone = how.attribute(model, x[i : i + 1], 1)
        assert torch.allclose(alone[0], together[i], atol=1e-5 * together.abs().max().item())
    model.double()
    assert torch.allclose(
        how.attribute(model, x.double(), 1).float(), together, atol=2e-3 * together.abs().max().item()
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
        found = vt.get_method(f"logprob({base})").attribute(vision_model, inputs)
        assert torch.equal(found, vt.get_method(base).attribute(vision_model, inputs, output="logprob"))
    assert vt.get_method("logprob(rollout)").class_specific is False


def test_logprob_shares_one_pass() -> None:
    model, runs = FAMILIES["vit"](), []
    vision_model, inputs = vt.wrap(model), images(model, 3)
    with model.patch_embed.register_forward_hook(lambda *_: runs.append(1)):
        proven(model)
        runs.clear()
        vt.explain(vision_model, inputs, "logprob(plus(decompx))")
        assert len(runs) == 1  # the predicted class comes from the same forward
        vt.compare(vision_model, inputs[0], ["logprob(ixg)", "logprob(plus(ixg))", "logprob(generic)"])
    assert len(runs) == 2


def test_defaults_are_the_same_in_python_and_on_the_command_line() -> None:
    from vitreous.cli.main import app
    from vitreous.evaluation.evaluate import evaluate
    from vitreous.registry import defaults

    commands = {
        registered_command.callback.__name__: inspect.signature(registered_command.callback).parameters
        for registered_command in app.registered_commands
    }
    python = {each.__name__: inspect.signature(each).parameters for each in (vt.explain, vt.compare, evaluate)}
    for command, option, name in (
        ("explain", "method", "method"),
        ("explain", "effort", "effort"),
        ("compare", "method", "methods"),
        ("compare", "effort", "effort"),
    ):
        assert commands[command][option].default is python[command][name].default is None  # the effort level decides
    assert commands["evaluate"]["method"].default is python["evaluate"]["methods"].default is None
    assert python["evaluate"]["metrics"].default == defaults.METRICS
    for name in ("output", "seed"):
        assert commands["explain"][name].default == python["explain"][name].default
    assert commands["evaluate"]["target"].default == python["evaluate"]["target"].default
    for name in (
        defaults.METHOD,
        *defaults.comparison_methods(),
        *defaults.comparison_methods(False),
        *defaults.evaluation_methods(),
        *defaults.CONTROLS,
    ):
        assert vt.get_method(name).spec == name
    assert [vt.get_metric(name).spec for name in defaults.METRICS] == list(defaults.METRICS)


@pytest.mark.parametrize("base", ["gradcam_pp", "xgradcam", "eigencam", "eigengradcam", "ablationcam", "centre"])
def test_a_multiple_of_the_base_is_refused(base: str) -> None:
    model = FAMILIES["vit"]()
    x = images(model, 2)
    for how in ("plus", "skipplus"):
        spec = f"{how}({base}, start=0, via=subnetwork)"
        with pytest.raises(vt.VitreousError, match=f"{how}\\({base}\\) is {base} times a number"):
            vt.get_method(spec).attribute(model, x, 1)


def test_plus_of_iba_is_iba_at_every_layer() -> None:
    for family in ("vit", "gap"):
        model = FAMILIES[family]()
        x = images(model, 2)
        summed = vt.get_method("plus(iba(steps=3, samples=2))").attribute(model, x, 1)
        torch.testing.assert_close(summed, vt.get_method("iba_star(steps=3, samples=2)").attribute(model, x, 1))
