"""DecompX against the explicit propagation of N x (N + 1) x D shares."""

from __future__ import annotations

import pytest
import torch

import slow
import vitreous as vt
from families import FAMILIES, golden, images
from vitreous.methods.readout import dot
from vitreous.passes import Pass, Session, Target
from vitreous.passes.ask import Keep


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@torch.no_grad()
def test_equals_explicit_propagation_from_every_start_layer(family, dtype, tolerance):
    model = FAMILIES[family]().to(dtype)
    x = images(model, 1)
    for start in range(len(model.blocks)):
        shares = slow.decompx(model.double(), x.double(), start)[:, 2]
        found = vt.method(f"decompx(layer={start})").attribute(model.to(dtype), x, target=2)
        expected = shares[model.num_prefix_tokens : -1]
        assert (found.flatten().double() - expected).abs().max() <= tolerance * max(1, expected.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_shares_of_tokens_and_biases_are_the_logit(family):
    """Completeness of the reference itself, so that agreement with it means something."""
    model = FAMILIES[family]().double()
    x = images(model, 1)
    for start in range(len(model.blocks)):
        assert torch.allclose(slow.decompx(model, x, start).sum(dim=0), model(x)[0], atol=1e-10)


def test_golden_model_from_every_start_layer():
    model, x = golden()
    for start in range(4):
        with torch.no_grad():
            expected = slow.decompx(model, x, start)[1:-1, 2]
        found = vt.method(f"decompx(layer={start})").attribute(model, x, target=2).flatten()
        assert (found - expected).abs().max() <= 1e-9


def test_equals_conservative_lrp_of_the_sheet():
    """CP-LRP with the identity GELU rule at the input of block 0 is DecompX without bias: the sheet's golden row."""
    model, x = golden()
    found = vt.method("decompx").attribute(model, x, target=2).flatten()
    expected = {0: -0.00531671933, 50: -0.000255723353, 101: 0.00972335567, 195: -0.000121434942}
    assert found.sum().item() == pytest.approx(0.248398797, abs=1e-8)
    for place, value in expected.items():
        assert found[place].item() == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_of_the_frozen_network_is_bit_equal(family):
    model = FAMILIES[family]()
    x = images(model, 2)
    view = vt.view(model)
    session = Session(view, x, Target.of(view, 2))
    trace = session.trace(Pass((Keep("input", dot, (0, 1), grad=True),), "frozen"))
    assert torch.equal(trace.logits, model(x))


def test_a_gate_at_exactly_zero_is_one_half():
    """phi(0) = 1/2, where the published quotient would be 0 / 0."""
    from vitreous.passes.rules import FrozenGate

    x = torch.tensor([0.0, 1.0, -2.0], requires_grad=True)
    FrozenGate.apply(x, torch.nn.functional.gelu(x.detach())).sum().backward()
    expected = 0.5 * (1 + torch.erf(x.detach() / 2**0.5))
    assert torch.allclose(x.grad, expected, atol=1e-6)
    assert x.grad[0] == 0.5
