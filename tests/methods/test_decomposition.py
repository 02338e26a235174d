"""DecompX against the explicit propagation of N x (N + 1) x D shares."""

from __future__ import annotations

import pytest
import torch

import reference_vit
import vitreous as vt
from families import FAMILIES, golden, images, rounding
from vitreous.methods.ops import dot
from vitreous.tracing import Context, Pass, Target
from vitreous.tracing.records import Record
from vitreous.tracing.rules import LINEARIZED
from zoo import EVERY


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@torch.no_grad()
def test_equals_explicit_propagation_from_every_start_layer(family, dtype, tolerance):
    model = FAMILIES[family]().to(dtype)
    x = images(model, 1)
    for start in range(len(model.blocks)):
        shares = reference_vit.decompx(model.double(), x.double(), start)[:, 2]
        actual = vt.get_method(f"decompx(layer={start})").attribute(model.to(dtype), x, target=2)
        expected = shares[model.num_prefix_tokens : -1]
        assert (actual.flatten().double() - expected).abs().max() <= tolerance * max(1, expected.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_shares_of_tokens_and_biases_are_the_logit(family):
    """Completeness of the reference itself, so that agreement with it means something."""
    model = FAMILIES[family]().double()
    x = images(model, 1)
    for start in range(len(model.blocks)):
        assert torch.allclose(reference_vit.decompx(model, x, start).sum(dim=0), model(x)[0], atol=1e-10)


def test_golden_model_from_every_start_layer():
    model, x = golden()
    for start in range(4):
        with torch.no_grad():
            expected = reference_vit.decompx(model, x, start)[1:-1, 2]
        actual = vt.get_method(f"decompx(layer={start})").attribute(model, x, target=2).flatten()
        assert (actual - expected).abs().max() <= 1e-9


def test_equals_conservative_lrp_of_the_sheet():
    """CP-LRP with the identity GELU rule at the input of block 0 is DecompX without bias: the sheet's golden row."""
    model, x = golden()
    actual = vt.get_method("decompx").attribute(model, x, target=2).flatten()
    expected = {0: -0.00531671933, 50: -0.000255723353, 101: 0.00972335567, 195: -0.000121434942}
    assert actual.sum().item() == pytest.approx(0.248398797, abs=1e-8)
    for place, value in expected.items():
        assert actual[place].item() == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_of_the_frozen_network_is_bit_equal(family):
    model = FAMILIES[family]()
    x = images(model, 2)
    vision_model = vt.wrap(model)
    context = Context(vision_model, x, Target.of(vision_model, 2))
    cache = context.run_pass(Pass((Record("resid_pre", dot, (0, 1)),), LINEARIZED))
    torch.testing.assert_close(cache.logits, model(x), rtol=0, atol=rounding(family))


def test_a_gate_at_exactly_zero_is_one_half():
    """phi(0) = 1/2, where the published quotient would be 0 / 0."""
    from vitreous.tracing.rules import Call
    from vitreous.tracing.rules.gradient import HoldGate

    x = torch.tensor([0.0, 1.0, -2.0], requires_grad=True)
    HoldGate()(Call("activation", torch.nn.functional.gelu, (x,))).sum().backward()
    expected = 0.5 * (1 + torch.erf(x.detach() / 2**0.5))
    assert torch.allclose(x.grad, expected, atol=1e-6)
    assert x.grad[0] == 0.5


# -- biases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_biases_as_one_more_source(family):
    model = FAMILIES[family]().double()
    x = images(model, 1)
    for start in range(len(model.blocks)):
        method = vt.get_method(f"decompx(layer={start}, bias=token)")
        actual, extras = method.attribute(model, x, target=2, extras=True)
        assert torch.equal(actual, vt.get_method(f"decompx(layer={start})").attribute(model, x, target=2))
        assert extras["bias"].item() == pytest.approx(reference_vit.decompx(model, x, start)[-1, 2].item(), abs=1e-9)


def test_share_of_the_biases_follows_the_target():
    """Against another class it is a difference; for a log-probability, the logits weighed by their slopes."""
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    method = vt.get_method("decompx(bias=token)")
    shares = reference_vit.decompx(model, x, 0)[-1].detach()
    _, extras = method.attribute(model, x, target=2, contrast=[0, 1], extras=True)
    assert extras["bias"].item() == pytest.approx((shares[2] - (shares[0] + shares[1]) / 2).item(), abs=1e-9)
    _, extras = method.attribute(model, x, target=2, output="logprob", extras=True)
    expected = shares[2] - (model(x)[0].softmax(dim=0) * shares).sum()
    assert extras["bias"].item() == pytest.approx(expected.item(), abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_biases_spread_by_products(family):
    model = FAMILIES[family]().double()
    x = images(model, 2)
    for start in range(len(model.blocks)):
        actual = vt.get_method(f"decompx(layer={start}, bias=absdot)").attribute(model, x, target=2).flatten(1)
        for i in range(2):
            shares = reference_vit.decompx(model, x[i : i + 1], start, spread=True)
            assert shares[-1].abs().max() == 0
            assert torch.allclose(shares.sum(dim=0), model(x)[i], atol=1e-9)
            assert (actual[i] - shares[model.num_prefix_tokens : -1, 2]).abs().max() <= 1e-9


@pytest.mark.parametrize("family", EVERY)
@torch.no_grad()
def test_without_biases_both_ways_agree_on_every_family(family):
    model = vt.wrap(EVERY[family]())
    if model.attention == "windowed":
        with pytest.raises(vt.VitreousError, match="inside windows"):
            vt.get_method("decompx(bias=absdot)").attribute(model, images(model, 1))
        return
    model.module.double()
    for name, parameter in model.module.named_parameters():
        if "bias" in name and "relative" not in name:
            parameter.zero_()
    x = images(model, 2)
    for layer in (0, 2):
        written_out = vt.get_method(f"decompx(layer={layer}, bias=absdot)").attribute(model, x, target=2)
        one_backward = vt.get_method(f"decompx(layer={layer})").attribute(model, x, target=2)
        assert (written_out - one_backward).abs().max() <= 1e-8 * one_backward.abs().max()


def test_what_is_added_outside_any_layer_is_loud():
    model = vt.wrap(FAMILIES["vit"]())

    class Shifted(type(model)):
        def forward_head(self, tokens):
            return super().forward_head(tokens) + 1

        def reference_forward(self, inputs):
            return super().reference_forward(inputs) + 1

    with pytest.raises(vt.VitreousError, match="not recognised"):
        vt.get_method("decompx(bias=absdot)").attribute(Shifted(model.module), images(model, 1))


def test_shares_that_do_not_fit_are_refused_before_they_are_made():
    model = FAMILIES["vit"]()
    with pytest.raises(vt.VitreousError, match="17 x 17 shares of width 24"):
        vt.get_method("decompx(bias=absdot)").attribute(model, images(model, 1), memory_gb=1e-4)


def test_plus_of_spread_biases_runs_every_sub_network():
    model = FAMILIES["vit"]().double()
    x = images(model, 1)
    with torch.no_grad():
        expected = sum(reference_vit.decompx(model, x, start, spread=True)[1:-1, 2] for start in range(3))
    actual = vt.get_method("plus(decompx(bias=absdot))").attribute(model, x, target=2).flatten()
    assert (actual - expected).abs().max() <= 1e-9
    with pytest.raises(vt.VitreousError, match="no maps by layer"):
        vt.get_method("plus(decompx(bias=absdot), via=layers)")
