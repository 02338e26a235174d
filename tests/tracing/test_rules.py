"""Rules: tables that are values, one small rule of each currency, and what has no rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitreous as vt
from families import FAMILIES, images
from vitreous.errors import TracingError
from vitreous.tracing import Context, Pass, Record, Target, activation_grad
from vitreous.tracing.rules import GRADIENT, LINEARIZED, AttentionRule, Call, Composite, Flows, Rule
from vitreous.tracing.rules.base import KINDS, OPERATIONS
from vitreous.tracing.rules.gradient import Hold, HoldAttention, HoldDeviation, HoldGate
from vitreous.tracing.runner import merge
from zoo import EVERY

INPUT = Record("resid_pre", activation_grad, (0,))


def session(model: Any, batch: int = 2) -> Context:
    vision_model = vt.wrap(model)
    return Context(vision_model, images(model, batch), Target.of(vision_model, batch, 1))


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_table_is_a_value() -> None:
    one = Composite.of(norm=HoldDeviation(), attention=HoldAttention())
    assert one == Composite.of(attention=HoldAttention(), norm=HoldDeviation())
    assert hash(one) == hash(Composite.of(attention=HoldAttention(), norm=HoldDeviation()))
    assert one != Composite.of("relevance", attention=HoldAttention(), norm=HoldDeviation())
    assert one != LINEARIZED
    assert not GRADIENT
    assert LINEARIZED.kinds == ("activation", "attention", "gate", "norm", "softmax")
    passes = [
        Pass((INPUT,), one),
        Pass((Record("resid_pre", activation_grad, (1,)),), one),
        Pass((INPUT,), LINEARIZED),
    ]
    assert [item.composite for item in merge(passes)] == [one, LINEARIZED]
    assert set(OPERATIONS.values()) <= set(KINDS)


@pytest.mark.parametrize("make", [lambda: Composite.of(lienar=Hold()), lambda: Composite.of("money", norm=Hold())])
def test_unknown_kinds_and_currencies(make: Any) -> None:
    with pytest.raises(TracingError, match="known:"):
        make()


@dataclass(frozen=True)
class Seen(Rule):
    """Does nothing but remember that it was there."""

    kind: str
    seen: list[str]

    def __call__(self, call: Call) -> Any:
        assert call.kind == self.kind
        self.seen.append(f"{call.kind} {call.layer}")
        return call.run()

    def __hash__(self) -> int:
        return hash(self.kind)


@pytest.mark.parametrize("family", ["vit", "gap", "swiglu", "hf_vit_eager", "tv_vit", "swin"])
def test_every_kind_of_operation_can_be_given_a_rule(family: str) -> None:
    """Whatever a rule leaves as it is, the gradient is the model's own."""
    model = EVERY[family]()
    expected = session(model).run_pass(Pass((INPUT,)))[INPUT][0]
    seen: list[str] = []
    kinds = {"linear", "matmul", "add", "norm", "activation", "gate", "softmax", "conv", "embedding"}
    table = Composite.of(**{kind: Seen(kind, seen) for kind in kinds})
    with_image = Record("pixels", activation_grad)  # so that the embedding runs with a graph too
    actual = session(model).run_pass(Pass((INPUT, with_image), table))
    torch.testing.assert_close(actual[INPUT][0], expected, rtol=1e-4, atol=1e-5)
    met = {item.split()[0] for item in seen}
    assert {"linear", "add", "norm", "embedding"} <= met
    assert met & {"activation", "gate"}
    assert met & {"softmax"}  # fused attention is written out for it


def test_operations_that_no_rule_asked_for_need_not_be_counted() -> None:
    """An activation that nobody recognises disturbs only those who steer activations."""
    model = FAMILIES["vit"]()
    model.blocks[0].mlp.act = torch.nn.Mish()
    session(model).run_pass(Pass((INPUT,), Composite.of(norm=HoldDeviation())))
    with pytest.raises(TracingError, match="saw 0 activation calls in block 0, expected 1"):
        session(model).run_pass(Pass((INPUT,), Composite.of(activation=HoldGate())))


# -- gradients ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damped(Rule):
    """The gradient of an activation times a factor: a modified gradient."""

    factor: float

    def __call__(self, call: Call) -> Any:
        out = call.run()
        return self.factor * out + (1 - self.factor) * out.detach()


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0])
def test_a_modified_gradient(factor: float) -> None:
    """Against the model with its activations exchanged by hand."""
    model = FAMILIES["vit"]().double()
    actual = session(model).run_pass(Pass((INPUT,), Composite.of(activation=Damped(factor))))

    class Exchanged(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = F.gelu(x)
            return factor * out + (1 - factor) * out.detach()

    for block in model.blocks:
        block.mlp.act = Exchanged()
    vision_model = vt.wrap(model)
    tokens = vision_model.embed(images(model, 2)).detach().requires_grad_()
    logits = vision_model.forward_head(vision_model.forward_blocks(tokens))
    (expected,) = torch.autograd.grad(logits[:, 1].sum(), tokens)
    torch.testing.assert_close(actual[INPUT][0], expected)
    torch.testing.assert_close(actual.logits, logits.detach())


@dataclass(frozen=True)
class HalfEach(Rule):
    """Each factor of a product gets half of what it would get."""

    def __call__(self, call: Call) -> Any:
        out = call.run()
        return 0.5 * out + 0.5 * out.detach()


def test_rules_for_the_parts_of_attention() -> None:
    """The products and the softmax inside a fused attention, each under a rule of its own, against the same by hand."""
    model: Any = FAMILIES["vit"]().double()
    actual = session(model).run_pass(Pass((INPUT,), Composite.of(matmul=HalfEach(), softmax=Hold())))
    vision_model = vt.wrap(model)
    tokens = first = vision_model.embed(images(model, 2)).detach().requires_grad_()
    for block in model.blocks:
        x = block.norm1(tokens)
        q, k, v = block.attn.qkv(x).reshape(2, -1, 3, 3, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        mixed = scores.softmax(dim=-1).detach() @ v
        mixed = 0.5 * mixed + 0.5 * mixed.detach()
        tokens = tokens + block.attn.proj(mixed.transpose(1, 2).flatten(2))
        tokens = tokens + block.mlp(block.norm2(tokens))
    (expected,) = torch.autograd.grad(vision_model.forward_head(tokens)[:, 1].sum(), first)
    torch.testing.assert_close(actual[INPUT][0], expected)


# -- relevance ---------------------------------------------------------------------------------------------------------


class Shared(torch.autograd.Function):
    """Hands relevance on to the inputs of a sum ``z = z_1 + z_2 + …`` by their shares: ``R_i = z_i R / (z + eps)``."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(out, *parts)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        out, *parts = ctx.saved_tensors
        item = flows[0] / (out + 1e-9 * torch.where(out < 0, -1.0, 1.0))
        return None, *(part * item for part in parts)


@dataclass(frozen=True)
class ShareSum(Rule):
    """Residual additions, rescaled so that nothing is doubled."""

    def __call__(self, call: Call) -> Any:
        one, other = call.args
        return Shared.apply((one + other).detach(), one.expand(call.run().shape), other.expand(call.run().shape))


class Epsilon(torch.autograd.Function):
    """``R_i = x_i sum_j w_ji R_j / (z_j + eps)`` with z without the bias, so that it takes no relevance."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        z = x @ weight.T
        return x * ((flows[0] / (z + 1e-9 * torch.where(z < 0, -1.0, 1.0))) @ weight), None, None


@dataclass(frozen=True)
class LinearEpsilon(Rule):
    def __call__(self, call: Call) -> Any:
        x, weight = call.args[:2]
        return Epsilon.apply(x, weight, call.run().detach())


class AsItIs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *flows: Tensor) -> Any:
        return flows[0], None


@dataclass(frozen=True)
class PassOn(Rule):
    """Norms and activations hand relevance on as it is."""

    def __call__(self, call: Call) -> Any:
        return AsItIs.apply(call.args[0], call.run().detach())


@dataclass(frozen=True)
class ToValues(AttentionRule):
    """Attention is a sum over values: ``R_v = v * A^T (R / out)``."""

    def backward(self, attention: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, flows: Tensor) -> Flows:
        out = attention @ v
        item = flows / (out + 1e-9 * torch.where(out < 0, -1.0, 1.0))
        return Flows(None, None, v * (attention.transpose(-2, -1) @ item))


RELEVANCE = Composite.of(
    "relevance", linear=LinearEpsilon(), add=ShareSum(), norm=PassOn(), activation=PassOn(), attention=ToValues()
)


@pytest.mark.parametrize("family", ["vit", "clip"])
def test_relevance_is_neither_made_nor_lost(family: str) -> None:
    """From the class to the tokens of every layer: what arrives is what was sent, image by image."""
    model = FAMILIES["vit"]().double()
    if family == "clip":
        model = FAMILIES["clip"]().double()
        for block in model.blocks:
            block.mlp.act = torch.nn.GELU()
    keep = Record("resid_pre", activation_grad, (0, 1, 2))
    cache = session(model).run_pass(Pass((keep,), RELEVANCE))
    for relevance in cache[keep]:
        torch.testing.assert_close(relevance.sum(dim=(1, 2)), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-3)
    torch.testing.assert_close(cache.logits, vt.wrap(model).logits(images(model, 2)))


def test_relevance_without_a_rule_is_an_error_and_not_a_gradient() -> None:
    model = FAMILIES["vit"]()
    for kind in RELEVANCE.kinds:
        others = Composite(tuple(pair for pair in RELEVANCE.table if pair[0] != kind), "relevance")
        with pytest.raises(TracingError, match="no rule says how relevance passes"):
            session(model).run_pass(Pass((INPUT,), others))
    with pytest.raises(TracingError, match="no rule says how relevance passes mul in block 0"):
        session(FAMILIES["deit3"]()).run_pass(Pass((INPUT,), RELEVANCE))  # LayerScale


# -- values ------------------------------------------------------------------------------------------------------------


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[Pass]:
    ran: list[Pass] = []
    run = Context._execute

    def counted(self: Context, ask: Pass) -> None:
        ran.append(ask)
        run(self, ask)

    monkeypatch.setattr(Context, "_execute", counted)
    return ran


def test_a_value_is_part_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FAMILIES["vit"]().double()
    live = session(model)
    ran = count_passes(monkeypatch)
    for value in ("prob", "logprob", "logit", "prob"):
        actual = live.run_pass(Pass((INPUT,), output=value))[INPUT][0]
        alone = Context(live.model, live.inputs, Target.of(live.model, 2, 1, output=value)).run_pass(Pass((INPUT,)))
        torch.testing.assert_close(actual, alone[INPUT][0])
    assert len(ran) == 3 + 4
    with pytest.raises(vt.VitreousError, match="is not one of"):
        Pass(output="probability")


def test_methods_of_one_value_share_their_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.methods import compute_attributions

    model = FAMILIES["vit"]()
    for specs, count in (
        (["vtranm", "vtranm(necc=false)"], 1),
        (["vtranm(output=logprob)", "logprob(ixg)", "logprob(generic)", "rollout"], 1),
        (["vtranm", "generic"], 2),
        (["consensus(logprob(ixg), logprob(rollout))", "logprob(plus(ixg))"], 1),
    ):
        live = session(model)
        ran = count_passes(monkeypatch)
        compute_attributions(live, [vt.get_method(item) for item in specs])
        assert len(ran) == count, specs


@pytest.mark.parametrize(
    ("spec", "asked", "value"),
    [
        ("ixg", "logit", "logit"),
        ("smooth(logprob(ixg), samples=2)", "logit", "logprob"),
        ("plus(logprob(ixg), via=subnetwork)", "logit", "logprob"),
        ("skipplus(logprob(ixg), via=subnetwork)", "prob", "logprob"),
        ("var(logprob(ixg))", "logit", "logprob"),
        ("logprob(smooth(ixg, samples=2))", "logit", "logprob"),
        ("consensus(logprob(ixg), generic)", "logit", "logprob and logit"),
        ("consensus(logprob(ixg), generic)", "logprob", "logprob"),
        ("vtranm", "logit", "prob"),
        ("vtranm(output=none)", "logit", "logit"),
        ("consensus(coiba(steps=2), tis(masks=4))", "logit", "logprob and prob"),
    ],
)
def test_captions_name_the_value_that_was_explained(spec: str, asked: str, value: str) -> None:
    model = FAMILIES["vit"]()
    actual = vt.explain(model, images(model, 1)[0], spec, 1, output=asked)
    assert (actual.output, actual.request.requested_output) == (value, asked)
    assert f", {value} of " in actual.caption
